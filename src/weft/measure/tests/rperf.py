"""RPerf: the round trip of the fabric alone (Katebzadeh, Costa, Grot, ISPASS 2020).

A reliable SEND goes over the wire and one over the adapter's own loopback, posted together at T_P
and seen complete at T_W and T_L. Each sample is RTT = (T_W - T_P) - (T_L - T_P) = T_W - T_L: what
host, PCIe and adapter add to both is gone. Negative differences stay in the distribution and are
counted. In the same run: the plain post-poll estimate T_W - T_P, a ping-pong, and the RTT from the
device's own timestamps where it has them. Entry point: `rperf`. Units: ps.
"""

from __future__ import annotations

from functools import partial

from weft._core import Endpoint, Histogram, PostPollResult, ping_pong, post_poll
from weft.errors import InputError
from weft.measure.measurement import Measurement, Test, measure
from weft.measure.observation import (
    Observation,
    cpu_quantities,
    distribution_quantities,
    message_quantities,
)
from weft.measure.peer.channel_spec import (
    TIMED,
    echo_channel,
    loop_spec,
    sink_channel,
    timed_loopback_fields,
)
from weft.measure.peer.client import Peer
from weft.measure.rig import Progress, Rig, done_share, loopback
from weft.measure.settings.by_test import BIAS, RperfSettings
from weft.records import Scalar

SOFTWARE = ("shm", "tcp", "udp", "sockets", "net")  # libfabric's providers without an adapter


def check(settings: RperfSettings) -> None:
    """A sleep would be measured."""
    if settings.wait == "block":
        raise InputError("--wait block", "RPerf polls: a sleep would be measured", "leave it out")


def run(rig: Rig, settings: RperfSettings) -> Observation:
    """The pairs, then as many ping-pongs: never beside each other."""
    result = _run_pairs(rig, settings)
    half_rtt = Histogram() if rig.ended else _run_ping_pong(rig, settings)
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
    observed.notes += notes(settings, result)
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


def _run_ping_pong(rig: Rig, settings: RperfSettings) -> Histogram:
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


def notes(settings: RperfSettings, result: PostPollResult) -> list[str]:
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
    run=run,
    check=check,
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
