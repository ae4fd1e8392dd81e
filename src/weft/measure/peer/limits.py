"""What a server lets a client ask for; its owner sets them. None: no bound.

Checked before anything is opened, on both sides, and every thing that does not fit is said.
Entry points: `Limits`, `excess`. Units: bytes, seconds, bits per second of payload.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from weft.errors import InputError
from weft.measure.peer.channel import Served
from weft.measure.peer.protocol import ProtocolError

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


def excess(channels: Sequence[Served], limits: Limits) -> list[InputError]:
    """Everything that exceeds a limit."""
    found = [problem for channel in channels for problem in _of_channel(channel, limits)]
    found += _over("channels", "endpoints", len(channels), limits.endpoints, "--max-endpoints")
    threads = len({channel.thread for channel in channels})
    found += _over("channels", "threads", threads, limits.threads, "--max-threads")
    memory = sum(_memory_bytes(channel) for channel in channels)
    found += _over("channels", "bytes of buffers", memory, limits.memory_bytes, "--max-memory")
    return found + _too_fast(channels, limits)


def _of_channel(channel: Served, limits: Limits) -> list[InputError]:
    where, config = channel.where, channel.config
    found = []
    # One-sided messages are as large as the window lets them be.
    asked = config["remote_bytes"] if channel.role == "window" else channel.loop["bytes"]
    size = max(asked, config["send_bytes"], config["receive_bytes"])
    found += _over(where, "message bytes", size, limits.size_bytes, "--max-size")
    for name in ("depth", "receive_depth"):
        found += _over(where, name, config[name], limits.depth, "--max-depth")
    seconds = channel.loop["duration_ns"] / 1e9
    found += _over(where, "seconds", seconds, limits.duration_s, "--max-duration")
    return found


def _over(
    where: str, what: str, value: float, limit: float | None, option: str
) -> list[InputError]:
    if limit is None or value <= limit:
        return []
    remedy = f"ask for less, or its owner raises {option}"
    problem = f"{what} {_plain(value)} exceeds the server's limit {_plain(limit)}"
    return [InputError(where, problem, remedy)]


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _memory_bytes(channel: Served) -> int:
    config = channel.config
    slots = 1 if config["one_buffer"] else config["depth"]
    sent = _slot_bytes(config["send_bytes"] + config["offset"]) * slots
    received = _slot_bytes(config["receive_bytes"]) * config["receive_depth"]
    return int(sent + received + config["remote_bytes"])


def _slot_bytes(size: int) -> int:
    """Slots start on a cache line, large ones on a page."""
    unit = 4096 if size >= 4096 else 64
    return (size + unit - 1) // unit * unit


def _too_fast(channels: Sequence[Served], limits: Limits) -> list[InputError]:
    """Declared rates, each of a thread (messages per second), against the bound."""
    if limits.rate_bps is None:
        return []
    threads = {c.thread: c for c in channels if c.role in _FREE_RUNNING}
    unsaid = [c for c in threads.values() if not c.options["rate"]]
    if unsaid:
        bits = sum(c.loop["bytes"] * 8 for c in threads.values())
        most = limits.rate_bps * len(threads) / max(1, bits)
        problem = f"no rate is given, and the server's limit is {limits.rate_bps:g} b/s"
        remedy = (
            f"give --rate, at most {math.floor(most)} messages per second here (rperf and "
            "transfer have none: they need --max-rate unlimited)"
        )
        return [InputError(unsaid[0].where, problem, remedy)]
    asked = sum(c.options["rate"] * c.loop["bytes"] * 8 for c in threads.values())
    return _over("channels", "bits per second", asked, limits.rate_bps, "--max-rate")


def roles_of(channels: Sequence[Served]) -> str:
    """For the log: "2 echo, 1 sink"."""
    return ", ".join(f"{n} {role}" for role, n in Counter(c.role for c in channels).items())
