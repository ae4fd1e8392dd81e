"""Run a scenario in the core and record the result.

The core runs in slices with the GIL released, a large fabric on all processors; the record is the
same for any number of them. Between slices it reports progress, notices an
interrupt, and looks for input lanes that wait for each other in a cycle: a deadlock, which ends the
run even if other traffic moves. Entry points: `simulate`, `build_simulation`. Units: ps, bytes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weft._core import (
    BrokenInvariant,
    FlowList,
    FlowSimulation,
    NetworkSpec,
    RunSpec,
    Simulation,
    Status,
    WorkloadSpec,
)
from weft.errors import InvariantError
from weft.fabric import Fabric
from weft.records import Quantity, Record, Scalar, note_ending
from weft.simulate.job_traffic import add_jobs, has_jobs
from weft.simulate.lane_budget import demote_flows
from weft.simulate.port_controller import LivePorts, PortController, check_controller
from weft.simulate.run_record import (
    SHOWN_FLOWS,
    AnySimulation,
    Group,
    add_demotions,
    build_record,
    completion_quantities,
    describe_origin,
    describe_waiting,
)
from weft.simulate.scenario import Scenario
from weft.simulate.traffic import Part
from weft.simulate.workload.operations import join_operations, run_loggop
from weft.simulate.workload.scenario_workloads import NO_FLOW, LogGopScenario

EVENTS_PER_SLICE = 200_000  # and partition
MOST_THREADS = 64  # partitions of a fabric

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run's record, and how the run ended: "finished", "time up", "deadlock" or "interrupted"."""

    record: Record
    ended: str
    packet_hops: int
    events: int
    skipped_ps: int = 0  # of the simulated time, because the run repeated itself


def simulate(
    scenario: Scenario,
    progress: Progress | None = None,
    *,
    threads: int | None = None,
    skip_steady: bool = False,
    controller: PortController | None = None,
) -> Outcome:
    """Simulate the scenario; Ctrl-C ends it early, and the record holds what ran so far.

    A large fabric runs on `threads` threads, by default one per processor. With `skip_steady`,
    whole periods of a state that recurs are skipped; the record is the same. At flow level, a
    `controller` programs ports as jobs come and go; jobs alone, for slowdowns, run without it.
    """
    if controller is not None:
        check_controller(controller, scenario)
    if scenario.loggop is not None:
        return _simulate_loggop(scenario, scenario.loggop)
    threads = threads or len(os.sched_getaffinity(0))
    scenario, demotions = demote_flows(scenario, lambda s: build_simulation(s, threads)[0])
    if controller is None:
        simulation, groups = _build_level(scenario, threads, skip_steady=skip_steady)
        ended = _run_slices(simulation, scenario.duration_ps, progress)
    else:
        simulation, groups = _build_flow_level(scenario, controller)
        update = _build_update(scenario, simulation, controller)
        ended = _run_slices(simulation, scenario.duration_ps, progress, update)
    record = add_demotions(build_record(scenario, simulation, groups, ended), demotions)
    if has_jobs(scenario):
        run_alone = None if ended == "interrupted" else partial(_end_operations, threads)
        record = add_jobs(record, scenario, simulation.operations_ended_ps(), run_alone)
    outcome = Outcome(record=record, ended=ended, packet_hops=0, events=simulation.events)
    return _add_counts(outcome, simulation, threads)


def _add_counts(outcome: Outcome, simulation: AnySimulation, threads: int) -> Outcome:
    """Hops, and what was skipped; flows have none."""
    if not isinstance(simulation, Simulation):
        return outcome
    if simulation.threads < threads:
        started = f"the system started only {simulation.threads} of {threads} threads"
        warnings.warn(f"{started}; the record is the same", stacklevel=3)
    return replace(outcome, packet_hops=simulation.packet_hops, skipped_ps=simulation.skipped_ps)


def _end_operations(threads: int, scenario: Scenario) -> NDArray[np.int64]:
    """When the operations of a scenario end, run without a record."""
    simulation, _ = _build_level(scenario, threads, skip_steady=False)
    _run_slices(simulation, scenario.duration_ps, None)
    return simulation.operations_ended_ps()


