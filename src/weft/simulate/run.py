"""Run a scenario in the core and record the result.

The core runs in slices with the GIL released. Between slices it reports progress and notices an
interrupt. A run that ends with packets in its buffers and no event left is deadlocked; a lane
whose head has waited very long is starved: both are explained in the notes.
Entry point: `simulate`. Units: ps, bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft import __version__
from weft._core import (
    BlockedLane,
    BrokenInvariant,
    FlowSpec,
    Histogram,
    NetworkSpec,
    RunSpec,
    Simulation,
    Status,
)
from weft.errors import InvariantError
from weft.fabric import Fabric
from weft.records import (
    Distribution,
    Provenance,
    Quantity,
    Record,
    Scalar,
    Series,
    Topology,
    note_ending,
)
from weft.records.schema import Row
from weft.simulate.scenario import Scenario
from weft.simulate.traffic import NEVER_PS

EVENTS_PER_SLICE = 200_000
SHOWN_FLOWS = 64  # flows listed one by one; above that only their sum
SHOWN_NODES = 200
SHOWN_QUEUES = 8

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run's record, and how the run ended: "finished", "time up", "deadlock" or "interrupted"."""

    record: Record
    ended: str
    packet_hops: int
    events: int


def simulate(scenario: Scenario, progress: Progress | None = None) -> Outcome:
    """Simulate the scenario; Ctrl-C ends it early, and the record holds what ran so far."""
    simulation, groups = build_simulation(scenario)
    ended = _run_slices(simulation, scenario.duration_ps, progress)
    record = _build_record(scenario, simulation, groups, ended)
    return Outcome(
        record=record, ended=ended, packet_hops=simulation.packet_hops, events=simulation.events
    )


def _run_slices(simulation: Simulation, duration_ps: int, progress: Progress | None) -> str:
    try:
        while (status := simulation.run(EVENTS_PER_SLICE)) == Status.RUNNING:
            if progress:
                progress(simulation.now_ps / duration_ps)
    except KeyboardInterrupt:
        return "interrupted"
    except BrokenInvariant as error:
        raise InvariantError(f"{error}; this is a bug in weft, please report it") from error
    return {Status.TIME_UP: "time up", Status.FINISHED: "finished"}.get(status, "deadlock")


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
        groups = fabric.routes.groups
        starts = np.cumsum([0, *map(len, groups)]).tolist()
        next_hop = np.ascontiguousarray(fabric.routes.next_hop, dtype=np.int32)
        spec.set_routes(next_hop, starts, [port for group in groups for port in group])
    spec.lanes = fabric.lanes
    lanes = scenario.lanes
    spec.sl2vl, spec.arbitration = lanes.sl2vl, lanes.tables
    for node, port, tables in lanes.port_tables:
        for number in fabric.neighbors(node) if port == 0 else (port,):
            spec.override_arbitration(node, number, tables)
    for node, in_port, out_port, sl2vl in lanes.port_sl2vl:
        spec.override_sl2vl(node, in_port, out_port, sl2vl)
    spec.switches, spec.credits, spec.adapter = (
        scenario.switches,
        scenario.credits,
        scenario.adapter,
    )
    return spec


@dataclass(frozen=True, slots=True)
class Group:
    """Samples that the core keeps together: one flow, or all flows of a part."""

    part: str
    flow: str  # "src-dst", or "" for all flows of the part
    number: int
    flows: tuple[int, ...]


def build_simulation(scenario: Scenario) -> tuple[Simulation, list[Group]]:
    """A simulation ready to run, and its groups of samples."""
    flows: list[FlowSpec] = []
    groups: list[Group] = []
    hosts = [scenario.fabric.nodes[node].name for node in scenario.fabric.hosts]
    for part in (part for traffic in scenario.traffic for part in traffic.parts):
        base = len(flows)
        is_per_flow = 1 < len(part.flows) <= SHOWN_FLOWS
        for i, spec in enumerate(part.flows):
            flow = FlowSpec(spec)
            if is_per_flow or i == 0:
                name = f"{hosts[flow.src]}-{hosts[flow.dst]}" if is_per_flow else ""
                members = (base + i,) if is_per_flow else tuple(range(base, base + len(part.flows)))
                groups.append(Group(part.name, name, len(groups), members))
            flow.group = groups[-1].number
            if flow.triggers >= 0:
                flow.triggers += base
            flows.append(flow)
    run = RunSpec()
    run.seed, run.duration_ps, run.warmup_ps = (
        scenario.seed,
        scenario.duration_ps,
        scenario.warmup_ps,
    )
    run.sample_interval_ps, run.groups = scenario.sample_ps, max(1, len(groups))
    return Simulation(build_network(scenario), flows, run), groups


