"""A job as TOML: stages of computation and communication, instances, and where they run.

A job file holds one job: its keys, and one `[[stage]]` for each stage. A scenario holds several as
`[[job]]` with `[[job.stage]]`, or names the file of each; keys beside `file` replace those of the
file.

Hosts of instances are named, or chosen: the first in order (`packed`), in turn from one edge switch
after the other (`spread`), or at random by the seed. Hosts with the fewest instances of earlier
jobs come first, unless a job says otherwise. No host gets two instances of one job. Entry points:
`load_job`, `read_job`, `place_jobs`. Units: ps, bytes.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.toml_table import Table, load_toml

# pattern -> the fewest instances it needs beside its roots
PATTERNS = {
    "shuffle": 2,
    "partition-aggregate": 1,
    "star": 1,
    "all-reduce": 2,
    "bulk-synchronous": 2,
}
PLACEMENTS = ("packed", "spread", "random")
MAX_INSTANCES = 1 << 20
MAX_STAGES = 1000
MAX_LOOPS = 1_000_000
MAX_FLOWS = 256
MAX_VOLUME = 2**40
UNTIL_END = "until the end"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage. Every instance computes and takes part in the communication.

    `overlap` is the share of the communication that may run beside the computation; the rest
    begins when the instance has computed. `after` holds the numbers of stages that end before.
    """

    name: str
    compute_ps: int
    volume_bytes: int
    pattern: str  # "": the stage only computes
    overlap: float
    flows: int
    roots: int  # aggregators or servers: the first instances
    neighbours: int
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job before it is placed. `loops` None: until the run ends. `hosts` empty: any."""

    name: str
    instances: int
    stages: tuple[Stage, ...]
    loops: int | None
    hosts: tuple[str, ...]
    placement: str
    prefer_free: bool
    start_ps: int
    sl: int
    slowdown: bool
    where: str  # file and key, for errors

    @property
    def flows(self) -> int:
        """The most flows between two instances in any stage."""
        return max(stage.flows for stage in self.stages)


def load_job(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Job:
    """The job in a file; `overrides` replace keys of it."""
    return read_job(Table({**load_toml(path), **(overrides or {})}, str(path)))


def read_job(table: Table, base: Path = Path()) -> Job:
    """The job in a table; `file` in it is relative to `base`."""
    if table.has("file"):
        path = base / table.text("file")
        return load_job(path, table.rest())
    name = _read_name(table)
    hosts = table.texts("hosts", ())
    instances = table.integer("instances", 1, MAX_INSTANCES, len(hosts) or None)
    if instances is None:
        raise InputError(table.place("instances"), "is missing", "add it, or name the hosts")
    job = Job(
        name=name,
        instances=instances,
        hosts=hosts,
        placement=table.choice("placement", {p: p for p in PLACEMENTS}, "packed"),
        prefer_free=table.flag("prefer_free", True),
        loops=_read_loops(table),
        start_ps=table.time_ps("start", 0),
        sl=table.integer("sl", 0, 15, 0),
        slowdown=table.flag("slowdown", False),
        stages=_read_stages(table, instances),
        where=table.location,
    )
    table.done()
    return job


def _read_name(table: Table) -> str:
    name = table.text("name")
    if not _NAME.fullmatch(name):
        remedy = "use letters, digits, - and _, at most 64"
        raise InputError(table.place("name"), f"{name!r} cannot be a name", remedy)
    return name


def _read_loops(table: Table) -> int | None:
    value = table.raw("loops", 1)
    if value == UNTIL_END:
        return None
    if type(value) is not int or not 1 <= value <= MAX_LOOPS:
        remedy = f'use 1 to {MAX_LOOPS}, or "{UNTIL_END}"'
        raise InputError(table.place("loops"), f"{value!r} is not a number of loops", remedy)
    return value


def _read_stages(table: Table, instances: int) -> tuple[Stage, ...]:
    """The stages in an order in which each comes after those it waits for."""
    tables = list(table.tables("stage"))
    if not 1 <= len(tables) <= MAX_STAGES:
        raise InputError(table.place("stage"), f"{len(tables)} stages", f"use 1 to {MAX_STAGES}")
    names = [entry.text("name", str(number)) for number, entry in enumerate(tables, 1)]
    for name in names:
        if not _NAME.fullmatch(name) or names.count(name) > 1:
            remedy = "use letters, digits, - and _, each name once"
            raise InputError(table.place("stage"), f"{name!r} cannot be a name", remedy)
    after = [_read_after(entry, names, number) for number, entry in enumerate(tables)]
    order = _sort_stages(table, names, after)
    position = {number: at for at, number in enumerate(order)}
    return tuple(
        _read_stage(
            tables[number],
            names[number],
            instances,
            tuple(sorted(position[before] for before in after[number])),
        )
        for number in order
    )


def _read_after(entry: Table, names: Sequence[str], number: int) -> tuple[int, ...]:
    """By default, the stage before in the file."""
    default = (names[number - 1],) if number else ()
    wanted = entry.texts("after", default)
    for name in wanted:
        if name not in names:
            problem = f"{name!r} is not a stage"
            raise InputError(entry.place("after"), problem, f"stages are {', '.join(names)}")
    return tuple(names.index(name) for name in dict.fromkeys(wanted))


def _sort_stages(table: Table, names: Sequence[str], after: Sequence[tuple[int, ...]]) -> list[int]:
    """File order where dependencies allow it; a cycle is an error that shows it."""
    order: list[int] = []
    unplaced = list(range(len(names)))
    while unplaced:
        ready = next((n for n in unplaced if all(before in order for before in after[n])), None)
        if ready is None:
            cycle = " waits for ".join(names[n] for n in _find_cycle(unplaced, after))
            remedy = "leave out one `after` of it"
            raise InputError(table.place("stage"), f"a cycle: {cycle}", remedy)
        order.append(ready)
        unplaced.remove(ready)
    return order


def _find_cycle(unplaced: Sequence[int], after: Sequence[tuple[int, ...]]) -> list[int]:
    """A cycle among stages that each wait for one of these; the first comes last again."""
    path = [unplaced[0]]
    while path.count(path[-1]) == 1:
        path.append(next(before for before in after[path[-1]] if before in unplaced))
    return path[path.index(path[-1]) :]


def _read_stage(entry: Table, name: str, instances: int, after: tuple[int, ...]) -> Stage:
    volume = entry.size_bytes("volume", 0, MAX_VOLUME, 0)
    patterns = {pattern: pattern for pattern in PATTERNS}
    pattern = entry.choice("pattern", patterns) if volume or entry.has("pattern") else ""
    roots = _read_roots(entry, pattern, instances)
    stage = Stage(
        name=name,
        compute_ps=entry.time_ps("compute", 0),
        volume_bytes=volume,
        pattern=pattern,
        overlap=entry.number("overlap", 0.0, 1.0, 0.0) if pattern else 0.0,
        flows=entry.integer("flows", 1, MAX_FLOWS, 1) if pattern else 1,
        roots=roots,
        neighbours=(
            entry.integer("neighbours", 1, MAX_INSTANCES, 2) if pattern == "bulk-synchronous" else 0
        ),
        after=after,
    )
    entry.done()
    return stage


def _read_roots(entry: Table, pattern: str, instances: int) -> int:
    """How many instances gather what the others send; refuses a pattern without senders."""
    key = {"partition-aggregate": "aggregators", "star": "servers"}.get(pattern)
    roots = entry.integer(key, 1, MAX_INSTANCES, 1) if key else 0
    least = roots + PATTERNS.get(pattern, 1)
    if instances < least:
        problem = f"{pattern} needs {least} instances, and the job has {instances}"
        raise InputError(entry.place("pattern"), problem, "use more instances")
    return roots


# ---- Where instances run ------------------------------------------------------------------------


def place_jobs(
    jobs: Sequence[Job], hosts: Sequence[str], edges: Sequence[int], seed: int
) -> list[tuple[int, ...]]:
    """The hosts of each job's instances, as indices; `edges` is the edge switch of each host."""
    load: Counter[int] = Counter()
    placed = []
    for job in jobs:
        chosen = _name_hosts(job, hosts) if job.hosts else _choose_hosts(job, edges, load, seed)
        load.update(chosen)
        placed.append(chosen)
    return placed


