"""The controller: how soon ports have the tables of a registration, and how many events it takes.

Times from a registration to its ports' tables read back are taken on simulated switches of the
papers' fabric, on a Linux testbed and on ibsim with OpenSM; everything else on the first, so that
what is timed is the controller: gRPC, state, disk, comparison with what is read back. Events come
from 8 processes on streams, while 1,000 applications with 10^5 connections are there. Times are
wall times, as clients see them. `compare_events` measures events of two checkouts in turns, with
the controller's processor time. Entry points: `control`, `compare_events`.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from bench.controller import (
    APPS,
    HOSTS,
    SEED,
    Controller,
    Rig,
    call_controller,
    open_ibsim,
    open_linux,
    open_simulated,
    prepare,
    serve_controller,
    wait_programmed,
)
from bench.figure import Figure
from weft.control.service import weft_pb2 as pb
from weft.records.record_text import format_table

CLIENTS = 8
EACH = 500  # connections that a client has open
APPLICATIONS, CONNECTIONS = 1000, 100_000
FABRIC_PORTS = 9288
AT_A_TIME = 8  # registrations of the latency's measurement
HALF = "control"


def control(quick: bool) -> list[Figure]:
    """Run and print; `quick`: a tenth of everything."""
    part = 10 if quick else 1
    with _folder() as folder:
        figures = _measure_whole_fabric(folder)
    with _folder() as folder:
        figures += _measure_under_load(folder, part)
    figures += _measure_real_switches(100.0, "ibsim", 300 // part)
    figures += _measure_real_switches(50.0, "linux", 300 // part)
    rows = [
        (f.name, f"{f.ours:.4g}", f.unit, "-" if f.goal is None else f"{f.goal:g}") for f in figures
    ]
    print(format_table(("controller", "ours", "unit", "goal"), rows))
    return figures


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        yield Path(name)


def _figure(name: str, unit: str, ours: float, goal: float | None, n: int = 1) -> Figure:
    return Figure(
        name=name, unit=unit, ours=ours, peer=None, theirs=None, goal=goal, n=n, half=HALF
    )


# ---- The whole fabric -------------------------------------------------------------------------


def _measure_whole_fabric(folder: Path) -> list[Figure]:
    """From when the controller listens, discovery included: all written, then all checked."""
    rig = open_simulated(take_over=True)
    took = []
    for _ in range(2):
        with serve_controller(folder, rig) as controller:
            began = time.monotonic()
            status = wait_programmed(controller.channel, FABRIC_PORTS)
            took.append(time.monotonic() - began)
            assert status.drifts == 0
    return [
        _figure(f"all {FABRIC_PORTS} ports programmed", "s", took[0], 5.0),
        _figure(f"all {FABRIC_PORTS} ports reconciled, no change", "s", took[1], 3.0),
    ]


# ---- Under load -------------------------------------------------------------------------------


def _measure_under_load(folder: Path, part: int) -> list[Figure]:
    rig = open_simulated(take_over=False)
    with serve_controller(folder, rig) as controller:
        channel = controller.channel
        alone = _measure_latency(channel, rig, 300 // part, "alone", 50.0)
        _fill(channel, APPLICATIONS // part, CONNECTIONS // APPLICATIONS)
        status = wait_programmed(channel)
        load = f"{status.applications} applications, {status.connections} connections"
        memory = _figure(f"memory, {load}", "MiB", _read_resident_mib(controller.pid), None)
        return [
            *alone,
            memory,
            _figure(
                f"connection events, {CLIENTS} clients, {load}",
                "per s",
                _send_events(controller.address, 20.0 / part).per_s,
                5000.0,
            ),
            *_measure_latency(channel, rig, 300 // part, load, 50.0),
        ]


def _fill(channel: grpc.Channel, applications: int, each: int) -> None:
    rng = random.Random(SEED)
    for n in range(applications):
        proposal = pb.Proposal()
        pairs = [rng.sample(range(HOSTS), 2) for _ in range(each)]
        proposal.register.add(
            application=f"app{n % APPS}",
            connections=[pb.Pair(source=f"h{a}", destination=f"h{b}") for a, b in pairs],
        )
        key = pb.Key(client="fill", sequence=n + 1)
        call_controller(channel, "Apply", pb.ApplyRequest(key=key, proposal=proposal))


@dataclass(frozen=True, slots=True)
class _Events:
    """Acknowledged events of all clients."""

    count: int
    per_s: float


def _send_events(
    address: str,
    seconds: float,
    python: str = sys.executable,
    directory: Path | None = None,
    first: int = 0,
) -> _Events:
    """From clients with the numbers from `first` on: a controller knows those it has seen."""
    command = [python, "-m", "bench.control_client", address]
    clients = [
        subprocess.Popen(
            [*command, str(n), str(seconds), str(HOSTS), str(EACH)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=directory,
        )
        for n in range(first, first + CLIENTS)
    ]
    counts, rates = [], []
    for client in clients:
        output, _ = client.communicate()
        assert client.returncode == 0
        done, took = output.split()
        counts.append(int(done))
        rates.append(int(done) / float(took))
    return _Events(sum(counts), sum(rates))


def _read_resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


# ---- Two checkouts ----------------------------------------------------------------------------


def compare_events(other: Path, turns: int) -> None:
    """Prints events per second, and the controller's processor time for each, turn by turn.

    Both checkouts are built (`make build`). Both controllers run all the while, each with 200
    applications of 100 connections; clients send events to one of them at a time.
    """
    checkouts = (other, Path(__file__).parent.parent)
    rows: list[tuple[str, ...]] = []
    with ExitStack() as stack:
        serving = [(c, stack.enter_context(_serve_checkout(c))) for c in checkouts]
        for turn in range(turns):
            for checkout, controller in serving if turn % 2 == 0 else serving[::-1]:
                per_s, cpu_us = _measure_checkout(checkout, controller, turn * CLIENTS)
                rows.append((str(turn + 1), str(checkout), f"{per_s:.0f}", f"{cpu_us:.1f}"))
                print(*rows[-1], flush=True)
    for checkout in checkouts:
        listed = [row for row in rows if row[1] == str(checkout)]
        medians = [statistics.median(float(row[n]) for row in listed) for n in (2, 3)]
        rows.append(("median", str(checkout), f"{medians[0]:.0f}", f"{medians[1]:.1f}"))
    print(format_table(("turn", "checkout", "events/s", "processor time/event, us"), rows))


def _find_python(checkout: Path) -> str:
    return str(checkout / ".venv" / "bin" / "python")


@contextmanager
def _serve_checkout(checkout: Path) -> Iterator[Controller]:
    python = _find_python(checkout)
    with tempfile.TemporaryDirectory() as name:
        script = "import bench.controller, pathlib, sys; bench.controller.prepare(pathlib.Path("
        subprocess.run([python, "-c", f"{script}sys.argv[1]))", name], cwd=checkout, check=True)
        rig = open_simulated(take_over=False)
        with serve_controller(Path(name), rig, python) as controller:
            _fill(controller.channel, APPLICATIONS // 5, CONNECTIONS // APPLICATIONS)
            wait_programmed(controller.channel)
            yield controller


def _measure_checkout(checkout: Path, controller: Controller, first: int) -> tuple[float, float]:
    """Events per second, and microseconds of the controller's processors per event."""
    before_s = _read_cpu_s(controller.pid)
    events = _send_events(controller.address, 10.0, _find_python(checkout), checkout, first)
    used_s = _read_cpu_s(controller.pid) - before_s
    return events.per_s, 1e6 * used_s / events.count