# ---- Recording --------------------------------------------------------------------------------


def _build_record(scenario: Scenario, sim: Simulation, groups: list[Group], ended: str) -> Record:
    span = f"{sim.now_ps / 1e6:.6g} us of {scenario.duration_ps / 1e6:.6g} us"
    notes = [note_ending(f"{ended} at {span}")]
    notes += explain_stall(scenario.fabric, sim, ended)
    quantities = dict(_all_quantities(scenario, sim, groups))
    for name in dict.fromkeys(group.part for group in groups):
        if f"{name}.goodput" not in quantities:
            notes.append(f"{name}: no rates, as it could send only during the warm-up")
    return Record(
        kind="simulation",
        name=scenario.name,
        settings=dict(scenario.settings),
        quantities=quantities,
        tables={"ports": list(_port_rows(scenario, sim))},
        topology=_build_topology(scenario.fabric),
        notes=notes,
        provenance=Provenance(
            weft_version=__version__,
            seed=scenario.seed,
            parameters=scenario.system,
            scenario_digest=scenario.digest,
        ),
    )


def _all_quantities(
    scenario: Scenario, sim: Simulation, groups: list[Group]
) -> Iterator[tuple[str, Quantity]]:
    specs = [flow for traffic in scenario.traffic for flow in traffic.flows]
    parts: dict[str, list[Group]] = {}
    for group in groups:
        parts.setdefault(group.part, []).append(group)
    for part, members in parts.items():
        if len(members) > 1:
            for group in members:
                yield from _rate_quantities(
                    f"{part}.{group.flow}", scenario, sim, specs, group.flows
                )
                yield from _distribution_quantities(f"{part}.{group.flow}", sim, [group])
        flows = tuple(flow for group in members for flow in group.flows)
        yield from _rate_quantities(part, scenario, sim, specs, flows)
        yield from _distribution_quantities(part, sim, members)
    yield "fabric.packet_hops", Scalar(sim.packet_hops, "")
    yield "fabric.events", Scalar(sim.events, "")
    yield from _queue_quantities(scenario, sim)


def _rate_quantities(
    name: str,
    scenario: Scenario,
    sim: Simulation,
    specs: Sequence[FlowSpec],
    flows: tuple[int, ...],
) -> Iterator[tuple[str, Quantity]]:
    """Payload and messages over the time in which these flows could send, after the warm-up."""
    results = [sim.flow(flow) for flow in flows]
    finished = max(result.finished_ps for result in results)
    begin = max(scenario.warmup_ps, min(specs[flow].start_ps for flow in flows))
    end = min(sim.now_ps, finished, max(specs[flow].stop_ps for flow in flows))
    if end > begin:
        payload, messages = sum(r.bytes for r in results), sum(r.messages for r in results)
        yield f"{name}.goodput", Scalar(payload * 8e3 / (end - begin), "Gb/s")
        yield f"{name}.message_rate", Scalar(messages * 1e6 / (end - begin), "M/s")
    if finished < NEVER_PS:
        yield f"{name}.finished", Scalar(finished / 1e6, "us")


def _distribution_quantities(
    name: str, sim: Simulation, groups: list[Group]
) -> Iterator[tuple[str, Quantity]]:
    results = [sim.group(group.number) for group in groups]
    for key, label in (("rtt", "rtt"), ("one_way", "one_way"), ("switch_time", "switch")):
        merged = Histogram()
        for result in results:
            merged.merge(getattr(result, key))
        if merged.count:
            yield f"{name}.{label}", Distribution("ps", merged)


