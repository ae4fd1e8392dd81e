"""Runs applications beside each other, each again and again, so that contention lasts.

All start together; one that ends starts again at once, until each has ended as often as asked for.
What has not ended then does not count, so that every counted run had all others beside it. Pure but
for the troupe, which runs. Entry point: `together`. Units: seconds.
"""

from __future__ import annotations

from typing import Protocol

from weft.errors import InputError


class Troupe(Protocol):
    """Runs of applications, by number."""

    def start(self, number: int) -> None:
        """Begins a run of an application that is not running."""

    def next_end(self, limit_s: float) -> tuple[int, float] | None:
        """Which run ends next, and how long it took; None if none does in that time."""

    def stop(self) -> None:
        """Ends all that runs."""


def together(
    troupe: Troupe, numbers: tuple[int, ...], runs: int, limit_s: float
) -> dict[int, list[float]]:
    """Completion times of every application's runs; each has `runs` of them at least."""
    completions: dict[int, list[float]] = {number: [] for number in numbers}
    try:
        for number in numbers:
            troupe.start(number)
        while any(len(taken) < runs for taken in completions.values()):
            ended = troupe.next_end(limit_s)
            if ended is None:
                problem = f"no run ended within {limit_s:.0f} s"
                raise InputError("corun", problem, "raise --timeout, or profile again")
            number, took_s = ended
            completions[number].append(took_s)
            if any(len(taken) < runs for taken in completions.values()):
                troupe.start(number)
    finally:
        troupe.stop()
    return completions
