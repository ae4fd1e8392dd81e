"""Collectives as operations: every rank's sends and receives, step by step.

In each step a rank sends at most one message and receives at most one. Both wait for the rank's
last receive before the step; in trees, whose ranks send to one child after another, also for its
last send. Data is cut into chunks of equal size, up to a byte.

Bus bandwidth is the data times `bus_factor`, over the time: what each rank's link has to carry at
least, so that the link's rate bounds it, whatever the algorithm.

Ranks of a traced program call collectives one by one. The n-th collective of a group is the same on
all its ranks; a rank enters and leaves it by marks, operations that take no time.
Entry points: `build_collective`, `CollectiveCalls`. Units: bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.simulate.workload.operations import ENDS, MAX_TAG, RECEIVE, SEND, Builder, Operations

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Who sends how much to whom; arrays are [step, rank], and -1 is nobody."""

    send_to: Ints
    receive_from: Ints
    send_bytes: Ints
    receive_bytes: Ints
    sends_follow: bool = False  # a send waits for the rank's last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a collective is to do: `size_bytes` is a rank's whole buffer."""

    ranks: int
    size_bytes: int
    group: int = 1  # hierarchical: ranks of a group

    def place_chunks(self, chunks: int) -> Ints:
        """Where each of so many chunks begins, and the end."""
        return np.arange(chunks + 1, dtype=np.int64) * self.size_bytes // chunks

    def size_chunks(self, chunks: int) -> Ints:
        return np.diff(self.place_chunks(chunks))


def build_collective(
    operation: str, algorithm: str, plan: Plan, *, repetitions: int = 1, place: str = "collective"
) -> Operations:
    """The operations of a collective, run so many times in a row."""
    _check_plan(operation, algorithm, plan, place)
    return _to_operations(plan.ranks, ALGORITHMS[operation][algorithm](plan), repetitions)


