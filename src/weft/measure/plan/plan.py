"""Plans: which hosts send what to which, for how long, how often. One TOML file.

A plan is read whole and checked at every point of its sweep before anything is started. A step
is one point and repetition: all its flows start together and run for the same time.
Entry points: `load_plan`, `plan_from`, `steps`. Units: ns, bytes, bits per second.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.measure.plan.generator import Class, Generator, read_generator
from weft.measure.plan.pattern import AMONG, PATTERNS, pairs
from weft.records import Plain
from weft.toml_table import Table, load_toml

PS_PER_NS = 1000
MOST_STEPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host by its name; without an address, the fleet's: loopback, or its worker's."""

    name: str
    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One sender and one receiver of one traffic."""

    traffic: str
    source: str
    target: str
    generator: Generator

    @property
    def name(self) -> str:
        """As quantities of single flows are named."""
        return f"{self.traffic}.{self.source}-{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One point of the sweep, one repetition."""

    settings: Mapping[str, Plain]
    repetition: int
    flows: tuple[Flow, ...]
    warmup_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan's own point: the file with one set of swept values in it."""

    name: str
    hosts: tuple[Host, ...]
    flows: tuple[Flow, ...]
    warmup_ns: int
    duration_ns: int
    repetitions: int
    seed: int
    coordinator: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything a plan's file asks for, checked."""

    name: str
    hosts: tuple[Host, ...]
    steps: tuple[Step, ...]
    seed: int
    coordinator: str | None
    digest: str


def load_plan(path: str | Path, repetitions: int | None = None) -> Program:
    """The steps of a plan's file; `repetitions` in the place of its own."""
    changed = {} if repetitions is None else {"repetitions": repetitions}
    return plan_from(load_toml(path) | changed, where=str(path))


def plan_from(data: Mapping[str, Any], where: str = "plan") -> Program:
    """The steps of a plan in a nested dict of the same keys as the TOML file."""
    content = copy.deepcopy(dict(data))
    swept = _sweep(content.pop("sweep", {}), where)
    plans = [(point, _plan(content, point, where)) for point in _points(swept)]
    _, first = plans[0]
    found = tuple(
        Step(
            settings=point,
            repetition=repetition,
            flows=plan.flows,
            warmup_ns=plan.warmup_ns,
            duration_ns=plan.duration_ns,
        )
        for repetition in range(1, first.repetitions + 1)
        for point, plan in plans
    )
    if not any(step.flows for step in found):
        raise InputError(f"{where}: traffic", "no step has a flow", "raise count")
    if len(found) > MOST_STEPS:
        raise InputError(
            f"{where}: sweep", f"{len(found)} steps", f"use {MOST_STEPS} or fewer in one plan"
        )
    return Program(
        name=first.name,
        hosts=first.hosts,
        steps=found,
        seed=first.seed,
        coordinator=first.coordinator,
        digest=_digest(data),
    )


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _sweep(value: Any, where: str) -> dict[str, list[Plain]]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: sweep", f"{value!r} is not a table", "write [sweep]")
    for key, values in value.items():
        place = f"{where}: sweep.{key}"
        if not isinstance(values, list) or not values:
            raise InputError(
                place,
                f"{values!r} is not a list of values",
                '"traffic.senders.count" = [0, 1, 2], with the key in quotes',
            )
        if len({json.dumps(v, default=str) for v in values}) < len(values):
            raise InputError(place, "has a value twice", "give each value once")
        if key.split(".")[0] != "traffic" and key not in ("duration", "warmup"):
            raise InputError(place, "cannot be swept", "sweep duration, warmup or traffic.NAME.KEY")
    return dict(value)


def _points(swept: Mapping[str, Sequence[Plain]]) -> list[dict[str, Plain]]:
    return [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]


