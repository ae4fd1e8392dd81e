"""Ping-pong latency: the peer's program sends each message back; every message is timed.

Half of each round trip is one sample. It contains both hosts' software, PCIe and adapters as well
as the wire: see `rperf` for the wire alone. Entry point: `latency`. Units: ps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from weft._core import ping_pong
from weft.measure import mpi
from weft.measure.measurement import Measurement, Test, measure
from weft.measure.observation import (
    Observation,
    Timed,
    cpu_quantities,
    distribution_quantities,
    loss_quantities,
    message_quantities,
)
from weft.measure.peer.client import Peer
from weft.measure.peer.endpoint_fields import echo_channel, loop_spec
from weft.measure.rig import Progress, Rig, done_share
from weft.measure.settings import values
from weft.measure.settings.feasibility import is_lossy
from weft.measure.settings.options import Settings, option


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings(Settings):
    """A ping-pong."""

    op: str = option(
        "send",
        "op",
        values.choice_reader("send", "tagged", "inject", "write-imm"),
        "send; tagged or inject (ofi); write-imm (verbs)",
        "OP",
    )


def run(rig: Rig, settings: LatencySettings) -> Observation:
    """One ping-pong on one connection."""
    count, duration_ns = settings.until()
    spec = loop_spec(settings, op=settings.op, count=count, duration_ns=duration_ns)
    with rig.connect([echo_channel(settings, op=settings.op)]) as ends:
        loop = partial(ping_pong, ends.endpoints[0], spec, ends.stop)
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
        counts, is_lossy(settings), settings.validate
    ) | cpu_quantities(counts)
    return observed


def run_mpi(ranks: mpi.Ranks, settings: LatencySettings) -> Observation:
    """The same by two ranks."""
    result = ranks.run(mpi.build_job("latency", settings)).result
    assert isinstance(result, mpi.LatencyResult)
    return observe_ping_pong(settings, result)


LATENCY = Test(
    name="latency",
    help="ping-pong latency, every message timed",
    description="Half round trips of a message that the peer's program sends back.",
    settings=LatencySettings,
    run=run,
    run_mpi=run_mpi,
    op=lambda settings: settings.op,
)


def latency(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure ping-pong latency: `latency(peer, over="tcp", size="64 B", count=10_000)`."""
    return measure(LATENCY, peer, settings, progress)
