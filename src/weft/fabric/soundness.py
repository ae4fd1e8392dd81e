"""Check a fabric: names, ports, links, connectivity and routes.

`check_fabric` returns the fabric, or raises an `InputError` that names the node and port, the
value, the allowed range and the remedy. `find_cycle` finds deadlocks that the routes allow on one
lane: channels that wait for each other in a circle. `find_slow_links` names links that run slower
than their siblings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.fabric.fabric import (
    MAX_PORTS,
    MAX_UNICAST_LID,
    Fabric,
    Link,
    Node,
    Port,
    Routes,
    link_rate,
)

MAX_LANES = 15
MAX_DELAY_PS = 10**12
_GUID = re.compile(r"^0x[0-9a-f]{16}$")


def check_fabric(fabric: Fabric) -> Fabric:
    """The fabric itself if it is sound; else an `InputError`."""
    where = f"fabric {fabric.name}"
    _check_name("fabric", fabric.name)
    if not 1 <= fabric.lanes <= MAX_LANES:
        raise InputError(
            where,
            f"{fabric.lanes} data lanes is outside 1..{MAX_LANES}",
            "set lanes to the data VLs the switches have",
        )
    _check_nodes(where, fabric)
    _check_links(where, fabric)
    _check_hosts_linked_once(where, fabric)
    _check_connected(where, fabric)
    return check_routes(fabric)


def check_routes(fabric: Fabric) -> Fabric:
    """The fabric itself if its routes, where it has any, leave by linked ports."""
    if fabric.routes is not None:
        _check_routes(f"fabric {fabric.name}", fabric, fabric.routes)
    return fabric


def _check_nodes(where: str, fabric: Fabric) -> None:
    if not fabric.hosts:
        raise InputError(where, "0 hosts, at least 1 is needed", "add hosts")
    for node in fabric.nodes:
        _check_node(where, node)
    kinds = [node.kind for node in fabric.nodes]
    if kinds != sorted(kinds):
        first = fabric.nodes[kinds.index("switch")].name
        raise InputError(where, f"switch {first!r} comes before a host", "list hosts first")
    _check_unique(where, "name", (node.name for node in fabric.nodes))
    _check_unique(where, "LID", (node.lid for node in fabric.nodes))
    _check_unique(where, "GUID", (node.guid for node in fabric.nodes))


def _check_name(where: str, name: str) -> None:
    if not name or name != name.strip() or not name.isprintable() or '"' in name:
        raise InputError(where, f"{name!r} is not a name", "use printable characters, no quotes")


def _check_node(where: str, node: Node) -> None:
    name = node.name
    _check_name(where, name)
    if node.kind not in ("host", "switch"):
        raise InputError(f"{where} node {name}", f"unknown kind {node.kind!r}", "host or switch")
    if not 1 <= node.ports <= MAX_PORTS:
        raise InputError(
            f"{where} node {name}",
            f"{node.ports} ports is outside 1..{MAX_PORTS}",
            "give the number of its physical ports",
        )
    if node.lid is not None and not 1 <= node.lid <= MAX_UNICAST_LID:
        raise InputError(
            f"{where} node {name}",
            f"LID {node.lid} is outside 1..{MAX_UNICAST_LID}",
            "leave out the LID of a node that has none",
        )
    if node.guid is not None and not _GUID.match(node.guid):
        raise InputError(
            f"{where} node {name}",
            f"GUID {node.guid!r} is not 0x and 16 lower-case hexadecimal digits",
            "write it as 0x0002c90300a1b2c0",
        )


def _check_unique(where: str, field: str, values: Iterable[object]) -> None:
    values_so_far: set[object] = set()
    for value in values:
        if value is not None and value in values_so_far:
            raise InputError(
                where, f"two nodes have {field} {value!r}", f"give each its own {field}"
            )
        values_so_far.add(value)


def _check_links(where: str, fabric: Fabric) -> None:
    used: set[Port] = set()
    checked: set[tuple[float, str, int]] = set()  # rates and delays: cables have few kinds
    for link in fabric.links:
        for end in (link.a, link.b):
            _check_end(where, fabric, end)
            if end in used:
                raise InputError(_at(where, fabric, end), "used by two links", "move one of them")
            used.add(end)
        if link.a.node == link.b.node:
            problem = "linked to its own node"
            raise InputError(_at(where, fabric, link.a), problem, "link it to another node")
        kind = (link.rate_bps, link.rate_name, link.delay_ps)
        if kind not in checked:
            _check_cable(_at(where, fabric, link.a), link)
            checked.add(kind)


def _at(where: str, fabric: Fabric, end: Port) -> str:
    return f"{where} node {fabric.nodes[end.node].name} port {end.port}"


def _check_end(where: str, fabric: Fabric, end: Port) -> None:
    if not 0 <= end.node < len(fabric.nodes):
        raise InputError(
            where,
            f"a link ends at node {end.node}, outside 0..{len(fabric.nodes) - 1}",
            "use the index of a node",
        )
    ports = fabric.nodes[end.node].ports
    if not 1 <= end.port <= ports:
        raise InputError(
            _at(where, fabric, end), f"outside 1..{ports}", "use a free port or give it more ports"
        )


def _check_cable(where: str, link: Link) -> None:
    if not (math.isfinite(link.rate_bps) and link.rate_bps > 0):
        raise InputError(where, f"link rate {link.rate_bps} b/s is not above 0", "give its rate")
    if link_rate(link.rate_name, where).data_bps != link.rate_bps:
        raise InputError(
            where,
            f"link rate {link.rate_bps} b/s is not what {link.rate_name!r} means",
            "make rate_bps the data rate of rate_name",
        )
    if not 0 <= link.delay_ps <= MAX_DELAY_PS:
        raise InputError(
            where,
            f"link delay {link.delay_ps} ps is outside 0..{MAX_DELAY_PS}",
            "give its length divided by the speed of light in it, about 5 ns per metre",
        )


def _check_hosts_linked_once(where: str, fabric: Fabric) -> None:
    links = (fabric.wiring >= 0).sum(axis=1)
    for host in fabric.hosts:
        count = int(links[host])
        if count != 1:
            raise InputError(
                f"{where} host {fabric.nodes[host].name}",
                f"{count} links, exactly 1 is allowed",
                "give each port of an adapter a host of its own" if count else "link it",
            )


def _check_connected(where: str, fabric: Fabric) -> None:
    start = fabric.hosts[0]
    reached = np.zeros(len(fabric.nodes) + 1, dtype=np.bool_)
    frontier = np.array([start])
    while len(frontier):
        reached[frontier] = True
        reached[-1] = True  # what a port without a link leads to
        neighbors = np.unique(fabric.wiring[frontier])
        frontier = neighbors[~reached[neighbors]]
    if not reached.all():
        raise InputError(
            f"{where} node {fabric.nodes[int(reached.argmin())].name}",
            f"no chain of links leads to {fabric.nodes[start].name}",
            "link it or leave it out",
        )


def _check_routes(where: str, fabric: Fabric, routes: Routes) -> None:
    shape = (len(fabric.switches), len(fabric.hosts))
    if routes.next_hop.shape != shape:
        raise InputError(
            f"{where} routes",
            f"shape {routes.next_hop.shape} is not (switches, hosts) = {shape}",
            "route this fabric again",
        )
    low, high = int(routes.next_hop.min(initial=-1)), int(routes.next_hop.max(initial=-1))
    if low < -1 or high >= len(routes.groups):
        raise InputError(
            f"{where} routes",
            f"group {low if low < -1 else high} is outside -1..{len(routes.groups) - 1}",
            "route this fabric again",
        )
    for row, switch in enumerate(fabric.switches):
        for group in np.flatnonzero(np.bincount(routes.next_hop[row] + 1)[1:]):
            _check_group(where, fabric, switch, routes.groups[group])


def _check_group(where: str, fabric: Fabric, switch: int, group: tuple[int, ...]) -> None:
    linked = fabric.neighbors(switch)
    for port in group:
        if port not in linked:
            ports = ", ".join(map(str, linked)) or "none"
            raise InputError(
                _at(where, fabric, Port(switch, port)),
                f"a route leaves here, but the linked ports are {ports}",
                "route over linked ports",
            )
    if not group:
        raise InputError(f"{where} routes", "an empty group of ports", "use -1 for unreachable")


def find_slow_links(fabric: Fabric) -> tuple[str, ...]:
    """Links slower than most of their siblings.

    Siblings are the links of one switch to nodes of one level; a level is the distance to the
    nearest host, so the links of hosts and each tier above them are judged by themselves.
    """
    levels = _find_levels(fabric)
    siblings: dict[tuple[int, int], list[Link]] = {}
    for link in fabric.links:
        for near, far in ((link.a.node, link.b.node), (link.b.node, link.a.node)):
            if levels[near]:
                siblings.setdefault((near, levels[far]), []).append(link)
    findings: dict[Link, str] = {}
    for (switch, _), links in siblings.items():
        for link in links:
            faster = [other.rate_name for other in links if other.rate_bps > link.rate_bps]
            if 2 * len(faster) > len(links) - 1:
                findings[link] = (
                    f"{fabric.describe_link(link)} runs at {link.rate_name}, slower than "
                    f"{len(faster)} of its {len(links) - 1} siblings on {fabric.nodes[switch].name}"
                )
    return tuple(findings.values())


def _find_levels(fabric: Fabric) -> list[int]:
    """Distance of each node to the nearest host."""
    levels = [0 if node.kind == "host" else -1 for node in fabric.nodes]
    frontier = list(fabric.hosts)
    while frontier:
        node = frontier.pop(0)
        for peer in fabric.neighbors(node).values():
            if levels[peer.node] < 0:
                levels[peer.node] = levels[node] + 1
                frontier.append(peer.node)
    return levels


Bools = NDArray[np.bool_]

# Destinations handled at once: bounds memory at (linked ports × this) bytes.
_BATCH = 2048


@dataclass(frozen=True, slots=True)
class _Channels:
    """Channels from switch to switch, in the order of their sending ports."""

    senders: list[Port]
    out_of: dict[int, list[int]]  # node -> channels it sends into
    into: dict[int, list[int]]  # node -> channels it receives from


def find_cycle(fabric: Fabric) -> list[Port] | None:
    """Channels of a dependency cycle, each waiting for the next and the last for the first."""
    if fabric.routes is None:
        raise InputError(f"fabric {fabric.name}", "has no routes", "route it or read its LFTs")
    channels = _list_channels(fabric)
    waits_for = _dependencies(fabric, fabric.routes, channels)
    cycle = _find_cycle(waits_for)
    return None if cycle is None else [channels.senders[c] for c in cycle]


def describe_cycle(fabric: Fabric, cycle: Sequence[Port]) -> str:
    """The cycle as a sentence."""
    hops = [f"{fabric.nodes[c.node].name} port {c.port}" for c in cycle]
    ends = [fabric.nodes[fabric.neighbors(c.node)[c.port].node].name for c in cycle]
    chain = ", ".join(f"{hop} to {end}" for hop, end in zip(hops, ends, strict=True))
    return (
        f"{len(cycle)} channels wait for each other in a cycle: {chain}, and again {hops[0]}; "
        "on one lane, full buffers can deadlock here"
    )


def _list_channels(fabric: Fabric) -> _Channels:
    kinds = [node.kind for node in fabric.nodes]
    channels = _Channels([], {s: [] for s in fabric.switches}, {s: [] for s in fabric.switches})
    for switch in fabric.switches:
        for port, peer in fabric.neighbors(switch).items():
            if kinds[peer.node] == "switch":
                channels.out_of[switch].append(len(channels.senders))
                channels.into[peer.node].append(len(channels.senders))
                channels.senders.append(Port(switch, port))
    return channels


def _dependencies(fabric: Fabric, routes: Routes, channels: _Channels) -> list[list[int]]:
    """For each channel, the channels that its packets need next."""
    waits_for: list[set[int]] = [set() for _ in channels.senders]
    for batch in _batches(len(fabric.hosts)):
        carries = _trace_traffic(fabric, routes, channels, batch)
        for switch in fabric.switches:
            inward, outward = channels.into[switch], channels.out_of[switch]
            # Entry (c, e) counts the destinations whose packets arrive on c and leave on e.
            both = carries[inward].astype(np.float32) @ carries[outward].astype(np.float32).T
            for c, e in np.argwhere(both > 0):
                waits_for[inward[c]].add(outward[e])
    return [sorted(successors) for successors in waits_for]


def _batches(hosts: int) -> Iterator[slice]:
    return (slice(first, min(first + _BATCH, hosts)) for first in range(0, hosts, _BATCH))


def _trace_traffic(fabric: Fabric, routes: Routes, channels: _Channels, batch: slice) -> Bools:
    """[channel, destination]: whether packets of some host to the destination take it."""
    offered = _mark_routes(fabric, routes, channels, batch)
    present = _mark_sources(fabric, batch)
    carries = np.zeros_like(offered)
    pending = dict.fromkeys(fabric.switches)
    while pending:
        switch = next(iter(pending))
        del pending[switch]
        for channel in channels.out_of[switch]:
            carries[channel] = offered[channel] & present[fabric.ordinal[switch]]
            peer = fabric.neighbors(switch)[channels.senders[channel].port].node
            row = fabric.ordinal[peer]
            if (carries[channel] & ~present[row]).any():
                present[row] |= carries[channel]
                pending[peer] = None
    return carries


def _mark_routes(fabric: Fabric, routes: Routes, channels: _Channels, batch: slice) -> Bools:
    """[channel, destination]: whether the routes name the channel for the destination."""
    ports = max((node.ports for node in fabric.nodes), default=0)
    member = np.zeros((ports + 1, len(routes.groups) + 1), dtype=bool)
    for index, group in enumerate(routes.groups):
        member[list(group), index] = True
    rows = [
        member[sender.port][routes.next_hop[fabric.ordinal[sender.node], batch]]
        for sender in channels.senders
    ]
    return np.array(rows, dtype=bool).reshape(len(rows), batch.stop - batch.start)


def _mark_sources(fabric: Fabric, batch: slice) -> Bools:
    """[switch, destination]: whether a host of the switch sends to the destination."""
    senders = np.zeros(len(fabric.switches), dtype=np.int32)
    only_itself = np.zeros((len(fabric.switches), batch.stop - batch.start), dtype=np.int32)
    for column, host in enumerate(fabric.hosts):
        peer = next(iter(fabric.neighbors(host).values())).node
        if fabric.nodes[peer].kind == "switch":
            senders[fabric.ordinal[peer]] += 1
            if batch.start <= column < batch.stop:
                only_itself[fabric.ordinal[peer], column - batch.start] = 1
    return senders[:, np.newaxis] > only_itself


def _find_cycle(waits_for: list[list[int]]) -> list[int] | None:
    """A cycle of the graph: remove channels that wait for nothing, then walk in the rest."""
    waiting = [len(successors) for successors in waits_for]
    waited_by: list[list[int]] = [[] for _ in waits_for]
    for channel, successors in enumerate(waits_for):
        for successor in successors:
            waited_by[successor].append(channel)
    free = [channel for channel, count in enumerate(waiting) if count == 0]
    while free:
        for channel in waited_by[free.pop()]:
            waiting[channel] -= 1
            if waiting[channel] == 0:
                free.append(channel)
    stuck = [channel for channel, count in enumerate(waiting) if count > 0]
    return _walk_cycle(waits_for, waiting, stuck[0]) if stuck else None


def _walk_cycle(waits_for: list[list[int]], waiting: list[int], start: int) -> list[int]:
    """Follow waiting channels until one repeats."""
    place: dict[int, int] = {}
    channel = start
    while channel not in place:
        place[channel] = len(place)
        channel = next(successor for successor in waits_for[channel] if waiting[successor] > 0)
    return list(place)[place[channel] :]
