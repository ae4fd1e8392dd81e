"""The campaign for real: profiles of all workloads, then every way on every set-up of a cell.

Each round is a record as soon as it has ended, so that a campaign can be stopped and goes on where
it was. A round on a busy machine (more than LATE of its time lost by timers that fire late) is
recorded, and run again, ATTEMPTS times in all; a set-up with a way that stays late counts for no
way, and another seed takes its place. Entry points: `profile_workloads`, `run_cell`,
`read_profiles`. Units: s, bits per second, bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from weft import __version__
from weft.corun.run_rounds import read_processor_times
from weft.host.testbed.wiring import Wiring
from weft.jobs import Job
from weft.records import Provenance, Record, RecordWriter, Scalar, Series, read_records, write_text
from weft.sensitivity.application import PAPER_SHARES, Profile, Run, fit_application
from weft.sensitivity.application import Application as Profiled
from weft.sensitivity.application_table import read_application, to_json
from weft.studies.saba.live.cells import (
    APPLICATIONS,
    CELLS,
    DURATION_S,
    EQUAL,
    HOSTS,
    LIMIT_S,
    LONG_LIMIT_S,
    PROFILE_LOOPS,
    PROFILE_S,
    PROFILE_SIZE,
    RATE_BPS,
    SIZE,
    SPARK,
    WORKLOADS,
    Cell,
    DrawnJob,
    build_job,
    draw,
    list_ways,
    share_by_size,
    weigh,
)
from weft.studies.saba.live.rounds import (
    JobStage,
    Lateness,
    Outcome,
    ProgramStage,
    ServiceStage,
    Stage,
    keep_testbed,
    open_job_stage,
    open_lateness,
    open_program_stage,
    open_service_stage,
    run_round,
)

NAME = "saba-live"
SEEDS, MOST_SEEDS = 10, 14
ATTEMPTS = 3
LATE = 0.02  # of a round's time
PROGRAM_SHARES = PAPER_SHARES[1:]  # four of them have floors of 0.1 at most
PROFILES = "profiles"
WARMING = 3  # runs of a service before the first that counts: they are compiled while they run

Report = Callable[[str], None]


def build_wiring() -> Wiring:
    return Wiring(hosts=HOSTS, rate_bps=RATE_BPS)


# ---- Profiles ---------------------------------------------------------------------------------


def profile_workloads(names: Sequence[str], directory: Path, testbed: str, report: Report) -> None:
    """Runs each alone with all links capped, and fits its model; those that are there stay."""
    for name in _list_unprofiled(names, directory):
        with _open_alone(name, testbed) as stage:
            _profile_workload(name, stage, directory, report)


def profile_served(stage: ServiceStage, directory: Path, report: Report) -> None:
    """The same, of programs whose services run; clients run once."""
    for name in _list_unprofiled(stage.names, directory):
        stage.delays_s = {stage.names.index(name): 0.0}
        _profile_workload(name, stage, directory, report)


def _list_unprofiled(names: Sequence[str], directory: Path) -> list[str]:
    (directory / PROFILES).mkdir(parents=True, exist_ok=True)
    return [name for name in names if not _profile_path(directory, name).exists()]


def _profile_workload(name: str, stage: Stage, directory: Path, report: Report) -> None:
    shares = PROGRAM_SHARES if name in APPLICATIONS else PAPER_SHARES
    with open_lateness() as late:
        runs = [_profile_in_time(stage, share, late) for share in shares]
    profile = Profile(
        name=name,
        runs=tuple(runs),
        command=APPLICATIONS[name].repeat(1) if name in APPLICATIONS else (),
        link_bps=RATE_BPS,
        machine={"testbed": f"{len(HOSTS)} hosts, one switch"},
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        notes=("bytes: of both ends of all links",),
    )
    write_text(str(_profile_path(directory, name)), to_json(fit_application(profile)))
    report(f"{name}: " + ", ".join(f"{r.share:g}: {r.completion:.2f} s" for r in runs))


def _profile_path(directory: Path, name: str) -> Path:
    return directory / PROFILES / f"{name}.json"


@contextmanager
def _open_alone(name: str, testbed: str) -> Iterator[Stage]:
    if name in APPLICATIONS:
        with _open_programs([name], testbed) as programs:
            programs.delays_s = {0: 0.0}
            yield programs
        return
    with open_job_stage(testbed) as jobs:
        jobs.jobs = [
            build_job(WORKLOADS[name], name=name, level=1, length_s=PROFILE_S, loops=PROFILE_LOOPS)
        ]
        yield jobs


@contextmanager
def _open_programs(names: Sequence[str], testbed: str) -> Iterator[ProgramStage | ServiceStage]:
    """Programs of a cell, all with a service or none."""
    commands = {name: APPLICATIONS[name].repeat(1) for name in names}
    services = {name: APPLICATIONS[name].service for name in names if APPLICATIONS[name].service}
    if not services:
        with open_program_stage(testbed, commands) as programs:
            yield programs
        return
    with open_service_stage(testbed, services, commands) as served:
        for number in [*range(len(names))] * WARMING:
            served.delays_s = {number: 0.0}
            served.run(LONG_LIMIT_S, lambda: None)
        yield served


def _profile_in_time(stage: Stage, share: float, late: Lateness) -> Run:
    """The first run in which timers are in time, or the last that is tried."""
    for _ in range(ATTEMPTS):
        late.read_part()
        run = _profile_run(stage, share)
        if late.read_part() <= LATE:
            break
    return run


def _profile_run(stage: Stage, share: float) -> Run:
    """Every port has a queue for each job that there may be, at the share of its rate."""
    count = len(stage.clients) if isinstance(stage, ServiceStage) else 1
    outcome = run_round(
        stage,
        way=EQUAL,
        weights=(0.99 / count,) * count,
        total_bytes=(1.0,) * count,
        is_loop=False,
        limit_s=LONG_LIMIT_S if isinstance(stage, ServiceStage) else LIMIT_S,
        rate_bps=RATE_BPS * share,
    )
    return Run(share=share, completion=outcome.completions_s[0], bytes=sum(outcome.passed_bytes))


def read_profiles(directory: Path, names: Sequence[str]) -> dict[str, Profiled]:
    return {name: read_application(str(_profile_path(directory, name))) for name in names}


# ---- Cells ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _SetUp:
    """A drawn set-up with what the ways know of it."""

    cell: Cell
    seed: int
    drawn: tuple[DrawnJob, ...]
    profiles: Mapping[str, Profiled]

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(job.workload for job in self.drawn)

    def weigh(self, way: str) -> tuple[float, ...]:
        if way == SIZE:
            return share_by_size(self.list_bytes())
        if way == PROFILE_SIZE:
            return share_by_size([self._read_bytes(name) for name in self.workloads])
        models = [self.profiles[name].convex.model for name in self.workloads]
        return weigh(way, models, self.workloads, rate_bps=RATE_BPS, seed=self.seed)

    def list_bytes(self) -> list[float]:
        """What each job passes at both ends of all links: as profiled, by its length."""
        return [
            self._read_bytes(job.workload) * scale_profile(job, self.profiles[job.workload])
            for job in self.drawn
        ]

    def _read_bytes(self, workload: str) -> float:
        """Of the profile, with the whole link."""
        (alone,) = [run for run in self.profiles[workload].profile.runs if run.share == 1]
        return alone.bytes or 0

    def build_jobs(self) -> list[Job]:
        return [
            build_job(
                WORKLOADS[job.workload],
                name=f"{job.workload}-{n}",
                level=n,
                length_s=job.length_s,
                loops=None if self.cell.is_loop else job.iterations,
            )
            for n, job in enumerate(self.drawn, 1)
        ]

    def list_delays(self) -> dict[int, float]:
        """When programs start: a part of what the shortest of them takes alone."""
        programs = [self.profiles[name] for name in self.workloads]
        least_s = min(each.profile.baseline * count_times(each) for each in programs)
        return {n: job.start_s * least_s for n, job in enumerate(self.drawn)}


def count_times(profiled: Profiled) -> int:
    """How often a program runs in a round."""
    return APPLICATIONS[profiled.name].count_times(profiled.profile.baseline)


def scale_profile(job: DrawnJob, profiled: Profiled) -> float:
    """How often the job has the profiled data."""
    return count_times(profiled) if job.workload in APPLICATIONS else job.length_s / PROFILE_S


def list_needed_ways(cell: Cell) -> tuple[str, ...]:
    """The ways that a set-up of the cell needs to count."""
    return cell.ways or list_ways(cell.count)


def run_cell(
    cell: Cell,
    directory: Path,
    testbed: str,
    report: Report,
    *,
    ways: Sequence[str] = (),
    seeds: Sequence[int] = (),
    until_s: float = float("inf"),
) -> bool:
    """Runs what has no record yet; False if the time (monotonic) was up before its end.

    With `seeds` only these are run, for a cell whose seeds are shared among testbeds.
    """
    wanted = tuple(ways) or list_needed_ways(cell)
    path = directory / f"{cell.name}.jsonl"
    records = [*read_records(path).records] if path.exists() else []
    with (
        open_lateness() as late,
        _open_stage(cell, testbed) as stage,
        RecordWriter(str(path)) as writer,
    ):
        if isinstance(stage, ServiceStage):
            profile_served(stage, directory, report)
        profiles = read_profiles(directory, cell.programs or tuple(WORKLOADS))
        if isinstance(stage, ServiceStage):
            stage.clients = [
                APPLICATIONS[name].repeat(count_times(profiles[name])) for name in stage.names
            ]
        for seed in seeds or range(1, MOST_SEEDS + 1):
            if len(find_complete_seeds(records, wanted)) >= SEEDS:
                break
            drawn = draw(cell, seed)
            setup = _SetUp(cell=cell, seed=seed, drawn=drawn, profiles=profiles)
            for way, attempt in _list_rounds(setup, wanted, records):
                late.wait_until_calm(LATE)
                if time.monotonic() > until_s:
                    return False
                record = _run_round(stage, setup, way, attempt, late)
                writer.append(record)
                records.append(record)
                report(_describe_round(record))
    return True


def _list_rounds(
    setup: _SetUp, ways: Sequence[str], records: list[Record]
) -> Iterator[tuple[str, int]]:
    """Ways without a good round, in an order of the seed; each again while it is late."""
    order = list(ways)
    Random(f"order {setup.cell.name} {setup.seed}").shuffle(order)
    for way in order:
        while True:
            tried = [r for r in records if _is_of(r, setup.seed, way)]
            if any(map(is_good, tried)) or len(tried) >= ATTEMPTS:
                break
            yield way, len(tried) + 1


def _is_of(record: Record, seed: int, way: str) -> bool:
    return record.settings["seed"] == seed and record.settings["way"] == way


def is_good(record: Record) -> bool:
    """Whether little of its time was lost."""
    late = record.quantities["late"]
    return isinstance(late, Scalar) and late.value <= LATE


def find_complete_seeds(records: Sequence[Record], ways: Sequence[str]) -> list[int]:
    """Seeds with a good round of every way."""
    good = {(r.settings["seed"], r.settings["way"]) for r in records if is_good(r)}
    return [s for s in range(1, MOST_SEEDS + 1) if all((s, way) in good for way in ways)]


@contextmanager
def _open_stage(cell: Cell, testbed: str) -> Iterator[JobStage | ProgramStage | ServiceStage]:
    if cell.programs:
        with _open_programs(cell.programs, testbed) as programs:
            yield programs
        return
    with open_job_stage(testbed) as jobs:
        yield jobs


def _run_round(
    stage: JobStage | ProgramStage | ServiceStage,
    setup: _SetUp,
    way: str,
    attempt: int,
    late: Lateness,
) -> Record:
    if isinstance(stage, JobStage):
        stage.jobs = setup.build_jobs()
        stage.duration_s = DURATION_S if setup.cell.is_loop else None
    else:
        stage.delays_s = setup.list_delays()
    weights = setup.weigh(way)
    idle, total = read_processor_times()
    late.read_part()
    outcome = run_round(
        stage,
        way=way,
        weights=weights,
        total_bytes=setup.list_bytes(),
        is_loop=setup.cell.is_loop,
        limit_s=setup.cell.limit_s,
        rate_bps=RATE_BPS,
    )
    late_part = late.read_part()
    idle_after, total_after = read_processor_times()
    idle_part = (idle_after - idle) / max(1.0, total_after - total)
    return _build_record(setup, way, attempt, weights, outcome, late_part, idle_part)


def _build_record(
    setup: _SetUp,
    way: str,
    attempt: int,
    weights: Sequence[float],
    outcome: Outcome,
    late_part: float,
    idle: float,
) -> Record:
    jobs = tuple(float(n) for n in range(1, len(setup.drawn) + 1))
    shown = [f"{j.workload}:{j.length_s or j.start_s:.3f}" for j in setup.drawn]
    completions = tuple(round(value, 4) for value in outcome.completions_s)
    quantities: dict[str, Scalar | Series] = {
        "completion": Series("job", "s", jobs, completions),
        "busy": Scalar(round(outcome.busy, 4), ""),
        "late": Scalar(round(late_part, 5), ""),
        "idle": Scalar(round(idle, 3), ""),
    }
    if weights:
        shares = tuple(round(weight, 4) for weight in weights)
        quantities["weight"] = Series("job", "1", jobs, shares)
    return Record(
        kind="measurement",
        name=NAME,
        settings={
            "cell": setup.cell.name,
            "seed": setup.seed,
            "way": way,
            "attempt": attempt,
            "jobs": " ".join(shown),
        },
        quantities=quantities,
        provenance=Provenance(weft_version=__version__, seed=setup.seed),
    )


def _describe_round(record: Record) -> str:
    completion, busy, late = (record.quantities[name] for name in ("completion", "busy", "late"))
    assert isinstance(completion, Series)
    assert isinstance(busy, Scalar)
    assert isinstance(late, Scalar)
    times = " ".join(f"{value:.2f}" for value in completion.y)
    settings = record.settings
    return (
        f"{settings['cell']} {settings['seed']} {settings['way']}: {times} s; "
        f"port {busy.value:.0%} busy, {late.value:.1%} lost by late timers"
    )


def run_campaign(
    names: Sequence[str],
    directory: Path,
    testbed: str,
    report: Report,
    *,
    ways: Sequence[str],
    seeds: Sequence[int],
    until_s: float,
) -> bool:
    """The cells of these names, one after another, on a testbed of this name."""
    with keep_testbed(testbed, build_wiring()):
        needed = {w for name in names for w in (CELLS[name].programs or tuple(WORKLOADS))}
        profile_workloads(sorted(needed - {*SPARK}), directory, testbed, report)
        return all(
            run_cell(
                CELLS[name], directory, testbed, report, ways=ways, seeds=seeds, until_s=until_s
            )
            for name in names
        )
