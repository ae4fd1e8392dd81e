"""Jobs of a scenario: their operations on hosts, and what a run tells of their stages.

Each `[[job]]` becomes an entry of the scenario's traffic, with a flow for each pair of instances
that talk and each of their flows. A job that loops until the end gets as many loops as could fit.
Entry points: `read_jobs`, `has_jobs`, `add_jobs`. Units: ps, bytes, bits per second.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft._core import FlowList, FlowSpec, Pattern
from weft.fabric import Fabric
from weft.jobs import Job, build_graph, place_jobs, read_job
from weft.jobs.job_graph import (
    COMPUTE,
    NEVER_PS,
    JobGraph,
    JobTimes,
    bound_loop_ps,
    build_quantities,
    build_rows,
    build_slowdown,
    describe_jobs,
)
from weft.records import Record
from weft.simulate.traffic import Part, Traffic
from weft.simulate.workload.operations import Operations
from weft.simulate.workload.scenario_workloads import PlacedJob, PlacedWorkload, place_workload
from weft.toml_table import Table

if TYPE_CHECKING:
    from weft.simulate.scenario import Scenario

MTU_BYTES = 4096


def read_jobs(
    tables: Sequence[Table], fabric: Fabric, *, seed: int, duration_ps: int, base: Path
) -> list[Traffic]:
    """The jobs of a scenario, placed in their order."""
    jobs = [read_job(table, base) for table in tables]
    names = [fabric.nodes[node].name for node in fabric.hosts]
    ports = [next(iter(fabric.neighbors(node).values())) for node in fabric.hosts]
    placed = place_jobs(jobs, names, [port.node for port in ports], seed)
    rate_bps = max(link.rate_bps for link in fabric.links)
    return [
        build_traffic(job, hosts, [names[host] for host in hosts], duration_ps, rate_bps)
        for job, hosts in zip(jobs, placed, strict=True)
    ]


def build_traffic(
    job: Job, hosts: Sequence[int], names: Sequence[str], duration_ps: int, rate_bps: float
) -> Traffic:
    graph = build_graph(job, _count_loops(job, duration_ps, rate_bps))
    placed = PlacedJob(job=job, hosts=tuple(names), begin=graph.begin, end=graph.end)
    workload = place_workload(
        to_operations(graph), hosts, job.start_ps, flows=graph.flows, job=placed
    )
    template = FlowSpec()
    template.pattern, template.sl, template.mtu = Pattern.WORKLOAD, job.sl, MTU_BYTES
    template.size_bytes = max(workload.largest_message_bytes, 1)
    template.start_ps = job.start_ps
    flows = FlowList()
    for (src, dst), messages in zip(
        workload.pairs.tolist(), workload.messages.tolist(), strict=True
    ):
        flow = FlowSpec(template)
        flow.src, flow.dst, flow.messages = src, dst, messages
        flows.append(flow)
    part = Part(name=job.name, flows=flows, workload=workload)
    return Traffic(name=job.name, parts=(part,))


def _count_loops(job: Job, duration_ps: int, rate_bps: float) -> int | None:
    """The loops of the file, or more than can end before the run does."""
    if job.loops is not None:
        return None
    least_ps = max(1, bound_loop_ps(job, rate_bps))
    return max(1, -(-(duration_ps - job.start_ps) // least_ps))


def to_operations(graph: JobGraph) -> Operations:
    """The graph in the arrays of a workload."""
    is_compute = graph.kind == COMPUTE
    return Operations(
        ranks=graph.instances,
        kind=graph.kind.astype(np.uint8),
        rank=graph.rank.astype(np.uint32),
        peer=graph.peer.astype(np.uint32),
        tag=graph.tag.astype(np.uint32),
        size_bytes=np.where(is_compute, 0, graph.amount),
        duration_ps=np.where(is_compute, graph.amount, 0),
        cpu=graph.cpu.astype(np.uint8),
        dependency_start=graph.dependency_start.astype(np.uint32),
        dependency=graph.dependency.astype(np.uint32),
        dependency_kind=np.zeros(len(graph.dependency), dtype=np.uint8),
    )


# ---- Results ----------------------------------------------------------------------------------

RunAlone = Callable[["Scenario"], NDArray[np.int64]]


def read_job_times(scenario: Scenario, ended_ps: NDArray[np.int64]) -> list[JobTimes]:
    """Of each job; `ended_ps` is of the operations of all workloads, 2^63 - 1: not ended."""
    first, jobs = 0, []
    for _, workload in _list_workloads(scenario):
        size = len(workload.operations)
        if workload.job is not None:
            jobs.append(_select_times(workload.job, ended_ps[first : first + size]))
        first += size
    return jobs


def _list_workloads(scenario: Scenario) -> Iterator[tuple[Traffic, PlacedWorkload]]:
    for traffic in scenario.traffic:
        for part in traffic.parts:
            if part.workload is not None:
                yield traffic, part.workload


def _select_times(placed: PlacedJob, ended_ps: NDArray[np.int64]) -> JobTimes:
    times = np.where(ended_ps > 2**62, NEVER_PS, ended_ps)
    end_ps = times[placed.end]
    return JobTimes(
        job=placed.job,
        hosts=placed.hosts,
        begin_ps=times[placed.begin],
        end_ps=end_ps,
        is_complete=placed.job.loops is not None and bool((end_ps != NEVER_PS).all()),
    )


def has_jobs(scenario: Scenario) -> bool:
    return any(workload.job is not None for _, workload in _list_workloads(scenario))


def add_jobs(
    record: Record, scenario: Scenario, ended_ps: NDArray[np.int64], run_alone: RunAlone | None
) -> Record:
    """The record with the quantities and stages of jobs; slowdowns if `run_alone` is given.

    `run_alone` runs a scenario and gives the ends of its operations.
    """
    all_times = read_job_times(scenario, ended_ps)
    quantities = dict(record.quantities)
    for times in all_times:
        quantities |= build_quantities(times)
        if times.job.slowdown and run_alone is not None:
            quantities |= build_slowdown(times, _time_alone(scenario, times.job, run_alone))
    rows = build_rows(all_times)
    return replace(
        record,
        quantities=quantities,
        tables={**record.tables, "stages": rows},
        notes=[*record.notes, *describe_jobs(all_times, rows)],
    )


def _time_alone(scenario: Scenario, job: Job, run_alone: RunAlone) -> JobTimes:
    """When the job's stages end without other traffic, over the same paths."""
    (alone,) = (t for t, w in _list_workloads(scenario) if w.job is not None and w.job.job is job)
    before = itertools.takewhile(lambda traffic: traffic is not alone, scenario.traffic)
    flows = sum(len(part.flows) for traffic in before for part in traffic.parts)
    quiet = replace(scenario, traffic=(alone,), first_flow=flows)
    (times,) = read_job_times(quiet, run_alone(quiet))
    return times
