"""Studies by name, and many at once: their simulations side by side, then each when it can.

Simulations run in this process, in processes of this machine, or on a Dask cluster; they are stored
as they end, and a run that was cut short resumes. A record does not depend on where it was made.
Measurements wait until no simulation runs that could disturb them. Entry points: `STUDIES`,
`find_studies`, `with_applications`, `with_seeds`, `run_studies`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.fleet import Call, check_stopped, run_calls
from weft.records import Record, from_line, read_records, to_line, write_records
from weft.records.schema import Run
from weft.records.store import Campaign, run_campaign
from weft.simulate.scenario import compute_digest
from weft.studies.efa import EFA
from weft.studies.fdr import FDR
from weft.studies.ib2016 import IB2016
from weft.studies.points import Point, simulate_scenario
from weft.studies.rperf import RPERF
from weft.studies.saba import BUILDERS, SABA
from weft.studies.saba.calculation_time import FIG4_19, build_drawn_fig4_19
from weft.studies.saba.cohort import Cohort, project_cohort
from weft.studies.saba.speedup_cases import Size
from weft.studies.saba.speedups import SPEEDUP_BUILDERS
from weft.studies.study import Result, Study, study_records

MAX_SEEDS = 100_000
STUDIES: tuple[Study, ...] = (*RPERF, *IB2016, *EFA, *FDR, *SABA)


def find_studies(names: Sequence[str]) -> list[Study]:
    """The studies of these names, each once; "all" is every study."""
    by_name = {study.name: study for study in STUDIES}
    unknown = [name for name in names if name != "all" and name not in by_name]
    if unknown:
        near = [name for name in by_name if unknown[0] in name]
        near = near or difflib.get_close_matches(unknown[0], by_name, n=2)
        suggestion = f"did you mean {' or '.join(near[:4])}? " if near else ""
        raise InputError(
            "study", f"{unknown[0]!r} is unknown", f"{suggestion}weft study list has all"
        )
    return list(STUDIES) if "all" in names else [by_name[name] for name in dict.fromkeys(names)]


def takes_applications(study: Study) -> bool:
    """Whether the study shows profiled applications, to which a user's can be added."""
    return study.name in BUILDERS


def with_applications(study: Study, cohort: Cohort) -> Study:
    """The study with a user's applications beside those recorded in the project."""
    return BUILDERS[study.name]((project_cohort(), cohort))


def takes_seeds(study: Study) -> bool:
    """Whether the study draws set-ups, of which there can be more, at the paper's size."""
    return study.name in SPEEDUP_BUILDERS or study.name == FIG4_19.name


def with_seeds(study: Study, seeds: int, processes: int) -> Study:
    """The study with so many set-ups at the paper's size, evaluated in so many processes."""
    if not 1 <= seeds <= MAX_SEEDS:
        raise InputError("--seeds", f"{seeds} set-ups", f"use 1 to {MAX_SEEDS:,}")
    if study.name == FIG4_19.name:
        return build_drawn_fig4_19(seeds)
    return SPEEDUP_BUILDERS[study.name](Size(seeds=seeds, processes=processes))


Identity = tuple[str, str]  # study, digest of the scenario
Finish = Callable[[Study, Mapping[str, Record]], Result]


def run_studies(
    studies: Sequence[Study],
    finish: Finish,
    *,
    output: str | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    progress: Callable[[float], None] | None = None,
    on_resume: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Runs the studies in order; `finish` runs one, given its simulations' records by setting.

    `output` has all records in the end, also after an interrupt or an error; simulations stored
    there are not run again. `on_resume` is called with their number and that of all. Simulations
    run in `jobs` processes, or on the workers of the Dask scheduler `cluster`.
    """
    run = _StudyRun(list(studies), finish)
    campaign: Campaign[Identity, Point] = Campaign(
        points={key: point for study in studies for key, point in _simulations(study).items()},
        identify=_identify,
        is_complete=lambda _: True,
        output=output,
        done=run.simulated,
    )
    earlier = _read_headers(campaign)
    try:
        run_campaign(
            campaign,
            lambda points: run.simulate(points, jobs, cluster, progress),
            on_resume=lambda stored: on_resume(stored, len(campaign.points)),
        )
        if not run.is_simulated:
            raise KeyboardInterrupt
        run.finish_ready()
    finally:
        if output:
            write_records(output, run.list_records(campaign.points), earlier=earlier)


def _simulations(study: Study) -> dict[Identity, Point]:
    return {
        (study.name, compute_digest(point.scenario, {}, where=point.setting, base=Path())): point
        for point in study.points
        if point.scenario is not None
    }


def _identify(record: Record) -> Identity | None:
    is_ours = record.kind == "simulation" and record.provenance.scenario_digest
    return (record.name, record.provenance.scenario_digest or "") if is_ours else None


def _read_headers(campaign: Campaign[Identity, Point]) -> tuple[Run, ...]:
    """Headers of earlier runs that simulated some of the points."""
    stored = campaign.read_complete()
    if campaign.output is None or not any(key in stored for key in campaign.points):
        return ()
    return read_records(campaign.output).headers


@dataclass(slots=True)
class _StudyRun:
    """The studies that are not finished yet, and what there is of all."""

    waiting: list[Study]
    finish: Finish
    simulated: dict[Identity, tuple[Record, ...]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    is_simulated: bool = False  # nothing is left to simulate

    def simulate(
        self,
        points: Mapping[Identity, Point],
        jobs: int,
        cluster: str | None,
        progress: Callable[[float], None] | None,
    ) -> Generator[tuple[Identity, tuple[Record], bool]]:
        keys = list(points)
        calls = [
            Call(name=f"{key[0]}, {point.setting}", arguments=(point.setting, point.scenario))
            for key, point in points.items()
        ]
        for number, line in run_calls(
            _simulate_to_line,
            calls,
            where="weft study",
            jobs=jobs,
            cluster=cluster,
            progress=progress,
        ):
            key = keys[number]
            yield key, (points[key].label(from_line(line), key[0]),), False
            self.finish_ready()
        self.is_simulated = True

    def finish_ready(self) -> None:
        """Finishes studies in their order, up to the first that has to wait."""
        while self.waiting:
            simulations = _simulations(self.waiting[0])
            if not self.is_simulated and (
                _is_measured(self.waiting[0]) or any(k not in self.simulated for k in simulations)
            ):
                return
            records = {p.setting: self.simulated[key][-1] for key, p in simulations.items()}
            self.results.append(self.finish(self.waiting[0], records))
            del self.waiting[0]

    def list_records(self, keys: Iterable[Identity]) -> list[Record]:
        """Of finished studies, and the simulations of the others."""
        finished = [record for result in self.results for record in study_records(result)]
        names = {study.name for study in self.waiting}
        stored = [self.simulated[key] for key in keys if key[0] in names and key in self.simulated]
        return [*finished, *(record for records in stored for record in records)]


def _is_measured(study: Study) -> bool:
    return any(point.source == "measurement" for point in study.points)


def _simulate_to_line(setting: str, scenario: Mapping[str, Any]) -> str:
    return to_line(simulate_scenario(setting, scenario, lambda _: check_stopped()))
