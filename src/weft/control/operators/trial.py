"""A plan tried before it is applied: tables of ports, run by the packet simulator.

Each flow sends as much as it can, at the level of its application: the result shows how the tables
share the links, not how the applications would run. Every port on a flow's path arbitrates by its
tables; a port without tables has a single queue. Queues become virtual lanes (the simulator has 15:
queues that no flow uses have none), weights become entries of the low-priority table. InfiniBand's
weights are taken as they are. HTB's, in kbit/s, are scaled to a round of about a megabyte, since
HTB has no packet-sized steps; its latency lane, in HTB limited in rate too, is limited here only in
its burst. Simulations for operators run in a process of their own (this module, run as a program),
which ends with the process that waits for it.
Entry points: `run_trial`, `build_scenario`; `build_trial_input`, `simulate_trials`.
Units: bits per second.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from subprocess import PIPE
from typing import Any, Literal

from weft.control.policy.plan import find_connection_path
from weft.control.policy.port_policy import LIMIT_BYTES, MAX_ENTRIES
from weft.control.state.events import Connection
from weft.control.state.state import State
from weft.errors import InputError, WeftError
from weft.fabric import Fabric, Port, write_toml
from weft.fabric.soundness import MAX_LANES
from weft.host.machine.processes import end_with_parent
from weft.records import Scalar
from weft.simulate import Scenario, scenario_from, simulate
from weft.switches import Lane, PortName, Tables
from weft.switches.tables import ENTRY_WEIGHT, MAX_LIMIT, list_entries

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
class TrialInput:
    """Flows on a fabric whose ports have these tables."""

    fabric: Fabric
    tables: Mapping[PortName, Tables]
    flows: Sequence[Flow]
    scheduler: Scheduler = "vlarb"
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Goodput of each flow; `ended` says how the run ended."""

    flows: tuple[Flow, ...]
    goodputs_bps: tuple[float, ...]
    ended: str

    @property
    def by_application_bps(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for flow, goodput in zip(self.flows, self.goodputs_bps, strict=True):
            total[flow.application] = total.get(flow.application, 0.0) + goodput
        return total


def run_trial(trial: TrialInput) -> Trial:
    """Goodput of the flows."""
    outcome = simulate(build_scenario(trial))
    quantities = outcome.record.quantities
    goodputs = [quantities.get(f"{_flow_name(n)}.goodput") for n in range(len(trial.flows))]
    return Trial(
        flows=tuple(trial.flows),
        goodputs_bps=tuple(1e9 * g.value if isinstance(g, Scalar) else 0.0 for g in goodputs),
        ended=outcome.ended,
    )


def build_scenario(trial: TrialInput) -> Scenario:
    """The scenario of the packet simulator that tries them."""
    fabric, tables, flows = trial.fabric, trial.tables, trial.flows
    if not flows:
        raise InputError("trial", "no flows", "give at least one")
    used = _find_used_ports(fabric, flows)
    lane_of = _assign_lanes(tables, used, fabric)
    port_tables = {
        port: _scenario_tables(tables.get(_port_name(fabric, port)), lane_of, trial.scheduler)
        for port in used
    }
    common = Counter(tuple(entry["sl2vl"]) for entry in port_tables.values()).most_common(1)[0][0]
    duration_ps = _duration_ps(fabric, port_tables)
    data = {
        "name": f"trial of {len(flows)} flows",
        "seed": trial.seed,
        "duration": f"{duration_ps} ps",
        "warmup": f"{duration_ps // 10} ps",
        "fabric": {"toml": write_toml(replace(fabric, lanes=len(lane_of)))},
        "lanes": {
            "sl2vl": list(common),
            "port": [_port_entry(fabric, p, entry, common) for p, entry in port_tables.items()],
        },
        "traffic": [_traffic(n, flow) for n, flow in enumerate(flows)],
    }
    return scenario_from(data, where="trial")


# ---- Ports ------------------------------------------------------------------------------------


def _port_name(fabric: Fabric, port: Port) -> PortName:
    return PortName(fabric.nodes[port.node].name, port.port)


def _find_used_ports(fabric: Fabric, flows: Sequence[Flow]) -> dict[Port, set[int]]:
    """The ports that flows or their acknowledgements may pass, and the levels that do."""
    levels: dict[Port, set[int]] = {}
    for flow in flows:
        if not 0 <= flow.level < _LEVELS:
            where = f"flow of {flow.application}"
            raise InputError(where, f"level {flow.level}", f"use 0 to {_LEVELS - 1}")
        source, target = fabric.index(flow.source), fabric.index(flow.target)
        for ends in ((source, target), (target, source)):
            for port in find_connection_path(fabric, flow.application, *ends).ports:
                levels.setdefault(port, set()).add(flow.level)
    return levels


def _assign_lanes(
    tables: Mapping[PortName, Tables], used: Mapping[Port, set[int]], fabric: Fabric
) -> dict[int, int]:
    """The lane of each queue that some flow is in; queue 0 has lane 0."""
    queues = {0}
    for port, levels in used.items():
        port_tables = tables.get(_port_name(fabric, port))
        if port_tables is not None:
            queues |= {_queue_of_level(port_tables, level) for level in levels}
    if len(queues) > MAX_LANES:
        problem = f"{len(queues)} queues are used, and the simulator has {MAX_LANES} lanes"
        raise InputError("trial", problem, "try fewer levels at a time")
    return {queue: lane for lane, queue in enumerate(sorted(queues))}


def _queue_of_level(tables: Tables, level: int) -> int:
    """Levels beyond the port's tables go with unmanaged traffic."""
    return tables.queue_of[level if level < len(tables.queue_of) else 0]


def _scenario_tables(
    tables: Tables | None, lane_of: Mapping[int, int], scheduler: Scheduler
) -> dict[str, Any]:
    """A port's tables as a scenario has them."""
    if tables is None:
        return {"sl2vl": [0] * _LEVELS, "low": [[0, ENTRY_WEIGHT]]}
    latency = None if tables.lane is None else tables.lane.queue
    served = {
        lane_of[queue]: weight
        for queue, weight in enumerate(tables.weights)
        if weight and queue in lane_of and queue != latency
    }
    units = _scale_weights(served) if scheduler == "htb" else served
    scenario: dict[str, Any] = {
        "sl2vl": [lane_of.get(_queue_of_level(tables, level), 0) for level in range(_LEVELS)],
        "low": [list(entry) for entry in list_entries(units)],
    }
    if tables.lane is not None and tables.lane.queue in lane_of:
        scenario["high"] = [[lane_of[tables.lane.queue], ENTRY_WEIGHT]]
        scenario["high_limit"] = _high_limit(tables.lane, scheduler)
    return scenario


def _scale_weights(weights: Mapping[int, int]) -> dict[int, int]:
    """As large as fits the table: one per cent is then two packets of a round."""
    room = ENTRY_WEIGHT * (MAX_ENTRIES - len(weights))
    total = sum(weights.values())
    return {lane: max(1, weight * room // total) for lane, weight in weights.items()}


def _high_limit(lane: Lane, scheduler: Scheduler) -> int:
    return lane.limit if scheduler == "vlarb" else min(lane.limit // LIMIT_BYTES, MAX_LIMIT)


def _port_entry(
    fabric: Fabric, port: Port, tables: Mapping[str, Any], common: tuple[int, ...]
) -> dict[str, Any]:
    """Only maps unlike the common one are given: each costs time for every packet."""
    keys = {key: value for key, value in tables.items() if key != "sl2vl" or tuple(value) != common}
    return {"node": fabric.nodes[port.node].name, "port": port.port, **keys}


# ---- Traffic ----------------------------------------------------------------------------------


def _flow_name(number: int) -> str:
    return f"flow{number}"


def _traffic(number: int, flow: Flow) -> dict[str, Any]:
    return {
        "name": _flow_name(number),
        "kind": "bandwidth",
        "from": flow.source,
        "to": flow.target,
        "sl": flow.level,
        "size": _MESSAGE,
    }


def _duration_ps(fabric: Fabric, tables: Mapping[Port, Mapping[str, Any]]) -> int:
    """Many rounds of the longest table, and many packets, at the slowest of the ports."""
    longest: int = max(
        sum(weight for _, weight in port_tables["low"]) for port_tables in tables.values()
    )
    units = max(_ROUNDS * longest, _LEAST_PACKETS * _PACKET_UNITS)
    slowest = min(fabric.link_of[port].rate_bps for port in tables)
    return round(units * _UNIT_BYTES * 8e12 / slowest)


MAX_FLOWS = 500
MAX_HOSTS = 1000
_REFUSED = 2  # exit status; standard error says why

Rates = Mapping[str, float]  # of each registration


def build_trial_input(state: State) -> TrialInput | None:
    """A flow for every connection over managed ports; None if there is none."""
    if state.paths is None:
        return None
    flows = [
        _flow(state, connection)
        for connection in state.connections.values()
        if connection.id not in state.missing_paths and state.ports_of(connection)
    ]
    hosts = len(state.paths.fabric.hosts)
    if len(flows) > MAX_FLOWS or hosts > MAX_HOSTS:
        problem = f"{len(flows)} connections between {hosts} hosts"
        remedy = f"at most {MAX_FLOWS} and {MAX_HOSTS}: plan without it"
        raise InputError("simulation", problem, remedy)
    if not flows:
        return None
    htb = any(ability.scheduler == "htb" for ability in state.abilities.values())
    return TrialInput(
        fabric=state.paths.fabric,
        tables=dict(state.target),
        flows=flows,
        scheduler="htb" if htb else "vlarb",
    )


def _flow(state: State, connection: Connection) -> Flow:
    assert state.paths is not None, "a connection with ports has a path"
    source, target = (
        state.paths.fabric.nodes[state.paths.host(name)].name
        for name in (connection.source, connection.destination)
    )
    level = state.level_of(state.applications[connection.application].name)
    return Flow(application=connection.application, source=source, target=target, level=level)


async def simulate_trials(*inputs: TrialInput | None) -> list[Rates]:
    """The rate of each registration in each trial. Cancelling it ends the process."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", __name__, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        output, errors = await child.communicate(pickle.dumps(inputs))
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode == _REFUSED:
        raise InputError("simulation", errors.decode(errors="replace").strip())
    if child.returncode:
        raise InputError("simulation", f"its process ended with {child.returncode}", "plan without")
    rates: list[Rates] = json.loads(output)
    return rates


def main() -> int:
    """Reads pickled inputs from the controller that started this process; writes rates as JSON."""
    end_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inputs: tuple[TrialInput | None, ...] = pickle.load(sys.stdin.buffer)
    try:
        output = json.dumps([{} if i is None else run_trial(i).by_application_bps for i in inputs])
    except WeftError as error:
        print(error, file=sys.stderr)
        return _REFUSED
    sys.stdout.write(output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
