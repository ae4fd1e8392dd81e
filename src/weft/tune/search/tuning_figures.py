"""Figures of a tuning record: predicted beside measured, and curves through the recommendation.

They are drawn from the record's tables alone. Entry points: `tuning_sections`,
`draw_expected_and_measured`, `draw_curve`. Units: the goal's, on both axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from weft.plot import Section, figure, to_svg
from weft.plot.html_page import join, picture, pictures, row_table
from weft.plot.style import MUTED, OURS, PALETTE, PUBLISHED, label_log_axis, legend
from weft.records import Plain, Record, Row
from weft.tune.search.tuning_record import NAME
from weft.units import format_value, split_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGES = ("spread", "refine", "race", "profile", "confirm", "stored")
DRAWN = ("size_bytes", "depth")


def tuning_sections(records: Sequence[Record]) -> list[Section]:
    """One for each tuning run among the records."""
    return [_section(record) for record in records if record.name == NAME and record.tables]


def _section(record: Record) -> Section:
    title = f"Tuning {record.settings['goal']} over {record.settings['over']}"
    drawings: dict[str, Callable[[Axes], None]] = {
        "expected beside measured": partial(draw_expected_and_measured, record=record)
    }
    swept = {row["choice"] for row in record.tables.get("curves", ())}
    for choice in DRAWN:
        if choice in swept:
            drawings[f"over {split_unit(choice)[0]}"] = partial(
                draw_curve, record=record, choice=choice
            )
    drawn = [
        picture(to_svg(figure(draw), salt=f"{title} {name}", title=f"{title}: {name}"), name)
        for name, draw in drawings.items()
    ]
    shown = [
        row_table(_short(record.tables[name]))
        for name in ("recommendation", "confirmation")
        if record.tables.get(name)
    ]
    return Section(title=title, markup=join([pictures(drawn), *shown]))


def _short(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [
        {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
        for row in rows
    ]


def _unit(record: Record) -> tuple[str, float]:
    unit = record.quantities["predicted"].unit  # type: ignore[union-attr]
    return ("GB/s", 1e-9) if unit == "B/s" else (unit, 1.0)


def draw_expected_and_measured(ax: Axes, record: Record) -> None:
    """Every point, coloured by stage; on the line the prediction is exact."""
    unit, factor = _unit(record)
    points = record.tables["points"]
    for number, stage in enumerate(STAGES):
        of_stage = [row for row in points if str(row["stage"]).startswith(stage)]
        measured = [_number(row["measured"]) * factor for row in of_stage]
        expected = [_number(row["expected"]) * factor for row in of_stage]
        if of_stage:
            ax.plot(measured, expected, "o", markersize=4, color=PALETTE[number], label=stage)
    every = [_number(row[k]) * factor for row in points for k in ("measured", "expected")]
    ends = [min(every), max(every)]
    ax.plot(ends, ends, "-", color=MUTED, linewidth=0.8)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        label_log_axis(axis)
    ax.set_xlabel(f"measured ({unit})")
    ax.set_ylabel(f"expected ({unit})")
    legend(ax)


def draw_curve(ax: Axes, record: Record, choice: str) -> None:
    """Prediction and model over one choice, and the points with all else as recommended."""
    unit, factor = _unit(record)
    rows = [row for row in record.tables["curves"] if row["choice"] == choice]
    x = [_number(row["level"]) for row in rows]
    lows, highs = ([_number(row[k]) * factor for row in rows] for k in ("low", "high"))
    ax.fill_between(x, lows, highs, color=OURS, alpha=0.15, linewidth=0)
    ax.plot(x, [_number(r["expected"]) * factor for r in rows], color=OURS, label="expected, 95 %")
    if all(row["model"] is not None for row in rows):
        model = [_number(row["model"]) * factor for row in rows]
        ax.plot(x, model, "--", color=MUTED, label="model alone")
    points = _on_curve(record, choice)
    ax.plot(
        [_number(row[choice]) for row in points],
        [_number(row["measured"]) * factor for row in points],
        "o",
        markersize=4,
        color=PUBLISHED,
        label="measured",
    )
    ax.set_xscale("log", base=2)
    name, x_unit = split_unit(choice)
    ax.set_xticks(x[:: -(-len(x) // 8)])
    ax.xaxis.minorticks_off()
    ax.xaxis.set_major_formatter(lambda v, _: format_value(round(v), x_unit))
    ax.set_xlabel(name)
    ax.set_ylabel(f"{record.settings['goal']} ({unit})")
    ax.set_ylim(0, 1.06 * max([*highs, *(_number(r["measured"]) * factor for r in points)]))
    legend(ax)


def _on_curve(record: Record, choice: str) -> list[Row]:
    use = {str(row["choice"]): row["use"] for row in record.tables["recommendation"]}
    others = {name: level for name, level in use.items() if name != choice}
    return [
        row
        for row in record.tables["points"]
        if all(row[name] == level for name, level in others.items())
    ]


def _number(value: Plain) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
