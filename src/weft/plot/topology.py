"""Draw a fabric: hosts at the bottom, switches in layers by distance from them.

Up to 200 nodes are drawn one by one. Above that the hosts of a switch become one mark; if that is
still too many, each layer becomes one box. Entry point: `topology`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.plot.style import INK, MUTED, OURS
from weft.units import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
