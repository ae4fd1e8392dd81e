"""Drawing functions: each draws one quantity, or a fabric, on given axes.

`cdf`, `cdf_tail` and `quantile_bars` draw distributions; `series` draws recorded points, `curves`
joins a few of them; `sweep` draws one statistic for each value of a setting; `compare_published`
sets a paper's values beside ours. All lines on one set of axes share a unit.

`topology` draws a fabric: hosts at the bottom, switches in layers by distance from them. Up to 200
nodes are drawn one by one. Above that the hosts of a switch become one mark; if that is still too
many, each layer becomes one box.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.plot.style import INK, MUTED, OURS, PALETTE, PUBLISHED, label_log_axis, legend, line_style
from weft.records.schema import Distribution, Series
from weft.units import Display, choose_unit, dimension_of, format_count, format_value, split_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# ---- Quantities -------------------------------------------------------------------------------

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


# ---- Fabrics ----------------------------------------------------------------------------------

Nodes = Sequence[tuple[str, str]]
Links = Sequence[tuple[int, int]]

MOST_NODES = 200
_MOST_LABELS = 24
_ROW_LETTERS = 110
_HOST_FILL, _SWITCH_FILL = "#E0F2E9", "#DBEAFE"


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes (name, kind) and links between indices, as they will be drawn."""

    nodes: Nodes
    links: Links

    def neighbours(self) -> list[list[int]]:
        """The nodes next to each node."""
        neighbours: list[list[int]] = [[] for _ in self.nodes]
        for i, j in self.links:
            neighbours[i].append(j)
            neighbours[j].append(i)
        return neighbours


def split_layers(graph: Graph) -> list[list[int]]:
    """Nodes by distance from the nearest host; unreachable nodes on top."""
    neighbours = graph.neighbours()
    hosts = [i for i, (_, kind) in enumerate(graph.nodes) if kind != "switch"]
    layers, placed = [hosts or list(range(len(graph.nodes)))], set(hosts)
    while layers[-1]:
        above = {j for i in layers[-1] for j in neighbours[i]} - placed if hosts else set()
        placed |= above
        layers.append(sorted(above))
    layers.pop()
    stranded = sorted(set(range(len(graph.nodes))) - placed) if hosts else []
    return [*layers, stranded] if stranded else layers


def _order_by_barycentre(
    layer: list[int], place: dict[int, float], neighbours: list[list[int]]
) -> list[int]:
    """The layer ordered by where its already placed neighbours are: fewer crossings."""

    def centre(i: int) -> float:
        placed = [place[j] for j in neighbours[i] if j in place]
        return sum(placed) / len(placed) if placed else 0.5

    return sorted(layer, key=lambda i: (round(centre(i), 9), i))


def _spread(layer: Sequence[int]) -> dict[int, float]:
    return {i: (n + 0.5) / len(layer) for n, i in enumerate(layer)}


def layout(graph: Graph) -> dict[int, tuple[float, float]]:
    """Where each node goes: x in 0..1, y its layer."""
    neighbours, layers = graph.neighbours(), split_layers(graph)
    place: dict[int, float] = _spread(layers[0]) if layers else {}
    for upward in (True, False, True):
        for layer in layers if upward else reversed(layers):
            fixed = {i: x for i, x in place.items() if i not in set(layer)}
            if fixed:
                place |= _spread(_order_by_barycentre(layer, fixed, neighbours))
    return {i: (place[i], float(y)) for y, layer in enumerate(layers) for i in layer}


def group_hosts(graph: Graph) -> Graph:
    """The graph with the hosts of each switch as one node."""
    neighbours = graph.neighbours()
    switches_kept = [i for i, (_, kind) in enumerate(graph.nodes) if kind == "switch"]
    index = {i: n for n, i in enumerate(switches_kept)}
    groups: dict[tuple[int, ...], int] = defaultdict(int)
    for i, (_, kind) in enumerate(graph.nodes):
        if kind != "switch":
            groups[tuple(sorted({index[j] for j in neighbours[i] if j in index}))] += 1
    nodes = [graph.nodes[i] for i in switches_kept] + [
        (format_count(n, "host"), "hosts") for n in groups.values()
    ]
    links = [(index[i], index[j]) for i, j in graph.links if i in index and j in index]
    for n, switches in enumerate(groups):
        links += [(len(switches_kept) + n, j) for j in switches]
    return Graph(nodes, links)


Utilisation = Mapping[tuple[int, int], float]
_IDLE, _BUSY = (0x94, 0xA3, 0xB8), (0xC2, 0x1E, 0x1E)


