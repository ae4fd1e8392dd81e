"""Drawing functions: each draws one quantity on given axes.

`cdf`, `cdf_tail` and `quantile_bars` draw distributions; `series` draws recorded points, `curves`
joins a few of them; `sweep` draws one statistic for each value of a setting; `compare_published`
sets a paper's values beside ours. All lines on one set of axes share a unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.plot.style import MUTED, OURS, PALETTE, PUBLISHED, label_log_axis, legend, line_style
from weft.records.schema import Distribution, Series
from weft.units import Display, choose_unit, dimension_of, format_value, split_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Distributions = Mapping[str, Distribution]

_CDF_QUANTILES = np.linspace(0, 1, 401)
_TAIL_STEPS_PER_DECADE = 50
# With a larger ratio of slowest to fastest sample, a linear axis hides the body.
_LOG_AXIS_RATIO = 30
_VALUE_TICKS = 6  # with room for seven digits each


def _with_samples(distributions: Distributions) -> dict[str, Distribution]:
    return {label: d for label, d in distributions.items() if d.histogram.count > 0}


def _common_unit(distributions: Distributions) -> Display:
    """A unit in which the medians read well."""
    medians = [d.quantile(0.5) for d in distributions.values()]
    units = [d.unit for d in distributions.values()]
    return choose_unit(units[0], max(map(abs, medians))) if units else Display(1, "")


def _label_value_axis(ax: Axes, distributions: Distributions, quantity: str, unit: str) -> None:
    ax.set_xlabel(f"{quantity} ({unit})" if unit else quantity)
    low = min((d.histogram.min for d in distributions.values()), default=0)
    high = max((d.quantile(0.9999) for d in distributions.values()), default=0)
    if low > 0 and high > _LOG_AXIS_RATIO * low:
        ax.set_xscale("log")
        label_log_axis(ax.xaxis)
    else:
        ax.locator_params(axis="x", nbins=_VALUE_TICKS)


def _label_and_iterate(
    ax: Axes, distributions: Distributions, quantity: str
) -> Iterator[tuple[str, Distribution, float]]:
    """Labels the value axis, then gives each distribution with its unit's divisor."""
    drawable = _with_samples(distributions)
    display = _common_unit(drawable)
    _label_value_axis(ax, drawable, quantity, display.unit)
    for label, distribution in drawable.items():
        yield label, distribution, display.divisor


def cdf(ax: Axes, distributions: Distributions, quantity: str) -> None:
    """The share of samples at or below each value."""
    for i, (label, d, divisor) in enumerate(_label_and_iterate(ax, distributions, quantity)):
        values = [d.quantile(q) / divisor for q in _CDF_QUANTILES]
        ax.plot(values, 100 * _CDF_QUANTILES, label=label, **line_style(i))
    ax.set_ylabel("samples at or below (%)")
    ax.set_ylim(0, 100)
    legend(ax)


def cdf_tail(ax: Axes, distributions: Distributions, quantity: str) -> None:
    """The CDF with equal height for each further nine, down to one sample."""
    from matplotlib.ticker import FixedLocator  # see weft.plot.style

    largest_count = max((d.histogram.count for d in distributions.values()), default=1)
    top = math.log10(max(largest_count, 10))
    for i, (label, d, divisor) in enumerate(_label_and_iterate(ax, distributions, quantity)):
        rarest = math.log10(d.histogram.count)
        nines = np.linspace(0, rarest, max(2, round(_TAIL_STEPS_PER_DECADE * rarest)))
        values = [d.quantile(1 - 10.0**-n) / divisor for n in nines]
        ax.plot(values, nines, label=label, **line_style(i))
    ticks = [0, math.log10(2), *range(1, math.floor(top) + 1)]
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_major_formatter(lambda nines, _: percentile_label(nines))
    ax.set_ylim(0, top + 0.1)
    ax.set_ylabel("percentile")
    legend(ax)


def percentile_label(nines: float) -> str:
    """ "p99.9" for three nines."""
    return f"p{100 * (1 - 10.0**-nines):.10g}"


def _bar_ends(d: Distribution, q: float, divisor: float) -> tuple[float, list[list[float]]]:
    """A quantile and its whiskers; none where the samples cannot bound it."""
    value = d.quantile(q)
    low, high = d.interval(q)
    below = 0 if low is None else max(0, value - low)
    above = 0 if high is None else max(0, high - value)
    return value / divisor, [[below / divisor], [above / divisor]]


