"""From settings to endpoints and loops: the fields that each side opens and runs with.

Entry points: `echo_channel`, `sink_channel`, `loop_spec`. Units: bytes, ns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft._core import LoopSpec
from weft.measure.peer.channel_spec import ChannelSpec, build_loop_spec
from weft.measure.settings.options import BY_DEVICE, Settings, options_of
from weft.measure.settings.values import ANYWHERE, AUTO, client_cpu

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
