"""One flow of a plan on its sender: connect, run from a common start, hand over what was seen.

latency is a closed loop (ping-pong), bandwidth and pretend-latency are streams. The warm-up is
time, not messages: it is over on all hosts at about the same moment. A stream goes on for TAIL_NS
after its time, so that those who started later are measured under the same load.
Entry point: `open_flow`. Units: ns, bits per second, ps in histograms.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from weft._core import Counts, Histogram, LoopSpec, StopFlag, ping_pong, stream
from weft.measure.channel import ChannelSpec
from weft.measure.channels import Channels
from weft.measure.peer import open_peer
from weft.measure.plan import Flow, Generator

TAIL_NS = 100_000_000
DSCP_SHIFT = 2  # of the TOS byte, the upper six bits
LEAST_RECEIVES, RECEIVE_BYTES = 16, 2**26

Report = dict[str, Any]


def open_flow(flow: Flow, peer: str, token: bytes) -> OpenFlow:
    """The flow's connection, with the receiver's loop running; close it."""
    with ExitStack() as on_failure:
        receiver = on_failure.enter_context(open_peer(peer, token))
        channels = on_failure.enter_context(receiver.open([_channel(flow.generator)]))
        channels.start()
        return OpenFlow(flow, channels, on_failure.pop_all())


@dataclass(frozen=True, slots=True)
class OpenFlow:
    """A flow that is connected and waits for its start."""

    flow: Flow
    channels: Channels
    close_all: ExitStack

    def close(self) -> None:
        self.close_all.close()

    @property
    def stop(self) -> StopFlag:
        return self.channels.stop

    def run(self, warmup_ns: int, duration_ns: int) -> Report:
        """Runs to its end, or until `stop` is set; what it saw, as plain values."""
        if self.flow.generator.kind == "latency":
            return self._probe(warmup_ns, duration_ns)
        return self._stream(warmup_ns, duration_ns)

    def _probe(self, warmup_ns: int, duration_ns: int) -> Report:
        endpoint = self.channels.endpoints[0]
        before = 0
        if warmup_ns:
            before = ping_pong(endpoint, self._loop(warmup_ns), self.stop).counts.sent
        seen = ping_pong(endpoint, self._loop(duration_ns), self.stop)
        self.channels.finish(before + seen.counts.sent)
        return self._report(seen.counts) | {
            "messages": seen.counts.received,
            "elapsed_ns": seen.counts.elapsed_ns,
            "half_rtt": sparse(seen.latency),
        }

    def _stream(self, warmup_ns: int, duration_ns: int) -> Report:
        generator = self.flow.generator
        loop = self._loop(warmup_ns + duration_ns + TAIL_NS)
        rate = (generator.rate_bps or 0.0) / 8 / generator.size_bytes
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                stream, self.channels.endpoints, loop, self.stop,
                window=generator.depth, post_list=generator.post_list, rate=rate,
            )  # fmt: skip
            first = self._mark(running, warmup_ns)
            last = self._mark(running, duration_ns)
            counts = running.result()
        (theirs,) = self.channels.finish(counts.sent)
        return self._report(counts) | {
            "messages": last[1] - first[1],
            "elapsed_ns": last[0] - first[0],
            "lost": theirs["lost"],
            "reordered": theirs["reordered"],
        }

    def _mark(self, running: Future[Counts], after_ns: int) -> tuple[int, int]:
        """(time, messages completed), after this time or when the stream has ended."""
        wait([running], after_ns / 1e9)
        return time.monotonic_ns(), self.stop.done

    def _loop(self, duration_ns: int) -> LoopSpec:
        spec = LoopSpec()
        spec.bytes = self.flow.generator.size_bytes
        spec.block = self.flow.generator.wait == "block"
        spec.duration_ns = duration_ns
        return spec

    def _report(self, counts: Counts) -> Report:
        return {
            "traffic": self.flow.traffic,
            "source": self.flow.source,
            "target": self.flow.target,
            "bytes": self.flow.generator.size_bytes,
            "lost": counts.lost,
            "reordered": counts.reordered,
            "stopped": counts.stopped,
            "error": counts.error,
            "endpoint": self.channels.descriptions[0][0],
        }


def _channel(generator: Generator) -> ChannelSpec:
    """An echo for a probe, a sink for a stream."""
    probe = generator.kind == "latency"
    size, depth = generator.size_bytes, generator.depth
    ahead = min(max(LEAST_RECEIVES, 2 * depth), max(2, RECEIVE_BYTES // size))
    config: dict[str, Any] = {
        "transport": generator.over.transport,
        "device": generator.over.device,
        "endpoint": generator.endpoint,
        "events": generator.wait == "block",
        "service_level": generator.service_level,
        "traffic_class": generator.dscp << DSCP_SHIFT,
        "send_bytes": size,
        "receive_bytes": size if probe else 64,
        "depth": depth,
        "receive_depth": ahead if probe else 1,
        "server": {} if probe else {"depth": 1, "receive_depth": ahead},
    }
    loop = {"bytes": size, "block": generator.wait == "block"}
    return ChannelSpec(config=config, role="echo" if probe else "sink", loop=loop)


def sparse(histogram: Histogram) -> Report:
    """A histogram as plain values."""
    keys, counts, low, high, total = histogram.to_sparse()
    return {
        "keys": keys.tolist(), "counts": counts.tolist(), "min": low, "max": high, "sum": total,
    }  # fmt: skip
