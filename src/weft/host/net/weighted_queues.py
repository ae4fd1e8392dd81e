"""Weighted queues at a port: HTB classes that share a link by weight, told apart by DSCP.

Each queue is a class with rate = weight x link and ceil = link: a port that is busy is shared by
the weights, and what a queue leaves is lent to the others. The queue that lists DSCP 0 also takes
every packet whose DSCP no queue lists. Entry points: `set_queues`, `queues`, `set_weights`,
inside a block of `weft.host.net.caps.change_ends`, which puts back what was there.
Units: bits per second, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import InputError
from weft.host.net import htb, link_ends
from weft.host.net.htb import HtbTree, KernelTree
from weft.host.net.link_ends import LinkEnd, SavedEnd
from weft.host.net.qdisc import Counters, HtbClass
from weft.host.net.rtnetlink import Rtnetlink
from weft.host.testbed.wiring import LIMIT_BYTES, MIN_RATE_BPS

MOST_QUEUES = 64  # one for each DSCP


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
    count: Counters


def set_queues(
    port: SavedEnd,
    wanted: Sequence[Queue],
    *,
    rate_bps: int | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> None:
    """Gives a port these queues; without a rate, that of the token bucket it had."""
    link_bps = _link_bps(port, rate_bps)
    _check(wanted, str(port.end))
    tree = HtbTree(
        link_bps=link_bps,
        queues=_classes(link_bps, [queue.weight for queue in wanted]),
        queue_of={dscp: n for n, queue in enumerate(wanted) for dscp in queue.dscps},
    )
    messages = htb.pack_under_root(port.index, tree, limit_bytes)
    link_ends.set_root(port, "htb", htb.pack_root_options(tree), htb.MAJOR, *messages)


def set_weights(port: SavedEnd, weights: Sequence[float], *, rate_bps: int | None = None) -> None:
    """Changes the weights of queues that are there; packets that wait stay."""
    with Rtnetlink(port.end.namespace) as link:
        root = link_ends.read_root(link, port.end, port.index)
        there = len(_queue_classes(htb.read_tree(link, port.index, root)))
        if len(weights) != there:
            problem = f"has {there} queues, not {len(weights)}"
            raise InputError(str(port.end), problem, "give a weight for each")
        link_bps = _link_bps(port, rate_bps)
        classes = [htb.build_link_class(link_bps), *_classes(link_bps, weights)]
        link.request(htb.pack_classes(port.index, classes), str(port.end))


def read_queues(end: LinkEnd) -> list[PortQueue]:
    """Reads back the queues of a port; empty where there are none."""
    with Rtnetlink(end.namespace) as link:
        index = link.index(end.interface)
        root = link_ends.read_root(link, end, index)
        if root.kind != "htb":
            return []
        found = htb.read_tree(link, index, root)
    classes = _queue_classes(found)
    total = sum(one.rate_bps for one in classes)
    return [
        PortQueue(
            share=one.rate_bps / total,
            rate_bps=one.rate_bps,
            ceil_bps=one.ceil_bps,
            dscps=found.dscps_of(one.classid),
            count=found.counts[one.classid],
        )
        for one in classes
    ]


def _queue_classes(found: KernelTree) -> list[HtbClass]:
    return [one for classid, one in sorted(found.classes.items()) if classid != htb.LINK]


def _link_bps(port: SavedEnd, rate_bps: int | None) -> int:
    if rate_bps is not None:
        return rate_bps
    if port.bucket is None:
        problem = "has no token bucket, so its rate is not known"
        raise InputError(str(port.end), problem, "give the port's rate")
    return port.bucket.rate_bps


def _classes(link_bps: int, weights: Sequence[float]) -> tuple[HtbClass, ...]:
    shares = [weight / sum(weights) for weight in weights]
    return tuple(
        htb.build_queue_class(
            n,
            rate_bps=max(round(share * link_bps), MIN_RATE_BPS),
            ceil_bps=link_bps,
            quantum_bytes=htb.choose_quantum_bytes(share),
        )
        for n, share in enumerate(shares)
    )


def _check(wanted: Sequence[Queue], where: str) -> None:
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
