"""What is kept of this project's own measurements can be read, and is what its name says."""

from __future__ import annotations

from itertools import combinations

import pytest

from weft.control.policy.allocate import allocate
from weft.control.policy.lending import choose_weights, estimate_volume, predict_slowdowns
from weft.corun.rounds import ALONE, LEND, MANAGED, SCHEMES, build_schemes, read_schemes
from weft.studies.saba.cohort import NODES, project_cohort, read_coruns

APPLICATIONS = project_cohort().applications


def test_recorded_applications_were_run_and_say_where_and_when() -> None:
    assert APPLICATIONS
    for name, application in APPLICATIONS.items():
        profile = application.profile
        assert application.name == name
        assert profile.command
        assert profile.link_bps
        assert profile.date
        assert {"host", "os", "cpu", "place"} <= profile.machine.keys()
        assert {0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0} == {run.share for run in profile.runs}


def test_the_cohort_names_the_rates_of_its_links() -> None:
    rates = {app.profile.link_bps for app in APPLICATIONS.values()}
    assert None not in rates
    text = "/".join(f"{rate / 1e6:g}" for rate in sorted(rates))
    assert project_cohort().system == f"applications profiled on a testbed, {text} Mb/s"


def test_variants_are_of_recorded_applications_and_of_another_command() -> None:
    assert {variant.change for variant in project_cohort().variants} == {"data", "nodes"}
    for variant in project_cohort().variants:
        assert variant.base is APPLICATIONS[variant.base.name]
        assert variant.factor > 0
        assert variant.factor != 1
        assert variant.application.profile.command != variant.base.profile.command
        assert variant.application.profile.link_bps == variant.base.profile.link_bps


def test_a_variant_is_named_by_its_factor_of_data_or_its_hosts() -> None:
    amounts = {
        v.application.name: f"{v.change}-{v.factor * (NODES if v.change == 'nodes' else 1):g}"
        for v in project_cohort().variants
    }
    assert len(amounts) == 8
    assert all(name.endswith(f".{amount}") for name, amount in amounts.items())


def test_recorded_coruns_are_of_four_pairs_or_more_and_of_four_at_once() -> None:
    sizes = [len(name.split("+")) for name in read_coruns()]
    assert sizes.count(2) >= 4
    assert sizes.count(4) >= 1


@pytest.mark.parametrize("name", read_coruns())
def test_a_recorded_corun_has_every_way_often_enough(name: str) -> None:
    names, records = name.split("+"), read_coruns()[name]
    assert {str(record.settings["applications"]) for record in records} == {" ".join(names)}
    repetitions = {record.settings["repetition"] for record in records}
    assert len(repetitions) >= 3
    found = [(r.settings["repetition"], r.settings["way"], r.settings["running"]) for r in records]
    alone = {(r, ALONE, one) for r in repetitions for one in names}
    beside = {(r, way, " ".join(names)) for r in repetitions for way in SCHEMES}
    assert set(found) == alone | beside
    assert len(found) == len(set(found))


@pytest.mark.parametrize("name", read_coruns())
def test_a_recorded_corun_had_the_weights_of_the_recorded_models(name: str) -> None:
    applications = [APPLICATIONS[one] for one in name.split("+")]
    link_bps = applications[0].profile.link_bps
    assert link_bps is not None
    models = [application.convex.model for application in applications]
    wanted = build_schemes(models, link_bps, [*map(estimate_volume, applications)])
    found = read_schemes(name, read_coruns()[name])
    assert found.keys() == wanted.keys()
    for way in found.keys() - {LEND}:
        assert found[way].weights == pytest.approx(wanted[way].weights, rel=1e-4)
        assert found[way].promised == pytest.approx(wanted[way].promised, rel=1e-4)
        assert found[way].lent == pytest.approx(wanted[way].lent, rel=1e-4)


@pytest.mark.parametrize("name", read_coruns())
def test_a_recorded_corun_lent_by_weights_as_good_as_todays_but_for_a_hundredth(name: str) -> None:
    """They were measured before weights with lending had to be no worse than Eq. 4.2's."""
    applications = [APPLICATIONS[one] for one in name.split("+")]
    models = [application.convex.model for application in applications]
    volumes = [*map(estimate_volume, applications)]
    had = read_schemes(name, read_coruns()[name])[LEND]
    today = choose_weights(models, MANAGED, volumes).tolist()
    then, now = (predict_slowdowns(models, w, MANAGED, volumes) for w in (had.weights, today))
    assert had.lent == pytest.approx(then.tolist(), rel=1e-4)
    assert then.mean() <= 1.01 * now.mean()


def test_weights_by_sensitivity_gain_no_group_of_the_recorded_more_than_a_hundredth() -> None:
    """What docs/corun.md says of all groups of two to five: what one leaves, others have anyway."""
    gains = []
    for count in range(2, 6):
        for group in combinations(APPLICATIONS.values(), count):
            models = [application.convex.model for application in group]
            volumes = [*map(estimate_volume, group)]
            equal = [MANAGED / count] * count
            ports = [range(count)]
            weft = allocate(models, ports, units=100_000, capacity=MANAGED).shares.tolist()
            before, after = (
                predict_slowdowns(models, weights, MANAGED, volumes).mean()
                for weights in (equal, weft)
            )
            gains.append(1 - after / before)
    assert len(gains) == 372
    assert max(gains) < 0.01
    assert -0.045 < min(gains) < -0.03
