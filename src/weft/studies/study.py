"""A study: one figure of a paper, the simulations that stand beside it, and the comparison.

Every study is a module-level value; all its points are of one system. Entry points: `Study`,
`run_study`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes

from weft import __version__
from weft.errors import WeftError
from weft.records import Plain, Provenance, Record
from weft.simulate import scenario_from, simulate
from weft.studies.observation import Observation, Records, Row, row_fields

SEED = 1


class StudyError(WeftError):
    """A point of a study did not run to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One simulated setting; `settings` are those of its record."""

    setting: str
    settings: Mapping[str, Plain]
    scenario: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A figure of a paper as a runnable value.

    `draw` shows both series on one set of axes. `notes` say what was inferred, and what the
    simulation does not capture.
    """

    name: str
    title: str
    paper: str
    place: str
    system: str
    points: tuple[Point, ...]
    observations: tuple[Observation, ...]
    draw: Callable[[Axes, Result], None]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A study that was run: a record per setting, and a row per observation."""

    study: Study
    records: Records
    rows: tuple[Row, ...]
    packet_hops: int

    @property
    def compared(self) -> tuple[Row, ...]:
        """The rows that have a published value."""
        return tuple(row for row in self.rows if row.published is not None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The study's notes, and the reason of each row outside its tolerance."""
        reasons = (
            f"{r.observation.setting}, {r.observation.quantity}: {r.ratio:.2f} of the published "
            f"value. {r.observation.reason or 'No reason is known.'}"
            for r in self.rows
            if not r.within
        )
        return (*self.study.notes, *reasons)


def run_study(study: Study, progress: Callable[[float], None] | None = None) -> Result:
    """Simulate every point of a study and compare."""
    records: dict[str, Record] = {}
    packet_hops = 0
    for number, point in enumerate(study.points):
        record, hops = _simulated(study, point)
        records[point.setting] = record
        packet_hops += hops
        if progress:
            progress((number + 1) / len(study.points))
    rows = tuple(
        Row(study=study.name, system=study.system, observation=o, ours=o.read(records))
        for o in study.observations
    )
    return Result(study=study, records=records, rows=rows, packet_hops=packet_hops)


def _simulated(study: Study, point: Point) -> tuple[Record, int]:
    where = f"study {study.name}, {point.setting}"
    scenario = scenario_from(
        {**point.scenario, "name": study.name, "system": study.system, "seed": SEED}, where=where
    )
    outcome = simulate(scenario)
    if outcome.ended == "interrupted":
        raise KeyboardInterrupt
    if outcome.ended != "time up":
        raise StudyError(f"{where}: {'; '.join(outcome.record.notes)}")
    settings = {"system": study.system, **point.settings}
    return replace(outcome.record, settings=settings), outcome.packet_hops


def study_records(result: Result) -> list[Record]:
    """What is stored: a record per setting, and one of the comparison."""
    study = result.study
    comparison = Record(
        kind="study",
        name=study.name,
        settings={"paper": study.paper, "place": study.place},
        tables={"published and ours": [_stored_row(row) for row in result.compared]},
        notes=result.remarks,
        provenance=Provenance(weft_version=__version__, seed=SEED, parameters=study.system),
    )
    return [*result.records.values(), comparison]


def _stored_row(row: Row) -> dict[str, Plain]:
    return {**row_fields(row), "place": row.observation.place, "reason": row.observation.reason}
