"""What a client and `weft serve` say to each other, over `weft.wire`, and what a server admits.

**Messages.** Fields have exact types, so that nesting is bounded; what a channel's fields may be is
checked by `channel_spec.read_channels`.

**Admission**: the limits of a server's owner, and what its machine offers. Checked before anything
is opened, on both sides; every problem is reported. A limit of None is no limit.
Entry points: REQUESTS, REPLIES; `Limits`, `find_excess`, `find_missing_transports`,
`collect_facts`. Units: bytes, seconds, bits per second of payload.
"""

from __future__ import annotations

import math
import os
import platform
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from weft import __version__, _core
from weft.errors import InputError
from weft.measure.peer.channel_spec import ServedChannel
from weft.wire import Beat, Decoder, Failure, Message, ProtocolError

# ---- Messages ---------------------------------------------------------------------------------

DEFAULT_PORT = 9338
FRAME_BYTES = 4 << 20  # thousands of channels with their addresses

Scalar = str | int | float | bool | None
Facts = dict[str, str | int | float]
Counts = dict[str, int | bool | str | dict[str, int | bool | str]]
Address = Annotated[bytes, Meta(max_length=4096)]
MessageCount = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Describe(Message):
    """Asks for facts of the server's machine."""


class Survey(Message):
    """Asks for the server's transports, devices and providers."""


class Open(Message):
    channels: list[dict[str, str | int | dict[str, Scalar]]]


class Connect(Message):
    addresses: list[Address]


class Start(Message):
    """The server's loops are to run."""


class Finish(Message):
    """The loops are to end; `sent` is how many messages went to each thread."""

    sent: list[MessageCount] | None


class Close(Message):
    """The test is to be dropped."""


class Bye(Message):
    """The client leaves."""


class Description(Message):
    facts: Facts


class Surveyed(Message):
    availability: list[dict[str, str | bool | int | list[str] | dict[str, str]]]


class Opened(Message):
    addresses: list[Address]


class Connected(Message):
    descriptions: list[dict[str, str]]


class Started(Message):
    """The loops run."""


class Finished(Message):
    """What each thread counted, by thread number."""

    counts: list[Counts]


class Closed(Message):
    """Nothing is open any more."""


class Refused(Message):
    """Why the request was refused; the session continues."""

    problems: list[Failure]


class Stopped(Message):
    """The server has ended the test."""

    reason: Failure


Request = Describe | Survey | Open | Connect | Start | Finish | Close | Bye
Reply = (
    Description
    | Surveyed
    | Opened
    | Connected
    | Started
    | Finished
    | Closed
    | Refused
    | Stopped
    | Failure
)
REQUESTS: Decoder[Any] = Decoder(Request | Beat)
REPLIES: Decoder[Any] = Decoder(Reply | Beat)


# ---- Admission --------------------------------------------------------------------------------

