"""Weighted queues at a port, by HTB: classes that share a link by weight, selected by DSCP.

**The tree** at a port is one value: build, change in place, read back, compare. Under the root is
one class for the link, and under that a class for each queue. Filters send packets to their queue
by DSCP; a last filter takes the rest. A change modifies classes and filters in place: no waiting
packet is lost, and a filter always leads to its old class or its new one. If only weights change,
one batch is enough. If filters change, the queues that gain traffic come first, then the filters,
then the unused queues. A change also adds what someone has removed, and removes what someone has
added.

**A queue** is a class with rate = weight x link and ceil = link: a busy port is shared by the
weights, and queues may use what others leave. A capped queue has ceil = rate, one with a priority
is promised next to nothing and comes before those of a higher number. The queue that lists DSCP 0
also takes unlisted DSCPs.
Entry points: `HtbTree`, `pack_under_root`, `pack_changes`, `read_tree`, `describe_difference`;
`set_queues`, `change_queues`, `read_queues`, `open_counters`, inside a block of
`weft.host.net.caps.change_ends`, which restores the port. Units: bits per second, bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from weft.errors import InputError
from weft.host.net import link_ends, qdisc
from weft.host.net.link_ends import LinkEnd, SavedEnd
from weft.host.net.qdisc import ADD, CHANGE, REST, Counters, Filter, HtbClass, Match, Qdisc
from weft.host.net.rtnetlink import CREATE, REPLACE, Message, Rtnetlink
from weft.host.testbed import wiring
from weft.host.testbed.wiring import LIMIT_BYTES, MIN_RATE_BPS

# ---- The tree ---------------------------------------------------------------------------------

# Identifies our root: people write 1: or so, the kernel 8001: and up.
MAJOR = 0x77650000
LINK = MAJOR | 1
# HTB serves `quantum` bytes per turn: 100 % is ten full segments of 64 KiB.
_FULL_QUANTUM_BYTES = 655_400
_MIN_QUANTUM_BYTES = 1514
_LINK_QUANTUM_BYTES = 200_000
_FIRST_QUEUE = MAJOR | 0x10


@dataclass(frozen=True, slots=True, kw_only=True)
class HtbTree:
    """`queues` by number; `queue_of` by DSCP, where 0 also stands for unlisted DSCPs."""

    link_bps: int
    queues: tuple[HtbClass, ...]
    queue_of: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTree:
    """The tree in the kernel; `default` is the class of packets that no filter matches."""

    classes: Mapping[int, HtbClass]
    counts: Mapping[int, Counters]
    filters: Mapping[Match, Filter]
    default: int

    def class_of(self, dscp: int) -> int:
        """The class of packets with this DSCP."""
        rest = self.filters[REST].classid if REST in self.filters else self.default
        ipv4, _ = qdisc.match_dscp(dscp)
        return self.filters[ipv4].classid if ipv4 in self.filters else rest

    def dscps_of(self, classid: int) -> tuple[int, ...]:
        """DSCPs with a filter to the class, and 0 if it takes the rest."""
        listed = [dscp for dscp in range(1, 64) if qdisc.match_dscp(dscp)[0] in self.filters]
        return tuple(dscp for dscp in (0, *listed) if self.class_of(dscp) == classid)


def build_classid(queue: int) -> int:
    return _FIRST_QUEUE + queue


def build_queue_class(
    queue: int,
    *,
    rate_bps: int,
    ceil_bps: int,
    quantum_bytes: int,
    burst_bytes: int | None = None,
    priority: int = 0,
) -> HtbClass:
    if burst_bytes is None:
        burst_bytes = _choose_burst_bytes(rate_bps, ceil_bps)
    return HtbClass(
        classid=build_classid(queue),
        parent=LINK,
        rate_bps=rate_bps,
        ceil_bps=ceil_bps,
        quantum_bytes=quantum_bytes,
        burst_bytes=burst_bytes,
        priority=priority,
    )


def _choose_burst_bytes(rate_bps: int, link_bps: int) -> int:
    """As long in time as the link's burst: a late timer costs all queues of a port alike."""
    return max(round(wiring.choose_burst_bytes(link_bps) * rate_bps / link_bps), 1)


