"""Routes of a fabric, functions from `Fabric` to `Routes`, and the paths they give.

Let d(s, t) be the hops from switch s to the switch t of the destination. A port of s is
usable towards t when its neighbour n has d(n, t) = d(s, t) - 1; the functions differ in d
(all links, or only turns that up*/down* allows) and in which usable ports they keep.
Targets are bits: one word operation moves 64 of them, and the core spreads hosts over the
usable ports. Entry points: `route` (by name), and the routings `shortest_path`,
`destination_modulo`, `ecmp`, `up_down`.

`path` follows the routes from host to host. Among equal ports it chooses by a fixed hash of the
flow and the switch, as the simulator's core does. `check_reach` tests all paths: those of a
switch to a host arrive when each port of its group leads to that host or to a switch whose paths
to it arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft._core import find_lost_pair, group_ports, number_ports, spread_destinations
from weft.errors import InputError
from weft.fabric.fabric import Fabric, Routes

Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]
Bits = NDArray[np.uint64]  # the last axis holds 64 targets a word

_FAR = 1 << 20


@dataclass(frozen=True, slots=True)
class _Graph:
    """The switches alone. Switches and hosts are counted as in `Routes`."""

    neighbor: Ints  # [switch, port - 1], -1 where no switch is linked
    targets: Ints  # switches with hosts
    target_of: Ints  # [host], index into targets
    port_of: Ints  # [host], port of its switch that leads to it

    @property
    def target_bits(self) -> Bits:
        """[switch, word]: the bit of a target, at its own switch."""
        bits = np.zeros((len(self.neighbor), -(-len(self.targets) // 64)), dtype=np.uint64)
        place = np.arange(len(self.targets), dtype=np.uint64)
        bits[self.targets, place >> 6] = np.uint64(1) << (place & 63)
        return bits


def _switch_graph(fabric: Fabric) -> _Graph:
    wiring = fabric.wiring[list(fabric.switches)]
    is_switch = np.array([node.kind == "switch" for node in fabric.nodes] + [False])
    ordinal = np.array([*fabric.ordinal, -1], dtype=np.int32)
    neighbor = np.where(is_switch[wiring], ordinal[wiring], -1).astype(np.int32)
    ends = fabric.host_ends
    targets, target_of = np.unique(ordinal[ends[:, 0]], return_inverse=True)
    return _Graph(neighbor, targets, target_of.astype(np.int32), ends[:, 1])


def _count_hops(graph: _Graph, sources: Ints) -> Ints:
    """Hops of every switch to the nearest of the sources."""
    hops = np.full(len(graph.neighbor), _FAR, dtype=np.int32)
    hops[sources] = 0
    linked = graph.neighbor >= 0
    while True:
        nearest = np.where(linked, hops[graph.neighbor], _FAR).min(axis=1, initial=_FAR) + 1
        if (nearest >= hops).all():
            return hops
        hops = np.minimum(hops, nearest)


def _find_usable(graph: _Graph, allowed: Bools, seeds: Sequence[Bits]) -> tuple[list[Bits], Bits]:
    """Targets at each distance, [distance][switch, word], and ports that lead nearer.

    seeds[d] are the targets whose distance d is given; the others' distances follow over the
    allowed ports. Usable ports, [switch, port, word], are those of the others.
    """
    switches, ports = graph.neighbor.shape
    words = seeds[0].shape[1]
    usable = np.zeros((switches, ports, words), dtype=np.uint64)
    members = [np.flatnonzero(allowed[:, port]) for port in range(ports)]
    reached = np.bitwise_or.reduce(seeds)
    distances = [seeds[0]]
    while len(distances) < len(seeds) or distances[-1].any():
        nearer = distances[-1]
        fresh = np.zeros((switches, words), dtype=np.uint64)
        for port, on in enumerate(members):
            usable_now = nearer[graph.neighbor[on, port]] & ~reached[on]
            usable[on, port] |= usable_now
            fresh[on] |= usable_now
        reached |= fresh
        depth = len(distances)
        distances.append(fresh | seeds[depth] if depth < len(seeds) else fresh)
    return distances, usable


def _shortest_ports(graph: _Graph) -> Bits:
    return _find_usable(graph, graph.neighbor >= 0, [graph.target_bits])[1]


def _group(graph: _Graph, usable: Bits) -> tuple[Ints, list[list[int]]]:
    """The group of usable ports of every [switch, target], -1 for none, and the groups."""
    group = np.empty((len(usable), len(graph.targets)), dtype=np.int32)
    return group, group_ports(usable, group)


def _single_path_routes(
    graph: _Graph,
    group: Ints,
    groups: Sequence[Sequence[int]],
    up: Bools,
    divisor: NDArray[np.int64],
) -> Routes:
    """One port of each group per host, in turn; at its end the host's own port."""
    ports = np.empty((len(group), len(graph.target_of)), dtype=np.int16)
    spread_destinations(group, groups, up.view(np.uint8), divisor, graph.target_of, ports)
    ports[graph.targets[graph.target_of], np.arange(len(graph.target_of))] = graph.port_of
    used = number_ports(ports)
    return Routes(ports, tuple((port,) for port in used))