def _read_cpu_s(pid: int) -> float:
    """Processor time of a process since it began, in the kernel and outside."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- From a registration to its tables --------------------------------------------------------


def _measure_real_switches(goal_ms: float, name: str, count: int) -> list[Figure]:
    """On real switches; nothing where they cannot be opened."""
    with _folder() as folder:
        parts = open_linux() if name == "linux" else open_ibsim(folder / "subnet")
        with parts as rig:
            if isinstance(rig, str):
                print(f"{name}: {rig}")
                return []
            with serve_controller(folder, rig) as controller:
                return _measure_latency(controller.channel, rig, count, name, goal_ms)


def _measure_latency(
    channel: grpc.Channel, rig: Rig, count: int, where: str, goal_ms: float
) -> list[Figure]:
    """An application with one connection, until the tables of its path's ports were read back."""
    rng, times = random.Random(SEED), list[float]()
    registered: list[str] = []
    wait_programmed(channel)
    for n in range(count):
        proposal = pb.Proposal(deregister=registered[:1] if len(registered) >= AT_A_TIME else [])
        del registered[: len(proposal.deregister)]
        _apply(channel, where, 2 * n + 1, proposal)
        source, destination = rng.sample(rig.hosts, 2)
        pair = pb.Pair(source=source, destination=destination)
        proposal = pb.Proposal()
        proposal.register.add(application=f"app{n % APPS}", connections=[pair])
        began = time.monotonic()
        reply = _apply(channel, where, 2 * n + 2, proposal)
        times.append(1e3 * (time.monotonic() - began))
        registered += reply.ids
    _apply(channel, where, 2 * count + 1, pb.Proposal(deregister=registered))
    times.sort()
    p50, p99 = statistics.median(times), times[int(0.99 * len(times))]
    return [
        _figure(f"register to read back, {where}, {name}", "ms", value, goal, count)
        for name, value, goal in (("p50", p50, None), ("p99", p99, goal_ms))
    ]


def _apply(
    channel: grpc.Channel, where: str, sequence: int, proposal: pb.Proposal
) -> pb.ApplyReply:
    client = "".join(c for c in where if c.isalnum())[:40]
    key = pb.Key(client=client, sequence=sequence)
    reply: pb.ApplyReply = call_controller(
        channel, "Apply", pb.ApplyRequest(key=key, proposal=proposal, wait_s=10)
    )
    assert not reply.problems, reply.problems[0]
    return reply
