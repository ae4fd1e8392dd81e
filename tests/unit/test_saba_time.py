"""Fig. 4.19 of the Saba thesis: scenarios and the time that their calculation takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft import __version__
from weft._core import Histogram
from weft.control.policy.allocate import allocate
from weft.fabric import leaf_spine, path
from weft.plot.style import figure
from weft.records import Distribution, Provenance, Record, RecordWriter
from weft.sensitivity.application import PAPER_SHARES
from weft.studies import Result, run_study
from weft.studies.observation import judge, quantile_in
from weft.studies.saba.calculation_time import (
    FIG4_19,
    KINDS,
    FabricArrays,
    add_recorded_run,
    build_drawn_fig4_19,
    build_fig4_19,
    draw_models,
)


@pytest.fixture(scope="module")
def result() -> Result:
    return run_study(build_fig4_19(scenarios=2))


def test_published_times_stand_beside_ours_and_are_not_judged(result: Result) -> None:
    rows = [row for row in result.rows if row.published is not None]
    assert [row.published for row in rows] == [0.09, 0.16, 0.31, 0.43, 0.72, 1.13]
    assert not [row for row in rows if row.judged]
    assert all(row.ours > 0 for row in result.rows)
    assert len(result.rows) == 2 * len(KINDS)


@pytest.mark.parametrize(
    ("starts_ms", "word"),
    [
        ((1, 2, 3), "holds"),
        ((1, 3, 2), "does not hold"),
        ((1, 2, 2), "not judged"),
        ((1, 1.2, 3), "not judged"),
    ],
)
def test_degrees_are_in_order_if_the_intervals_of_their_medians_are(
    starts_ms: tuple[float, ...], word: str
) -> None:
    """Times of 20 scenarios from a start to half a millisecond later."""
    record = times(
        {
            kind: [round((start + n / 40) * 1e6) for n in range(20)]
            for kind, start in zip(KINDS, starts_ms, strict=False)
        }
    )
    (claim,) = build_fig4_19(scenarios=20).claims
    assert judge(claim, {"1,000 applications": record}).word == word


def test_two_scenarios_decide_nothing(result: Result) -> None:
    assert [verdict.word for verdict in result.verdicts] == ["not judged"]


def test_the_most_of_few_is_not_called_a_percentile(result: Result) -> None:
    assert {row.observation.quantity for row in result.rows} == {"calculation time, most of 2"}
    record = result.records["250 applications"]
    (row,) = [row for row in result.rows if row.observation.setting == "250 applications, k = 1"]
    assert row.ours == quantile_in(record, "k = 1", 1.0, "s")


def test_drawn_sizes_are_judged_by_their_percentile() -> None:
    study = build_drawn_fig4_19(scenarios=6)
    drawn = run_study(study)
    assert len(drawn.verdicts) == len(study.claims) == 7
    small, all_sizes = (drawn.records[f"up to {size} applications"] for size in ("250", "1,000"))
    counts = [record.quantities["k = 3"].histogram.count for record in (small, all_sizes)]
    assert 0 < counts[0] < counts[1] == 6
    for claim, verdict in drawn.judged[1:]:
        stated = float(claim.statement.split()[-2])
        assert verdict.holds is (float(verdict.evidence.split()[1]) <= stated)


def test_claims_are_judged_by_a_recorded_run(tmp_path: Path) -> None:
    """By default; 100 scenarios of up to 250 applications, of which two take longer than stated.

    Of up to 1,000 applications models of degree 1, 2, 3 take 1, 2, 3 ms: longer by degree.
    """
    recorded = tmp_path / "recorded.jsonl"
    slow = times({kind: [10**6] * 98 + [10**9] * 2 for kind in KINDS})
    fast = times({kind: [number * 10**6] * 100 for number, kind in enumerate(KINDS, 1)})
    with RecordWriter(str(recorded)) as writer:
        for most, record in (("250", slow), ("1,000", fast)):
            settings = {"applications": f"1 to {most}", "scenarios": 100}
            writer.append(replace(record, settings=settings))
    empty = replace(build_fig4_19(2), points=(), observations=(), claims=())
    study = add_recorded_run(empty, recorded)
    words = [verdict.word for _, verdict in run_study(study).judged]
    assert words == ["holds"] + ["does not hold"] * 3 + ["holds"] * 3
    assert "100 scenarios" in study.claims[-1].system
    assert len(FIG4_19.claims) == 7


def times(by_kind: dict[str, list[int]]) -> Record:
    quantities = {}
    for kind, taken_ns in by_kind.items():
        histogram = Histogram()
        histogram.record_many(np.array(taken_ns, dtype=np.int64))
        quantities[kind] = Distribution(unit="ns", histogram=histogram)
    return Record(
        kind="measurement",
        name="x",
        quantities=quantities,
        provenance=Provenance(weft_version=__version__),
    )


def test_the_panel_names_its_axes(result: Result) -> None:
    (panel,) = build_fig4_19(scenarios=2).panels
    (ax,) = figure(lambda ax: panel(ax, result)).axes
    assert ax.get_xlabel()
    assert ax.get_ylabel()


def test_drawn_models_are_the_same_in_arrays_and_one_by_one() -> None:
    """Hinges of one to three stretches, and polynomials of least squares to their slowdowns."""
    drawn = draw_models(np.random.default_rng(3), 40)
    hinges = drawn["convex"].to_models()
    assert {len(model.terms) for model in hinges} == {1, 2, 3}
    slowdowns = np.array([model.slowdown(PAPER_SHARES) for model in hinges]).T
    for kind, models in drawn.items():
        singles = models.to_models()
        if kind != "convex":
            fitted = np.polynomial.polynomial.polyfit(PAPER_SHARES, slowdowns, int(kind[-1])).T
            np.testing.assert_allclose([model.coefficients for model in singles], fitted)
        ports = [range(start, start + 5) for start in range(0, 40, 5)]
        prepared, listed = (
            allocate(each, ports, units=1000) for each in (models.prepare(), singles)
        )
        assert prepared.weights.tolist() == listed.weights.tolist()


def test_ports_carry_the_applications_whose_connections_pass_through_them() -> None:
    fabric = leaf_spine(3, 2, 4)
    hosts = np.array(fabric.hosts)
    rng = np.random.default_rng(1)
    source, target = rng.choice(hosts, 40), rng.choice(hosts, 40)
    application = rng.integers(0, 7, 40)
    wiring = FabricArrays(fabric)
    ports, places = wiring.ports(source, target, application)
    expected = {
        (hop, int(app))
        for a, b, app in zip(source, target, application, strict=True)
        for hop in path(fabric, int(a), int(b))
    }
    found = {
        (name, int(app))
        for place, name in enumerate(wiring.locate(places))
        for app in ports.applications[ports.offsets[place] : ports.offsets[place + 1]]
    }
    assert found == expected