def _spread(graph: _Graph, usable: Bits, up: Bools, height: Ints) -> Routes:
    """Spread destinations over usable ports, d-mod-k.

    With w_l the up ports of a switch at height l, host j goes up by port
    floor(j / Π_{i<l} w_i) mod (usable ports), and down by port j mod (usable ports):
    dividing by the choices already made keeps the levels' choices independent.
    """
    fanout = [int(up[height == level].sum(axis=1).max()) for level in range(int(height.max()) + 1)]
    divisor = np.cumprod([1, *(max(1, w) for w in fanout[:-1])])[height]
    return _single_path_routes(graph, *_group(graph, usable), up, divisor)


def _empty_routes(fabric: Fabric) -> Routes:
    return Routes(np.empty((0, len(fabric.hosts)), dtype=np.int32), ())


def shortest_path(fabric: Fabric) -> Routes:
    """One shortest path, always by the lowest port. On a dragonfly this is minimal routing."""
    if not fabric.switches:
        return _empty_routes(fabric)
    graph = _switch_graph(fabric)
    group, groups = _group(graph, _shortest_ports(graph))
    lowest = [[group[0]] for group in groups]
    nowhere = np.zeros(graph.neighbor.shape, dtype=np.bool_)
    return _single_path_routes(graph, group, lowest, nowhere, np.ones(len(group), dtype=np.int64))


def destination_modulo(fabric: Fabric) -> Routes:
    """One shortest path; destinations are spread over the equal ports in turn (d-mod-k)."""
    if not fabric.switches:
        return _empty_routes(fabric)
    graph = _switch_graph(fabric)
    level = _count_hops(graph, graph.targets)
    up = (graph.neighbor >= 0) & (level[graph.neighbor] > level[:, np.newaxis])
    return _spread(graph, _shortest_ports(graph), up, level)


def ecmp(fabric: Fabric) -> Routes:
    """All shortest paths: every usable port, all equal."""
    if not fabric.switches:
        return _empty_routes(fabric)
    graph = _switch_graph(fabric)
    group, port_lists = _group(graph, _shortest_ports(graph))
    last, last_of = np.unique(graph.port_of, return_inverse=True)
    groups = [*(tuple(ports) for ports in port_lists), *((int(port),) for port in last)]
    number = {ports: i for i, ports in enumerate(sorted(set(groups)))}
    index = Routes.index_type(len(number))
    renumber = np.array([*(number[ports] for ports in groups), -1], dtype=index)
    next_hop = renumber[group][:, graph.target_of]
    hosts = np.arange(len(graph.target_of))
    next_hop[graph.targets[graph.target_of], hosts] = renumber[len(port_lists) + last_of]
    return Routes(next_hop, tuple(number))


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
    level = _count_hops(graph, graph.targets)
    top = np.flatnonzero(level == level.max()).astype(np.int32)
    routes = _route_up_down(graph, top)
    return routes if _find_gap(graph, routes) is None else _route_up_down(graph, top[:1])


def _route_up_down(graph: _Graph, roots: Ints) -> Routes:
    linked = graph.neighbor >= 0
    depth = _count_hops(graph, roots)
    order = np.lexsort((np.arange(len(depth)), depth)).argsort()
    up = linked & (order[graph.neighbor] < order[:, np.newaxis])
    below, down_ports = _find_usable(graph, linked & ~up, [graph.target_bits])
    _, up_ports = _find_usable(graph, up, below)
    return _spread(graph, down_ports | up_ports, up, depth.max() - depth)


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
    return fabric.with_routes(ROUTINGS[routing](fabric))


# ---- Paths --------------------------------------------------------------------------------------

HostNumbers = NDArray[np.integer]

_MASK = (1 << 64) - 1


def ecmp_choice(flow: int, switch_node: int, count: int) -> int:
    """Which of `count` equal ports the flow takes at the switch (its index in `nodes`)."""
    x = (flow * 0x9E3779B97F4A7C15 + switch_node * 0xBF58476D1CE4E5B9) & _MASK
    x ^= x >> 32
    x = (x * 0x94D049BB133111EB) & _MASK
    x ^= x >> 29
    return x % count


