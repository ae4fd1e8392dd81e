"""A cluster set-up: ports and paths, jobs and where their instances run.

A seed gives a set-up. Jobs are those of `weft.studies.saba.workloads`: stages in a chain that
compute and shuffle. Two clusters: hosts on one switch, and the papers' fabric of 1,944 servers (or
a smaller one of its kind). A job on n nodes with d times the data is d · 8 / n as long as profiled
on 8 (docs/saba-workloads.md). Entry points: `draw_testbed`, `build_homogeneous`, `draw_scale`,
`draw_favourable`, `SetUp`, `list_flows`, `build_shuffles`. Units: s, bytes, bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from weft._core import Shuffles
from weft.errors import InputError
from weft.fabric import leaf_spine, leaf_spine3, one_switch, papers_1944
from weft.jobs import Job
from weft.jobs.job_file import Stage
from weft.studies.saba.calculation_time import FabricArrays
from weft.studies.saba.workloads import make_synthetic, read_testbed

RATE_BPS = 56e9
SERVERS, JOBS, PROFILED_NODES = 32, 16, 8  # 4.6.1, 4.6.2
DATA = (0.1, 1.0, 10.0)
NODES = (4, 32)  # 0.5 to 4 times those profiled
SCALE, SMALL_SCALE = (1944, 20), (72, 12)  # servers and workloads (4.6.4); a small fabric like it
SCALE_LOOPS = 2  # loops of a job there: more are joined to longer ones
BATCH = 0.02  # of the flows may end before rates are solved again
TOLERANCE = 5e-3  # of the sum of rates

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cluster:
    """A fabric whose ports all have the same rate; a port is its place in `wiring.far`."""

    name: str
    wiring: FabricArrays

    @property
    def hosts(self) -> int:
        return len(self.wiring.hosts)

    def find_hops(self, sources: Ints, targets: Ints) -> list[tuple[Ints, Ints]]:
        """Hop by hop, which of the pairs of hosts go on, and their ports."""
        return [*self.wiring.hops(self.wiring.hosts[sources], self.wiring.hosts[targets])]


@cache
def connect_one_switch(hosts: int) -> Cluster:
    fabric = one_switch(hosts, rate="56 Gb/s", delay="50 ns")
    return Cluster(name=f"{hosts} servers, one switch", wiring=FabricArrays(fabric))


@cache
def connect_fabric(full: bool) -> Cluster:
    """The papers' fabric, or one with the same three tiers and 1/27 of its servers."""
    fabric = (
        papers_1944() if full else leaf_spine3(2, 5, 6, 18, 6, 6, rate="56 Gb/s", delay="50 ns")
    )
    wiring = FabricArrays(fabric)
    return Cluster(name=f"{len(wiring.hosts):,} servers, three tiers", wiring=wiring)


