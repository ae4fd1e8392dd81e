"""Ways to share, packet by packet: lanes with buffers and credits, inputs that block.

A set-up is shrunk until its packets make so many hops: computation and volume together, so that
its shape stays. Jobs that have the same lane wherever they meet share a service level; each port
maps it to that lane. Lanes stay as they are when jobs start: a packet under way cannot change its
lane. Weights are programmed again when a job has ended, as entries of VL arbitration of one packet
each. Homa and SRPT have lanes in strict order, and senders and receivers that choose among them;
Sincronia's jobs have one such lane each.
Entry points: `SwitchKind`, `simulate_packets`, `simulate_grants`, `simulate_job_order`,
`evaluate_packets`. Units: s, bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from weft._core import ArbTables, CongestionControl, GrantSpec, Simulation, Status, Transport
from weft.errors import InputError, InvariantError
from weft.simulate.job_traffic import build_traffic
from weft.simulate.run import build_simulation
from weft.simulate.scenario import Scenario, scenario_from
from weft.simulate.systems import LanePlan
from weft.studies.saba.evaluation.allocations import learn
from weft.studies.saba.evaluation.cluster import (
    RATE_BPS,
    Floats,
    Flows,
    Ints,
    SetUp,
    list_flow_bytes,
    list_flows,
)
from weft.studies.saba.evaluation.judgement import PRODUCT, Evaluation
from weft.studies.saba.evaluation.ways import (
    BY_SIZE,
    JOB_PRIORITIES,
    WAYS,
    Draw,
    Knowledge,
    Lanes,
    LaneSharing,
    find_busiest_s,
    order_jobs,
)

PACKET_BYTES = 4096
PACKET_BLOCKS = 65  # with its headers, of 64 bytes: what an entry of VL arbitration counts
ENTRIES = 64  # of an arbitration table
MOST_LEVELS = 16
BUFFER_BYTES = 16 * 8192  # of an input port: two packets for each of 15 lanes and more
HOPS = 500_000
WHOLE_FABRIC_HOPS = 20_000_000  # of 186,000 flows: some packets for each message
SLICE_EVENTS = 5_000  # or some for each instance, after which jobs that have ended are noticed
SLICE_EVENTS_OF_INSTANCE = 20
LIMIT_S = 1000.0
JITTER = "25 ns"  # of a switch's latency, as the SX6012's: without any, hosts would send in step
LINK_DELAY_S, SWITCH_LATENCY_S = 50e-9, 200e-9  # of the clusters' cables, of an ideal switch
_NOTHING = {"name": "none", "compute": "1 ns"}
CONGESTION_WAY = "one lane, FECN/BECN"
PACKET_WAYS = (
    *PRODUCT,
    CONGESTION_WAY,
    "fixed caps",
    "lane per workload",
    "Saba, 2 queues",
    "Saba, 4 queues",  # a port has 15 lanes for data
    "Saba, unlimited queues",
    "Saba, distributed",
    "Saba, lending",
    BY_SIZE,
    "placebo, mapped too",
    "Homa",
    "Sincronia, jobs",
    "SRPT",
)
HOMA_PRIORITIES, SRPT_PRIORITIES = 8, 15
UNLIMITED_BYTES = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class Congestion:
    """The settings of congestion control that are swept."""

    threshold_bytes: int
    step: float  # of injection delay, in packet times
    timer_us: float

    def __str__(self) -> str:
        return f"{self.threshold_bytes} B, {self.step:g} packets, {self.timer_us:g} us"

    def to_core(self) -> CongestionControl:
        control = CongestionControl()
        control.enabled = True
        control.threshold_bytes, control.step = self.threshold_bytes, self.step
        control.timer_ps = round(1e6 * self.timer_us)
        control.marking_rate, control.increase, control.limit = 0, 1, 127
        return control


SWEEP = tuple(
    Congestion(threshold_bytes=threshold, step=step, timer_us=timer_us)
    for threshold in (16_384, 65_536)
    for step, timer_us in ((0.1, 10.0), (0.5, 10.0), (2.0, 50.0))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchKind:
    """Inputs of switches: FIFO or a queue for each output; a lane's buffer."""

    virtual_output_queues: bool = True
    is_equal_in_total: bool = True  # False: each lane has what one lane alone would have

    def __str__(self) -> str:
        inputs = "virtual output queues" if self.virtual_output_queues else "FIFO inputs"
        return f"{inputs}, buffers equal {'in total' if self.is_equal_in_total else 'per lane'}"

    def lane_bytes(self, lanes: int) -> int:
        return BUFFER_BYTES // (lanes if self.is_equal_in_total else 1)


