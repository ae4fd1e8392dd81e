"""A scenario: fabric, system parameters, lanes and traffic of one simulated run.

Written as TOML or as the same nested dict in Python; every key is checked, every error names
file, key, value and what is allowed. Named systems (`systems.toml`) give the parameters, each value
with its source. Entry points: `load_scenario`, `scenario_from`.
Units: ps, bytes, bits per second.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from weft import __version__
from weft._core import AdapterSpec, ArbTables, CongestionControl, CreditSpec, Order, SwitchSpec
from weft.errors import InputError, locate_errors
from weft.fabric import Fabric, check_fabric, check_reach, read_fabric, route
from weft.fabric.fabric import MAX_PORTS
from weft.fabric.soundness import MAX_LANES
from weft.fabric.toml_file import build_topology, read_toml
from weft.simulate.job_traffic import read_jobs
from weft.simulate.lane_budget import LaneBudget, read_budget
from weft.simulate.traffic import NEVER_PS, Part, Traffic, read_traffic
from weft.simulate.workload.chakra import list_rank_files
from weft.simulate.workload.scenario_tables import LogGopScenario, read_loggop
from weft.toml_table import Table, load_toml, read_text

ORDERS = {"fcfs": Order.FCFS, "fcfs-age": Order.FCFS_AGE, "round-robin": Order.ROUND_ROBIN}
FLOW_KINDS = (
    "bandwidth",
    "pretend",
    "incast",
    "permutation",
    "random",
    "shuffle",
    "workload",
    "collective",
)
MAX_BUFFER = 2**36
MAX_SAMPLES = 2**27  # of 4 bytes, over all lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """Virtual lanes: which service level rides on which, and how ports arbitrate."""

    sl2vl: tuple[int, ...]
    tables: ArbTables
    served: frozenset[int]  # lanes that some entry of the tables serves
    port_tables: tuple[tuple[int, int, ArbTables], ...] = ()
    port_sl2vl: tuple[tuple[int, int, int, tuple[int, ...]], ...] = ()
    budget: LaneBudget | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortBuffer:
    """The buffer of one input port of a switch, per lane."""

    key: str  # of the scenario, for errors
    node: int
    port: int  # 0 is every port
    lane: int  # -1 is every lane
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowAccuracy:
    """How exactly the flow level solves rates; the default is as exact as rounding allows."""

    step_ps: int = 0  # changes are solved together at multiples of it
    tolerance: float = 0.0  # relative change of a share that other ports do not see


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything one run needs; `digest` is of the text it came from."""

    name: str
    seed: int
    duration_ps: int
    warmup_ps: int
    sample_ps: int
    system: str
    fabric: Fabric
    lanes: LanePlan
    switches: SwitchSpec
    credits: CreditSpec
    adapter: AdapterSpec
    traffic: tuple[Traffic, ...]
    first_flow: int = 0  # its number, by which switches choose among equal ports
    level: str = "packet"  # or "flow"
    flow_accuracy: FlowAccuracy = FlowAccuracy()
    buffers: tuple[PortBuffer, ...] = ()
    loggop: LogGopScenario | None = None  # instead of the fabric and its traffic
    settings: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""


