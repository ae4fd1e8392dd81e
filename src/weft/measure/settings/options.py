"""The settings of a test: declared once, read from a command line, a sweep or Python.

Each field of a settings class carries an `Option`: its name outside, how it is read, its help and
the transports that have it. A field's own name has its unit and is its name in records. Every test
adds its own fields in a subclass.
Entry points: `Settings`, `settings_from`, `options_of`, `parse_over`, `sweep_points`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from weft.errors import InputError
from weft.measure.settings import values
from weft.measure.settings.values import ANYWHERE
from weft.sweep_grammar import GRAMMAR, MAX_POINTS, Reader, expand_values

if TYPE_CHECKING:
    from weft.records import Plain

VERBS, SOCKETS, OFI, DELAY = ("verbs",), ("tcp", "udp"), ("ofi",), ("delay",)
WARMUP_BYTES = 2**26
BY_DEVICE = -1  # inline_bytes: as much as pays there
DURATION_NS = 10**9
NEAR = "ofi:shm"
ADAPTERS = ("verbs", NEAR, "ofi:tcp")  # of tests that need more than a socket, the best first
WITHOUT_DEVICE = ("tcp", "udp", "delay", "mpi")
WITH_DEVICE = ("ofi", "verbs")
TRANSPORT_REMEDY = (
    "use tcp, udp, ofi:PROVIDER, verbs[:DEVICE], delay or mpi; weft doctor lists what is here"
)


@dataclass(frozen=True, slots=True)
class Over:
    """A transport and, where it has several, the device or provider."""

    transport: str
    device: str = ""

    def has(self, device: str) -> bool:
        """Whether what is known of a device, or of all ("") of them, is about this."""
        return not self.device or device in ("", self.device)

    def __str__(self) -> str:
        return f"{self.transport}:{self.device}" if self.device else self.transport


def parse_over(text: str, where: str = "--over") -> Over:
    """The transport that `text` names."""
    transport, colon, device = text.partition(":")
    if transport not in WITHOUT_DEVICE + WITH_DEVICE:
        raise InputError(where, f"{text!r} is not a transport", TRANSPORT_REMEDY)
    if colon and transport in WITHOUT_DEVICE:
        raise InputError(where, f"{transport} has no devices", f"use {transport} alone")
    if colon and not device:
        raise InputError(where, f"{text!r} names no device after the colon", TRANSPORT_REMEDY)
    if transport == "ofi" and not device:
        remedy = "name one, such as ofi:tcp or ofi:shm; weft doctor lists them"
        raise InputError(where, "ofi needs a provider", remedy)
    return Over(transport, device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How a setting is offered: `--NAME METAVAR`, or `--GROUP NAME=VALUE` for GROUP.NAME."""

    name: str
    read: Reader
    help: str
    metavar: str = "N"
    only: tuple[str, ...] = ()  # transports that have it; empty: all
    config: str = ""  # the field of EndpointConfig that it sets as it is


def option(
    default: object,
    name: str,
    read: Reader,
    help: str,
    metavar: str = "N",
    only: tuple[str, ...] = (),
    config: str = "",
) -> Any:
    """A field of a settings class."""
    declared = Option(name=name, read=read, help=help, metavar=metavar, only=only, config=config)
    return field(default=default, metadata={"option": declared})


def other_default(base: type[Settings], name: str, default: object) -> Any:
    """The field `name` of a base class, with another default."""
    (inherited,) = (f for f in dataclasses.fields(base) if f.name == name)
    return field(default=default, metadata=inherited.metadata)


