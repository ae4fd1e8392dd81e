"""Curves of a study: columns of a published table beside a fitted model, over one axis.

A `Curve` is one column: the model's values where the paper has some, as one record with a series,
and a row for each published value. `table_panel` draws published marks and model lines,
`line_panel` lines alone.
Entry points: `build_table_curve`, `table_panel`, `line_panel`, `error_remark`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.model.fit import ErrorSummary, FloatArray
from weft.plot.style import PALETTE, PUBLISHED, label_log_axis, legend
from weft.records import Quantity, Record, Series
from weft.studies.observation import Kind, Observation, Records, Role
from weft.studies.points import Point, model_point
from weft.studies.published import PublishedTable
from weft.studies.study import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS = "ours"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
COLOURS = tuple(colour for colour in PALETTE if colour != PUBLISHED)  # kept for what was published


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One column of a published table, and ours where it has values."""

    label: str
    x: FloatArray
    published: FloatArray
    point: Point
    observations: tuple[Observation, ...]


def build_table_curve(
    table: PublishedTable,
    column: str,
    *,
    x: str,
    predict: Callable[[FloatArray], FloatArray],
    label: str,
    unit: str,
    system: str,
    x_text: Callable[[float], str] = lambda value: f"{value:g}",
    kind: Kind = "latency",
    role: Role = "fit",
    **fields: Any,
) -> Curve:
    """A published column and our values: `predict` gives ours at each x, in the unit.

    `fields` are those of its rows, such as `quantity`; most models are fitted to their columns.
    """
    present = np.isfinite(table.column(column))
    places, values = table.column(x)[present], table.column(column)[present]
    name = f"{label} ({table.place})"

    def quantities() -> Mapping[str, Quantity]:
        ours = np.asarray(predict(places), dtype=np.float64)
        return {OURS: Series(x, unit, tuple(places), tuple(ours))}

    row = partial(Observation, unit=unit, kind=kind, role=role, system=system, **fields)
    rows = tuple(
        row(
            setting=f"{label}, {x_text(at)}",
            read=partial(_read_curve, name, at),
            published=float(value),
            place=table.place,
            source="model",
        )
        for at, value in zip(places, values, strict=True)
    )
    point = model_point(name, {"curve": label, "table": table.place}, quantities, system)
    return Curve(label=label, x=places, published=values, point=point, observations=rows)


def _read_curve(name: str, x: float, records: Records) -> float:
    return value_at(records[name], x)


def draw_published(
    ax: Axes, points: Iterable[tuple[float, float]], label: str, marker: str = "o", size: float = 8
) -> None:
    """Published values as open marks."""
    xy = list(points)
    if not xy:  # an empty line that is not clipped would squeeze the axes
        return
    ax.plot(
        [x for x, _ in xy],
        [y for _, y in xy],
        marker,
        markersize=size,
        markerfacecolor="none",
        markeredgecolor=PUBLISHED,
        markeredgewidth=1.6,
        linestyle="none",
        zorder=5,
        clip_on=False,
        label=label,
    )


def value_at(record: Record, x: float, name: str = OURS) -> float:
    """A series' value at one of its x."""
    series = record.quantities[name]
    assert isinstance(series, Series)
    return series.y[series.x.index(x)]


def points_of(curves: Sequence[Curve]) -> tuple[Point, ...]:
    return tuple(c.point for c in curves)


def observations_of(curves: Sequence[Curve]) -> tuple[Observation, ...]:
    return tuple(o for c in curves for o in c.observations)


def table_panel(
    curves: Sequence[Curve], x_label: str, y_label: str, *, log_x: bool = True, log_y: bool = True
) -> Callable[[Axes, Result], None]:
    """Published values as open marks, the model as lines of the same place in the legend."""

    def draw(ax: Axes, result: Result) -> None:
        for number, curve_ in enumerate(curves):
            if curve_.point.setting not in result.records:
                continue
            series = result.records[curve_.point.setting].quantities[OURS]
            assert isinstance(series, Series)
            marker = MARKERS[number % len(MARKERS)]
            points = zip(curve_.x, curve_.published, strict=True)
            draw_published(ax, points, "_", marker, 5.5)
            ax.plot(
                series.x,
                series.y,
                color=COLOURS[number % len(COLOURS)],
                label=curve_.label,
                linewidth=1.4,
                marker=marker,
                markersize=2.5,
            )
        ax.plot([], [], "o", markerfacecolor="none", markeredgecolor=PUBLISHED, label="published")
        label_axes(ax, x_label, y_label, log_x, log_y)

    return draw


Lines = Mapping[str, Sequence[tuple[float, float]]]  # label: (x, y) in order


def line_panel(
    lines: Callable[[Records], Lines],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = True,
    log_y: bool = False,
    title: str = "",
) -> Callable[[Axes, Result], None]:
    """Lines that are read from the records."""

    def draw(ax: Axes, result: Result) -> None:
        for number, (label, points) in enumerate(lines(result.records).items()):
            ax.plot(
                [x for x, _ in points],
                [y for _, y in points],
                label=label,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=4,
                linewidth=1.4,
            )
        label_axes(ax, x_label, y_label, log_x, log_y, title)

    return draw


def label_axes(
    ax: Axes, x_label: str, y_label: str, log_x: bool, log_y: bool, title: str = ""
) -> None:
    """Scales, labels and legend; logarithmic sizes are powers of two."""
    if log_x:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda value, _: _power(value))
    if log_y:
        ax.set_yscale("log")
        label_log_axis(ax.yaxis)
    else:
        ax.set_ylim(0, 1.06 * ax.dataLim.y1)
    name_axes(ax, f"{x_label}; {title}" if title else x_label, y_label)


def name_axes(ax: Axes, x_label: str, y_label: str) -> None:
    """Both labels and a legend."""
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    legend(ax)


def _power(value: float) -> str:
    """1024 as 1Ki: labels of an axis of powers of two."""
    for unit, size in (("Mi", 2**20), ("Ki", 2**10)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def zoom_panel(panel: Callable[[Axes, Result], None]) -> Callable[[Axes, Result], None]:
    """A panel whose value axis has its data alone, not zero."""

    def draw(ax: Axes, result: Result) -> None:
        panel(ax, result)
        ax.set_ylim(auto=True)
        ax.autoscale_view(scalex=False)

    return draw


def error_remark(label: str, error: ErrorSummary, held_out: ErrorSummary | None = None) -> str:
    """The model's error on published values, and on values that it was not fitted to."""
    held_out_text = f"; each row left out of the fit in turn: {held_out}" if held_out else ""
    return f"{label}: error {error}{held_out_text}."


def row_errors(result: Result) -> ErrorSummary:
    """The error of a study's judged rows."""
    rows = (row for row in result.compared if row.judged)
    return ErrorSummary.of([abs(row.ratio - 1) for row in rows if row.ratio is not None])
