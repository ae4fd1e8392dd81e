"""A plan tried before it is applied: tables of ports, run by the packet simulator.

Each flow sends as much as it may, at the level of its application. Every port that a flow passes
arbitrates by its tables; one without tables has a single queue, as a port that nobody has told
anything. Queues become virtual lanes (the simulator has 15: queues that no flow uses have none),
weights entries of the low-priority table. InfiniBand's weights are taken as they are; HTB's, in
kbit/s, are scaled to a round of about a megabyte, since HTB has no packet-sized steps to show; its
latency lane, there limited in rate too, is limited here only in what it sends at once.
Entry points: `tried`, `scenario_of`. Units: bits per second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from weft.control.policy.connection_path import find_connection_path
from weft.control.policy.port import (
    ENTRY_UNITS,
    LIMIT_BYTES,
    MAX_ENTRIES,
    MAX_LIMIT,
    arbitration_entries,
)
from weft.errors import InputError
from weft.fabric import Fabric, Port, write_toml
from weft.fabric.soundness import MAX_LANES
from weft.records import Scalar
from weft.simulate import Scenario, scenario_from, simulate
from weft.switches import Lane, PortName, Tables

Scheduler = Literal["vlarb", "htb"]

_UNIT_BYTES = 64
_LEVELS = 16
_ROUNDS = 20
_LEAST_PACKETS = 2000
_PACKET_UNITS = 65  # of 4 KiB with its headers
_MESSAGE = "4 KiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A connection of an application, from host to host, with the level of its packets."""

    application: str
    source: str
    target: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What the flows got, in the order they were given; `ended` says how the run did."""

    flows: tuple[Flow, ...]
    goodputs_bps: tuple[float, ...]
    ended: str

    @property
    def by_application_bps(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for flow, goodput in zip(self.flows, self.goodputs_bps, strict=True):
            total[flow.application] = total.get(flow.application, 0.0) + goodput
        return total


def run_trial(
    fabric: Fabric,
    tables: Mapping[PortName, Tables],
    flows: Sequence[Flow],
    *,
    scheduler: Scheduler = "vlarb",
    seed: int = 1,
) -> Trial:
    """What these flows get of a fabric whose ports have these tables."""
    outcome = simulate(build_scenario(fabric, tables, flows, scheduler=scheduler, seed=seed))
    found = outcome.record.quantities
    goodputs = [found.get(f"{_name(n)}.goodput") for n in range(len(flows))]
    return Trial(
        flows=tuple(flows),
        goodputs_bps=tuple(1e9 * g.value if isinstance(g, Scalar) else 0.0 for g in goodputs),
        ended=outcome.ended,
    )


def build_scenario(
    fabric: Fabric,
    tables: Mapping[PortName, Tables],
    flows: Sequence[Flow],
    *,
    scheduler: Scheduler = "vlarb",
    seed: int = 1,
) -> Scenario:
    """The scenario of the packet simulator that tries them."""
    if not flows:
        raise InputError("trial", "no flows", "give at least one")
    used = _used(fabric, flows)
    lane_of = _lanes(tables, used, fabric)
    told = {port: _told(tables.get(_port_name(fabric, port)), lane_of, scheduler) for port in used}
    common = Counter(tuple(one["sl2vl"]) for one in told.values()).most_common(1)[0][0]
    duration_ps = _duration_ps(fabric, told)
    data = {
        "name": f"trial of {len(flows)} flows",
        "seed": seed,
        "duration": f"{duration_ps} ps",
        "warmup": f"{duration_ps // 10} ps",
        "fabric": {"toml": write_toml(replace(fabric, lanes=len(lane_of)))},
        "lanes": {
            "sl2vl": list(common),
            "port": [_entry(fabric, port, one, common) for port, one in told.items()],
        },
        "traffic": [_traffic(n, flow) for n, flow in enumerate(flows)],
    }
    return scenario_from(data, where="trial")


# ---- Ports ------------------------------------------------------------------------------------


def _port_name(fabric: Fabric, port: Port) -> PortName:
    return PortName(fabric.nodes[port.node].name, port.port)


def _used(fabric: Fabric, flows: Sequence[Flow]) -> dict[Port, set[int]]:
    """The ports that flows or their acknowledgements may pass, and the levels that do."""
    found: dict[Port, set[int]] = {}
    for flow in flows:
        if not 0 <= flow.level < _LEVELS:
            where = f"flow of {flow.application}"
            raise InputError(where, f"level {flow.level}", f"use 0 to {_LEVELS - 1}")
        source, target = fabric.index(flow.source), fabric.index(flow.target)
        for ends in ((source, target), (target, source)):
            for port in find_connection_path(fabric, flow.application, *ends).ports:
                found.setdefault(port, set()).add(flow.level)
    return found


def _lanes(
    tables: Mapping[PortName, Tables], used: Mapping[Port, set[int]], fabric: Fabric
) -> dict[int, int]:
    """The lane of each queue that some flow is in; queue 0 has lane 0."""
    queues = {0}
    for port, levels in used.items():
        told = tables.get(_port_name(fabric, port))
        if told is not None:
            queues |= {_queue(told, level) for level in levels}
    if len(queues) > MAX_LANES:
        problem = f"{len(queues)} queues are used, and the simulator has {MAX_LANES} lanes"
        raise InputError("trial", problem, "try fewer levels at a time")
    return {queue: lane for lane, queue in enumerate(sorted(queues))}


def _queue(told: Tables, level: int) -> int:
    """Levels that a port was not told of go with unmanaged traffic."""
    return told.queue_of[level if level < len(told.queue_of) else 0]


def _told(told: Tables | None, lane_of: Mapping[int, int], scheduler: Scheduler) -> dict[str, Any]:
    """A port's tables as a scenario has them."""
    if told is None:
        return {"sl2vl": [0] * _LEVELS, "low": [[0, ENTRY_UNITS]]}
    latency = None if told.lane is None else told.lane.queue
    served = {
        lane_of[queue]: weight
        for queue, weight in enumerate(told.weights)
        if weight and queue in lane_of and queue != latency
    }
    units = _scaled(served) if scheduler == "htb" else served
    found: dict[str, Any] = {
        "sl2vl": [lane_of.get(_queue(told, level), 0) for level in range(_LEVELS)],
        "low": [list(entry) for entry in arbitration_entries(units)],
    }
    if told.lane is not None and told.lane.queue in lane_of:
        found["high"] = [[lane_of[told.lane.queue], ENTRY_UNITS]]
        found["high_limit"] = _high_limit(told.lane, scheduler)
    return found


