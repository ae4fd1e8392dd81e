"""A test and its run: settings in, records out.

Each test is a module with a `Test` that names its settings, what it cannot run over and the
function that runs it on a `Rig`. `run_test` checks, measures what surrounds the run, and makes the
records. A command's points are the combinations of a sweep, each repeated; repetitions go round, so
that a slow drift of the machine is spread over the points.
Entry points: `Test`, `run_test`, `measure`, `plan_points`, `run_point`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import __version__
from weft._core import availability
from weft.errors import InputError
from weft.host.machine.devices import compare_counters, read_counters, tabulate_changes
from weft.host.machine.examination import HostNoise, read_clock, watch_noise
from weft.measure import mpi
from weft.measure.mpi.rank_job import OPERATIONS
from weft.measure.observation import Observation
from weft.measure.peer.channel_spec import loop_cpu
from weft.measure.peer.client import LOCAL, Peer
from weft.measure.rig import Progress, Rig
from weft.measure.settings.by_test import Refusal, check_available, check_settings
from weft.measure.settings.options import (
    ADAPTERS,
    NEAR,
    Settings,
    Windowed,
    digest,
    list_changes,
    options_of,
    settings_from,
    sweep_points,
    swept_names,
)
from weft.measure.settings.values import AUTO
from weft.records import Plain, Provenance, Record, Row, Scalar, Series, note_ending

# Settings that apply over MPI; mpirun and the library choose the others.
MPI_SETTINGS = (
    "over",
    "size_bytes",
    "count",
    "duration_ns",
    "warmup",
    "validate",
    "samples",
    "seed",
    "depth",
    "bidirectional",
    "op",
    "rate",
    "arrivals",
    "window",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """A test: its settings, where it can run, and the function that runs it."""

    name: str
    settings: type[Settings]
    run: Callable[[Rig, Any], Observation]
    run_mpi: Callable[[mpi.Ranks, Any], Observation] | None = None  # None: not possible
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    check: Callable[[Any], None] = lambda _: None
    op: Callable[[Any], str] = lambda _: "send"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One point: its record, those of its steps before it, and raw samples in ps."""

    records: tuple[Record, ...]
    samples: NDArray[np.int64]
    ended: str = ""  # why it ended early; empty when it ran to its end

    @property
    def record(self) -> Record:
        """The point's own record, which sums up its steps."""
        return self.records[-1]


def check_point(test: Test, settings: Settings) -> None:
    """Refuse what cannot run, before anything is opened."""
    check_settings(test.name, settings, test.refused)
    test.check(settings)
    if settings.route.transport == "mpi":
        check_mpi(test, settings)
        return
    check_available(settings, test.op(settings), availability(settings.route.transport))


def choose_over(test: Test, values: Mapping[str, object], near: bool) -> Mapping[str, object]:
    """`values`, and where it names no transport and the test has no default, the first that can."""
    defaults = {f.name: f.default for f in dataclasses.fields(test.settings)}
    if defaults["over"] or values.get("over"):
        return values
    problem: InputError | None = None
    for over in ADAPTERS if near else [o for o in ADAPTERS if o != NEAR]:
        try:
            check_point(test, settings_from(test.settings, {**values, "over": over}, "--"))
        except InputError as error:
            problem = error
        else:
            return {**values, "over": over}
    assert problem is not None
    raise problem


def check_mpi(test: Test, settings: Settings) -> None:
    """Refuse what two ranks cannot do, and a run without two ranks."""
    if test.run_mpi is None:
        raise InputError(f"{test.name} --over mpi", "is not possible", mpi.REFUSED[test.name])
    names = {field: name for name, (field, _) in options_of(type(settings)).items()}
    for field_name in list_changes(settings):
        if field_name not in MPI_SETTINGS:
            remedy = "leave it out: mpirun and the library's environment choose that"
            raise InputError(f"--{names[field_name]}", "mpi has no such setting", remedy)
    if isinstance(settings, Windowed) and settings.rate:
        raise InputError("--rate", "mpi streams run as fast as they can", "use weft paced")
    op = test.op(settings)
    if op not in ("send", *OPERATIONS):
        raise InputError("--op", f"mpi has no {op}", "use send, or weft rma for one-sided ones")
    mpi.this_rank()


