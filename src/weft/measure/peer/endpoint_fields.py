"""From settings to endpoints and loops: the fields that each side opens and runs with.

Entry points: `channel`, `loop_spec`. Units: bytes, ns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft._core import LoopSpec
from weft.measure.peer.channel_spec import ChannelSpec
from weft.measure.settings.cpu_placement import ANYWHERE, AUTO, client_cpu
from weft.measure.settings.options import Settings

# Receives posted ahead: enough for bursts, bounded where messages are large.
LEAST_RECEIVES, RECEIVE_BYTES = 16, 2**28


def endpoint_fields(settings: Settings, **more: Any) -> dict[str, Any]:
    """Fields of EndpointConfig that the settings fix; `more` adds or overrides."""
    route = settings.route
    fields: dict[str, Any] = {
        "transport": route.transport,
        "device": route.device,
        "endpoint": settings.endpoint,
        "events": settings.wait == "block",
        "inline_bytes": settings.inline_bytes,
        "offset": settings.offset_bytes,
        "pages": settings.pages,
        "port": settings.port,
        "gid_index": settings.gid_index,
        "path_mtu": settings.path_mtu_bytes,
        "service_level": settings.service_level,
        "traffic_class": settings.traffic_class or settings.dscp << 2,
        "priority": settings.priority,
        "congestion": settings.congestion,
        "nagle": settings.nagle,
        "busy_poll_us": settings.busy_poll_us,
        "client": {"address": settings.address, "node": settings.numa},
    }
    if settings.peer_device:
        fields["server"] = {"device": settings.peer_device}
    if route.transport == "delay":
        fields["delay"] = delay_fields(settings)
    return merged(fields, more)


def merged(fields: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` over `fields`, also within "client" and "server"."""
    both = {
        side: {**fields.get(side, {}), **more.get(side, {})}
        for side in ("client", "server")
        if side in fields or side in more
    }
    return {**fields, **more, **both}


def delay_fields(settings: Settings) -> dict[str, Any]:
    """Fields of DelayConfig."""
    return {
        "wire": settings.delay_wire,
        "loopback": settings.delay_loopback,
        "host_post": settings.delay_host_post,
        "host_complete": settings.delay_host_complete,
        "remote_host": settings.delay_remote_host,
        "remote_memory": settings.delay_remote_memory,
        "adapter_ns": settings.delay_adapter_ns,
        "receive_ns": settings.delay_receive_ns,
        "rate_gbps": settings.delay_rate_gbps,
        "loss": settings.delay_loss,
        "stall_every_ns": settings.delay_stall_every_ns,
        "stall_ns": settings.delay_stall_ns,
        "seed": settings.seed,
    }


def loop_fields(settings: Settings, **more: Any) -> dict[str, Any]:
    """Fields of LoopSpec that both sides' loops share."""
    return {
        "bytes": settings.size_bytes,
        "warmup": settings.warmup_messages,
        # The peer's owner may bound it, so it is told even to loops that end when told to.
        "duration_ns": settings.until()[1],
        "block": settings.wait == "block",
        "validate": settings.validate,
        "loss_timeout_ns": settings.loss_timeout_ns,
        "seed": settings.seed,
        "cpu": AUTO if settings.cpu == AUTO else ANYWHERE,
    } | more


def loop_cpu(settings: Settings, number: int = 0) -> int:
    """The processor of our number-th loop."""
    return client_cpu(settings.cpu, number, settings.route.transport, settings.route.device)


def loop_spec(settings: Settings, **more: Any) -> LoopSpec:
    """The client's loop; `more` has count, duration_ns, op and what else differs."""
    spec = LoopSpec()
    ours = {"cpu": loop_cpu(settings), "samples": settings.samples}
    for name, value in {**loop_fields(settings), **ours, **more}.items():
        setattr(spec, name, value)
    return spec


def receives(size_bytes: int, depth: int) -> int:
    """Receives posted ahead for a window of `depth` messages."""
    room = max(2, RECEIVE_BYTES // size_bytes)
    return min(max(LEAST_RECEIVES, 2 * depth), room)


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
        receive_depth=receives(size, depth),
    )
    return ChannelSpec(config=config, role="echo", loop=loop_fields(settings, op=op), thread=thread)


def sink_channel(settings: Settings, *, depth: int, **more: Any) -> ChannelSpec:
    """A connection whose other side takes what comes and sends nothing; `more` of its config."""
    size = settings.size_bytes
    config = endpoint_fields(
        settings,
        send_bytes=size,
        receive_bytes=64,
        depth=depth,
        receive_depth=1,
        server={"depth": 1, "receive_depth": receives(size, depth)},
        **more,
    )
    return ChannelSpec(config=config, role="sink", loop=loop_fields(settings))
