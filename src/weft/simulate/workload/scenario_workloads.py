"""Workloads of a scenario: read from its tables, and placed on hosts.

A workload is a file or a collective; a scenario with `[loggop]` has a LogGOP network instead of a
fabric. Messages between ranks on different hosts need flows. Entry points: `read_file`,
`read_collective`, `read_loggop`, `place_ranks`, `place_workload`. Units: ps, bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.jobs import Job
from weft.simulate.workload.collectives import ALGORITHMS, Plan, build_collective, bus_factor
from weft.simulate.workload.operations import MAX_RANKS, NO_RENDEZVOUS, LogGop, Operations
from weft.simulate.workload.workload_files import read_chakra, read_goal
from weft.toml_table import Table

MAX_SIZE = 2**40


def read_name(table: Table) -> str:
    """The name of traffic, which begins the names of its quantities."""
    name = table.text("name")
    if not name or any(c in name for c in ". \t\n"):
        raise InputError(table.place("name"), f"{name!r} cannot be a name", "no dots or spaces")
    return name


def read_file(table: Table, base: Path) -> Operations:
    """The operations in the file that a table names: Chakra's (.et), otherwise GOAL."""
    path = base / table.text("file")
    return read_chakra(path) if path.suffix == ".et" else read_goal(path)


def read_collective(
    table: Table, size_bytes: int, ranks: int | None, group: int
) -> tuple[Operations, Volume]:
    """The collective that a table describes; `ranks` and `group` are defaults."""
    operation = table.choice("operation", {name: name for name in ALGORITHMS})
    names = {name: name for name in ALGORITHMS[operation]}
    algorithm = table.choice("algorithm", names, next(iter(names)))
    repetitions = table.integer("repetitions", 1, 10**6, 1)
    default = () if ranks is None else (ranks,)
    plan = Plan(
        ranks=table.integer("ranks", 2, MAX_RANKS, *default),
        size_bytes=size_bytes,
        group=table.integer("group", 2, MAX_RANKS, max(group, 2)),
    )
    if plan.ranks < 2:
        raise InputError(table.place("hosts"), "one rank has nobody to talk to", "name more hosts")
    operations = build_collective(
        operation, algorithm, plan, repetitions=repetitions, place=table.place("algorithm")
    )
    factor = bus_factor(operation, plan.ranks)
    return operations, Volume(size_bytes=size_bytes, repetitions=repetitions, bus_factor=factor)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedWorkload:
    """One entry of a scenario's traffic under LogGOP."""

    name: str
    operations: Operations
    volume: Volume | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogGopScenario:
    """The LogGOP network of a scenario and what runs on it, each by itself."""

    parameters: LogGop
    workloads: tuple[NamedWorkload, ...]


def read_loggop(top: Table, base: Path) -> LogGopScenario | None:
    """The scenario's `[loggop]` and its traffic; None without `[loggop]`."""
    table = top.table_if_given("loggop")
    if table is None:
        return None
    if top.has("fabric"):
        raise InputError(
            top.place("loggop"), "has no fabric, but [fabric] is given", "remove one of the two"
        )
    parameters = LogGop(
        latency_ps=table.time_ps("L"),
        overhead_ps=table.time_ps("o"),
        gap_ps=table.time_ps("g"),
        gap_ps_per_byte=float(table.time_ps("G")),
        overhead_ps_per_byte=float(table.time_ps("O", 0)),
        rendezvous_above_bytes=table.size_bytes("S", 0, MAX_SIZE, NO_RENDEZVOUS),
    )
    table.done()
    return LogGopScenario(parameters=parameters, workloads=tuple(_read_workloads(top, base)))


def _read_workloads(top: Table, base: Path) -> Iterator[NamedWorkload]:
    names: set[str] = set()
    for table in top.tables("traffic"):
        name, kind = read_name(table), table.text("kind")
        if name in names:
            raise InputError(table.place("name"), f"{name!r} is used twice", "rename one")
        names.add(name)
        volume: Volume | None = None
        if kind == "workload":
            operations = read_file(table, base)
        elif kind == "collective":
            size = table.size_bytes("size", 1, MAX_SIZE)
            operations, volume = read_collective(table, size, None, 2)
        else:
            raise InputError(
                table.place("kind"),
                f"{kind!r} needs a fabric",
                "use workload or collective, or [fabric] instead of [loggop]",
            )
        table.done()
        yield NamedWorkload(name=name, operations=operations, volume=volume)


# ---- Placement on hosts -----------------------------------------------------------------------


NO_FLOW = 2**32 - 1  # both ranks are on one host


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What a collective moves, for its bus bandwidth."""

    size_bytes: int
    repetitions: int
    bus_factor: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedJob:
    """A job on its hosts, and the operations at which its stages begin and end.

    These are by [loop, stage, instance].
    """

    job: Job
    hosts: tuple[str, ...]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedWorkload:
    """Operations whose ranks are on hosts; `pairs` are the hosts that talk, once for each flow."""

    operations: Operations
    host: NDArray[np.uint32]  # by rank
    begin_ps: int
    pairs: NDArray[np.int64]  # rows of source and destination host
    messages: NDArray[np.int64]  # by pair
    flow: NDArray[np.uint32]  # by operation: the pair of a send, or NO_FLOW
    volume: Volume | None = None
    job: PlacedJob | None = None

    @property
    def largest_message_bytes(self) -> int:
        return int(self.operations.size_bytes.max(initial=0))


def place_ranks(ranks: int, hosts: Sequence[int], ranks_per_host: int, place: str) -> list[int]:
    """The host of each rank: `ranks_per_host` ranks side by side on each host, in order."""
    if ranks > len(hosts) * ranks_per_host:
        raise InputError(
            place,
            f"{ranks} ranks do not fit on {len(hosts)} hosts with {ranks_per_host} ranks each",
            "name more hosts, or raise ranks_per_host",
        )
    return [hosts[rank // ranks_per_host] for rank in range(ranks)]


def place_workload(
    operations: Operations,
    hosts: Sequence[int],
    begin_ps: int,
    volume: Volume | None = None,
    *,
    flows: int = 1,
    job: PlacedJob | None = None,
) -> PlacedWorkload:
    """The workload with rank r on hosts[r]; a message's tag modulo `flows` chooses its flow."""
    host = np.array(hosts, dtype=np.uint32)
    sends = operations.sends
    source, target = host[operations.rank[sends]], host[operations.peer[sends]]
    leaves = source != target
    keys = (source[leaves].astype(np.int64) << 28 | target[leaves]) * flows
    keys += operations.tag[sends[leaves]] % flows
    distinct, number, messages = np.unique(keys, return_inverse=True, return_counts=True)
    flow = np.full(len(operations), NO_FLOW, dtype=np.uint32)
    flow[sends[leaves]] = number
    return PlacedWorkload(
        operations=operations,
        host=host,
        begin_ps=begin_ps,
        pairs=np.stack([distinct // flows >> 28, distinct // flows & 0xFFFFFFF], axis=1),
        messages=messages,
        flow=flow,
        volume=volume,
        job=job,
    )
