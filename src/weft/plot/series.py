"""Quantities over time, or over anything else on the x axis.

`series` draws points as they were recorded, `curves` a few of them joined; `sweep` draws one
statistic for each setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.plot.style import label_log_axis, legend, line_style
from weft.records.schema import Series
from weft.units import Display, choose_unit, dimension_of, format_value, split_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_POINTS = 1200
_MOST_TICKS = 8
# Where the greatest of some values is this many times the least, a linear axis hides the others.
_WIDE = 30

Floats = NDArray[np.float64]


def _thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most 1200 points, the least and greatest of each stretch, so that no peak is lost."""
    if len(x) <= _MOST_POINTS:
        return x, y
    stretches = np.array_split(np.arange(len(x)), _MOST_POINTS // 2)
    ends = {int(i) for s in stretches for i in (s[np.argmin(y[s])], s[np.argmax(y[s])])}
    keep = np.array(sorted(ends | {0, len(x) - 1}))
    return x[keep], y[keep]


def _greatest(values: Sequence[Sequence[float]]) -> float:
    return max((abs(v) for vs in values for v in vs), default=0)


def _label(name: str, display: Display) -> str:
    return f"{name} ({display.unit})" if display.unit else name


def _from_zero(ax: Axes, values: Sequence[float]) -> None:
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
        x, y = _thinned(np.array(line.x), np.array(line.y))
        # Dashes would break up a line that changes this fast.
        style = line_style(i) | {"linestyle": "-", "linewidth": 1.1}
        ax.plot(x / x_display.divisor, y / y_display.divisor, label=label, **style)
    ax.set_xlabel(_label(_X_NAMES[dimension_of(first.x_unit)], x_display))
    ax.set_ylabel(_label(quantity, y_display))
    ax.margins(x=0)
    _from_zero(ax, [y / y_display.divisor for line in drawable.values() for y in line.y])
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
    ax.set_xlabel(_label(f"achieved {_X_NAMES[dimension_of(first.x_unit)]}", x_display))
    ax.set_ylabel(_label(quantity, y_display))
    _log_or_from_zero(ax, [y / y_display.divisor for y in heights], _WIDE)
    legend(ax)


def _log_or_from_zero(ax: Axes, values: Sequence[float], wide: float) -> None:
    """A log axis where the greatest value is many times the least."""
    if _is_wide(values, wide):
        ax.set_yscale("log")
        label_log_axis(ax.yaxis)
    else:
        _from_zero(ax, values)


def _is_wide(values: Sequence[float], wide: float) -> bool:
    return bool(values) and min(values) > 0 and max(values) >= wide * min(values)


def _setting_axis(ax: Axes, setting: str, values: Sequence[float]) -> bool:
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
    ax: Axes, lines: Mapping[str, Mapping[float, float]], unit: str, quantity: str, setting: str
) -> None:
    """One statistic (a line) at each value of a setting (x)."""
    display = choose_unit(unit, _greatest([list(line.values()) for line in lines.values()]))
    for i, (label, line) in enumerate(lines.items()):
        values = [line[x] / display.divisor for x in sorted(line)]
        ax.plot(sorted(line), values, label=label, marker="o", markersize=3.5, **line_style(i))
    ax.set_ylabel(_label(quantity, display))
    is_log = _setting_axis(ax, setting, sorted({x for line in lines.values() for x in line}))
    heights = [y / display.divisor for line in lines.values() for y in line.values()]
    # Heights compare only from zero: they give that up where the setting spans decades too.
    _log_or_from_zero(ax, heights, _WIDE if is_log else math.inf)
    legend(ax)
