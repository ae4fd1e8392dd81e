"""Latency: of messages that the peer's program sends back, and of the fabric alone.

`latency` is a ping-pong: half of each round trip is one sample. It contains both hosts' software,
PCIe and adapters as well as the wire. With `--op write` each side writes into the other's memory
and waits for its own to change.

`paced` sends messages at intended times, and latency counts from those. A closed loop that waits
for each answer sends nothing while the fabric stalls, and so hides the stall (coordinated
omission). Here `half_rtt` is the time from the intended to the actual send, and half of the round
trip from there; `service.half_rtt` is the second part alone, which a closed loop would have called
its latency.

`rperf` is the round trip of the fabric alone (Katebzadeh, Costa, Grot, ISPASS 2020). A reliable
SEND goes over the wire and one over the adapter's own loopback, posted together at T_P and seen
complete at T_W and T_L. Each sample is RTT = (T_W - T_P) - (T_L - T_P) = T_W - T_L: what host, PCIe
and adapter add to both is gone. Negative differences stay in the distribution and are counted. In
the same run: the plain post-poll estimate T_W - T_P, a ping-pong, and the RTT from the device's own
timestamps where it has them.
Entry points: `latency`, `paced`, `rperf`. Units: ps.
"""

from __future__ import annotations

from functools import partial

from weft import _core
from weft._core import Endpoint, Histogram, PostPollResult, ping_pong, post_poll, write_ping_pong
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
from weft.measure.peer.channel_spec import (
    TIMED,
    echo_channel,
    loop_spec,
    sink_channel,
    timed_loopback_fields,
    write_channel,
)
from weft.measure.peer.client import Peer
from weft.measure.rig import Progress, Rig, done_share, loopback
from weft.measure.settings.by_test import (
    BIAS,
    LatencySettings,
    PacedSettings,
    RperfSettings,
    is_lossy,
)
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


# ---- RPerf ------------------------------------------------------------------------------------

SOFTWARE = ("shm", "tcp", "udp", "sockets", "net")  # libfabric's providers without an adapter


def check_rperf(settings: RperfSettings) -> None:
    """A sleep would be measured."""
    if settings.wait == "block":
        raise InputError("--wait block", "RPerf polls: a sleep would be measured", "leave it out")


def run_rperf(rig: Rig, settings: RperfSettings) -> Observation:
    """The pairs, then as many ping-pongs: never beside each other."""
    result = _run_pairs(rig, settings)
    half_rtt = Histogram() if rig.ended else _time_half_rtt(rig, settings)
    observed = Observation(samples=result.samples)
    observed.quantities |= distribution_quantities(
        rtt=result.rtt,
        device__rtt=result.device_rtt,
        post_poll__rtt=result.post_poll,
        loopback__rtt=result.loopback,
        ping_pong__half_rtt=half_rtt,
    )
    observed.quantities["negative"] = Scalar(result.negative, "")
    observed.quantities |= message_quantities(result.counts) | cpu_quantities(result.counts)
    observed.notes += list_rperf_notes(settings, result)
    return observed


def _run_pairs(rig: Rig, settings: RperfSettings) -> PostPollResult:
    count, duration_ns = settings.until()
    spec = loop_spec(settings, count=count, duration_ns=duration_ns)
    with rig.connect([sink_channel(settings, depth=1, **TIMED)]) as ends:
        wire = ends.endpoints[0]
        with loopback(timed_loopback_fields(settings)) as back:
            order = settings.order
            pairs = partial(post_poll, wire, back, spec, order, device_hz(wire), ends.stop)
            (result,) = rig.run([pairs], done_share(ends.stop, 2 * count, 2 * duration_ns))
            rig.descriptions.append(({"role": "loopback", **back.describe()}, {}))
        sent = result.counts.sent + settings.warmup_messages
        rig.finish(ends, [result.counts], [sent])
    return result


def _time_half_rtt(rig: Rig, settings: RperfSettings) -> Histogram:
    count, duration_ns = settings.until()
    spec = loop_spec(settings, count=count, duration_ns=duration_ns, samples=0)
    with rig.connect([echo_channel(settings)]) as ends:
        loop = partial(ping_pong, ends.endpoints[0], spec, ends.stop)
        half = done_share(ends.stop, 2 * count, 2 * duration_ns)
        (result,) = rig.run([loop], lambda: 0.5 + half())
        rig.finish(ends, [result.counts])
    return result.latency


def device_hz(endpoint: Endpoint) -> float:
    """Frequency of the device's completion timestamps; 0 when it has none."""
    return float(endpoint.describe().get("device_hz", "0"))


def list_rperf_notes(settings: RperfSettings, result: PostPollResult) -> list[str]:
    """What the order does to the estimate, and how much went below zero."""
    lines = [BIAS[settings.order]]
    pairs = result.rtt.count
    if result.negative:
        percent = 100 * result.negative / pairs
        lines.append(
            f"{result.negative} of {pairs} differences ({percent:.3g} %) are negative: "
            "the loopback message was seen complete after the wire's"
        )
    if settings.route.device in SOFTWARE:
        lines.append(
            f"{settings.route} is software on both paths: there is no adapter whose time "
            "the loopback could take away, so the RTT is not a fabric's"
        )
    if not result.device_rtt.count:
        lines.append("no device timestamps: the RTT has no independent check here")
    return lines


NO_ACK = "datagrams are not acknowledged: a send completes when it has left"
RPERF = Test(
    name="rperf",
    settings=RperfSettings,
    run=run_rperf,
    check=check_rperf,
    refused={
        "tcp": (
            "a send completes when the kernel has it, not when the peer acknowledges it",
            "use --over verbs or ofi:PROVIDER",
        ),
        "udp": (NO_ACK, "use --over verbs or ofi:PROVIDER"),
        "verbs:uc": (NO_ACK, "use --endpoint rc"),
        "verbs:ud": (NO_ACK, "use --endpoint rc"),
        "ofi:dgram": (NO_ACK, "use --endpoint rdm or msg"),
        "delay:ud": (NO_ACK, "use --endpoint rc"),
    },
)


def rperf(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure the fabric's round trip: `rperf(peer, over="verbs", order="alternating")`."""
    return measure(RPERF, peer, settings, progress)
