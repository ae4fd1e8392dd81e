"""Operations of ranks that depend on each other: send, receive, compute.

`Operations` is flat arrays, rank by rank. An operation waits for the end, or only for the start, of
others of its rank. Messages of one source, destination and tag match receives in order. A `Builder`
takes operations one by one and in any order of ranks; `join_operations` puts workloads side by
side. `run_loggop` runs them over the LogGOP network: latency, overheads and gaps, no fabric.
Entry points: `Builder`, `Operations`, `run_loggop`. Units: ps, bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import _core
from weft._core import OperationArrays
from weft.errors import InputError

SEND, RECEIVE, COMPUTE = 0, 1, 2
ENDS, STARTS = 0, 1  # what of an operation another waits for
MAX_RANKS = 2**20
MAX_TAG = 2**32 - 2
MAX_CPU = 255


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operations:
    """The operations of `ranks` ranks, those of a rank side by side.

    Operation i waits for `dependency[dependency_start[i]:dependency_start[i + 1]]`.
    """

    ranks: int
    kind: NDArray[np.uint8]  # SEND, RECEIVE, COMPUTE
    rank: NDArray[np.uint32]
    peer: NDArray[np.uint32]  # of a message: the other rank
    tag: NDArray[np.uint32]
    size_bytes: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    cpu: NDArray[np.uint8]  # computations of one rank and cpu run one after another
    dependency_start: NDArray[np.uint32]
    dependency: NDArray[np.uint32]
    dependency_kind: NDArray[np.uint8]  # ENDS, STARTS

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def sends(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.kind == SEND)

    def to_core(self) -> OperationArrays:
        """The arrays as the core takes them."""
        return OperationArrays(
            ranks=self.ranks,
            kind=self.kind,
            rank=self.rank,
            peer=self.peer,
            tag=self.tag,
            amount=np.where(self.kind == COMPUTE, self.duration_ps, self.size_bytes),
            cpu=self.cpu,
            dependency_start=self.dependency_start,
            dependency=self.dependency,
            on_start=self.dependency_kind,
        )

    def describe(self, operation: int) -> str:
        """An operation in words, for errors and notes."""
        rank, kind = int(self.rank[operation]), int(self.kind[operation])
        if kind == COMPUTE:
            return f"rank {rank}: compute {int(self.duration_ps[operation]) / 1000:g} ns"
        verb, side = ("send", "to") if kind == SEND else ("receive", "from")
        return (
            f"rank {rank}: {verb} {int(self.size_bytes[operation])} B {side} rank "
            f"{int(self.peer[operation])} tag {int(self.tag[operation])}"
        )


def check_operations(operations: Operations, place: str) -> None:
    """Every rank exists, every message is received, and nothing waits for itself."""
    messages = operations.kind != COMPUTE
    outside = np.flatnonzero(messages & (operations.peer >= operations.ranks))
    if len(outside):
        raise InputError(
            place,
            f"{operations.describe(int(outside[0]))}: that rank does not exist",
            f"ranks are 0 to {operations.ranks - 1}",
        )
    core = operations.to_core()
    if (unmatched := core.find_unmatched()) is not None:
        source, destination, tag, sends, receives = unmatched
        raise InputError(
            place,
            f"rank {source} sends {sends} messages to rank {destination} with tag {tag}, "
            f"which receives {receives}",
            "give each send its receive",
        )
    if (cycle := core.find_cycle()) is not None:
        raise InputError(
            place,
            f"{operations.describe(cycle)}: waits for itself through its dependencies",
            "remove a dependency of the cycle",
        )


@dataclass(slots=True)
class Builder:
    """Collects operations one by one; `build` orders them by rank and keeps their order within."""

    ranks: int
    _rows: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    _pairs: list[tuple[int, int, int]] = field(default_factory=list)

    def send(
        self,
        rank: int,
        to: int,
        size_bytes: int,
        *,
        tag: int = 0,
        cpu: int = 0,
        after: Iterable[int] = (),
    ) -> int:
        """The number of a new send, by which later operations depend on it."""
        return self._add((SEND, rank, to, tag, size_bytes, 0, cpu), after)

    def receive(
        self,
        rank: int,
        source: int,
        size_bytes: int,
        *,
        tag: int = 0,
        cpu: int = 0,
        after: Iterable[int] = (),
    ) -> int:
        return self._add((RECEIVE, rank, source, tag, size_bytes, 0, cpu), after)

    def compute(
        self, rank: int, duration_ps: int, *, cpu: int = 0, after: Iterable[int] = ()
    ) -> int:
        return self._add((COMPUTE, rank, 0, 0, 0, duration_ps, cpu), after)

    def require(self, operation: int, before: int, kind: int = ENDS) -> None:
        """The operation waits for the end, or the start, of another of its rank."""
        self._pairs.append((operation, before, kind))

    def append(
        self,
        operations: Operations,
        after: Sequence[Iterable[int]],
        *,
        members: Sequence[int] | None = None,
        tag: int | None = None,
    ) -> list[list[int]]:
        """Add a workload whose rank i is members[i], or i; its first operations wait for after[i].

        `tag` replaces its tags. Returns each of its ranks' operations that no other waits for.
        """
        base = len(self._rows)
        ranks = np.arange(self.ranks) if members is None else np.array(members)
        tags = operations.tag if tag is None else np.full(len(operations), tag)
        columns = (
            operations.kind,
            ranks[operations.rank],
            ranks[operations.peer],
            tags,
            operations.size_bytes,
            operations.duration_ps,
            operations.cpu,
        )
        self._rows += zip(*(column.tolist() for column in columns), strict=True)
        counts = np.diff(operations.dependency_start)
        waiting = base + np.repeat(np.arange(len(operations)), counts)
        before = base + operations.dependency.astype(np.int64)
        self._pairs += zip(
            waiting.tolist(), before.tolist(), operations.dependency_kind.tolist(), strict=True
        )
        for operation in np.flatnonzero(counts == 0).tolist():
            for earlier in after[int(operations.rank[operation])]:
                self.require(base + operation, earlier)
        last: list[list[int]] = [[] for _ in range(operations.ranks)]
        is_last = np.ones(len(operations), dtype=bool)
        is_last[operations.dependency] = False
        for operation in np.flatnonzero(is_last).tolist():
            last[int(operations.rank[operation])].append(base + operation)
        return last

    def _add(self, row: tuple[int, int, int, int, int, int, int], after: Iterable[int]) -> int:
        number = len(self._rows)
        self._rows.append(row)
        self._pairs += ((number, before, ENDS) for before in after)
        return number

    def build(self) -> Operations:
        columns = np.array(self._rows, dtype=np.int64).reshape(-1, 7).T
        pairs = np.array(self._pairs, dtype=np.int64).reshape(-1, 3).T
        return arrange_operations(self.ranks, columns, pairs)


def arrange_operations(
    ranks: int, columns: NDArray[np.int64], pairs: NDArray[np.int64]
) -> Operations:
    """Operations in order of their ranks.

    Columns are kind, rank, peer, tag, bytes, ps, cpu; pairs are operation, dependency, kind, by the
    columns' numbers.
    """
    order = np.argsort(columns[1], kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    kind, rank, peer, tag, size, duration, cpu = columns[:, order]
    waiting, before = place[pairs[0]], place[pairs[1]]
    by_operation = np.argsort(waiting, kind="stable")
    starts = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(np.bincount(waiting, minlength=len(order)), out=starts[1:])
    return Operations(
        ranks=ranks,
        kind=kind.astype(np.uint8),
        rank=rank.astype(np.uint32),
        peer=peer.astype(np.uint32),
        tag=tag.astype(np.uint32),
        size_bytes=size,
        duration_ps=duration,
        cpu=cpu.astype(np.uint8),
        dependency_start=starts.astype(np.uint32),
        dependency=before[by_operation].astype(np.uint32),
        dependency_kind=pairs[2][by_operation].astype(np.uint8),
    )


def join_operations(workloads: Sequence[Operations]) -> Operations:
    """Workloads side by side: the ranks of each follow those of the one before."""
    ranks = np.cumsum([0, *(w.ranks for w in workloads)])
    operations = np.cumsum([0, *(len(w) for w in workloads)])
    pairs = np.cumsum([0, *(len(w.dependency) for w in workloads)])

    def join(name: str, shifts: NDArray[np.int64] | None = None) -> NDArray[Any]:
        parts = [getattr(w, name) for w in workloads]
        if shifts is not None:
            parts = [part + part.dtype.type(s) for part, s in zip(parts, shifts, strict=False)]
        return np.concatenate(parts)

    starts = [
        w.dependency_start[:-1] + np.uint32(p) for w, p in zip(workloads, pairs, strict=False)
    ]
    return Operations(
        ranks=int(ranks[-1]),
        kind=join("kind"),
        rank=join("rank", ranks),
        peer=join("peer", ranks),
        tag=join("tag"),
        size_bytes=join("size_bytes"),
        duration_ps=join("duration_ps"),
        cpu=join("cpu"),
        dependency_start=np.concatenate([*starts, [pairs[-1]]]).astype(np.uint32),
        dependency=join("dependency", operations),
        dependency_kind=join("dependency_kind"),
    )


# ---- The LogGOP network -----------------------------------------------------------------------


NO_RENDEZVOUS = 2**63 - 1  # every message is eager
UNENDED_PS = 2**63 - 1  # of an operation that waits for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGop:
    """LogGOPSim's parameters, here with units."""

    latency_ps: int  # L
    overhead_ps: int  # o: processor, per message
    gap_ps: int  # g: adapter, per message
    gap_ps_per_byte: float  # G
    overhead_ps_per_byte: float = 0.0  # O
    rendezvous_above_bytes: int = NO_RENDEZVOUS  # S


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogGopRun:
    """When each rank's processors are free for good, and when each operation ended."""

    rank_ps: NDArray[np.int64]
    ended_ps: NDArray[np.int64]  # UNENDED_PS: it waits for ever

    @property
    def waiting(self) -> NDArray[np.intp]:
        """Operations that never ended: ranks wait for each other."""
        return np.flatnonzero(self.ended_ps == UNENDED_PS)


def run_loggop(operations: Operations, parameters: LogGop) -> LogGopRun:
    core = _core.LogGop()
    core.L_ps, core.o_ps, core.g_ps = (
        parameters.latency_ps,
        parameters.overhead_ps,
        parameters.gap_ps,
    )
    core.G_ps_per_byte = parameters.gap_ps_per_byte
    core.O_ps_per_byte = parameters.overhead_ps_per_byte
    core.S_bytes = parameters.rendezvous_above_bytes
    rank_ps, ended_ps = _core.run_loggop(operations.to_core(), core)
    return LogGopRun(rank_ps=rank_ps, ended_ps=ended_ps)
