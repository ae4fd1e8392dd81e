"""Open-loop latency: messages leave at intended times, and latency counts from those.

A closed loop that waits for each answer sends nothing while the fabric stalls, and so hides the
stall (coordinated omission). Here `half_rtt` is the time from the intended to the actual send, and
half of the round trip from there; `service.half_rtt` is the second part alone, which a closed loop
would have called its latency. Entry point: `paced`. Units: ps.
"""

from __future__ import annotations

from functools import partial

from weft import _core
from weft.measure import mpi
from weft.measure.measurement import Measurement, Test, measure
from weft.measure.observation import (
    ROUND_TRIP_LOSS,
    Observation,
    PacedTimes,
    cpu_quantities,
    distribution_quantities,
    loss_quantities,
    message_quantities,
)
from weft.measure.peer.client import Peer
from weft.measure.peer.endpoint_fields import echo_channel, loop_spec
from weft.measure.rig import Progress, Rig, done_share
from weft.measure.settings.by_test import PacedSettings
from weft.measure.settings.feasibility import is_lossy
from weft.records import Scalar, Series


def run(rig: Rig, settings: PacedSettings) -> Observation:
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


def run_mpi(ranks: mpi.Ranks, settings: PacedSettings) -> Observation:
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
    name="paced", settings=PacedSettings, run=run, run_mpi=run_mpi, op=lambda settings: settings.op
)


def paced(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure open-loop latency: `paced(peer, over="udp", rate="10k", arrivals="poisson")`."""
    return measure(PACED, peer, settings, progress)
