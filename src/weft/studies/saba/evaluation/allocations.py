"""Which weights are best where ports lend: rules compared on regimes they were not chosen on.

Each job has a lane of its own at every port, so that rules differ in the weights alone. Beside
Eq. 4.2 and its kin there are weights by size: a job counts 1 / s^p, with s the time for which its
bytes alone would fill the busiest port, as a counter or one run says it; no sensitivity is known.

A probe beside the jobs, packet by packet, asks whether a latency lane is protected, whatever their
weights. Eight jobs loop on eight hosts of a switch with virtual output queues; their messages are
shrunk, so that milliseconds show many of them. A ping-pong of 64 bytes runs in a lane of high
priority, or among them. Buffers are equal in total.
Entry points: `RULES`, `REGIMES`, `evaluate_rules`, `place_jobs`; `PROBED`, `probe_latency`.
Units: s, bytes; of the probe us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import exp, log
from random import Random
from typing import Any

import numpy as np

from weft._core import Shuffles
from weft.control.policy.allocate import ModelSet, split_ports
from weft.control.policy.fabric_wide import split_fabric
from weft.control.policy.lending import choose_weights, model_volume
from weft.control.policy.objectives import weigh_by_size
from weft.control.policy.port_policy import Htb, PortPolicy
from weft.errors import InputError
from weft.fabric import Port
from weft.jobs import Job
from weft.records import Distribution
from weft.sensitivity.application import Application
from weft.sensitivity.model import Hinges
from weft.sensitivity.trace import Trace, estimate
from weft.simulate import scenario_from, simulate
from weft.studies.saba.evaluation.cluster import (
    PROFILED_NODES,
    RATE_BPS,
    Floats,
    Flows,
    Ints,
    SetUp,
    build_homogeneous,
    build_shuffles,
    connect_leaf_spine,
    connect_one_switch,
    draw_favourable,
    draw_scale,
    draw_testbed,
    resize_job,
)
from weft.studies.saba.evaluation.judgement import Evaluation
from weft.studies.saba.evaluation.ways import (
    WAYS,
    Knowledge,
    build_knowledge,
    count_bytes,
    find_busiest_s,
    profile_jobs,
    profile_testbed,
    simulate_alone,
    simulate_way,
)
from weft.studies.saba.live.cells import WORKLOADS, build_job, draw_workloads
from weft.studies.saba.workloads import describe_job, profile_job, read_testbed

EQUAL, ONE_LANE, EQ_4_2, TRACED, LENDING, FABRIC_WIDE = (
    "equal",
    "one lane",
    "Eq. 4.2",
    "Eq. 4.2, traced",
    "lending",
    "fabric-wide",
)
LIGHT, LIGHTER, PLACEBO, ROUGH, PROFILED, STATED, HALF = (
    "size",
    "size²",
    "size, permuted",
    "size, wrong by 4",
    "size, of the profile",
    "size, stated",
    "size, stated by half",
)
LENGTH_S = (10.0, 100.0)  # of the jobs of `draw_load`
ITERATIONS = 10
LEAVES, LEAF_HOSTS = 8, 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobFacts:
    """What a rule may use of a set-up's jobs, in their order."""

    setup: SetUp
    flows: Flows
    applications: Sequence[Application]
    knowledge: Knowledge

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng([self.setup.seed, 17])

    @property
    def sizes_s(self) -> Floats:
        """How long each job's bytes alone would fill its busiest port."""
        return measure_sizes(self.setup, self.flows)

    @property
    def stated_bytes(self) -> Floats:
        """What an instance of each job sends, as its user would state it."""
        return np.array([count_bytes(job) for job in self.setup.jobs])

    @property
    def profiled_bytes(self) -> Floats:
        """The same of the profiled job, whatever the data, length and nodes of this one."""
        if not self.setup.is_synthetic:
            testbed = read_testbed()
            return np.array([count_bytes(testbed[name].job) for name in self.setup.workloads])
        kinds = _list_kinds(self.setup)
        if kinds is None:
            return self.stated_bytes
        return np.array([count_bytes(_build_profiled(kind)) for kind in kinds])


def measure_sizes(setup: SetUp, flows: Flows) -> Floats:
    per_flow = [
        count_bytes(job) / max(1, len(hosts) - 1)
        for job, hosts in zip(setup.jobs, setup.hosts, strict=True)
    ]
    return np.asarray(
        (np.array(per_flow)[:, None] * flows.counts / flows.capacity).max(axis=1) + 1e-9
    )