def _queue_quantities(scenario: Scenario, sim: Simulation) -> Iterator[tuple[str, Quantity]]:
    """Backlog over time of the outputs with the largest backlog."""
    if scenario.sample_ps == 0 or len(sim.sample_times_ps) == 0:
        return
    samples = np.array(sim.samples())
    times = np.array(sim.sample_times_ps) / 1e6
    lanes = scenario.fabric.lanes
    busiest = np.argsort(-samples.max(axis=0), kind="stable")[:SHOWN_QUEUES]
    for column in sorted(int(c) for c in busiest if samples[:, c].any()):
        node, port, _ = sim.link(column // lanes)
        lane = f".vl{column % lanes}" if lanes > 1 else ""
        name = f"{scenario.fabric.nodes[node].name}.p{port}{lane}.backlog"
        yield name, Series("us", "B", times.tolist(), samples[:, column].tolist())


def _port_rows(scenario: Scenario, sim: Simulation) -> Iterator[Row]:
    """Counters of every port and lane that moved anything, named as InfiniBand names them."""
    ends = {}
    for link in range(sim.links):
        node, port, _ = sim.link(link)
        ends[node, port] = link
    for (node, port), out in sorted(ends.items()):
        peer = scenario.fabric.neighbors(node)[port]
        at_switch = scenario.fabric.nodes[node].kind == "switch"
        back = ends[peer.node, peer.port]
        for vl in range(scenario.fabric.lanes):
            sent, got = sim.counters(out, vl), sim.counters(back, vl)
            if not (sent.xmit_packets or got.rcv_packets or sent.xmit_wait_ps):
                continue
            yield {
                "node": scenario.fabric.nodes[node].name,
                "port": port,
                "vl": vl,
                "XmitData": _data_words(sent.xmit_bytes, sent.xmit_packets),
                "XmitPkts": sent.xmit_packets,
                "RcvData": _data_words(got.rcv_bytes, got.rcv_packets),
                "RcvPkts": got.rcv_packets,
                "XmitWait_ns": sent.xmit_wait_ps // 1000,
                "MarkFECN": sent.marked,
                "peak_buffer_B": got.peak_blocks * 64 if at_switch else None,
                "peak_backlog_B": sent.peak_backlog_bytes,
            }


def _data_words(size: int, packets: int) -> int:
    """Words of four bytes without each packet's VCRC, as InfiniBand counts data."""
    return (size - 2 * packets) // 4


def _build_topology(fabric: Fabric) -> Topology | None:
    if len(fabric.nodes) > SHOWN_NODES:
        return None
    nodes = tuple((node.name, node.kind) for node in fabric.nodes)
    return Topology(nodes, tuple((link.a.node, link.b.node) for link in fabric.links))


STARVED_SHARE = 0.1  # of the simulated time, and no more than these on the slowest link:
STARVED_BITS = 56_000_000  # 1 ms of 56 Gb/s; buffers drain more slowly where links are slow
SHOWN_LANES = 8


def explain_stall(fabric: Fabric, sim: Simulation, ended: str) -> list[str]:
    """Sentences about a deadlock's cycle, or about lanes that wait too long."""
    longest_ps = round(1e12 * STARVED_BITS / min(link.rate_bps for link in fabric.links))
    limit = 0 if ended == "deadlock" else min(longest_ps, round(STARVED_SHARE * sim.now_ps))
    cycle = sim.deadlock_cycle()
    if cycle and all(lane.waited_ps >= limit for lane in cycle):
        return [f"deadlock: {_describe_cycle(fabric, sim, cycle)}"]
    return list(_describe_starvation(fabric, sim, sim.blocked(limit)))


def _describe_cycle(fabric: Fabric, sim: Simulation, cycle: list[BlockedLane]) -> str:
    steps = [_describe_lane(fabric, sim, lane) for lane in cycle]
    return " waits for ".join([*steps, steps[0]]) + "; change routing or separate lanes"


def _describe_lane(fabric: Fabric, sim: Simulation, lane: BlockedLane) -> str:
    node, _, to = sim.link(lane.link)
    if lane.link == lane.out_link:
        return f"{fabric.nodes[node].name} vl{lane.vl}"
    return f"{fabric.nodes[to].name} from {fabric.nodes[node].name} vl{lane.vl}"


def _describe_starvation(
    fabric: Fabric, sim: Simulation, blocked: list[BlockedLane]
) -> Iterator[str]:
    for lane in blocked[:SHOWN_LANES]:
        _, port, _ = sim.link(lane.out_link)
        why = (
            "no credit"
            if lane.no_credit
            else "never chosen: is its lane in the arbitration tables?"
        )
        yield (
            f"starved: head at {_describe_lane(fabric, sim, lane)} has waited "
            f"{lane.waited_ps / 1e6:.4g} us for port {port} vl{lane.out_vl}: {why}"
        )
    if len(blocked) > SHOWN_LANES:
        yield f"and {len(blocked) - SHOWN_LANES} more lanes like these"
