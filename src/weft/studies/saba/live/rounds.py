"""A round for real: the jobs of a set-up on a testbed, its ports watched and shared by a way.

Jobs are those of `weft job` (a process per instance, DSCP by its service level) or programs (a
marked control group each). While they run, the bytes of every queue are sampled; SRPT reorders
priorities by them. Beside them a process measures how late timers fire: a machine that is too busy
shows there. Entry points: `open_job_stage`, `open_program_stage`, `run_round`, `open_lateness`.
Units: s, bits per second, bytes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import numpy as np

from weft.corun.rounds import application_dscp
from weft.corun.run_rounds import Job as Program
from weft.corun.run_rounds import TestbedRunner, open_testbed_runner
from weft.errors import InputError
from weft.host.machine.processes import end_with_parent
from weft.host.net.caps import ChangedEnds, change_ends
from weft.host.net.htb import change_queues, open_counters, set_queues
from weft.host.net.marking import open_marked_group
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.host.testbed.wiring import Wiring
from weft.jobs import Job
from weft.measure.run_jobs import Site, open_testbed_site, run_jobs
from weft.records import Distribution, Scalar
from weft.studies.saba.live.cells import SRPT, build_live_queues, order_by_bytes_left

SAMPLE_S = 0.2
TICK_S, SPARE_S = 0.01, 0.005
CALM_S = 1.0
CLIENT_HOST = "h1"
POLL_S, SERVICE_END_S = 0.05, 30.0
PRECEDENCE = -10  # as of nice

Tick = Callable[[], None]


class Stage(Protocol):
    """Where jobs run."""

    ends: ChangedEnds

    def run(self, limit_s: float, tick: Tick) -> list[float]:
        """Runs all jobs; the completion of each, the limit for those that did not end."""


@dataclass(slots=True, kw_only=True)
class JobStage:
    """Jobs of `weft job`. With `duration_s` they loop, and the mean loop is the completion."""

    site: Site
    ends: ChangedEnds
    jobs: Sequence[Job] = ()
    duration_s: float | None = None

    def run(self, limit_s: float, tick: Tick) -> list[float]:
        record = run_jobs(
            self.jobs,
            self.site,
            seed=1,
            duration_s=self.duration_s,
            limit_s=limit_s,
            progress=lambda _: tick(),
        )
        if any("interrupted" in note for note in record.notes):
            raise KeyboardInterrupt
        completions = []
        for job in self.jobs:
            loop = record.quantities.get(f"{job.name}.loop")
            whole = record.quantities.get(f"{job.name}.completion")
            if isinstance(loop, Distribution) and self.duration_s is not None:
                completions.append(loop.histogram.mean / 1e12)
            elif isinstance(whole, Scalar):
                completions.append(whole.value / 1e6)
            else:
                completions.append(self.duration_s or limit_s)
        return completions


@contextmanager
def open_job_stage(testbed: str) -> Iterator[JobStage]:
    bed = persistent.find_testbed(testbed)
    with change_ends(bed.all_ends()) as ends:
        yield JobStage(site=open_testbed_site(testbed), ends=ends)


@dataclass(slots=True, kw_only=True)
class ProgramStage:
    """Programs, each started after its delay; `numbers` of them run."""

    runner: TestbedRunner
    ends: ChangedEnds
    delays_s: Mapping[int, float] = field(default_factory=dict)

    def run(self, limit_s: float, tick: Tick) -> list[float]:
        began_s = time.monotonic()
        waiting = sorted((delay_s, n) for n, delay_s in self.delays_s.items())
        took: dict[int, float] = {}
        try:
            while len(took) < len(self.delays_s) and time.monotonic() < began_s + limit_s:
                while waiting and time.monotonic() >= began_s + waiting[0][0]:
                    number = waiting.pop(0)[1]
                    self.runner.start(number)
                    for pid in self.runner.groups[number].pids()[:1]:
                        take_precedence(pid)
                until_s = began_s + waiting[0][0] if waiting else inf
                wait_s = min(SAMPLE_S, max(0.0, until_s - time.monotonic()))
                if (ended := self.runner.next_end(wait_s)) is not None:
                    took[ended[0]] = ended[1]
                tick()
        finally:
            self.runner.stop()
        return [took.get(n, limit_s) for n in sorted(self.delays_s)]


@contextmanager
def open_program_stage(
    testbed: str, commands: Mapping[str, Sequence[str]]
) -> Iterator[ProgramStage]:
    programs = [Program(name=name, command=tuple(argv)) for name, argv in commands.items()]
    with open_testbed_runner(testbed, None, programs) as runner:
        yield ProgramStage(runner=runner, ends=runner.ends)


@dataclass(slots=True, kw_only=True)
class ServiceStage:
    """Clients of services that stay, each started after its delay."""

    bed: Testbed
    ends: ChangedEnds
    names: Sequence[str]
    clients: Sequence[Sequence[str]]
    delays_s: Mapping[int, float] = field(default_factory=dict)

    def run(self, limit_s: float, tick: Tick) -> list[float]:
        began_s = time.monotonic()
        waiting = sorted((delay_s, n) for n, delay_s in self.delays_s.items())
        running: dict[int, tuple[float, subprocess.Popen[bytes]]] = {}
        took: dict[int, float] = {}
        while len(took) < len(self.delays_s) and time.monotonic() < began_s + limit_s:
            while waiting and time.monotonic() >= began_s + waiting[0][0]:
                number = waiting.pop(0)[1]
                process = self.bed.spawn(CLIENT_HOST, self.clients[number])
                running[number] = (time.monotonic(), process)
            time.sleep(POLL_S)
            for number, (started_s, process) in [*running.items()]:
                if (status := process.poll()) is not None:
                    _check_status(self.clients[number], status)
                    took[number] = time.monotonic() - started_s
                    del running[number]
            tick()
        for _, process in running.values():
            process.kill()
            process.wait()
        return [took.get(n, limit_s) for n in sorted(self.delays_s)]


def _check_status(command: Sequence[str], status: int) -> None:
    if status:
        raise InputError(" ".join(command), f"ended with exit status {status}", "see its service")


@contextmanager
def open_service_stage(
    testbed: str, services: Mapping[str, Sequence[str]], clients: Mapping[str, Sequence[str]]
) -> Iterator[ServiceStage]:
    """Starts the services, each marked with its number, and waits until they are ready."""
    bed = persistent.find_testbed(testbed)
    with change_ends(bed.all_ends()) as ends, ExitStack() as stack:
        processes = []
        for number, (name, command) in enumerate(services.items()):
            group = stack.enter_context(
                open_marked_group(f"{testbed}-{name}", application_dscp(number))
            )
            process = bed.spawn(
                CLIENT_HOST,
                command,
                join=group.join,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            take_precedence(process.pid)
            stack.callback(_end_service, process)
            processes.append(process)
        for name, process in zip(services, processes, strict=True):
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise InputError(name, "its service ended before it was ready", "start it by hand")
        yield ServiceStage(
            bed=bed, ends=ends, names=[*services], clients=[clients[name] for name in services]
        )


def _end_service(process: subprocess.Popen[bytes]) -> None:
    """It removes its files itself; the end of its group ends what it leaves."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(SERVICE_END_S)


