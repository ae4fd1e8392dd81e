"""One flow of a plan on its sender: connect, run from a common start, report the result.

latency is a closed loop, bandwidth and pretend-latency are streams. The warm-up is time, not
messages: it is over on all hosts at about the same moment. A stream goes on for TAIL_NS after
its time, so that those who started later are measured under the same load.
Entry point: `open_flow`. Units: ns, ps in histograms.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from weft._core import Counts, Endpoint, Histogram, StopFlag, ping_pong, post_poll, stream
from weft.measure.peer.channel_spec import ChannelSpec
from weft.measure.peer.client import Channels, open_peer
from weft.measure.peer.endpoint_fields import (
    count_receives,
    echo_channel,
    endpoint_fields,
    loop_spec,
    sink_channel,
)
from weft.measure.plan.plan import Flow, Generator
from weft.measure.rig import loopback
from weft.measure.settings.options import Settings, Windowed
from weft.measure.tests.rperf import RperfSettings, device_hz
from weft.measure.tests.streams import window_options

TAIL_NS = 100_000_000
TIMED = {"delivery": True, "device_timestamps": True}

Report = dict[str, Any]


def open_flow(flow: Flow, peer: str, token: bytes) -> OpenFlow:
    """The flow's connection, with the receiver's loop running; close it."""
    with ExitStack() as on_failure:
        receiver = on_failure.enter_context(open_peer(peer, token))
        channels = on_failure.enter_context(receiver.open([_channel(flow.generator)]))
        settings = flow.generator.settings
        back = (
            on_failure.enter_context(loopback(_loopback_fields(settings)))
            if isinstance(settings, RperfSettings)
            else None
        )
        channels.start()
        return OpenFlow(flow, channels, back, on_failure.pop_all())


def _channel(generator: Generator) -> ChannelSpec:
    """An echo for a ping-pong, a sink for the rest."""
    settings = generator.settings
    match settings:
        case RperfSettings():
            return sink_channel(settings, depth=1, **TIMED)
        case Windowed():
            return sink_channel(settings, depth=settings.depth)
        case _:
            return echo_channel(settings)


def _loopback_fields(settings: Settings) -> Report:
    size = settings.size_bytes
    return endpoint_fields(
        settings,
        send_bytes=size,
        receive_bytes=size,
        depth=1,
        receive_depth=count_receives(size, 1),
        **TIMED,
    )


@dataclass(frozen=True, slots=True)
class OpenFlow:
    """A flow that is connected and waits for its start."""

    flow: Flow
    channels: Channels
    loopback: Endpoint | None
    opened: ExitStack

    def close(self) -> None:
        self.opened.close()

    @property
    def stop(self) -> StopFlag:
        return self.channels.stop

    def run(self, warmup_ns: int, duration_ns: int) -> Report:
        """Runs to its end, or until `stop` is set; what it observed, as plain values."""
        settings = self.flow.generator.settings
        match settings:
            case RperfSettings():
                return self._run_pairs(settings, warmup_ns, duration_ns)
            case Windowed():
                return self._run_stream(settings, warmup_ns, duration_ns)
            case _:
                return self._run_ping_pong(settings, warmup_ns, duration_ns)

    def _run_ping_pong(self, settings: Settings, warmup_ns: int, duration_ns: int) -> Report:
        endpoint = self.channels.endpoints[0]
        if warmup_ns:
            ping_pong(endpoint, loop_spec(settings, warmup=0, duration_ns=warmup_ns), self.stop)
        spec = loop_spec(settings, warmup=0, duration_ns=duration_ns)
        result = ping_pong(endpoint, spec, self.stop)
        self.channels.finish()
        return self._report(result.counts) | {"half_rtt": to_sparse(result.latency)}

    def _run_pairs(self, settings: RperfSettings, warmup_ns: int, duration_ns: int) -> Report:
        wire, back = self.channels.endpoints[0], self.loopback
        assert back is not None
        sent = 0
        if warmup_ns:
            spec = loop_spec(settings, warmup=0, duration_ns=warmup_ns)
            warmup = post_poll(wire, back, spec, settings.order, device_hz(wire), self.stop)
            sent = warmup.counts.sent
        spec = loop_spec(settings, warmup=0, duration_ns=duration_ns)
        result = post_poll(wire, back, spec, settings.order, device_hz(wire), self.stop)
        self.channels.finish(sent + result.counts.sent)
        report = self._report(result.counts) | {"rtt": to_sparse(result.rtt)}
        return report | {"negative": result.negative, "messages": result.counts.sent}

    def _run_stream(self, settings: Windowed, warmup_ns: int, duration_ns: int) -> Report:
        spec = loop_spec(settings, warmup=0, duration_ns=warmup_ns + duration_ns + TAIL_NS)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                stream,
                self.channels.endpoints,
                spec,
                self.stop,
                **window_options(settings),
                rate=settings.rate or 0.0,
            )
            first = self._mark(running, warmup_ns)
            last = self._mark(running, duration_ns)
            counts = running.result()
        (received,) = self.channels.finish(counts.sent)
        return self._report(counts) | {
            "messages": last[1] - first[1],
            "elapsed_ns": last[0] - first[0],
            "lost": received["lost"],
            "reordered": received["reordered"],
        }

    def _mark(self, running: Future[Counts], after_ns: int) -> tuple[int, int]:
        """(time, messages completed), after this time or when the stream has ended."""
        wait([running], after_ns / 1e9)
        return time.monotonic_ns(), self.stop.done

    def _report(self, counts: Counts) -> Report:
        return {
            "traffic": self.flow.traffic,
            "source": self.flow.source,
            "target": self.flow.target,
            "bytes": self.flow.generator.settings.size_bytes,
            "messages": counts.received,
            "elapsed_ns": counts.elapsed_ns,
            "lost": counts.lost,
            "reordered": counts.reordered,
            "stopped": counts.stopped,
            "error": counts.error,
            "endpoint": self.channels.descriptions[0][0],
        }


def to_sparse(histogram: Histogram) -> Report:
    """A histogram as plain values."""
    keys, counts, low, high, total = histogram.to_sparse()
    return {"keys": keys.tolist(), "counts": counts.tolist(), "min": low, "max": high, "sum": total}
