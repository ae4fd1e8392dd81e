"""One-sided operations: read, write, fetch-add, compare-swap; the peer's program does nothing.

Synchronous (depth 1): each operation from its post to its completion is one sample. Windowed:
throughput and rate with `depth` outstanding. Entry point: `rma`. Units: ps, b/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft._core import complete
from weft.errors import InputError
from weft.measure import mpi
from weft.measure.measurement import Measurement, Test, measure
from weft.measure.observation import (
    Counted,
    Observation,
    Timed,
    cpu_quantities,
    distribution_quantities,
    message_quantities,
    sum_counts,
    throughput_quantities,
)
from weft.measure.peer.client import Peer
from weft.measure.rig import Progress, Rig, done_share
from weft.measure.settings.by_test import ATOMIC_BYTES, ATOMICS, RmaSettings
from weft.measure.tests.bandwidth import (
    check_streams,
    run_loops,
    stream_channels,
    stream_loops,
    thread_spec,
)
from weft.records import Scalar


def check(settings: RmaSettings) -> None:
    """Atomics have 8 B; a single operation at a time has one connection."""
    check_streams(settings)
    if settings.op in ATOMICS and settings.size_bytes != ATOMIC_BYTES:
        problem = f"{settings.size_bytes} B, but {settings.op} is of {ATOMIC_BYTES} B"
        raise InputError("--size", problem, "leave it out")
    if settings.endpoint == "uc" and settings.op != "write":
        raise InputError("--endpoint uc", f"has no {settings.op}", "use rc")
    if settings.depth == 1 and settings.qps * settings.threads > 1:
        problem = "a synchronous operation has one connection"
        raise InputError("--qps and --threads", problem, "raise --depth to 2 or more")
    if settings.depth > 1 and settings.validate:
        problem = "operations that overlap cannot be checked one by one"
        raise InputError("--validate", problem, "use --depth 1")


def run(rig: Rig, settings: RmaSettings) -> Observation:
    """Operations on the peer's memory until their count or duration."""
    return one_at_a_time(rig, settings) if settings.depth == 1 else run_window(rig, settings)


def one_at_a_time(rig: Rig, settings: RmaSettings) -> Observation:
    """Each operation timed from its post to its completion."""
    count, duration_ns = settings.until()
    spec = thread_spec(settings, 0, op=settings.op, count=count, duration_ns=duration_ns)
    with rig.connect(stream_channels(settings, "window", settings.op)) as ends:
        loop = partial(complete, ends.endpoints[0], spec, ends.stop)
        (result,) = rig.run([loop], done_share(ends.stop, count, duration_ns))
        rig.finish(ends, [result.counts])
    return observe_operations(settings, result)


def run_window(rig: Rig, settings: RmaSettings) -> Observation:
    """As many operations outstanding as the depth allows."""
    with run_loops(rig, settings, settings.op, "window", stream_loops) as (ends, counts):
        rig.finish(ends, counts)
    return observe_window(counts)


def observe_operations(settings: RmaSettings, result: Timed) -> Observation:
    """The record's content of operations one at a time."""
    observed = Observation(samples=result.samples)
    observed.quantities |= distribution_quantities(operation=result.latency)
    observed.quantities |= observe_window([result.counts]).quantities
    if settings.validate:
        observed.quantities["corrupted"] = Scalar(result.counts.corrupted, "")
    return observed


def observe_window(counts: Sequence[Counted]) -> Observation:
    """The record's content of operations that overlap, as their initiator saw them."""
    ours = sum_counts(counts)
    quantities = (
        throughput_quantities("throughput", ours) | message_quantities(ours) | cpu_quantities(ours)
    )
    return Observation(quantities=quantities)


def run_mpi(ranks: mpi.Ranks, settings: RmaSettings) -> Observation:
    """The same by two ranks."""
    if settings.depth > 1:
        job = mpi.build_job("rma-windowed", settings, window=settings.depth, operation=settings.op)
        counts = ranks.run(job).result
        assert isinstance(counts, mpi.Counts)
        return observe_window([counts])
    result = ranks.run(mpi.build_job("rma", settings, operation=settings.op)).result
    assert isinstance(result, mpi.LatencyResult)
    return observe_operations(settings, result)


NOT_ONE_SIDED = "has no one-sided operations"
ELSEWHERE = "use --over verbs, or ofi:PROVIDER with RMA (weft doctor lists them)"
RMA = Test(
    name="rma",
    settings=RmaSettings,
    run=run,
    run_mpi=run_mpi,
    check=check,
    op=lambda settings: settings.op,
    refused={
        "tcp": (NOT_ONE_SIDED, ELSEWHERE),
        "udp": (NOT_ONE_SIDED, ELSEWHERE),
        "verbs:ud": ("datagrams have no one-sided operations", "use --endpoint rc"),
        "ofi:dgram": ("datagrams have no one-sided operations", "use --endpoint rdm or msg"),
        "delay:ud": ("datagrams have no one-sided operations", "use --endpoint rc"),
    },
)


def rma(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure one-sided operations: `rma(peer, over="ofi:shm", op="read", size="4 KiB")`."""
    return measure(RMA, peer, settings, progress)