def _simulate_loggop(scenario: Scenario, loggop: LogGopScenario) -> Outcome:
    """Run each workload by itself over the LogGOP network."""
    quantities: dict[str, Quantity] = {}
    notes: list[str] = []
    operations, last_ps = 0, 0
    for entry in loggop.workloads:
        run = run_loggop(entry.operations, loggop.parameters)
        byte_ps = loggop.parameters.gap_ps_per_byte
        rate_bps = 8e12 / byte_ps if byte_ps else None
        if len(run.waiting):
            notes.append(
                f"deadlock: {entry.name}: {describe_waiting(entry.operations, run.ended_ps)}"
            )
        else:
            quantities |= completion_quantities(entry.name, run.rank_ps, entry.volume, rate_bps)
        operations += len(entry.operations)
        last_ps = max(last_ps, int(run.rank_ps.max()))
    ended = "deadlock" if notes else "finished"
    record = Record(
        kind="simulation",
        name=scenario.name,
        settings=dict(scenario.settings),
        quantities=quantities | {"loggop.operations": Scalar(operations, "")},
        notes=[note_ending(f"{ended} at {last_ps / 1e6:.6g} us"), *notes],
        provenance=describe_origin(scenario),
    )
    return Outcome(record=record, ended=ended, packet_hops=0, events=operations)


def _build_update(
    scenario: Scenario, simulation: FlowSimulation, controller: PortController
) -> Callable[[], None]:
    """What to do after each slice: call the controller if jobs have changed."""
    ports = LivePorts(scenario, simulation, controller.queues)

    def update() -> None:
        if simulation.take_change():
            controller.update(ports)

    return update


def _run_slices(
    simulation: AnySimulation,
    duration_ps: int,
    progress: Progress | None,
    update: Callable[[], None] | None = None,
) -> str:
    try:
        partitions = simulation.partitions if isinstance(simulation, Simulation) else 1
        events = EVENTS_PER_SLICE * partitions
        while (status := simulation.run(events)) == Status.RUNNING:
            if update:
                update()
            if progress:
                progress(simulation.now_ps / duration_ps)
            if _is_deadlocked(simulation):
                return "deadlock"
    except KeyboardInterrupt:
        return "interrupted"
    except BrokenInvariant as error:
        raise InvariantError(f"{error}; this is a bug in weft, please report it") from error
    if status == Status.DEADLOCK or _is_deadlocked(simulation):
        return "deadlock"
    return "time up" if status == Status.TIME_UP else "finished"


def _is_deadlocked(simulation: AnySimulation) -> bool:
    """Whether buffers wait for each other; flows have none."""
    return isinstance(simulation, Simulation) and bool(simulation.deadlock_cycle())


# ---- Building ---------------------------------------------------------------------------------


def build_network(scenario: Scenario) -> NetworkSpec:
    """The core's view of a scenario's fabric."""
    fabric = scenario.fabric
    spec = NetworkSpec()
    spec.is_switch = [int(node.kind == "switch") for node in fabric.nodes]
    for link in fabric.links:
        a, b = link.a, link.b
        spec.add_cable(a.node, a.port, b.node, b.port, link.rate_bps, link.delay_ps)
    if fabric.routes is not None:
        spec.set_routes(fabric.routes.table, *fabric.routes.group_table)
    spec.lanes = fabric.lanes
    lanes = scenario.lanes
    spec.sl2vl, spec.arbitration = lanes.sl2vl, lanes.tables
    for node, port, tables in lanes.port_tables:
        for number in fabric.neighbors(node) if port == 0 else (port,):
            spec.override_arbitration(node, number, tables)
    for node, in_port, out_port, sl2vl in lanes.port_sl2vl:
        spec.override_sl2vl(node, in_port, out_port, sl2vl)
    for buffer in scenario.buffers:
        for number in fabric.neighbors(buffer.node) if buffer.port == 0 else (buffer.port,):
            spec.override_buffer(buffer.node, number, buffer.lane, buffer.size_bytes)
    spec.switches, spec.credits, spec.adapter = (
        scenario.switches,
        scenario.credits,
        scenario.adapter,
    )
    return spec