@contextmanager
def keep_testbed(name: str, wiring: Wiring) -> Iterator[None]:
    """A testbed for the block."""
    persistent.build_testbed(name, wiring)
    try:
        yield
    finally:
        persistent.remove_testbed(name)


# ---- A round ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`busy`: part of its rate that the busiest port passed until half of the jobs had ended."""

    completions_s: tuple[float, ...]
    busy: float
    passed_bytes: tuple[int, ...]  # of each queue at all ports


def run_round(
    stage: Stage,
    *,
    way: str,
    weights: Sequence[float],
    total_bytes: Sequence[float],
    is_loop: bool,
    limit_s: float,
    rate_bps: float,
) -> Outcome:
    """Programs the ports, runs the jobs, and watches both."""
    priorities = order_by_bytes_left(total_bytes)
    for port in stage.ends.saved:
        set_queues(port, build_live_queues(way, weights, priorities), rate_bps=round(rate_bps))
    with open_counters(stage.ends.saved) as read:
        watch = _Watch(
            read=read, stage=stage, way=way, weights=weights, totals=total_bytes, is_loop=is_loop
        )
        watch.priorities = priorities
        completions = stage.run(limit_s, watch.tick)
        watch.sample()
    half_s = inf if is_loop else float(np.median(completions))
    return Outcome(
        completions_s=tuple(completions),
        busy=watch.find_busiest(half_s, rate_bps),
        passed_bytes=tuple(watch.read_queues()),
    )


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Samples of the ports' queues; SRPT acts on them."""

    read: Callable[[], list[list[int]]]
    stage: Stage
    way: str
    weights: Sequence[float]
    totals: Sequence[float]
    is_loop: bool
    samples: list[tuple[float, list[list[int]]]] = field(default_factory=list)
    priorities: tuple[int, ...] = ()

    def tick(self) -> None:
        if not self.samples or time.monotonic() >= self.samples[-1][0] + SAMPLE_S:
            self.sample()
            if self.way == SRPT:
                self._reorder()

    def sample(self) -> None:
        self.samples.append((time.monotonic(), self.read()))

    def read_queues(self) -> list[int]:
        return [sum(column) for column in zip(*self.samples[-1][1], strict=True)]

    def _reorder(self) -> None:
        passed = self.read_queues()[1:]
        bytes_left = [
            total - (sent % total if self.is_loop else sent)
            for total, sent in zip(self.totals, passed, strict=True)
        ]
        priorities = order_by_bytes_left(bytes_left)
        if priorities != self.priorities:
            self.priorities = priorities
            queues = build_live_queues(self.way, self.weights, priorities)
            for port in self.stage.ends.saved:
                change_queues(port, queues)

    def find_busiest(self, half_s: float, rate_bps: float) -> float:
        """Between the first sample and the first at or after `half_s`, or the last."""
        began_s, first = self.samples[0]
        later = [s for s in self.samples[1:] if s[0] - began_s >= half_s] or self.samples[-1:]
        ended_s, last = later[0]
        passed = [sum(b) - sum(a) for a, b in zip(first, last, strict=True)]
        return 8 * max(passed) / max(1e-9, ended_s - began_s) / rate_bps


