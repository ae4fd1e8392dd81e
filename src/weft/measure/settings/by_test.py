"""The settings of every test.

They import little, so that the command line can show them at once. Entry points: `SETTINGS`,
`DESCRIPTIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.measure.settings import values
from weft.measure.settings.options import Settings, Windowed, declare_over, option, other_default

BIAS = {
    "wire-first": "order wire-first: the loopback message waits behind the wire's in the adapter, "
    "so the RTT is low by the adapter's time per message (as in the simulator)",
    "loopback-first": "order loopback-first: the wire's message waits behind the loopback's in the "
    "adapter, so the RTT is high by the adapter's time per message (as in the simulator)",
    "alternating": "order alternating: every other RTT is low and the next one high by the "
    "adapter's time per message; the mean is not biased, the quantiles are (as in the simulator)",
}
ATOMICS = ("fetch-add", "compare-swap")
ATOMIC_BYTES = 8


def message_op(*more: str, and_help: str = "") -> Any:
    """The field `op` of tests that send messages, and what else this test has."""
    return option(
        "send",
        "op",
        values.choice_reader("send", "tagged", "inject", "write-imm", *more),
        f"send; tagged or inject (ofi); write-imm (verbs){and_help}",
        "OP",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings(Settings):
    """A ping-pong."""

    op: str = message_op("write", and_help="; write (verbs): polled in memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class RperfSettings(Settings):
    """Pairs of a wire and a loopback message."""

    over: str = declare_over(Settings)
    order: str = option(
        "wire-first",
        "order",
        values.choice_reader(*BIAS),
        "of the pair: wire-first (as in the paper), loopback-first or alternating",
        "ORDER",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed(Windowed):
    """Messages that follow each other without an answer."""

    op: str = message_op()


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthSettings(Streamed):
    """A stream of messages, or one each way."""

    size_bytes: int = other_default(Windowed, "size_bytes", 32768)
    bidirectional: bool = option(False, "bidirectional", values.read_flag, "both ways at once")


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedSettings(Settings):
    """Messages at given times, whatever the answers do."""

    rate: float = option(1000.0, "rate", values.read_per_second, "messages per second")
    arrivals: str = option(
        "fixed",
        "arrivals",
        values.choice_reader("fixed", "poisson"),
        "intervals: all the same, or exponential",
        "fixed|poisson",
    )
    window: int = option(
        64,
        "window",
        values.integer_reader(1, 65536),
        "unanswered messages allowed; beyond that sends are late",
    )
    op: str = message_op()

    @property
    def warmup_messages(self) -> int:
        """As given, or a tenth of a second, from 10 to 1000 messages."""
        return max(10, min(1000, round(self.rate / 10))) if self.warmup is None else self.warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationSettings(Streamed):
    """The background's messages; the probe has a size of its own."""

    size_bytes: int = other_default(Windowed, "size_bytes", 4096)
    probe_bytes: int = option(64, "probe-size", values.size_reader(), "bytes of the probe", "SIZE")
    steps: int = option(
        10, "steps", values.integer_reader(1, 1000), "loads from none to the maximum"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RmaSettings(Windowed):
    """One operation over and over."""

    over: str = declare_over(Windowed)
    size_bytes: int = other_default(Windowed, "size_bytes", ATOMIC_BYTES)
    depth: int = other_default(Windowed, "depth", 1)
    op: str = option(
        "write",
        "op",
        values.choice_reader("read", "write", *ATOMICS),
        "read, write, fetch-add or compare-swap",
        "OP",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings(Settings):
    """A number of bytes, in messages."""

    size_bytes: int = other_default(Settings, "size_bytes", 2**19)
    total_bytes: int = option(
        2**28, "total", values.size_reader(1, 2**50), "bytes to transfer", "SIZE"
    )
    outstanding: int = option(
        8,
        "outstanding",
        values.integer_reader(1, 65536),
        "B: messages sent and not yet acknowledged",
    )
    signal_every: int = option(
        1, "signal-every", values.integer_reader(1, 65536), "S: messages for each completion"
    )
    one_buffer: bool = option(
        False,
        "one-buffer",
        values.read_flag,
        "all messages from one buffer, as if always in the cache",
    )
    op: str = option(
        "",
        "op",
        values.choice_reader("write-imm", "send"),
        "write-imm, or send (default: write-imm where the transport has it)",
        "OP",
    )

    @property
    def messages(self) -> int:
        """As many as the total needs."""
        return -(-self.total_bytes // self.size_bytes)

    @property
    def queue_depth(self) -> int:
        """Room for B messages and for those that wait for a signaled one."""
        return self.outstanding + self.signal_every


SETTINGS: dict[str, type[Settings]] = {
    "latency": LatencySettings,
    "rperf": RperfSettings,
    "bandwidth": BandwidthSettings,
    "rate": Streamed,
    "paced": PacedSettings,
    "saturation": SaturationSettings,
    "rma": RmaSettings,
    "transfer": TransferSettings,
}
DESCRIPTIONS = {
    "latency": "Half round trips of a message that the peer's program sends back.",
    "rperf": "RPerf: a reliable send over the wire paired with one over the adapter's loopback; "
    "the difference of their completions is the fabric's round trip. Post-poll and ping-pong "
    "estimates of the same path beside it.",
    "bandwidth": "Streams of messages, as many outstanding as --depth allows; --depth 1 is "
    "synchronous. The throughput is payload that arrived, over the longer of both ends' "
    "times.",
    "rate": "Streams of small messages: --depth outstanding on each of --qps connections of "
    "each of --threads threads, --post-list posted at once.",
    "paced": "Messages leave at fixed or Poisson times whether or not answers have come; "
    "latency counts from the intended time, so stalls show.",
    "saturation": "A background of streams in --steps to the maximum, each for --duration, and a "
    "ping-pong probe beside it: p50, p99 and p99.9 against the achieved load.",
    "rma": "Operations on the peer's memory without its program: one at a time (latency), or "
    "--depth outstanding (throughput and rate).",
    "transfer": "A fixed number of bytes by WRITE_WITH_IMM, with credits by explicit "
    "acknowledgement: --wait block is the wait-wakeup program, --wait spin the busy-polling one.",
}
