"""A plan from start to end, seen from its coordinator: hosts, steps, records.

Every host plays its part (`part.py`) in its worker; steps follow each other here, with a barrier
before each. One record per step. Entry point: `conduct`. Units: ns, ps, bits per second.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from weft.fleet import Conductor, Fleet, HostLost, dask_fleet, local_fleet
from weft.fleet.member import Stopped
from weft.measure.part import Part, play
from weft.measure.plan import Host, Program, Step
from weft.measure.step_record import step_record
from weft.records import Record

JOIN_S = 60.0
READY_S = 60.0
END_S = 20.0
LOOK_S = 1.0

Progress = Callable[[float, str], None]


def conduct(
    program: Program, cluster: str | None = None, progress: Progress | None = None
) -> Iterator[Record]:
    """The record of each step as it ends; an interrupted step is the last, with what it has."""
    with _fleet(program, cluster) as fleet:
        hosts = [host.name for host in program.hosts]
        address = program.coordinator or fleet.coordinator
        with Conductor(hosts, address) as conductor:
            stage = Stage(conductor, fleet, _start(program, fleet, conductor))
            try:
                yield from _steps(program, fleet, stage, progress)
            finally:
                stage.close()


@contextmanager
def _fleet(program: Program, cluster: str | None) -> Iterator[Fleet]:
    wanted = {host.name: host.address for host in program.hosts}
    if cluster is None:
        with local_fleet(list(wanted)) as fleet:
            yield fleet
    else:
        with dask_fleet(cluster, wanted) as fleet:
            yield fleet


def _start(program: Program, fleet: Fleet, conductor: Conductor) -> dict[str, Future[None]]:
    token = secrets.token_hex(32)
    targets = {flow.target for step in program.steps for flow in step.flows}
    futures = {}
    for host in program.hosts:
        part = Part(
            host=host.name,
            address=_address(host, fleet),
            token=token,
            serves=host.name in targets,
            steps=tuple(_own(step, host.name) for step in program.steps),
        )
        invitation = conductor.invitation(host.name)
        futures[host.name] = fleet.executors[host.name].submit(play, invitation, part)
    return futures


def _address(host: Host, fleet: Fleet) -> str:
    return host.address or fleet.addresses[host.name]


def _own(step: Step, host: str) -> Step:
    return replace(step, flows=tuple(f for f in step.flows if f.source == host))


def _steps(
    program: Program, fleet: Fleet, stage: Stage, progress: Progress | None
) -> Iterator[Record]:
    serving = stage.gather("serving", JOIN_S)
    addresses = {host.name: _address(host, fleet) for host in program.hosts}
    stage.conductor.tell("servers", {
        name: f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        for name, address in addresses.items()
        for port in [serving[name]["port"]]
    })  # fmt: skip
    for number, step in enumerate(program.steps):
        if progress:
            progress(number / len(program.steps), f"step {number + 1} of {len(program.steps)}")
        seen, interrupted = stage.run(number, step)
        yield step_record(program, step, seen, addresses, interrupted)
        if interrupted:
            return


@dataclass(slots=True)
class Stage:
    """The hosts at work, and what can go wrong with them."""

    conductor: Conductor
    fleet: Fleet
    playing: Mapping[str, Future[None]]
    _looked_s: float = 0.0

    def run(self, number: int, step: Step) -> tuple[dict[str, Any], bool]:
        """What every host saw in a step, and whether Ctrl-C ended it."""
        self.conductor.tell("step", number)
        self.gather(f"ready {number}", READY_S)
        self.conductor.tell("go")
        lasts_s = (step.warmup_ns + step.duration_ns) / 1e9
        try:
            return self.gather(f"done {number}", lasts_s + END_S), False
        except KeyboardInterrupt:
            self.conductor.tell("stop")
            return self.gather(f"done {number}", END_S), True

    def gather(self, kind: str, timeout_s: float) -> dict[str, Any]:
        """What all report; a host that left because of an error is told by that error."""
        try:
            return self.conductor.gather(kind, timeout_s, self._check)
        except HostLost as lost:
            wait([self.playing[lost.host]], timeout=LOOK_S)
            self._check()
            raise

    def _check(self) -> None:
        """Raises what a host's part raised, and tells hosts that were gone before they joined.

        Once a host has joined, its own connection tells.
        """
        for host, future in self.playing.items():
            if future.done():
                _raise_end(host, future)
        if time.monotonic() - self._looked_s > LOOK_S and not self.conductor.all_joined:
            self._looked_s = time.monotonic()
            for host, why in self.fleet.lost().items():
                raise HostLost(host, why)

    def close(self) -> None:
        """Parts end by themselves once told, or when the conductor is gone."""
        self.conductor.tell("end")
        wait(self.playing.values(), timeout=2.0)


def _raise_end(host: str, future: Future[None]) -> None:
    """A part that has ended before its plan: with its own error, or lost."""
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
