"""The record of a simulation: quantities, tables of ports, the topology, and notes.

Rates are of the time in which traffic could send, after the warm-up. Notes explain a deadlock's
cycle, lanes that are starved (they sent nothing for very long, though a head waited), and what
inputs with one FIFO cost. A workload has its completion by rank, bus bandwidth, and the ranks that
wait for ever. Entry points: `build_record`, `add_demotions`, `completion_quantities`. Units: ps,
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weft import __version__
from weft._core import BlockedLane, FlowSimulation, Histogram, Simulation
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
from weft.simulate.lane_budget import Demotion
from weft.simulate.scenario import Scenario
from weft.simulate.traffic import NEVER_PS
from weft.simulate.workload.operations import UNENDED_PS, Operations
from weft.simulate.workload.scenario_workloads import PlacedWorkload, Volume

Numbers = NDArray[np.int64]
AnySimulation = Simulation | FlowSimulation

SHOWN_FLOWS = 64  # flows listed one by one; above that only their sum
SHOWN_NODES = 200
SHOWN_RANKS = 4096
SHOWN_QUEUES = 8
FLOW_LEVEL = "flow level: max-min fair rates; no queues, no credits, no head-of-line blocking"
STARVED_SHARE = 0.1  # of the simulated time, and no more than these on the slowest link:
STARVED_BITS = 56_000_000  # 1 ms of 56 Gb/s; buffers drain more slowly where links are slow
STARVED_GAPS = 10  # mean gaps between packets of the lane before
SHOWN_LANES = 8
HEAD_OF_LINE_SHARE = 0.25  # of the outputs' time, from which a hint is worth a line


@dataclass(frozen=True, slots=True)
class Group:
    """Samples that the core keeps together: one flow, or all flows of a part."""

    part: str
    flow: str  # "src-dst", or "" for all flows of the part
    number: int
    flows: range


def build_record(scenario: Scenario, sim: AnySimulation, groups: list[Group], ended: str) -> Record:
    span = f"{sim.now_ps / 1e6:.6g} us of {scenario.duration_ps / 1e6:.6g} us"
    notes = [note_ending(f"{ended} at {span}"), *scenario.fabric.warnings]
    if isinstance(sim, Simulation):
        notes += explain_stall(scenario.fabric, sim, ended)
        notes += _explain_blocking(sim)
    else:
        notes.append(FLOW_LEVEL)
    notes += explain_waiting(scenario, sim, ended)
    quantities = dict(_all_quantities(scenario, sim, groups))
    notes += _explain_warmup(scenario, sim, groups, quantities)
    return Record(
        kind="simulation",
        name=scenario.name,
        settings=dict(scenario.settings),
        quantities=quantities,
        tables=_build_tables(scenario, sim),
        topology=_build_topology(scenario.fabric),
        notes=notes,
        provenance=describe_origin(scenario),
    )


def add_demotions(record: Record, demotions: Sequence[Demotion]) -> Record:
    """Notes which flows were demoted; the first of each part is a quantity."""
    if not demotions:
        return record
    times = {d.part: Scalar(d.at_ps / 1e6, "us") for d in reversed(demotions)}
    notes = [
        f"{d.part}: {d.flow} exceeded its budget and was demoted at {d.at_ps / 1e6:.6g} us"
        for d in demotions
    ]
    quantities = {f"{part}.demoted": time for part, time in times.items()}
    return replace(
        record,
        quantities={**record.quantities, **quantities},
        notes=[*record.notes, *notes[:SHOWN_FLOWS]],
    )


def describe_origin(scenario: Scenario) -> Provenance:
    return Provenance(
        weft_version=__version__,
        seed=scenario.seed,
        parameters=scenario.system,
        scenario_digest=scenario.digest,
    )


def _build_tables(scenario: Scenario, sim: AnySimulation) -> dict[str, list[Row]]:
    ports = (
        _port_rows(scenario, sim) if isinstance(sim, Simulation) else _flow_port_rows(scenario, sim)
    )
    tables = {"ports": list(ports)}
    if ranks := list(rank_rows(scenario, sim)):
        tables["ranks"] = ranks
    return tables


def _explain_warmup(
    scenario: Scenario, sim: AnySimulation, groups: list[Group], quantities: Mapping[str, Quantity]
) -> Iterator[str]:
    """Which parts have no rates or no distributions because of the warm-up."""
    for name in dict.fromkeys(group.part for group in groups):
        if f"{name}.goodput" not in quantities:
            yield f"{name}: no rates, as it could send only during the warm-up"
        elif (
            isinstance(sim, Simulation)
            and f"{name}.one_way" not in quantities
            and scenario.warmup_ps
        ):
            members = [group for group in groups if group.part == name]
            if delivered := int(sim.flow_deliveries[_span(members)].sum()):
                yield (
                    f"{name}: no distributions, as it posted all {delivered} delivered messages "
                    f"during the warm-up of {scenario.warmup_ps / 1e6:.6g} us; "
                    "shorten warmup, or start later"
                )


def _all_quantities(
    scenario: Scenario, sim: AnySimulation, groups: list[Group]
) -> Iterator[tuple[str, Quantity]]:
    flows = _read_flows(scenario, sim)
    parts: dict[str, list[Group]] = {}
    for group in groups:
        parts.setdefault(group.part, []).append(group)
    for part, members in parts.items():
        if len(members) > 1:
            for group in members:
                name = f"{part}.{group.flow}"
                yield from _rate_quantities(name, scenario, sim, flows, _span([group]))
                yield from _distribution_quantities(name, sim, [group])
        yield from _rate_quantities(part, scenario, sim, flows, _span(members))
        yield from _distribution_quantities(part, sim, members)
    yield from workload_quantities(scenario, sim)
    yield "fabric.events", Scalar(sim.events, "")
    if isinstance(sim, Simulation):
        yield "fabric.packet_hops", Scalar(sim.packet_hops, "")
        yield from _queue_quantities(scenario, sim)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flows:
    """What rates need of all flows, one number per flow."""

    starts_ps: Numbers
    follows: NDArray[np.bool_]  # stops with other traffic
    stops_ps: Numbers
    last_deliveries_ps: Numbers
    ends_ps: Numbers
    bytes: Numbers
    messages: Numbers


def _read_flows(scenario: Scenario, sim: AnySimulation) -> _Flows:
    parts = [part.flows for traffic in scenario.traffic for part in traffic.parts]
    starts = [flows.starts_ps for flows in parts]
    stops_with = [flows.stops_with for flows in parts]
    return _Flows(
        starts_ps=np.concatenate([np.empty(0, np.int64), *starts]),
        follows=np.concatenate([np.empty(0, np.int64), *stops_with]) >= 0,
        stops_ps=sim.flow_stops_ps,
        last_deliveries_ps=sim.flow_last_deliveries_ps,
        ends_ps=sim.flow_ends_ps,
        bytes=sim.flow_bytes,
        messages=sim.flow_messages,
    )


def _span(groups: Sequence[Group]) -> slice:
    """The flows of a part's groups."""
    return slice(groups[0].flows.start, groups[-1].flows.stop)


