"""All points of one command: the combinations of a sweep, each as often as asked for.

Repetitions go round: the second of every point comes after the first of all, so that a slow drift
of the machine is spread over the points. Entry points: `plan_points`, `run_point`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.measure import mpi
from weft.measure.measurement import ENDED, Measurement, Test, check_point, run_test
from weft.measure.peer.client import Peer
from weft.measure.rig import Progress
from weft.measure.settings.options import Settings, digest, options_of
from weft.measure.settings.sweep import sweep_points, swept_names
from weft.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a test. `identity` is that of its records in a file."""

    settings: Settings
    repetition: int | None
    identity: str
    shown: tuple[str, ...]  # fields that the sweep varies


def plan_points(
    test: Test, fixed: Mapping[str, object], sweeps: Sequence[str], repeat: int, peer: str
) -> list[Point]:
    """Every point, checked before any runs."""
    combinations = sweep_points(test.settings, fixed, sweeps)
    if any(settings.route.transport == "mpi" for settings in combinations):
        # Before anything loads libfabric: an MPI that brings its own cannot use another's.
        mpi.this_rank()
    for settings in combinations:
        check_point(test, settings)
    options = options_of(test.settings)
    shown = tuple(options[name][0] for name in swept_names(sweeps))
    return [
        Point(
            settings=settings,
            repetition=number if repeat > 1 else None,
            identity=digest(test.name, settings, peer, number),
            shown=shown,
        )
        for number in range(1, repeat + 1)
        for settings in combinations
    ]


def run_point(
    test: Test, peer: Peer | None, point: Point, progress: Progress | None = None
) -> Measurement:
    """Measure one point."""
    return run_test(
        test,
        peer,
        point.settings,
        shown=point.shown,
        repetition=point.repetition,
        identity=point.identity,
        progress=progress,
    )


def is_whole(record: Record) -> bool:
    """Whether the point ran to its end."""
    return not any(note.startswith(ENDED) for note in record.notes)


def finished(test: Test, records: Iterable[Record]) -> dict[str, tuple[Record, ...]]:
    """Identity -> records of the points that ran to their end: their own record is the last."""
    points: dict[str, list[Record]] = {}
    for record in records:
        if record.kind == "measurement" and record.provenance.scenario_digest:
            points.setdefault(record.provenance.scenario_digest, []).append(record)
    return {
        identity: tuple(found)
        for identity, found in points.items()
        if found[-1].name == test.name and is_whole(found[-1])
    }
