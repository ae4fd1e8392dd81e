"""Hosts at work on calls that last, and what can go wrong with them.

A host's call joins the conductor; what it raises, and that it is lost, comes out of `gather`.
Entry point: `Stage`. Units: seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from weft.fleet.conductor import Conductor
from weft.fleet.fleet import Fleet, HostLost
from weft.fleet.member import Stopped

LOOK_S = 1.0


@dataclass(slots=True)
class Stage:
    """The conductor, and the call that runs on each host."""

    conductor: Conductor
    fleet: Fleet
    playing: Mapping[str, Future[None]]
    _looked_s: float = 0.0

    def gather(self, kind: str, timeout_s: float) -> dict[str, Any]:
        """What all report; a host that left because of an error is told by that error."""
        try:
            return self.conductor.gather(kind, timeout_s, self._check)
        except HostLost as lost:
            wait([self.playing[lost.host]], timeout=LOOK_S)
            self._check()
            raise

    def _check(self) -> None:
        """Raises what a host's call raised, and tells hosts that were gone before they joined.

        Once a host has joined, its own connection tells.
        """
        for host, future in self.playing.items():
            if future.done():
                _raise_end(host, future)
        if time.monotonic() - self._looked_s > LOOK_S and not self.conductor.all_joined:
            self._looked_s = time.monotonic()
            for host, why in self.fleet.lost().items():
                raise HostLost(host, why)

    def close(self, wait_s: float) -> list[str]:
        """Calls end once told, or when the conductor is gone; the hosts whose have not by then.

        Hosts that are lost already are not waited for.
        """
        lost = self.conductor.gone
        there = {host: call for host, call in self.playing.items() if host not in lost}
        self.conductor.tell("end")
        wait(there.values(), timeout=wait_s)
        return [host for host, call in there.items() if not call.done()]


def _raise_end(host: str, future: Future[None]) -> None:
    """A call that has ended too early: with its own error, or lost."""
    if future.cancelled():
        raise HostLost(host, "its worker gave the work up")
    error = future.exception()
    if error is None:
        return  # it has just been stopped, or has lost us: its connection tells
    if isinstance(error, BrokenProcessPool):
        raise HostLost(host, "its process has died")
    if isinstance(error, Stopped | OSError):
        raise HostLost(host, f"it does not reach the coordinator ({error})")
    raise error