def _run_mpi(test: Test, rig: Rig, settings: Settings) -> Observation:
    """One point, run by both ranks."""
    assert test.run_mpi is not None
    ranks = mpi.Ranks.current()
    rig.descriptions.append((ranks.describe(), {}))
    observation = test.run_mpi(ranks, settings)
    cost = ranks.python_cost_ns(settings.size_bytes)
    observation.quantities["python_cost"] = Scalar(cost, "ns")
    observation.notes.append(
        f"mpi: the loops are in Python, which takes some {cost:.0f} ns of a half round trip "
        "(one Send, one Recv and the clock with nothing sent)"
    )
    return observation


def measure(
    test: Test, peer: Peer | None, values: Mapping[str, object], progress: Progress | None = None
) -> Measurement:
    """Run a test with settings by name."""
    near = peer_name(peer) == LOCAL
    settings = settings_from(test.settings, choose_over(test, values, near))
    check_point(test, settings)
    return run_test(test, peer, settings, progress=progress)


def run_test(
    test: Test,
    peer: Peer | None,
    settings: Settings,
    *,
    shown: Sequence[str] = (),
    repetition: int | None = None,
    identity: str = "",
    progress: Progress | None = None,
) -> Measurement:
    """Run checked settings; `shown` are the fields that the sweep varies.

    `identity` is equal for equal points, so that a file can be resumed; computed if empty.
    """
    rig = Rig(peer, progress)
    over_mpi = settings.route.transport == "mpi"
    with observe_surroundings(loop_cpu(settings)) as surroundings:
        observation = _run_mpi(test, rig, settings) if over_mpi else test.run(rig, settings)
    identity = identity or digest(test.name, settings, peer_name(peer), repetition or 0)
    point = _point_settings(settings, peer, shown, repetition)
    common = _Common(
        settings.seed,
        identity,
        tuple(_notes(settings, rig, surroundings)),
        _tables(settings, rig, surroundings),
    )
    # The surroundings of all steps are stored once, in the record that sums them up.
    bare = dataclasses.replace(common, tables={})
    steps = [_build_record(f"{test.name}.step", step, point, bare) for step in observation.steps]
    return Measurement(
        records=(*steps, _build_record(test.name, observation, point, common)),
        samples=observation.samples,
        ended=rig.ended,
    )


def peer_name(peer: Peer | None) -> str:
    """The peer's address; "local" on this host, where ports change from run to run."""
    if peer is None:
        return ""
    return LOCAL if is_near(peer.where) else peer.where


def is_near(where: str) -> bool:
    """Whether an address is of this host."""
    return where.startswith((LOCAL, "127.", "[::1]", "localhost"))


@dataclass(frozen=True, slots=True)
class _Common:
    """What all records of a point share."""

    seed: int
    digest: str
    notes: tuple[str, ...]
    tables: Mapping[str, Sequence[Row]]


def _point_settings(
    settings: Settings, peer: Peer | None, shown: Sequence[str], repetition: int | None
) -> dict[str, Plain]:
    """The parameters that tell this point from others."""
    fields = [f.name for f in dataclasses.fields(settings)]
    shown_names = {"over", "size_bytes", *list_changes(settings), *shown} - {"samples"}
    values = {name: getattr(settings, name) for name in fields if name in shown_names}
    if settings.cpu == AUTO:
        values["cpu"] = "auto"
    if peer_name(peer) not in ("", LOCAL):
        values["peer"] = peer_name(peer)
    if repetition is not None:
        values["repetition"] = repetition
    return {name: value for name, value in values.items() if value is not None}


def _notes(settings: Settings, rig: Rig, surroundings: Surroundings) -> Iterator[str]:
    if rig.ended:
        yield note_ending(rig.ended)
    programs = 2 if peer_name(rig.peer) == LOCAL else 1
    spinning, cpus = programs * rig.max_loops, len(os.sched_getaffinity(0))
    if settings.wait == "spin" and spinning > cpus:
        problem = f"{spinning} spinning loops share {cpus} CPUs: they wait for each other"
        yield f"{problem}; try --wait block"
    yield from surroundings.notes()


def _tables(settings: Settings, rig: Rig, surroundings: Surroundings) -> dict[str, Sequence[Row]]:
    tables = surroundings.tables()
    if rig.peer is not None:
        tables["peer"] = [{"fact": k, "value": v} for k, v in sorted(rig.peer.facts.items())]
    tables["endpoints"] = endpoint_rows(rig.descriptions)
    tables["settings"] = [
        {"setting": name, "value": value} for name, value in dataclasses.asdict(settings).items()
    ]
    return tables


