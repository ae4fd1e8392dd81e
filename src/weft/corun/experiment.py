"""Runs applications beside each other, each again and again, so that contention lasts.

Each begins after a delay of its own, and one that ends begins again at once. A run counts if it
began when all others had begun, and before each application had ended `runs` counted runs; the
round goes on until every such run has ended, so that none is left out because it was slow and each
had all others beside it. Pure but for the troupe, which runs. Entry point: `together`. Units:
seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from weft.errors import InputError


class Runner(Protocol):
    """Runs of applications, by number."""

    def name(self, number: int) -> str:
        """What the application is called."""

    def now_s(self) -> float:
        """A clock."""

    def start(self, number: int) -> None:
        """Begins a run of an application that is not running."""

    def next_end(self, wait_s: float) -> tuple[int, float] | None:
        """Which run ends next, and how long it took; None if none does in that time."""

    def stop(self) -> None:
        """Ends all that runs."""


@dataclass(slots=True, kw_only=True)
class _Round:
    troupe: Runner
    runs: int
    limit_s: float
    waiting: list[tuple[float, int]]  # who has not begun yet, and when it will, the next one first
    completions_s: dict[int, list[float]]  # of runs that count
    began_s: dict[int, float] = field(default_factory=dict)  # of all that run
    counting: set[int] = field(default_factory=set)  # whose present run counts

    @property
    def over(self) -> bool:
        return not self.waiting and self._enough() and not self.counting

    def step(self) -> None:
        """Until a run ends or begins."""
        oldest_s, oldest = min(((s, n) for n, s in self.began_s.items()), default=(inf, -1))
        begins_s = self.waiting[0][0] if self.waiting else inf
        next_s = min(begins_s, oldest_s + self.limit_s)
        ended = self.troupe.next_end(max(0.0, next_s - self.troupe.now_s()))
        if ended is not None:
            self._end(*ended)
        elif begins_s == next_s:
            self._begin(self.waiting.pop(0)[1])
        else:
            problem = f"a run did not end within {self.limit_s:.0f} s"
            remedy = "raise --timeout, or mend its command"
            raise InputError(f"application {self.troupe.name(oldest)}", problem, remedy)

    def _enough(self) -> bool:
        return all(len(taken) >= self.runs for taken in self.completions_s.values())

    def _begin(self, number: int) -> None:
        self.troupe.start(number)
        self.began_s[number] = self.troupe.now_s()
        if not self.waiting and not self._enough():
            self.counting.add(number)

    def _end(self, number: int, took_s: float) -> None:
        del self.began_s[number]
        if number in self.counting:
            self.counting.remove(number)
            self.completions_s[number].append(took_s)
        if not self.over:
            self._begin(number)


def run_together(
    troupe: Runner, delays_s: Mapping[int, float], runs: int, limit_s: float
) -> dict[int, list[float]]:
    """Completion times of the runs that count; each application has `runs` of them at least.

    `delays_s` is when each begins at first; a run that takes longer than `limit_s` is refused.
    """
    origin_s = troupe.now_s()
    playing = _Round(
        troupe=troupe,
        runs=runs,
        limit_s=limit_s,
        waiting=sorted((origin_s + delay_s, number) for number, delay_s in delays_s.items()),
        completions_s={number: [] for number in delays_s},
    )
    try:
        while not playing.over:
            playing.step()
    finally:
        troupe.stop()
    return playing.completions_s
