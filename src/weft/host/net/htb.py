"""An HTB tree at a port as one value: build, change in place, read back, compare.

Under the root is one class for the link, and under that a class for each queue. Filters send
packets to their queue by DSCP; a last filter takes the rest. A change modifies classes and filters
in place: no waiting packet is lost, and a filter always leads to its old class or its new one. If
only weights change, one batch is enough. If filters change, the queues that gain traffic come
first, then the filters, then the unused queues. A change also adds what someone has removed, and
removes what someone has added. Entry points: `HtbTree`, `pack_under_root`, `pack_changes`,
`read_tree`, `describe_difference`. Units: bits per second, bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.host.net import qdisc
from weft.host.net.qdisc import ADD, CHANGE, REST, Counters, Filter, HtbClass, Match, Qdisc
from weft.host.net.rtnetlink import CREATE, REPLACE, Message, Rtnetlink
from weft.host.testbed import wiring

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
