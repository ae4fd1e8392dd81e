"""Collectives that ranks call one by one, put together and added as operations.

The n-th collective of a group is the same on all its ranks. A rank enters and leaves it by marks,
operations that take no time. Entry point: `CollectiveCalls`. Units: bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.errors import InputError
from weft.simulate.workload.collectives import ALGORITHMS, Plan, build_collective
from weft.simulate.workload.operations import MAX_TAG, Builder

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
