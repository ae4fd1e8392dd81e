"""What cannot be measured, refused before anything opens: the setting, the reason, the remedy.

Entry points: `check_settings` (settings alone), `check_available` (what this machine offers).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from weft._core import Availability
from weft.errors import InputError
from weft.measure.settings.options import Option, Settings, Windowed

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
