"""Ways to share ports among jobs, each with what it must know in advance.

A way programs the lanes of all ports when a job begins or finishes, or when one begins or ceases
to send. Saba's levels, queues and weights come from `weft.control.policy`; Sincronia's order from
`weft.studies.saba.priority_order`. A regime is a set-up for every seed; `evaluate` runs every way
on each, with what the profiler learned.
Entry points: `WAYS`, `Knowledge`, `LaneSharing`, `simulate_way`, `learn`, `evaluate`.
Units: s, bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weft._core import Shuffles
from weft.control.policy.allocate import ModelSet, split_ports
from weft.control.policy.lending import MAX_APPLICATIONS, choose_weights
from weft.control.policy.levels import assign_levels, build_hierarchy, map_queues
from weft.control.policy.objectives import split_in_proportion, weigh_by_size
from weft.control.policy.port_policy import Htb, PortPolicy
from weft.jobs import Job
from weft.sensitivity.application import Application
from weft.sensitivity.model import Hinges, Sensitivity
from weft.studies.saba.evaluation.cluster import (
    PROFILED_NODES,
    RATE_BPS,
    Floats,
    Flows,
    Ints,
    SetUp,
    build_shuffles,
    list_flow_bytes,
    list_flows,
)
from weft.studies.saba.evaluation.judgement import Evaluation
from weft.studies.saba.priority_order import assign_priorities, order_coflows
from weft.studies.saba.workloads import profile_job, read_testbed

QUEUES, LEVELS = 8, 16  # of a port, of InfiniBand (4.6.1)
SRPT_LANES = 32
JOB_PRIORITIES = 15  # lanes for data of an InfiniBand port
DEGREE = 3
BY_SIZE = "by size, 8 queues"

Lanes = NDArray[np.uint8]  # by job and port
Draw = Callable[[int], SetUp]  # the set-up of a seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Knowledge:
    """What a way may use: flows and paths, and the fitted models of the set-up's workloads.

    `profiled` has those of all workloads that were ever profiled, `convex` the models with which
    lending can be predicted.
    """

    setup: SetUp
    flows: Flows
    models: Mapping[str, Sensitivity]
    profiled: Mapping[str, Sensitivity]
    convex: Mapping[str, Hinges] = field(default_factory=dict)

    @property
    def rng(self) -> np.random.Generator:
        """Random choices of ways, by the set-up's seed."""
        return np.random.default_rng([self.setup.seed, 99])

    def list_sets(self, present: Ints) -> tuple[list[tuple[int, ...]], Ints]:
        """The different sets of present jobs at ports, and which set each port has."""
        is_at = (self.flows.counts > 0) & (present > 0)[:, None]
        columns, which = np.unique(is_at, axis=1, return_inverse=True)
        sets = [tuple(np.flatnonzero(column).tolist()) for column in columns.T]
        return sets, which.reshape(-1)


class Sharing(Protocol):
    """A way while jobs run."""

    at_sends: bool

    def update(self, run: Shuffles) -> None: ...


@dataclass(slots=True, kw_only=True)
class LaneSharing(ABC):
    """A way that gives each job a lane at each port, and each lane a weight.

    `present` has a 1 for each job that runs. `lends` False: a weight is the part of the port that
    its lane never exceeds.
    """

    knowledge: Knowledge
    at_sends: bool = False
    lends: bool = True

    @abstractmethod
    def place(self, present: Ints) -> tuple[int, Lanes]:
        """How many lanes there are, and the lane of each job at each port."""

    @abstractmethod
    def weigh(self, present: Ints, lanes: int, lane_of: Lanes) -> Floats:
        """The weight of each lane at each port."""

    def update(self, run: Shuffles) -> None:
        present = np.asarray(run.present, dtype=np.int64)
        lanes, lane_of = self.place(present)
        weights = self.weigh(present, lanes, lane_of)
        run.program(
            lanes,
            np.ascontiguousarray(lane_of).reshape(-1),
            np.ascontiguousarray(weights).reshape(-1),
            lending=self.lends,
        )


def simulate_way(way: str, knowledge: Knowledge) -> Floats:
    """The completion time of each job, from its start; a way of `WAYS`."""
    run = build_shuffles(knowledge.setup, knowledge.flows)
    sharing = WAYS[way](knowledge)
    while run.run(sharing.at_sends):
        sharing.update(run)
    starts = np.array([job.start_ps / 1e12 for job in knowledge.setup.jobs])
    return np.asarray(run.finished_s - starts)


