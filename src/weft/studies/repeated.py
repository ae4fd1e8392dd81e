"""Short measurements made several times, of which the best counts.

This is for machines that others use too: what is taken away from a run only ever makes it slower.
Entry points: `repeated`, `best`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from weft.measure import Measurement
from weft.records import Plain, Record
from weft.studies.observation import Records
from weft.studies.site import Point, measured

RUNS = 2


def repeated(
    setting: str, settings: Mapping[str, Plain], test: Callable[..., Measurement], **options: object
) -> tuple[Point, ...]:
    """The same test `RUNS` times, as settings of their own."""
    return tuple(
        measured(_name(setting, run), {**settings, "run": run}, test, **options)
        for run in range(1, RUNS + 1)
    )


def best(
    records: Records,
    setting: str,
    read: Callable[[Record], float],
    choose: Callable[[Iterable[float]], float],
) -> float:
    """The highest (`max`) or least (`min`) value of the runs that there are."""
    names = [_name(setting, run) for run in range(1, RUNS + 1)]
    there = [name for name in names if name in records] or names[:1]
    return choose([read(records[name]) for name in there])


def has(records: Records, setting: str) -> bool:
    """Whether any run of a setting could be had."""
    return any(_name(setting, run) in records for run in range(1, RUNS + 1))


def _name(setting: str, run: int) -> str:
    return f"{setting}, run {run}"