# Roles whose traffic the server cannot hold back: the client has to say how fast it will send.
_FREE_RUNNING = frozenset({"sink", "duplex", "window", "transfer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one server; `size_bytes` is of a message, `memory_bytes` of all buffers."""

    size_bytes: int | None = None
    duration_s: float | None = None
    rate_bps: float | None = None
    depth: int | None = 65536
    endpoints: int | None = 1024
    threads: int | None = 256
    memory_bytes: int | None = 4 << 30
    sessions: int | None = 16

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_wire(values: Mapping[str, Any]) -> Limits:
        names = {field.name for field in fields(Limits)}
        for name, value in values.items():
            if name not in names or not (value is None or type(value) in (int, float)):
                raise ProtocolError(f"ready: limit {ascii(name)[:40]} is not one, or no number")
        return Limits(**{name: values.get(name) for name in names})


def find_excess(channels: Sequence[ServedChannel], limits: Limits) -> list[InputError]:
    """Everything that exceeds a limit."""
    problems = [p for channel in channels for p in _find_channel_excess(channel, limits)]
    threads = len({channel.thread for channel in channels})
    memory = sum(_memory_bytes(channel) for channel in channels)
    for quantity, value, limit, option in (
        ("endpoints", len(channels), limits.endpoints, "--max-endpoints"),
        ("threads", threads, limits.threads, "--max-threads"),
        ("bytes of buffers", memory, limits.memory_bytes, "--max-memory"),
    ):
        problems += _compare("channels", quantity, value, limit, option)
    return problems + _find_rate_excess(channels, limits)


def _find_channel_excess(channel: ServedChannel, limits: Limits) -> list[InputError]:
    where, config = channel.where, channel.config
    # One-sided messages are as large as the window lets them be.
    payload = config["remote_bytes"] if channel.role == "window" else channel.loop["bytes"]
    size = max(payload, config["send_bytes"], config["receive_bytes"])
    problems = _compare(where, "message bytes", size, limits.size_bytes, "--max-size")
    for name in ("depth", "receive_depth"):
        problems += _compare(where, name, config[name], limits.depth, "--max-depth")
    seconds = channel.loop["duration_ns"] / 1e9
    return problems + _compare(where, "seconds", seconds, limits.duration_s, "--max-duration")


def _compare(
    where: str, quantity: str, value: float, limit: float | None, option: str
) -> list[InputError]:
    if limit is None or value <= limit:
        return []
    remedy = f"ask for less, or its owner raises {option}"
    problem = (
        f"{quantity} {_format_number(value)} exceeds the server's limit {_format_number(limit)}"
    )
    return [InputError(where, problem, remedy)]


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _memory_bytes(channel: ServedChannel) -> int:
    config = channel.config
    slots = 1 if config["one_buffer"] else config["depth"]
    send = _slot_bytes(config["send_bytes"] + config["offset"]) * slots
    receive = _slot_bytes(config["receive_bytes"]) * config["receive_depth"]
    return int(send + receive + config["remote_bytes"])


def _slot_bytes(size: int) -> int:
    """Slots start on a cache line, large ones on a page."""
    unit = 4096 if size >= 4096 else 64
    return (size + unit - 1) // unit * unit


def _find_rate_excess(channels: Sequence[ServedChannel], limits: Limits) -> list[InputError]:
    """Declared rates, each of a thread (messages per second), against the bound."""
    if limits.rate_bps is None:
        return []
    threads = {c.thread: c for c in channels if c.role in _FREE_RUNNING}
    undeclared = [c for c in threads.values() if not c.options["rate"]]
    if undeclared:
        bits = sum(c.loop["bytes"] * 8 for c in threads.values())
        max_rate = limits.rate_bps * len(threads) / max(1, bits)
        problem = f"no rate is given, and the server's limit is {limits.rate_bps:g} b/s"
        remedy = (
            f"give --rate, at most {math.floor(max_rate)} messages per second here (rperf and "
            "transfer have none: they need --max-rate unlimited)"
        )
        return [InputError(undeclared[0].where, problem, remedy)]
    total_bps = sum(c.options["rate"] * c.loop["bytes"] * 8 for c in threads.values())
    return _compare("channels", "bits per second", total_bps, limits.rate_bps, "--max-rate")


def count_roles(channels: Sequence[ServedChannel]) -> str:
    """For the log: "2 echo, 1 sink"."""
    return ", ".join(f"{n} {role}" for role, n in Counter(c.role for c in channels).items())


# Every Linux has them: no library to load before saying so.
_ALWAYS = frozenset({"tcp", "udp"})


def collect_facts() -> dict[str, str | int | float]:
    clock = _core.Clock.shared()
    return {
        "host": socket.gethostname(),
        "weft": __version__,
        "pid": os.getpid(),
        "boot_id": _boot_id(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "clock": clock.source(),
        "clock_hz": clock.hz,
        "clock_error_ppm": clock.error_ppm,
    }


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def describe_offer(offer: _core.Availability) -> dict[str, Any]:
    names = (
        "transport",
        "device",
        "available",
        "reason",
        "remedy",
        "endpoints",
        "operations",
        "max_bytes",
        "facts",
    )
    return {name: getattr(offer, name) for name in names}


def find_missing_transports(channels: Sequence[ServedChannel]) -> list[InputError]:
    """Transports, devices and endpoint kinds that this machine does not have."""
    wanted = {
        (c.config["transport"], c.config["device"], c.config["endpoint"]): c.where
        for c in reversed(channels)
        if c.config["transport"] not in _ALWAYS
    }
    if not wanted:
        return []
    offers = _core.availability()
    problems = [_explain_missing(where, *kind, offers) for kind, where in wanted.items()]
    return [problem for problem in problems if problem is not None]


def _explain_missing(
    where: str, transport: str, device: str, endpoint: str, offers: Sequence[_core.Availability]
) -> InputError | None:
    """Why this cannot be opened, if no entry offers it."""
    fitting = [a for a in offers if a.transport == transport and device in ("", a.device)]
    name = f"{where}: {transport}" + (f":{device}" if device else "")
    if not fitting:
        devices = sorted({a.device for a in offers if a.transport == transport and a.available})
        remedy = f"here are {', '.join(devices)}" if devices else "see `weft doctor`"
        return InputError(name, "not available", remedy)
    usable = [a for a in fitting if a.available]
    if not usable:
        return InputError(name, f"not available, because {fitting[0].reason}", fitting[0].remedy)
    kinds = {kind for a in usable for kind in a.endpoints}
    if endpoint and kinds and endpoint not in kinds:
        return InputError(name, f"no endpoint {endpoint!r}", f"use {', '.join(sorted(kinds))}")
    return None