def _plan(data: Mapping[str, Any], point: Mapping[str, Plain], where: str) -> Plan:
    changed = copy.deepcopy(dict(data))
    for key, value in point.items():
        _override(changed, key, value, where)
    top = Table(changed, where)
    seed = top.integer("seed", 0, 2**63 - 1, 1)
    hosts = _hosts(top)
    plan = Plan(
        name=top.text("name", "plan"),
        hosts=hosts,
        flows=_flows(list(top.tables("traffic")), hosts, seed, top.place("traffic")),
        warmup_ns=top.time_ps("warmup", 0) // PS_PER_NS,
        duration_ns=top.time_ps("duration", low=10**9) // PS_PER_NS,
        repetitions=top.integer("repetitions", 1, 1000, 1),
        seed=seed,
        coordinator=top.text("coordinator", None),
    )
    top.done()
    return plan


def _override(data: dict[str, Any], key: str, value: Plain, where: str) -> None:
    """Sets `duration`, or `traffic.NAME.KEY`."""
    at: Any = data
    *path, last = key.split(".")
    if path:
        named = [t for t in data.get("traffic", ()) if t.get("name") == ".".join(path[1:])]
        if not named:
            names = ", ".join(str(t.get("name")) for t in data.get("traffic", ()))
            raise InputError(
                f"{where}: sweep.{key}", "names no traffic", f"write traffic.NAME.KEY of: {names}"
            )
        at = named[0]
    at[last] = value


def _hosts(top: Table) -> tuple[Host, ...]:
    hosts: list[Host] = []
    for table in top.tables("host"):
        host = Host(name=table.text("name"), address=table.text("address", None))
        table.done()
        for other in hosts:
            if other.name == host.name:
                raise InputError(table.place("name"), "is given twice", "name each host once")
            if host.address is not None and other.address == host.address:
                raise InputError(
                    table.place("address"),
                    f"{host.address} is also {other.name}'s",
                    "give each host its own address",
                )
        hosts.append(host)
    if len(hosts) < 2:
        raise InputError(top.place("host"), f"{len(hosts)} hosts", "name at least 2")
    return tuple(hosts)


def _flows(
    tables: Sequence[Table], hosts: Sequence[Host], seed: int, place: str
) -> tuple[Flow, ...]:
    flows: list[Flow] = []
    latency_class: Class = {}
    names: set[str] = set()
    for table in tables:
        name = table.text("name")
        if name in names or "." in name or "-" in name:
            raise InputError(
                table.place("name"),
                f"{name!r} is taken, or has '.' or '-'",
                "names of traffic become names of quantities: use another",
            )
        names.add(name)
        found = _pairs(table, hosts, seed)
        generator, own_class = read_generator(table, latency_class)
        if generator.is_probe:
            latency_class = own_class
        table.done()
        flows += [Flow(traffic=name, source=a, target=b, generator=generator) for a, b in found]
    if not names:
        raise InputError(place, "there is none", "write [[traffic]]")
    return tuple(flows)


def _pairs(table: Table, hosts: Sequence[Host], seed: int) -> tuple[tuple[str, str], ...]:
    pattern = table.choice("pattern", {name: name for name in PATTERNS})
    among = pattern in AMONG
    sources = _named(table, "from", hosts, "all" if among else None)
    targets = () if among else _named(table, "to", hosts, None)
    count = table.integer("count", 0, len(sources), None)
    own = table.integer("seed", 0, 2**63 - 1, seed) if pattern == "permutation" else seed
    where = table.place("pattern")
    return pairs(pattern, sources, targets, count=count, seed=own, where=where)


def _named(table: Table, key: str, hosts: Sequence[Host], default: str | None) -> tuple[str, ...]:
    known = [host.name for host in hosts]
    given = table.texts(key) if default is None else table.texts(key, default)
    names = tuple(known) if given == ("all",) and "all" not in known else given
    for name in names:
        if name not in known:
            raise InputError(
                table.place(key),
                f"{name!r} is not a host of the plan",
                f"hosts are {', '.join(known)}",
            )
    if len(set(names)) < len(names):
        raise InputError(table.place(key), "names a host twice", "name each host once")
    if not names:
        raise InputError(table.place(key), "names no host", "name at least one")
    return names
