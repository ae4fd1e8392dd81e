"""Find deadlocks that routes allow on one lane: cycles of channels that wait for each other.

A channel is one direction of a link, named by the port that sends into it. Channel c depends on
channel e when some packet arrives on c and leaves on e. Routing on a lossless lane is free of
deadlock if this graph has no cycle (Dally and Seitz). Only channels that some pair of hosts uses
count. Entry points: `find_cycle`, `describe_cycle`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.fabric.fabric import Fabric, Port, Routes

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
