"""A test and its run: settings in, records out.

Each test is a module with a `Test` that names its settings, what it cannot run over and the
function that runs it on a `Rig`. `run_test` checks, measures what surrounds the run, and makes the
records. Entry points: `Test`, `run_test`, `measure`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import __version__
from weft._core import availability
from weft.measure.observation import Observation
from weft.measure.peer.client import LOCAL, Peer
from weft.measure.peer.endpoint_fields import loop_cpu
from weft.measure.rig import Progress, Rig
from weft.measure.settings.feasibility import Refusal, check_available, check_settings
from weft.measure.settings.options import Settings, changed, digest, settings_from
from weft.measure.settings.placement import AUTO
from weft.measure.surroundings import Surroundings, endpoint_rows, surrounded
from weft.records import Plain, Provenance, Record, Row, Series

ENDED = "ended: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """What there is to know of a test before it runs."""

    name: str
    help: str
    description: str
    settings: type[Settings]
    run: Callable[[Rig, Any], Observation]
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
        _mpi().check(test.name, settings)
        return
    here = availability(settings.route.transport)
    check_available(settings, test.op(settings), here)


def _mpi() -> ModuleType:
    """The tests over MPI: a module that imports the tests, hence not at the top."""
    from weft.measure.mpi import mpi_tests

    return mpi_tests


def measure(
    test: Test, peer: Peer | None, given: Mapping[str, object], progress: Progress | None = None
) -> Measurement:
    """Run a test with settings given by name."""
    settings = settings_from(test.settings, given)
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
    """Run checked settings; `shown` are fields that tell this point from others of a sweep.

    `identity` tells equal points in a file, to resume it; one is made when none is given.
    """
    rig = Rig(peer, progress)
    over_mpi = settings.route.transport == "mpi"
    with surrounded(loop_cpu(settings)) as surroundings:
        seen = _mpi().observe(test.name, rig, settings) if over_mpi else test.run(rig, settings)
    identity = identity or digest(test.name, settings, peer_name(peer), repetition or 0)
    point = _point(settings, peer, shown, repetition)
    common = _Common(
        settings.seed,
        identity,
        tuple(_notes(settings, rig, surroundings)),
        _tables(settings, rig, surroundings),
    )
    # What surrounds all steps is told once, in the record that sums them up.
    bare = dataclasses.replace(common, tables={})
    steps = [_record(f"{test.name}.step", step, point, bare) for step in seen.steps]
    return Measurement(
        records=(*steps, _record(test.name, seen, point, common)),
        samples=seen.samples,
        ended=rig.ended,
    )


def peer_name(peer: Peer | None) -> str:
    """The peer's address; "local" on this host, where ports change from run to run."""
    if peer is None:
        return ""
    return LOCAL if peer.where.startswith(("127.", "[::1]", "localhost")) else peer.where


@dataclass(frozen=True, slots=True)
class _Common:
    """What all records of a point share."""

    seed: int
    digest: str
    notes: tuple[str, ...]
    tables: Mapping[str, Sequence[Row]]


def _point(
    settings: Settings, peer: Peer | None, shown: Sequence[str], repetition: int | None
) -> dict[str, Plain]:
    """The parameters that tell this point from others."""
    fields = [f.name for f in dataclasses.fields(settings)]
    told = {"over", "size_bytes", *changed(settings), *shown} - {"samples"}
    values = {name: getattr(settings, name) for name in fields if name in told}
    if settings.cpu == AUTO:
        values["cpu"] = "auto"
    if peer_name(peer) not in ("", LOCAL):
        values["peer"] = peer_name(peer)
    if repetition is not None:
        values["repetition"] = repetition
    return {name: value for name, value in values.items() if value is not None}


def _notes(settings: Settings, rig: Rig, surroundings: Surroundings) -> Iterator[str]:
    if rig.ended:
        yield f"{ENDED}{rig.ended}"
    here = 2 if peer_name(rig.peer) == LOCAL else 1
    spinning, cpus = here * rig.most_loops, len(os.sched_getaffinity(0))
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


def _record(name: str, seen: Observation, point: Mapping[str, Plain], common: _Common) -> Record:
    quantities = dict(seen.quantities)
    if len(seen.samples) and "samples" not in quantities:
        quantities["samples"] = Series("", "ps", range(len(seen.samples)), seen.samples)  # type: ignore[arg-type]
    return Record(
        kind="measurement",
        name=name,
        settings={**point, **seen.settings},
        quantities=quantities,
        tables={**common.tables, **seen.tables},
        notes=(*seen.notes, *common.notes),
        provenance=Provenance(
            weft_version=__version__, seed=common.seed, scenario_digest=common.digest
        ),
    )
