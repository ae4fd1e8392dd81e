"""Paths through a fabric: the one a flow takes, and whether all of them arrive.

`path` follows the routes from host to host. Among equal ports it chooses by a fixed hash of the
flow and the switch, as the simulator's core does. `check_reach` tests all paths: those of a
switch to a host arrive when each port of its group leads to that host or to a switch whose paths
to it arrive.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft._core import find_lost_pair
from weft.errors import InputError
from weft.fabric.fabric import Fabric, Routes

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
