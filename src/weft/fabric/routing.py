"""Routes of a fabric: functions from `Fabric` to `Routes`.

Let d(s, t) be the hops from switch s to the switch t of the destination. A port of s is
usable towards t when its neighbour n has d(n, t) = d(s, t) - 1; the functions differ in d
(all links, or only turns that up*/down* allows) and in which usable ports they keep.
All work on whole matrices: usable[port, switch, target]. Entry points: `route` (by name), and the
routings `shortest_path`, `destination_modulo`, `ecmp`, `up_down`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.fabric.fabric import Fabric, Routes

Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]

_FAR = 1 << 20


@dataclass(frozen=True, slots=True)
class _Graph:
    """The switches alone. Switches and hosts are counted as in `Routes`."""

    neighbor: Ints  # [switch, port - 1], -1 where no switch is linked
    targets: Ints  # switches with hosts
    target_of: Ints  # [host], index into targets
    port_of: Ints  # [host], port of its switch that leads to it


def _switch_graph(fabric: Fabric) -> _Graph:
    wiring = fabric.wiring[list(fabric.switches)]
    is_switch = np.array([node.kind == "switch" for node in fabric.nodes] + [False])
    ordinal = np.array([*fabric.ordinal, -1], dtype=np.int32)
    neighbor = np.where(is_switch[wiring], ordinal[wiring], -1).astype(np.int32)
    ends = [next(iter(fabric.neighbors(host).values())) for host in fabric.hosts]
    targets, target_of = np.unique([fabric.ordinal[end.node] for end in ends], return_inverse=True)
    return _Graph(
        neighbor,
        targets.astype(np.int32),
        target_of.astype(np.int32),
        np.array([end.port for end in ends], dtype=np.int32),
    )


def _relax_hops(neighbor: Ints, allowed: Bools, hops: Ints, fixed: Bools) -> Ints:
    """Least hops over the allowed ports, by relaxation until nothing changes.

    hops[s, t] = 1 + min over allowed ports p of hops[neighbor[s, p], t], except where fixed.
    """
    while True:
        nearer = hops.copy()
        for port in range(neighbor.shape[1]):
            on = np.flatnonzero(allowed[:, port])
            nearer[on] = np.minimum(nearer[on], hops[neighbor[on, port]] + 1)
        nearer[fixed] = hops[fixed]
        if np.array_equal(nearer, hops):
            return hops
        hops = nearer


def _count_hops(graph: _Graph, allowed: Bools, targets: Ints) -> Ints:
    """Hops from every switch to each target over the allowed ports."""
    hops = np.full((len(graph.neighbor), len(targets)), _FAR, dtype=np.int32)
    hops[targets, np.arange(len(targets))] = 0
    return _relax_hops(graph.neighbor, allowed, hops, hops == 0)


def _usable_ports(graph: _Graph, allowed: Bools, hops: Ints) -> Bools:
    """[port, switch, target]: whether the port leads one hop nearer to the target."""
    usable = np.zeros((graph.neighbor.shape[1], *hops.shape), dtype=bool)
    for port in range(graph.neighbor.shape[1]):
        on = np.flatnonzero(allowed[:, port])
        usable[port, on] = hops[graph.neighbor[on, port]] + 1 == hops[on]
    return usable & (hops < _FAR)


def _shortest_ports(graph: _Graph) -> Bools:
    linked = graph.neighbor >= 0
    return _usable_ports(graph, linked, _count_hops(graph, linked, graph.targets))


def _single_path_routes(graph: _Graph, ports: Ints) -> Routes:
    """Single-path routes: ports[switch, host] between switches, the host's own port at its end."""
    hosts = np.arange(len(graph.target_of))
    ports[graph.targets[graph.target_of], hosts] = graph.port_of
    return Routes.from_ports(ports)


