"""Runs jobs for real, side by side: one process per instance, on a testbed or over loopback.

The processes are forked, so that a run lasts little longer than its jobs, enter their hosts'
namespaces, connect, and start together. A testbed is used without its lock: several commands may
run jobs on it, and `weft profile` may cap its links meanwhile. Ctrl-C ends the run; the record
keeps the stages that have ended. Entry points: `run_jobs`, `open_testbed_site`,
`build_loopback_site`. Units: seconds, ns, ps.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import numpy as np

from weft import __version__
from weft.errors import InputError
from weft.host.machine.processes import end_with_parent
from weft.host.testbed import persistent
from weft.jobs.job_file import Job, place_jobs
from weft.jobs.job_graph import (
    NEVER_PS,
    JobTimes,
    build_graph,
    build_quantities,
    build_rows,
    build_slowdown,
    describe_jobs,
)
from weft.measure.job_worker import InstancePlan, plan_instance, run_instance
from weft.records import Plain, Provenance, Quantity, Record, note_ending
from weft.units import format_value

SETUP_S = 60.0
GO_NS = 20_000_000  # for the order to reach every process before the start
END_S = 5.0
PS_PER_NS = 1000

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where instances run: hosts, their edge switches, addresses and namespaces (None: ours)."""

    description: str
    hosts: tuple[str, ...]
    edges: tuple[int, ...]
    addresses: Mapping[str, str]
    namespaces: Mapping[str, str | None]


def open_testbed_site(name: str) -> Site:
    bed = persistent.find_testbed(name)
    wiring, layout = bed.wiring, bed.layout
    switches = {switch: number for number, switch in enumerate(layout.switches)}
    rate = format_value(wiring.rate_bps, "b/s")
    return Site(
        description=f"testbed {name}, {len(wiring.hosts)} hosts, links of {rate}",
        hosts=wiring.hosts,
        edges=tuple(switches[layout.access(host).ends[1].node] for host in wiring.hosts),
        addresses={host: layout.addresses[host] for host in wiring.hosts},
        namespaces={host: bed.namespace(host) for host in wiring.hosts},
    )


def build_loopback_site(jobs: Sequence[Job]) -> Site:
    """Hosts of any name on this machine, as many as the largest job needs; links have no rate."""
    named = [name for job in jobs for name in job.hosts if ".." not in name]
    most = max(job.instances for job in jobs)
    numbered = (f"h{number}" for number in range(1, 2 * most + len(named) + 1))
    hosts = tuple(dict.fromkeys([*named, *numbered]))[: max(most, len(set(named)))]
    return Site(
        description="loopback of this machine",
        hosts=hosts,
        edges=(0,) * len(hosts),
        addresses=dict.fromkeys(hosts, "127.0.0.1"),
        namespaces=dict.fromkeys(hosts, None),
    )


def run_jobs(
    jobs: Sequence[Job],
    site: Site,
    *,
    seed: int,
    duration_s: float | None = None,
    limit_s: float,
    progress: Progress | None = None,
) -> Record:
    """Runs the jobs; those that ask for their slowdown also run alone, before."""
    _check_duration(jobs, duration_s)
    placed = place_jobs(jobs, site.hosts, site.edges, seed)
    named = [tuple(site.hosts[n] for n in hosts) for hosts in placed]
    pairs = list(zip(jobs, named, strict=True))
    limits = _Limits(duration_s, limit_s)
    alone: dict[str, JobTimes] = {}
    ended = ""
    for job, hosts in pairs:
        if job.slowdown and not ended:
            (times,), ended = _run_side_by_side([(job, hosts)], site, limits, None)
            alone[job.name] = times
    if ended:  # nothing ran side by side
        return _build_record(list(alone.values()), {}, site, seed, f"{ended}, alone")
    together, ended = _run_side_by_side(pairs, site, limits, progress)
    return _build_record(together, alone, site, seed, ended)


def _check_duration(jobs: Sequence[Job], duration_s: float | None) -> None:
    names = [job.name for job in jobs]
    for job in jobs:
        if names.count(job.name) > 1:
            raise InputError(job.where, f"two jobs are named {job.name!r}", "rename one")
        if job.loops is None and duration_s is None:
            raise InputError(job.where, "loops until the end, and there is none", "give --duration")


def _build_record(
    all_times: Sequence[JobTimes], alone: Mapping[str, JobTimes], site: Site, seed: int, ended: str
) -> Record:
    quantities: dict[str, Quantity] = {}
    for times in all_times:
        quantities |= build_quantities(times)
        if times.job.name in alone:
            quantities |= build_slowdown(times, alone[times.job.name])
    rows = build_rows(all_times)
    notes = [site.description, *describe_jobs(all_times, rows)]
    notes += [note_ending(ended)] if ended else []
    settings: dict[str, Plain] = {"place": site.description}
    return Record(
        kind="measurement",
        name="+".join(times.job.name for times in all_times),
        settings=settings,
        quantities=quantities,
        tables={"stages": rows},
        notes=notes,
        provenance=Provenance(weft_version=__version__, seed=seed),
    )


# ---- One run ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Limits:
    """The run ends at `duration_s` if some job loops until the end; `limit_s` breaks it off."""

    duration_s: float | None
    limit_s: float


@dataclass(slots=True, eq=False)
class _Worker:
    """The process of an instance, as the parent sees it."""

    plan: InstancePlan
    host: str
    process: BaseProcess
    control: Connection
    marks: list[tuple[int, int, int, int]] = field(default_factory=list)
    is_done: bool = False


