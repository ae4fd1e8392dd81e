"""What this machine offers to a peer, and whether channels fit it.

Entry points: `facts`, `described`, `not_available`.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft import __version__, _core
from weft.errors import InputError
from weft.measure.peer.channel import Served

# Every Linux has them: no library to load before saying so.
_ALWAYS = frozenset({"tcp", "udp"})


def facts() -> dict[str, str | int | float]:
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


def described(found: _core.Availability) -> dict[str, Any]:
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
    return {name: getattr(found, name) for name in names}


def not_available(channels: Sequence[Served]) -> list[InputError]:
    """Transports, devices and endpoint kinds that are asked for and not here."""
    asked = {
        (c.config["transport"], c.config["device"], c.config["endpoint"]): c.where
        for c in reversed(channels)
        if c.config["transport"] not in _ALWAYS
    }
    if not asked:
        return []
    here = _core.availability()
    problems = [_missing(where, *what, here) for what, where in asked.items()]
    return [problem for problem in problems if problem is not None]


def _missing(
    where: str, transport: str, device: str, endpoint: str, here: Sequence[_core.Availability]
) -> InputError | None:
    """Why this cannot be opened, if no entry offers it."""
    fitting = [a for a in here if a.transport == transport and device in ("", a.device)]
    name = f"{where}: {transport}" + (f":{device}" if device else "")
    if not fitting:
        devices = sorted({a.device for a in here if a.transport == transport and a.available})
        known = f"here are {', '.join(devices)}" if devices else "see `weft doctor`"
        return InputError(name, "not available", known)
    usable = [a for a in fitting if a.available]
    if not usable:
        return InputError(name, f"not available, because {fitting[0].reason}", fitting[0].remedy)
    kinds = {kind for a in usable for kind in a.endpoints}
    if endpoint and kinds and endpoint not in kinds:
        return InputError(name, f"no endpoint {endpoint!r}", f"use {', '.join(sorted(kinds))}")
    return None
