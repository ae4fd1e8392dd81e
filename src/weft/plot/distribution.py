"""Distributions: the CDF, its tail on a complementary-log axis, and quantiles as bars.

Each function draws one quantity on given axes; all distributions there share a unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.plot.style import MUTED, OURS, PUBLISHED, label_log_axis, legend, line_style
from weft.records.schema import Distribution
from weft.units import Display, choose_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Distributions = Mapping[str, Distribution]

_CDF_QUANTILES = np.linspace(0, 1, 401)
_TAIL_STEPS_PER_DECADE = 50
# Where the slowest sample is this many times the fastest, a linear axis hides the body.
_LOG_AXIS_RATIO = 30


def _drawable(distributions: Distributions) -> dict[str, Distribution]:
    return {label: d for label, d in distributions.items() if d.histogram.count > 0}


def _display(distributions: Distributions) -> Display:
    """A unit in which the medians read well."""
    medians = [d.quantile(0.5) for d in distributions.values()]
    units = [d.unit for d in distributions.values()]
    return choose_unit(units[0], max(map(abs, medians))) if units else Display(1, "")


def _value_axis(ax: Axes, distributions: Distributions, quantity: str, unit: str) -> None:
    ax.set_xlabel(f"{quantity} ({unit})" if unit else quantity)
    low = min((d.histogram.min for d in distributions.values()), default=0)
    high = max((d.quantile(0.9999) for d in distributions.values()), default=0)
    if low > 0 and high > _LOG_AXIS_RATIO * low:
        ax.set_xscale("log")
        label_log_axis(ax.xaxis)


def _lines(
    ax: Axes, distributions: Distributions, quantity: str
) -> Iterator[tuple[str, Distribution, float]]:
    """Labels the value axis, then gives each distribution with its unit's divisor."""
    drawable = _drawable(distributions)
    display = _display(drawable)
    _value_axis(ax, drawable, quantity, display.unit)
    for label, distribution in drawable.items():
        yield label, distribution, display.divisor


def cdf(ax: Axes, distributions: Distributions, quantity: str) -> None:
    """The share of samples at or below each value."""
    for i, (label, d, divisor) in enumerate(_lines(ax, distributions, quantity)):
        values = [d.quantile(q) / divisor for q in _CDF_QUANTILES]
        ax.plot(values, 100 * _CDF_QUANTILES, label=label, **line_style(i))
    ax.set_ylabel("samples at or below (%)")
    ax.set_ylim(0, 100)
    legend(ax)


def cdf_tail(ax: Axes, distributions: Distributions, quantity: str) -> None:
    """The CDF with each further nine given the same height, to where one sample is left."""
    from matplotlib.ticker import FixedLocator  # see weft.plot.style

    most = max((d.histogram.count for d in distributions.values()), default=1)
    top = math.log10(max(most, 10))
    for i, (label, d, divisor) in enumerate(_lines(ax, distributions, quantity)):
        rarest = math.log10(d.histogram.count)
        nines = np.linspace(0, rarest, max(2, round(_TAIL_STEPS_PER_DECADE * rarest)))
        values = [d.quantile(1 - 10.0**-n) / divisor for n in nines]
        ax.plot(values, nines, label=label, **line_style(i))
    ticks = [0, math.log10(2), *range(1, math.floor(top) + 1)]
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.minorticks_off()
    ax.yaxis.set_major_formatter(lambda nines, _: percentile_label(nines))
    ax.set_ylim(0, top + 0.1)
    ax.set_ylabel("percentile")
    legend(ax)


def percentile_label(nines: float) -> str:
    """ "p99.9" for three nines."""
    return f"p{100 * (1 - 10.0**-nines):.10g}"


def _bar_ends(d: Distribution, q: float, divisor: float) -> tuple[float, list[list[float]]]:
    """A quantile and its whiskers; an end that the samples cannot bound has none."""
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
    drawable = _drawable(distributions)
    display = _display(drawable)
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
