"""The allocator's part: milliseconds for all ports of the papers' fabric, and for one connection.

1,944 servers, 264 switches, 1,000 applications of 32 instances on servers drawn at random
(weft.studies.saba.calculation_time). Timed are the weights of all applications at all ports, given
which applications use which port, without their mapping to levels and queues; and one connection
opened or closed, from its two ends over the path to the units of every queue that changes, mapping
and all. Times are CPU times of one thread; "all cores" is the wall time of the whole on one thread
per processor, as the controller solves it. SciPy's SLSQP solves a sample of the same ports, and
ours may not be worse by more than `EXCESS_GOAL` of its total slowdown. Entry point: `allocate_all`.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.figure import Figure
from bench.slsqp import slsqp
from weft.control.policy.allocate import Models, Ports, allocate
from weft.control.policy.plan import (
    ConnectionPath,
    Plan,
    add_connection,
    build_plan,
    build_policy,
    remove_connection,
)
from weft.control.policy.port_policy import PortPolicy, VlArbitration
from weft.fabric import Port, papers_1944, path
from weft.records.record_text import format_table
from weft.sensitivity.model import Sensitivity
from weft.studies.saba.calculation_time import (
    ALL_TO_ALL,
    KINDS,
    RING,
    UNITS,
    FabricArrays,
    draw_connections,
    draw_models,
)

SEED = 5
CORES = len(os.sched_getaffinity(0))
APPLICATIONS = 1000
PATTERNS = {"ring": RING, "all-to-all": ALL_TO_ALL}
LEVELS = 16  # InfiniBand's service levels
PORT = PortPolicy(scheduler=VlArbitration(queues=8, entries=16, units=UNITS))
# 56 Gb/s in kbit/s: so fine that whole units and SLSQP's shares can be compared.
FINE_UNITS = 56_000_000
WHOLE_GOAL_MS, CHANGE_GOAL_MS, EXCESS_GOAL = 20.0, 1.0, 1e-6
PAPER_S = {"k = 1": 0.43, "k = 2": 0.72, "k = 3": 1.13}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One port by both: times in ms, total slowdowns."""

    ours_ms: float
    slsqp_ms: float
    ours: float
    slsqp: float
    failed: bool  # as SciPy reports

    @property
    def excess(self) -> float:
        """Of our total over theirs, relative."""
        return (self.ours - self.slsqp) / abs(self.slsqp)


@dataclass(slots=True)
class Timings:
    """What one kind of model took, in ms, and how it compared."""

    whole: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    all_cores: list[float] = field(default_factory=list)
    change: list[float] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)
    gap: float = 0.0


def allocate_all(quick: bool) -> list[Figure]:
    """Run and print; `quick`: a few scenarios of the first pattern."""
    wiring = FabricArrays(papers_1944())
    figures: list[Figure] = []
    for pattern, scenarios in (("ring", 3 if quick else 1000), ("all-to-all", 0 if quick else 20)):
        if scenarios:
            figures += _pattern(wiring, pattern, scenarios, changes=20 if quick else 1000)
    return figures


def _pattern(wiring: FabricArrays, pattern: str, scenarios: int, changes: int) -> list[Figure]:
    rng = np.random.default_rng(SEED)
    timings = {kind: Timings() for kind in KINDS}
    sizes = []
    for scenario in range(scenarios):
        source, target, application = draw_connections(
            rng, wiring.hosts, APPLICATIONS, PATTERNS[pattern]
        )
        ports, places = wiring.ports(source, target, application)
        sizes.append((len(ports), len(ports.applications), int(np.diff(ports.offsets).max())))
        for kind, drawn in draw_models(rng, APPLICATIONS).items():
            own = drawn.to_models()
            prepared = Models.of(own)
            _time_whole(prepared, ports, timings[kind])
            if scenario == 0:
                _time_changes(
                    rng, _planned(own, ports, wiring.locate(places)), wiring, changes, timings[kind]
                )
            if scenario < 10:
                _beside_slsqp(rng, own, ports, timings[kind])
    return _report(pattern, timings, sizes)


