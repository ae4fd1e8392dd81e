"""What scenarios say about workloads: files, collectives, and the LogGOP network.

Entry points: `read_file`, `read_collective`, `read_loggop`. Units: ps, bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.simulate.workload.chakra import read_chakra
from weft.simulate.workload.collectives import ALGORITHMS, Plan, build_collective, bus_factor
from weft.simulate.workload.goal import read_goal
from weft.simulate.workload.loggop import NEVER_PS, LogGop
from weft.simulate.workload.operations import MAX_RANKS, Operations
from weft.simulate.workload.placement import Volume
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
        rendezvous_above_bytes=table.size_bytes("S", 0, MAX_SIZE, NEVER_PS),
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
