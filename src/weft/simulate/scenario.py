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
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from weft import __version__
from weft._core import AdapterSpec, ArbTables, CongestionControl, CreditSpec, Order, SwitchSpec
from weft.errors import InputError, locate_errors
from weft.fabric import Fabric, check_fabric, check_reach, read_fabric, route
from weft.fabric.toml_file import build_topology, read_toml
from weft.simulate.traffic import Traffic, read_traffic
from weft.toml_table import Table, load_toml

ORDERS = {"fcfs": Order.FCFS, "fcfs-age": Order.FCFS_AGE, "round-robin": Order.ROUND_ROBIN}
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
    changed = copy.deepcopy(dict(data))
    for key, value in (overrides or {}).items():
        _apply_override(changed, key, value, where)
    top = Table(changed, where)
    return _read_scenario(top, changed, dict(overrides or {}), base)


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
    system = top.choice("system", {name: name for name in system_names()}, "ideal")
    values = system_values(system)
    seed = top.integer("seed", 0, 2**63 - 1, 1)
    duration = top.time_ps("duration", low=1)
    warmup = top.time_ps("warmup", 0)
    if warmup >= duration:
        raise InputError(
            top.place("warmup"), "leaves nothing to observe", "make it shorter than duration"
        )
    sample = top.time_ps("sample_queues_every", 0)
    fabric = read_scenario_fabric(top.table("fabric"), base)
    host = _merge_section(top, "host", values)
    think = host.time_ps("think", 0)
    switch = _merge_section(top, "switch", values)
    credits = _read_credits(_merge_section(top, "credits", values), switch, host)
    congestion = _read_congestion(top.table("congestion", {}))
    switches = _read_switches(switch, congestion)
    adapter = _read_adapter(host)
    lanes = _read_lanes(top.table("lanes", {}), fabric)
    traffic = tuple(
        read_traffic(table, fabric, seed=seed, think_ps=think, base=base)
        for table in top.tables("traffic")
    )
    top.done()
    _check_traffic(traffic, credits, top)
    _check_served(traffic, lanes, top)
    _check_routes(traffic, fabric, top)
    _check_samples(sample, duration, fabric, top)
    return Scenario(
        name=name,
        seed=seed,
        duration_ps=duration,
        warmup_ps=warmup,
        sample_ps=sample,
        system=system,
        fabric=fabric,
        lanes=lanes,
        switches=switches,
        credits=credits,
        adapter=adapter,
        traffic=traffic,
        digest=_compute_digest(data, base),
        settings={key: _to_setting(value) for key, value in settings.items()},
    )


def _compute_digest(data: Mapping[str, Any], base: Path) -> str:
    """A digest of everything that decides the result: scenario, the files it names, weft."""
    digest = hashlib.sha256(
        f"{__version__} {json.dumps(data, sort_keys=True, default=str)}".encode()
    )
    tables = [data.get("fabric", {}), *data.get("traffic", [])]
    for name in (name for table in tables for name in _as_list(table.get("file", []))):
        digest.update((base / name).read_bytes())
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
    if table.has("toml"):
        text = table.text("toml")
        table.done()
        return read_toml(text, f"{table.where}: fabric.toml")
    if not table.has("file"):
        return build_topology(table)
    files = [str(base / file) for file in table.texts("file")]
    routing = table.text("routing", "")
    lanes = table.integer("lanes", 1, 15, None)
    delay = table.text("delay", None)
    table.done()
    fabric = read_fabric(files if len(files) > 1 else files[0], lanes=lanes, delay=delay)
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


def _read_switches(table: Table, congestion: CongestionControl) -> SwitchSpec:
    spec = SwitchSpec()
    spec.latency_ps = table.time_ps("latency")
    spec.jitter_mean_ps = table.time_ps("jitter", 0)
    spec.order = table.choice("order", ORDERS)
    spec.virtual_output_queues = table.flag("virtual_output_queues", False)
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
        node, number = _read_switch_port(port, fabric)
        if port.has("sl2vl"):
            in_port = port.integer("in", 0, fabric.nodes[node].ports, 0)
            maps.append((node, in_port, number, _read_sl2vl(port, lanes)))
        if port.has("low") or port.has("high"):
            ports.append((node, number, _read_arbitration(port, lanes)[0]))
        port.done()
    table.done()
    return LanePlan(
        sl2vl=sl2vl, tables=tables, served=served, port_tables=tuple(ports), port_sl2vl=tuple(maps)
    )


def _read_switch_port(table: Table, fabric: Fabric) -> tuple[int, int]:
    name = table.text("node")
    nodes = {node.name: i for i, node in enumerate(fabric.nodes)}
    if name not in nodes:
        raise InputError(table.place("node"), f"{name!r} is not in the fabric", "check the name")
    return nodes[name], table.integer("port", 0, fabric.nodes[nodes[name]].ports)


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


def _check_traffic(traffic: tuple[Traffic, ...], credits: CreditSpec, top: Table) -> None:
    names = [t.name for t in traffic]
    for name in names:
        if names.count(name) > 1:
            raise InputError(top.place("traffic"), f"the name {name!r} is used twice", "rename one")
    largest = max((t.largest_packet_bytes for t in traffic), default=0)
    for key, size in (("switch", credits.switch_buffer_bytes), ("host", credits.host_buffer_bytes)):
        if size // 64 * 64 < largest:
            raise InputError(
                f"{top.where}: {key}.buffer",
                f"{size} B gives a lane no credit for a packet of {largest} B",
                f"use {-(-largest // 64) * 64} B or more, or a smaller mtu",
            )


def _check_served(traffic: tuple[Traffic, ...], lanes: LanePlan, top: Table) -> None:
    for entry in traffic:
        for sl in sorted({flow.sl for flow in entry.flows}):
            if lanes.sl2vl[sl] not in lanes.served:
                raise InputError(
                    f"{top.where}: traffic.{entry.name}.sl",
                    f"service level {sl} rides lane {lanes.sl2vl[sl]}, which no table serves",
                    "give the lane a weight in lanes.low or lanes.high",
                )


def _check_routes(traffic: tuple[Traffic, ...], fabric: Fabric, top: Table) -> None:
    """Every flow must arrive, there and back, whichever of the equal ports it takes."""
    pairs = {(flow.src, flow.dst) for entry in traffic for flow in entry.flows}
    with locate_errors(top.where):
        check_reach(fabric, sorted(pairs | {(dst, src) for src, dst in pairs}))


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