def path(fabric: Fabric, src: int, dst: int, flow: int = 0) -> list[tuple[int, int]]:
    """(node, output port) of every hop from host `src` to host `dst`; empty when equal."""
    routes = _require_routes(fabric)
    _check_host(fabric, src)
    _check_host(fabric, dst)
    hops: dict[int, int] = {}
    node = src
    while node != dst:
        if node in hops:
            raise _loop_error(fabric, list(hops), node, dst)
        hops[node] = (
            _choose_output(fabric, routes, node, dst, flow) if hops else _only_port(fabric, src)
        )
        node = fabric.neighbors(node)[hops[node]].node
    return list(hops.items())


def _only_port(fabric: Fabric, host: int) -> int:
    (port,) = fabric.neighbors(host)
    return port


def _require_routes(fabric: Fabric) -> Routes:
    if fabric.routes is None:
        raise InputError(f"fabric {fabric.name}", "has no routes", "route it or read its LFTs")
    return fabric.routes


def _check_host(fabric: Fabric, node: int) -> None:
    if not 0 <= node < len(fabric.nodes) or fabric.nodes[node].kind != "host":
        raise InputError(
            f"fabric {fabric.name}", f"node {node} is not a host", "paths run between hosts"
        )


def _choose_output(fabric: Fabric, routes: Routes, node: int, dst: int, flow: int) -> int:
    where = f"fabric {fabric.name} node {fabric.nodes[node].name}"
    target = fabric.nodes[dst].name
    if fabric.nodes[node].kind == "host":
        raise InputError(where, f"receives packets meant for {target}", "correct the routes")
    ports = routes.ports(fabric.ordinal[node], fabric.ordinal[dst])
    if not ports:
        raise InputError(where, f"has no route to {target}", "correct the routes or their dump")
    return ports[ecmp_choice(flow, node, len(ports))]


def _loop_error(fabric: Fabric, visited: list[int], again: int, dst: int) -> InputError:
    ring = [*visited[visited.index(again) :], again]
    names = " -> ".join(fabric.nodes[n].name for n in ring)
    return InputError(
        f"fabric {fabric.name}",
        f"packets to {fabric.nodes[dst].name} loop through {names}",
        "correct the routes",
    )


FLOWS_TRIED = 4096


def check_reach(fabric: Fabric, sources: HostNumbers, targets: HostNumbers) -> None:
    """Refuse routes on which some pair of a source and its target may not arrive.

    Hosts are numbered among hosts. The error is that of the lowest pair.
    """
    if fabric.routes is None:
        if fabric.switches:
            raise InputError(f"fabric {fabric.name}", "has no routes", "route it or read its LFTs")
        return
    first, hosts = _first_switches(fabric), len(fabric.hosts)
    # Hosts of one switch share their ways: a pair of the switch and the target stands for them.
    ways = np.unique(first[sources].astype(np.int64) * hosts + targets)
    if _find_lost(fabric, fabric.routes, *np.divmod(ways[ways >= 0], hosts)) < 0:
        return
    pairs = np.unique(sources.astype(np.int64) * hosts + targets)
    src, dst = np.divmod(pairs[first[pairs // hosts] >= 0], hosts)
    lost = _find_lost(fabric, fabric.routes, first[src], dst)
    raise _diagnose(fabric, int(src[lost]), int(dst[lost]))


def _find_lost(
    fabric: Fabric, routes: Routes, first_switch: HostNumbers, target: HostNumbers
) -> int:
    """The first pair of a switch and a target between which some path is lost, or -1."""
    return find_lost_pair(
        routes.table,
        *routes.group_table,
        _peers(fabric),
        first_switch.astype(np.int32),
        target.astype(np.int32),
        np.argsort(target, kind="stable"),
    )


def _first_switches(fabric: Fabric) -> NDArray[np.int32]:
    """The switch of each host, counted among switches; -1 for a host cabled to a host."""
    switch = np.array([*fabric.ordinal, -1], dtype=np.int32)
    switch[[*fabric.hosts, -1]] = -1
    return switch[fabric.host_ends[:, 0]]


def _peers(fabric: Fabric) -> NDArray[np.int32]:
    """[switch, port]: the switch at the far end, host h as -2 - h, or -1."""
    ordinal = np.array([*fabric.ordinal, -1], dtype=np.int32)
    ordinal[list(fabric.hosts)] = -2 - ordinal[list(fabric.hosts)]
    peers = ordinal[fabric.wiring[list(fabric.switches)]]
    return np.pad(peers, ((0, 0), (1, 0)), constant_values=-1)


def _diagnose(fabric: Fabric, src: int, dst: int) -> InputError:
    """The loop or dead end that some flow meets, found by following flows."""
    for flow in range(FLOWS_TRIED):
        try:
            path(fabric, fabric.hosts[src], fabric.hosts[dst], flow)
        except InputError as error:
            return error
    names = fabric.nodes[fabric.hosts[src]].name, fabric.nodes[fabric.hosts[dst]].name
    return InputError(
        f"fabric {fabric.name}",
        f"some path from {names[0]} to {names[1]} does not arrive",
        "correct the routes",
    )
