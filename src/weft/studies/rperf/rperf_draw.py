"""Drawings of RPerf's figures: ours as lines or bars, published values as open orange marks.

Entry points: `lines_panel`, `rtt_lines`, `rtt_bars_panel`, `comparison_panel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.plot import PublishedPoint, compare_published, quantile_bars
from weft.plot.style import legend
from weft.records import Distribution, Plain, Record
from weft.studies.observation import MEDIAN_RTT, TAIL_RTT, quantile_in
from weft.studies.points import Point
from weft.studies.rperf.rperf_setups import TAIL
from weft.studies.study import Result
from weft.studies.table_curves import draw_published
from weft.units import convert

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Orange is kept for what was published.
COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#4D4D4D")


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureLine:
    """One quantity over the settings: how ours is read, and the name of its published rows."""

    label: str
    read: Callable[[Record], float]
    quantities: tuple[str, ...]
    tail: bool = False
    colour: int = 0
    only: Mapping[str, Plain] | None = None  # the settings of the points on this line
    rows: str = ""  # what stands before a point's setting in its published rows

    def has(self, point: Point) -> bool:
        return all(point.settings.get(key) == value for key, value in (self.only or {}).items())

    @property
    def marker(self) -> str:
        return "^" if self.tail else "o"

    @property
    def kind(self) -> str:
        """Distinguishes its published marks from others in the legend."""
        if self.tail:
            return ": tail (p99.9)"
        return ": median" if "median" in self.quantities[0] else ""


def rtt_lines(
    unit: str,
    name: str = "probe.rtt",
    label: str = "",
    colour: int = 0,
    only: Mapping[str, Plain] | None = None,
    rows: str = "",
) -> tuple[FigureLine, FigureLine]:
    """The median and the tail of a distribution."""

    def at(q: float) -> Callable[[Record], float]:
        return lambda record: quantile_in(record, name, q, unit)

    start = f"{label}, " if label else ""
    return (
        FigureLine(
            label=f"{start}median",
            read=at(0.5),
            quantities=(MEDIAN_RTT,),
            colour=colour,
            only=only,
            rows=rows,
        ),
        FigureLine(
            label=f"{start}tail (p99.9)",
            read=at(TAIL),
            quantities=(TAIL_RTT,),
            tail=True,
            colour=colour,
            only=only,
            rows=rows,
        ),
    )


def lines_panel(
    setting: str, lines: Sequence[FigureLine], x_label: str, y_label: str, scale: str = "linear"
) -> Callable[[Axes, Result], None]:
    """Draws lines over a numeric setting whose values stand at equal distances."""

    def draw(ax: Axes, result: Result) -> None:
        ticks = sorted({_number(p.settings[setting]) for p in result.study.points})
        place = {p.setting: ticks.index(_number(p.settings[setting])) for p in result.study.points}
        for line in lines:
            _draw_ours(ax, line, place, result)
        for line in lines:
            _draw_published(ax, line, place, result)
        ax.set_xticks(range(len(ticks)), [f"{value:g}" for value in ticks])
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        _value_axis(ax, scale)
        ax.grid(visible=False, axis="x")
        legend(ax)

    return draw


def _number(value: Plain) -> float:
    assert isinstance(value, int | float)
    return value


def _value_axis(ax: Axes, scale: str) -> None:
    from matplotlib.ticker import LogLocator  # see weft.plot.style

    if scale == "linear":
        ax.set_ylim(bottom=0)
        return
    ax.set_yscale(scale)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.minorticks_off()
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _draw_ours(ax: Axes, line: FigureLine, place: Mapping[str, int], result: Result) -> None:
    points = [p for p in result.study.points if line.has(p)]
    style: dict[str, Any] = {
        "color": COLOURS[line.colour],
        "marker": line.marker,
        "markersize": 4 if line.colour else 5,
        "linestyle": "--" if line.tail else "-",
        # The first line is wider: it shows below another that coincides with it.
        "linewidth": 1.2 if line.tail else 1.5 if line.colour else 2.6,
        "alpha": 0.75 if line.tail else 1,
    }
    values = [line.read(result.records[p.setting]) for p in points]
    ax.plot([place[p.setting] for p in points], values, label=f"ours: {line.label}", **style)


def _draw_published(ax: Axes, line: FigureLine, place: Mapping[str, int], result: Result) -> None:
    x_of = {line.rows + p.setting: place[p.setting] for p in result.study.points if line.has(p)}
    points = [
        (x_of[row.observation.setting], row.published)
        for row in result.compared
        if row.observation.quantity in line.quantities
        and row.observation.setting in x_of
        and row.published is not None
    ]
    label = f"published{line.kind}"
    named = any(mark.get_label() == label for mark in ax.get_lines())
    draw_published(ax, points, "_" if named else label, line.marker, 8.5)


def rtt_bars_panel() -> Callable[[Axes, Result], None]:
    """A bar for each setting: median dark, tail light, diamonds where the paper states them."""

    def draw(ax: Axes, result: Result) -> None:
        rtts: dict[str, Distribution] = {}
        for setting, record in result.records.items():
            quantity = record.quantities["probe.rtt"]
            assert isinstance(quantity, Distribution)
            rtts[setting] = quantity
        published = {setting: _find_published_ps(result, setting) for setting in rtts}
        quantile_bars(ax, rtts, "probe RTT", TAIL, published)

    return draw


def _find_published_ps(result: Result, setting: str) -> list[float]:
    values = [
        convert(row.published, row.observation.unit, "ps")
        for row in result.compared
        if row.observation.setting == setting and row.published is not None
    ]
    return [value for value in values if value is not None]


def comparison_panel(ax: Axes, result: Result) -> None:
    """A row for each published value, ours beside it."""
    points = [
        PublishedPoint(
            label=f"{row.observation.setting}:\n{row.observation.quantity}",
            published=row.published,
            ours=row.ours,
        )
        for row in result.compared
        if row.published is not None
    ]
    compare_published(ax, points, result.rows[0].observation.unit, "bandwidth")