def _time_whole(prepared: Models, ports: Ports, timings: Timings) -> None:
    wall, begin = time.perf_counter(), time.thread_time()
    answer = allocate(prepared, ports, units=UNITS)
    timings.whole.append((time.thread_time() - begin) * 1e3)
    timings.wall.append((time.perf_counter() - wall) * 1e3)
    wall = time.perf_counter()
    again = allocate(prepared, ports, units=UNITS, threads=CORES)
    timings.all_cores.append((time.perf_counter() - wall) * 1e3)
    assert (again.weights == answer.weights).all()
    timings.gap = max(timings.gap, float(answer.gap.max()))
    taken = np.add.reduceat(answer.weights, ports.offsets[:-1])
    assert (taken == UNITS).all()


def _planned(own: Sequence[Sensitivity], ports: Ports, names: list[tuple[int, int]]) -> Plan:
    """All ports as they stand; each application has one connection on all of its ports."""
    paths: dict[int, list[tuple[int, int]]] = {}
    for place, name in enumerate(names):
        for app in ports.applications[ports.offsets[place] : ports.offsets[place + 1]].tolist():
            paths.setdefault(app, []).append(name)
    policy = build_policy({str(app): model for app, model in enumerate(own)}, PORT, LEVELS)
    return build_plan(policy, [_connection(app, hops) for app, hops in paths.items()])


def _connection(application: int, hops: Sequence[tuple[int, int]]) -> ConnectionPath:
    """Of a job, named as the controller names them."""
    return ConnectionPath(application=f"{application}#1", ports=tuple(Port(*hop) for hop in hops))


def _time_changes(
    rng: np.random.Generator, told: Plan, wiring: FabricArrays, changes: int, timings: Timings
) -> None:
    """Connections opened and closed again, from their two ends to the units of all queues."""
    for _ in range(changes):
        application = int(rng.integers(APPLICATIONS))
        source, target = rng.choice(wiring.hosts, 2, replace=False).tolist()
        for change in (add_connection, remove_connection):
            begin = time.thread_time()
            connection = _connection(application, path(wiring.fabric, source, target))
            told = change(told, connection)
            units = [told.ports[port].units for port in connection.ports if port in told.ports]
            timings.change.append((time.thread_time() - begin) * 1e3)
            assert all(sum(own.values()) == UNITS for own in units)


def _beside_slsqp(
    rng: np.random.Generator, own: Sequence[Sensitivity], ports: Ports, timings: Timings
) -> None:
    """Two ports by both, in units so fine that the objectives compare."""
    sizes = np.diff(ports.offsets)
    for port in rng.choice(np.flatnonzero(sizes <= 64), 2, replace=False):
        apps = ports.applications[ports.offsets[port] : ports.offsets[port + 1]].tolist()
        chosen = [own[app] for app in apps]
        prepared, one = Models.of(chosen), Ports.of([range(len(chosen))])
        begin = time.thread_time()
        mine = allocate(prepared, one, units=FINE_UNITS)
        middle = time.thread_time()
        theirs = slsqp(chosen)
        end = time.thread_time()
        both = Beside(
            ours_ms=(middle - begin) * 1e3,
            slsqp_ms=(end - middle) * 1e3,
            ours=float(mine.objective[0]),
            slsqp=theirs.objective,
            failed=not theirs.converged,
        )
        assert both.excess <= EXCESS_GOAL, f"{apps}: {both}"
        timings.beside.append(both)


HEADS = (
    "models",
    "whole p50 ms",
    "p99",
    "wall p99",
    "all cores p99",
    "goal",
    "paper p99",
    "ratio",
    "change p50 ms",
    "p99",
    "goal",
    "greatest gap",
)
BESIDE_HEADS = (
    "models",
    "ports",
    "ours ms/port",
    "SLSQP",
    "ratio",
    "total slowdown",
    "SLSQP's",
    "above it by",
    "goal",
    "below it by",
    "SciPy reports failure",
)