def declare_over(base: type[Settings]) -> Any:
    """The field `over` of tests that sockets cannot run: empty until `choose_over` fills it."""
    candidates = f"default: the first of {', '.join(ADAPTERS)} that can; {NEAR} to this host only"
    inherited = other_default(base, "over", "").metadata["option"]
    declared = dataclasses.replace(inherited, help=f"{inherited.help}; {candidates}")
    return field(default="", metadata={"option": declared})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all tests have in common. None is a choice left to the test."""

    over: str = option(
        "tcp",
        "over",
        values.read_text,
        "transport: tcp, udp, ofi:PROVIDER, verbs[:DEVICE], delay, mpi (see weft doctor)",
        "TRANSPORT",
    )
    endpoint: str = option(
        "",
        "endpoint",
        values.choice_reader("rc", "uc", "ud", "srd", "rdm", "msg", "dgram"),
        "kind of endpoint: rc, uc, ud, srd (verbs), rdm, msg, dgram (ofi); rc, ud (delay)",
        "KIND",
        only=("verbs", "ofi", "delay"),
        config="endpoint",
    )
    size_bytes: int = option(64, "size", values.size_reader(), "bytes of each message", "SIZE")
    count: int | None = option(
        None, "count", values.integer_reader(1, 10**12), "timed messages of each connection"
    )
    duration_ns: int | None = option(
        None, "duration", values.read_time_ns, "time to measure for, instead of a count", "TIME"
    )
    warmup: int | None = option(
        None,
        "warmup",
        values.integer_reader(0, 10**9),
        "messages before the timed ones (default: 1000, at most 64 MiB)",
    )
    validate: bool = option(False, "validate", values.read_flag, "fill each message and check it")
    wait: str = option(
        "spin",
        "wait",
        values.choice_reader("spin", "block"),
        "poll for completions, or sleep until an event",
        "spin|block",
    )
    cpu: int = option(
        ANYWHERE,
        "cpu",
        values.read_processor,
        "processor of the first timed loop, or auto: a core each, near the device",
        "N|auto",
    )
    pages: str = option(
        "auto",
        "pages",
        values.choice_reader("auto", "2M", "thp", "4K"),
        "pages of the buffers: auto, 2M, thp or 4K",
        "PAGES",
        config="pages",
    )
    memory: str = option(
        "host",
        "memory",
        values.read_memory,
        "where messages lie on both sides: host, or cuda[:N], a GPU's memory",
        "MEMORY",
        only=("tcp", "udp", "ofi", "verbs"),
        config="memory",
    )
    numa: int = option(-1, "numa", values.integer_reader(-1, 1023), "NUMA node of the buffers")
    samples: int = option(0, "samples", values.integer_reader(0, 10**8), "raw samples to keep")
    address: str = option("", "address", values.read_text, "local address to use", "ADDRESS")
    peer_device: str = option(
        "",
        "peer-device",
        values.read_text,
        "the peer's device, where it is not ours",
        "DEVICE",
        VERBS,
    )
    dscp: int = option(
        0,
        "dscp",
        values.integer_reader(0, 63),
        "differentiated services code point",
        only=(*SOCKETS, *OFI),
    )
    traffic_class: int = option(
        0,
        "traffic-class",
        values.integer_reader(0, 255),
        "traffic class (the whole TOS byte)",
        only=(*VERBS, *SOCKETS, *OFI),
    )
    priority: int = option(
        -1,
        "priority",
        values.integer_reader(-1, 15),
        "SO_PRIORITY",
        only=SOCKETS,
        config="priority",
    )
    nagle: bool = option(
        False,
        "nagle",
        values.read_flag,
        "small messages may wait to leave together",
        only=("tcp",),
        config="nagle",
    )
    congestion: str = option(
        "",
        "congestion",
        values.read_text,
        "congestion control, such as cubic",
        "NAME",
        ("tcp",),
        config="congestion",
    )
    busy_poll_us: int = option(
        0,
        "busy-poll",
        values.integer_reader(0, 10**6),
        "SO_BUSY_POLL in µs (default: off)",
        only=SOCKETS,
        config="busy_poll_us",
    )
    service_level: int = option(
        0, "sl", values.integer_reader(0, 15), "service level", only=VERBS, config="service_level"
    )
    gid_index: int = option(
        -1,
        "gid-index",
        values.integer_reader(-1, 255),
        "entry of the GID table, on both sides (default: RoCE v2 over IPv4 first)",
        only=VERBS,
        config="gid_index",
    )
    peer_gid_index: int = option(
        -1,
        "peer-gid-index",
        values.integer_reader(-1, 255),
        "the peer's entry of the GID table, where it is not ours",
        only=VERBS,
    )
    port: int = option(
        0,
        "port",
        values.integer_reader(0, 255),
        "port of the device, on both sides (default: the first active one)",
        only=VERBS,
        config="port",
    )
    peer_port: int = option(
        0,
        "peer-port",
        values.integer_reader(0, 255),
        "the peer's port (default: as --port)",
        only=VERBS,
    )
    partition: int = option(
        0,
        "pkey",
        values.read_partition_key,
        "partition key, such as 0x8001 (default: the first of the port's table)",
        "KEY",
        VERBS,
        config="partition",
    )
    path_mtu_bytes: int = option(
        0,
        "mtu",
        values.size_reader(256, 4096),
        "path MTU (default: the smaller of both ports')",
        "SIZE",
        VERBS,
        config="path_mtu",
    )
    inline_bytes: int = option(
        BY_DEVICE,
        "inline",
        values.size_reader(0, 2**16),
        "largest message sent inline (verbs) or injected (ofi); default: by device and size",
        "SIZE",
        ("verbs", "ofi"),
    )
    posting: str = option(
        "auto",
        "posting",
        values.choice_reader("auto", "wr", "list"),
        "post by ibv_wr_* or by lists (ibv_post_send); auto: wr where the device has it",
        "auto|wr|list",
        VERBS,
        config="posting",
    )
    strict_ordering: bool = option(
        False,
        "strict-ordering",
        values.read_flag,
        "the adapter writes to memory in order (default: relaxed ordering, where it has it)",
        only=VERBS,
        config="strict_ordering",
    )
    offset_bytes: int = option(
        0,
        "offset",
        values.size_reader(0, 2**20),
        "of each message from its page-aligned slot",
        "SIZE",
        config="offset",
    )
    loss_timeout_ns: int = option(
        10**9, "loss-timeout", values.read_time_ns, "after which a datagram counts as lost", "TIME"
    )
    seed: int = option(1, "seed", values.integer_reader(0, 2**63 - 1), "of contents and arrivals")
    delay_wire: str = option(
        "10 us",
        "delay.wire",
        values.read_text,
        "one way, such as 10us, uniform(5us,15us), exponential(10us), lognormal(10us,0.5)",
        "TIME",
        DELAY,
    )
    delay_loopback: str = option(
        "0 ns", "delay.loopback", values.read_text, "the adapter's loopback", "TIME", DELAY
    )
    delay_host_post: str = option(
        "0 ns", "delay.host-post", values.read_text, "post to adapter", "TIME", DELAY
    )
    delay_host_complete: str = option(
        "0 ns", "delay.host-complete", values.read_text, "adapter to completion", "TIME", DELAY
    )
    delay_remote_host: str = option(
        "0 ns", "delay.remote-host", values.read_text, "the peer's program", "TIME", DELAY
    )
    delay_remote_memory: str = option(
        "0 ns", "delay.remote-memory", values.read_text, "the peer's memory", "TIME", DELAY
    )
    delay_adapter_ns: int = option(
        0, "delay.adapter", values.read_time_ns, "of the adapter per message sent", "TIME", DELAY
    )
    delay_receive_ns: int = option(
        0, "delay.receive", values.read_time_ns, "of an adapter per message received", "TIME", DELAY
    )
    delay_rate_gbps: float = option(
        0.0, "delay.rate", values.read_gigabits, "of the adapter; 0: unlimited", "RATE", DELAY
    )
    delay_loss: float = option(
        0.0, "delay.loss", values.read_share, "share lost (--endpoint ud)", "P", DELAY
    )
    delay_stall_every_ns: int = option(
        0,
        "delay.stall-every",
        values.read_time_ns,
        "how often the wire stands still",
        "TIME",
        DELAY,
    )
    delay_stall_ns: int = option(
        0, "delay.stall", values.read_time_ns, "and for how long", "TIME", DELAY
    )

    @property
    def route(self) -> Over:
        """The transport and its device."""
        return parse_over(self.over)

    @property
    def warmup_messages(self) -> int:
        """As given, or 1000 messages of at most 64 MiB in all, and at least 10."""
        if self.warmup is not None:
            return self.warmup
        return max(10, min(1000, WARMUP_BYTES // self.size_bytes))

    def until(self, default_ns: int = DURATION_NS) -> tuple[int, int]:
        """(count, duration in ns), one of them 0: a loop ends at one."""
        if self.count is not None:
            return self.count, 0
        return 0, default_ns if self.duration_ns is None else self.duration_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowed(Settings):
    """Of tests that keep several messages on their way: the kernel may collect small ones."""

    nagle: bool = other_default(Settings, "nagle", True)
    depth: int = option(
        64,
        "depth",
        values.integer_reader(1, 65536),
        "messages outstanding on each connection; 1: synchronous",
    )
    qps: int = option(
        1, "qps", values.integer_reader(1, 4096), "connections (queue pairs) of each thread"
    )
    threads: int = option(
        1, "threads", values.integer_reader(1, 1024), "threads, each with its connections"
    )
    rate: float | None = option(
        None, "rate", values.read_per_second, "at most this many messages per second in all"
    )
    post_list: int = option(
        1, "post-list", values.integer_reader(1, 65536), "messages posted at once"
    )
    signal_every: int = option(
        1, "signal-every", values.integer_reader(1, 65536), "messages for each completion"
    )
    shared_cq: bool = option(
        False,
        "shared-cq",
        values.read_flag,
        "one completion queue for all connections of a thread",
        only=VERBS,
    )
    separate_contexts: bool = option(
        False,
        "separate-contexts",
        values.read_flag,
        "a device context, protection domain and registrations for each connection",
        only=VERBS,
        config="separate_contexts",
    )


Kind = TypeVar("Kind", bound=Settings)


def options_of(kind: type[Settings]) -> dict[str, tuple[str, Option]]:
    """Name outside -> (name of the field, option), in the order declared."""
    return {
        f.metadata["option"].name: (f.name, f.metadata["option"]) for f in dataclasses.fields(kind)
    }


def settings_from(kind: type[Kind], values_by_name: Mapping[str, object], prefix: str = "") -> Kind:
    """Settings read from values by their outside names; `prefix` is for errors ("--")."""
    options = options_of(kind)
    read: dict[str, Any] = {}
    for name, value in _flatten(values_by_name).items():
        outside = name.replace("_", "-")
        if outside not in options:
            remedy = f"known: {', '.join(options)}"
            raise InputError(f"{prefix}{name}", "this test has no such setting", remedy)
        field_name, declared = options[outside]
        read[field_name] = _read_value(declared.read, value, f"{prefix}{outside}")
    return kind(**read)


def _read_value(read: Reader, value: object, where: str) -> Any:
    try:
        return read(value, where)
    except InputError as error:
        if not (where.startswith("--") and isinstance(value, str) and "," in value):
            raise
        remedy = f"for several values write --sweep {where[2:]}={value}"
        raise InputError(where, error.problem, remedy) from None


def _flatten(values_by_name: Mapping[str, object]) -> dict[str, object]:
    """{"delay": {"wire": w}} as {"delay.wire": w}; None is as if not given."""
    flat: dict[str, object] = {}
    for name, value in values_by_name.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": v for inner, v in value.items() if v is not None}
        elif value is not None:
            flat[name] = value
    return flat


def list_changes(settings: Settings) -> dict[str, Plain]:
    """The fields that differ from the test's defaults: what tells one point from another."""
    return {
        f.name: getattr(settings, f.name)
        for f in dataclasses.fields(settings)
        if getattr(settings, f.name) != f.default
    }