def load_scenario(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario in a TOML file, with dotted keys overridden."""
    path = Path(path)
    return scenario_from(load_toml(path), overrides, where=str(path), base=path.parent)


def scenario_from(
    data: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    where: str = "scenario",
    base: Path = Path(),
) -> Scenario:
    """The scenario in a nested dict of the same keys as the TOML file."""
    changed = _apply_overrides(data, overrides or {}, where)
    top = Table(changed, where)
    return _read_scenario(top, changed, dict(overrides or {}), base)


def compute_digest(
    data: Mapping[str, Any], overrides: Mapping[str, Any], *, where: str, base: Path
) -> str:
    """The digest that the scenario will have, without building its fabric."""
    return _compute_digest(_apply_overrides(data, overrides, where), base)


def _apply_overrides(
    data: Mapping[str, Any], overrides: Mapping[str, Any], where: str
) -> dict[str, Any]:
    changed = copy.deepcopy(dict(data))
    for key, value in overrides.items():
        _apply_override(changed, key, value, where)
    return changed


def _apply_override(data: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set `a.b.c`; an element of an array of tables is addressed by its name."""
    *path, last = key.split(".")
    at: Any = data
    for step in path:
        if isinstance(at, list):
            named = [item for item in at if isinstance(item, dict) and item.get("name") == step]
            if not named:
                names = ", ".join(str(i.get("name")) for i in at if isinstance(i, dict))
                raise InputError(
                    f"{where}: {key}", f"no entry named {step!r}", f"there are {names}"
                )
            at = named[0]
        else:
            at = at.setdefault(step, {})
        if not isinstance(at, dict | list):
            raise InputError(f"{where}: {key}", f"{step!r} is not a table", "check the key")
    if isinstance(at, list):
        raise InputError(f"{where}: {key}", "names an entry, not a key of it", f"add .KEY to {key}")
    at[last] = value


def _read_scenario(
    top: Table, data: dict[str, Any], settings: dict[str, Any], base: Path
) -> Scenario:
    name = top.text("name", "scenario")
    if (loggop := read_loggop(top, base)) is not None:
        return _loggop_scenario(top, data, settings, name, loggop, base)
    system = top.choice("system", {name: name for name in system_names()}, "ideal")
    values = system_values(system)
    seed = top.integer("seed", 0, 2**63 - 1, 1)
    duration, warmup, sample = _read_times(top)
    fabric = read_scenario_fabric(top.table("fabric"), base)
    host = _merge_section(top, "host", values)
    think = host.time_ps("think", 0)
    switch = _merge_section(top, "switch", values)
    scenario = Scenario(
        name=name,
        seed=seed,
        duration_ps=duration,
        warmup_ps=warmup,
        sample_ps=sample,
        system=system,
        fabric=fabric,
        credits=_read_credits(_merge_section(top, "credits", values), switch, host),
        buffers=_read_port_buffers(switch, fabric),
        switches=_read_switches(switch, _read_congestion(top.table("congestion", {}))),
        adapter=_read_adapter(host),
        lanes=_read_lanes(top.table("lanes", {}), fabric),
        traffic=_read_all_traffic(top, fabric, seed, think, duration, base),
        level=top.choice("level", {level: level for level in ("packet", "flow")}, "packet"),
        flow_accuracy=_read_flow_accuracy(top.table("flow", {}), duration),
        digest=_compute_digest(data, base),
        settings={key: _to_setting(value) for key, value in settings.items()},
    )
    top.done()
    _check_scenario(scenario, top)
    if scenario.level == "flow":
        _check_flow_level(scenario, data, top)
    return scenario


def _loggop_scenario(
    top: Table,
    data: dict[str, Any],
    settings: dict[str, Any],
    name: str,
    loggop: LogGopScenario,
    base: Path,
) -> Scenario:
    """A scenario without a fabric, whose network is LogGOP."""
    top.done()
    return Scenario(
        name=name,
        seed=1,
        duration_ps=NEVER_PS,
        warmup_ps=0,
        sample_ps=0,
        system="loggop",
        fabric=Fabric("loggop", (), ()),
        lanes=LanePlan(sl2vl=(0,) * 16, tables=ArbTables([], [], 255), served=frozenset()),
        switches=SwitchSpec(),
        credits=CreditSpec(),
        adapter=AdapterSpec(),
        traffic=(),
        loggop=loggop,
        digest=_compute_digest(data, base),
        settings={key: _to_setting(value) for key, value in settings.items()},
    )


def _read_times(top: Table) -> tuple[int, int, int]:
    """Duration, warm-up and the period of samples."""
    duration, warmup = top.time_ps("duration", low=1), top.time_ps("warmup", 0)
    if warmup >= duration:
        raise InputError(
            top.place("warmup"), "leaves nothing to observe", "make it shorter than duration"
        )
    return duration, warmup, top.time_ps("sample_queues_every", 0)


def _read_flow_accuracy(table: Table, duration_ps: int) -> FlowAccuracy:
    step_ps = table.time_ps("step", 0)
    if step_ps > duration_ps:
        raise InputError(table.place("step"), "is longer than the run", "make it far shorter")
    # Rounding alone would never let coarse steps settle.
    tolerance = table.number("tolerance", 0.0, 0.1, 1e-3 if step_ps else 0.0)
    table.done()
    return FlowAccuracy(step_ps=step_ps, tolerance=tolerance)


def _read_all_traffic(
    top: Table, fabric: Fabric, seed: int, think_ps: int, duration_ps: int, base: Path
) -> tuple[Traffic, ...]:
    """The traffic, and after it the jobs: one of the two is required."""
    jobs = read_jobs(
        list(top.tables("job", [])), fabric, seed=seed, duration_ps=duration_ps, base=base
    )
    tables = list(top.tables("traffic", [])) if jobs else list(top.tables("traffic"))
    names = [table.prefix.split(".")[1] for table in tables] + [job.name for job in jobs]
    traffic = (
        read_traffic(table, fabric, seed=seed, think_ps=think_ps, base=base, names=names)
        for table in tables
    )
    return (*traffic, *jobs)


def _check_scenario(scenario: Scenario, top: Table) -> None:
    """What no single key can tell: how the parts fit each other."""
    _check_names(scenario.traffic, top)
    _check_stops(scenario.traffic, top)
    _check_buffers(scenario, top)
    _check_served(scenario.traffic, scenario.lanes, top)
    _check_routes(scenario.traffic, scenario.fabric, top)
    _check_samples(scenario.sample_ps, scenario.duration_ps, scenario.fabric, top)


def _check_flow_level(scenario: Scenario, data: Mapping[str, Any], top: Table) -> None:
    """Whether everything asked for has a meaning at flow level."""
    remedy = 'leave it out, or set level = "packet"'
    for entry in data.get("traffic", []):
        if entry["kind"] not in FLOW_KINDS:
            raise InputError(
                f"{top.where}: traffic.{entry['name']}.kind",
                f"{entry['kind']!r} has no meaning at flow level",
                f'use {", ".join(FLOW_KINDS)}, or set level = "packet"',
            )
    lanes = data.get("lanes", {})
    for tables in (lanes, *lanes.get("port", [])):
        if tables.get("high") and tables.get("high_limit", 255) != 255:
            problem = f"{tables['high_limit']} has no meaning at flow level"
            raise InputError(top.place("lanes.high_limit"), problem, "use 255, no limit")
    if scenario.switches.congestion.enabled:
        raise InputError(top.place("congestion.enabled"), "has no meaning at flow level", remedy)
    if scenario.lanes.budget is not None:
        raise InputError(top.place("lanes.budget"), "has no meaning at flow level", remedy)
    if scenario.sample_ps:
        raise InputError(top.place("sample_queues_every"), "has no meaning at flow level", remedy)


def _compute_digest(data: Mapping[str, Any], base: Path) -> str:
    """A digest of everything that decides the result: scenario, the files it names, weft."""
    digest = hashlib.sha256(
        f"{__version__} {json.dumps(data, sort_keys=True, default=str)}".encode()
    )
    tables = [data.get("fabric", {}), *data.get("traffic", []), *data.get("job", [])]
    for name in (name for table in tables for name in _as_list(table.get("file", []))):
        path = base / name
        for file in list_rank_files(path) if path.suffix == ".et" else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _to_setting(value: Any) -> Any:
    """A setting as a plain value; a list as its JSON text."""
    return value if isinstance(value, str | int | float | bool) else json.dumps(value)


def _merge_section(top: Table, section: str, values: Mapping[str, Mapping[str, Any]]) -> Table:
    """A section of the scenario on top of the system's values."""
    overrides = top.table(section, {}).rest()
    return Table({**values.get(section, {}), **overrides}, top.where, f"{section}.")


def read_scenario_fabric(table: Table, base: Path) -> Fabric:
    """The fabric of a scenario: a topology by name, files, or the text of one in TOML."""
    if not table.has("toml") and not table.has("file"):
        return build_topology(table)
    routing = table.text("routing", "")
    if table.has("toml"):
        text = table.text("toml")
        table.done()
        return _read_text(text, f"{table.where}: fabric.toml", routing)
    files = tuple(str(base / file) for file in table.texts("file"))
    lanes = table.integer("lanes", 1, MAX_LANES, None)
    delay = table.text("delay", None)
    table.done()
    digests = tuple(hashlib.sha256(read_text(Path(file)).encode()).digest() for file in files)
    return _read_files(files, digests, lanes, delay, routing)


# The points of a sweep mostly share their fabric, and each is read before any runs.
@lru_cache(maxsize=1)
def _read_text(text: str, where: str, routing: str) -> Fabric:
    return _route_fabric(read_toml(text, where), routing)


@lru_cache(maxsize=1)
def _read_files(
    files: tuple[str, ...],
    _digests: tuple[bytes, ...],  # a file that changes is read again
    lanes: int | None,
    delay: str | None,
    routing: str,
) -> Fabric:
    return _route_fabric(read_fabric(files, lanes=lanes, delay=delay), routing)


def _route_fabric(fabric: Fabric, routing: str) -> Fabric:
    if routing or (fabric.routes is None and fabric.switches):
        fabric = route(fabric, routing or "up_down")
    return check_fabric(fabric)


def _read_credits(table: Table, switch: Table, host: Table) -> CreditSpec:
    spec = CreditSpec()
    spec.interval_ps = table.time_ps("interval", 0)
    spec.delay_ps = table.time_ps("delay", 0)
    spec.switch_buffer_bytes = switch.size_bytes("buffer", 1, MAX_BUFFER)
    spec.host_buffer_bytes = host.size_bytes("buffer", 1, MAX_BUFFER)
    table.done()
    return spec


def _read_port_buffers(switch: Table, fabric: Fabric) -> tuple[PortBuffer, ...]:
    buffers = []
    for table in switch.tables("port", []):
        node, port = _read_port(table, fabric)
        if fabric.nodes[node].kind != "switch":
            problem = f"{fabric.nodes[node].name!r} is a host"
            raise InputError(table.place("node"), problem, "name a switch, or set host.buffer")
        lane = table.integer("lane", 0, fabric.lanes - 1, None)
        buffers.append(
            PortBuffer(
                key=f"{table.prefix}buffer",
                node=node,
                port=port,
                lane=-1 if lane is None else lane,
                size_bytes=table.size_bytes("buffer", 1, MAX_BUFFER),
            )
        )
        table.done()
    return tuple(buffers)


def _read_switches(table: Table, congestion: CongestionControl) -> SwitchSpec:
    spec = SwitchSpec()
    spec.latency_ps = table.time_ps("latency")
    spec.jitter_mean_ps = table.time_ps("jitter", 0)
    spec.order = table.choice("order", ORDERS)
    spec.virtual_output_queues = table.flag("virtual_output_queues", False)
    spec.crossbar_speedup = table.integer("crossbar_speedup", 1, MAX_PORTS, None) or 0
    if spec.crossbar_speedup and not spec.virtual_output_queues:
        raise InputError(
            table.place("crossbar_speedup"),
            f"{spec.crossbar_speedup} is given, but inputs are FIFO",
            "set switch.virtual_output_queues = true, or leave it out",
        )
    spec.congestion = congestion
    table.done()
    return spec


def _read_congestion(table: Table) -> CongestionControl:
    spec = CongestionControl()
    spec.enabled = table.flag("enabled", False)
    spec.threshold_bytes = table.size_bytes("threshold", 1, MAX_BUFFER, 16384)
    spec.marking_rate = table.integer("marking_rate", 0, 65535, 0)
    spec.increase = table.integer("increase", 1, 255, 1)
    spec.limit = table.integer("limit", 1, 65535, 127)
    spec.timer_ps = table.time_ps("timer", 10_000_000)
    spec.step = table.number("step", 0.0, 1e6, 0.5)
    table.done()
    return spec


def _read_adapter(table: Table) -> AdapterSpec:
    spec = AdapterSpec()
    for key in (
        "post",
        "poll",
        "pcie_read",
        "pcie_write",
        "tx",
        "rx",
        "write_ack",
        "doorbell_gap",
        "message_gap",
        "packet_gap",
    ):
        setattr(spec, f"{key}_ps", table.time_ps(key, 0))
    spec.hiccup_mean_ps = table.time_ps("hiccup", 0)
    spec.hiccup_probability = table.number("hiccup_probability", 0.0, 1.0, 0.0)
    spec.poll_jitter_mean_ps = table.time_ps("poll_jitter", 0)
    spec.pcie_read_bps = table.rate_bps("pcie_read_rate", 0.0)
    spec.pcie_write_bps = table.rate_bps("pcie_write_rate", 0.0)
    spec.loopback_bps = table.rate_bps("loopback_rate", 0.0)
    spec.inline_bytes = table.size_bytes("inline", 0, 65536, 0)
    table.done()
    return spec


def _read_lanes(table: Table, fabric: Fabric) -> LanePlan:
    lanes = fabric.lanes
    sl2vl = _read_sl2vl(table, lanes)
    tables, served = _read_arbitration(table, lanes)
    ports: list[tuple[int, int, ArbTables]] = []
    maps: list[tuple[int, int, int, tuple[int, ...]]] = []
    for port in table.tables("port", []):
        node, number = _read_port(port, fabric)
        if port.has("sl2vl"):
            in_port = port.integer("in", 0, fabric.nodes[node].ports, 0)
            maps.append((node, in_port, number, _read_sl2vl(port, lanes)))
        if port.has("low") or port.has("high"):
            ports.append((node, number, _read_arbitration(port, lanes)[0]))
        port.done()
    budget = read_budget(table.table_if_given("budget"))
    table.done()
    return LanePlan(
        sl2vl=sl2vl,
        tables=tables,
        served=served,
        port_tables=tuple(ports),
        port_sl2vl=tuple(maps),
        budget=budget,
    )


def _read_port(table: Table, fabric: Fabric) -> tuple[int, int]:
    name = table.text("node")
    nodes = {node.name: i for i, node in enumerate(fabric.nodes)}
    if name not in nodes:
        raise InputError(table.place("node"), f"{name!r} is not in the fabric", "check the name")
    port = table.integer("port", 0, fabric.nodes[nodes[name]].ports)
    linked = fabric.neighbors(nodes[name])
    if port and port not in linked:
        ports = ", ".join(map(str, linked))
        raise InputError(table.place("port"), f"{port} has no link", f"use 0 for all, or {ports}")
    return nodes[name], port


def _read_sl2vl(table: Table, lanes: int) -> tuple[int, ...]:
    default = [sl % lanes for sl in range(16)]
    value = table.raw("sl2vl", default)
    lane_map = list(value) if isinstance(value, list) else None
    if (
        lane_map is None
        or not 1 <= len(lane_map) <= 16
        or not all(type(v) is int for v in lane_map)
    ):
        raise InputError(table.place("sl2vl"), f"{value!r} is not a list of lanes", "give 1 to 16")
    for vl in lane_map:
        if not 0 <= vl < lanes:
            raise InputError(
                table.place("sl2vl"),
                f"lane {vl} does not exist",
                f"the fabric has lanes 0 to {lanes - 1}",
            )
    return (*lane_map, *[lane_map[-1]] * (16 - len(lane_map)))


def _read_arbitration(table: Table, lanes: int) -> tuple[ArbTables, frozenset[int]]:
    low = _read_entries(table, "low", lanes, [[vl, 64] for vl in range(lanes)])
    high = _read_entries(table, "high", lanes, [])
    served = frozenset(vl for vl, weight in [*high, *low] if weight)
    return ArbTables(high, low, table.integer("high_limit", 0, 255, 255)), served


def _read_entries(table: Table, key: str, lanes: int, default: list[list[int]]) -> list[list[int]]:
    value = table.raw(key, default)
    if not isinstance(value, list) or len(value) > 64:
        raise InputError(
            table.place(key), f"{value!r} is not a table", "list up to 64 [lane, weight]"
        )
    for entry in value:
        if not isinstance(entry, list) or [type(x) for x in entry] != [int, int]:
            raise InputError(table.place(key), f"{entry!r} is not [lane, weight]", "write pairs")
        vl, weight = entry
        if not 0 <= vl < lanes:
            raise InputError(
                table.place(key),
                f"lane {vl} does not exist",
                f"the fabric has lanes 0 to {lanes - 1}",
            )
        if not 0 <= weight <= 255:
            raise InputError(table.place(key), f"weight {weight} is out of range", "use 0 to 255")
    return value


def _check_names(traffic: tuple[Traffic, ...], top: Table) -> None:
    names = [t.name for t in traffic]
    for name in names:
        if names.count(name) > 1:
            raise InputError(top.place("traffic"), f"the name {name!r} is used twice", "rename one")


def _check_stops(traffic: tuple[Traffic, ...], top: Table) -> None:
    """Traffic that stops another must end by itself."""
    for entry in traffic:
        stops = {n for part in entry.parts for n in np.unique(part.flows.stops_with) if n >= 0}
        for other in (traffic[number] for number in stops):
            if any(_has_no_end(part) for part in other.parts):
                raise InputError(
                    f"{top.where}: traffic.{entry.name}.stop",
                    f"{other.name!r} does not end by itself",
                    "name traffic with a number of messages and without such a stop",
                )


def _has_no_end(part: Part) -> bool:
    placed = part.workload.job if part.workload is not None else None
    if placed is not None and placed.job.loops is None:
        return True
    return bool((part.flows.messages < 0).any() or (part.flows.stops_with >= 0).any())


def _check_buffers(scenario: Scenario, top: Table) -> None:
    """Every buffer must hold the largest packet."""
    largest = max((t.largest_packet_bytes for t in scenario.traffic), default=0)
    sizes = [
        ("switch.buffer", scenario.credits.switch_buffer_bytes),
        ("host.buffer", scenario.credits.host_buffer_bytes),
        *((buffer.key, buffer.size_bytes) for buffer in scenario.buffers),
    ]
    for key, size in sizes:
        if size // 64 * 64 < largest:
            raise InputError(
                f"{top.where}: {key}",
                f"{size} B gives a lane no credit for a packet of {largest} B",
                f"use {-(-largest // 64) * 64} B or more, or a smaller mtu",
            )


def _check_served(traffic: tuple[Traffic, ...], lanes: LanePlan, top: Table) -> None:
    for entry in traffic:
        levels = {sl for part in entry.parts for sl in np.unique(part.flows.service_levels)}
        for sl in sorted(levels):
            if lanes.sl2vl[sl] not in lanes.served:
                raise InputError(
                    f"{top.where}: traffic.{entry.name}.sl",
                    f"service level {sl} rides lane {lanes.sl2vl[sl]}, which no table serves",
                    "give the lane a weight in lanes.low or lanes.high",
                )


def _check_routes(traffic: tuple[Traffic, ...], fabric: Fabric, top: Table) -> None:
    """Every flow must arrive, there and back, whichever of the equal ports it takes."""
    parts = [part.flows for entry in traffic for part in entry.parts]
    sources = np.concatenate([[], *(flows.sources for flows in parts)]).astype(np.int64)
    targets = np.concatenate([[], *(flows.targets for flows in parts)]).astype(np.int64)
    with locate_errors(top.where):
        check_reach(fabric, np.concatenate([sources, targets]), np.concatenate([targets, sources]))


def _check_samples(sample_ps: int, duration_ps: int, fabric: Fabric, top: Table) -> None:
    lanes = 2 * len(fabric.links) * fabric.lanes
    if sample_ps and duration_ps // sample_ps * lanes > MAX_SAMPLES:
        least = duration_ps * lanes // MAX_SAMPLES + 1
        raise InputError(
            top.place("sample_queues_every"),
            f"{sample_ps} ps makes too many samples of {lanes} lanes",
            f"use {least} ps or more",
        )


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of one system."""

    system: str
    section: str
    key: str
    value: str
    meaning: str
    source: str


@cache
def _document() -> dict[str, Any]:
    return load_toml(str(files("weft.simulate").joinpath("systems.toml")))


def system_names() -> tuple[str, ...]:
    return tuple(_document())


def parameters(system: str) -> Iterator[Parameter]:
    """Every parameter of a system, in the order of the file."""
    for section, keys in _system(system).items():
        if isinstance(keys, dict):
            for key, entry in keys.items():
                yield Parameter(system, section, key, **entry)


def system_values(system: str) -> dict[str, dict[str, str]]:
    """section -> key -> value, as a scenario would write them."""
    values: dict[str, dict[str, str]] = {}
    for p in parameters(system):
        values.setdefault(p.section, {})[p.key] = p.value
    return values


def _system(name: str) -> dict[str, Any]:
    try:
        return _document()[name]  # type: ignore[no-any-return]
    except KeyError:
        raise InputError(
            "system", f"{name!r} is unknown", f"use one of {', '.join(system_names())}"
        ) from None
