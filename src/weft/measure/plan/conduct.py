"""A plan from start to end, seen from its coordinator: hosts, steps, records.

Every host plays its part (`part.py`) in its worker; steps follow each other here, with a barrier
before each. One record per step. Entry point: `conduct`. Units: ns, ps, bits per second.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from weft.fleet import Conductor, Fleet, Stage, dask_fleet, local_fleet
from weft.measure.plan.host_part import Part, play
from weft.measure.plan.plan import Host, Program, Step
from weft.measure.plan.step_record import step_record
from weft.records import Record

JOIN_S = 60.0
READY_S = 60.0
END_S = 20.0
CLOSE_S = 2.0

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
                stage.close(CLOSE_S)


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
    stage.conductor.tell(
        "servers",
        {
            name: f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            for name, address in addresses.items()
            for port in [serving[name]["port"]]
        },
    )
    for number, step in enumerate(program.steps):
        if progress:
            progress(number / len(program.steps), f"step {number + 1} of {len(program.steps)}")
        seen, interrupted = _run(stage, number, step)
        yield step_record(program, step, seen, addresses, interrupted)
        if interrupted:
            return


def _run(stage: Stage, number: int, step: Step) -> tuple[dict[str, Any], bool]:
    """What every host saw in a step, and whether Ctrl-C ended it."""
    stage.conductor.tell("step", number)
    stage.gather(f"ready {number}", READY_S)
    stage.conductor.tell("go")
    lasts_s = (step.warmup_ns + step.duration_ns) / 1e9
    try:
        return stage.gather(f"done {number}", lasts_s + END_S), False
    except KeyboardInterrupt:
        stage.conductor.tell("stop")
        return stage.gather(f"done {number}", END_S), True
