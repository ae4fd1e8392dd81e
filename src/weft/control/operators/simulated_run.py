"""What applications get on the simulated fabric, with the tables that a state has for its ports.

All send as fast as they may, all the time: what comes out is how the tables share the links, not
how the applications would run. Simulations run in a process of their own (this module, run as a
program), which takes nobody's time and ends with whoever waits for it.
Entry points: `run_of`, `simulated`. Units: bits per second.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import pickle
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from subprocess import PIPE

from weft.control.operators.trial import Flow, Scheduler, run_trial
from weft.control.state.state import Connection, State
from weft.errors import InputError, WeftError
from weft.fabric import Fabric
from weft.switches import PortName, Tables

MOST_FLOWS = 500
MOST_HOSTS = 1000
PR_SET_PDEATHSIG = 1
_REFUSED = 2  # exit status; standard error says why

Rates = Mapping[str, float]  # of each registration


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Flows on a fabric whose ports have these tables."""

    fabric: Fabric
    tables: Mapping[PortName, Tables]
    flows: tuple[Flow, ...]
    scheduler: Scheduler


def build_run(state: State) -> Run | None:
    """Of every connection over managed ports; None where there is none."""
    if state.paths is None:
        return None
    flows = [
        _flow(state, own)
        for own in state.connections.values()
        if own.id not in state.missing_paths and state.ports_of(own)
    ]
    hosts = len(state.paths.fabric.hosts)
    if len(flows) > MOST_FLOWS or hosts > MOST_HOSTS:
        problem = f"{len(flows)} connections between {hosts} hosts"
        remedy = f"at most {MOST_FLOWS} and {MOST_HOSTS}: plan without it"
        raise InputError("simulation", problem, remedy)
    if not flows:
        return None
    htb = any(ability.scheduler == "htb" for ability in state.abilities.values())
    return Run(
        fabric=state.paths.fabric,
        tables=dict(state.target),
        flows=tuple(flows),
        scheduler="htb" if htb else "vlarb",
    )


def _flow(state: State, own: Connection) -> Flow:
    assert state.paths is not None, "a connection with ports has a path"
    source, target = (
        state.paths.fabric.nodes[state.paths.host(name)].name
        for name in (own.source, own.destination)
    )
    level = state.level_of(state.applications[own.application].name)
    return Flow(application=own.application, source=source, target=target, level=level)


async def simulate_run(*runs: Run | None) -> list[Rates]:
    """What each registration gets in each run; cancelled, the process ends."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", __name__, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        told, errors = await child.communicate(pickle.dumps(runs))
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode == _REFUSED:
        raise InputError("simulation", errors.decode(errors="replace").strip())
    if child.returncode:
        raise InputError("simulation", f"its process ended with {child.returncode}", "plan without")
    found: list[Rates] = json.loads(told)
    return found


def main() -> int:
    """Runs come pickled on standard input, from the controller that started this process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    runs: tuple[Run | None, ...] = pickle.load(sys.stdin.buffer)
    try:
        told = json.dumps([_rates(run) for run in runs])
    except WeftError as error:
        print(error, file=sys.stderr)
        return _REFUSED
    sys.stdout.write(told)
    return 0


def _rates(run: Run | None) -> Rates:
    if run is None:
        return {}
    found = run_trial(run.fabric, run.tables, run.flows, scheduler=run.scheduler)
    return found.by_application_bps


if __name__ == "__main__":
    raise SystemExit(main())