def _check_plan(operation: str, algorithm: str, plan: Plan, place: str) -> None:
    n, group = plan.ranks, plan.group
    if algorithm == "hierarchical" and (group < 2 or n % group or n == group):
        raise InputError(
            place,
            f"{n} ranks are not two or more groups of {group}",
            "use a group of 2 or more that divides the ranks",
        )
    if algorithm == "halving-doubling" and operation != "all-reduce" and n & (n - 1):
        raise InputError(place, f"{n} ranks are no power of two", "use a ring, or 2, 4, 8, … ranks")


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over the rate at which the buffer is done (as NCCL's tests define it)."""
    part = (ranks - 1) / ranks
    return {"all-reduce": 2 * part, "broadcast": 1.0, "reduce": 1.0}.get(operation, part)


def _to_operations(ranks: int, steps: Steps, repetitions: int) -> Operations:
    def by_rank(array: Ints) -> Ints:
        return np.tile(array, (repetitions, 1)).T

    peer = np.stack([by_rank(steps.send_to), by_rank(steps.receive_from)], axis=2)
    size = np.stack([by_rank(steps.send_bytes), by_rank(steps.receive_bytes)], axis=2)
    used = peer >= 0
    number = np.cumsum(used.ravel()).reshape(used.shape) - 1
    before = _find_last(used, number, RECEIVE)
    waits = [before, before]
    pairs = [waits]
    if steps.sends_follow:
        last_send = _find_last(used, number, SEND)
        pairs.append([last_send, np.full_like(last_send, -1)])
    waiting = np.stack([np.stack(pair, axis=2) for pair in pairs], axis=3)[used]
    starts = np.zeros(len(waiting) + 1, dtype=np.uint32)
    np.cumsum((waiting >= 0).sum(axis=1), out=starts[1:])
    dependency = waiting[waiting >= 0].astype(np.uint32)
    count = len(waiting)
    kinds = np.broadcast_to(np.array([SEND, RECEIVE], dtype=np.uint8), used.shape)
    rank_of = np.broadcast_to(np.arange(ranks, dtype=np.uint32)[:, None, None], used.shape)
    return Operations(
        ranks=ranks,
        kind=kinds[used],
        rank=rank_of[used],
        peer=peer[used].astype(np.uint32),
        tag=np.zeros(count, dtype=np.uint32),
        size_bytes=size[used],
        duration_ps=np.zeros(count, dtype=np.int64),
        cpu=np.zeros(count, dtype=np.uint8),
        dependency_start=starts,
        dependency=dependency,
        dependency_kind=np.full(len(dependency), ENDS, dtype=np.uint8),
    )


def _find_last(used: NDArray[np.bool_], number: Ints, kind: int) -> Ints:
    """The rank's last operation of this kind before each step, or -1."""
    last = np.maximum.accumulate(np.where(used[:, :, kind], number[:, :, kind], -1), axis=1)
    return np.concatenate([np.full((len(last), 1), -1), last[:, :-1]], axis=1)


def _join(parts: Sequence[Steps], *, sends_follow: bool = False) -> Steps:
    return Steps(
        np.concatenate([part.send_to for part in parts]),
        np.concatenate([part.receive_from for part in parts]),
        np.concatenate([part.send_bytes for part in parts]),
        np.concatenate([part.receive_bytes for part in parts]),
        sends_follow=sends_follow,
    )


# ---- Rings ------------------------------------------------------------------------------------


def _turn_ring(members: Ints, ranks: int, chunks: Ints, first: int) -> Steps:
    """Steps in which every chunk goes round rings, but for one link.

    `members[ring, position]` are ranks; in step k position i sends chunk i + first - k.
    """
    length = members.shape[1]
    step = np.arange(length - 1)[:, None, None]
    position = np.arange(length)[None, None, :]
    shape = (length - 1, *members.shape)
    sent = np.broadcast_to(chunks[(position + first - step) % length], shape)
    received = np.broadcast_to(chunks[(position - 1 + first - step) % length], shape)

    def by_rank(values: Ints) -> Ints:
        array = np.full((length - 1, ranks), -1, dtype=np.int64)
        array[:, members] = values
        return array

    return Steps(
        by_rank(np.broadcast_to(np.roll(members, -1, axis=1), shape)),
        by_rank(np.broadcast_to(np.roll(members, 1, axis=1), shape)),
        by_rank(sent),
        by_rank(received),
    )


def _all_ranks(plan: Plan) -> Ints:
    return np.arange(plan.ranks)[None, :]


def _ring_reduce_scatter(plan: Plan) -> Steps:
    return _turn_ring(_all_ranks(plan), plan.ranks, plan.size_chunks(plan.ranks), 0)


def _ring_all_gather(plan: Plan) -> Steps:
    return _turn_ring(_all_ranks(plan), plan.ranks, plan.size_chunks(plan.ranks), 0)


def _ring_all_reduce(plan: Plan) -> Steps:
    chunks = plan.size_chunks(plan.ranks)
    rings = _all_ranks(plan)
    return _join([_turn_ring(rings, plan.ranks, chunks, first) for first in (0, 1)])


def _hierarchical_all_reduce(plan: Plan) -> Steps:
    """Reduce-scatter within groups, all-reduce among equal positions, all-gather within groups."""
    within = np.arange(plan.ranks).reshape(-1, plan.group)
    across = within.T
    inner = plan.size_chunks(plan.group)
    outer = np.arange(len(within) + 1) * int(inner.max()) // len(within)
    parts = [_turn_ring(within, plan.ranks, inner, 0)]
    parts += [_turn_ring(across, plan.ranks, np.diff(outer), first) for first in (0, 1)]
    parts.append(_turn_ring(within, plan.ranks, inner, 1))
    return _join(parts)


def _ring_broadcast(plan: Plan) -> Steps:
    """A chain from rank 0; as many chunks as ranks follow each other."""
    n = plan.ranks
    chunks = plan.size_chunks(n)
    step, rank = np.arange(2 * n - 2)[:, None], np.arange(n)[None, :]
    sent, received = step - rank, step - rank + 1
    sends = (sent >= 0) & (sent < n) & (rank < n - 1)
    receives = (received >= 0) & (received < n) & (rank > 0)
    return Steps(
        np.where(sends, rank + 1, -1),
        np.where(receives, rank - 1, -1),
        np.where(sends, chunks[sent.clip(0, n - 1)], 0),
        np.where(receives, chunks[received.clip(0, n - 1)], 0),
    )


# ---- Trees ------------------------------------------------------------------------------------


def _binomial_levels(ranks: int) -> int:
    return (ranks - 1).bit_length()


def _tree(plan: Plan, sizes: Callable[[Ints, int], Ints], *, down: bool) -> Steps:
    """A binomial tree from or to rank 0: in level k, rank r < 2^k talks to r + 2^k.

    `sizes(child, level)` is what the edge to a child carries.
    """
    n, levels = plan.ranks, _binomial_levels(plan.ranks)
    shape = (levels, n)
    parent_side, child_side = np.full(shape, -1), np.full(shape, -1)
    parent_bytes, child_bytes = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for step, level in enumerate(range(levels) if down else reversed(range(levels))):
        parent = np.arange(min(2**level, n - 2**level))
        child = parent + 2**level
        parent_side[step, parent], child_side[step, child] = child, parent
        parent_bytes[step, parent] = child_bytes[step, child] = sizes(child, level)
    if down:
        return Steps(parent_side, child_side, parent_bytes, child_bytes, sends_follow=True)
    return Steps(child_side, parent_side, child_bytes, parent_bytes, sends_follow=True)


def _tree_broadcast(plan: Plan) -> Steps:
    return _tree(plan, lambda child, _: np.full(child.shape, plan.size_bytes), down=True)


def _tree_reduce(plan: Plan) -> Steps:
    return _tree(plan, lambda child, _: np.full(child.shape, plan.size_bytes), down=False)


def _tree_all_reduce(plan: Plan) -> Steps:
    return _join([_tree_reduce(plan), _tree_broadcast(plan)], sends_follow=True)


def _subtree_bytes(plan: Plan) -> Callable[[Ints, int], Ints]:
    """The chunks of a child's ranks: child, child + 2^(level + 1), ...."""

    def sizes(child: Ints, level: int) -> Ints:
        chunks = plan.size_chunks(plan.ranks)
        return np.array([chunks[c :: 2 ** (level + 1)].sum() for c in child.tolist()])

    return sizes


def _tree_scatter(plan: Plan) -> Steps:
    return _tree(plan, _subtree_bytes(plan), down=True)


def _tree_gather(plan: Plan) -> Steps:
    return _tree(plan, _subtree_bytes(plan), down=False)


# ---- Halving and doubling ---------------------------------------------------------------------


def _exchange_halves(plan: Plan, core: int, *, halving: bool) -> Steps:
    """Recursive halving, or doubling back, among the first `core` ranks, a power of two."""
    levels = core.bit_length() - 1
    bounds = plan.place_chunks(core)
    shape = (levels, plan.ranks)
    peers, sent, received = np.full(shape, -1), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    rank = np.arange(core)

    def sizes_of(member: Ints, width: int) -> Ints:
        first = member // width * width
        return bounds[first + width] - bounds[first]

    for step in range(levels):
        level = step if halving else levels - 1 - step
        width = core >> (level + 1)
        peer = rank ^ width
        mine, other = sizes_of(rank, width), sizes_of(peer, width)
        peers[step, :core] = peer
        sent[step, :core], received[step, :core] = (other, mine) if halving else (mine, other)
    return Steps(peers, peers, sent, received)


def _halving_reduce_scatter(plan: Plan) -> Steps:
    return _exchange_halves(plan, plan.ranks, halving=True)


def _doubling_all_gather(plan: Plan) -> Steps:
    return _exchange_halves(plan, plan.ranks, halving=False)


def _halving_doubling_all_reduce(plan: Plan) -> Steps:
    """Ranks above the largest power of two hand their data to a partner and get the result."""
    core = 2 ** (plan.ranks.bit_length() - 1)
    parts = [_exchange_halves(plan, core, halving=halving) for halving in (True, False)]
    if core < plan.ranks:
        fold = _fold(plan, core)
        back = Steps(fold.receive_from, fold.send_to, fold.receive_bytes, fold.send_bytes)
        parts = [fold, *parts, back]
    return _join(parts)


def _fold(plan: Plan, core: int) -> Steps:
    extra = np.arange(core, plan.ranks)
    to, source = np.full((1, plan.ranks), -1), np.full((1, plan.ranks), -1)
    to[0, extra], source[0, extra - core] = extra - core, extra
    return Steps(to, source, (to >= 0) * plan.size_bytes, (source >= 0) * plan.size_bytes)


# ---- All to all -------------------------------------------------------------------------------


def _pairwise_all_to_all(plan: Plan) -> Steps:
    """In step k every rank sends to the k-th rank after it."""
    n = plan.ranks
    step, rank = np.arange(1, n)[:, None], np.arange(n)[None, :]
    to, source = (rank + step) % n, (rank - step) % n
    blocks = plan.size_chunks(n)
    return Steps(to, source, blocks[to], np.broadcast_to(blocks[rank], to.shape).copy())


def _bruck_all_to_all(plan: Plan) -> Steps:
    """In step k every rank sends the blocks whose distance has bit k to the rank 2^k after it."""
    n = plan.ranks
    blocks, distance = plan.size_chunks(n), np.arange(n)
    rank = np.arange(n)
    to, source, sizes = [], [], []
    for bit in range(_binomial_levels(n)):
        to.append((rank + 2**bit) % n)
        source.append((rank - 2**bit) % n)
        sizes.append(np.full(n, int(blocks[distance >> bit & 1 == 1].sum())))
    size = np.array(sizes)
    return Steps(np.array(to), np.array(source), size, size)


def _dissemination_barrier(plan: Plan) -> Steps:
    n = plan.ranks
    rank = np.arange(n)
    bits = 2 ** np.arange(_binomial_levels(n))[:, None]
    ones = np.ones((len(bits), n), dtype=np.int64)
    return Steps((rank + bits) % n, (rank - bits) % n, ones, ones)


ALGORITHMS: dict[str, dict[str, Callable[[Plan], Steps]]] = {
    "all-reduce": {
        "ring": _ring_all_reduce,
        "tree": _tree_all_reduce,
        "halving-doubling": _halving_doubling_all_reduce,
        "hierarchical": _hierarchical_all_reduce,
    },
    "reduce-scatter": {"ring": _ring_reduce_scatter, "halving-doubling": _halving_reduce_scatter},
    "all-gather": {"ring": _ring_all_gather, "halving-doubling": _doubling_all_gather},
    "broadcast": {"tree": _tree_broadcast, "ring": _ring_broadcast},
    "reduce": {"tree": _tree_reduce},
    "scatter": {"tree": _tree_scatter},
    "gather": {"tree": _tree_gather},
    "all-to-all": {"pairwise": _pairwise_all_to_all, "bruck": _bruck_all_to_all},
    "barrier": {"dissemination": _dissemination_barrier},
}


# ---- Calls of ranks ---------------------------------------------------------------------------


FIRST_COLLECTIVE_TAG = 2**31  # messages of programs have lower tags


@dataclass(frozen=True, slots=True)
class Ends:
    """The first and the last operation of something."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Caller:
    rank: int
    ends: Ends
    place: str  # as errors name it


@dataclass(slots=True)
class _Collective:
    operation: str
    size_bytes: int
    root: int | None
    callers: list[_Caller] = field(default_factory=list)


@dataclass(slots=True)
class CollectiveCalls:
    """Collects calls of ranks; `add_operations` puts them into the builder."""

    builder: Builder
    mark_cpu: int
    _collectives: dict[tuple[str, int], _Collective] = field(default_factory=dict)
    _counts: dict[tuple[int, str], int] = field(default_factory=dict)

    def enter(
        self,
        rank: int,
        group: str,
        operation: str,
        size_bytes: int,
        place: str,
        root: int | None = None,
    ) -> Ends:
        """The marks of a rank's next collective in this group; a size of 0 is another rank's."""
        ends = Ends(
            self.builder.compute(rank, 0, cpu=self.mark_cpu),
            self.builder.compute(rank, 0, cpu=self.mark_cpu),
        )
        turn = self._counts[rank, group] = self._counts.get((rank, group), -1) + 1
        collective = self._collectives.setdefault(
            (group, turn), _Collective(operation, size_bytes, root)
        )
        agreed = 0 in (size_bytes, collective.size_bytes) or size_bytes == collective.size_bytes
        if collective.operation != operation or not agreed:
            raise InputError(
                place,
                f"is {operation} of {size_bytes} B, but rank {collective.callers[0].rank} has "
                f"{collective.operation} of {collective.size_bytes} B there",
                "ranks of a group must call the same collectives",
            )
        collective.size_bytes = max(size_bytes, collective.size_bytes)
        collective.callers.append(_Caller(rank, ends, place))
        return ends

    def add_operations(self) -> None:
        for tag, (key, collective) in enumerate(self._collectives.items(), FIRST_COLLECTIVE_TAG):
            self._check_callers(key, collective)
            self._add(collective, tag)

    def _check_callers(self, key: tuple[str, int], collective: _Collective) -> None:
        """Every rank of the group is in each of its collectives."""
        first = self._collectives[key[0], 0]
        present = {caller.rank for caller in collective.callers}
        if missing := {caller.rank for caller in first.callers} - present:
            raise InputError(
                collective.callers[0].place,
                f"rank {min(missing)} of group {key[0]!r} does not take part",
                "ranks of a group must call the same collectives",
            )

    def _add(self, collective: _Collective, tag: int) -> None:
        # Trees are rooted at their first rank.
        callers = sorted(collective.callers, key=lambda caller: caller.rank != collective.root)
        if tag > MAX_TAG:
            raise InputError(callers[0].place, "is one collective too many", "cut the trace")
        if len(callers) == 1:
            self.builder.require(callers[0].ends.last, callers[0].ends.first)
            return
        operations = build_collective(
            collective.operation,
            next(iter(ALGORITHMS[collective.operation])),
            Plan(ranks=len(callers), size_bytes=collective.size_bytes),
            place=callers[0].place,
        )
        last = self.builder.append(
            operations,
            [[caller.ends.first] for caller in callers],
            members=[caller.rank for caller in callers],
            tag=tag,
        )
        for caller, before in zip(callers, last, strict=True):
            for operation in before or [caller.ends.first]:
                self.builder.require(caller.ends.last, operation)