def _scaled(weights: Mapping[int, int]) -> dict[int, int]:
    """As large as the table takes: then a share of one per cent is two packets of a round."""
    room = ENTRY_UNITS * (MAX_ENTRIES - len(weights))
    total = sum(weights.values())
    return {lane: max(1, weight * room // total) for lane, weight in weights.items()}


def _high_limit(lane: Lane, scheduler: Scheduler) -> int:
    return lane.limit if scheduler == "vlarb" else min(lane.limit // LIMIT_BYTES, MAX_LIMIT)


def _entry(
    fabric: Fabric, port: Port, told: Mapping[str, Any], common: tuple[int, ...]
) -> dict[str, Any]:
    """Only maps unlike the common one are told, since each costs time on every packet's way."""
    own = {key: value for key, value in told.items() if key != "sl2vl" or tuple(value) != common}
    return {"node": fabric.nodes[port.node].name, "port": port.port, **own}


# ---- Traffic ----------------------------------------------------------------------------------


def _name(number: int) -> str:
    return f"flow{number}"


def _traffic(number: int, flow: Flow) -> dict[str, Any]:
    return {
        "name": _name(number),
        "kind": "bandwidth",
        "from": flow.source,
        "to": flow.target,
        "sl": flow.level,
        "size": _MESSAGE,
    }


def _duration_ps(fabric: Fabric, told: Mapping[Port, Mapping[str, Any]]) -> int:
    """Many rounds of the longest table, and many packets, at the slowest of the ports."""
    longest: int = max(sum(weight for _, weight in one["low"]) for one in told.values())
    units = max(_ROUNDS * longest, _LEAST_PACKETS * _PACKET_UNITS)
    slowest = min(fabric.link_of[port].rate_bps for port in told)
    return round(units * _UNIT_BYTES * 8e12 / slowest)
