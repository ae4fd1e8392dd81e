"""Bandwidth, message rate and one-sided operations, over threads and connections.

**Streams** of messages go one way or both. Thread t has connections t·Q to t·Q+Q-1 and a thread of
its own on the peer. `throughput` is what arrived, over the longer of both ends' times;
`sender.throughput` is what the sender saw completed. Both ways at once, `back.throughput` is what
came to us, and `both.throughput` is the sum. `rate` has the same streams, one way, of small
messages; its `message_rate` is the receiver's. The test `saturation` runs such streams too.

**One-sided operations** are read, write, fetch-add, compare-swap; the peer's program does nothing.
Synchronous (depth 1): each operation from its post to its completion is one sample. Windowed:
throughput and rate with `depth` outstanding.
Entry points: `bandwidth`, `rate`, `rma`; for other tests `run_loops`, `stream_channels`,
`stream_loops`, `observe_streams`. Units: b/s, million messages per second, ps, s of processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from weft._core import Counts, Endpoint, LoopSpec, StopFlag, complete, duplex, stream
from weft.errors import InputError
from weft.measure import mpi
from weft.measure.measurement import Measurement, Test, measure
from weft.measure.observation import (
    Counted,
    Observation,
    Timed,
    Total,
    cpu_quantities,
    distribution_quantities,
    loss_quantities,
    message_quantities,
    sum_counts,
    throughput_quantities,
)
from weft.measure.peer.channel_spec import (
    ChannelSpec,
    count_receives,
    endpoint_fields,
    loop_cpu,
    loop_fields,
    loop_spec,
)
from weft.measure.peer.client import Peer
from weft.measure.rig import Connections, Progress, Rig, done_share
from weft.measure.settings.by_test import (
    ATOMIC_BYTES,
    ATOMICS,
    BandwidthSettings,
    RmaSettings,
    Streamed,
    is_lossy,
)
from weft.measure.settings.options import Windowed
from weft.records import Scalar

Run = TypeVar("Run")


@contextmanager
def run_loops(
    rig: Rig, settings: Windowed, op: str, role: str, build: Callable[..., list[Callable[[], Run]]]
) -> Iterator[tuple[Connections, list[Run]]]:
    """Every thread's loop to its count or duration; the connections stay open in the block."""
    count, duration_ns = settings.until()
    with rig.connect(stream_channels(settings, role, op)) as ends:
        ending = {"count": count, "duration_ns": duration_ns}
        loops = build(settings, ends.endpoints, ends.stop, op=op, **ending)
        yield ends, rig.run(loops, done_share(ends.stop, count * settings.qps, duration_ns))


def run_one_way(rig: Rig, settings: Streamed) -> Observation:
    """Streams on every thread until their count or duration."""
    with run_loops(rig, settings, settings.op, "sink", stream_loops) as (ends, sent):
        received = rig.finish(ends, sent, count_posted(settings, sent))
    return observe_streams(settings, sent, received)


def observe_streams(
    settings: Windowed, sent: Sequence[Counted], received: Sequence[Counted]
) -> Observation:
    """The record's content of a stream: the receiver's view first, where it is known."""
    ours, arrived, carried = (
        sum_counts(sent),
        sum_counts(received),
        sum_counts(received, beside=sent),
    )
    observed = Observation()
    observed.quantities |= throughput_quantities("throughput", carried) | throughput_quantities(
        "sender.throughput", ours
    )
    observed.quantities |= message_quantities(carried if received else ours)
    if received:
        # The receiver's own count of the lost has those of the warm-up in it.
        lost = max(0, ours.sent - arrived.received)
        transit = replace(arrived, sent=ours.sent, lost=lost)
        observed.quantities |= loss_quantities(transit, is_lossy(settings), settings.validate)
    observed.quantities |= cpu_quantities(ours) | cpu_quantities(arrived, "peer.cpu")
    if settings.route.transport in ("tcp", "udp"):
        observed.notes.append(
            f"{settings.route}: the sender's figures count bytes that the "
            "kernel has taken, not those that have arrived"
        )
    return observed


def run_streams_mpi(ranks: mpi.Ranks, settings: Streamed) -> Observation:
    """A stream by two ranks."""
    outcome = ranks.run(mpi.build_job("bandwidth", settings, window=settings.depth))
    assert isinstance(outcome.result, mpi.Counts)
    return observe_streams(settings, [outcome.result], [outcome.peer_counts])


def check_streams(settings: Windowed) -> None:
    """Memory that no machine should be asked for."""
    needed = settings.depth * settings.qps * settings.threads * settings.size_bytes
    if needed > 2**34:
        problem = f"{needed / 2**30:.0f} GiB of messages outstanding"
        raise InputError("--depth", problem, "lower --depth, --qps, --threads or --size")


def stream_channels(settings: Windowed, role: str, op: str) -> list[ChannelSpec]:
    """The connections of every thread; role is "sink", "duplex" or "window"."""
    config = _fields(settings, role)
    # A peer that sends too ends by itself; the others end on our request.
    count, duration_ns = settings.until()
    peer_count = count if role == "duplex" else 0
    loop = loop_fields(settings, op=op, count=peer_count, duration_ns=duration_ns)
    options = {**window_options(settings), "rate": (settings.rate or 0.0) / settings.threads}
    channel = ChannelSpec(config=config, role=role, loop=loop, options=options)
    return [
        replace(channel, thread=thread)
        for thread in range(settings.threads)
        for _ in range(settings.qps)
    ]


