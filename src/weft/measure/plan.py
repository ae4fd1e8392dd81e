"""Plans: which hosts send what to which, for how long, how often. One TOML file.

A plan is read whole and checked at every point of its sweep before anything is started. A step
is one point and repetition: all its flows start together and run for the same time.

Patterns, who sends to whom (`count` limits them to the first sources, or hosts):

one-to-one    the i-th source to the i-th target
many-to-one   every source to the one target
all-to-all    every host to every other
permutation   every host to one other and from one other, by a seed

Generators, what a sender does, with the settings of the tests:

latency          one message at a time (RPerf's LSG): ping-pong, or RPerf's own pairs
bandwidth        `depth` messages outstanding, without an answer (BSG)
pretend-latency  bandwidth in small messages, batched, in the class of the latency traffic

Entry points: `load_plan`, `plan_from`. Units: ns, bytes, bits per second.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.measure.settings.by_test import RperfSettings, check_settings
from weft.measure.settings.options import Settings, Windowed, parse_over, settings_from
from weft.measure.tests.latency import RPERF, check_rperf
from weft.records import Plain
from weft.toml_table import Table, load_toml

PS_PER_NS = 1000
MAX_STEPS = 10_000
GENERATORS = ("latency", "bandwidth", "pretend-latency")
ESTIMATORS = ("ping-pong", "rperf")
# Settings of the tests that a plan's traffic has too, by their names on the command line.
SHARED = (
    "endpoint",
    "size",
    "wait",
    "cpu",
    "numa",
    "pages",
    "dscp",
    "traffic_class",
    "priority",
    "busy_poll",
    "sl",
    "gid_index",
    "peer_gid_index",
    "port",
    "peer_port",
    "pkey",
    "mtu",
    "inline",
    "posting",
    "strict_ordering",
    "memory",
    "offset",
    "peer_device",
)
STREAMED = ("depth", "post_list", "signal_every")
PRETEND: Mapping[str, object] = {"size": 256, "post_list": 16}
BANDWIDTH: Mapping[str, object] = {"size": 4096, "depth": 16}

Class = Mapping[str, object]  # of service: sl, dscp, traffic_class
CLASS = ("sl", "dscp", "traffic_class")
PATTERNS = ("one-to-one", "many-to-one", "all-to-all", "permutation")
ONE_GROUP = ("all-to-all", "permutation")  # patterns within one group of hosts

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A kind, and the settings of its connection and loop."""

    kind: str
    settings: Settings

    @property
    def is_probe(self) -> bool:
        return self.kind == "latency"


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
class PlanPoint:
    """One point of the sweep: the file with one set of swept values in it."""

    name: str
    hosts: tuple[Host, ...]
    flows: tuple[Flow, ...]
    warmup_ns: int
    duration_ns: int
    repetitions: int
    seed: int
    coordinator: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole plan, checked: its hosts and its steps."""

    name: str
    hosts: tuple[Host, ...]
    steps: tuple[Step, ...]
    seed: int
    coordinator: str | None
    digest: str


def load_plan(path: str | Path, repetitions: int | None = None) -> Plan:
    """The plan in a file; `repetitions` replaces the file's own number."""
    changed = {} if repetitions is None else {"repetitions": repetitions}
    return plan_from(load_toml(path) | changed, where=str(path))


def plan_from(data: Mapping[str, Any], where: str = "plan") -> Plan:
    """The plan in a nested dict of the same keys as the TOML file."""
    content = copy.deepcopy(dict(data))
    swept = _read_sweep(content.pop("sweep", {}), where)
    points = [(values, _read_point(content, values, where)) for values in _combine(swept)]
    _, first = points[0]
    steps = tuple(
        Step(
            settings=values,
            repetition=repetition,
            flows=point.flows,
            warmup_ns=point.warmup_ns,
            duration_ns=point.duration_ns,
        )
        for repetition in range(1, first.repetitions + 1)
        for values, point in points
    )
    if not any(step.flows for step in steps):
        raise InputError(f"{where}: traffic", "no step has a flow", "raise count")
    if len(steps) > MAX_STEPS:
        raise InputError(
            f"{where}: sweep", f"{len(steps)} steps", f"use {MAX_STEPS} or fewer in one plan"
        )
    return Plan(
        name=first.name,
        hosts=first.hosts,
        steps=steps,
        seed=first.seed,
        coordinator=first.coordinator,
        digest=_digest(data),
    )


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _read_sweep(value: Any, where: str) -> dict[str, list[Plain]]:
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