@cache
def connect_leaf_spine(leaves: int, spines: int, hosts: int) -> Cluster:
    """Two tiers: `hosts` servers on each leaf, and a link from each leaf to each spine."""
    wiring = FabricArrays(leaf_spine(leaves, spines, hosts, rate="56 Gb/s", delay="50 ns"))
    return Cluster(name=f"{len(wiring.hosts):,} servers, two tiers", wiring=wiring)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SetUp:
    """Jobs on hosts, drawn by `seed`. `workloads` names the workload of each job.

    `is_synthetic`: its workloads are its own, not the ten of the testbed.
    """

    cluster: Cluster
    jobs: tuple[Job, ...]
    workloads: tuple[str, ...]
    hosts: tuple[Ints, ...]
    seed: int
    is_synthetic: bool = False

    def __post_init__(self) -> None:
        for job, hosts in zip(self.jobs, self.hosts, strict=True):
            if len(hosts) > self.cluster.hosts or len(set(hosts.tolist())) < len(hosts):
                problem = f"{len(hosts)} instances, and the cluster has {self.cluster.hosts} hosts"
                remedy = f"use {self.cluster.hosts} or fewer"
                raise InputError(f"{job.where}: instances", problem, remedy)
            _check_stages(job)

    def shrink(self, factor: float) -> SetUp:
        """The same with so many times the computation and volume, and starts as much earlier."""
        return replace(
            self,
            jobs=tuple(
                replace(
                    job, stages=_scale_stages(job, factor), start_ps=round(job.start_ps * factor)
                )
                for job in self.jobs
            ),
        )

    def select(self, number: int) -> SetUp:
        """One of its jobs, alone."""
        return replace(
            self,
            jobs=(self.jobs[number],),
            workloads=(self.workloads[number],),
            hosts=(self.hosts[number],),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows:
    """The flows of a set-up's shuffles: the ports of each, and how many of a job at each port."""

    path_start: NDArray[np.uint64]
    path: NDArray[np.uint32]
    ports: Ints  # of the cluster that any flow uses
    capacity: Floats  # of each of them
    counts: Ints  # [job, port]
    first: tuple[int, ...]  # flow of each job


def list_flows(setup: SetUp) -> Flows:
    """A flow for each pair of instances of a job; ports that none passes are left out."""
    pairs = [_list_pairs(hosts) for hosts in setup.hosts]
    job_of = np.repeat(np.arange(len(pairs)), [len(pair[0]) for pair in pairs])
    sources, targets = (np.concatenate([pair[end] for pair in pairs]) for end in (0, 1))
    hops = setup.cluster.find_hops(sources, targets)
    flow = np.concatenate([which for which, _ in hops])
    ports, path = np.unique(np.concatenate([port for _, port in hops]), return_inverse=True)
    # Hops come in their order on the way, so a stable sort by flow keeps that order.
    order = np.argsort(flow, kind="stable")
    lengths = np.bincount(flow, minlength=len(sources))
    counts = np.zeros((len(pairs), len(ports)), dtype=np.int64)
    np.add.at(counts, (job_of[flow], path.reshape(-1)), 1)
    return Flows(
        path_start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64),
        path=path.reshape(-1)[order].astype(np.uint32),
        ports=ports,
        capacity=np.full(len(ports), RATE_BPS / 8),
        counts=counts,
        first=tuple(np.searchsorted(job_of, np.arange(len(pairs))).tolist()),
    )


def _list_pairs(hosts: Ints) -> tuple[Ints, Ints]:
    sources, targets = np.repeat(hosts, len(hosts)), np.tile(hosts, len(hosts))
    apart = sources != targets
    return sources[apart], targets[apart]


def list_flow_bytes(setup: SetUp) -> Floats:
    """All that a flow of each job sends."""
    return np.array(
        [
            (job.loops or 1)
            * sum(stage.volume_bytes for stage in job.stages)
            / max(1, len(hosts) - 1)
            for job, hosts in zip(setup.jobs, setup.hosts, strict=True)
        ]
    )


def build_shuffles(setup: SetUp, flows: Flows, batch: float = BATCH) -> Shuffles:
    """The set-up in the core, all jobs in one lane."""
    jobs = [
        (
            _list_stages(job, len(hosts)),
            job.loops or 1,
            job.start_ps / 1e12,
            flows.first[number],
            len(hosts) * (len(hosts) - 1),
        )
        for number, (job, hosts) in enumerate(zip(setup.jobs, setup.hosts, strict=True))
    ]
    return Shuffles(flows.capacity, flows.path_start, flows.path, jobs, batch, TOLERANCE)


def _list_stages(job: Job, nodes: int) -> list[tuple[float, float, float]]:
    """Computation, and the bytes of each flow before and after it."""
    peers = max(1, nodes - 1)
    return [
        (
            stage.compute_ps / 1e12,
            stage.overlap * stage.volume_bytes / peers,
            (1 - stage.overlap) * stage.volume_bytes / peers,
        )
        for stage in job.stages
    ]


def _check_stages(job: Job) -> None:
    if job.loops is None:
        raise InputError(job.where, "loops until the end", "give a number of loops")
    for number, stage in enumerate(job.stages):
        if stage.pattern not in ("", "shuffle"):
            problem = f"stage {stage.name} is {stage.pattern}"
            raise InputError(job.where, problem, "the evaluation runs shuffles")
        if stage.after != ((number - 1,) if number else ()):
            problem = f"stage {stage.name} does not follow the one before"
            raise InputError(job.where, problem, "the evaluation runs stages in a chain")


# ---- Set-ups of the thesis --------------------------------------------------------------------


def resize_job(job: Job, name: str, nodes: int, data: float = 1.0) -> Job:
    """The job on so many nodes with so many times the data: as much shorter or longer."""
    stages = _scale_stages(job, data * PROFILED_NODES / nodes)
    return replace(job, name=name, instances=nodes, stages=stages)