Weigh = Callable[[JobFacts, tuple[int, ...]], Sequence[float]]


def _weigh_equally(_: JobFacts, jobs: tuple[int, ...]) -> Sequence[float]:
    return (1.0,) * len(jobs)


def _weigh_by_sensitivity(facts: JobFacts, jobs: tuple[int, ...]) -> Sequence[float]:
    """Eq. 4.2, with convex models: those that lending needs too."""
    return _split_port([facts.applications[job].convex.model for job in jobs])


def _weigh_by_traces(facts: JobFacts, jobs: tuple[int, ...]) -> Sequence[float]:
    """Eq. 4.2 without profiles: each model is estimated from one run of the job alone."""
    return _split_port([estimate(trace_job(facts.setup.jobs[job])).model for job in jobs])


def _split_port(models: Sequence[Hinges]) -> Sequence[float]:
    policy = PortPolicy(scheduler=Htb(queues=1, rate_kbps=round(RATE_BPS / 1e3)))
    ((weights, _),) = split_ports(ModelSet(models), [range(len(models))], [policy])
    return weights


def trace_job(job: Job) -> Trace:
    """What counters of bytes and processor time show of a loop of the job alone, full link."""
    rows = []
    for stage in job.stages:
        computes_s = stage.compute_ps / 1e12
        sends_s = stage.volume_bytes * 8 / RATE_BPS
        hidden_s = min(computes_s, stage.overlap * sends_s)
        rows += [(hidden_s, 1, 1), (computes_s - hidden_s, 0, 1), (sends_s - hidden_s, 1, 0)]
    length_s, sends, computes = np.array([row for row in rows if row[0] > 0]).T
    sent = length_s * sends * RATE_BPS / 8
    return Trace(
        duration_s=length_s,
        sent_bytes=sent,
        received_bytes=sent,
        cpu_s=length_s * computes,
        link_bps=RATE_BPS,
    )


def _weigh_by_lending(facts: JobFacts, jobs: tuple[int, ...]) -> Sequence[float]:
    models = [facts.applications[job].convex.model for job in jobs]
    return [float(weight) for weight in choose_weights(models)]


def _weigh_by_size(
    sizes: Callable[[JobFacts], Floats], power: float, facts: JobFacts, jobs: tuple[int, ...]
) -> Sequence[float]:
    return weigh_by_size((sizes(facts)[list(jobs)] ** power).tolist())


def _permute_sizes(facts: JobFacts) -> Floats:
    """Every job with another one's size: a random cycle."""
    order = facts.rng.permutation(len(facts.setup.jobs))
    permuted = np.empty(len(order))
    permuted[order] = facts.sizes_s[np.roll(order, 1)]
    return permuted


def _misjudge_sizes(facts: JobFacts) -> Floats:
    """Each four times too large or too small."""
    return facts.sizes_s * 4.0 ** facts.rng.choice([-1.0, 1.0], len(facts.setup.jobs))


def _state_by_half(facts: JobFacts) -> Floats:
    """Half of the jobs, drawn by the seed, state their size; the others have the profile's."""
    jobs = len(facts.setup.jobs)
    states = facts.rng.permutation(jobs) < (jobs + 1) // 2
    return np.where(states, facts.stated_bytes, facts.profiled_bytes)


RULES: Mapping[str, Weigh] = {
    EQUAL: _weigh_equally,
    EQ_4_2: _weigh_by_sensitivity,
    TRACED: _weigh_by_traces,
    LENDING: _weigh_by_lending,
    LIGHT: partial(_weigh_by_size, lambda facts: facts.sizes_s, 1.0),
    LIGHTER: partial(_weigh_by_size, lambda facts: facts.sizes_s, 2.0),
    PROFILED: partial(_weigh_by_size, lambda facts: facts.profiled_bytes, 1.0),
    STATED: partial(_weigh_by_size, lambda facts: facts.stated_bytes, 1.0),
    HALF: partial(_weigh_by_size, _state_by_half, 1.0),
    ROUGH: partial(_weigh_by_size, _misjudge_sizes, 1.0),
    PLACEBO: partial(_weigh_by_size, _permute_sizes, 1.0),
}