def choose_quantum_bytes(share: float) -> int:
    """How much a queue with this share of the link sends per turn of spare bandwidth."""
    return max(round(share * _FULL_QUANTUM_BYTES), _MIN_QUANTUM_BYTES)


# ---- Requests ---------------------------------------------------------------------------------


def pack_root_options(tree: HtbTree) -> bytes:
    return qdisc.pack_htb(build_classid(tree.queue_of[0]) & 0xFFFF)


def pack_root(index: int, tree: HtbTree) -> Message:
    """Replaces the port's root by HTB in one exchange; the old root must not be HTB."""
    flags = CREATE | REPLACE
    return qdisc.pack_qdisc(index, "htb", pack_root_options(tree), handle=MAJOR, flags=flags)


def pack_under_root(index: int, tree: HtbTree, limit_bytes: int) -> list[Message]:
    """Everything under a new root; each queue holds `limit_bytes`."""
    nothing = KernelTree(classes={}, counts={}, filters={}, default=0)
    return [
        message for batch in pack_changes(index, tree, nothing, limit_bytes) for message in batch
    ]


def pack_changes(
    index: int, tree: HtbTree, current: KernelTree, limit_bytes: int
) -> list[list[Message]]:
    """Batches that turn the kernel's tree into this one; stop at the first refused batch."""
    used = {build_classid(queue) for queue in tree.queue_of.values()} | {LINK}
    first: list[Message] = []
    last: list[Message] = []
    for htb_class in _list_classes(tree).values():
        messages = _pack_class_changes(
            index, htb_class, current.classes.get(htb_class.classid), limit_bytes
        )
        (first if htb_class.classid in used else last).extend(messages)
    foreign = sorted(current.classes.keys() - _list_classes(tree).keys(), reverse=True)
    last += [qdisc.pack_class_deletion(index, htb_class) for htb_class in foreign]
    moves = _pack_filter_changes(index, tree, current)
    batches = [first, moves, last] if moves else [[*first, *last]]
    return [batch for batch in batches if batch]


def _pack_class_changes(
    index: int, wanted: HtbClass, current: HtbClass | None, limit_bytes: int
) -> list[Message]:
    if current is not None:
        return [] if current == qdisc.round_class(wanted) else pack_classes(index, [wanted])
    new = qdisc.pack_class(index, wanted, flags=ADD)
    fifo = qdisc.pack_fifo(limit_bytes)
    queue = qdisc.pack_qdisc(index, "bfifo", fifo, handle=0, flags=ADD, parent=wanted.classid)
    return [new] if wanted.classid == LINK else [new, queue]


def _pack_filter_changes(index: int, tree: HtbTree, tree_now: KernelTree) -> list[Message]:
    current = tree_now.filters
    messages: list[Message] = []
    for match, to in _list_filters(tree).items():
        if match not in current or current[match].classid != to:
            handle = current[match].handle if match in current else 0
            messages.append(qdisc.pack_filter(index, match, to, handle=handle))
    foreign = [current[match] for match in current.keys() - _list_filters(tree).keys()]
    return [*messages, *map(qdisc.pack_filter_deletion, foreign)]


def pack_classes(index: int, classes: list[HtbClass]) -> list[Message]:
    return [qdisc.pack_class(index, htb_class, flags=CHANGE) for htb_class in classes]


def build_link_class(link_bps: int) -> HtbClass:
    return HtbClass(
        classid=LINK,
        parent=MAJOR,
        rate_bps=link_bps,
        ceil_bps=link_bps,
        quantum_bytes=_LINK_QUANTUM_BYTES,
        burst_bytes=wiring.choose_burst_bytes(link_bps),
    )


def _list_classes(tree: HtbTree) -> dict[int, HtbClass]:
    return {
        htb_class.classid: htb_class
        for htb_class in (build_link_class(tree.link_bps), *tree.queues)
    }


def _list_filters(tree: HtbTree) -> dict[Match, int]:
    marked = {
        match: build_classid(queue)
        for dscp, queue in tree.queue_of.items()
        if dscp
        for match in qdisc.match_dscp(dscp)
    }
    return {**marked, REST: build_classid(tree.queue_of[0])}


