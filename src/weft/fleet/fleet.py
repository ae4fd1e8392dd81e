"""What a fleet is: an executor for each host, and which hosts are lost.

An executor is Python's own (`concurrent.futures`): `submit(function, *args)` runs the function
in the host's one worker process, one call at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from weft.errors import WeftError


class HostLost(WeftError):
    """A host that took part is lost: `host: reason`."""

    def __init__(self, host: str, reason: str) -> None:
        self.host = host
        self.reason = reason
        super().__init__(f"{host}: {reason}")

    def __reduce__(self) -> tuple[type[HostLost], tuple[str, str]]:
        return HostLost, (self.host, self.reason)


def _none_lost() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The hosts of a plan.

    `addresses` are those by which hosts reach each other where the plan gives none;
    `coordinator` is the address by which they reach this process. `find_lost` returns the hosts
    whose workers are lost, each with the reason.
    """

    executors: Mapping[str, Executor]
    addresses: Mapping[str, str]
    coordinator: str
    find_lost: Callable[[], Mapping[str, str]] = _none_lost
