"""Latency under load: a background of streams in steps to the maximum, and a probe beside it.

First the background alone is measured as fast as it goes; then each step offers a share of that,
the last one all it can. The probe is a ping-pong with an endpoint and a thread of its own on both
sides. One record per step (`saturation.step`), and one with p50, p99 and p99.9 of the probe over
the load that was achieved, as it arrived. Entry point: `saturation`. Units: b/s, ps.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from weft._core import Counts, Endpoint, LatencyResult, LoopSpec, StopFlag, ping_pong
from weft.errors import InputError
from weft.measure.measurement import Measurement, Test, measure
from weft.measure.observation import (
    Counted,
    Observation,
    Total,
    cpu_quantities,
    distribution_quantities,
    message_quantities,
    sum_counts,
)
from weft.measure.peer.channel_spec import echo_channel, loop_spec
from weft.measure.peer.client import Peer
from weft.measure.rig import Connections, Progress, Rig, done_share
from weft.measure.settings.by_test import SEQUENCE_BYTES, SaturationSettings, is_lossy
from weft.measure.tests.bandwidth import check_streams, count_posted, stream_channels, stream_loops
from weft.records import Distribution, Quantity, Scalar, Series, statistic

LEAD_S = 0.1  # of the background before the probe
MAX_NS = 3600 * 10**9
PROBE_WARMUP = 10  # a long one would outlast the step under load
PERCENTILES = ("p50", "p99", "p99.9")


def check(settings: SaturationSettings) -> None:
    """Steps end by time, and the rate is theirs."""
    check_streams(settings)
    if settings.count is not None:
        raise InputError("--count", "a step ends by time", "use --duration, of each step")
    if settings.rate is not None:
        raise InputError("--rate", "the steps set the rate", "leave it out")
    if is_lossy(settings) and settings.probe_bytes < SEQUENCE_BYTES:
        problem = f"{settings.probe_bytes} B cannot carry a sequence number"
        raise InputError("--probe-size", problem, f"use {SEQUENCE_BYTES} B or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one load did: the probe's times, and the background as its receiver saw it."""

    share: float
    probe: LatencyResult
    streams: Sequence[Counted]
    peer_streams: Sequence[Counted]  # none in process, where a completion is an arrival

    @property
    def sent(self) -> Total:
        return sum_counts(self.streams)

    @property
    def received(self) -> Total:
        return sum_counts(self.peer_streams or self.streams, beside=self.streams)


def run(rig: Rig, settings: SaturationSettings) -> Observation:
    """The maximum, then every step."""
    maximum = measure_maximum(rig, settings)
    has_maximum = not rig.ended
    steps: list[Step] = []
    for number in range(settings.steps + 1):
        if rig.ended:
            break
        share = number / settings.steps
        # The last step is not held back: its load is whatever the fabric takes.
        rate = maximum.messages_per_second * share if number < settings.steps else None
        part = partial(_scale_progress, (number + 1) / (settings.steps + 2), settings.steps + 2)
        steps.append(run_step(rig, settings, share, rate, part))
    observed = Observation(steps=[observe_step(settings, step) for step in steps])
    if has_maximum:
        observed.quantities["maximum"] = Scalar(maximum.bits_per_second, "b/s")
    observed.quantities |= build_curves(steps)
    return observed


def _scale_progress(base: float, parts: int, share: float) -> float:
    return base + share / parts


def measure_maximum(rig: Rig, settings: SaturationSettings) -> Total:
    """The background alone, as fast as it goes."""
    _, duration_ns = settings.until()
    with rig.connect(stream_channels(settings, "sink", settings.op)) as ends:
        loops = stream_loops(
            settings, ends.endpoints, ends.stop, op=settings.op, duration_ns=duration_ns, count=0
        )
        share = done_share(ends.stop, 0, duration_ns * (settings.steps + 2))
        sent = rig.run(loops, share)
        received = rig.finish(ends, sent, count_posted(settings, sent))
    return sum_counts(received or sent, beside=sent)