def _choose_hosts(job: Job, edges: Sequence[int], load: Counter[int], seed: int) -> tuple[int, ...]:
    _check_count(job, len(edges), "the fabric")
    order = list(range(len(edges)))
    if job.placement == "random":
        random.Random(f"{seed} placement {job.name}").shuffle(order)
    elif job.placement == "spread":
        order = _deal(order, edges)
    if job.prefer_free:
        order.sort(key=lambda host: load[host])
    return tuple(order[: job.instances])


def _deal(order: Sequence[int], edges: Sequence[int]) -> list[int]:
    """One host of each edge switch, then the next of each."""
    turn: Counter[int] = Counter()
    turns = []
    for host in order:
        turns.append((turn[edges[host]], host))
        turn[edges[host]] += 1
    return [host for _, host in sorted(turns)]


def _name_hosts(job: Job, hosts: Sequence[str]) -> tuple[int, ...]:
    """Named hosts; `h0..h4` is a range in order."""
    index = {name: number for number, name in enumerate(hosts)}
    chosen: list[int] = []
    for name in job.hosts:
        first, _, last = name.partition("..")
        ends = [_find(job, index, end) for end in ((first, last) if last else (first,))]
        chosen += range(ends[0], ends[-1] + 1)
    if repeated := [host for host, count in Counter(chosen).items() if count > 1]:
        problem = f"{hosts[repeated[0]]!r} is named twice"
        raise InputError(f"{job.where}: hosts", problem, "name each host once")
    _check_count(job, len(chosen), "`hosts`")
    return tuple(chosen[: job.instances])


def _find(job: Job, index: dict[str, int], name: str) -> int:
    if name not in index:
        some = list(index)
        examples = ", ".join(some[:3]) + (f" … {some[-1]}" if len(some) > 3 else "")
        problem = f"{name!r} is not a host"
        raise InputError(f"{job.where}: hosts", problem, f"hosts are {examples}")
    return index[name]


def _check_count(job: Job, hosts: int, place: str) -> None:
    if job.instances > hosts:
        problem = f"{job.instances} instances, and {place} has {hosts} hosts"
        raise InputError(f"{job.where}: instances", problem, f"use {hosts} or fewer")