@dataclass(slots=True)
class _LanePerJob:
    """A lane for each job; its weight at a port by a rule, again when a job begins or ends."""

    facts: JobFacts
    weigh: Weigh
    at_sends: bool = False

    def update(self, run: Shuffles) -> None:
        present = np.asarray(run.present, dtype=np.int64)
        sets, which = self.facts.knowledge.list_sets(present)
        table = np.full((len(sets), len(present)), 1e-9)
        for number, jobs in enumerate(sets):
            if jobs:
                table[number, list(jobs)] = self.weigh(self.facts, jobs)
        program_lanes(run, len(present), table[which])


def program_lanes(run: Shuffles, jobs: int, weights: Floats) -> None:
    """Lane n is job n's; `weights[port, job]`."""
    lane = np.repeat(np.arange(jobs, dtype=np.uint8), len(weights))
    run.program(jobs, lane, np.ascontiguousarray(weights).reshape(-1))


@dataclass(slots=True)
class _FabricWide:
    """One share of each job at all of its ports: the least total slowdown of the fabric."""

    facts: JobFacts
    at_sends: bool = False

    def update(self, run: Shuffles) -> None:
        present = np.flatnonzero(np.asarray(run.present))
        counts = self.facts.flows.counts
        names = {f"j{job:02}": job for job in present.tolist()}
        paths = {
            name: [Port(0, int(port)) for port in np.flatnonzero(counts[job])]
            for name, job in names.items()
        }
        models = {
            name: _lower_floor(self.facts.applications[job], len(names))
            for name, job in names.items()
        }
        ports = {port for path in paths.values() for port in path}
        weights = np.full((counts.shape[1], counts.shape[0]), 1e-9)
        if ports:
            split = split_fabric(models, paths, dict.fromkeys(ports, 1.0))
            for name, job in names.items():
                weights[:, job] = split.shares[name]
        program_lanes(run, counts.shape[0], weights)


def _lower_floor(application: Application, jobs: int) -> Hinges:
    model = application.convex.model
    return replace(model, floor=min(model.floor, 0.5 / max(1, jobs)))


def simulate_rule(rule: str, facts: JobFacts) -> Floats:
    """The completion time of each job."""
    if rule in WAYS:
        return simulate_way(rule, facts.knowledge)
    run = build_shuffles(facts.setup, facts.flows)
    sharing = _FabricWide(facts) if rule == FABRIC_WIDE else _LanePerJob(facts, RULES[rule])
    while run.run(sharing.at_sends):
        sharing.update(run)
    return np.asarray(run.finished_s - [job.start_ps / 1e12 for job in facts.setup.jobs])


# ---- Regimes ----------------------------------------------------------------------------------


def draw_load(seed: int, *, count: int, load: float) -> SetUp:
    """Jobs of the real runs' workloads on eight servers, 10 to 100 s long, with this sum of V."""
    random = Random(f"load {count} {load} {seed}")
    names = draw_workloads(random, count, load)
    return _set_up_together(seed, names, random)


def draw_alike(seed: int) -> SetUp:
    """Eight jobs of the same sensitivity, 10 to 100 s long."""
    random = Random(f"alike {seed}")
    return _set_up_together(seed, [random.choice(["b25", "b50"])] * 8, random)


def _set_up_together(seed: int, names: Sequence[str], random: Random) -> SetUp:
    hosts = [f"h{n}" for n in range(1, PROFILED_NODES + 1)]
    low, high = map(log, LENGTH_S)
    jobs = tuple(
        build_job(
            WORKLOADS[name],
            name=f"{name}-{number}",
            level=0,
            length_s=exp(random.uniform(low, high)),
            loops=ITERATIONS,
            hosts=hosts,
            rate_bps=RATE_BPS,
        )
        for number, name in enumerate(names, 1)
    )
    return SetUp(
        cluster=connect_one_switch(PROFILED_NODES),
        jobs=jobs,
        workloads=tuple(job.name for job in jobs),
        hosts=tuple(np.arange(PROFILED_NODES) for _ in jobs),
        seed=seed,
        is_synthetic=True,
    )