def quantile_bars(
    ax: Axes,
    distributions: Distributions,
    quantity: str,
    tail: float = 0.999,
    published: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Median (dark) and tail (light) with 95 % intervals; diamonds are published values.

    `published` gives, for a label, its median and tail (or the median alone) in the stored unit.
    """
    drawable = _with_samples(distributions)
    display = _common_unit(drawable)
    for row, d in enumerate(drawable.values()):
        for q, height, colour in ((tail, 0.62, "#A9CCE3"), (0.5, 0.62, OURS)):
            value, whiskers = _bar_ends(d, q, display.divisor)
            ax.barh(
                row,
                value,
                height,
                color=colour,
                xerr=whiskers,
                error_kw={"elinewidth": 1, "capsize": 2, "ecolor": MUTED},
            )
    for row, label in enumerate(drawable):
        values = [value / display.divisor for value in (published or {}).get(label, ())]
        ax.plot(
            values,
            [row] * len(values),
            "D",
            markersize=5,
            markerfacecolor="white",
            markeredgecolor=PUBLISHED,
            markeredgewidth=1.4,
            linestyle="none",
        )
    ax.set_yticks(range(len(drawable)), list(drawable))
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    name = percentile_label(-math.log10(1 - tail))
    key = f"dark: median, light: {name}" + (", ◇: published" if published else "")
    ax.set_xlabel(f"{quantity} ({display.unit})\n{key}")


_MOST_POINTS = 1200
_MOST_TICKS = 8
# Where the greatest of some values is this many times the least, a linear axis hides the others.
_WIDE = 30

Floats = NDArray[np.float64]


def _thin(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most 1200 points, the least and greatest of each stretch, so that no peak is lost."""
    if len(x) <= _MOST_POINTS:
        return x, y
    stretches = np.array_split(np.arange(len(x)), _MOST_POINTS // 2)
    ends = {int(i) for s in stretches for i in (s[np.argmin(y[s])], s[np.argmax(y[s])])}
    keep = np.array(sorted(ends | {0, len(x) - 1}))
    return x[keep], y[keep]


def _greatest(values: Sequence[Sequence[float]]) -> float:
    return max((abs(v) for vs in values for v in vs), default=0)


def _axis_label(name: str, display: Display) -> str:
    return f"{name} ({display.unit})" if display.unit else name


def _start_at_zero(ax: Axes, values: Sequence[float]) -> None:
    """Quantities that are never negative start at zero, so that heights can be compared."""
    if min(values, default=-1) >= 0:
        ax.set_ylim(0, 1.06 * max(values) or 1)


_X_NAMES = {"time": "time", "rate": "load", "size": "size", "": "sample"}


def series(ax: Axes, lines: Mapping[str, Series], quantity: str) -> None:
    """Points over x; every line shares the first one's units."""
    drawable = {label: line for label, line in lines.items() if line.x}
    first = next(iter(drawable.values()), Series("", "", (), ()))
    x_display = choose_unit(first.x_unit, _greatest([line.x for line in drawable.values()]))
    y_display = choose_unit(first.y_unit, _greatest([line.y for line in drawable.values()]))
    for i, (label, line) in enumerate(drawable.items()):
        x, y = _thin(np.array(line.x), np.array(line.y))
        # Dashes would break up a line that changes this fast.
        style = line_style(i) | {"linestyle": "-", "linewidth": 1.1}
        ax.plot(x / x_display.divisor, y / y_display.divisor, label=label, **style)
    ax.set_xlabel(_axis_label(_X_NAMES[dimension_of(first.x_unit)], x_display))
    ax.set_ylabel(_axis_label(quantity, y_display))
    ax.margins(x=0)
    _start_at_zero(ax, [y / y_display.divisor for line in drawable.values() for y in line.y])
    legend(ax)


def curves(ax: Axes, lines: Mapping[str, Series], quantity: str) -> None:
    """A few points each, marked and joined, on a log axis where they differ much."""
    first = next(iter(lines.values()))
    x_display = choose_unit(first.x_unit, _greatest([line.x for line in lines.values()]))
    heights = sorted(y for line in lines.values() for y in line.y)
    y_display = choose_unit(first.y_unit, heights[len(heights) // 2])
    for i, (label, line) in enumerate(lines.items()):
        x, y = np.array(line.x) / x_display.divisor, np.array(line.y) / y_display.divisor
        ax.plot(x, y, label=label, marker="o", markersize=3.5, **line_style(i))
    ax.set_xlabel(_axis_label(f"achieved {_X_NAMES[dimension_of(first.x_unit)]}", x_display))
    ax.set_ylabel(_axis_label(quantity, y_display))
    _choose_y_scale(ax, [y / y_display.divisor for y in heights], _WIDE)
    legend(ax)


def _choose_y_scale(ax: Axes, values: Sequence[float], wide: float) -> None:
    """A log axis where the greatest value is many times the least."""
    if _is_wide(values, wide):
        ax.set_yscale("log")
        label_log_axis(ax.yaxis)
    else:
        _start_at_zero(ax, values)


def _is_wide(values: Sequence[float], wide: float) -> bool:
    return bool(values) and min(values) > 0 and max(values) >= wide * min(values)


def _label_setting_axis(ax: Axes, setting: str, values: Sequence[float]) -> bool:
    """Names the axis of a swept setting; True when it is a log axis, as doublings need."""
    from matplotlib.ticker import FixedLocator  # see weft.plot.style

    name, unit = split_unit(setting)
    is_log = len(values) > 3 and _is_wide(values, _WIDE)
    if is_log:
        ax.set_xscale("log")
        step = -(-len(values) // _MOST_TICKS)
        ax.xaxis.set_major_locator(FixedLocator(list(values[::step])))
        ax.xaxis.minorticks_off()
    if is_log or unit:
        ax.xaxis.set_major_formatter(lambda v, _: format_value(round(v, 6), unit))
    ax.set_xlabel(name)
    return is_log


def sweep(
    ax: Axes,
    lines: Mapping[str, Mapping[float, float]],
    unit: str,
    quantity: str,
    setting: str,
    bands: Mapping[str, Mapping[float, tuple[float, float]]] | None = None,
) -> None:
    """One statistic (a line) at each value of a setting (x); bands are ranges of repetitions."""
    display = choose_unit(unit, _greatest([list(line.values()) for line in lines.values()]))
    for i, (label, line) in enumerate(lines.items()):
        values = [line[x] / display.divisor for x in sorted(line)]
        style = line_style(i) if len(line) > 1 else line_style(i) | {"linestyle": "none"}
        ax.plot(sorted(line), values, label=label, marker="o", markersize=3.5, **style)
        if bands and label in bands:
            low, high = (
                [bands[label][x][k] / display.divisor for x in sorted(line)] for k in (0, 1)
            )
            colour = PALETTE[i % len(PALETTE)]
            ax.fill_between(sorted(line), low, high, color=colour, alpha=0.15, linewidth=0)
    ax.set_ylabel(_axis_label(quantity, display))
    is_log = _label_setting_axis(ax, setting, sorted({x for line in lines.values() for x in line}))
    ranges = [end for band in (bands or {}).values() for ends in band.values() for end in ends]
    medians = [y for line in lines.values() for y in line.values()]
    heights = [y / display.divisor for y in (*medians, *ranges)]
    # Heights compare only from zero: they give that up where the setting spans decades too.
    _choose_y_scale(ax, heights, _WIDE if is_log else math.inf)
    legend(ax)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPoint:
    """One value as published and as we find it, in one unit."""

    label: str
    published: float
    ours: float


def ratio_text(point: PublishedPoint) -> str:
    """ours/published as "0.98×"."""
    return f"{point.ours / point.published:.2f}×" if point.published else "–"


def compare_published(ax: Axes, points: Sequence[PublishedPoint], unit: str, quantity: str) -> None:
    """A row for each point: published (ring), ours (dot), and ours/published at the right."""
    display = choose_unit(unit, max((abs(p.published) for p in points), default=0))
    rows = range(len(points))
    published = [p.published / display.divisor for p in points]
    ours = [p.ours / display.divisor for p in points]
    ax.hlines(rows, published, ours, color="#CBD5E1", linewidth=2.5, zorder=1)
    ax.plot(
        published,
        rows,
        "o",
        markersize=8.5,
        markerfacecolor="white",
        markeredgecolor=PUBLISHED,
        markeredgewidth=1.8,
        label="published",
    )
    ax.plot(ours, rows, "o", markersize=5, color=OURS, label="ours")
    for row, point in enumerate(points):
        ax.annotate(
            ratio_text(point),
            (1.01, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            color=MUTED,
        )
    ax.set_yticks(rows, [p.label for p in points])
    ax.set_ylim(len(points) - 0.4, -0.6)
    if min([*published, *ours], default=0) >= 0:
        ax.set_xlim(left=0)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(f"{quantity} ({display.unit})" if display.unit else quantity)
    legend(ax)