def run_step(
    rig: Rig,
    settings: SaturationSettings,
    share: float,
    rate: float | None,
    progress: Callable[[float], float],
) -> Step:
    """The probe beside a background of `rate` messages per second (None: unlimited)."""
    _, duration_ns = settings.until()
    background = stream_channels(settings, "sink", settings.op) if share > 0 else []
    probe_settings = dataclasses.replace(
        settings, size_bytes=settings.probe_bytes, warmup=PROBE_WARMUP, nagle=False
    )
    probe = echo_channel(probe_settings, thread=settings.threads)
    with rig.connect([*background, probe]) as ends:
        loops = _build_loops(settings, probe_settings, ends, rate, duration_ns)
        elapsed = done_share(ends.stop, 0, duration_ns)
        *sent, timed = rig.run(loops, lambda: progress(min(1.0, elapsed())))
        streams = [counts for counts in sent if isinstance(counts, Counts)]
        assert isinstance(timed, LatencyResult)
        posted = count_posted(settings, streams) if streams else []
        posted.append(timed.counts.sent + PROBE_WARMUP)
        peer_counts = rig.finish(ends, [*streams, timed.counts], posted)
    return Step(share=share, probe=timed, streams=streams, peer_streams=peer_counts[:-1])


def _build_loops(
    settings: SaturationSettings,
    probe_settings: SaturationSettings,
    ends: Connections,
    rate: float | None,
    duration_ns: int,
) -> list[Callable[[], Counts | LatencyResult]]:
    """The background's loops, which end with the probe, and the probe's."""
    *streams, probe = ends.endpoints
    background_stop = StopFlag()
    loops: list[Callable[[], Counts | LatencyResult]] = []
    if streams:
        # The probe keeps the processor that was asked for; the background takes the next ones.
        loops += stream_loops(
            settings,
            streams,
            background_stop,
            rate=rate,
            op=settings.op,
            count=0,
            beside=1,
            duration_ns=MAX_NS,
        )
    spec = loop_spec(probe_settings, duration_ns=duration_ns)
    return [
        *loops,
        partial(_run_probe, probe, spec, ends.stop, background_stop, LEAD_S if streams else 0.0),
    ]


def _run_probe(
    endpoint: Endpoint, spec: LoopSpec, stop: StopFlag, background_stop: StopFlag, lead_s: float
) -> LatencyResult:
    """The probe's ping-pong: starts `lead_s` after the background, and stops it at its own end."""
    try:
        time.sleep(lead_s)
        return ping_pong(endpoint, spec, stop)
    finally:
        background_stop.set()


def observe_step(settings: SaturationSettings, step: Step) -> Observation:
    """The record of a step."""
    observed = Observation(samples=step.probe.samples, settings={"load": round(step.share, 6)})
    observed.quantities |= distribution_quantities(probe__half_rtt=step.probe.latency)
    observed.quantities |= message_quantities(step.probe.counts)
    observed.quantities["achieved"] = Scalar(step.received.bits_per_second, "b/s")
    observed.quantities["offered"] = Scalar(
        step.sent.sent * settings.size_bytes * 8e9 / max(1, step.sent.elapsed_ns), "b/s"
    )
    observed.quantities |= cpu_quantities(step.sent) | cpu_quantities(
        sum_counts(step.peer_streams), "peer.cpu"
    )
    return observed


def build_curves(steps: Sequence[Step]) -> dict[str, Quantity]:
    """Percentiles of the probe over the achieved load, in the order of that load."""
    measured = [step for step in steps if step.probe.latency.count]
    ordered = sorted(measured, key=lambda step: step.received.bits_per_second)
    loads = [step.received.bits_per_second for step in ordered]
    return {
        f"probe.{name}": Series("b/s", "ps", tuple(loads), tuple(_list_percentiles(ordered, name)))
        for name in PERCENTILES
    }


def _list_percentiles(steps: Sequence[Step], name: str) -> Iterator[float]:
    for step in steps:
        yield statistic(Distribution("ps", step.probe.latency), name) or 0.0


SATURATION = Test(
    name="saturation",
    settings=SaturationSettings,
    run=run,
    check=check,
    op=lambda settings: settings.op,
)


def saturation(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure latency under load: `saturation(peer, over="tcp", steps=10, duration="1 s")`."""
    return measure(SATURATION, peer, settings, progress)
