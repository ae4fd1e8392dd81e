"""The operations of a job, in which order, and when its stages began and ended.

An instance enters a stage when the stages before it have ended there. The early part of the
communication (`overlap`) may go at once, the late part when the instance has computed; it leaves
the stage when it has computed, its messages have left and those for it have arrived. Two marks,
computations of no length on a processor of their own, stand for entering and leaving.
Volumes are split so that no byte is lost or added; every message has at least one byte.

- shuffle: each instance sends the volume in equal parts to all others.
- partition-aggregate: the aggregators send requests; each other instance computes and sends the
  volume, in equal parts, to the aggregators.
- star: each worker sends the volume, in equal parts, to the servers; a server that has all parts
  sends each worker as much.
- all-reduce: a ring reduces and gathers a vector of the volume, in 2(n - 1) steps.
- bulk-synchronous: each instance sends the volume in equal parts to its neighbours on a ring; then
  a dissemination barrier.

A simulation and a real run have the same quantities. `JOB.completion` is from the job's start to
the end of its last stage on its last instance, `JOB.STAGE.completion` from the first instance that
enters a stage to the last that leaves it, the mean over the loops. Looping jobs have the
distribution of loops too. Times are whole ps after the run's start; -1 is never.
Entry points: `build_graph`, `bound_loop_ps`, `count_sent_bytes`; `JobTimes`, `build_quantities`,
`build_rows`. Units: ps, bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weft._core import Histogram
from weft.errors import InputError
from weft.jobs.job_file import Job, Stage
from weft.records import Distribution, Quantity, Row, Scalar
from weft.units import format_count

SEND, RECEIVE, COMPUTE = 0, 1, 2
WORK, MARK = 0, 1  # processors of an instance
SIGNAL_BYTES = 64  # of a request, and of a message of a barrier
MAX_OPERATIONS = 1 << 27
MAX_PARTS = 8  # kinds of messages of one stage, each with tags of its own

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobGraph:
    """Operations, numbered instance by instance.

    Operation i waits for the end of `dependency[dependency_start[i]:dependency_start[i + 1]]`, all
    of its own instance. `amount` is bytes of a message or ps of a computation. Of a message's tag
    the remainder by `flows` is the number of its flow. `begin` and `end` are the marks of
    each [loop, stage, instance].
    """

    instances: int
    flows: int
    kind: IntArray
    rank: IntArray
    peer: IntArray
    tag: IntArray
    amount: IntArray
    cpu: IntArray
    dependency_start: IntArray
    dependency: IntArray
    begin: IntArray
    end: IntArray

    def __len__(self) -> int:
        return len(self.kind)


def build_graph(job: Job, loops: int | None = None) -> JobGraph:
    """The operations of a job; `loops` replaces the number in the file."""
    count = job.loops if loops is None else loops
    if count is None:
        raise InputError(job.where, "loops until the end, and there is none", "give a duration")
    builder = _Builder(flows=job.flows)
    marks = [_add_stages(builder, job)]
    begin, end = (np.array(ids) for ids in zip(*marks[0], strict=True))
    if len(builder) * count > MAX_OPERATIONS:
        problem = f"{count} loops make {len(builder) * count} operations"
        raise InputError(job.where, problem, f"use {MAX_OPERATIONS // len(builder)} loops or fewer")
    return _tile_loops(job, builder, begin, end, count)


def split_evenly(volume: int, parts: int) -> IntArray:
    """Sizes of the parts of a volume; a part has at least one byte."""
    edges = np.arange(parts + 1, dtype=np.int64) * volume // parts
    return np.maximum(np.diff(edges), 1)


# ---- Building ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Builder:
    """Operations in any order of instances, and which waits for which."""

    flows: int
    columns: list[tuple[IntArray, ...]] = field(default_factory=list)
    waiting: list[IntArray] = field(default_factory=list)
    awaited: list[IntArray] = field(default_factory=list)
    count: int = 0

    def __len__(self) -> int:
        return self.count

    def add(
        self,
        kind: int,
        rank: IntArray,
        *,
        peer: IntArray | int = 0,
        tag: IntArray | int = 0,
        amount: IntArray | int = 0,
        cpu: int = WORK,
    ) -> IntArray:
        """New operations, one for each rank; their numbers."""
        values = (
            np.broadcast_to(v, rank.shape).ravel() for v in (kind, rank, peer, tag, amount, cpu)
        )
        self.columns.append(tuple(np.asarray(v, dtype=np.int64) for v in values))
        numbers = np.arange(self.count, self.count + rank.size, dtype=np.int64)
        self.count += rank.size
        return numbers.reshape(rank.shape)

    def mark(self, rank: IntArray) -> IntArray:
        return self.add(COMPUTE, rank, cpu=MARK)

    def wait(self, operation: IntArray, before: IntArray) -> None:
        """Each operation waits for the one beside it."""
        first, second = np.broadcast_arrays(operation, before)
        self.waiting.append(first.ravel())
        self.awaited.append(second.ravel())

    def exchange(
        self, source: IntArray, target: IntArray, tag: IntArray | int, size: IntArray | int
    ) -> tuple[IntArray, IntArray]:
        """Messages: the numbers of their sends and receives."""
        send = self.add(SEND, source, peer=target, tag=tag, amount=size)
        receive = self.add(RECEIVE, target, peer=source, tag=tag, amount=size)
        return send, receive


@dataclass(slots=True, kw_only=True)
class _Part:
    """The communication of a stage, or of its early or late part.

    An instance receives from `begin` on, sends from `after` on, and is done with it at `join`.
    """

    builder: _Builder
    stage: Stage
    instances: int
    volume: int
    tag: int
    begin: IntArray
    after: IntArray
    join: IntArray

    @property
    def workers(self) -> IntArray:
        return np.arange(self.stage.roots, self.instances, dtype=np.int64)

    @property
    def roots(self) -> IntArray:
        return np.arange(self.stage.roots, dtype=np.int64)

    def tags(self, kind: int = 0) -> IntArray:
        """Of the flows of messages of one kind."""
        return (self.tag + kind) * self.builder.flows + np.arange(self.stage.flows)

    def send_all(
        self, source: IntArray, target: IntArray, *, after: IntArray, volume: int
    ) -> IntArray:
        """Each source sends the volume in equal parts to its row of targets; the receives."""
        flows = self.stage.flows
        shape = (*target.shape, flows)
        sizes = split_evenly(volume, target.shape[1] * flows).reshape(1, target.shape[1], flows)
        from_ = np.broadcast_to(source[:, None, None], shape)
        to = np.broadcast_to(target[:, :, None], shape)
        send, receive = self.builder.exchange(from_, to, self.tags(), sizes)
        self.builder.wait(send, after[from_])
        self.builder.wait(receive, self.begin[to])
        self.builder.wait(self.join[from_], send)
        self.builder.wait(self.join[to], receive)
        return receive


def _shuffle(part: _Part) -> None:
    everyone = np.arange(part.instances, dtype=np.int64)
    # Everyone begins with its successor, so that no instance is the first of all.
    peers = (everyone[:, None] + np.arange(1, part.instances)) % part.instances
    part.send_all(everyone, peers, after=part.after, volume=part.volume)


def _aggregate(part: _Part) -> None:
    targets = np.broadcast_to(part.roots, (len(part.workers), part.stage.roots))
    part.send_all(part.workers, targets, after=part.after, volume=part.volume)


def _star(part: _Part) -> None:
    targets = np.broadcast_to(part.roots, (len(part.workers), part.stage.roots))
    receive = part.send_all(part.workers, targets, after=part.after, volume=part.volume)
    gathered = part.builder.mark(part.roots)
    part.builder.wait(gathered[None, :, None], receive)
    answered = np.full(part.instances, -1, dtype=np.int64)
    answered[: part.stage.roots] = gathered
    # Server i returns to each worker what that worker sent to it.
    sizes = split_evenly(part.volume, part.stage.roots * part.stage.flows)
    for root in range(part.stage.roots):
        share = int(sizes.reshape(part.stage.roots, -1)[root].sum())
        _send_each(part, part.roots[root : root + 1], part.workers, answered, share)


def _send_each(
    part: _Part, source: IntArray, targets: IntArray, after: IntArray, volume: int
) -> None:
    """One source sends the whole volume to each of the targets."""
    flows = part.stage.flows
    shape = (len(targets), flows)
    from_, to = np.broadcast_to(source[:, None], shape), np.broadcast_to(targets[:, None], shape)
    sizes = split_evenly(volume, flows)
    send, receive = part.builder.exchange(from_, to, part.tags(1), sizes)
    part.builder.wait(send, after[from_])
    part.builder.wait(receive, part.begin[to])
    part.builder.wait(part.join[from_], send)
    part.builder.wait(part.join[to], receive)


def _all_reduce(part: _Part) -> None:
    n, flows, builder = part.instances, part.stage.flows, part.builder
    everyone = np.arange(n, dtype=np.int64)
    sizes = split_evenly(part.volume, n * flows).reshape(n, flows)
    shape = (n, flows)
    source = np.broadcast_to(everyone[:, None], shape)
    target = (source + 1) % n
    received: IntArray | None = None  # [receiver, flow] of the step before
    for step in range(2 * (n - 1)):
        send, receive = builder.exchange(source, target, part.tags(), sizes[(everyone - step) % n])
        builder.wait(send, part.after[source])
        if received is not None:
            builder.wait(send[:, :, None], received[source[:, 0]][:, None, :])
        builder.wait(receive, part.begin[target])
        builder.wait(part.join[source], send)
        builder.wait(part.join[target], receive)
        received = np.empty_like(receive)
        received[target[:, 0]] = receive


def _meet_neighbours(part: _Part) -> None:
    n = part.instances
    steps = [sign * step for step in range(1, n) for sign in (1, -1)]
    offsets = list(dict.fromkeys(step % n for step in steps))[: part.stage.neighbours]
    everyone = np.arange(n, dtype=np.int64)
    targets = (everyone[:, None] + np.array(offsets)) % n
    part.send_all(everyone, targets, after=part.after, volume=part.volume)


_PATTERNS = {
    "shuffle": _shuffle,
    "partition-aggregate": _aggregate,
    "star": _star,
    "all-reduce": _all_reduce,
    "bulk-synchronous": _meet_neighbours,
}


def _add_stages(builder: _Builder, job: Job) -> list[tuple[IntArray, IntArray]]:
    """The marks of each stage of one loop."""
    marks: list[tuple[IntArray, IntArray]] = []
    for number, stage in enumerate(job.stages):
        before = [marks[n][1] for n in stage.after]
        marks.append(_add_stage(builder, job.instances, stage, number, before))
    return marks


def _add_stage(
    builder: _Builder, instances: int, stage: Stage, number: int, before: list[IntArray]
) -> tuple[IntArray, IntArray]:
    everyone = np.arange(instances, dtype=np.int64)
    tag = number * MAX_PARTS
    begin, end = builder.mark(everyone), builder.mark(everyone)
    for ended in before:
        builder.wait(begin, ended)
    builder.wait(end, begin)
    ready = _await_requests(builder, stage, tag, begin, end)
    computed = _compute(builder, stage, ready)
    builder.wait(end, computed)
    is_barrier = stage.pattern == "bulk-synchronous"
    join = builder.mark(everyone) if is_barrier else end
    early = round(stage.volume_bytes * stage.overlap)
    volumes = ((early, ready), (stage.volume_bytes - early, computed))
    for half, (volume, after) in enumerate(volumes):
        if volume and instances > 1:
            part = _Part(
                builder=builder,
                stage=stage,
                instances=instances,
                volume=volume,
                tag=tag + 2 * half,
                begin=begin,
                after=after,
                join=join,
            )
            _PATTERNS[stage.pattern](part)
    if is_barrier:
        builder.wait(join, computed)
        _add_barrier(builder, join, end, begin, tag + 5)
    return begin, end


def _compute(builder: _Builder, stage: Stage, ready: IntArray) -> IntArray:
    """When each instance has computed; aggregators and servers only gather."""
    workers = np.arange(stage.roots, len(ready), dtype=np.int64)
    if stage.compute_ps == 0:
        return ready
    computed = ready.copy()
    computed[workers] = builder.add(COMPUTE, workers, amount=stage.compute_ps)
    builder.wait(computed[workers], ready[workers])
    return computed


def _await_requests(
    builder: _Builder, stage: Stage, tag: int, begin: IntArray, end: IntArray
) -> IntArray:
    """When each instance may begin to work: at once, or when all aggregators asked it."""
    if stage.pattern != "partition-aggregate":
        return begin
    workers = np.arange(stage.roots, len(begin), dtype=np.int64)
    shape = (stage.roots, len(workers))
    source = np.broadcast_to(np.arange(stage.roots, dtype=np.int64)[:, None], shape)
    target = np.broadcast_to(workers, shape)
    send, receive = builder.exchange(source, target, (tag + 4) * builder.flows, SIGNAL_BYTES)
    ready = begin.copy()
    ready[workers] = builder.mark(workers)
    builder.wait(send, begin[source])
    builder.wait(receive, begin[target])
    builder.wait(ready[target], receive)
    builder.wait(end[source], send)
    return ready


def _add_barrier(
    builder: _Builder, join: IntArray, end: IntArray, begin: IntArray, tag: int
) -> None:
    """In round t everyone signals the instance 2^t further on, when it has the last signal."""
    n = len(join)
    everyone = np.arange(n, dtype=np.int64)
    reached, distance = join, 1
    while distance < n:
        target = (everyone + distance) % n
        send, receive = builder.exchange(everyone, target, tag * builder.flows, SIGNAL_BYTES)
        heard = builder.mark(everyone)
        builder.wait(send, reached)
        builder.wait(receive, begin[target])
        builder.wait(heard[target], receive)
        builder.wait(heard, reached)
        builder.wait(end, send)
        reached, distance = heard, 2 * distance
    builder.wait(end, reached)


# ---- Loops ------------------------------------------------------------------------------------


def _tile_loops(
    job: Job, builder: _Builder, begin: IntArray, end: IntArray, loops: int
) -> JobGraph:
    """Repeats the operations of one loop; an instance begins the next when it has ended all."""
    size = len(builder)
    shift = (np.arange(loops, dtype=np.int64) * size)[:, None]
    columns = [
        np.tile(np.concatenate(column), loops) for column in zip(*builder.columns, strict=True)
    ]
    waiting = [(np.concatenate(builder.waiting) + shift).ravel()]
    awaited = [(np.concatenate(builder.awaited) + shift).ravel()]
    awaited_stages = {n for stage in job.stages for n in stage.after}
    first = [n for n, stage in enumerate(job.stages) if not stage.after]
    last = [n for n in range(len(job.stages)) if n not in awaited_stages]
    for root in first:
        for leaf in last:
            waiting.append((begin[root] + shift[1:]).ravel())
            awaited.append((end[leaf] + shift[:-1]).ravel())
    marks = [ids[None] + shift[:, :, None] for ids in (begin, end)]
    return _number_by_rank(
        job, columns, np.concatenate(waiting), np.concatenate(awaited), marks[0], marks[1]
    )


def _number_by_rank(
    job: Job,
    columns: list[IntArray],
    waiting: IntArray,
    awaited: IntArray,
    begin: IntArray,
    end: IntArray,
) -> JobGraph:
    # Two bytes are sorted by radix, and plain numbers many at a time: pairs become numbers.
    ranks = columns[1] if job.instances > 2**16 else columns[1].astype(np.uint16)
    order = np.argsort(ranks, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    pairs = number[waiting] * len(order) + number[awaited]
    pairs.sort()
    counts = np.bincount(pairs // len(order), minlength=len(order))
    kind, rank, peer, tag, amount, cpu = (column[order] for column in columns)
    return JobGraph(
        instances=job.instances,
        flows=job.flows,
        kind=kind,
        rank=rank,
        peer=peer,
        tag=tag,
        amount=amount,
        cpu=cpu,
        dependency_start=np.concatenate([[0], np.cumsum(counts)]),
        dependency=pairs % len(order),
        begin=number[begin],
        end=number[end],
    )


# ---- Bounds -----------------------------------------------------------------------------------


def count_sent_bytes(graph: JobGraph) -> IntArray:
    """Bytes that each instance sends."""
    is_send = graph.kind == SEND
    weights = graph.amount[is_send].astype(np.float64)
    sent = np.bincount(graph.rank[is_send], weights=weights, minlength=graph.instances)
    return sent.astype(np.int64)


def bound_loop_ps(job: Job, rate_bps: float) -> int:
    """A loop takes at least this long: its longest chain of computations, or its busiest link."""
    chains: list[int] = []
    for stage in job.stages:
        chains.append(max((chains[n] for n in stage.after), default=0) + stage.compute_ps)
    graph = build_graph(job, 1)
    is_send = graph.kind == SEND
    weights = graph.amount[is_send].astype(np.float64)
    received = np.bincount(graph.peer[is_send], weights=weights, minlength=1)
    busiest = max(float(count_sent_bytes(graph).max()), float(received.max()))
    return max(max(chains), int(busiest * 8e12 / rate_bps))


# ---- Times of a run ---------------------------------------------------------------------------

NEVER_PS = -1
MAX_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobTimes:
    """Begin and end of each [loop, stage, instance]; `hosts` of the instances, by name."""

    job: Job
    hosts: tuple[str, ...]
    begin_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    is_complete: bool  # the job's loops, not only those that fit into the run

    @property
    def loops(self) -> int:
        """Loops that every instance has ended."""
        ended = (self.end_ps != NEVER_PS).all(axis=(1, 2))
        return int(np.argmin(ended)) if not ended.all() else len(ended)

    @property
    def loop_ends_ps(self) -> NDArray[np.int64]:
        return np.asarray(self.end_ps[: self.loops].max(axis=(1, 2)))

    @property
    def mean_loop_ps(self) -> float | None:
        """None before the first loop has ended."""
        ends = self.loop_ends_ps
        return float(ends[-1] - self.job.start_ps) / len(ends) if len(ends) else None


def build_quantities(times: JobTimes) -> Iterator[tuple[str, Quantity]]:
    name, ends = times.job.name, times.loop_ends_ps
    yield f"{name}.loops", Scalar(times.loops, "")
    if times.is_complete:
        yield f"{name}.completion", Scalar(float(ends[-1] - times.job.start_ps) / 1e6, "us")
    if len(ends) > 1:
        histogram = Histogram()
        histogram.record_many(np.diff(ends, prepend=times.job.start_ps))
        yield f"{name}.loop", Distribution("ps", histogram)
    for number, stage in enumerate(times.job.stages):
        took = _stage_ps(times, number)
        if len(took):
            mean_us = float(took.mean()) / 1e6
            yield f"{name}.{stage.name}.completion", Scalar(mean_us, "us")


def _stage_ps(times: JobTimes, stage: int) -> NDArray[np.int64]:
    """From the first instance's entry to the last one's leave, in each loop in which all left."""
    begin, end = times.begin_ps[:, stage], times.end_ps[:, stage]
    ended = (end != NEVER_PS).all(axis=1)
    return np.asarray(end[ended].max(axis=1) - begin[ended].min(axis=1))


def build_slowdown(times: JobTimes, alone: JobTimes) -> Iterator[tuple[str, Quantity]]:
    """Mean time of a loop, over the same when the job is alone."""
    beside_ps, alone_ps = times.mean_loop_ps, alone.mean_loop_ps
    if beside_ps and alone_ps:
        yield f"{times.job.name}.alone", Scalar(alone_ps * alone.loops / 1e6, "us")
        yield f"{times.job.name}.slowdown", Scalar(beside_ps / alone_ps, "")


def build_rows(jobs: Sequence[JobTimes]) -> list[Row]:
    """One row per job, loop and stage that all instances have ended, the first MAX_ROWS."""
    rows: list[Row] = []
    for times in jobs:
        for loop in range(len(times.end_ps)):
            for number, stage in enumerate(times.job.stages):
                end = times.end_ps[loop, number]
                if (end == NEVER_PS).any():
                    continue
                if len(rows) == MAX_ROWS:
                    return rows
                rows.append(
                    {
                        "job": times.job.name,
                        "loop": loop,
                        "stage": stage.name,
                        "begin_us": float(times.begin_ps[loop, number].min()) / 1e6,
                        "end_us": float(end.max()) / 1e6,
                    }
                )
    return rows


def describe_jobs(all_times: Sequence[JobTimes], rows: Sequence[Row]) -> Iterator[str]:
    """Where each job ran, and whether the rows are all there were."""
    for times in all_times:
        shown = ", ".join(times.hosts[:8]) + (" …" if len(times.hosts) > 8 else "")
        yield f"{times.job.name}: {format_count(len(times.hosts), 'instance')} on {shown}"
    if len(rows) == MAX_ROWS:
        yield f"the table of stages has the first {MAX_ROWS}"
