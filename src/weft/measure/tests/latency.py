"""Latency of messages that the peer's program sends back: in a closed loop, or in an open one.

`latency` is a ping-pong: half of each round trip is one sample. It contains both hosts' software,
PCIe and adapters as well as the wire: see `rperf` for the wire alone. With `--op write` each side
writes into the other's memory and waits for its own to change.

`paced` sends messages at intended times, and latency counts from those. A closed loop that waits
for each answer sends nothing while the fabric stalls, and so hides the stall (coordinated
omission). Here `half_rtt` is the time from the intended to the actual send, and half of the round
trip from there; `service.half_rtt` is the second part alone, which a closed loop would have called
its latency. Entry points: `latency`, `paced`. Units: ps.
"""

from __future__ import annotations

from functools import partial

from weft import _core
from weft._core import ping_pong, write_ping_pong
from weft.errors import InputError
from weft.measure import mpi
from weft.measure.measurement import Measurement, Test, measure
from weft.measure.observation import (
    ROUND_TRIP_LOSS,
    Observation,
    PacedTimes,
    Timed,
    cpu_quantities,
    distribution_quantities,
    loss_quantities,
    message_quantities,
)
from weft.measure.peer.channel_spec import echo_channel, loop_spec, write_channel
from weft.measure.peer.client import Peer
from weft.measure.rig import Progress, Rig, done_share
from weft.measure.settings.by_test import LatencySettings, PacedSettings, is_lossy
from weft.measure.settings.options import Settings
from weft.records import Scalar, Series


def check_ping_pong(settings: LatencySettings) -> None:
    """Memory is polled where an adapter writes it in order, and by a spinning loop."""
    if settings.op != "write":
        return
    if settings.route.transport != "verbs":
        problem = f"{settings.route.transport} does not promise to write a message's last byte last"
        raise InputError("--op write", problem, "use --over verbs, or another --op")
    if settings.wait == "block":
        raise InputError("--op write", "no event tells that memory changed", "use --wait spin")
    if settings.memory != "host":
        problem = "the processor cannot poll a GPU's memory"
        raise InputError("--op write", problem, "leave out --memory")


def run_ping_pong(rig: Rig, settings: LatencySettings) -> Observation:
    """One ping-pong on one connection."""
    count, duration_ns = settings.until()
    spec = loop_spec(settings, op=settings.op, count=count, duration_ns=duration_ns)
    is_write = settings.op == "write"
    channel = write_channel(settings) if is_write else echo_channel(settings, op=settings.op)
    with rig.connect([channel]) as ends:
        play = write_ping_pong if is_write else ping_pong
        loop = partial(play, ends.endpoints[0], spec, ends.stop)
        (result,) = rig.run([loop], done_share(ends.stop, count, duration_ns))
        rig.finish(ends, [result.counts])
    return observe_ping_pong(settings, result)


def observe_ping_pong(settings: Settings, result: Timed) -> Observation:
    """The record's content of a ping-pong."""
    counts = result.counts
    observed = Observation(samples=result.samples)
    observed.quantities |= distribution_quantities(half_rtt=result.latency)
    observed.quantities |= message_quantities(counts)
    observed.quantities |= loss_quantities(
        counts, is_lossy(settings), settings.validate, ROUND_TRIP_LOSS
    ) | cpu_quantities(counts)
    return observed


def run_ping_pong_mpi(ranks: mpi.Ranks, settings: LatencySettings) -> Observation:
    """The same by two ranks."""
    result = ranks.run(mpi.build_job("latency", settings)).result
    assert isinstance(result, mpi.LatencyResult)
    return observe_ping_pong(settings, result)


LATENCY = Test(
    name="latency",
    settings=LatencySettings,
    run=run_ping_pong,
    run_mpi=run_ping_pong_mpi,
    check=check_ping_pong,
    op=lambda settings: settings.op,
)


def latency(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure ping-pong latency: `latency(peer, over="tcp", size="64 B", count=10_000)`."""
    return measure(LATENCY, peer, settings, progress)


def run_open_loop(rig: Rig, settings: PacedSettings) -> Observation:
    """One open loop on one connection."""
    count, duration_ns = settings.until()
    spec = loop_spec(settings, op=settings.op, count=count, duration_ns=duration_ns)
    with rig.connect([echo_channel(settings, depth=settings.window, op=settings.op)]) as ends:
        loop = partial(
            _core.paced,
            ends.endpoints[0],
            spec,
            ends.stop,
            rate=settings.rate,
            poisson=settings.arrivals == "poisson",
            window=settings.window,
        )
        (result,) = rig.run([loop], done_share(ends.stop, count, duration_ns))
        rig.finish(ends, [result.counts])
    return observe_open_loop(settings, result)


def observe_open_loop(settings: PacedSettings, result: PacedTimes) -> Observation:
    """The record's content of an open loop."""
    counts = result.counts
    observed = Observation(samples=result.samples)
    observed.quantities |= distribution_quantities(
        half_rtt=result.latency, service__half_rtt=result.service, lateness=result.lateness
    )
    observed.quantities["offered_rate"] = Scalar(settings.rate / 1e6, "M/s")
    observed.quantities |= message_quantities(counts)
    observed.quantities |= loss_quantities(
        counts, is_lossy(settings), settings.validate, ROUND_TRIP_LOSS
    ) | cpu_quantities(counts)
    if len(result.samples):
        times_us = (result.intended_ns / 1e3).tolist()
        observed.quantities["samples"] = Series("us", "ps", times_us, result.samples.tolist())
    return observed


def run_open_loop_mpi(ranks: mpi.Ranks, settings: PacedSettings) -> Observation:
    """The same by two ranks."""
    job = mpi.build_job(
        "paced",
        settings,
        rate=settings.rate,
        window=settings.window,
        poisson=settings.arrivals == "poisson",
    )
    result = ranks.run(job).result
    assert isinstance(result, mpi.PacedResult)
    return observe_open_loop(settings, result)


PACED = Test(
    name="paced",
    settings=PacedSettings,
    run=run_open_loop,
    run_mpi=run_open_loop_mpi,
    op=lambda settings: settings.op,
)


def paced(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure open-loop latency: `paced(peer, over="udp", rate="10k", arrivals="poisson")`."""
    return measure(PACED, peer, settings, progress)
