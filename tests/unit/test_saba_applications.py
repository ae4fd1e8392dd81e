"""Saba's figures that show profiled applications: predictions of what it states, and cohorts."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from weft.cli import main
from weft.corun.rounds import (
    ALONE,
    EQUAL,
    LEND,
    ONE,
    WEFT,
    Mean,
    Plan,
    build_record,
    build_schemes,
    compute_outcome,
)
from weft.plot.style import figure
from weft.sensitivity.application import Application, Profile, Run, fit_application
from weft.sensitivity.application_table import AppTable
from weft.sensitivity.model import Hinges
from weft.studies import Result, run_study
from weft.studies.observation import Unavailable
from weft.studies.saba import BUILDERS
from weft.studies.saba.changed_conditions import (
    CONVEX,
    PAPER,
    assess_change,
    build_fig4_5,
    build_fig4_6,
)
from weft.studies.saba.cohort import Cohort, user_cohort
from weft.studies.saba.slowdown_by_share import build_fig3_1, build_fig3_3, least_utilisation
from weft.studies.saba.stated_values import TIMED, find_times, split_times
from weft.studies.saba.workload_pair import (
    CoRun,
    build_fig3_2,
    gain_name,
    judge_gains,
    judge_losses,
    prediction_name,
)

SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
LINK_BPS = 200e6


def application(
    name: str, terms: tuple[tuple[float, float], ...], shares: tuple[float, ...] = SHARES
) -> Application:
    """Ten seconds alone, exactly on a curve; half of them computing, 30 % of the link used."""
    curve = Hinges(terms=terms, floor=min(shares))
    runs = tuple(
        Run(
            share=b,
            completion=10 * float(curve.slowdown(b)),
            repetition=r,
            cpu_s=5.0,
            bytes=int(0.3 * LINK_BPS / 8 * 10),
        )
        for b in shares
        for r in range(2)
    )
    return fit_application(Profile(name=name, runs=runs, link_bps=LINK_BPS))


def cohort(*applications: Application) -> Cohort:
    return user_cohort(Path("here"), applications)


@pytest.fixture(scope="module")
def three() -> Cohort:
    """All of it waited for, hidden down to 40 % of the link, and nothing sent at all."""
    return cohort(
        application("waits", ((1.0, 0.8),)),
        application("hides", ((0.4, 0.9),)),
        application("computes", ()),
        application("waits.data-4", ((1.0, 0.5),)),
        application("waits.nodes-0.5", ((1.0, 0.8),)),
    )


def ours(result: Result, setting: str, quantity: str) -> float:
    (row,) = [
        row
        for row in result.rows
        if (row.observation.setting, row.observation.quantity) == (setting, quantity)
    ]
    return row.ours


def words(result: Result, system: str) -> list[str]:
    return [verdict.word for claim, verdict in result.judged if claim.system.endswith(system)]


# ---- What the thesis states ---------------------------------------------------------------------


@pytest.mark.parametrize("workload", TIMED)
def test_computing_and_sending_take_the_stated_times(workload: str) -> None:
    parts = split_times(workload)
    for share, seconds in find_times(workload).items():
        assert parts.completion_s(share) == pytest.approx(seconds)
    assert min(parts.computing_s, parts.sending_s) > 0


def test_times_of_one_section_predict_slowdowns_of_another() -> None:
    result = run_study(build_fig3_3((cohort(),)))
    predicted = {
        row.observation.setting: row
        for row in result.compared
        if row.observation.counts_as == "prediction"
    }
    assert predicted["LR, 75 %"].published == 1.28
    assert predicted["LR, 75 %"].within
    assert predicted["LR, 25 %"].published == 3.4
    assert predicted["LR, 25 %"].within
    # The thesis contradicts itself here, and says so.
    assert not predicted["TS, 25 %"].within
    assert find_times("TS")[0.25] / find_times("TS")[0.75] > 1.1 * 1.05
    assert not [row for row in result.rows if row.unexplained]


def test_the_pair_is_predicted_from_what_is_stated_of_each_alone() -> None:
    result = run_study(build_fig3_2((cohort(),), ()))
    assert [row.published for row in result.compared][:6] == [2.03, 1.13, 1.58, 1.41, 1.16, 1.28]
    errors = [abs(row.ours / row.published - 1) for row in result.compared if row.published]
    assert max(errors) < 0.15
    assert not [row for row in result.rows if row.unexplained]
    assert [verdict.word for verdict in result.verdicts] == ["holds"] * 4


def test_the_split_of_a_pair_that_waits_is_by_the_roots_of_what_it_sends() -> None:
    """Minimising c1/b + c2/(1 − b) gives b = √c1 / (√c1 + √c2)."""
    c = [split_times(w).model.terms[0][1] for w in TIMED]
    expected = 100 * np.sqrt(c[0]) / np.sqrt(c).sum()
    result = run_study(build_fig3_2((cohort(),), ()))
    setting = "LR and TS, from times, weft's split"
    found = ours(result, setting, "share of the link of LR")
    assert found == pytest.approx(expected, abs=0.1)
    assert found == pytest.approx(75, abs=1)  # what the thesis chose


# ---- Applications -------------------------------------------------------------------------------


def test_slowdowns_and_their_spread_are_those_of_the_runs(three: Cohort) -> None:
    result = run_study(build_fig3_1((three,)))
    assert ours(result, "waits (own), 25 %", "slowdown") == pytest.approx(1 + 0.8 * 3)
    assert ours(result, "hides (own), 75 %", "slowdown") == pytest.approx(1.0)
    assert ours(result, "all (own), 25 %, most", "slowdown") == pytest.approx(3.4)
    assert ours(result, "all (own), 25 %, least", "slowdown") == pytest.approx(1.0)
    mean = (3.4 + (1 + 0.9 * 0.6) + 1) / 3
    assert ours(result, "all (own), 25 %, mean", "slowdown") == pytest.approx(mean)
    assert words(result, three.system) == ["holds", "holds"]
    assert not [row for row in result.compared if row.judged]
    spread = {row.observation.setting: row.published for row in result.compared}
    theirs = {"least": 1.1, "mean": 2.1, "most": 3.4}
    assert spread == {f"all (own), 25 %, {name}": value for name, value in theirs.items()}


def test_a_cohort_of_equals_does_not_meet_the_claims() -> None:
    alike = cohort(application("a", ((1.0, 0.8),)), application("b", ((1.0, 0.79),)))
    result = run_study(build_fig3_1((alike,)))
    assert words(result, alike.system) == ["does not hold", "does not hold"]


def test_a_share_that_was_not_profiled_is_left_out() -> None:
    other = cohort(application("a", ((1.0, 0.8),), (0.5, 1.0)), application("b", ()))
    result = run_study(build_fig3_1((other,)))
    settings = {row.observation.setting for row in result.rows}
    assert settings == {"b (own), 75 %", "b (own), 25 %"}


def test_the_pair_of_a_cohort_is_its_most_and_its_least_sensitive(three: Cohort) -> None:
    result = run_study(build_fig3_2((three,), ()))
    pair = "waits and computes, max-min"
    assert ours(result, pair, "waits") == pytest.approx(1.8, abs=0.01)
    assert ours(result, pair, "computes") == pytest.approx(1.0)
    # Who sends nothing keeps its floor alone.
    best = "waits and computes, weft's split"
    assert ours(result, best, "share of the link of waits") == pytest.approx(90)


def test_what_ran_together_is_compared_with_what_was_predicted() -> None:
    """Two rounds in which weft is as fast as alone, and equal queues take twice as long."""
    plan = Plan(names=("a", "b"), repeat=3, runs=1, seed=1)
    took = {ALONE: 10.0, ONE: 25.0, EQUAL: 20.0, WEFT: 10.0, LEND: 12.0}
    models = [Hinges(terms=((1.0, 0.95),), floor=0.05), Hinges(terms=((0.25, 3.6),), floor=0.05)]
    ways = build_schemes(models, LINK_BPS)
    records = [
        build_record(
            plan,
            round_,
            ways.get(round_.scheme),
            {n: [took[round_.scheme] + 0.1 * round_.repetition] for n in round_.numbers},
            idle=0.5,
        )
        for round_ in plan.rounds
    ]
    outcome = compute_outcome(plan.names, ways, records)
    assert outcome is not None
    pair = CoRun(outcome=outcome)
    result = run_study(build_fig3_2((cohort(),), (pair,)))
    assert ours(result, "a and b", "mean slowdown, equal queues") == pytest.approx(2, rel=0.02)
    assert ours(result, "a and b", "mean slowdown, weft") == pytest.approx(1, rel=0.02)
    assert ours(result, "a and b", gain_name(WEFT)) == pytest.approx(50, rel=0.02)
    (row,) = [row for row in result.compared if row.observation.quantity == gain_name(WEFT)]
    assert row.published == pytest.approx(100 * (1 - 1.28 / 1.58), abs=0.05)
    assert row.ratio is None
    for way in (EQUAL, WEFT, LEND):
        assert ours(result, "a and b", prediction_name(way)) == pytest.approx(fmean(ways[way].lent))
    assert pair.predict_gain(WEFT) > 0.1
    assert judge_gains((pair,), WEFT).holds is True
    little = replace(outcome, predicted={WEFT: (0.05, 0.3)})
    assert judge_gains((CoRun(outcome=little),), WEFT).holds is True  # whatever was predicted
    none = replace(outcome, gains={(WEFT, EQUAL): Mean(-0.05, 0.1)})
    assert judge_gains((CoRun(outcome=none),), WEFT).holds is False
    assert judge_gains((pair, CoRun(outcome=none)), WEFT).holds is None
    worse = replace(outcome, gains={(WEFT, EQUAL): Mean(-0.2, 0.1)})
    assert judge_gains((CoRun(outcome=worse),), WEFT).holds is False
    unsure = replace(outcome, gains={(WEFT, EQUAL): Mean(0.1, 0.2)})
    assert judge_gains((CoRun(outcome=unsure),), WEFT).holds is None
    assert judge_losses((pair,), WEFT).holds is True
    assert judge_losses((pair, CoRun(outcome=worse)), WEFT).holds is False
    than_one = replace(outcome, gains={**outcome.gains, (WEFT, ONE): Mean(-0.2, 0.1)})
    assert judge_losses((CoRun(outcome=than_one),), WEFT).holds is False
    assert judge_losses((CoRun(outcome=unsure),), WEFT).holds is True
    once = replace(outcome, gains={(WEFT, EQUAL): Mean(-0.2, inf)})
    with pytest.raises(Unavailable):
        judge_losses((CoRun(outcome=once),), WEFT)
    for panel in result.study.panels:
        figure(lambda ax, draw=panel: draw(ax, result))  # type: ignore[misc]


def test_processor_time_and_traffic_are_told_beside_completion(three: Cohort) -> None:
    result = run_study(build_fig3_3((three,)))
    assert ours(result, "waits (own), 25 %", "completion time") == pytest.approx(34)
    assert ours(result, "waits (own), 25 %", "processor time") == pytest.approx(5)
    assert least_utilisation(three.applications["waits"]) == pytest.approx(0.15, rel=1e-6)
    # "computes" sends 30 % of the link and is not slowed at all.
    assert words(result, three.system) == ["holds", "holds"]


def test_traffic_that_is_waited_for_does_not_show_that_it_can_be_hidden(three: Cohort) -> None:
    """What all is waited for decides nothing, nor does what hardly sends."""
    waits = replace(three, applications={"waits": three.applications["waits"]}, variants=())
    assert words(run_study(build_fig3_3((waits,))), three.system)[1] == "does not hold"


def test_variants_are_named_after_what_they_change(three: Cohort) -> None:
    assert set(three.applications) == {"waits", "hides", "computes"}
    assert [(v.base.name, v.change, v.factor) for v in three.variants] == [
        ("waits", "data", 4.0),
        ("waits", "nodes", 0.5),
    ]
    alone = cohort(application("lonely.data-4", ()))
    assert set(alone.applications) == {"lonely.data-4"}


def test_r_squared_after_a_change_is_of_the_old_model_on_the_new_samples(three: Cohort) -> None:
    result = run_study(build_fig4_5((three,)))
    b = np.repeat(SHARES, 2)
    before, after = 1 + 0.8 * (1 / b - 1), 1 + 0.5 * (1 / b - 1)
    expected = 1 - ((after - before) ** 2).sum() / ((after - after.mean()) ** 2).sum()
    assert ours(result, "waits (own), 4 × data", CONVEX) == pytest.approx(expected)
    cubic = np.polynomial.Polynomial.fit(b, before, 3)(b)
    expected = 1 - ((after - cubic) ** 2).sum() / ((after - after.mean()) ** 2).sum()
    assert ours(result, "waits (own), 4 × data", PAPER) == pytest.approx(expected)
    assert words(result, three.system) == ["holds" if expected > 0.55 else "does not hold"]


def test_most_and_least_impact_are_the_falls_of_r_squared() -> None:
    """The thesis names NI, whose R² falls most, and SVM, whose falls least: not extremes of R²."""
    several = cohort(
        application("curved", ((0.2, 2.0),)),
        application("curved.data-4", ((0.2, 1.9),)),
        application("waits", ((1.0, 0.8),)),
        application("waits.data-4", ((1.0, 0.6),)),
    )
    result = run_study(build_fig4_5((several,)))
    after = {name: ours(result, f"{name} (own), 4 × data", PAPER) for name in ("curved", "waits")}
    before = {name: ours(result, f"{name} (own), as profiled", PAPER) for name in after}
    falls = {name: before[name] - after[name] for name in after}
    assert falls["curved"] < falls["waits"]
    assert ours(result, "more data (own), most impact", PAPER) == after["waits"]
    assert ours(result, "more data (own), least impact", PAPER) == after["curved"]
    published = {row.observation.setting: row.published for row in result.compared}
    assert published == {
        "more data (own), most impact": 0.59,
        "more data (own), least impact": 0.81,
    }


def test_less_data_is_compared_with_the_published_tenth_of_the_data() -> None:
    smaller = cohort(
        application("waits", ((1.0, 0.8),)), application("waits.data-0.25", ((1.0, 0.6),))
    )
    result = run_study(build_fig4_5((smaller,)))
    published = {row.observation.setting: row.published for row in result.compared}
    assert published == {
        "less data (own), most impact": 0.57,
        "less data (own), least impact": 0.83,
    }


def test_a_change_that_changes_nothing_costs_nothing(three: Cohort) -> None:
    result = run_study(build_fig4_6((three,)))
    for quantity in (PAPER, CONVEX):
        same = ours(result, "waits (own), as profiled", quantity)
        assert ours(result, "waits (own), 0.5 × nodes", quantity) == pytest.approx(same)
    assert words(result, three.system) == ["holds", "not judged"]


def test_shares_below_the_floor_of_the_model_are_not_asked_of_it() -> None:
    base = application("a", ((1.0, 0.8),), (0.25, 0.5, 0.75, 1.0))
    after = application("a.data-2", ((1.0, 0.8),), (0.1, 0.25, 0.5, 0.75, 1.0))
    assert assess_change(base, after)[CONVEX] == pytest.approx(1.0)


@pytest.mark.parametrize("name", BUILDERS)
def test_every_panel_of_a_cohort_names_its_axes(name: str, three: Cohort) -> None:
    study = BUILDERS[name]((three,))
    result = run_study(study)
    assert study.panels
    for panel in study.panels:
        (ax,) = figure(lambda ax, draw=panel: draw(ax, result)).axes  # type: ignore[misc]
        assert ax.get_xlabel()
        assert ax.get_ylabel()


@pytest.mark.parametrize("name", BUILDERS)
def test_one_flat_application_or_none_is_no_error(name: str) -> None:
    for few in (cohort(), cohort(application("flat", ()))):
        run_study(BUILDERS[name]((few,)))


# ---- The command --------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for app in (application("mine", ((1.0, 0.7),)), application("other", ())):
        AppTable(tmp_path / "apps").save(app)
    return tmp_path / "apps"


def test_a_table_is_shown_beside_the_recorded_applications(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "run", "saba-fig3.1", "--table", str(table), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    systems = dict.fromkeys(row["system"] for row in rows)
    assert list(systems)[1:] == [f"applications in {table}"]
    most = [row["ours"] for row in rows if row["setting"] == "all (own), 25 %, most"]
    assert most == pytest.approx([3.1])


def test_the_user_s_own_table_needs_no_option(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(table.parent / "data"))
    default = table.parent / "data" / "weft" / "apps"
    default.parent.mkdir(parents=True)
    table.rename(default)
    assert main(["study", "run", "saba-fig3.1"]) == 0
    assert "mine (own), 25 %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["saba-fig4.3", "--table", "{table}"], "none of these studies shows applications"),
        (["saba-fig3.1", "--table", "{table}/nothing"], "no application in it"),
    ],
)
def test_a_table_that_would_not_be_shown_is_refused(
    table: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "run", *(a.format(table=table) for a in arguments)]) == 2
    assert told in capsys.readouterr().err


def test_a_damaged_application_is_told_and_the_others_shown(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (table / "broken.json").write_text("{")
    assert main(["study", "run", "saba-fig3.1", "--table", str(table)]) == 0
    out, err = capsys.readouterr()
    assert "mine (own), 25 %" in out
    assert "broken.json" in err
