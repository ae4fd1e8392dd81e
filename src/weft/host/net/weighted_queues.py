"""Weighted queues at a port: HTB classes that share a link by weight, selected by DSCP.

Each queue is a class with rate = weight x link and ceil = link: a busy port is shared by the
weights, and queues may use what others leave. A capped queue has ceil = rate, one with a priority
is promised next to nothing and comes before those of a higher number. The queue that lists DSCP 0
also takes unlisted DSCPs. Entry points: `set_queues`, `change_queues`, `read_queues`,
`open_counters`, inside a block of `weft.host.net.caps.change_ends`, which restores the port.
Units: bits per second, bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from weft.errors import InputError
from weft.host.net import htb, link_ends, qdisc
from weft.host.net.htb import HtbTree, KernelTree
from weft.host.net.link_ends import LinkEnd, SavedEnd
from weft.host.net.qdisc import Counters, HtbClass
from weft.host.net.rtnetlink import Rtnetlink
from weft.host.testbed.wiring import LIMIT_BYTES, MIN_RATE_BPS

MAX_QUEUES = 64  # one for each DSCP
PRIORITIES = 8  # of HTB


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue's weight against the others', and its DSCPs.

    `is_capped`: it never has more than its weight. With a `priority` it has what those of lower
    numbers leave, however large its weight.
    """

    weight: float
    dscps: tuple[int, ...]
    is_capped: bool = False
    priority: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortQueue:
    """A queue in the kernel."""

    share: float
    rate_bps: int
    ceil_bps: int
    dscps: tuple[int, ...]
    count: Counters


def set_queues(port: SavedEnd, wanted: Sequence[Queue], *, rate_bps: int | None = None) -> None:
    """Gives a port these queues; the default rate is that of its saved token bucket."""
    link_bps = _find_link_rate(port, rate_bps)
    _check_queues(wanted, str(port.end))
    tree = HtbTree(
        link_bps=link_bps,
        queues=_build_classes(link_bps, wanted),
        queue_of={dscp: n for n, queue in enumerate(wanted) for dscp in queue.dscps},
    )
    messages = htb.pack_under_root(port.index, tree, LIMIT_BYTES)
    link_ends.set_root(port, "htb", htb.pack_root_options(tree), htb.MAJOR, *messages)


def change_queues(port: SavedEnd, wanted: Sequence[Queue]) -> None:
    """Changes weights, caps and priorities of existing queues; waiting packets stay."""
    _check_queues(wanted, str(port.end))
    with Rtnetlink(port.end.namespace) as link:
        root = link_ends.read_root(link, port.end, port.index)
        count = len(_list_queue_classes(htb.read_tree(link, port.index, root)))
        if len(wanted) != count:
            problem = f"has {count} queues, not {len(wanted)}"
            raise InputError(str(port.end), problem, "give as many")
        link_bps = _find_link_rate(port, None)
        classes = [htb.build_link_class(link_bps), *_build_classes(link_bps, wanted)]
        link.request(htb.pack_classes(port.index, classes), str(port.end))


def read_queues(end: LinkEnd) -> list[PortQueue]:
    """The queues of a port; empty if there are none."""
    with Rtnetlink(end.namespace) as link:
        index = link.find_index(end.interface)
        root = link_ends.read_root(link, end, index)
        if root.kind != "htb":
            return []
        tree = htb.read_tree(link, index, root)
    classes = _list_queue_classes(tree)
    total = sum(queue.rate_bps for queue in classes)
    return [
        PortQueue(
            share=queue.rate_bps / total,
            rate_bps=queue.rate_bps,
            ceil_bps=queue.ceil_bps,
            dscps=tree.dscps_of(queue.classid),
            count=tree.counts[queue.classid],
        )
        for queue in classes
    ]


@contextmanager
def open_counters(ports: Sequence[SavedEnd]) -> Iterator[Callable[[], list[list[int]]]]:
    """A function that reads the bytes that have passed each queue of each port."""
    with ExitStack() as stack:
        links = [stack.enter_context(Rtnetlink(port.end.namespace)) for port in ports]

        def read() -> list[list[int]]:
            rows = []
            for link, port in zip(links, ports, strict=True):
                classes = sorted(qdisc.read_classes(link, port.index).items())
                rows.append([count.bytes for key, (_, count) in classes if key != htb.LINK])
            return rows

        yield read


def _list_queue_classes(tree: KernelTree) -> list[HtbClass]:
    return [htb_class for classid, htb_class in sorted(tree.classes.items()) if classid != htb.LINK]


def _find_link_rate(port: SavedEnd, rate_bps: int | None) -> int:
    if rate_bps is not None:
        return rate_bps
    if port.bucket is None:
        problem = "has no token bucket, so its rate is not known"
        raise InputError(str(port.end), problem, "give the port's rate")
    return port.bucket.rate_bps


def _build_classes(link_bps: int, wanted: Sequence[Queue]) -> tuple[HtbClass, ...]:
    total = sum(queue.weight for queue in wanted)
    return tuple(
        _build_class(n, queue, queue.weight / total, link_bps) for n, queue in enumerate(wanted)
    )


def _build_class(number: int, queue: Queue, share: float, link_bps: int) -> HtbClass:
    promised = share if queue.priority is None else 0.0
    rate_bps = max(round(promised * link_bps), MIN_RATE_BPS)
    return htb.build_queue_class(
        number,
        rate_bps=rate_bps,
        ceil_bps=rate_bps if queue.is_capped else link_bps,
        quantum_bytes=htb.choose_quantum_bytes(share),
        priority=queue.priority or 0,
    )


def _check_queues(wanted: Sequence[Queue], where: str) -> None:
    if not 1 <= len(wanted) <= MAX_QUEUES:
        problem = f"{len(wanted)} queues"
        raise InputError(where, problem, f"use 1 to {MAX_QUEUES}")
    dscps = [dscp for queue in wanted for dscp in queue.dscps]
    invalid = [dscp for dscp in dscps if not 0 <= dscp <= 63]
    if invalid:
        raise InputError(where, f"DSCP {invalid[0]} is not in 0 to 63", "use one that is")
    repeated = [dscp for dscp in dscps if dscps.count(dscp) > 1]
    if repeated:
        raise InputError(where, f"DSCP {repeated[0]} is listed twice", "give it to one queue")
    invalid_weights = [queue.weight for queue in wanted if not 0 < queue.weight < 1e9]
    if invalid_weights:
        raise InputError(where, f"a weight of {invalid_weights[0]:g}", "weights are above 0")
    wrong = [p for queue in wanted if (p := queue.priority) and not 0 <= p < PRIORITIES]
    if wrong:
        problem = f"priority {wrong[0]} is not in 0 to {PRIORITIES - 1}"
        raise InputError(where, problem, "use one that is")
    if 0 not in dscps:
        raise InputError(where, "no queue takes unmarked packets", "list DSCP 0 in one queue")
