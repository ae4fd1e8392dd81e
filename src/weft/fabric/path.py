"""The path a packet takes: follow the routes, choose among equal ports by flow.

`path` walks from host to host. The choice among equal ports is a fixed hash of the flow
and the switch, the same in the simulator's core, so both see the same path.
"""

from __future__ import annotations

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
    routes = _routes(fabric)
    _check_host(fabric, src)
    _check_host(fabric, dst)
    hops: dict[int, int] = {}
    node = src
    while node != dst:
        if node in hops:
            raise _loop(fabric, list(hops), node, dst)
        hops[node] = _output(fabric, routes, node, dst, flow) if hops else _only_port(fabric, src)
        node = fabric.neighbors(node)[hops[node]].node
    return list(hops.items())


def _only_port(fabric: Fabric, host: int) -> int:
    (port,) = fabric.neighbors(host)
    return port


def _routes(fabric: Fabric) -> Routes:
    if fabric.routes is None:
        raise InputError(f"fabric {fabric.name}", "has no routes", "route it or read its LFTs")
    return fabric.routes


def _check_host(fabric: Fabric, node: int) -> None:
    if not 0 <= node < len(fabric.nodes) or fabric.nodes[node].kind != "host":
        raise InputError(
            f"fabric {fabric.name}", f"node {node} is not a host", "paths run between hosts"
        )


def _output(fabric: Fabric, routes: Routes, node: int, dst: int, flow: int) -> int:
    where = f"fabric {fabric.name} node {fabric.nodes[node].name}"
    target = fabric.nodes[dst].name
    if fabric.nodes[node].kind == "host":
        raise InputError(where, f"receives packets meant for {target}", "correct the routes")
    ports = routes.ports(fabric.ordinal[node], fabric.ordinal[dst])
    if not ports:
        raise InputError(where, f"has no route to {target}", "correct the routes or their dump")
    return ports[ecmp_choice(flow, node, len(ports))]


def _loop(fabric: Fabric, visited: list[int], again: int, dst: int) -> InputError:
    ring = [*visited[visited.index(again) :], again]
    names = " -> ".join(fabric.nodes[n].name for n in ring)
    return InputError(
        f"fabric {fabric.name}",
        f"packets to {fabric.nodes[dst].name} go round {names} for ever",
        "correct the routes",
    )