KINDS = tuple(
    SwitchKind(virtual_output_queues=queues, is_equal_in_total=total)
    for queues in (True, False)
    for total in (True, False)
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacketRun:
    """Completion of each job, how often inputs blocked outputs, and the work it was."""

    completions_s: Floats
    head_of_line: float
    hops: int


def shrink_to_hops(setup: SetUp, flows: Flows, hops: int) -> SetUp:
    """The set-up with as much less of everything as gives so many hops of data packets."""
    all_hops = float((list_flow_bytes(setup) @ flows.counts).sum()) / PACKET_BYTES
    return setup.shrink(min(1.0, hops / all_hops)) if all_hops else setup


def simulate_packets(
    sharing: LaneSharing, setup: SetUp, kind: SwitchKind, congestion: Congestion | None = None
) -> PacketRun:
    """Run a set-up, as small as it shall be, under a way."""
    run = _Run(sharing, setup, kind, congestion)
    return run.complete()


class _Run:
    """One simulation, its way, and the jobs that still run."""

    def __init__(
        self, sharing: LaneSharing, setup: SetUp, kind: SwitchKind, congestion: Congestion | None
    ) -> None:
        self.sharing, self.setup = sharing, setup
        self.flows = sharing.knowledge.flows
        self.places = setup.cluster.wiring.locate(self.flows.ports)
        self.present: Ints = np.ones(len(setup.jobs), dtype=np.int64)
        lanes, lane_of = sharing.place(self.present)
        # Where lanes do not lend, flows are capped instead, all in one lane.
        self.lanes, self.lane_of = (lanes, lane_of) if sharing.lends else (1, 0 * lane_of)
        self.levels = number_levels(self.lane_of, self.flows.counts)
        scenario = _build_scenario(setup, self.levels, self.lanes, kind, congestion)
        scenario = replace(scenario, lanes=self._plan_lanes())
        self.simulation: Simulation = build_simulation(scenario)[0]
        self.ranks = _list_ranks(setup)
        if not sharing.lends:
            self._cap_flows()

    def complete(self) -> PacketRun:
        simulation = self.simulation
        status = Status.RUNNING
        events = max(SLICE_EVENTS, SLICE_EVENTS_OF_INSTANCE * self.ranks[-1].stop)
        while status == Status.RUNNING:
            status = simulation.run(events)
            if self._note_ends() and status == Status.RUNNING:
                self._program()
        return _summarise(self.setup, simulation, status)

    def _note_ends(self) -> bool:
        """Whether a job has ended since the last time."""
        changed = False
        for job in np.flatnonzero(self.present).tolist():
            ends = [self.simulation.rank_finished_ps(rank) for rank in self.ranks[job]]
            if max(ends) < LIMIT_S * 1e12:
                self.present[job] = 0
                changed = True
        return changed

    def _plan_lanes(self) -> LanePlan:
        tables, maps = [], []
        for number, ((node, port), table) in enumerate(
            zip(self.places, build_all_tables(self._weigh()), strict=True)
        ):
            tables.append((node, port, table))
            maps.append((node, 0, port, self._map_levels(number)))
        return LanePlan(
            sl2vl=(0,) * MOST_LEVELS,
            tables=build_tables(np.ones(self.lanes)),
            served=frozenset(range(self.lanes)),
            port_tables=tuple(tables),
            port_sl2vl=tuple(maps),
        )

    def _map_levels(self, port: int) -> tuple[int, ...]:
        """The lane of each service level at a port."""
        lanes = [0] * MOST_LEVELS
        for level, lane, count in zip(
            self.levels, self.lane_of[:, port], self.flows.counts[:, port], strict=True
        ):
            if count:
                lanes[level] = int(lane)
        return tuple(lanes)

    def _weigh(self) -> Floats:
        if not self.sharing.lends:
            return np.ones((len(self.places), 1))
        return self.sharing.weigh(self.present, self.lanes, self.lane_of)

    def _program(self) -> None:
        if not self.sharing.lends:
            self._cap_flows()
            return
        for (node, port), tables in zip(self.places, build_all_tables(self._weigh()), strict=True):
            self.simulation.set_arbitration(node, port, tables)

    def _cap_flows(self) -> None:
        """The part of a job at its narrowest port, shared by its flows there."""
        jobs = len(self.setup.jobs)
        lane_of: Lanes = np.repeat(np.arange(jobs, dtype=np.uint8)[:, None], len(self.places), 1)
        weights = self.sharing.weigh(self.present, jobs, lane_of).T
        counts = self.flows.counts
        with np.errstate(divide="ignore"):
            caps = np.where(counts > 0, weights / counts, np.inf) * RATE_BPS
        starts = self.flows.path_start.astype(np.int64)
        lengths = starts[1:] - starts[:-1]
        job_of = np.repeat(np.arange(jobs), [len(h) * (len(h) - 1) for h in self.setup.hosts])
        hop_caps = caps[np.repeat(job_of, lengths), self.flows.path]
        least = np.minimum.reduceat(hop_caps, starts[:-1])
        for flow in np.flatnonzero(self.present[job_of]).tolist():
            self.simulation.set_rate(flow, float(least[flow]))


def _list_ranks(setup: SetUp) -> list[range]:
    """Of each job's instances."""
    first = np.cumsum([0, *(len(hosts) for hosts in setup.hosts)]).tolist()
    return [range(a, b) for a, b in pairwise(first)]


def _summarise(setup: SetUp, simulation: Simulation, status: Status) -> PacketRun:
    if status != Status.FINISHED:
        raise InvariantError(f"the packet-level run ended as {status} at {simulation.now_ps} ps")
    ends = [max(map(simulation.rank_finished_ps, ranks)) for ranks in _list_ranks(setup)]
    starts = [job.start_ps for job in setup.jobs]
    return PacketRun(
        completions_s=(np.array(ends) - starts) / 1e12,
        head_of_line=simulation.head_of_line_share(),
        hops=simulation.packet_hops,
    )


def number_levels(lane_of: Lanes, counts: Ints) -> list[int]:
    """The service level of each job: jobs share one if no port has them in different lanes."""
    absent = np.iinfo(lane_of.dtype).max
    levels: list[Lanes] = []  # the lane of each at every port
    numbers = []
    for lanes in np.where(counts > 0, lane_of, absent):
        agreeing = (
            number
            for number, level in enumerate(levels)
            if ((lanes == level) | (lanes == absent) | (level == absent)).all()
        )
        number = next(agreeing, len(levels))
        if number == len(levels):
            levels.append(lanes)
        levels[number] = np.minimum(levels[number], lanes)
        numbers.append(number)
    if len(levels) > MOST_LEVELS:
        problem = f"{len(levels)} service levels, and InfiniBand has {MOST_LEVELS}"
        raise InputError("packet level", problem, "draw a set-up with fewer workloads")
    return numbers


def build_tables(weights: Floats) -> ArbTables:
    """VL arbitration by weight, in entries of a packet each."""
    return ArbTables([], [[lane, PACKET_BLOCKS] for lane in list_entries(weights)], 255)


def build_all_tables(weights: Floats) -> Iterator[ArbTables]:
    """Of each row; rows that are alike share theirs: most of a fabric's thousands of ports are."""
    tables: dict[bytes, ArbTables] = {}
    for row in weights:
        key = row.tobytes()
        if key not in tables:
            tables[key] = build_tables(row)
        yield tables[key]


def list_entries(weights: Floats) -> list[int]:
    """The lane of each entry: as many as its weight has, one or more, spread evenly."""
    entries = ENTRIES if len(set(weights.tolist())) > 1 else len(weights)
    share = weights / weights.sum() * entries
    counts = np.maximum(1, np.floor(share)).astype(int)
    while counts.sum() < entries:
        counts[np.argmax(share - counts)] += 1
    while counts.sum() > entries:
        counts[np.argmax(np.where(counts > 1, counts - share, -np.inf))] -= 1
    moments = [
        ((turn + 0.5) / count, lane)
        for lane, count in enumerate(counts.tolist())
        for turn in range(count)
    ]
    return [lane for _, lane in sorted(moments)]


def _build_scenario(
    setup: SetUp, levels: Sequence[int], lanes: int, kind: SwitchKind, congestion: Congestion | None
) -> Scenario:
    """The fabric with so many lanes, and a flow for each pair of instances of a job."""
    frame = scenario_from(
        {
            "name": "ways to share",
            "duration": f"{LIMIT_S:g} s",
            "seed": setup.seed,
            "fabric": {"topology": "one_switch", "hosts": 2, "lanes": lanes},
            "switch": {
                "virtual_output_queues": kind.virtual_output_queues,
                "jitter": JITTER,
                "buffer": f"{kind.lane_bytes(lanes)} B",
            },
            "host": {"buffer": f"{BUFFER_BYTES} B"},
            "job": [{"name": "none", "instances": 1, "loops": 1, "stage": [_NOTHING]}],
        }
    )
    fabric = replace(setup.cluster.wiring.fabric, lanes=lanes)
    names = [fabric.nodes[node].name for node in fabric.hosts]
    traffic = tuple(
        build_traffic(
            replace(job, name=f"job{number}", sl=levels[number], instances=len(hosts)),
            hosts.tolist(),
            [names[host] for host in hosts],
            frame.duration_ps,
            RATE_BPS,
        )
        for number, (job, hosts) in enumerate(zip(setup.jobs, setup.hosts, strict=True))
    )
    switches = frame.switches
    if congestion is not None:
        switches.congestion = congestion.to_core()
    return replace(frame, fabric=fabric, traffic=traffic, switches=switches)


# ---- Strict priorities -------------------------------------------------------------------------


def simulate_grants(grants: GrantSpec, setup: SetUp, kind: SwitchKind) -> PacketRun:
    """Run a set-up in strict priorities, one for each lane, without acknowledgements."""
    lanes = grants.priorities
    scenario = _build_scenario(setup, [0] * len(setup.jobs), lanes, kind, None)
    for traffic in scenario.traffic:
        for flow in (flow for part in traffic.parts for flow in part.flows):
            flow.transport = Transport.UC
    scenario.adapter.grants = grants
    return _run_strictly(scenario, setup, lanes)


def simulate_job_order(setup: SetUp, flows: Flows, kind: SwitchKind) -> PacketRun:
    """Run a set-up in strict priorities, one for each job as long as there are any."""
    priorities = order_jobs(setup, flows)
    levels = [priorities[job] for job in range(len(setup.jobs))]
    scenario = _build_scenario(setup, levels, JOB_PRIORITIES, kind, None)
    return _run_strictly(scenario, setup, JOB_PRIORITIES)


def _run_strictly(scenario: Scenario, setup: SetUp, lanes: int) -> PacketRun:
    """To the end, with lane 0 before lane 1 before lane 2 at hosts and switches."""
    tables = build_tables(np.ones(lanes))
    tables.strict = True
    levels = tuple(min(level, lanes - 1) for level in range(MOST_LEVELS))
    plan = LanePlan(sl2vl=levels, tables=tables, served=frozenset(range(lanes)))
    simulation = build_simulation(replace(scenario, lanes=plan))[0]
    status = Status.RUNNING
    while status == Status.RUNNING:
        status = simulation.run(100 * SLICE_EVENTS)
    return _summarise(setup, simulation, status)


def build_homa(setup: SetUp, flows: Flows) -> GrantSpec:
    """Priorities in proportion to unasked bytes, the same of these in each; one or more granted."""
    sizes = _list_sizes(setup)
    grants = GrantSpec()
    grants.enabled, grants.priorities = True, HOMA_PRIORITIES
    grants.ahead_bytes = _count_round_trip_bytes(flows)
    unasked = np.minimum(sizes, grants.ahead_bytes)
    share = unasked.sum() / sizes.sum()
    levels = int(np.clip(round(HOMA_PRIORITIES * share), 1, HOMA_PRIORITIES - 1))
    carried = np.cumsum(unasked)
    places = np.searchsorted(carried, carried[-1] * np.arange(1, levels) / levels)
    grants.cutoffs_bytes = sorted(set(sizes[places].astype(int).tolist()))
    grants.messages = HOMA_PRIORITIES - levels
    return grants


def build_srpt(setup: SetUp) -> GrantSpec:
    """All bytes unasked; cut-offs of the bytes left from the largest message down to 2⁻¹⁴ of it."""
    grants = GrantSpec()
    grants.enabled, grants.priorities, grants.by_left = True, SRPT_PRIORITIES, True
    grants.ahead_bytes = UNLIMITED_BYTES
    cutoffs = _list_sizes(setup)[-1] * 0.5 ** np.arange(SRPT_PRIORITIES - 1, 0, -1)
    grants.cutoffs_bytes = sorted(set(np.ceil(cutoffs).astype(int).tolist()))
    return grants


def _list_sizes(setup: SetUp) -> Floats:
    """The messages of a flow of each job, as often as they are sent, smallest first."""
    sizes = []
    for job, hosts in zip(setup.jobs, setup.hosts, strict=True):
        pairs = (job.loops or 1) * len(hosts) * (len(hosts) - 1)
        for stage in job.stages:
            volume = stage.volume_bytes / max(1, len(hosts) - 1)
            parts = (stage.overlap * volume, (1 - stage.overlap) * volume)
            sizes += [np.full(pairs, round(part)) for part in parts if round(part) > 0]
    return np.sort(np.concatenate(sizes)).astype(float)


def _count_round_trip_bytes(flows: Flows) -> int:
    """What a link carries while a packet goes the longest way and a grant returns."""
    links = int(np.diff(flows.path_start.astype(np.int64)).max())
    way_s = links * LINK_DELAY_S + (links - 1) * SWITCH_LATENCY_S
    packets = 1 + 2 * way_s * RATE_BPS / 8 / PACKET_BYTES
    return PACKET_BYTES * int(np.ceil(packets))


# ---- A regime ---------------------------------------------------------------------------------


def simulate_way_in_packets(
    way: str, knowledge: Knowledge, small: SetUp, kind: SwitchKind
) -> PacketRun:
    """One way of `WAYS` that uses lanes, or one lane with the best of the congestion sweep."""
    if way == CONGESTION_WAY:
        sharing = _begin("one lane", knowledge)
        runs = [simulate_packets(sharing, small, kind, congestion) for congestion in SWEEP]
        # With hindsight, set-up by set-up: the best case for congestion control.
        return min(runs, key=lambda run: float(np.log(run.completions_s).mean()))
    if way == "Homa":
        return simulate_grants(build_homa(small, knowledge.flows), small, kind)
    if way == "SRPT":
        return simulate_grants(build_srpt(small), small, kind)
    if way == "Sincronia, jobs":
        return simulate_job_order(small, knowledge.flows, kind)
    return simulate_packets(_begin(way, knowledge), small, kind)


def _begin(way: str, knowledge: Knowledge) -> LaneSharing:
    sharing = WAYS[way](knowledge)
    if not isinstance(sharing, LaneSharing):
        raise InputError("packet level", f"{way!r} is not made of lanes", "run it at flow level")
    return sharing


def simulate_alone_in_packets(small: SetUp, knowledge: Knowledge, kind: SwitchKind) -> Floats:
    """Each job without the others, in one lane."""
    times = []
    for number in range(len(small.jobs)):
        single = small.select(number)
        reduced = replace(knowledge, setup=single, flows=list_flows(single))
        sharing = _begin("one lane", reduced)
        times.append(float(simulate_packets(sharing, single, kind).completions_s[0]))
    return np.array(times)


def _number_instances(setup: SetUp) -> SetUp:
    """The same with the instances of each job numbered at random: jobs do not send in step."""
    rng = np.random.default_rng([setup.seed, 77])
    return replace(setup, hosts=tuple(rng.permutation(hosts) for hosts in setup.hosts))


def prepare_packets(setup: SetUp, hops: int) -> tuple[Knowledge, SetUp]:
    """What ways may use, and the set-up as small as it shall run."""
    setup = _number_instances(setup)
    knowledge = learn(setup).knowledge
    return knowledge, shrink_to_hops(setup, knowledge.flows, hops)


def evaluate_packets(
    draw: Draw, seeds: Sequence[int], ways: Sequence[str], kind: SwitchKind, *, hops: int = HOPS
) -> Evaluation:
    """As `evaluate`, packet by packet."""
    runs: dict[str, list[Floats]] = {way: [] for way in ways}
    workloads, alone, busiest = [], [], []
    for seed in seeds:
        knowledge, small = prepare_packets(draw(seed), hops)
        workloads.append(small.workloads)
        alone.append(simulate_alone_in_packets(small, knowledge, kind))
        busiest.append(find_busiest_s(small, knowledge.flows))
        for way in ways:
            run = simulate_way_in_packets(way, knowledge, small, kind)
            runs[way].append(run.completions_s)
    return Evaluation(
        seeds=tuple(seeds),
        workloads=tuple(workloads),
        completions={way: tuple(times) for way, times in runs.items()},
        alone=tuple(alone),
        busiest_s=tuple(busiest),
    )