def _fields(settings: Windowed, role: str) -> dict[str, Any]:
    size, depth = settings.size_bytes, settings.depth
    # A byte stream is read as it is written: reading more at once would acknowledge more often,
    # and so cut what the sender's kernel collects.
    byte_stream = settings.route.transport == "tcp"
    ahead = settings.post_list if byte_stream else count_receives(size, depth)
    fields: dict[str, Any] = {"send_bytes": size, "depth": depth, "receive_depth": 1}
    fields["queue_members"] = settings.qps if settings.shared_cq else 1
    # The kernel copies what it takes, so a program needs one buffer, which stays in the cache.
    fields["one_buffer"] = byte_stream and not settings.validate
    match role:
        case "duplex":
            fields |= {"receive_bytes": size, "receive_depth": ahead}
        case "window":
            fields |= {"remote_bytes": size, "receive_bytes": 64, "server": {"depth": 1}}
        case _:
            fields |= {"receive_bytes": 64, "server": {"depth": 1, "receive_depth": ahead}}
    return endpoint_fields(settings, **fields)


def window_options(settings: Windowed) -> dict[str, int]:
    """What both sides' streaming loops take."""
    return {
        "window": settings.depth,
        "post_list": settings.post_list,
        "signal_every": settings.signal_every,
    }


def by_thread(settings: Windowed, endpoints: Sequence[Endpoint]) -> list[Sequence[Endpoint]]:
    """Each thread's connections."""
    qps = settings.qps
    return [endpoints[first : first + qps] for first in range(0, settings.threads * qps, qps)]


def stream_loops(
    settings: Windowed,
    endpoints: Sequence[Endpoint],
    stop: StopFlag,
    *,
    rate: float | None = None,
    beside: int = 0,
    **overrides: Any,
) -> list[Callable[[], Counts]]:
    """One sending loop per thread, after `beside` other loops; `rate` is the total."""
    share = (rate or settings.rate or 0.0) / settings.threads
    options = window_options(settings)
    return [
        partial(stream, ends, thread_spec(settings, n, **overrides), stop, rate=share, **options)
        for n, ends in enumerate(by_thread(settings, endpoints), beside)
    ]


def duplex_loops(
    settings: Windowed, endpoints: Sequence[Endpoint], stop: StopFlag, **overrides: Any
) -> list[Callable[[], tuple[Counts, Counts]]]:
    """One sending and receiving loop per thread."""
    share, options = (settings.rate or 0.0) / settings.threads, window_options(settings)
    return [
        partial(duplex, ends, thread_spec(settings, n, **overrides), stop, rate=share, **options)
        for n, ends in enumerate(by_thread(settings, endpoints))
    ]


def thread_spec(settings: Windowed, number: int, **overrides: Any) -> LoopSpec:
    """The loop of the number-th thread, on the number-th processor from the one given."""
    return loop_spec(settings, cpu=loop_cpu(settings, number), **overrides)


def count_posted(settings: Windowed, counts: Sequence[Counts]) -> list[int]:
    """Messages that left for each of the peer's threads, the warm-up's too: it waits for those."""
    warmup = settings.warmup_messages * settings.qps
    return [c.sent + warmup for c in counts]


def run_bandwidth(rig: Rig, settings: BandwidthSettings) -> Observation:
    """Streams on every thread until their count or duration."""
    return run_both_ways(rig, settings) if settings.bidirectional else run_one_way(rig, settings)


def run_both_ways(rig: Rig, settings: BandwidthSettings) -> Observation:
    """As `run_one_way`, and the peer sends as much as it can at the same time."""
    with run_loops(rig, settings, settings.op, "duplex", duplex_loops) as (ends, results):
        sent, received = [s for s, _ in results], [r for _, r in results]
        peer_received = rig.finish(ends, sent, count_posted(settings, sent))
    observed = observe_streams(settings, sent, peer_received)
    return _add_back(observed, sum_counts(peer_received, beside=sent), sum_counts(received))


def _add_back(observed: Observation, forth: Total, back: Total) -> Observation:
    observed.quantities |= throughput_quantities("back.throughput", back)
    observed.quantities |= throughput_quantities("both.throughput", forth, back)
    return observed


def run_bandwidth_mpi(ranks: mpi.Ranks, settings: BandwidthSettings) -> Observation:
    """The same by two ranks."""
    if not settings.bidirectional:
        return run_streams_mpi(ranks, settings)
    outcome = ranks.run(mpi.build_job("bidirectional", settings, window=settings.depth))
    assert isinstance(outcome.result, tuple)
    sent, received = outcome.result
    observed = observe_streams(settings, [sent], [outcome.peer_counts])
    return _add_back(observed, sum_counts([outcome.peer_counts]), sum_counts([received]))


BANDWIDTH = Test(
    name="bandwidth",
    settings=BandwidthSettings,
    run=run_bandwidth,
    run_mpi=run_bandwidth_mpi,
    check=check_streams,
    op=lambda settings: settings.op,
)


def bandwidth(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure throughput: `bandwidth(peer, over="tcp", size="64 KiB", depth=16)`."""
    return measure(BANDWIDTH, peer, settings, progress)


RATE = Test(
    name="rate",
    settings=Streamed,
    run=run_one_way,
    run_mpi=run_streams_mpi,
    check=check_streams,
    op=lambda settings: settings.op,
)


def rate(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure the message rate: `rate(peer, over="ofi:shm", depth=128, threads=2)`."""
    return measure(RATE, peer, settings, progress)


# ---- One-sided operations ---------------------------------------------------------------------


def check_operations(settings: RmaSettings) -> None:
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


def run_operations(rig: Rig, settings: RmaSettings) -> Observation:
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


def run_operations_mpi(ranks: mpi.Ranks, settings: RmaSettings) -> Observation:
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
    run=run_operations,
    run_mpi=run_operations_mpi,
    check=check_operations,
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