def _rate_quantities(
    name: str, scenario: Scenario, sim: AnySimulation, flows: _Flows, span: slice
) -> Iterator[tuple[str, Quantity]]:
    """Payload and messages over the time in which these flows could send, after the warm-up."""
    finished = int(flows.ends_ps[span].max())
    begin = max(scenario.warmup_ps, int(flows.starts_ps[span].min()))
    stops = np.where(
        flows.follows[span],
        np.maximum(flows.stops_ps[span], flows.last_deliveries_ps[span]),
        flows.stops_ps[span],
    )
    end = min(sim.now_ps, finished, int(stops.max()))
    if end > begin:
        payload, messages = int(flows.bytes[span].sum()), int(flows.messages[span].sum())
        yield f"{name}.goodput", Scalar(payload * 8e3 / (end - begin), "Gb/s")
        yield f"{name}.message_rate", Scalar(messages * 1e6 / (end - begin), "M/s")
    if finished < NEVER_PS:
        yield f"{name}.finished", Scalar(finished / 1e6, "us")


def _distribution_quantities(
    name: str, sim: AnySimulation, groups: list[Group]
) -> Iterator[tuple[str, Quantity]]:
    if isinstance(sim, FlowSimulation):
        return
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
    fabric = scenario.fabric
    links, lanes = sim.link_table(), fabric.lanes
    sent = sim.counter_table().reshape(len(links), lanes, -1)
    # The core numbers a cable's directions 2n and 2n + 1.
    got = sent.reshape(-1, 2, *sent.shape[1:])[:, ::-1].reshape(sent.shape)
    moved = (sent[:, :, 1] > 0) | (got[:, :, 3] > 0) | (sent[:, :, 4] > 0)
    by_port = np.lexsort((links[:, 1], links[:, 0]))
    for out in by_port[moved[by_port].any(axis=1)].tolist():
        node, port, peer = links[out].tolist()
        rate_bps = fabric.links[out // 2].rate_bps
        for vl in np.flatnonzero(moved[out]).tolist():
            xmit_bytes, xmit_packets, _, _, wait_ps, marked, _, backlog = sent[out, vl].tolist()
            _, _, rcv_bytes, rcv_packets, _, _, peak_blocks, _ = got[out, vl].tolist()
            yield {
                "node": fabric.nodes[node].name,
                "port": port,
                "peer": fabric.nodes[peer].name,
                "vl": vl,
                "busy_percent": round(800e12 * xmit_bytes / (rate_bps * max(sim.now_ps, 1)), 3),
                "XmitData": _data_words(xmit_bytes, xmit_packets),
                "XmitPkts": xmit_packets,
                "RcvData": _data_words(rcv_bytes, rcv_packets),
                "RcvPkts": rcv_packets,
                "XmitWait_ns": wait_ps // 1000,
                "MarkFECN": marked,
                "peak_buffer_B": peak_blocks * 64 if fabric.nodes[node].kind == "switch" else None,
                "peak_backlog_B": backlog,
            }


def _flow_port_rows(scenario: Scenario, sim: FlowSimulation) -> Iterator[Row]:
    """Bytes on the wire of every port and lane that carried any, without those of ACKs."""
    fabric = scenario.fabric
    carried = np.array(sim.carried_bytes()).reshape(len(fabric.links), 2, -1)
    for number, link in enumerate(fabric.links):
        for direction, (end, peer) in enumerate(((link.a, link.b), (link.b, link.a))):
            for vl in np.flatnonzero(carried[number, direction]).tolist():
                size = float(carried[number, direction, vl])
                yield {
                    "node": fabric.nodes[end.node].name,
                    "port": end.port,
                    "peer": fabric.nodes[peer.node].name,
                    "vl": vl,
                    "busy_percent": round(800e12 * size / (link.rate_bps * max(sim.now_ps, 1)), 3),
                    "wire_B": round(size),
                }


def _data_words(size: int, packets: int) -> int:
    """Words of four bytes without each packet's VCRC, as InfiniBand counts data."""
    return (size - 2 * packets) // 4


def _build_topology(fabric: Fabric) -> Topology | None:
    if len(fabric.nodes) > SHOWN_NODES:
        return None
    nodes = tuple((node.name, node.kind) for node in fabric.nodes)
    return Topology(nodes, tuple((link.a.node, link.b.node) for link in fabric.links))


def explain_stall(fabric: Fabric, sim: Simulation, ended: str) -> list[str]:
    """Sentences about a deadlock's cycle, or about lanes that send nothing for too long."""
    if cycle := sim.deadlock_cycle():
        return [f"deadlock: {_describe_cycle(fabric, sim, cycle)}"]
    longest_ps = round(1e12 * STARVED_BITS / min(link.rate_bps for link in fabric.links))
    limit = 0 if ended == "deadlock" else min(longest_ps, round(STARVED_SHARE * sim.now_ps))
    starved = [lane for lane in sim.blocked(limit) if limit == 0 or not _is_served(sim, lane)]
    return list(_describe_starvation(fabric, sim, starved))


def _is_served(sim: Simulation, lane: BlockedLane) -> bool:
    """Whether the lane's wait is short against the pace at which it sent before."""
    sent = sim.counters(lane.out_link, lane.out_vl).xmit_packets
    return sent > 0 and lane.waited_ps * sent < STARVED_GAPS * (sim.now_ps - lane.waited_ps)


def _describe_cycle(fabric: Fabric, sim: Simulation, cycle: list[BlockedLane]) -> str:
    steps = [_describe_lane(fabric, sim, lane) for lane in cycle]
    since_us = (sim.now_ps - min(lane.waited_ps for lane in cycle)) / 1e6
    chain = " waits for ".join([*steps, steps[0]])
    return f"{chain}, since {since_us:.6g} us; change routing or separate lanes"


def _describe_lane(fabric: Fabric, sim: Simulation, lane: BlockedLane) -> str:
    node, _, to = sim.link(lane.link)
    if lane.link == lane.out_link:
        return f"{fabric.nodes[node].name} vl{lane.vl}"
    return f"{fabric.nodes[to].name} from {fabric.nodes[node].name} vl{lane.vl}"


def _explain_blocking(sim: Simulation) -> Iterator[str]:
    """A hint where packets behind another head left outputs idle."""
    share = sim.head_of_line_share()
    if share >= HEAD_OF_LINE_SHARE:
        yield (
            f"head-of-line blocking: switch outputs stood idle for {100 * share:.0f} % of their "
            "active time while packets for them waited behind others; "
            "compare switch.virtual_output_queues = true"
        )


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


# ---- Workloads: completion by rank, ranks that wait for ever ----------------------------------


def workload_quantities(scenario: Scenario, sim: AnySimulation) -> Iterator[tuple[str, Quantity]]:
    """Quantities of every workload of a scenario at the packet level."""
    for name, first, workload in _workloads(scenario):
        finished = _read_ends_ps(sim, first, workload.operations.ranks)
        rate = _slowest_link_bps(scenario.fabric, workload)
        yield from completion_quantities(name, finished - workload.begin_ps, workload.volume, rate)


def completion_quantities(
    name: str, spans_ps: NDArray[np.int64], volume: Volume | None, rate_bps: float | None
) -> Iterator[tuple[str, Quantity]]:
    """Completion of ranks and of all; of a collective also bus bandwidth and its bound."""
    if len(spans_ps) == 0 or spans_ps.max() > 2**62:
        return
    histogram = Histogram()
    histogram.record_many(spans_ps)
    whole_ps = int(spans_ps.max())
    yield f"{name}.rank_completion", Distribution("ps", histogram)
    yield f"{name}.completion", Scalar(whole_ps / 1e6, "us")
    if volume is None or whole_ps == 0:
        return
    bits = 8 * volume.size_bytes * volume.repetitions * volume.bus_factor
    bus = bits * 1e3 / whole_ps
    yield f"{name}.bus_bandwidth", Scalar(bus, "Gb/s")
    if rate_bps is not None:
        yield f"{name}.bus_bound", Scalar(rate_bps / 1e9, "Gb/s")
        yield f"{name}.bus_share", Scalar(bus * 1e9 / rate_bps, "")


def rank_rows(scenario: Scenario, sim: AnySimulation) -> Iterator[Row]:
    """A row for each rank: where it ran and when it was done."""
    hosts = [scenario.fabric.nodes[node].name for node in scenario.fabric.hosts]
    for name, first, workload in _workloads(scenario):
        for rank in range(min(workload.operations.ranks, SHOWN_RANKS)):
            finished = sim.rank_finished_ps(first + rank)
            yield {
                "workload": name,
                "rank": rank,
                "host": hosts[int(workload.host[rank])],
                "completion_us": None
                if finished == UNENDED_PS
                else (finished - workload.begin_ps) / 1e6,
            }


def explain_waiting(scenario: Scenario, sim: AnySimulation, ended: str) -> Iterator[str]:
    """Why a workload did not end: ranks that wait for each other, or too little time."""
    begun = 0
    for name, _, workload in _workloads(scenario):
        operations = workload.operations
        ended_ps = sim.operations_ended_ps()[begun : begun + len(operations)]
        begun += len(operations)
        is_endless = workload.job is not None and workload.job.job.loops is None
        if (ended_ps == UNENDED_PS).any() and not is_endless:
            cause = "deadlock: " if ended == "deadlock" else ""
            yield f"{cause}{name}: {describe_waiting(operations, ended_ps)}"


def describe_waiting(operations: Operations, ended_ps: NDArray[np.int64]) -> str:
    """How many operations never ended, and the first that waits for no other of its rank."""
    open_ = ended_ps == UNENDED_PS
    counts = np.diff(operations.dependency_start)
    waiting = np.repeat(np.arange(len(operations)), counts)
    blocked = np.zeros(len(operations), dtype=bool)
    blocked[waiting[open_[operations.dependency]]] = True
    first = int(np.flatnonzero(open_ & ~blocked)[0])
    number = int(open_.sum())
    return (
        f"{number} of {len(operations)} operations did not end, first {operations.describe(first)}"
    )


def _workloads(scenario: Scenario) -> Iterator[tuple[str, int, PlacedWorkload]]:
    """Each workload with its name and the core's number of its first rank."""
    first = 0
    for traffic in scenario.traffic:
        for part in traffic.parts:
            if part.workload is not None:
                yield part.name, first, part.workload
                first += part.workload.operations.ranks


def _read_ends_ps(sim: AnySimulation, first: int, ranks: int) -> NDArray[np.int64]:
    return np.array([sim.rank_finished_ps(first + rank) for rank in range(ranks)], dtype=np.int64)


def _slowest_link_bps(fabric: Fabric, workload: PlacedWorkload) -> float | None:
    """The rate of the slowest host's link; None where hosts have several ranks."""
    if len(np.unique(workload.host)) < len(workload.host):
        return None
    nodes = {fabric.hosts[host] for host in workload.host.tolist()}
    ends = ((end.node, link.rate_bps) for link in fabric.links for end in (link.a, link.b))
    return min(rate for node, rate in ends if node in nodes)
