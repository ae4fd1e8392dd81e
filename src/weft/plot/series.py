"""Quantities over time, or over anything else on the x axis.

`series` draws points as they were recorded; `sweep` draws one statistic for each setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from weft.plot.style import legend, line_style
from weft.records.dimension import Display, display_for
from weft.records.schema import Series

_MOST_POINTS = 1200

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


def series(ax: Axes, lines: Mapping[str, Series], quantity: str, x_name: str = "time") -> None:
    """Points over x; every line shares the first one's units."""
    drawable = {label: line for label, line in lines.items() if line.x}
    first = next(iter(drawable.values()), Series("", "", (), ()))
    x_display = display_for(first.x_unit, _greatest([line.x for line in drawable.values()]))
    y_display = display_for(first.y_unit, _greatest([line.y for line in drawable.values()]))
    for i, (label, line) in enumerate(drawable.items()):
        x, y = _thinned(np.array(line.x), np.array(line.y))
        # Dashes would break up a line that changes this fast.
        style = line_style(i) | {"linestyle": "-", "linewidth": 1.1}
        ax.plot(x / x_display.divisor, y / y_display.divisor, label=label, **style)
    ax.set_xlabel(_label(x_name, x_display))
    ax.set_ylabel(_label(quantity, y_display))
    ax.margins(x=0)
    _from_zero(ax, [y / y_display.divisor for line in drawable.values() for y in line.y])
    legend(ax)


def sweep(
    ax: Axes, lines: Mapping[str, Mapping[float, float]], unit: str, quantity: str, setting: str
) -> None:
    """One statistic (a line) at each value of a setting (x)."""
    display = display_for(unit, _greatest([list(line.values()) for line in lines.values()]))
    for i, (label, line) in enumerate(lines.items()):
        values = [line[x] / display.divisor for x in sorted(line)]
        ax.plot(sorted(line), values, label=label, marker="o", markersize=3.5, **line_style(i))
    ax.set_xlabel(setting)
    ax.set_ylabel(_label(quantity, display))
    _from_zero(ax, [y / display.divisor for line in lines.values() for y in line.values()])
    legend(ax)