def draw_oversubscribed(seed: int, *, ratio: int) -> SetUp:
    """Twelve jobs on 64 servers of eight leaves, whose uplinks have 1/ratio of their rate."""
    rng = np.random.default_rng([seed, 430])
    testbed = read_testbed()
    names = tuple(rng.choice([*testbed], 12).tolist())
    jobs, hosts = [], []
    for number, name in enumerate(names):
        nodes = int(rng.integers(8, 25))
        data = float(rng.choice([0.1, 1.0, 10.0]))
        jobs.append(resize_job(testbed[name].job, f"{name}-{number + 1}", nodes, data))
        hosts.append(rng.permutation(LEAVES * LEAF_HOSTS)[:nodes])
    return SetUp(
        cluster=connect_leaf_spine(LEAVES, LEAF_HOSTS // ratio, LEAF_HOSTS),
        jobs=tuple(jobs),
        workloads=names,
        hosts=tuple(hosts),
        seed=seed,
    )


Draw = Callable[[int], SetUp]

CHOSEN_ON: Mapping[str, Draw] = {
    "favourable": draw_favourable,
    "homogeneous": build_homogeneous,
    "testbed": draw_testbed,
}
HELD_OUT: Mapping[str, Draw] = {
    "load: 4 jobs, 0.5": partial(draw_load, count=4, load=0.5),
    "load: 4 jobs, 1": partial(draw_load, count=4, load=1.0),
    "load: 8 jobs, 2": partial(draw_load, count=8, load=2.0),
    "load: 8 jobs, 4": partial(draw_load, count=8, load=4.0),
    "load: 16 jobs, 4": partial(draw_load, count=16, load=4.0),
    "alike": draw_alike,
    "oversubscribed 1:1": partial(draw_oversubscribed, ratio=1),
    "oversubscribed 2:1": partial(draw_oversubscribed, ratio=2),
    "oversubscribed 4:1": partial(draw_oversubscribed, ratio=4),
    "scale, 72 servers": partial(draw_scale, full=False),
}
REGIMES: Mapping[str, Draw] = {**CHOSEN_ON, **HELD_OUT}


def evaluate_rules(draw: Draw, seeds: Sequence[int], rules: Sequence[str]) -> Evaluation:
    """Completion of every job in every set-up under every rule, and alone."""
    facts = [learn(draw(seed)) for seed in seeds]
    return Evaluation(
        seeds=tuple(seeds),
        workloads=tuple(each.setup.workloads for each in facts),
        completions={rule: tuple(simulate_rule(rule, each) for each in facts) for rule in rules},
        alone=tuple(simulate_alone(each.setup) for each in facts),
        busiest_s=tuple(find_busiest_s(each.setup, each.flows) for each in facts),
    )


def learn(setup: SetUp) -> JobFacts:
    """The set-up with what profiles say of its workloads."""
    profiled = _profile(setup)
    knowledge = build_knowledge(setup, profiled)
    applications = [profiled[name] for name in setup.workloads]
    return JobFacts(
        setup=setup, flows=knowledge.flows, applications=applications, knowledge=knowledge
    )


def _profile(setup: SetUp) -> Mapping[str, Application]:
    if not setup.is_synthetic:
        return profile_testbed()
    kinds = _list_kinds(setup)
    if kinds is not None:
        return {n: _profile_kind(k) for n, k in zip(setup.workloads, kinds, strict=True)}
    return profile_jobs(setup.jobs)


def _list_kinds(setup: SetUp) -> list[str] | None:
    """Workloads of the real runs that the jobs are of; None where they are others."""
    kinds = [name.partition("-")[0] for name in setup.workloads]
    return kinds if all(kind in WORKLOADS for kind in kinds) else None


@cache
def _profile_kind(name: str) -> Application:
    """A workload of the real runs, profiled at this rate."""
    return profile_job(_build_profiled(name), nodes=PROFILED_NODES)


def _build_profiled(name: str) -> Job:
    hosts = [f"h{n}" for n in range(1, PROFILED_NODES + 1)]
    return build_job(
        WORKLOADS[name], name=name, level=0, length_s=10.0, loops=2, hosts=hosts, rate_bps=RATE_BPS
    )


# ---- Placement --------------------------------------------------------------------------------

PLACEMENTS = ("random", "count", "volume", "sensitivity")


def place_jobs(setup: SetUp, placement: str, applications: Sequence[Application]) -> SetUp:
    """The same jobs elsewhere: on the hosts with the least of something, the heaviest job first.

    That is instances ("count"), V of the jobs there ("volume"), or what a quarter of the link would
    slow them ("sensitivity"). Ties are broken by the seed.
    """
    if placement not in PLACEMENTS:
        raise InputError("placement", repr(placement), f"use one of {', '.join(PLACEMENTS)}")
    if placement == "random":
        return setup
    load_of: Callable[[Application], float] = {
        "count": lambda _: 1.0,
        "volume": lambda app: model_volume(app.convex.model),
        "sensitivity": lambda app: float(app.convex.model.slowdown(0.25)) - 1,
    }[placement]
    loads = [load_of(application) for application in applications]
    rng = np.random.default_rng([setup.seed, 431])
    carried = np.zeros(setup.cluster.hosts)
    hosts: list[Ints] = [np.empty(0, dtype=np.int64)] * len(setup.jobs)
    for job in sorted(range(len(setup.jobs)), key=lambda n: -loads[n]):
        order = np.lexsort((rng.random(len(carried)), carried))
        hosts[job] = np.sort(order[: len(setup.hosts[job])])
        carried[hosts[job]] += loads[job]
    return replace(setup, hosts=tuple(hosts))


# ---- The latency probe ------------------------------------------------------------------------

PROBED_JOBS, PROBED_LOAD = 8, 4.0
SHRINK = 1e-5  # of the jobs: iterations of 10 to 100 us
BUFFER_KIB = 144  # of a port's input, all lanes together
MOST_WEIGHT = 255  # weight of a VL arbitration entry
AMONG, BESIDE_ONE = "one lane, probe among the jobs", "one lane, and one of the probe"
PROBED = (AMONG, BESIDE_ONE, EQUAL, EQ_4_2, LIGHT)


def probe_latency(rule: str, *, seed: int = 1, duration: str = "40 ms") -> Distribution:
    """Round trips of the probe."""
    record = simulate(scenario_from(build_probe_scenario(rule, seed, duration))).record
    rtt = record.quantities["probe.rtt"]
    assert isinstance(rtt, Distribution)
    return rtt


def build_probe_scenario(rule: str, seed: int, duration: str) -> dict[str, Any]:
    facts = learn(draw_load(seed, count=PROBED_JOBS, load=PROBED_LOAD))
    is_single = rule in (AMONG, BESIDE_ONE)
    count = {AMONG: 1, BESIDE_ONE: 2}.get(rule, PROBED_JOBS + 1)
    jobs = [
        describe_job(_shrink_job(job))
        | {"loops": "until the end", "sl": 0 if is_single else number}
        for number, job in enumerate(facts.setup.jobs)
    ]
    fabric = {"topology": "one_switch", "hosts": PROBED_JOBS, "rate": "56 Gb/s", "delay": "50 ns"}
    probe = {"name": "probe", "kind": "latency", "from": "h0", "to": "h1", "size": "64 B"}
    return {
        "name": "latency-probe",
        "duration": duration,
        "seed": seed,
        "fabric": fabric | {"lanes": count},
        "switch": {"virtual_output_queues": True, "buffer": f"{BUFFER_KIB // count} KiB"},
        "lanes": _assign_lanes(rule, facts),
        "job": jobs,
        "traffic": [probe | {"sl": 0 if rule == AMONG else PROBED_JOBS}],
    }


def _shrink_job(job: Job) -> Job:
    stages = (
        replace(
            stage,
            compute_ps=round(SHRINK * stage.compute_ps),
            volume_bytes=max(1, round(SHRINK * stage.volume_bytes)),
        )
        for stage in job.stages
    )
    return replace(job, stages=tuple(stages))


def _assign_lanes(rule: str, facts: JobFacts) -> dict[str, Any]:
    """A lane for each job with the rule's weight, and one of high priority for the probe."""
    if rule == AMONG:
        return {}
    if rule == BESIDE_ONE:
        return {"sl2vl": [0] * PROBED_JOBS + [1], "low": [[0, 64]], "high": [[1, 64]]}
    weights = np.array(RULES[rule](facts, tuple(range(PROBED_JOBS))), dtype=np.float64)
    entries = np.maximum(1, np.round(MOST_WEIGHT * weights / weights.max())).astype(int).tolist()
    low = [[lane, weight] for lane, weight in enumerate(entries)]
    return {"sl2vl": [*range(PROBED_JOBS + 1)], "low": low, "high": [[PROBED_JOBS, 64]]}
