"""Weighted queues at a port: HTB classes that share a link by weight, told apart by DSCP.

Each queue is a class with rate = weight x link and ceil = link: a port that is busy is shared by
the weights, and what a queue leaves is lent to the others. The queue that lists DSCP 0 also takes
every packet whose DSCP no queue lists. Entry points: `set_queues`, `queues`, `set_weights`,
inside a block of `weft.host.caps.changing`, which puts back what was there.
Units: bits per second, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import InputError
from weft.host import ends, qdisc
from weft.host.ends import End, Saved
from weft.host.qdisc import ADD, CHANGE, Count, HtbClass
from weft.host.rtnetlink import Message, Rtnetlink
from weft.host.wiring import LEAST_RATE_BPS, LIMIT_BYTES

MOST_QUEUES = 64  # one for each DSCP
_MAJOR = 0x10000
_ALL = _MAJOR | 1
_FIRST = _MAJOR | 0x10
_BURST_BYTES = 15_000
# HTB serves quantum bytes of a class in turn: 100 % is ten full segments of 64 KiB.
_QUANTUM_BYTES_PER_PERCENT = 6554
_LEAST_QUANTUM_BYTES = 1514


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Its share of the port against the other queues' weights, and the DSCPs that it takes."""

    weight: float
    dscps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortQueue:
    """A queue as the kernel has it."""

    share: float
    rate_bps: int
    ceil_bps: int
    dscps: tuple[int, ...]
    count: Count


def set_queues(
    port: Saved, wanted: Sequence[Queue], *, rate_bps: int | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> None:  # fmt: skip
    """Gives a port these queues; without a rate, that of the token bucket it had."""
    link_bps = _link_bps(port, rate_bps)
    default = _check(wanted, str(port.end))
    messages = _class_messages(port.index, link_bps, _weights(wanted), ADD)
    for n, queue in enumerate(wanted):
        fifo = qdisc.fifo_options(limit_bytes)
        messages.append(
            qdisc.qdisc_message(port.index, "bfifo", fifo, handle=0, flags=ADD, parent=_FIRST + n)
        )
        marks = [dscp for dscp in queue.dscps if dscp]
        messages += [qdisc.dscp_filter_message(port.index, d, _FIRST + n) for d in marks]
    options = qdisc.htb_options((_FIRST + default) & 0xFFFF)
    ends.set_root(port, "htb", options, _MAJOR, *messages)


def set_weights(port: Saved, weights: Sequence[float], *, rate_bps: int | None = None) -> None:
    """Changes the weights of queues that are there; packets that wait stay."""
    with Rtnetlink(port.end.namespace) as link:
        there = len(_queue_classes(link, port.index))
        if len(weights) != there:
            problem = f"has {there} queues, not {len(weights)}"
            raise InputError(str(port.end), problem, "give a weight for each")
        messages = _class_messages(port.index, _link_bps(port, rate_bps), weights, CHANGE)
        link.request(messages, str(port.end))


def queues(end: End) -> list[PortQueue]:
    """Reads back the queues of a port; empty where there are none."""
    with Rtnetlink(end.namespace) as link:
        index = link.index(end.interface)
        root = ends.root_of(link, end, index)
        if root.kind != "htb":
            return []
        found = _queue_classes(link, index)
        filters = qdisc.dscp_filters(link, index, _MAJOR)
    filters[0] = _MAJOR | qdisc.htb_default(root.options)
    total = sum(one.rate_bps for one, _ in found)
    return [
        PortQueue(
            share=one.rate_bps / total, rate_bps=one.rate_bps, ceil_bps=one.ceil_bps,
            dscps=tuple(sorted(d for d, to in filters.items() if to == one.classid)),
            count=count,
        )
        for one, count in found
    ]  # fmt: skip


def _queue_classes(link: Rtnetlink, index: int) -> list[tuple[HtbClass, Count]]:
    found = qdisc.classes(link, index)
    return [found[classid] for classid in sorted(found) if classid != _ALL]


def _link_bps(port: Saved, rate_bps: int | None) -> int:
    if rate_bps is not None:
        return rate_bps
    if port.bucket is None:
        problem = "has no token bucket, so its rate is not known"
        raise InputError(str(port.end), problem, "give the port's rate")
    return port.bucket.rate_bps


def _weights(wanted: Sequence[Queue]) -> list[float]:
    return [queue.weight for queue in wanted]


def _class_messages(
    index: int, link_bps: int, weights: Sequence[float], flags: int
) -> list[Message]:
    total = sum(weights)
    whole = HtbClass(
        classid=_ALL, parent=_MAJOR, rate_bps=link_bps, ceil_bps=link_bps,
        quantum_bytes=200_000, burst_bytes=_BURST_BYTES,
    )  # fmt: skip
    queues = [
        _queue_class(_FIRST + n, link_bps, weight / total) for n, weight in enumerate(weights)
    ]
    return [qdisc.class_message(index, one, flags=flags) for one in (whole, *queues)]


def _queue_class(classid: int, link_bps: int, share: float) -> HtbClass:
    quantum = round(100 * share * _QUANTUM_BYTES_PER_PERCENT)
    return HtbClass(
        classid=classid,
        parent=_ALL,
        rate_bps=max(round(share * link_bps), LEAST_RATE_BPS),
        ceil_bps=link_bps,
        quantum_bytes=max(quantum, _LEAST_QUANTUM_BYTES),
        burst_bytes=_BURST_BYTES,
    )


def _check(wanted: Sequence[Queue], where: str) -> int:
    """The number of the queue that takes everything else."""
    if not 1 <= len(wanted) <= MOST_QUEUES:
        problem = f"{len(wanted)} queues"
        raise InputError(where, problem, f"use 1 to {MOST_QUEUES}")
    dscps = [dscp for queue in wanted for dscp in queue.dscps]
    outside = [dscp for dscp in dscps if not 0 <= dscp <= 63]
    if outside:
        raise InputError(where, f"DSCP {outside[0]} is not in 0 to 63", "use one that is")
    twice = [dscp for dscp in dscps if dscps.count(dscp) > 1]
    if twice:
        raise InputError(where, f"DSCP {twice[0]} is listed twice", "give it to one queue")
    bad = [queue.weight for queue in wanted if not 0 < queue.weight < 1e9]
    if bad:
        raise InputError(where, f"a weight of {bad[0]:g}", "weights are above 0")
    if 0 not in dscps:
        raise InputError(where, "no queue takes unmarked packets", "list DSCP 0 in one queue")
    return next(n for n, queue in enumerate(wanted) if 0 in queue.dscps)
