"""Ping-pong latency: the peer's program sends each message back; every message is timed.

Half of each round trip is one sample. It contains both hosts' software, PCIe and adapters as well
as the wire: see `rperf` for the wire alone. With `--op write` each side writes into the other's
memory and waits for its own to change. Entry point: `latency`. Units: ps.
"""

from __future__ import annotations

from functools import partial

from weft._core import ping_pong, write_ping_pong
from weft.errors import InputError
from weft.measure import mpi
from weft.measure.measurement import Measurement, Test, measure
from weft.measure.observation import (
    ROUND_TRIP_LOSS,
    Observation,
    Timed,
    cpu_quantities,
    distribution_quantities,
    loss_quantities,
    message_quantities,
)
from weft.measure.peer.client import Peer
from weft.measure.peer.endpoint_fields import echo_channel, loop_spec, write_channel
from weft.measure.rig import Progress, Rig, done_share
from weft.measure.settings.by_test import LatencySettings
from weft.measure.settings.feasibility import is_lossy
from weft.measure.settings.options import Settings


def check(settings: LatencySettings) -> None:
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


def run(rig: Rig, settings: LatencySettings) -> Observation:
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


def run_mpi(ranks: mpi.Ranks, settings: LatencySettings) -> Observation:
    """The same by two ranks."""
    result = ranks.run(mpi.build_job("latency", settings)).result
    assert isinstance(result, mpi.LatencyResult)
    return observe_ping_pong(settings, result)


LATENCY = Test(
    name="latency",
    settings=LatencySettings,
    run=run,
    run_mpi=run_mpi,
    check=check,
    op=lambda settings: settings.op,
)


def latency(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure ping-pong latency: `latency(peer, over="tcp", size="64 B", count=10_000)`."""
    return measure(LATENCY, peer, settings, progress)