# ---- A machine that is too busy ---------------------------------------------------------------


def take_precedence(pid: int | None = None) -> None:
    """Linux shares processors evenly among sessions: one that needs little need not wait."""
    if pid is None and os.getsid(0) != os.getpid():
        with suppress(PermissionError):  # the leader of a process group already
            os.setsid()
    with suppress(OSError):  # no autogroups, or not allowed
        Path("/proc", str(pid or os.getpid()), "autogroup").write_text(str(PRECEDENCE))


class Lateness:
    """How late timers fire: a process sleeps again and again, and says by how much it overslept."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._ours, theirs = context.Pipe()
        parent = os.getpid()
        self._process = context.Process(target=_watch_timers, args=(theirs, parent), daemon=True)
        self._process.start()
        theirs.close()

    def read_part(self) -> float:
        """Part of the time since the last call that was lost: what is beyond SPARE_S of each."""
        self._ours.send(None)
        return float(self._ours.recv())

    def wait_until_calm(self, most: float) -> None:
        """Until at most this part of CALM_S is lost."""
        self.read_part()
        while True:
            time.sleep(CALM_S)
            if self.read_part() <= most:
                return

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._ours.close()


@contextmanager
def open_lateness() -> Iterator[Lateness]:
    late = Lateness()
    try:
        yield late
    finally:
        late.close()


def _watch_timers(control: Connection, parent: int) -> None:
    end_with_parent(parent)
    began_s, lost_s = time.monotonic(), 0.0
    while True:
        wanted_s = time.monotonic() + TICK_S
        time.sleep(TICK_S)
        lost_s += max(0.0, time.monotonic() - wanted_s - SPARE_S)
        if control.poll():
            control.recv()
            control.send(lost_s / (time.monotonic() - began_s))
            began_s, lost_s = time.monotonic(), 0.0