def digest(test: str, settings: Settings, peer: str, repetition: int) -> str:
    """One text for each point of a test: equal only if everything is."""
    content = json.dumps([test, dataclasses.asdict(settings), peer, repetition], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


# ---- Sweeps -----------------------------------------------------------------------------------


def sweep_points(
    kind: type[Kind], fixed: Mapping[str, object], sweeps: Sequence[str]
) -> list[Kind]:
    """The settings of every combination, the last key fastest; `fixed` applies to all.

    `size=64..8M*2 depth=1,4,16` is every combination of the values; see `weft.sweep_grammar`.
    """
    options = options_of(kind)
    swept = {
        name: expand_values(options[name][1].read, text, f"--sweep {name}")
        for name, text in _split_sweeps(sweeps, options)
    }
    for name in swept.keys() & fixed.keys():
        raise InputError(f"--{name}", "is also given by --sweep", "keep one of the two")
    total = math.prod(len(values) for values in swept.values())
    if total > MAX_POINTS:
        problem = f"{total} combinations are more than {MAX_POINTS}"
        raise InputError("--sweep", problem, "sweep fewer values")
    base = settings_from(kind, fixed, "--")
    fields = [options[name][0] for name in swept]
    return [
        dataclasses.replace(base, **dict(zip(fields, combination, strict=True)))
        for combination in itertools.product(*swept.values())
    ]


def swept_names(sweeps: Sequence[str]) -> list[str]:
    """The settings that vary."""
    return [_setting_name(text) for text in sweeps]


def _setting_name(text: str) -> str:
    return text.partition("=")[0].strip().lstrip("-").replace("_", "-")


def _split_sweeps(
    sweeps: Sequence[str], options: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    """(name of the setting, its values as text) of each sweep."""
    names: set[str] = set()
    for text in sweeps:
        _, equals, values_text = text.partition("=")
        name = _setting_name(text)
        if not equals or not name:
            raise InputError(f"--sweep {text!r}", "is not KEY=VALUES", GRAMMAR)
        if name not in options:
            remedy = f"known: {', '.join(options)}"
            raise InputError(f"--sweep {name}", "this test has no such setting", remedy)
        if name in names:
            raise InputError(f"--sweep {name}", "is given twice", "give each key once")
        names.add(name)
        yield name, values_text