def _build_record(
    name: str, observation: Observation, point: Mapping[str, Plain], common: _Common
) -> Record:
    quantities, samples = dict(observation.quantities), observation.samples
    if len(samples) and "samples" not in quantities:
        quantities["samples"] = Series("", "ps", range(len(samples)), samples)  # type: ignore[arg-type]
    return Record(
        kind="measurement",
        name=name,
        settings={**point, **observation.settings},
        quantities=quantities,
        tables={**common.tables, **observation.tables},
        notes=(*observation.notes, *common.notes),
        provenance=Provenance(
            weft_version=__version__, seed=common.seed, scenario_digest=common.digest
        ),
    )


# ---- Many points ------------------------------------------------------------------------------


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
    if "over" not in swept_names(sweeps):
        fixed = choose_over(test, fixed, is_near(peer))
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


def identify(record: Record) -> str | None:
    """The identity of the point that a record belongs to."""
    return record.provenance.scenario_digest or None if record.kind == "measurement" else None


def is_complete(test: Test, records: Sequence[Record]) -> bool:
    """Whether a point ran to its end: its own record is the last."""
    return records[-1].name == test.name and not records[-1].ending


NOISY_PERCENT = 1.0
Descriptions = Sequence[tuple[Mapping[str, str], Mapping[str, str]]]


@dataclass(slots=True)
class Surroundings:
    """The host around a run; complete once the block of `observe_surroundings` has ended."""

    noise: HostNoise | None = None
    counters: list[dict[str, str | int]] = field(default_factory=list)

    def tables(self) -> dict[str, Sequence[Row]]:
        """The clock and the noise, and the counters that moved."""
        tables: dict[str, Sequence[Row]] = {"host": [*clock_rows(), *self._noise_rows()]}
        if self.counters:
            tables["counters"] = [dict(row) for row in self.counters]
        return tables

    def _noise_rows(self) -> list[Row]:
        noise = self.noise
        if noise is None:
            return []
        longest_us = noise.gaps.max / 1e6 if noise.gaps.count else 0.0
        steal = round(100 * noise.steal_share, 3)
        return [
            {"fact": "hiccups before and after the run", "value": noise.gaps.count},
            {"fact": "time lost to hiccups, %", "value": round(100 * noise.lost_share, 3)},
            {"fact": "longest hiccup, us", "value": round(longest_us, 1)},
            {"fact": "steal during the run, % of a CPU", "value": steal},
            {"fact": "involuntary switches", "value": noise.involuntary_switches},
        ]

    def notes(self) -> Iterator[str]:
        """What a reader must know before trusting the tail."""
        noise = self.noise
        if noise is None:
            return
        lost, steal = 100 * noise.lost_share, 100 * noise.steal_share
        if lost > NOISY_PERCENT:
            yield (
                f"noisy host: a spinning thread lost {lost:.1f} % of its time around the run, "
                f"up to {noise.gaps.max / 1e6:.0f} us at once"
            )
        if steal > NOISY_PERCENT:
            yield f"noisy host: the hypervisor took {steal:.1f} % of a CPU during the run"


@contextmanager
def observe_surroundings(cpu: int) -> Iterator[Surroundings]:
    """Looks before and after the block."""
    surroundings = Surroundings()
    before = read_counters()
    with watch_noise(cpu) as watch:
        yield surroundings
    surroundings.noise = watch.noise
    surroundings.counters = tabulate_changes(compare_counters(before, read_counters()))


def clock_rows() -> list[Row]:
    """The clock of every sample, and its error."""
    facts = read_clock()
    return [
        {"fact": "clock", "value": facts.source},
        {"fact": "clock error, ppm", "value": round(facts.error_ppm, 3)},
        {"fact": "clock step, ns", "value": facts.step_ns},
        {"fact": "clock reading, ns", "value": facts.read_ns},
    ]


def endpoint_rows(descriptions: Descriptions) -> list[Row]:
    """Both sides of each connection; equal ones once, with their number."""
    connections: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    for client, peer in descriptions:
        for side, facts in (("ours", client), ("peer", peer)):
            if facts:
                key = side, tuple(sorted(facts.items()))
                connections[key] = connections.get(key, 0) + 1
    return [
        {"side": side, "connections": count, **dict(facts)}
        for (side, facts), count in connections.items()
    ]
