"""A controller's timeline: what its records say, and what a report shows of them."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from weft.cli import main
from weft.control.operators.timeline import (
    NAME,
    Explanation,
    Moment,
    Run,
    Timeline,
    build_records,
    draw_shares,
    draw_slowdowns,
    draw_weights,
    timeline_sections,
)
from weft.records import Record, Scalar, describe_run, read_records, write_records

LINK_BPS = 8e6  # a million bytes a second


def moment(at_s: float, passed: int, weight: float | None = None, slow: float = 1.0) -> Moment:
    """Of `sort`; `idle` is never there."""
    there = {} if weight is None else {"sort": weight}
    return Moment(
        at_s=at_s,
        weights=there,
        slowdowns=dict.fromkeys(there, slow),
        passed_bytes={"sort": passed},
    )


TIMELINE = Timeline(
    port="switch:1",
    link_bps=LINK_BPS,
    baselines_s={"sort": 2.0, "idle": 1.0},
    moments=(
        moment(0.0, 0),
        moment(1.0, 500_000, 0.5, 2.0),
        moment(3.0, 1_000_000, 0.25, 4.0),
        moment(4.0, 1_000_000),
    ),
    runs=(Run(application="sort", began_s=0.5, took_s=3.0),),
    explanations=(Explanation(at_s=1.0, text="switch:1: a <b> & c"),),
)


def record_of(name: str) -> Record:
    (record,) = [r for r in build_records(TIMELINE) if r.settings.get("application") == name]
    return record


def test_a_share_is_what_passed_since_the_moment_before_over_what_could() -> None:
    shares = [row["share"] for row in record_of("sort").tables["samples"]]
    assert shares == pytest.approx([0.5, 0.25, 0.0])


def test_who_is_not_registered_has_neither_weight_nor_prediction() -> None:
    last = record_of("sort").tables["samples"][-1]
    assert (last["weight"], last["slowdown"]) == (None, None)
    assert all(row["weight"] is None for row in record_of("idle").tables["samples"])


def test_a_run_stands_beside_the_mean_of_the_predictions_in_its_time() -> None:
    (run,) = record_of("sort").tables["runs"]
    assert run["slowdown"] == pytest.approx(1.5)
    assert run["predicted"] == pytest.approx(3.0)


def test_means_are_over_the_time_that_it_was_registered() -> None:
    found = record_of("sort").quantities
    assert found["weight"] == Scalar(37.5, "%")
    assert found["share"] == Scalar(37.5, "%")
    assert set(record_of("idle").quantities) == {"alone", "runs"}


def test_a_file_is_enough_for_the_report(tmp_path: Path) -> None:
    file, page = tmp_path / "day.jsonl", tmp_path / "day.html"
    write_records(file, build_records(TIMELINE), describe_run())
    assert list(read_records(file).records) == build_records(TIMELINE)
    assert main(["report", str(file), "-o", str(page)]) == 0
    shown = page.read_text()
    assert "Applications over time at switch:1" in shown
    assert "switch:1: a &lt;b&gt; &amp; c" in shown


def test_one_section_draws_weights_shares_and_slowdowns() -> None:
    (section,) = timeline_sections(build_records(TIMELINE))
    assert section.markup.count("<svg") == 3
    assert "explained at 1 s" in section.markup


def test_other_records_make_no_section() -> None:
    (record,) = [r for r in build_records(TIMELINE) if r.name != NAME]
    assert timeline_sections([record]) == []


# ---- Drawings ---------------------------------------------------------------------------------


def points(line: Line2D) -> list[tuple[float, float]]:
    """Drawn points; NaN is drawn as a gap."""
    return [(x, y) for x, y in zip(*line.get_data(), strict=True) if not isnan(y)]


def draw(drawing: Callable[..., None]) -> Axes:
    ax = Figure().add_subplot()
    drawing(ax, {"sort": record_of("sort")})
    assert ax.get_xlabel() == "time (s)"
    assert ax.get_xlim() == (1.0, 4.0)  # of the samples, without a margin
    assert ax.get_ylim()[0] == 0
    assert ax.get_lines()[0].get_label() == "sort"
    return ax


def test_weights_are_drawn_in_per_cent_while_an_application_is_registered() -> None:
    ax = draw(draw_weights)
    assert points(ax.get_lines()[0]) == [(1.0, 50.0), (3.0, 25.0)]
    assert (ax.get_ylabel(), ax.get_ylim()) == ("weight (% of the link)", (0, 102))


def test_shares_are_drawn_as_means_of_the_last_two_seconds() -> None:
    ax = draw(draw_shares)
    assert points(ax.get_lines()[0]) == [(1.0, 50.0), (3.0, 25.0), (4.0, 12.5)]
    assert (ax.get_ylabel(), ax.get_ylim()) == ("share (% of the link)", (0, 102))


def test_slowdowns_are_drawn_beside_those_of_the_runs_at_their_end() -> None:
    ax = draw(draw_slowdowns)
    predicted, runs = ax.get_lines()
    assert points(predicted) == [(1.0, 2.0), (3.0, 4.0)]
    assert points(runs) == [(3.5, 1.5)]
    assert ax.get_ylabel() == "times its completion alone"
    assert ax.get_ylim()[1] > 4.0