def build_simulation(
    scenario: Scenario, threads: int = 1, *, skip_steady: bool = False
) -> tuple[Simulation, list[Group]]:
    """A simulation packet by packet, ready to run, and its groups of samples."""
    flows, groups = _build_flows(scenario)
    run = _build_run(scenario, groups)
    run.threads, run.skip_steady = threads, skip_steady
    return Simulation(build_network(scenario), flows, run, build_workload(scenario)), groups


def _build_level(
    scenario: Scenario, threads: int, *, skip_steady: bool
) -> tuple[AnySimulation, list[Group]]:
    """A simulation at the scenario's level."""
    if scenario.level == "packet":
        return build_simulation(scenario, threads, skip_steady=skip_steady)
    return _build_flow_level(scenario, None)


def _build_flow_level(
    scenario: Scenario, controller: PortController | None
) -> tuple[FlowSimulation, list[Group]]:
    flows, groups = _build_flows(scenario)
    simulation = FlowSimulation(
        build_network(scenario),
        flows,
        _build_run(scenario, groups),
        build_workload(scenario),
        step_ps=scenario.flow_accuracy.step_ps,
        tolerance=scenario.flow_accuracy.tolerance,
        queues=controller.queues if controller else 0,
        watch_stages=controller is not None and controller.on == "stages",
    )
    return simulation, groups


def _build_flows(scenario: Scenario) -> tuple[FlowList, list[Group]]:
    flows = FlowList()
    groups: list[Group] = []
    parts = [(n, part) for n, traffic in enumerate(scenario.traffic) for part in traffic.parts]
    for number, part in parts:
        members = range(len(flows), len(flows) + len(part.flows))
        new_groups = _group_flows(scenario.fabric, part, members, len(groups))
        flows.extend_part(part.flows, [group.number for group in new_groups], number)
        groups += new_groups
    return flows, groups


def _build_run(scenario: Scenario, groups: list[Group]) -> RunSpec:
    run = RunSpec()
    run.seed, run.duration_ps, run.warmup_ps = (
        scenario.seed,
        scenario.duration_ps,
        scenario.warmup_ps,
    )
    run.sample_interval_ps, run.groups = scenario.sample_ps, max(1, len(groups))
    run.first_flow = scenario.first_flow
    return run


def build_workload(scenario: Scenario) -> WorkloadSpec | None:
    """The workloads of all traffic side by side, or None; flows count as in `build_simulation`."""
    parts = [(n, part) for n, traffic in enumerate(scenario.traffic) for part in traffic.parts]
    bases = np.cumsum([0, *(len(part.flows) for _, part in parts)]).tolist()
    placed = [
        (number, base, part.workload)
        for (number, part), base in zip(parts, bases, strict=False)
        if part.workload is not None
    ]
    if not placed:
        return None
    flows = [
        np.where(workload.flow == NO_FLOW, NO_FLOW, workload.flow + np.uint32(base))
        for _, base, workload in placed
    ]
    return WorkloadSpec(
        operations=join_operations([workload.operations for _, _, workload in placed]).to_core(),
        host=np.concatenate([workload.host for _, _, workload in placed]),
        traffic=np.repeat(
            np.array([number for number, _, _ in placed], dtype=np.uint32),
            [workload.operations.ranks for _, _, workload in placed],
        ),
        begin_ps=[w.begin_ps for _, _, w in placed for _ in range(w.operations.ranks)],
        flow=np.concatenate(flows).astype(np.uint32),
    )


def _group_flows(fabric: Fabric, part: Part, members: range, first: int) -> list[Group]:
    """A group for each flow of a part, or one for all where they are too many to show."""
    if not 1 < len(members) <= SHOWN_FLOWS:
        return [Group(part.name, "", first, members)] if members else []
    host = [fabric.nodes[node].name for node in fabric.hosts]
    return [
        Group(part.name, f"{host[flow.src]}-{host[flow.dst]}", first + i, members[i : i + 1])
        for i, flow in enumerate(part.flows)
    ]