def _pick_ports(graph: _Graph, usable: Bools, rank: Ints) -> Ints:
    """For every switch and host the usable port of this rank (from 0) among the usable ones."""
    ports = np.zeros((usable.shape[1], len(graph.target_of)), dtype=np.int32)
    passed = np.zeros(ports.shape, dtype=np.int32)
    for port in range(len(usable)):
        is_usable = usable[port][:, graph.target_of]
        ports[is_usable & (passed == rank)] = port + 1
        passed += is_usable
    return ports


def _count_levels(graph: _Graph) -> Ints:
    """Hops of every switch to the nearest switch with hosts."""
    nearest: Ints = _count_hops(graph, graph.neighbor >= 0, graph.targets).min(axis=1)
    return nearest


def _spread_destinations(graph: _Graph, usable: Bools, up: Bools, height: Ints) -> Routes:
    """Spread destinations over usable ports, d-mod-k.

    With w_l the up ports of a switch at height l, host j goes up by port
    floor(j / Π_{i<l} w_i) mod (usable ports), and down by port j mod (usable ports):
    dividing by the choices already made keeps the levels' choices independent.
    """
    fanout = [int(up[height == level].sum(axis=1).max()) for level in range(int(height.max()) + 1)]
    divisor = np.cumprod([1, *(max(1, w) for w in fanout[:-1])])[height]
    climbs: Bools = np.any(usable & up.T[:, :, np.newaxis], axis=0)
    count = usable.sum(axis=0, dtype=np.int32)[:, graph.target_of]
    host = np.arange(len(graph.target_of))
    turn = np.where(climbs[:, graph.target_of], host // divisor[:, np.newaxis], host)
    return _single_path_routes(
        graph, _pick_ports(graph, usable, (turn % np.maximum(count, 1)).astype(np.int32))
    )


def _empty_routes(fabric: Fabric) -> Routes:
    return Routes(np.empty((0, len(fabric.hosts)), dtype=np.int32), ())


def shortest_path(fabric: Fabric) -> Routes:
    """One shortest path, always by the lowest port. On a dragonfly this is minimal routing."""
    if not fabric.switches:
        return _empty_routes(fabric)
    graph = _switch_graph(fabric)
    usable = _shortest_ports(graph)
    lowest = np.where(usable.any(axis=0), usable.argmax(axis=0) + 1, 0).astype(np.int32)
    return _single_path_routes(graph, lowest[:, graph.target_of])


def destination_modulo(fabric: Fabric) -> Routes:
    """One shortest path; destinations are spread over the equal ports in turn (d-mod-k)."""
    if not fabric.switches:
        return _empty_routes(fabric)
    graph = _switch_graph(fabric)
    level = _count_levels(graph)
    up = (graph.neighbor >= 0) & (level[graph.neighbor] > level[:, np.newaxis])
    return _spread_destinations(graph, _shortest_ports(graph), up, level)


def ecmp(fabric: Fabric) -> Routes:
    """All shortest paths: every usable port, all equal."""
    if not fabric.switches:
        return _empty_routes(fabric)
    graph = _switch_graph(fabric)
    usable = _shortest_ports(graph)
    rows = np.packbits(usable, axis=0).reshape(-1, usable[0].size).T
    kinds, kind_of = np.unique(rows, axis=0, return_inverse=True)
    bits = np.unpackbits(kinds, axis=1)
    groups = [tuple(int(p) + 1 for p in np.flatnonzero(row)) for row in bits]
    next_hop = kind_of.reshape(usable[0].shape)[:, graph.target_of].astype(np.int32)
    return _add_host_ports(graph, next_hop, groups)


def _add_host_ports(graph: _Graph, next_hop: Ints, groups: list[tuple[int, ...]]) -> Routes:
    """Add the last hop, and make the empty group -1."""
    last, last_of = np.unique(graph.port_of, return_inverse=True)
    hosts = np.arange(len(graph.target_of))
    next_hop[graph.targets[graph.target_of], hosts] = len(groups) + last_of
    groups = groups + [(int(port),) for port in last]
    number = {g: i for i, g in enumerate(sorted({g for g in groups if g}))}
    renumber = np.array([number.get(g, -1) for g in groups], dtype=np.int32)
    return Routes(renumber[next_hop], tuple(number))


def up_down(fabric: Fabric, roots: Sequence[int] | None = None) -> Routes:
    """Up towards the roots, then down, never up again: free of deadlock on one lane.

    Every link has an upper end: the one nearer to a root, then the one with the lower index.
    A switch with a path down to the destination takes it; the others go up. `roots` are node
    indices; without them the switches farthest from hosts, or only the first of these when
    with all of them some pair of hosts would have no legal path.
    """
    if not fabric.switches:
        return _empty_routes(fabric)
    graph = _switch_graph(fabric)
    if roots is not None:
        return _require_reachable(
            fabric, graph, _route_up_down(graph, _root_ordinals(fabric, roots))
        )
    level = _count_levels(graph)
    top = np.flatnonzero(level == level.max()).astype(np.int32)
    routes = _route_up_down(graph, top)
    return routes if _find_gap(graph, routes) is None else _route_up_down(graph, top[:1])


def _route_up_down(graph: _Graph, roots: Ints) -> Routes:
    neighbor, linked = graph.neighbor, graph.neighbor >= 0
    depth = _count_hops(graph, linked, roots).min(axis=1)
    order = np.lexsort((np.arange(len(depth)), depth)).argsort()
    up = linked & (order[neighbor] < order[:, np.newaxis])
    below = _count_hops(graph, linked & ~up, graph.targets)
    total = _relax_hops(neighbor, up, below, below < _FAR)
    down_only = below < _FAR
    usable = np.where(
        down_only,
        _usable_ports(graph, linked & ~up, below),
        _usable_ports(graph, up, total) & ~down_only,
    )
    return _spread_destinations(graph, usable, up, (depth.max() - depth).astype(np.int32))


def _root_ordinals(fabric: Fabric, roots: Sequence[int]) -> Ints:
    for root in roots:
        if root not in fabric.switches:
            raise InputError(
                f"fabric {fabric.name}", f"root {root} is not a switch", "name switches by index"
            )
    if not roots:
        raise InputError(f"fabric {fabric.name}", "0 roots, at least 1 is needed", "name a switch")
    return np.array([fabric.ordinal[root] for root in roots], dtype=np.int32)


def _find_gap(graph: _Graph, routes: Routes) -> tuple[int, int] | None:
    """A switch with hosts and a host that it cannot reach."""
    gaps = np.argwhere(routes.next_hop[graph.targets] < 0)
    return (int(graph.targets[gaps[0, 0]]), int(gaps[0, 1])) if len(gaps) else None


def _require_reachable(fabric: Fabric, graph: _Graph, routes: Routes) -> Routes:
    gap = _find_gap(graph, routes)
    if gap is None:
        return routes
    switch, host = fabric.nodes[fabric.switches[gap[0]]], fabric.nodes[fabric.hosts[gap[1]]]
    raise InputError(
        f"fabric {fabric.name}",
        f"no up/down path from {switch.name} to {host.name} with these roots",
        "give fewer roots; one root always works",
    )


ROUTINGS: dict[str, Callable[[Fabric], Routes]] = {
    "shortest_path": shortest_path,
    "destination_modulo": destination_modulo,
    "ecmp": ecmp,
    "up_down": up_down,
}


def route(fabric: Fabric, routing: str) -> Fabric:
    """The fabric with routes computed by the routing of this name."""
    if routing not in ROUTINGS:
        raise InputError(
            f"fabric {fabric.name}",
            f"routing {routing!r} does not exist",
            f"choose one of {', '.join(ROUTINGS)}",
        )
    return replace(fabric, routes=ROUTINGS[routing](fabric))