def _combine(swept: Mapping[str, Sequence[Plain]]) -> list[dict[str, Plain]]:
    return [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]


def _read_point(data: Mapping[str, Any], values: Mapping[str, Plain], where: str) -> PlanPoint:
    changed = copy.deepcopy(dict(data))
    for key, value in values.items():
        _override(changed, key, value, where)
    top = Table(changed, where)
    seed = top.integer("seed", 0, 2**63 - 1, 1)
    hosts = _read_hosts(top)
    point = PlanPoint(
        name=top.text("name", "plan"),
        hosts=hosts,
        flows=_read_flows(list(top.tables("traffic")), hosts, seed, top.place("traffic")),
        warmup_ns=top.time_ps("warmup", 0) // PS_PER_NS,
        duration_ns=top.time_ps("duration", low=10**9) // PS_PER_NS,
        repetitions=top.integer("repetitions", 1, 1000, 1),
        seed=seed,
        coordinator=top.text("coordinator", None),
    )
    top.done()
    return point


def _override(data: dict[str, Any], key: str, value: Plain, where: str) -> None:
    """Sets `duration`, or `traffic.NAME.KEY`."""
    table: Any = data
    *path, last = key.split(".")
    if path:
        named = [t for t in data.get("traffic", ()) if t.get("name") == ".".join(path[1:])]
        if not named:
            names = ", ".join(str(t.get("name")) for t in data.get("traffic", ()))
            raise InputError(
                f"{where}: sweep.{key}", "names no traffic", f"write traffic.NAME.KEY of: {names}"
            )
        table = named[0]
    table[last] = value


def _read_hosts(top: Table) -> tuple[Host, ...]:
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


