"""Paths through a fabric: the one a flow takes, and whether all of them arrive.

`path` follows the routes from host to host. Among equal ports it chooses by a fixed hash of the
flow and the switch, as the simulator's core does. `check_reach` tests all paths: a switch is
sound for a host when each port of its group leads to that host or to a switch that is sound for
it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.fabric.fabric import Fabric, Routes

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


def check_reach(fabric: Fabric, pairs: Iterable[tuple[int, int]]) -> None:
    """Refuse routes on which some (source, destination) pair, by host number, may not arrive."""
    if fabric.routes is None:
        if fabric.switches:
            raise InputError(f"fabric {fabric.name}", "has no routes", "route it or read its LFTs")
        return
    sound = sound_switches(fabric, fabric.routes)
    first = [_first_switch(fabric, host) for host in fabric.hosts]
    for src, dst in pairs:
        switch = first[src]
        if switch >= 0 and not sound[switch, dst]:
            raise _diagnose(fabric, src, dst)


def sound_switches(fabric: Fabric, routes: Routes) -> NDArray[np.bool_]:
    """[switch, host]: every path from the switch towards the host arrives."""
    switches, hosts = routes.next_hop.shape
    widest = max((len(group) for group in routes.groups), default=1)
    ports = np.zeros((len(routes.groups) + 1, widest), dtype=np.intp)  # last row: no route
    for i, group in enumerate(routes.groups):
        ports[i] = [*group, *[group[0]] * (widest - len(group))]
    ports_per_switch = max((fabric.nodes[s].ports for s in fabric.switches), default=0)
    peer_switch = np.full((switches, ports_per_switch + 1), -1, dtype=np.intp)
    peer_host = np.full((switches, ports_per_switch + 1), -1, dtype=np.intp)
    for number, switch in enumerate(fabric.switches):
        for port, end in fabric.neighbors(switch).items():
            peers = peer_switch if fabric.nodes[end.node].kind == "switch" else peer_host
            peers[number, port] = fabric.ordinal[end.node]
    row, column = np.arange(switches)[:, None], np.arange(hosts)[None, :]
    sound = np.zeros((switches, hosts), dtype=np.bool_)
    for _ in range(switches + 1):
        previous = int(sound.sum())
        ok = routes.next_hop >= 0
        for choice in range(widest):
            port = ports[routes.next_hop, choice]
            next_switch = peer_switch[row, port]
            arrives = peer_host[row, port] == column
            ok &= arrives | ((next_switch >= 0) & sound[next_switch, column])
        sound = ok
        if int(sound.sum()) == previous:
            break
    return sound


def _first_switch(fabric: Fabric, host: int) -> int:
    """The switch a host is on, counted among switches; -1 for a host cabled to a host."""
    ends = list(fabric.neighbors(host).values())
    if not ends or fabric.nodes[ends[0].node].kind == "host":
        return -1
    return fabric.ordinal[ends[0].node]


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