def simulate_alone(setup: SetUp) -> Floats:
    """The completion time of each job if there were no other."""
    times = []
    for number in range(len(setup.jobs)):
        single = setup.select(number)
        run = build_shuffles(single, list_flows(single))
        while run.run():
            pass
        times.append(float(run.finished_s[0]) - single.jobs[0].start_ps / 1e12)
    return np.array(times)


# ---- Lanes that stay --------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Fixed(LaneSharing):
    """The same lanes at all ports for all time, of equal weight."""

    lane_of_job: Ints
    is_programmed: bool = False

    def place(self, present: Ints) -> tuple[int, Lanes]:  # noqa: ARG002
        ports = len(self.knowledge.flows.ports)
        lane_of = np.repeat(self.lane_of_job.astype(np.uint8)[:, None], ports, axis=1)
        return int(self.lane_of_job.max()) + 1, lane_of

    def weigh(self, present: Ints, lanes: int, lane_of: Lanes) -> Floats:  # noqa: ARG002
        return np.ones((lane_of.shape[1], lanes))

    def update(self, run: Shuffles) -> None:
        if not self.is_programmed:
            LaneSharing.update(self, run)
            self.is_programmed = True


def _number_workloads(setup: SetUp) -> Ints:
    return np.unique(setup.workloads, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _share_one_lane(knowledge: Knowledge) -> Sharing:
    lanes = np.zeros(len(knowledge.setup.jobs), dtype=np.int64)
    return _Fixed(knowledge=knowledge, lane_of_job=lanes)


def _share_by_workload(knowledge: Knowledge) -> Sharing:
    return _Fixed(knowledge=knowledge, lane_of_job=_number_workloads(knowledge.setup))


def _share_random_lanes(knowledge: Knowledge) -> Sharing:
    numbers = _number_workloads(knowledge.setup)
    lanes = knowledge.rng.integers(0, QUEUES, int(numbers.max()) + 1)
    return _Fixed(knowledge=knowledge, lane_of_job=lanes[numbers])


# ---- Saba -------------------------------------------------------------------------------------


def _permute(models: Mapping[str, Sensitivity], rng: np.random.Generator) -> dict[str, Sensitivity]:
    """Every workload with another one's model: a random cycle of them."""
    names = rng.permutation(sorted(models)).tolist()
    return {name: models[names[n - 1]] for n, name in enumerate(names)}


@dataclass(slots=True, kw_only=True)
class _Saba(LaneSharing):
    """Levels of the workloads that run, queues of levels at each port, weights by Eq. 4.2.

    `weighing` are the models of Eq. 4.2, those of the mapping by default; None: equal weights.
    `is_offline`: levels once for all profiled workloads. Where a port does not lend, each job has a
    lane. `queues` None: as many as workloads. `foresees`: weights that reckon with lending, where
    a port has no more workloads than that can be predicted for.
    """

    mapping: Mapping[str, Sensitivity]
    weighing: Mapping[str, Sensitivity] | None
    queues: int | None = QUEUES
    is_offline: bool = False
    foresees: bool = False

    def place(self, present: Ints) -> tuple[int, Lanes]:
        setup = self.knowledge.setup
        running = {setup.workloads[j] for j in np.flatnonzero(present)}
        sets, which = self.knowledge.list_sets(present)
        lanes, lane_of = self._map(sets, running)
        lane = np.zeros((len(setup.jobs), len(sets)), dtype=np.uint8)
        for number, jobs in enumerate(sets):
            for job in jobs:
                lane[job, number] = lane_of[number][job]
        return lanes, lane[:, which]

    def weigh(self, present: Ints, lanes: int, lane_of: Lanes) -> Floats:
        if self.weighing is None:
            return np.ones((lane_of.shape[1], lanes))
        sets, which = self.knowledge.list_sets(present)
        weight = np.zeros((len(present), len(sets)))
        for number, (jobs, weights) in enumerate(zip(sets, self._split(sets), strict=True)):
            weight[list(jobs), number] = weights
        table = np.zeros((lane_of.shape[1], lanes))
        np.add.at(table, (np.arange(lane_of.shape[1]), lane_of), weight[:, which])
        # Lanes that no job is in have no say; a weight that rounds to nothing still moves.
        return np.maximum(table, 1e-6)

    def _split(self, sets: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """The weights of the jobs of each set."""
        assert self.weighing is not None
        names = sorted(self.weighing)
        workloads = self.knowledge.setup.workloads
        rows = [[names.index(workloads[job]) for job in jobs] for jobs in sets if jobs]
        policy = _make_port_policy()
        split = iter(
            split_ports(ModelSet([self.weighing[n] for n in names]), rows, [policy] * len(rows))
        )
        units = float(policy.managed_units)
        weights = [tuple(unit / units for unit in next(split)[0]) if jobs else () for jobs in sets]
        if not self.foresees:
            return weights
        return [self._foresee(jobs, eq_4_2) for jobs, eq_4_2 in zip(sets, weights, strict=True)]

    def _foresee(self, jobs: tuple[int, ...], eq_4_2: tuple[float, ...]) -> tuple[float, ...]:
        names = sorted({self.knowledge.setup.workloads[job] for job in jobs})
        if not 1 < len(names) <= MAX_APPLICATIONS:
            return eq_4_2
        convex = tuple(self.knowledge.convex[name] for name in names)
        weights = dict(zip(names, _foresee_weights(convex), strict=True))
        return tuple(weights[self.knowledge.setup.workloads[job]] for job in jobs)

    def _map(
        self, sets: Sequence[tuple[int, ...]], running: set[str]
    ) -> tuple[int, list[dict[int, int]]]:
        """Number of lanes, and the lane of each job at each set of ports."""
        workloads = self.knowledge.setup.workloads
        if not self.lends:
            return len(workloads), [{job: job for job in jobs} for jobs in sets]
        if self.queues is None:
            numbers = _number_workloads(self.knowledge.setup).tolist()
            return max(numbers) + 1, [{job: numbers[job] for job in jobs} for jobs in sets]
        models = {name: self.mapping[name] for name in running}
        if self.is_offline:
            models = dict(self.knowledge.profiled)
        levels = assign_levels(models, LEVELS)
        hierarchy, level_of = build_hierarchy(levels), levels.assignment
        lane_of: list[dict[int, int]] = []
        for jobs in sets:
            if not jobs:
                lane_of.append({})
                continue
            mapped = map_queues(hierarchy, {level_of[workloads[j]] for j in jobs}, self.queues)
            queue_of = {level: q for q, group in enumerate(mapped.queues) for level in group}
            lane_of.append({job: queue_of[level_of[workloads[job]]] for job in jobs})
        return self.queues, lane_of


class _BySizeInQueues(_Saba):
    """Saba's levels and queues, weights by what an instance of each job sends, as it states it."""

    def _split(self, sets: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        sizes = [
            float((job.loops or 1) * sum(stage.volume_bytes for stage in job.stages))
            for job in self.knowledge.setup.jobs
        ]
        units = _make_port_policy().managed_units
        return [
            tuple(split_in_proportion(weigh_by_size([sizes[job] for job in jobs]), units))
            if jobs
            else ()
            for jobs in sets
        ]


@cache
def _foresee_weights(models: tuple[Hinges, ...]) -> tuple[float, ...]:
    return tuple(choose_weights(models).tolist())


@cache
def _make_port_policy() -> PortPolicy:
    """Weights as fine as HTB's: the thesis does not say how fine its tables were."""
    return PortPolicy(scheduler=Htb(queues=1, rate_kbps=round(RATE_BPS / 1e3)))


def _begin_saba(queues: int | None) -> Callable[[Knowledge], Sharing]:
    return lambda knowledge: _Saba(
        knowledge=knowledge, mapping=knowledge.models, weighing=knowledge.models, queues=queues
    )


def _share_clustered_lanes(knowledge: Knowledge) -> Sharing:
    return _Saba(knowledge=knowledge, mapping=knowledge.models, weighing=None)


def _share_offline(knowledge: Knowledge) -> Sharing:
    return _Saba(
        knowledge=knowledge, mapping=knowledge.models, weighing=knowledge.models, is_offline=True
    )


def _share_fixed(knowledge: Knowledge) -> Sharing:
    return _Saba(
        knowledge=knowledge, mapping=knowledge.models, weighing=knowledge.models, lends=False
    )


def _share_lending(knowledge: Knowledge) -> Sharing:
    return _Saba(
        knowledge=knowledge, mapping=knowledge.models, weighing=knowledge.models, foresees=True
    )


def _share_by_size(knowledge: Knowledge) -> Sharing:
    return _BySizeInQueues(knowledge=knowledge, mapping=knowledge.models, weighing=knowledge.models)


def _share_placebo(knowledge: Knowledge) -> Sharing:
    permuted = _permute(knowledge.models, knowledge.rng)
    return _Saba(knowledge=knowledge, mapping=knowledge.models, weighing=permuted)


def _share_mapped_placebo(knowledge: Knowledge) -> Sharing:
    permuted = _permute(knowledge.models, knowledge.rng)
    return _Saba(knowledge=knowledge, mapping=permuted, weighing=permuted)


# ---- Strict orders ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Sincronia:
    """Coflows that send, in the order of bottleneck-select-scale-iterate, on eight priorities."""

    knowledge: Knowledge
    at_sends: bool = True

    def update(self, run: Shuffles) -> None:
        counts, capacity = self.knowledge.flows.counts, self.knowledge.flows.capacity
        demand = run.left_at_ports().reshape(counts.shape) / capacity
        order = order_coflows(demand).order
        # Who sends nothing comes first in the order, and must not take a priority.
        active = [job for job in order if demand[job].any()]
        lane = np.full(len(counts), QUEUES - 1, dtype=np.uint8)
        for job, priority in assign_priorities(active, QUEUES).items():
            lane[job] = priority
        ports = counts.shape[1]
        run.program(QUEUES, np.repeat(lane, ports), np.ones(ports * QUEUES), strict=True)


def order_jobs(setup: SetUp, flows: Flows) -> dict[int, int]:
    """The priority of each job by Sincronia's offline order: a coflow is all that a job sends."""
    demand = flows.counts * list_flow_bytes(setup)[:, None] / flows.capacity
    return assign_priorities(order_coflows(demand).order, JOB_PRIORITIES)


@dataclass(slots=True)
class _JobOrder:
    """Jobs in one order from the start to the end."""

    knowledge: Knowledge
    at_sends: bool = False
    is_programmed: bool = False

    def update(self, run: Shuffles) -> None:
        if self.is_programmed:
            return
        self.is_programmed = True
        jobs, ports = self.knowledge.flows.counts.shape
        priorities = order_jobs(self.knowledge.setup, self.knowledge.flows)
        lane = np.array([priorities[job] for job in range(jobs)], dtype=np.uint8)
        weights = np.ones(ports * JOB_PRIORITIES)
        run.program(JOB_PRIORITIES, np.repeat(lane, ports), weights, strict=True)


@dataclass(slots=True)
class _BySize:
    """Strict lanes by the bytes that a flow has left."""

    cutoffs: Floats
    at_sends: bool = False
    is_programmed: bool = False

    def update(self, run: Shuffles) -> None:
        if not self.is_programmed:
            run.order_flows(self.cutoffs.tolist())
            self.is_programmed = True


def _list_message_bytes(setup: SetUp) -> tuple[Floats, Floats]:
    """The messages of all stages, and how many of each there are."""
    sizes, counts = [], []
    for job, hosts in zip(setup.jobs, setup.hosts, strict=True):
        for stage in job.stages:
            if stage.volume_bytes and len(hosts) > 1:
                sizes.append(stage.volume_bytes / (len(hosts) - 1))
                counts.append((job.loops or 1) * len(hosts) * (len(hosts) - 1))
    return np.array(sizes), np.array(counts, dtype=np.float64)


def _share_by_remaining(knowledge: Knowledge) -> Sharing:
    """As many lanes as the core has room for: cut-offs from the largest message down by halves."""
    largest = _list_message_bytes(knowledge.setup)[0].max()
    return _BySize(largest * np.geomspace(2.0**-15, 1, SRPT_LANES - 1)[:-1])


def _share_by_grants(knowledge: Knowledge) -> Sharing:
    """Eight priorities with cut-offs that give each the same bytes, as Homa sets them."""
    sizes, counts = _list_message_bytes(knowledge.setup)
    order = np.argsort(sizes)
    carried = np.cumsum((sizes * counts)[order])
    places = np.searchsorted(carried, carried[-1] * np.arange(1, QUEUES) / QUEUES)
    return _BySize(np.unique(sizes[order][places]))


# Those of Saba need the sensitivity model of every workload, and jobs and paths at each port.
WAYS: Mapping[str, Callable[[Knowledge], Sharing]] = {
    "one lane": _share_one_lane,
    "fixed caps": _share_fixed,
    "lane per workload": _share_by_workload,  # as many lanes as workloads
    "8 equal lanes, random": _share_random_lanes,
    "8 equal lanes, k-means": _share_clustered_lanes,  # models decide the mapping alone
    "Saba, 2 queues": _begin_saba(2),
    "Saba, 4 queues": _begin_saba(4),
    "Saba": _begin_saba(QUEUES),
    "Saba, 16 queues": _begin_saba(16),
    "Saba, unlimited queues": _begin_saba(None),
    "Saba, distributed": _share_offline,
    "Saba, lending": _share_lending,
    BY_SIZE: _share_by_size,  # the controller's default; needs the bytes of every job
    "placebo": _share_placebo,  # a wrong model
    "placebo, mapped too": _share_mapped_placebo,
    "Homa": _share_by_grants,  # needs the size of a message when it starts, and all sizes
    "Sincronia": _Sincronia,  # needs all flows of a stage when it starts, and sees all ports
    "Sincronia, jobs": _JobOrder,  # needs all that each job will send
    "SRPT": _share_by_remaining,  # needs the bytes left of every flow
}


# ---- Profiles ---------------------------------------------------------------------------------


@cache
def profile_testbed() -> Mapping[str, Application]:
    """The ten workloads, each profiled on eight nodes."""
    return {
        name: profile_job(workload.job, nodes=PROFILED_NODES)
        for name, workload in read_testbed().items()
    }


def profile_jobs(jobs: Sequence[Job]) -> Mapping[str, Application]:
    """Synthetic jobs, each profiled on a rack of 18."""
    return {job.name: _profile_on_rack(job) for job in jobs}


@cache
def _profile_on_rack(job: Job) -> Application:
    return profile_job(job)


def select_models(
    applications: Mapping[str, Application], degree: int = DEGREE
) -> dict[str, Sensitivity]:
    """The polynomial of that degree of each workload, as the thesis fits them."""
    return {name: entry.paper[degree - 1].model for name, entry in applications.items()}


def learn(setup: SetUp, degree: int = DEGREE) -> Knowledge:
    """Profile the workloads of a set-up, and fit their models."""
    profiled = profile_jobs(setup.jobs) if setup.is_synthetic else profile_testbed()
    return build_knowledge(setup, profiled, degree)


def build_knowledge(
    setup: SetUp, profiled: Mapping[str, Application], degree: int = DEGREE
) -> Knowledge:
    """The set-up with what the profiles of its workloads say."""
    models = select_models(profiled, degree)
    return Knowledge(
        setup=setup,
        flows=list_flows(setup),
        models={name: models[name] for name in dict.fromkeys(setup.workloads)},
        profiled=models,
        convex={name: entry.convex.model for name, entry in profiled.items()},
    )


# ---- Regimes ----------------------------------------------------------------------------------


def evaluate(
    draw: Draw,
    seeds: Sequence[int],
    ways: Sequence[str],
    *,
    degree: int = DEGREE,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Completion of every job in every set-up under every way, and alone."""
    setups = [draw(seed) for seed in seeds]
    runs: dict[str, list[np.ndarray]] = {way: [] for way in ways}
    alone, busiest = [], []
    for number, setup in enumerate(setups):
        knowledge = learn(setup, degree)
        alone.append(simulate_alone(setup))
        busiest.append(find_busiest_s(setup, knowledge.flows))
        for way in ways:
            runs[way].append(simulate_way(way, knowledge))
        if progress:
            progress((number + 1) / len(setups))
    return Evaluation(
        seeds=tuple(seeds),
        workloads=tuple(setup.workloads for setup in setups),
        completions={way: tuple(times) for way, times in runs.items()},
        alone=tuple(alone),
        busiest_s=tuple(busiest),
    )


def count_bytes(job: Job) -> float:
    """Bytes that a job sends in all its loops."""
    return float((job.loops or 1) * sum(stage.volume_bytes for stage in job.stages))


def find_busiest_s(setup: SetUp, flows: Flows) -> float:
    """How long the port with the most bytes needs for them."""
    per_flow = [
        count_bytes(job) / max(1, len(hosts) - 1)
        for job, hosts in zip(setup.jobs, setup.hosts, strict=True)
    ]
    return float((np.array(per_flow) @ flows.counts / flows.capacity).max())