def _report(
    pattern: str, timings: dict[str, Timings], sizes: list[tuple[int, int, int]]
) -> list[Figure]:
    count, pairs, most = (int(np.median(column)) for column in zip(*sizes, strict=True))
    rows = [_row(kind, own) for kind, own in timings.items()]
    print(
        f"{pattern}: {count:,} ports, {pairs:,} applications on ports ({pairs / count:.1f} a port, "
        f"at most {most}), {len(sizes):,} scenarios\n\n{format_table(HEADS, rows)}\n"
    )
    compared = [_beside_row(kind, own.beside) for kind, own in timings.items()]
    print(f"{pattern}, some ports beside SLSQP\n\n{format_table(BESIDE_HEADS, compared)}\n")
    return [figure for kind, own in timings.items() for figure in _figures(pattern, kind, own)]


def _row(kind: str, own: Timings) -> list[str]:
    p99, paper = _p99(own.whole), PAPER_S.get(kind)
    return [
        kind,
        f"{statistics.median(own.whole):.1f}",
        f"{p99:.1f}",
        f"{_p99(own.wall):.1f}",
        f"{_p99(own.all_cores):.1f}",
        f"≤ {WHOLE_GOAL_MS:g}",
        f"{paper:g} s" if paper else "",
        f"{paper * 1e3 / p99:.0f}" if paper else "",
        f"{statistics.median(own.change):.3f}",
        f"{_p99(own.change):.3f}",
        f"≤ {CHANGE_GOAL_MS:g}",
        f"{own.gap:.1g}",
    ]


def _beside_row(kind: str, both: Sequence[Beside]) -> list[str]:
    mine, theirs = _median_ms(both)
    excess = [one.excess for one in both]
    return [
        kind,
        f"{len(both)}",
        f"{mine:.3f}",
        f"{theirs:.2f}",
        f"{theirs / mine:.0f}",
        f"{sum(one.ours for one in both):.6f}",
        f"{sum(one.slsqp for one in both):.6f}",
        f"{max(excess):.1e}",
        f"≤ {EXCESS_GOAL:g}",
        f"{max(0.0, -min(excess)):.1e}",
        f"{sum(one.failed for one in both)}",
    ]


def _median_ms(both: Sequence[Beside]) -> tuple[float, float]:
    """Ours and SLSQP's."""
    ours, theirs = [one.ours_ms for one in both], [one.slsqp_ms for one in both]
    return statistics.median(ours), statistics.median(theirs)


def _figures(pattern: str, kind: str, own: Timings) -> list[Figure]:
    whole = Figure(
        name=f"allocate {pattern}, {kind}, whole fabric p99",
        unit="ms",
        ours=_p99(own.whole),
        peer="Saba's controller, published" if kind in PAPER_S else None,
        theirs=PAPER_S[kind] * 1e3 if kind in PAPER_S else None,
        goal=WHOLE_GOAL_MS,
        n=len(own.whole),
        half="allocate",
    )
    all_cores = Figure(
        name=f"allocate {pattern}, {kind}, whole fabric on {CORES} cores, wall p99",
        unit="ms",
        ours=_p99(own.all_cores),
        peer=None,
        theirs=None,
        goal=WHOLE_GOAL_MS,
        n=len(own.all_cores),
        half="allocate",
    )
    change = Figure(
        name=f"allocate {pattern}, {kind}, one connection p99",
        unit="ms",
        ours=_p99(own.change),
        peer=None,
        theirs=None,
        goal=CHANGE_GOAL_MS,
        n=len(own.change),
        half="allocate",
    )
    mine, theirs = _median_ms(own.beside)
    port = Figure(
        name=f"allocate {pattern}, {kind}, one port",
        unit="ms",
        ours=mine,
        peer="SciPy SLSQP",
        theirs=theirs,
        goal=None,
        n=len(own.beside),
        half="allocate",
    )
    above = Figure(
        name=f"allocate {pattern}, {kind}, total slowdown above SLSQP's",
        unit="relative",
        ours=max(one.excess for one in own.beside),
        peer=None,
        theirs=None,
        goal=EXCESS_GOAL,
        n=len(own.beside),
        half="allocate",
    )
    return [whole, all_cores, change, port, above]


def _p99(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.99))
