"""Which processor a timed loop runs on.

A number pins the first loop there and the others on the next ones. `auto` takes cores of their own,
near the device, the first core last; a server on the same host takes them from the other end.
Entry points: `client_cpu`, `server_cpu`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from weft.errors import InputError
from weft.host import pick_cpus

ANYWHERE, AUTO = -1, -2


def client_cpu(cpu: int, number: int, transport: str, device: str) -> int:
    """The processor of our number-th loop."""
    if cpu == AUTO:
        return _order(number, transport, device)[number]
    return cpu + number if cpu >= 0 else ANYWHERE


def server_cpu(
    loop: Mapping[str, Any], config: Mapping[str, Any], number: int, same_host: bool
) -> int:
    """The processor of the server's number-th loop, as the client asked."""
    cpu: int = loop["cpu"]
    if cpu != AUTO:
        return cpu
    order = _order(number, config["transport"], config["device"])
    return order[-1 - number] if same_host else order[number]


def _order(number: int, transport: str, device: str) -> tuple[int, ...]:
    near = device if transport == "verbs" and device else None
    order = pick_cpus(len(os.sched_getaffinity(0)), near).cpus
    if number >= len(order):
        problem = f"{number + 1} loops, but {len(order)} CPUs"
        raise InputError("--cpu auto", problem, "use fewer threads, or leave --cpu out")
    return order
