"""Bulk transfer as an application does it: WRITE_WITH_IMM, credits by explicit acknowledgement.

The sender keeps B messages outstanding; the receiver acknowledges each message by one of its own,
and what is acknowledged may be sent again. Every S-th message is signaled. Completions are awaited
by sleeping (wait-wakeup) or by polling (busy-polling). The figures are throughput, elapsed time and
processor time for a fixed number of bytes. Entry point: `transfer`. Units: b/s, s.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from weft._core import availability, transfer_send
from weft.errors import InputError
from weft.measure.measurement import Measurement, Test, measure
from weft.measure.observation import (
    Counted,
    Observation,
    cpu_quantities,
    message_quantities,
    sum_counts,
    throughput_quantities,
)
from weft.measure.peer.channel_spec import (
    ChannelSpec,
    count_receives,
    endpoint_fields,
    loop_fields,
    loop_spec,
)
from weft.measure.peer.client import Peer
from weft.measure.rig import Progress, Rig, done_share
from weft.measure.settings.by_test import TransferSettings
from weft.records import Quantity, Scalar

ACK_BYTES = 8
LEAST_ACKS = 16


def check(settings: TransferSettings) -> None:
    """What ends a transfer is its total."""
    for name, value in (("count", settings.count), ("duration", settings.duration_ns)):
        if value is not None:
            raise InputError(f"--{name}", "a transfer ends at its total", "use --total")
    if settings.one_buffer and settings.validate and settings.outstanding > 1:
        problem = "messages in one buffer overwrite each other"
        raise InputError("--one-buffer and --validate", problem, "leave one out")
    if settings.memory != "host" and settings.route.transport in ("verbs", "ofi"):
        problem = "acknowledgements are read from the host's memory"
        raise InputError("--memory", problem, "leave it out, or use weft bandwidth")
    if settings.total_bytes < settings.size_bytes:
        problem = f"{settings.total_bytes} B are less than one message of {settings.size_bytes} B"
        raise InputError("--total", problem, "raise it, or lower --size")
    if settings.size_bytes < ACK_BYTES:
        raise InputError("--size", f"{settings.size_bytes} B", f"use {ACK_BYTES} B or more")


def choose_op(settings: TransferSettings) -> str:
    """As asked for, else write-imm where the transport offers it."""
    route = settings.route
    offered = {
        op
        for a in availability(settings.route.transport)
        if a.transport == route.transport and a.available and route.has(a.device)
        for op in a.operations
    }
    return settings.op or ("write-imm" if "write-imm" in offered else "send")


def run(rig: Rig, settings: TransferSettings) -> Observation:
    """One transfer on one connection."""
    op = choose_op(settings)
    spec = loop_spec(settings, op=op, count=settings.messages, duration_ns=0)
    every = settings.warmup_messages + settings.messages
    with rig.connect([_channel(settings, op)]) as ends:
        loop = partial(transfer_send, ends.endpoints[0], spec, ends.stop, **_options(settings))
        (sent,) = rig.run([loop], done_share(ends.stop, every, 0))
        received = rig.finish(ends, [sent], None if sent.stopped else [every])
    observed = Observation(quantities=quantities(sent, received), settings={"op": op})
    if settings.validate and received:
        observed.quantities["corrupted"] = Scalar(sum_counts(received).corrupted, "")
    if not settings.op and op != "write-imm":
        observed.notes.append(f"{settings.route} has no write with immediate data: sends instead")
    return observed


def _options(settings: TransferSettings) -> dict[str, int]:
    slots = 1 if settings.one_buffer else settings.outstanding
    return {
        "outstanding": settings.outstanding,
        "signal_every": settings.signal_every,
        "remote_slots": slots,
    }


def _channel(settings: TransferSettings, op: str) -> ChannelSpec:
    size, options = settings.size_bytes, _options(settings)
    acks = max(LEAST_ACKS, 2 * settings.outstanding)
    window = size * options["remote_slots"] if op == "write-imm" else 0
    server: dict[str, Any] = {
        "depth": acks,
        "receive_depth": count_receives(size, settings.outstanding),
        "remote_bytes": window,
        "one_buffer": False,
    }
    config = endpoint_fields(
        settings,
        send_bytes=size,
        receive_bytes=ACK_BYTES,
        depth=settings.queue_depth,
        receive_depth=acks,
        one_buffer=settings.one_buffer,
        server=server,
    )
    if settings.route.transport == "delay":
        config["remote_bytes"] = window
    loop = loop_fields(settings, op=op)
    return ChannelSpec(config=config, role="transfer", loop=loop, options=options)


def quantities(sent: Counted, received: Sequence[Counted]) -> dict[str, Quantity]:
    """Throughput as it arrived and as the sender saw it acknowledged, and the costs."""
    ours, peer, carried = (
        sum_counts([sent]),
        sum_counts(received),
        sum_counts(received, beside=[sent]),
    )
    result = throughput_quantities("throughput", carried) | throughput_quantities(
        "sender.throughput", ours
    )
    result["elapsed"] = Scalar(ours.elapsed_ns / 1e9, "s")
    result |= message_quantities(ours) | cpu_quantities(ours) | cpu_quantities(peer, "peer.cpu")
    if peer.corrupted or peer.reordered:
        result["corrupted"] = Scalar(peer.corrupted, "")
        result["reordered"] = Scalar(peer.reordered, "")
    return result


UNRELIABLE = "a transfer must not lose messages"
TRANSFER = Test(
    name="transfer",
    settings=TransferSettings,
    run=run,
    check=check,
    op=choose_op,
    refused={
        "udp": (UNRELIABLE, "use --over tcp, verbs or ofi:PROVIDER"),
        "verbs:uc": (UNRELIABLE, "use --endpoint rc"),
        "verbs:ud": (UNRELIABLE, "use --endpoint rc"),
        "ofi:dgram": (UNRELIABLE, "use --endpoint rdm or msg"),
        "delay:ud": (UNRELIABLE, "use --endpoint rc"),
    },
)


def transfer(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure a bulk transfer: `transfer(peer, over="verbs", total="1G", outstanding=16)`."""
    return measure(TRANSFER, peer, settings, progress)