def _read_flows(
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
        pairs = _read_pairs(table, hosts, seed)
        generator, service_class = read_generator(table, latency_class)
        if generator.is_probe:
            latency_class = service_class
        table.done()
        flows += [Flow(traffic=name, source=a, target=b, generator=generator) for a, b in pairs]
    if not names:
        raise InputError(place, "there is none", "write [[traffic]]")
    return tuple(flows)


def _read_pairs(table: Table, hosts: Sequence[Host], seed: int) -> tuple[tuple[str, str], ...]:
    pattern = table.choice("pattern", {name: name for name in PATTERNS})
    is_one_group = pattern in ONE_GROUP
    sources = _read_names(table, "from", hosts, "all" if is_one_group else None)
    targets = () if is_one_group else _read_names(table, "to", hosts, None)
    count = table.integer("count", 0, len(sources), None)
    if pattern == "permutation":
        seed = table.integer("seed", 0, 2**63 - 1, seed)
    where = table.place("pattern")
    return list_pairs(pattern, sources, targets, count=count, seed=seed, where=where)


def _read_names(
    table: Table, key: str, hosts: Sequence[Host], default: str | None
) -> tuple[str, ...]:
    all_names = [host.name for host in hosts]
    texts = table.texts(key) if default is None else table.texts(key, default)
    names = tuple(all_names) if texts == ("all",) and "all" not in all_names else texts
    for name in names:
        if name not in all_names:
            raise InputError(
                table.place(key),
                f"{name!r} is not a host of the plan",
                f"hosts are {', '.join(all_names)}",
            )
    if len(set(names)) < len(names):
        raise InputError(table.place(key), "names a host twice", "name each host once")
    if not names:
        raise InputError(table.place(key), "names no host", "name at least one")
    return names


# ---- Generators -------------------------------------------------------------------------------


def read_generator(table: Table, latency_class: Class) -> tuple[Generator, Class]:
    """The generator of a traffic's table, and the class of service that it names."""
    kind = table.choice("generator", {name: name for name in GENERATORS})
    over = table.text("over", "tcp")
    if parse_over(over, table.place("over")).transport in ("delay", "mpi"):
        raise InputError(
            table.place("over"), f"{over} does not go between hosts", "use tcp, udp, ofi or verbs"
        )
    options = {"over": over} | _read_options(table, SHARED)
    service_class = {name: options[name] for name in CLASS if name in options}
    if kind == "latency":
        settings = _read_probe(table, options)
    elif kind == "bandwidth":
        settings = _read_stream(table, {**BANDWIDTH, **options})
    else:
        settings = _read_stream(table, {**PRETEND, **(service_class or latency_class), **options})
    return Generator(kind=kind, settings=settings), service_class


def _read_options(table: Table, names: Sequence[str]) -> dict[str, object]:
    values = {name: table.raw(name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _read_probe(table: Table, options: Mapping[str, object]) -> Settings:
    estimator = table.choice("estimator", {name: name for name in ESTIMATORS}, "ping-pong")
    if estimator == "ping-pong":
        return _check_settings(table, estimator, settings_from(Settings, options, table.place("")))
    order = table.raw("order", None)
    settings = settings_from(RperfSettings, {**options, "order": order}, table.place(""))
    return _check_settings(table, estimator, settings)


def _read_stream(table: Table, options: Mapping[str, object]) -> Settings:
    stream_options = {**options, **_read_options(table, STREAMED)}
    settings = settings_from(Windowed, stream_options, table.place(""))
    rate_bps = table.rate_bps("rate", None)
    if rate_bps is not None:
        settings = replace(settings, rate=rate_bps / 8 / settings.size_bytes)
    return _check_settings(table, "stream", settings)


def _check_settings(table: Table, test: str, settings: Settings) -> Settings:
    """As the single tests check them; errors name the traffic's place in the plan."""
    refused = RPERF.refused if isinstance(settings, RperfSettings) else {}
    try:
        check_settings(test, settings, refused)
        if isinstance(settings, RperfSettings):
            check_rperf(settings)
    except InputError as error:
        where = f"{table.place(error.where.removeprefix('--'))}"
        raise InputError(where, error.problem, error.remedy) from error
    return settings


# ---- Patterns ---------------------------------------------------------------------------------


def list_pairs(
    pattern: str,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    count: int | None = None,
    seed: int = 1,
    where: str = "pattern",
) -> tuple[Pair, ...]:
    """(source, target) of every flow; a pattern that lacks hosts is refused."""
    chosen = sources[: _check_count(sources, count, where)]
    if not chosen:
        return ()
    match pattern:
        case "one-to-one":
            pairs = _pair_one_to_one(sources, targets, where)[: len(chosen)]
        case "many-to-one":
            pairs = _pair_many_to_one(chosen, targets, where)
        case "all-to-all":
            pairs = [
                (a, b) for a in _check_several(chosen, pattern, where) for b in chosen if a != b
            ]
        case "permutation":
            pairs = _permute(_check_several(chosen, pattern, where), seed)
        case _:
            remedy = f"use one of {', '.join(PATTERNS)}"
            raise InputError(where, f"pattern {pattern!r} is unknown", remedy)
    for source, target in pairs:
        if source == target:
            raise InputError(where, f"{source} sends to itself", "name another host in `to`")
    return tuple(pairs)


def _check_count(sources: Sequence[str], count: int | None, where: str) -> int:
    if count is None:
        return len(sources)
    if not 0 <= count <= len(sources):
        raise InputError(
            where, f"count {count} of {len(sources)} hosts", f"use 0 to {len(sources)}"
        )
    return count


def _pair_one_to_one(sources: Sequence[str], targets: Sequence[str], where: str) -> list[Pair]:
    if len(sources) != len(targets):
        raise InputError(
            where,
            f"one-to-one has {len(sources)} sources and {len(targets)} targets",
            "name as many hosts in `from` as in `to`",
        )
    return list(zip(sources, targets, strict=True))


def _pair_many_to_one(sources: Sequence[str], targets: Sequence[str], where: str) -> list[Pair]:
    if len(targets) != 1:
        raise InputError(where, f"many-to-one has {len(targets)} targets", "name one host in `to`")
    return [(source, targets[0]) for source in sources]


def _check_several(hosts: Sequence[str], pattern: str, where: str) -> Sequence[str]:
    if len(hosts) < 2:
        raise InputError(where, f"{pattern} needs 2 hosts and has {len(hosts)}", "name more hosts")
    return hosts


def _permute(hosts: Sequence[str], seed: int) -> list[Pair]:
    """Shuffled until no host sends to itself, which one shuffle in e achieves."""
    rng = random.Random(seed)
    targets = list(hosts)
    while any(a == b for a, b in zip(hosts, targets, strict=True)):
        rng.shuffle(targets)
    return list(zip(hosts, targets, strict=True))