def colour_of(share: float) -> str:
    """Grey for an idle link to red for one that is always busy."""
    share = min(1.0, max(0.0, share))
    levels = (round(a + share * (b - a)) for a, b in zip(_IDLE, _BUSY, strict=True))
    return "#" + "".join(f"{level:02X}" for level in levels)


def topology(ax: Axes, nodes: Nodes, links: Links, busy: Utilisation | None = None) -> None:
    """Draw a fabric, aggregated as far as its size demands; whole ones coloured by use."""
    graph = Graph(nodes, links)
    grouped = group_hosts(graph) if len(nodes) > MOST_NODES else graph
    ax.set_axis_off()
    if len(grouped.nodes) <= MOST_NODES:
        _draw_nodes(ax, grouped, (busy or {}) if grouped is graph else {})
    else:
        _draw_layers(ax, graph)


def _draw_nodes(ax: Axes, graph: Graph, busy: Utilisation) -> None:
    places, layers = layout(graph), split_layers(graph)
    for (i, j), count in Counter((min(link), max(link)) for link in graph.links).items():
        _draw_link(ax, places[i], places[j], count, colour_of(busy.get((i, j), 0.0)))
    for layer in layers:
        for i in layer:
            _draw_node(ax, graph.nodes[i], places[i], len(layer))
    ax.set_xlim(0, 1)
    ax.set_ylim(-0.45, max(len(layers) - 1, 0) + 0.45)


def _draw_link(
    ax: Axes, a: tuple[float, float], b: tuple[float, float], count: int, colour: str
) -> None:
    """Join nodes of one layer by an arc: a straight line would cross the others."""
    from matplotlib.patches import PathPatch  # see weft.plot.style
    from matplotlib.path import Path

    rise = 0.25 + 0.55 * abs(a[0] - b[0]) if a[1] == b[1] else 0
    middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2 + rise)
    curve = Path([a, middle, b], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
    width = min(1.1 + 0.4 * (count - 1), 3)
    ax.add_patch(PathPatch(curve, facecolor="none", edgecolor=colour, linewidth=width, zorder=1))


def _draw_node(ax: Axes, node: tuple[str, str], at: tuple[float, float], crowd: int) -> None:
    """Named boxes where there is room, bare marks where there is not."""
    name, kind = node
    switch = kind == "switch"
    if crowd > _MOST_LABELS:
        ax.plot(
            *at,
            "s" if switch else "o",
            markersize=max(2.5, 180 / crowd) if switch else 3.2,
            color=OURS if switch else "#009E73",
            zorder=2,
        )
        return
    # A row of about 110 letters fills the figure; beyond that names stand upright.
    upright = crowd * (len(name) + 2) > _ROW_LETTERS
    box = {
        "boxstyle": "round,pad=0.35" if switch else "round,pad=0.3,rounding_size=0.6",
        "facecolor": _SWITCH_FILL if switch else _HOST_FILL,
        "edgecolor": OURS if switch else "#009E73",
        "linewidth": 0.9,
    }
    ax.text(
        *at,
        name,
        ha="center",
        va="center",
        fontsize=8.5 if crowd <= 16 else 7,
        color=INK,
        bbox=box,
        rotation=90 if upright else 0,
        zorder=3,
    )


def _draw_layers(ax: Axes, graph: Graph) -> None:
    """One box for each layer, and how many links join two of them."""
    from matplotlib.patches import FancyBboxPatch

    layers = split_layers(graph)
    level = {i: y for y, layer in enumerate(layers) for i in layer}
    between = Counter(tuple(sorted((level[i], level[j]))) for i, j in graph.links)
    for y, layer in enumerate(layers):
        nodes = format_count(len(layer), "host" if y == 0 else "switch")
        fill, edge = (_HOST_FILL, "#009E73") if y == 0 else (_SWITCH_FILL, OURS)
        ax.add_patch(
            FancyBboxPatch(
                (0.25, y - 0.16),
                0.5,
                0.32,
                boxstyle="round,pad=0.02",
                facecolor=fill,
                edgecolor=edge,
                zorder=2,
            )
        )
        inner = f", {format_count(between[(y, y)], 'link')} among them" if between[(y, y)] else ""
        ax.text(0.5, y, f"{nodes}{inner}", ha="center", va="center", zorder=3)
        if y and between[(y - 1, y)]:
            ax.plot([0.5, 0.5], [y - 1, y], color="#94A3B8", linewidth=3, zorder=1)
            links = format_count(between[(y - 1, y)], "link")
            ax.text(0.52, y - 0.5, links, va="center", color=MUTED)
    ax.set_xlim(0, 1)
    ax.set_ylim(-0.45, len(layers) - 0.55)
