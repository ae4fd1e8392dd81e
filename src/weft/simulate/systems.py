"""Switches, credits, adapters and lanes of a scenario, and the systems that have them by name.

A named system (`systems.toml`) gives the parameters, each value with its source; a scenario changes
single ones. Entry points: `read_switches`, `read_credits`, `read_adapter`, `read_lanes`,
`parameters`. Units: ps, bytes, bits per second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from weft._core import (
    AdapterSpec,
    ArbTables,
    CongestionControl,
    CreditSpec,
    GrantSpec,
    Order,
    SwitchSpec,
)
from weft.errors import InputError
from weft.fabric import Fabric
from weft.fabric.fabric import MAX_PORTS
from weft.simulate.lane_budget import LaneBudget, read_budget
from weft.toml_table import Table, load_toml
from weft.units import parse_size

ORDERS = {"fcfs": Order.FCFS, "fcfs-age": Order.FCFS_AGE, "round-robin": Order.ROUND_ROBIN}
MAX_BUFFER = 2**36


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


def read_credits(table: Table, switch: Table, host: Table) -> CreditSpec:
    spec = CreditSpec()
    spec.interval_ps = table.time_ps("interval", 0)
    spec.delay_ps = table.time_ps("delay", 0)
    spec.switch_buffer_bytes = switch.size_bytes("buffer", 1, MAX_BUFFER)
    spec.host_buffer_bytes = host.size_bytes("buffer", 1, MAX_BUFFER)
    table.done()
    return spec


def read_port_buffers(switch: Table, fabric: Fabric) -> tuple[PortBuffer, ...]:
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


def read_switches(table: Table, congestion: CongestionControl) -> SwitchSpec:
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


def read_congestion(table: Table) -> CongestionControl:
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


def read_grants(table: Table | None, lanes: int) -> GrantSpec:
    """Receivers that grant; the fabric's lanes are the priorities."""
    spec = GrantSpec()
    if table is None:
        return spec
    spec.enabled = True
    spec.priorities = lanes
    spec.ahead_bytes = table.size_bytes("ahead", 1, MAX_BUFFER)
    spec.by_left = table.choice("cutoffs_of", {"size": False, "left": True}, "size")
    place = table.place("cutoffs")
    cutoffs = [parse_size(text, place) for text in table.texts("cutoffs", ())]
    if cutoffs != sorted(set(cutoffs)):
        raise InputError(place, "sizes do not rise", "put the smallest first, each once")
    if len(cutoffs) >= lanes:
        problem = f"{len(cutoffs)} of them separate more priorities than the {lanes} lanes"
        raise InputError(place, problem, f"give {lanes - 1} or fewer, or set fabric.lanes")
    spec.cutoffs_bytes = cutoffs
    spec.messages = table.integer("messages", 1, 65535, max(1, lanes - len(cutoffs) - 1))
    table.done()
    return spec


def read_adapter(table: Table) -> AdapterSpec:
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


def read_lanes(table: Table, fabric: Fabric) -> LanePlan:
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
        if port.has("low") or port.has("high") or port.has("strict"):
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
    tables = ArbTables(high, low, table.integer("high_limit", 0, 255, 255))
    tables.strict = table.flag("strict", False)
    return tables, served


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


# ---- Systems by name --------------------------------------------------------------------------


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