def _scale_stages(job: Job, factor: float) -> tuple[Stage, ...]:
    """Computation and volume together: the sensitivity stays."""
    return tuple(
        replace(
            stage,
            compute_ps=round(stage.compute_ps * factor),
            volume_bytes=round(stage.volume_bytes * factor),
        )
        for stage in job.stages
    )


def draw_testbed(seed: int) -> SetUp:
    """Sixteen jobs on 32 servers: workload, data, nodes and places at random (4.6.2)."""
    rng = np.random.default_rng([seed, 413])
    testbed = read_testbed()
    names = tuple(rng.choice([*testbed], JOBS).tolist())
    jobs, hosts = [], []
    for number, name in enumerate(names):
        nodes = int(rng.integers(NODES[0], NODES[1] + 1))
        data = float(rng.choice(DATA))
        jobs.append(resize_job(testbed[name].job, f"{name}-{number + 1}", nodes, data))
        hosts.append(rng.permutation(SERVERS)[:nodes])
    return SetUp(
        cluster=connect_one_switch(SERVERS),
        jobs=tuple(jobs),
        workloads=names,
        hosts=tuple(hosts),
        seed=seed,
    )


def build_homogeneous(seed: int, *, nodes: int = PROFILED_NODES, data: float = 1.0) -> SetUp:
    """Each of the ten workloads on every server, one instance each (4.6.3).

    Nothing in it is random but the start of each job, within 5 % of its length: jobs that start in
    the same instant would stay in step for ever, and one set-up would be all.
    """
    rng = np.random.default_rng([seed, 415])
    jobs = []
    for name, workload in read_testbed().items():
        job = resize_job(workload.job, name, nodes, data)
        delay_s = 0.05 * float(rng.random()) * workload.alone_s * data * PROFILED_NODES / nodes
        jobs.append(replace(job, start_ps=round(delay_s * 1e12)))
    return SetUp(
        cluster=connect_one_switch(nodes),
        jobs=tuple(jobs),
        workloads=tuple(job.name for job in jobs),
        hosts=tuple(np.arange(nodes) for _ in jobs),
        seed=seed,
    )


def draw_scale(seed: int, *, full: bool) -> SetUp:
    """Twenty synthetic workloads, each server one, at random places (4.6.4).

    Loops of a job are joined until two are left, as long in all: a run takes a minute then.
    """
    cluster = connect_fabric(full)
    count = (SCALE if full else SMALL_SCALE)[1]
    instances = cluster.hosts // count
    jobs = tuple(map(_join_loops, make_synthetic(seed, count, instances=instances)))
    places = np.random.default_rng([seed, 418]).permutation(cluster.hosts)
    return SetUp(
        cluster=cluster,
        jobs=jobs,
        workloads=tuple(job.name for job in jobs),
        hosts=tuple(places[n * instances : (n + 1) * instances] for n in range(count)),
        seed=seed,
        is_synthetic=True,
    )


def _join_loops(job: Job) -> Job:
    loops = min(job.loops or 1, SCALE_LOOPS)
    return replace(job, loops=loops, stages=_scale_stages(job, (job.loops or 1) / loops))


def draw_favourable(seed: int) -> SetUp:
    """Short jobs that wait for each message beside long ones that send while they compute.

    Eight servers, every job on each. Four of LR, RF, GBT with a tenth of the data and eight of TS,
    WC, PR, SQL with all of it start together; all data 0.7 to 1.4 times that.
    """
    rng = np.random.default_rng([seed, 400])
    testbed = read_testbed()
    short = [(str(name), 0.1) for name in rng.choice(["LR", "RF", "GBT"], 4)]
    long = [(str(name), 1.0) for name in rng.choice(["TS", "WC", "PR", "SQL"], 8)]
    jobs = [
        resize_job(
            testbed[name].job, f"{name}-{number}", PROFILED_NODES, data * rng.uniform(0.7, 1.4)
        )
        for number, (name, data) in enumerate(short + long, 1)
    ]
    return SetUp(
        cluster=connect_one_switch(PROFILED_NODES),
        jobs=tuple(jobs),
        workloads=tuple(name for name, _ in short + long),
        hosts=tuple(np.arange(PROFILED_NODES) for _ in jobs),
        seed=seed,
    )
