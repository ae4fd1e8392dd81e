"""Whether every packet arrives, whichever of the equal ports it takes.

A switch is sound for a host when each port of its group leads to that host, or to a switch that
is sound for it; what stays unsound goes round a loop, ends at a switch without a route, or at
another host. Worked out for all destinations at once. Entry point: `check_reach`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.fabric.fabric import Fabric, Routes
from weft.fabric.path import path

FLOWS_TRIED = 4096


def check_reach(fabric: Fabric, pairs: Iterable[tuple[int, int]]) -> None:
    """Refuses routes on which some (source, destination), by host number, may not arrive."""
    if fabric.routes is None:
        if fabric.switches:
            raise InputError(f"fabric {fabric.name}", "has no routes", "route it or read its LFTs")
        return
    sound = sound_switches(fabric, fabric.routes)
    first = [_first_switch(fabric, host) for host in fabric.hosts]
    for src, dst in pairs:
        switch = first[src]
        if switch >= 0 and not sound[switch, dst]:
            raise _diagnosis(fabric, src, dst)


def sound_switches(fabric: Fabric, routes: Routes) -> NDArray[np.bool_]:
    """[switch, host]: every way from the switch towards the host arrives."""
    switches, hosts = routes.next_hop.shape
    widest = max((len(group) for group in routes.groups), default=1)
    ports = np.zeros((len(routes.groups) + 1, widest), dtype=np.intp)  # last row: no route
    for i, group in enumerate(routes.groups):
        ports[i] = [*group, *[group[0]] * (widest - len(group))]
    most = max((fabric.nodes[s].ports for s in fabric.switches), default=0)
    peer_switch = np.full((switches, most + 1), -1, dtype=np.intp)
    peer_host = np.full((switches, most + 1), -1, dtype=np.intp)
    for number, switch in enumerate(fabric.switches):
        for port, end in fabric.neighbors(switch).items():
            peers = peer_switch if fabric.nodes[end.node].kind == "switch" else peer_host
            peers[number, port] = fabric.ordinal[end.node]
    row, column = np.arange(switches)[:, None], np.arange(hosts)[None, :]
    sound = np.zeros((switches, hosts), dtype=np.bool_)
    for _ in range(switches + 1):
        before = int(sound.sum())
        ok = routes.next_hop >= 0
        for choice in range(widest):
            port = ports[routes.next_hop, choice]
            next_switch = peer_switch[row, port]
            arrives = peer_host[row, port] == column
            ok &= arrives | ((next_switch >= 0) & sound[next_switch, column])
        sound = ok
        if int(sound.sum()) == before:
            break
    return sound


def _first_switch(fabric: Fabric, host: int) -> int:
    """The switch a host is on, counted among switches; -1 for a host cabled to a host."""
    ends = list(fabric.neighbors(host).values())
    if not ends or fabric.nodes[ends[0].node].kind == "host":
        return -1
    return fabric.ordinal[ends[0].node]


def _diagnosis(fabric: Fabric, src: int, dst: int) -> InputError:
    """The loop or dead end that some flow meets, named by walking there."""
    for flow in range(FLOWS_TRIED):
        try:
            path(fabric, fabric.hosts[src], fabric.hosts[dst], flow)
        except InputError as error:
            return error
    names = fabric.nodes[fabric.hosts[src]].name, fabric.nodes[fabric.hosts[dst]].name
    return InputError(
        f"fabric {fabric.name}",
        f"some way from {names[0]} to {names[1]} does not arrive",
        "correct the routes",
    )
