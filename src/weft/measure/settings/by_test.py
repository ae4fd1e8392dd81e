"""The settings of every test, and what cannot be measured with them.

They import little, so that the command line can show them at once. What cannot be measured is
refused before anything opens: the setting, the reason, the remedy. Entry points: `SETTINGS`,
`DESCRIPTIONS`; `check_settings` (settings alone), `check_available` (what this machine offers).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.measure.settings import values
from weft.measure.settings.options import (
    Option,
    Settings,
    Windowed,
    declare_over,
    option,
    other_default,
)

if TYPE_CHECKING:
    from weft._core import Availability

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


# ---- What cannot be measured ------------------------------------------------------------------

SEQUENCE_BYTES = 8  # datagrams carry a sequence number, so that loss and reordering show
UDP_BYTES = 65507
ENDPOINTS = {
    "verbs": ("rc", "uc", "ud", "srd"),
    "ofi": ("rdm", "msg", "dgram"),
    "delay": ("rc", "ud"),
}
Refusal = tuple[str, str]  # reason, remedy


def check_settings(test: str, settings: Settings, refused: Mapping[str, Refusal]) -> None:
    """Refuse what the transport does not have and what contradicts itself."""
    route = settings.route
    for name in (route.transport, f"{route.transport}:{settings.endpoint}"):
        if name in refused:
            reason, remedy = refused[name]
            raise InputError(f"{test} --over {route}", reason, remedy)
    _check_transport(settings)
    _check_contradictions(settings)
    _check_size(settings)
    if isinstance(settings, Windowed):
        _check_window(settings)


def is_lossy(settings: Settings) -> bool:
    """Whether messages may be lost or overtake each other."""
    kinds = {"uc", "ud", "dgram"}
    transport = settings.route.transport
    return transport == "udp" or settings.endpoint in kinds or settings.delay_loss > 0


def _check_transport(settings: Settings) -> None:
    """Options that only other transports have."""
    transport = settings.route.transport
    for field in dataclasses.fields(settings):
        option: Option = field.metadata["option"]
        if getattr(settings, field.name) == field.default or not option.only:
            continue
        if transport not in option.only:
            name = _option_text(option.name)
            problem = f"{transport} has no such setting"
            raise InputError(name, problem, f"it is of {', '.join(option.only)}: leave it out")
    kinds = ENDPOINTS.get(transport, ())
    if settings.endpoint and settings.endpoint not in kinds:
        problem = f"{settings.endpoint!r} is not of {transport}"
        raise InputError("--endpoint", problem, f"use one of {', '.join(kinds)}")


def _option_text(name: str) -> str:
    group, dot, inner = name.partition(".")
    return f"--{group} {inner}" if dot else f"--{name}"


def _check_contradictions(settings: Settings) -> None:
    if settings.count is not None and settings.duration_ns is not None:
        raise InputError("--count and --duration", "only one can end a test", "leave one out")
    if settings.duration_ns == 0:
        raise InputError("--duration", "0 measures nothing", "use 1 ms or more")
    if settings.dscp and settings.traffic_class:
        problem = "both set the same byte"
        raise InputError("--dscp and --traffic-class", problem, "leave one out")


def _check_size(settings: Settings) -> None:
    size = settings.size_bytes
    if is_lossy(settings) and size < SEQUENCE_BYTES:
        problem = f"{size} B cannot carry the {SEQUENCE_BYTES} B sequence number of a datagram"
        raise InputError("--size", problem, f"use {SEQUENCE_BYTES} B or more")
    if settings.route.transport == "udp" and size > UDP_BYTES:
        problem = f"{size} B do not fit a UDP datagram"
        raise InputError("--size", problem, f"use {UDP_BYTES} B or less, or --over tcp")


def _check_window(settings: Windowed) -> None:
    if settings.shared_cq and settings.separate_contexts:
        problem = "a completion queue belongs to one context"
        raise InputError("--shared-cq and --separate-contexts", problem, "leave one out")
    for name, value in (("post-list", settings.post_list), ("signal-every", settings.signal_every)):
        if value > settings.depth:
            problem = f"{value} exceeds the {settings.depth} messages outstanding"
            raise InputError(f"--{name}", problem, f"lower it, or raise --depth to {value}")


def check_available(settings: Settings, op: str, offers: Sequence[Availability]) -> None:
    """Refuse a transport or device that this machine does not have, and what it cannot carry."""
    route = settings.route
    matching = [o for o in offers if o.transport == route.transport and route.has(o.device)]
    named = [o for o in matching if o.device == route.device] or matching
    usable = [o for o in named if o.available]
    if not usable:
        first = named[0] if named else None
        reason = first.reason if first else "not here"
        remedy = first.remedy if first and first.remedy else "weft doctor lists what is here"
        raise InputError(f"--over {route}", f"not available: {reason}", remedy)
    offered = {name for offer in usable for name in offer.operations}
    if offered and op not in offered:
        remedy = f"it has {', '.join(sorted(offered))}"
        raise InputError(f"--over {route}", f"has no operation {op!r}", remedy)
    largest = max(offer.max_bytes for offer in usable)
    if 0 < largest < settings.size_bytes:
        problem = f"{settings.size_bytes} B exceed the largest message of {route}"
        raise InputError("--size", problem, f"use {largest} B or less")
