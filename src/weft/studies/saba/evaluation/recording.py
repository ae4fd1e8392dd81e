"""Records that grow: completions by case, set-up and way, written after every run.

A record that was interrupted goes on where it ended. `python -m weft.studies.saba.evaluation`
runs them; docs/saba-verdict.md has their tables. Entry points: `RECORDINGS`, `grow_record`,
`read_case`. Units: s.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.studies.saba.evaluation.allocations import HELD_OUT, LEAF_HOSTS, LEAVES, learn
from weft.studies.saba.evaluation.cluster import (
    JOBS,
    PROFILED_NODES,
    SCALE,
    SERVERS,
    SMALL_SCALE,
    Floats,
    SetUp,
    draw_favourable,
    draw_scale,
    draw_testbed,
)
from weft.studies.saba.evaluation.judgement import PRODUCT, Evaluation
from weft.studies.saba.evaluation.packet_level import (
    HOPS,
    KINDS,
    PACKET_WAYS,
    WHOLE_FABRIC_HOPS,
    SwitchKind,
    prepare_packets,
    simulate_alone_in_packets,
    simulate_way_in_packets,
)
from weft.studies.saba.evaluation.ways import (
    Draw,
    Knowledge,
    find_busiest_s,
    simulate_alone,
    simulate_way,
)

SCALE_RIVALS = ("lane per workload", "Homa", "Sincronia")  # of Fig. 4.18a
QUEUE_WAYS = ("Saba, 2 queues", "Saba, 4 queues", "Saba, 16 queues")  # beside Saba, which has 8
UNLIMITED, DISTRIBUTED = "Saba, unlimited queues", "Saba, distributed"

Report = Callable[[str], None]
Completions = dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Set-ups of a regime and the ways they run under; packet by packet on `kind` of switch."""

    draw: Draw
    ways: tuple[str, ...]
    servers: int
    jobs: int
    kind: SwitchKind | None = None
    hops: int = HOPS
    first_seed: int = 1
    has_alone: bool = True  # False: a fabric that takes long to set up, once for every job


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a record says of itself, and its cells by setting."""

    level: str
    cells: Mapping[str, Cell] = field(repr=False)


_SIZES = {
    "testbed": (SERVERS, JOBS),
    "favourable": (PROFILED_NODES, 12),
    "scale": SMALL_SCALE,
    **{name: (PROFILED_NODES, int(name.split()[1])) for name in HELD_OUT if "load" in name},
    "alike": (PROFILED_NODES, 8),
    **{name: (LEAVES * LEAF_HOSTS, 12) for name in HELD_OUT if "oversubscribed" in name},
}  # servers and jobs of a regime


def _build_cell(regime: str, draw: Draw, ways: tuple[str, ...], kind: SwitchKind | None) -> Cell:
    servers, jobs = _SIZES[regime]
    return Cell(draw=draw, ways=ways, kind=kind, servers=servers, jobs=jobs)


def _build_whole_fabric_cell(ways: tuple[str, ...], kind: SwitchKind | None) -> Cell:
    servers, jobs = SCALE
    return Cell(
        draw=partial(draw_scale, full=True),
        ways=ways,
        servers=servers,
        jobs=jobs,
        kind=kind,
        hops=WHOLE_FABRIC_HOPS,
        has_alone=False,
    )


def _list_packet_cells() -> Iterator[tuple[str, Cell]]:
    regimes: Mapping[str, Draw] = {
        "testbed": draw_testbed,
        "favourable": draw_favourable,
        "scale": partial(draw_scale, full=False),
    }
    for regime, draw in regimes.items():
        for kind in KINDS:
            ways = PACKET_WAYS if kind.is_equal_in_total else PRODUCT
            yield f"{regime}, {kind}", _build_cell(regime, draw, ways, kind)
    kind = KINDS[0]
    favourable = _build_cell("favourable", draw_favourable, PRODUCT, kind)
    yield f"favourable again, {kind}", replace(favourable, first_seed=11)
    for regime, draw in _MORE_REGIMES.items():
        yield f"{regime}, {kind}", _build_cell(regime, draw, PRODUCT, kind)


_MORE_REGIMES = {name: draw for name, draw in HELD_OUT.items() if not name.startswith("scale")}
RECORDINGS: Mapping[str, Recording] = {
    "packets": Recording(
        level=f"packet, {HOPS:,} hops of data packets a run", cells=dict(_list_packet_cells())
    ),
    "packets-1944": Recording(
        level=f"packet, {WHOLE_FABRIC_HOPS:,} hops of data packets a run",
        cells={
            f"scale, {kind}": _build_whole_fabric_cell(PRODUCT, kind)
            for kind in KINDS
            if kind.is_equal_in_total
        },
    ),
    "flows": Recording(
        level="flow",
        cells={
            regime: _build_cell(regime, draw, PRODUCT, None)
            for regime, draw in _MORE_REGIMES.items()
        },
    ),
    "fig4.14": Recording(
        level="flow", cells={"testbed": _build_cell("testbed", draw_testbed, PRODUCT, None)}
    ),
    "fig4.18": Recording(
        level="flow",
        cells={
            "scale, 1,944 servers": _build_whole_fabric_cell(
                (*PRODUCT, *SCALE_RIVALS, *QUEUE_WAYS, UNLIMITED, DISTRIBUTED), None
            )
        },
    ),
}


# ---- Running ----------------------------------------------------------------------------------


def grow_record(
    path: Path,
    name: str,
    seeds: int,
    *,
    settings: Sequence[str] = (),
    ways: Sequence[str] = (),
    until_s: float = float("inf"),
    report: Report = print,
) -> bool:
    """Run what the record lacks, seed by seed; False if the time was over before its end.

    `settings` (how they begin) and `ways` limit what is run; none: all. `until_s` is on the
    monotonic clock, looked at before every run.
    """
    recording = RECORDINGS[name]
    record = json.loads(path.read_text("utf-8")) if path.exists() else {"cases": {}}
    command = f"python -m weft.studies.saba.evaluation {name} --seeds {seeds}"
    record = {"command": command, "level": recording.level, **record}
    for number in range(seeds):
        for setting, cell in recording.cells.items():
            if settings and not setting.startswith(tuple(settings)):
                continue
            seed = cell.first_seed + number
            entry = record["cases"].setdefault(setting, {}).setdefault(str(seed), {})
            chosen = [way for way in cell.ways if not ways or way in ways]
            for line in _run_missing(cell, seed, chosen, entry, until_s):
                record["date"] = time.strftime("%Y-%m-%d")
                _write(path, record)
                report(f"{setting}, seed {seed}: {line}")
            if time.monotonic() >= until_s:
                return False
    return True


def _run_missing(
    cell: Cell, seed: int, ways: Sequence[str], entry: dict[str, Any], until_s: float
) -> Iterator[str]:
    """Add the runs that an entry lacks; yields what was added each time."""
    times: Completions = entry.setdefault("completions_s", {})
    missing = [way for way in ways if way not in times]
    if not missing or time.monotonic() >= until_s:
        return
    runs = _SeedRuns.begin(cell, seed)
    if "workloads" not in entry:
        entry["workloads"] = list(runs.workloads)
        if cell.has_alone:
            entry["alone_s"], entry["busiest_s"] = _round(runs.run_alone()), runs.busiest_s
        yield "alone"
    for way in missing:
        if time.monotonic() >= until_s:
            return
        begin = time.process_time()
        times[way] = _round(runs.run(way))
        yield f"{way}, {time.process_time() - begin:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeedRuns:
    """One set-up, ready to run under any way, at either level."""

    workloads: tuple[str, ...]
    busiest_s: float
    run_alone: Callable[[], Floats]
    run: Callable[[str], Floats]

    @classmethod
    def begin(cls, cell: Cell, seed: int) -> _SeedRuns:
        if cell.kind is None:
            setup = cell.draw(seed)
            knowledge = learn(setup).knowledge
            run_alone = partial(simulate_alone, setup)
            run = partial(simulate_way, knowledge=knowledge)
        else:
            knowledge, setup = prepare_packets(cell.draw(seed), cell.hops)
            run_alone = partial(simulate_alone_in_packets, setup, knowledge, cell.kind)
            run = partial(_simulate_packets, knowledge, setup, cell.kind)
        busiest_s = float(f"{find_busiest_s(setup, knowledge.flows):.4g}")
        return cls(workloads=setup.workloads, busiest_s=busiest_s, run_alone=run_alone, run=run)


def _simulate_packets(knowledge: Knowledge, setup: SetUp, kind: SwitchKind, way: str) -> Floats:
    return simulate_way_in_packets(way, knowledge, setup, kind).completions_s


def _round(times: Floats) -> list[float]:
    return [float(f"{value:.4g}") for value in times.tolist()]


def _write(path: Path, record: Mapping[str, Any]) -> None:
    """All of it or nothing: a run that is stopped leaves the record before."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, separators=(",", ":")) + "\n", "utf-8")
    part.replace(path)


# ---- Reading ----------------------------------------------------------------------------------


def read_case(seeds: Mapping[str, Any]) -> Evaluation:
    """One case of a record, with the ways that all of its set-ups ran under."""
    runs = [run for run in seeds.values() if run["completions_s"]]
    ways = [way for way in runs[0]["completions_s"] if all(way in r["completions_s"] for r in runs)]
    return Evaluation(
        seeds=tuple(int(seed) for seed, run in seeds.items() if run["completions_s"]),
        workloads=tuple(tuple(run["workloads"]) for run in runs),
        completions={w: tuple(np.array(run["completions_s"][w]) for run in runs) for w in ways},
        alone=tuple(np.array(run["alone_s"]) for run in runs if "alone_s" in run),
        busiest_s=tuple(run["busiest_s"] for run in runs if "busiest_s" in run),
    )
