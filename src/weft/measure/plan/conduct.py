"""A plan from start to end, seen from its coordinator: hosts, steps, records.

Every host runs its part (`host_part.py`) in its worker; steps follow each other here, with a
barrier before each. One record per step. Entry point: `conduct`. Units: ns, ps, bits per second.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from weft.fleet import Coordinator, Fleet, HostCalls, dask_fleet, local_fleet
from weft.measure.plan.host_part import Part, run_part
from weft.measure.plan.plan import Host, Program, Step
from weft.measure.plan.step_record import build_step_record
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
    with _open_fleet(program, cluster) as fleet:
        hosts = [host.name for host in program.hosts]
        address = program.coordinator or fleet.coordinator
        with Coordinator(hosts, address) as coordinator:
            calls = HostCalls(coordinator, fleet, _start(program, fleet, coordinator))
            try:
                yield from _run_steps(program, fleet, calls, progress)
            finally:
                calls.close(CLOSE_S)


@contextmanager
def _open_fleet(program: Program, cluster: str | None) -> Iterator[Fleet]:
    wanted = {host.name: host.address for host in program.hosts}
    if cluster is None:
        with local_fleet(list(wanted)) as fleet:
            yield fleet
    else:
        with dask_fleet(cluster, wanted) as fleet:
            yield fleet


def _start(program: Program, fleet: Fleet, coordinator: Coordinator) -> dict[str, Future[None]]:
    token = secrets.token_hex(32)
    targets = {flow.target for step in program.steps for flow in step.flows}
    futures = {}
    for host in program.hosts:
        part = Part(
            host=host.name,
            address=_find_address(host, fleet),
            token=token,
            serves=host.name in targets,
            steps=tuple(_select_flows(step, host.name) for step in program.steps),
        )
        invitation = coordinator.invitation(host.name)
        futures[host.name] = fleet.executors[host.name].submit(run_part, invitation, part)
    return futures


def _find_address(host: Host, fleet: Fleet) -> str:
    return host.address or fleet.addresses[host.name]


def _select_flows(step: Step, host: str) -> Step:
    return replace(step, flows=tuple(f for f in step.flows if f.source == host))


def _run_steps(
    program: Program, fleet: Fleet, calls: HostCalls, progress: Progress | None
) -> Iterator[Record]:
    serving = calls.gather("serving", JOIN_S)
    addresses = {host.name: _find_address(host, fleet) for host in program.hosts}
    calls.coordinator.announce(
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
        reports, interrupted = _run_step(calls, number, step)
        yield build_step_record(program, step, reports, addresses, interrupted)
        if interrupted:
            return


def _run_step(calls: HostCalls, number: int, step: Step) -> tuple[dict[str, Any], bool]:
    """What every host reported of a step, and whether Ctrl-C ended it."""
    calls.coordinator.announce("step", number)
    calls.gather(f"ready {number}", READY_S)
    calls.coordinator.announce("go")
    length_s = (step.warmup_ns + step.duration_ns) / 1e9
    try:
        return calls.gather(f"done {number}", length_s + END_S), False
    except KeyboardInterrupt:
        calls.coordinator.announce("stop")
        return calls.gather(f"done {number}", END_S), True