def _run_side_by_side(
    pairs: Sequence[tuple[Job, tuple[str, ...]]],
    site: Site,
    limits: _Limits,
    progress: Progress | None,
) -> tuple[list[JobTimes], str]:
    """When stages began and ended, and how the run ended: "" is as it should."""
    with _start_workers(pairs, site, limits) as workers:
        _introduce(workers, site)
        go_ns = time.monotonic_ns() + GO_NS
        for worker in workers:
            worker.control.send(go_ns)
        try:
            ended = _watch(workers, go_ns, limits, progress)
        except KeyboardInterrupt:
            ended = "interrupted"
        _collect_rest(workers)
    return [
        _build_times(job, hosts, [w for w in workers if w.plan.job == number])
        for number, (job, hosts) in enumerate(pairs)
    ], ended


@contextmanager
def _start_workers(
    pairs: Sequence[tuple[Job, tuple[str, ...]]], site: Site, limits: _Limits
) -> Iterator[list[_Worker]]:
    workers: list[_Worker] = []
    try:
        for number, (job, hosts) in enumerate(pairs):
            graph = build_graph(job, 1)
            for rank, host in enumerate(hosts):
                plan = plan_instance(
                    graph,
                    rank,
                    job=number,
                    loops=job.loops,
                    start_ns=job.start_ps // PS_PER_NS,
                    level=job.sl,
                )
                workers.append(_start_worker(plan, host, site, limits))
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join(END_S)
            worker.control.close()


def _start_worker(plan: InstancePlan, host: str, site: Site, limits: _Limits) -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    limit_s = limits.limit_s + SETUP_S + END_S
    arguments = (plan, site.namespaces[host], site.addresses[host], theirs, limit_s, os.getpid())
    # Forked: a new interpreter would take longer to start than a short job to run.
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_run_forked, args=arguments, daemon=True)
    process.start()
    theirs.close()
    return _Worker(plan, host, process, ours)


def _run_forked(
    plan: InstancePlan,
    namespace: str | None,
    address: str,
    control: Connection,
    limit_s: float,
    parent: int,
) -> None:
    end_with_parent(parent)
    run_instance(plan, namespace, address, control, limit_s)


def _introduce(workers: Sequence[_Worker], site: Site) -> None:
    """Tells every instance where the others of its job listen; returns when all are connected."""
    ports = {id(worker): _receive(worker, "port") for worker in workers}
    for worker in workers:
        mates = [mate for mate in workers if mate.plan.job == worker.plan.job]
        addresses = [(site.addresses[mate.host], ports[id(mate)]) for mate in mates]
        worker.control.send(addresses)
    for worker in workers:
        _receive(worker, "connected")


def _receive(worker: _Worker, name: str) -> object:
    """The next report, which must have this name."""
    where = f"instance {worker.plan.rank} on {worker.host}"
    if not worker.control.poll(SETUP_S):
        raise InputError(where, f"not {name} in {SETUP_S:g} s", "use fewer instances")
    try:
        report, value = worker.control.recv()
    except EOFError:
        raise InputError(where, "its process ended", "see the kernel's log") from None
    if report != name:
        raise InputError(where, f"cannot connect: {value}", "check the testbed")
    return value


def _watch(
    workers: Sequence[_Worker], go_ns: int, limits: _Limits, progress: Progress | None
) -> str:
    """Takes reports until all jobs are done or the time is up."""
    is_endless = any(worker.plan.loops is None for worker in workers)
    most_s = limits.duration_s if is_endless and limits.duration_s else limits.limit_s
    deadline_ns = go_ns + round(most_s * 1e9)
    by_control = {worker.control: worker for worker in workers}
    while not all(worker.is_done or worker.plan.loops is None for worker in workers) or is_endless:
        left_s = (deadline_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            return "" if is_endless else f"not done after {limits.limit_s:g} s"
        for control in wait([w.control for w in workers if not w.is_done], min(left_s, 0.2)):
            _take(by_control[control])  # type: ignore[index]
        if progress:
            progress(_estimate_progress(workers, 1 - left_s / most_s, is_endless))
        if all(worker.is_done for worker in workers):
            break
    return ""


def _estimate_progress(workers: Sequence[_Worker], time_share: float, is_endless: bool) -> float:
    if is_endless:
        return min(1.0, time_share)
    done = [(w.marks[-1][0] if w.marks else 0) / (w.plan.loops or 1) for w in workers]
    return min(done)


def _take(worker: _Worker) -> None:
    where = f"instance {worker.plan.rank} on {worker.host}"
    try:
        report, value = worker.control.recv()
    except EOFError:
        raise InputError(where, "its process ended", "was it killed?") from None
    if report == "failed":
        raise InputError(where, str(value), "check the testbed's links")
    if report == "marks":
        worker.marks += value
    worker.is_done = worker.is_done or report == "done"


def _collect_rest(workers: Sequence[_Worker]) -> None:
    """Stops those that still run; what they have measured by then."""
    for worker in workers:
        if not worker.is_done:
            worker.control.send("stop")
    deadline_s = time.monotonic() + END_S
    for worker in workers:
        while not worker.is_done and worker.control.poll(max(0.0, deadline_s - time.monotonic())):
            _take(worker)


def _build_times(job: Job, hosts: tuple[str, ...], workers: Sequence[_Worker]) -> JobTimes:
    loops = max((mark[0] + 1 for worker in workers for mark in worker.marks), default=0)
    times = np.full((2, loops, len(job.stages), job.instances), NEVER_PS, dtype=np.int64)
    for worker in workers:
        for loop, stage, side, ns in worker.marks:
            times[side, loop, stage, worker.plan.rank] = ns * PS_PER_NS
    return JobTimes(
        job=job,
        hosts=hosts,
        begin_ps=times[0],
        end_ps=times[1],
        is_complete=job.loops is not None
        and loops == job.loops
        and bool((times[1] != NEVER_PS).all()),
    )
