"""A tuning on the terminal, as a record and as figures, of an invented run."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from weft.cli import main
from weft.measure.settings.values import ANYWHERE, AUTO
from weft.plot.style import PALETTE
from weft.records import Scalar
from weft.tune.rules.evidence import Rule
from weft.tune.search.design import Schedule
from weft.tune.search.over_fabric import PreparedTuning
from weft.tune.search.recommend import Recommendation
from weft.tune.search.space import GOALS, Factor, MeasuredPoint, Refusal, Space
from weft.tune.search.surface import Interval, fit_surface
from weft.tune.search.tuning import Confirmation, Failure, Tuning
from weft.tune.search.tuning_report import (
    build_tuning_record,
    draw_curve,
    draw_expected_and_measured,
    format_command,
    format_gain,
    format_interval,
    format_level,
    format_tuning,
    tuning_sections,
)

THROUGHPUT = GOALS["throughput"]
SPACE = Space(
    over="tcp",
    factors=(
        Factor(name="size_bytes", levels=(4096, 16384, 65536), default=4096),
        Factor(name="wait", levels=("spin", "block"), default="spin"),
        Factor(name="cpu", levels=(ANYWHERE, AUTO), default=ANYWHERE),
    ),
    fixed={"depth": 8},
    options={"over": "tcp"},
    refusals=(Refusal(name="numa", reason="this host has one NUMA node"),),
)


def about(value: float) -> Interval:
    return Interval(value=value, low=0.9 * value, high=1.1 * value)


@cache
def tuning() -> Tuning:
    rows = tuple(
        MeasuredPoint(
            setting={"size_bytes": size, "wait": wait, "cpu": cpu},
            value=1e9 * (size / 4096) ** 0.5 * (1.2 if wait == "block" else 1.0),
            stage="spread" if cpu == AUTO else "confirm: default",
            lost_percent=2.0 if (size, wait) == (4096, "block") else 0.0,
        )
        for size in (4096, 16384, 65536)
        for wait in ("spin", "block")
        for cpu in (ANYWHERE, AUTO)
    )
    surface = fit_surface(SPACE, THROUGHPUT, rows, held_out=True)
    best = {"size_bytes": 65536, "wait": "block", "cpu": AUTO}
    roles = (("recommended", best, 1.0), ("default", SPACE.default, 4.0))
    return Tuning(
        goal=THROUGHPUT,
        space=SPACE,
        schedule=Schedule(
            spread=8,
            centres=2,
            refine=(),
            race=(),
            profile=0,
            repeats=2,
            point_s=0.2,
            overhead_s=0.1,
        ),
        rows=rows,
        failed=(Failure(setting=best, reason="too deep"),),
        recommendation=Recommendation(setting=best, surface=surface),
        confirmation=tuple(
            Confirmation(
                role=role,
                setting=setting,
                predicted=about(4e9 / better),
                measured=about(4.4e9 / better),
                better=about(better),
                values=(1.0, 2.0),
            )
            for role, setting, better in roles
        ),
        elapsed_s=12.5,
        advice=(
            Rule(topic="known", choice="c", says="do it", because="b", number=5.0, unit="%"),
            Rule(topic="open", choice="unknown", says="not known", because="run it"),
        ),
    )


def test_the_recommendation_is_a_table_and_the_command_that_measures_it() -> None:
    lines = format_tuning(tuning()).splitlines()
    assert lines[0] == "recommended for throughput (payload throughput) over tcp"
    assert [line.split() for line in lines[4:7]] == [
        ["size", "64", "KiB", "4", "KiB", "4", "KiB,", "16", "KiB,", "64", "KiB"],
        ["wait", "block", "spin", "spin,", "block"],
        ["cpu", "auto", "any", "any,", "auto"],
    ]
    command = "weft bandwidth --over tcp --depth 8 --size 65536 --wait block --cpu auto"
    assert lines[8] == command == format_command(tuning())
    assert format_command(tuning(), "h2").startswith("weft bandwidth h2 --over tcp")
    early = format_tuning(replace(tuning(), ended="interrupted"))
    assert early.splitlines()[1] == "ended early: interrupted; from 12 points"


@pytest.mark.parametrize(("ended", "status"), [("", 0), ("interrupted", 1)])
def test_a_run_that_ended_early_prints_its_recommendation_and_is_no_success(
    ended: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PreparedTuning, "run", lambda *_: replace(tuning(), ended=ended))
    assert main(["tune", "--over", "delay"]) == status
    assert capsys.readouterr().out.startswith("recommended for throughput")


def test_the_confirmation_has_both_values_and_how_much_better() -> None:
    text = format_tuning(tuning())
    rows = [line for line in text.splitlines() if line.startswith(("recommended  ", "default  "))]
    assert " ".join(rows[0].split()) == "recommended 4 (3.6–4.4) GB/s 4.4 (3.96–4.84) GB/s 2"
    assert " ".join(rows[1].split()) == (
        "default 1 (0.9–1.1) GB/s 1.1 (0.99–1.21) GB/s 4 (3.6–4.4) 2"
    )
    assert "4 (3.6–4.4) times as good as the default (95 % interval)\n" in text
    unconfirmed = format_tuning(replace(tuning(), confirmation=()))
    assert "GB/s (95 % interval); not confirmed by a measurement" in unconfirmed


@pytest.mark.parametrize(
    ("low", "high", "sure"),
    [
        (1.0001, 2, ""),
        (1, 2, ": may be chance"),
        (0.5, 1, ": may be chance"),
        (0.5, 0.99, ": a loss"),
    ],
)
def test_a_gain_is_sure_where_its_interval_is_above_1(low: float, high: float, sure: str) -> None:
    assert format_gain(Interval(value=1.0, low=low, high=high)).endswith(f"(95 % interval){sure}")
    assert format_gain(None) == "the default is the recommendation"


def test_the_rest_is_the_model_advice_and_what_was_left_out() -> None:
    text = format_tuning(tuning())
    assert "\nmodel: size·10⁶·" in text
    assert "; left out one by one: median" in text
    assert "1 more rules need other measurements: --json names them, or weft tune FILE" in text
    assert text.endswith(
        "numa: not a choice here, because this host has one NUMA node\n"
        "not measured: too deep\n"
        "2 points lost too many messages to be recommended"
    )
    assert "no advice: none" in format_tuning(replace(tuning(), no_advice="none"))
    alone = format_tuning(replace(tuning(), advice=tuning().advice[:1]))
    assert "more rules" not in alone
    assert "advice\n\n" in alone
    assert "advice\n\n" not in format_tuning(replace(tuning(), advice=tuning().advice[1:]))


def test_levels_and_intervals_are_as_on_the_command_line() -> None:
    levels = [("cpu", AUTO), ("cpu", ANYWHERE), ("cpu", 3), ("numa", -1), ("wait", "spin")]
    assert [format_level(n, level) for n, level in levels] == ["auto", "any", "3", "any", "spin"]
    assert format_level("size_bytes", 2048) == "2 KiB"
    assert format_level("depth", 16) == "16"
    assert format_interval(GOALS["latency"], about(10)) == "10 (9–11) us"


# ---- The record and its figures ---------------------------------------------------------------


def test_the_record_has_every_point_and_curve() -> None:
    record = build_tuning_record(tuning())
    assert record.settings == {"over": "tcp", "goal": "throughput", "depth": 8}
    assert record.quantities["gain"] == Scalar(4.0, "")
    assert record.quantities["measured"] == Scalar(4.4e9, "B/s")
    assert record.quantities["points"] == Scalar(12, "")
    assert record.quantities["elapsed"] == Scalar(12.5, "s")
    assert [row["choice"] for row in record.tables["curves"]] == ["size_bytes"] * 3
    first = record.tables["curves"][0]
    surface = tuning().recommendation.surface
    at = surface.predict([{"size_bytes": 4096, "wait": "block", "cpu": AUTO}]).interval(0)
    assert (first["expected"], first["low"], first["high"]) == (at.value, at.low, at.high)
    assert [row["lost %"] for row in record.tables["points"]].count(2.0) == 2
    assert record.tables["confirmation"][1]["recommended is better by"] == 4.0
    assert record.tables["recommendation"][0]["considered"] == "4096, 16384, 65536"
    assert record.tables["not considered"][0]["choice"] == "numa"
    assert record.notes[-1] == "not measured: too deep"
    assert not [note for note in record.notes if "ended early" in note]
    assert any(
        "ended early: x" in n for n in build_tuning_record(replace(tuning(), ended="x")).notes
    )


def axes() -> Any:
    return Figure().subplots()


def test_points_are_drawn_by_stage_beside_the_line_of_exact_predictions() -> None:
    ax = axes()
    draw_expected_and_measured(ax, build_tuning_record(tuning()))
    spread, confirm, line = ax.get_lines()
    assert (spread.get_label(), confirm.get_label()) == ("spread", "confirm")
    assert [spread.get_color(), confirm.get_color()] == [PALETTE[0], PALETTE[4]]
    rows = [row for row in tuning().rows if row.stage == "spread"]
    assert spread.get_xdata() == pytest.approx([row.value / 1e9 for row in rows])
    expected = tuning().recommendation.surface.predict([row.setting for row in rows]).log_value
    assert spread.get_ydata() == pytest.approx(np.exp(expected) / 1e9)
    assert line.get_xdata() == pytest.approx(line.get_ydata())
    every = [*spread.get_xdata(), *spread.get_ydata(), *confirm.get_xdata(), *confirm.get_ydata()]
    assert line.get_xdata() == pytest.approx([min(every), max(every)])
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("measured (GB/s)", "expected (GB/s)")


def test_a_curve_has_its_band_its_model_and_the_points_as_recommended() -> None:
    ax = axes()
    record = build_tuning_record(tuning())
    draw_curve(ax, record, "size_bytes")
    expected, model, measured = ax.get_lines()
    assert [line.get_label() for line in ax.get_lines()] == [
        "expected, 95 %",
        "model alone",
        "measured",
    ]
    assert expected.get_xdata() == pytest.approx([4096, 16384, 65536])
    assert measured.get_xdata() == pytest.approx([4096, 16384, 65536])
    assert measured.get_ydata() == pytest.approx([1.2, 2.4, 4.8])
    rows = record.tables["curves"]
    assert model.get_ydata() == pytest.approx([row["model"] / 1e9 for row in rows])  # type: ignore[operator]
    edge = ax.collections[0].get_paths()[0].vertices
    assert edge[:, 1].max() == pytest.approx(max(row["high"] for row in rows) / 1e9)  # type: ignore[operator, type-var]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("size", "throughput (GB/s)")
    highest = max([*edge[:, 1], *measured.get_ydata()])
    assert ax.get_ylim() == pytest.approx((0, 1.06 * highest))
    assert [*ax.get_xticks()] == [4096, 16384, 65536]
    without = replace(
        record, tables={**record.tables, "curves": [{**row, "model": None} for row in rows]}
    )
    bare = axes()
    draw_curve(bare, without, "size_bytes")
    assert [line.get_label() for line in bare.get_lines()] == ["expected, 95 %", "measured"]


def test_a_report_has_a_section_with_the_drawings_and_both_tables() -> None:
    record = build_tuning_record(tuning())
    (section,) = tuning_sections(
        [record, replace(record, name="other"), replace(record, tables={})]
    )
    assert section.title == "Tuning throughput over tcp"
    for part in ("expected beside measured", "over size", "considered", "4.4e+09"):
        assert part in section.markup
    assert "over depth" not in section.markup
    assert math.isfinite(tuning().recommendation.predicted.value)
