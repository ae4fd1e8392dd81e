"""What a client asks of a server for one connection, and its check, field by field.

The fields that each side opens and runs with come from the settings of a test. The client sends
what the server is to open (its sizes swapped); the server reads it back as a ServedChannel and
reports every field that is wrong.
Entry points: `ChannelSpec`, `encode_channel`, `read_channels`; `echo_channel`, `sink_channel`,
`loop_spec`. Units: bytes, ns, messages/s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft._core import EndpointConfig, LoopSpec
from weft.errors import InputError
from weft.measure.settings.options import BY_DEVICE, Settings, options_of
from weft.measure.settings.values import ANYWHERE, AUTO, client_cpu

Value = str | int | float | bool
_COUNT = range(1 << 32)
_SLOTS = range(1, 1 << 32)
_RATE = "rate"  # finite, not negative
Kind = type[str] | type[bool] | range | str

Fields = Mapping[str, tuple[Value, Kind]]  # the default, and what a value may be


def _read_fields(core: object, ranges: Mapping[str, range], without: Sequence[str]) -> Fields:
    """Names, types and defaults as the core declares them; integers are counts unless in ranges."""
    fields: dict[str, tuple[Value, Kind]] = {}
    for name in dir(core):
        if not name.startswith("_") and name not in without:
            default = getattr(core, name)
            kind = type(default)
            fields[name] = (default, ranges.get(name, _COUNT) if kind is int else kind)
    return fields


# What a client may choose of the server's endpoint and of its loop.
CONFIG = _read_fields(
    EndpointConfig(),
    {
        "depth": _SLOTS,
        "receive_depth": _SLOTS,
        "remote_bytes": range(1 << 48),
        "offset": range(1 << 20),
        "node": range(-1, 1024),
        "port": range(256),
        "gid_index": range(-1, 1 << 16),
        "partition": range(1 << 16),
        "path_mtu": range(1 << 16),
        "service_level": range(16),
        "traffic_class": range(256),
        "priority": range(-1, 16),
        "busy_poll_us": range(1 << 20),
        "queue_members": range(1, 1 << 16),
    },
    without=("server", "class_is_optional", "delay"),
)
LOOP = _read_fields(
    LoopSpec(),
    {
        "count": range(1 << 63),
        "duration_ns": range(1 << 63),
        "warmup": range(1 << 63),
        "cpu": range(AUTO, 1 << 16),
        "loss_timeout_ns": range(5_000_000_001),
        "seed": range(1 << 64),
    },
    without=("samples",),
)
OPTIONS: Fields = {
    "window": (1, _SLOTS),
    "post_list": (1, _SLOTS),
    "signal_every": (1, _SLOTS),
    "outstanding": (1, _SLOTS),
    "remote_slots": (1, _SLOTS),
    "rate": (0.0, _RATE),
}
ROLES = ("echo", "write-echo", "sink", "duplex", "window", "transfer")
_ONE_ENDPOINT = frozenset({"echo", "write-echo", "transfer"})
ACKNOWLEDGEMENT_BYTES = 8
OVER_PEERS = ("tcp", "udp", "ofi", "verbs")
MAX_TEXT = 256
MAX_CHANNELS = 4096
MAX_PROBLEMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec:
    """One connection: what both sides open, and what the server's loop does with it.

    `config` has fields of EndpointConfig as the client sees them; what differs between the sides
    is under "client" and "server" (the server's sizes are swapped by themselves). `loop` has fields
    of LoopSpec and `options` window, post_list, signal_every, outstanding, remote_slots, rate, both
    for the server's loop. Channels of one `thread` number are served by one thread.
    """

    config: Mapping[str, Any]
    role: str
    loop: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    thread: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedChannel:
    """A channel as the server opens and serves it: every field present and of its type."""

    where: str
    config: Mapping[str, Any]
    role: str
    loop: Mapping[str, Any]
    options: Mapping[str, Any]
    thread: int


def client_fields(spec: ChannelSpec) -> dict[str, Any]:
    """Fields of the client's endpoint."""
    common = {k: v for k, v in spec.config.items() if k not in ("client", "server")}
    return common | dict(spec.config.get("client", {}))


def server_fields(spec: ChannelSpec) -> dict[str, Any]:
    """Fields of the server's endpoint: what one side sends, the other receives."""
    common = {k: v for k, v in spec.config.items() if k not in ("client", "server")}
    swapped = {"send_bytes": "receive_bytes", "receive_bytes": "send_bytes"}
    turned = {swapped.get(name, name): value for name, value in common.items()}
    return turned | dict(spec.config.get("server", {}))


def bind_to_host(config: Mapping[str, Any], host: str) -> dict[str, Any]:
    """Data goes where the control connection goes, unless another local address is asked for."""
    provider = str(config.get("device", "")).partition(";")[0]
    by_address = config.get("transport") in ("tcp", "udp") or (
        config.get("transport") == "ofi" and provider in ("tcp", "udp", "sockets", "net")
    )
    if config.get("address") or not by_address:
        return dict(config)
    return dict(config) | {"address": host}


def encode_channel(spec: ChannelSpec) -> dict[str, Any]:
    return {
        "config": server_fields(spec),
        "role": spec.role,
        "loop": dict(spec.loop),
        "options": dict(spec.options),
        "thread": spec.thread,
    }


def read_channels(values: Sequence[Any]) -> tuple[list[ServedChannel], list[InputError]]:
    """The channels that a client asks for, and everything that is wrong with them."""
    channels: list[ServedChannel] = []
    problems: list[InputError] = []
    if len(values) > MAX_CHANNELS:
        problem = f"{len(values)} of them, at most {MAX_CHANNELS} are possible"
        return [], [InputError("channels", problem, "ask for fewer")]
    for number, value in enumerate(values):
        where = f"channel {number}"
        wrong = _check_shape(value, where)
        if not wrong:
            channel, wrong = _read_channel(value, where)
            wrong += _check_sizes(channel) if not wrong else []
            channels.append(channel)
        problems += wrong
    if not values:
        problems.append(InputError("channels", "there are none", "ask for at least one"))
    return channels, problems + ([] if problems else _check_threads(channels))


def limit_problems(problems: Sequence[InputError]) -> list[InputError]:
    """As many as can be read, and how many more there are."""
    rest = problems[MAX_PROBLEMS:]
    count = [InputError("channels", f"{len(rest)} more do not fit")] if rest else []
    return [*problems[:MAX_PROBLEMS], *count]


def _check_shape(value: Any, where: str) -> list[InputError]:
    kinds = {"config": dict, "role": str, "loop": dict, "options": dict, "thread": int}
    if not isinstance(value, dict) or value.keys() != kinds.keys():
        return [InputError(where, f"does not have the fields {', '.join(kinds)}")]
    return [
        InputError(where, f"{name} is not {kind.__name__}")
        for name, kind in kinds.items()
        if type(value[name]) is not kind
    ]


def _read_channel(value: Mapping[str, Any], where: str) -> tuple[ServedChannel, list[InputError]]:
    problems: list[InputError] = []
    if value["role"] not in ROLES:
        problems.append(
            InputError(
                where, f"role {_format_value(value['role'])} is unknown", _list_choices(ROLES)
            )
        )
    channel = ServedChannel(
        where=where,
        config=_read_values(value["config"], CONFIG, where, problems),
        role=value["role"],
        loop=_read_values(value["loop"], LOOP, where, problems),
        options=_read_values(value["options"], OPTIONS, where, problems),
        thread=value["thread"],
    )
    transport = channel.config["transport"]
    if transport not in OVER_PEERS:
        problem = f"transport {_format_value(transport)} does not go between peers"
        problems.append(InputError(where, problem, _list_choices(OVER_PEERS)))
    return channel, problems


def _read_values(
    request: Mapping[str, Any], fields: Fields, where: str, problems: list[InputError]
) -> dict[str, Any]:
    for name in request.keys() - fields.keys():
        problems.append(
            InputError(where, f"unknown field {_format_value(name)}", _list_choices(tuple(fields)))
        )
    values = {}
    for name, (default, kind) in fields.items():
        values[name] = request.get(name, default)
        if wrong := _describe_kind(values[name], kind):
            problems.append(
                InputError(where, f"{name} {_format_value(values[name])} is not {wrong}")
            )
            values[name] = default
    return values


def _describe_kind(value: object, kind: Kind) -> str:
    """What the value should be, if it is not."""
    if isinstance(kind, range):
        inside = type(value) is int and value in kind
        return "" if inside else f"a whole number from {kind.start} to {kind.stop - 1}"
    if kind == _RATE:
        number = type(value) in (int, float) and math.isfinite(value) and value >= 0  # type: ignore[arg-type,operator]
        return "" if number else "a number of at least 0"
    if kind is bool:
        return "" if type(value) is bool else "true or false"
    return "" if type(value) is str and len(value) <= MAX_TEXT else "a short text"


def _check_sizes(channel: ServedChannel) -> list[InputError]:
    """Sizes and windows that the endpoint's slots cannot hold."""
    config, loop, options = channel.config, channel.loop, channel.options
    written = options["remote_slots"] * loop["bytes"]
    bounds = {
        "echo": [("receive_bytes", config["receive_bytes"], "send_bytes")],
        "write-echo": [
            ("bytes", loop["bytes"], "remote_bytes"),
            ("bytes", loop["bytes"], "send_bytes"),
        ],
        "sink": [("bytes", loop["bytes"], "receive_bytes")],
        "duplex": [
            ("bytes", loop["bytes"], "receive_bytes"),
            ("bytes", loop["bytes"], "send_bytes"),
            ("window", options["window"], "depth"),
        ],
        "window": [("bytes", loop["bytes"], "remote_bytes")],
        "transfer": [
            ("acknowledgement of bytes", ACKNOWLEDGEMENT_BYTES, "send_bytes"),
            ("remote_slots times bytes", written, "remote_bytes")
            if loop["op"] == "write-imm"
            else ("bytes", loop["bytes"], "receive_bytes"),
        ],
    }
    return [
        InputError(
            channel.where,
            f"{name} {value} exceeds {limit} {config[limit]} of the server's endpoint",
            f"give it a larger {limit}",
        )
        for name, value, limit in bounds[channel.role]
        if value > config[limit]
    ]


def _check_threads(channels: Sequence[ServedChannel]) -> list[InputError]:
    first: dict[int, ServedChannel] = {}
    problems = []
    for channel in channels:
        other = first.setdefault(channel.thread, channel)
        same = (channel.role, channel.loop, channel.options)
        if other is channel:
            continue
        if same != (other.role, other.loop, other.options):
            problem = f"differs from {other.where} of the same thread in role, loop or options"
            problems.append(InputError(channel.where, problem, "give it another thread"))
        elif channel.role in _ONE_ENDPOINT:
            problem = f"{channel.role} serves one channel per thread"
            problems.append(InputError(channel.where, problem, "give it another thread"))
    return problems


def endpoint_config(fields: Mapping[str, Any], *, server: bool) -> EndpointConfig:
    """The core's configuration; raises an error for an unknown or wrong field."""
    problems: list[InputError] = []
    values = _read_values(fields, CONFIG, "endpoint", problems)
    if problems:
        raise problems[0]
    config = EndpointConfig()
    for name, value in values.items():
        setattr(config, name, value)
    config.server = server
    return config


def build_loop_spec(**fields: Any) -> LoopSpec:
    """The core's loop with these fields; the others keep their defaults."""
    loop = LoopSpec()
    for name, value in fields.items():
        setattr(loop, name, value)
    return loop


def _list_choices(names: Sequence[str]) -> str:
    return f"one of {', '.join(names)}"


def _format_value(value: object) -> str:
    return ascii(value)[:60]


# ---- From settings to fields ------------------------------------------------------------------

# Receives posted ahead: enough for bursts, bounded where messages are large.
MIN_RECEIVES, RECEIVE_BYTES = 16, 2**28
# Completion means delivery, at a time of the device where it has a clock.
TIMED = {"delivery": True, "device_timestamps": True}


def endpoint_fields(settings: Settings, **overrides: Any) -> dict[str, Any]:
    """Fields of EndpointConfig that the settings determine; `overrides` add or replace."""
    route = settings.route
    fields: dict[str, Any] = {
        option.config: getattr(settings, field_name)
        for field_name, option in options_of(type(settings)).values()
        if option.config
    } | {
        "transport": route.transport,
        "device": route.device,
        "events": settings.wait == "block",
        "inline_bytes": max(0, settings.inline_bytes),
        "inline_by_device": settings.inline_bytes == BY_DEVICE,
        "contents": settings.validate and settings.memory != "host",
        "traffic_class": settings.traffic_class or settings.dscp << 2,
        "client": {"address": settings.address, "node": settings.numa},
    }
    if peer_fields := _peer_fields(settings):
        fields["server"] = peer_fields
    if route.transport == "delay":
        fields["delay"] = delay_fields(settings)
    return merge_fields(fields, overrides)


def _peer_fields(settings: Settings) -> dict[str, Any]:
    """What the peer opens otherwise than we do."""
    fields: dict[str, Any] = {}
    if settings.peer_device:
        fields["device"] = settings.peer_device
    if settings.peer_gid_index >= 0:
        fields["gid_index"] = settings.peer_gid_index
    if settings.peer_port > 0:
        fields["port"] = settings.peer_port
    return fields


def merge_fields(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`overrides` over `fields`, also within "client" and "server"."""
    sides = {
        side: {**fields.get(side, {}), **overrides.get(side, {})}
        for side in ("client", "server")
        if side in fields or side in overrides
    }
    return {**fields, **overrides, **sides}


def delay_fields(settings: Settings) -> dict[str, Any]:
    """Fields of DelayConfig: the settings delay_NAME set NAME."""
    names = [field_name for field_name, _ in options_of(Settings).values()]
    delay_names = [name for name in names if name.startswith("delay_")]
    values = {name.removeprefix("delay_"): getattr(settings, name) for name in delay_names}
    return values | {"seed": settings.seed}


def loop_fields(settings: Settings, **overrides: Any) -> dict[str, Any]:
    """Fields of LoopSpec that both sides' loops share."""
    return {
        "bytes": settings.size_bytes,
        "warmup": settings.warmup_messages,
        # The peer's owner may limit it, so loops that end on request are given it too.
        "duration_ns": settings.until()[1],
        "block": settings.wait == "block",
        "validate": settings.validate,
        "loss_timeout_ns": settings.loss_timeout_ns,
        "seed": settings.seed,
        "cpu": AUTO if settings.cpu == AUTO else ANYWHERE,
    } | overrides


def loop_cpu(settings: Settings, number: int = 0) -> int:
    """The processor of our number-th loop."""
    return client_cpu(settings.cpu, number, settings.route.transport, settings.route.device)


def loop_spec(settings: Settings, **overrides: Any) -> LoopSpec:
    """The client's loop; `overrides` are count, duration_ns, op and the like."""
    client_fields = {"cpu": loop_cpu(settings), "samples": settings.samples}
    return build_loop_spec(**{**loop_fields(settings), **client_fields, **overrides})


def count_receives(size_bytes: int, depth: int) -> int:
    """Receives posted ahead for a window of `depth` messages."""
    room = max(2, RECEIVE_BYTES // size_bytes)
    return min(max(MIN_RECEIVES, 2 * depth), room)


def echo_channel(
    settings: Settings, *, depth: int = 1, op: str = "send", thread: int = 0
) -> ChannelSpec:
    """A connection whose other side sends each message back."""
    size = settings.size_bytes
    config = endpoint_fields(
        settings,
        send_bytes=size,
        receive_bytes=size,
        depth=depth,
        receive_depth=count_receives(size, depth),
    )
    return ChannelSpec(config=config, role="echo", loop=loop_fields(settings, op=op), thread=thread)


def timed_loopback_fields(settings: Settings) -> dict[str, Any]:
    """Of an endpoint that is connected with itself, beside a timed one."""
    size = settings.size_bytes
    return endpoint_fields(
        settings,
        send_bytes=size,
        receive_bytes=size,
        depth=1,
        receive_depth=count_receives(size, 1),
        **TIMED,
    )


def write_channel(settings: Settings) -> ChannelSpec:
    """A connection whose sides write into each other's memory, strictly in order."""
    size = settings.size_bytes
    config = endpoint_fields(
        settings,
        send_bytes=size,
        receive_bytes=64,
        remote_bytes=size,
        depth=2,
        receive_depth=1,
        strict_ordering=True,
    )
    return ChannelSpec(config=config, role="write-echo", loop=loop_fields(settings, op="write"))


def sink_channel(settings: Settings, *, depth: int, **overrides: Any) -> ChannelSpec:
    """A connection whose other side only receives; `overrides` are of its config."""
    size = settings.size_bytes
    config = endpoint_fields(
        settings,
        send_bytes=size,
        receive_bytes=64,
        depth=depth,
        receive_depth=1,
        server={"depth": 1, "receive_depth": count_receives(size, depth)},
        **overrides,
    )
    return ChannelSpec(config=config, role="sink", loop=loop_fields(settings))