# ---- Read back --------------------------------------------------------------------------------


def read_tree(link: Rtnetlink, index: int, root: Qdisc) -> KernelTree:
    """What is under an HTB root."""
    classes = qdisc.read_classes(link, index)
    return KernelTree(
        classes={key: htb_class for key, (htb_class, _) in classes.items()},
        counts={key: count for key, (_, count) in classes.items()},
        filters=qdisc.read_filters(link, index, root.handle),
        default=root.handle | qdisc.unpack_htb_default(root.options),
    )


def is_changeable(current: KernelTree, tree: HtbTree) -> bool:
    """Whether the link's class exists and no class has another parent: then change in place."""
    wanted = {key: qdisc.round_class(htb_class) for key, htb_class in _list_classes(tree).items()}
    misplaced = [
        key
        for key in wanted.keys() & current.classes.keys()
        if current.classes[key].parent != wanted[key].parent
    ]
    return LINK in current.classes and not misplaced


def describe_difference(current: KernelTree, tree: HtbTree) -> str | None:
    """How the kernel's tree differs from the wanted one; None if it does not."""
    for kind, has, wants in (
        ("classes", current.classes.keys(), _list_classes(tree).keys()),
        ("filters", current.filters.keys(), _list_filters(tree).keys()),
    ):
        if has != wants:
            return f"{len(wants - has)} {kind} are missing, {len(has - wants)} are not weft's"
    for key, htb_class in _list_classes(tree).items():
        if (
            difference := _describe_class_difference(
                current.classes[key], qdisc.round_class(htb_class)
            )
        ) is not None:
            return f"class {qdisc.format_handle(key)}: {difference}"
    for match, to in _list_filters(tree).items():
        if current.filters[match].classid != to:
            leads = qdisc.format_handle(current.filters[match].classid)
            return f"filter {match.value:08x} leads to {leads}, not {qdisc.format_handle(to)}"
    return None


def _describe_class_difference(has: HtbClass, wants: HtbClass) -> str | None:
    for field in HtbClass.__slots__:
        if getattr(has, field) != getattr(wants, field):
            return f"{field} is {getattr(has, field)}, not {getattr(wants, field)}"
    return None


# ---- Queues -----------------------------------------------------------------------------------

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
    messages = pack_under_root(port.index, tree, LIMIT_BYTES)
    link_ends.set_root(port, "htb", pack_root_options(tree), MAJOR, *messages)


def change_queues(port: SavedEnd, wanted: Sequence[Queue]) -> None:
    """Changes weights, caps and priorities of existing queues; waiting packets stay."""
    _check_queues(wanted, str(port.end))
    with Rtnetlink(port.end.namespace) as link:
        root = link_ends.read_root(link, port.end, port.index)
        count = len(_list_queue_classes(read_tree(link, port.index, root)))
        if len(wanted) != count:
            problem = f"has {count} queues, not {len(wanted)}"
            raise InputError(str(port.end), problem, "give as many")
        link_bps = _find_link_rate(port, None)
        classes = [build_link_class(link_bps), *_build_classes(link_bps, wanted)]
        link.request(pack_classes(port.index, classes), str(port.end))


def read_queues(end: LinkEnd) -> list[PortQueue]:
    """The queues of a port; empty if there are none."""
    with Rtnetlink(end.namespace) as link:
        index = link.find_index(end.interface)
        root = link_ends.read_root(link, end, index)
        if root.kind != "htb":
            return []
        tree = read_tree(link, index, root)
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
                rows.append([count.bytes for key, (_, count) in classes if key != LINK])
            return rows

        yield read


def _list_queue_classes(tree: KernelTree) -> list[HtbClass]:
    return [htb_class for classid, htb_class in sorted(tree.classes.items()) if classid != LINK]


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
    return build_queue_class(
        number,
        rate_bps=rate_bps,
        ceil_bps=rate_bps if queue.is_capped else link_bps,
        quantum_bytes=choose_quantum_bytes(share),
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
