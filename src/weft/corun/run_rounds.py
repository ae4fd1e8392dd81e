"""Runs the rounds of a co-running campaign, and resumes it from its records.

In a round each application starts after a delay of its own, and starts again as soon as it ends, so
that contention lasts. A run counts if it started when all others had, and before each application
had `runs` counted runs; the round lasts until every such run has ended. So no run is left out
because it was slow, and each had all others beside it. Each round's record is written before the
next begins.

An application is a group of processes whose connections carry its DSCP (`weft.host.net.marking`),
and every end of every cable of a testbed has the queues of a scheme
(`weft.host.net.htb`). When `open_testbed_runner` ends, processes are killed and links
are restored. Entry points: `CoRunCampaign`, `run_together`, `open_testbed_runner`. Units: seconds.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import IO, Protocol

from weft.corun.rounds import (
    ALONE,
    EQUAL,
    ONE,
    UNMARKED,
    Plan,
    Round,
    Scheme,
    application_dscp,
    build_queues,
    build_record,
    check_resumable,
    format_unmarked,
    list_remaining,
    read_completions,
    read_fraction,
)
from weft.errors import InputError
from weft.host.net import marking
from weft.host.net.caps import ChangedEnds, change_ends
from weft.host.net.htb import read_queues, set_queues
from weft.host.net.marking import Group
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.records import Record, RecordWriter, check_output, read_records
from weft.sensitivity.application import Application
from weft.sensitivity.profiler import format_duration
from weft.sensitivity.run_command import describe_failure

STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An application: what it is called and what runs."""

    name: str
    command: tuple[str, ...]


@dataclass(slots=True)
class _Run:
    process: subprocess.Popen[bytes]
    handle: int
    started_s: float
    stderr: IO[bytes]


@dataclass(slots=True, kw_only=True)
class TestbedRunner:
    """Runs real commands (`run_rounds.Runner`) and programs the ports between them."""

    bed: Testbed
    host: str
    jobs: Sequence[Job]
    groups: Sequence[Group]
    ends: ChangedEnds
    _running: dict[int, _Run] = field(default_factory=dict)

    def share(self, scheme: Scheme) -> None:
        """Programs the queues of a scheme on every port."""
        for port in self.ends.saved:
            set_queues(port, build_queues(scheme))

    def read_unmarked(self) -> float | None:
        """The part of all bytes since `share` that bore no mark of ours; None with one queue."""
        every = [queue for port in self.ends.saved for queue in read_queues(port.end)]
        rest = [queue for queue in every if 0 in queue.dscps]
        passed = sum(queue.count.bytes for queue in every)
        if len(rest) == len(every) or not passed:
            return None
        return sum(queue.count.bytes for queue in rest) / passed

    def name(self, number: int) -> str:
        return self.jobs[number].name

    def now_s(self) -> float:
        return time.monotonic()

    def start(self, number: int) -> None:
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the run
        process = self.bed.spawn(
            self.host,
            self.jobs[number].command,
            join=self.groups[number].join,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        handle = os.pidfd_open(process.pid)
        self._running[number] = _Run(process, handle, time.monotonic(), stderr)

    def next_end(self, wait_s: float) -> tuple[int, float] | None:
        by_handle = {run.handle: number for number, run in self._running.items()}
        poll = select.poll()
        for handle in by_handle:
            poll.register(handle, select.POLLIN)
        ready = poll.poll(1000 * wait_s)
        if not ready:
            return None
        number = by_handle[ready[0][0]]
        run = self._running[number]
        took_s = time.monotonic() - run.started_s
        status = run.process.wait()
        if status:
            problem = describe_failure(status, run.stderr)
            raise InputError(f"application {self.jobs[number].name}", problem, "fix its command")
        self._end(number)
        return number, took_s

    def stop(self) -> None:
        for number in [*self._running]:
            self._end(number)

    def _end(self, number: int) -> None:
        """The command, and what it has left running."""
        run = self._running.pop(number)
        self.groups[number].end()
        run.process.wait()
        os.close(run.handle)
        run.stderr.close()


@contextmanager
def open_testbed_runner(
    testbed: str, host: str | None, jobs: Sequence[Job]
) -> Iterator[TestbedRunner]:
    with persistent.use_testbed(testbed, "corun") as bed, ExitStack() as stack:
        node = host or bed.wiring.hosts[0]
        if node not in bed.wiring.hosts:
            hosts = ", ".join(bed.wiring.hosts)
            raise InputError(
                f"--host {node}", f"is not in testbed {testbed}", f"use one of {hosts}"
            )
        marking.remove_leftovers()
        ends = stack.enter_context(change_ends(bed.all_ends()))
        groups = [
            stack.enter_context(marking.open_marked_group(job.name, application_dscp(n)))
            for n, job in enumerate(jobs)
        ]
        stage = TestbedRunner(bed=bed, host=node, jobs=jobs, groups=groups, ends=ends)
        stack.callback(stage.stop)
        yield stage


def read_processor_times() -> tuple[float, float]:
    """Ticks that this machine's processors were idle, and all, since it started."""
    ticks = [float(word) for word in STAT.read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


_SLOWER, _SPARE_S = 10, 30.0  # slower than alone, per application: then a run is stuck
_UNCOUNTED_RUNS = 2  # of a round: at its beginning and at its end


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRunCampaign:
    """The rounds of a plan, the applications in the order of its names, and the schemes."""

    plan: Plan
    applications: Sequence[Application]
    schemes: Mapping[str, Scheme]

    def resume(self, path: str | None) -> tuple[CoRunCampaign, list[Record]]:
        """With the seed of the records at `path`, and those records; refuses foreign records."""
        if path is None:
            return self, []
        check_output(path)
        if not Path(path).exists():
            return self, []
        records = [*read_records(path).records]
        check_resumable(path, self.plan, self.schemes, records)
        seeds = [r.provenance.seed for r in records if r.provenance.seed is not None]
        seed = seeds[0] if seeds else self.plan.seed
        return replace(self, plan=replace(self.plan, seed=seed)), records

    def predict_s(self, round_: Round) -> float:
        """How long a round takes: the slowest application's runs, as the models predict them."""
        is_alone = round_.scheme == ALONE
        predicted = self.schemes[EQUAL if round_.scheme in (ONE, ALONE) else round_.scheme].lent
        runs = self.plan.runs + (0 if is_alone else _UNCOUNTED_RUNS)
        return runs * max(
            self.applications[n].profile.baseline * (1.0 if is_alone else predicted[n])
            for n in round_.numbers
        )

    def measure(
        self,
        records: list[Record],
        *,
        testbed: str,
        host: str | None,
        path: str | None,
        timeout_s: float | None,
        report: Callable[[str], None],
    ) -> None:
        """Runs every remaining round on the testbed; appends to `records` and to the file."""
        jobs = [Job(name=a.name, command=a.profile.command) for a in self.applications]
        alone_s = [application.profile.baseline for application in self.applications]
        limit_s = timeout_s or _SLOWER * len(jobs) * max(alone_s) + _SPARE_S
        remaining = list_remaining(self.plan, records)
        if records:
            total = len(self.plan.rounds)
            report(f"resumes after {total - len(remaining)} of {total} rounds")
        with _record_writer(path) as write, open_testbed_runner(testbed, host, jobs) as runner:
            for n, round_ in enumerate(remaining):
                record = self._run_round(runner, round_, alone_s, limit_s)
                records.append(record)
                write(record)
                time_left_s = sum(map(self.predict_s, remaining[n + 1 :]))
                report(_format_progress(round_, record, time_left_s))

    def _run_round(
        self, runner: TestbedRunner, round_: Round, alone_s: Sequence[float], limit_s: float
    ) -> Record:
        scheme = self.schemes.get(round_.scheme)
        runner.share(scheme or self.schemes[ONE])
        idle, total = read_processor_times()
        delays_s = self.plan.delays_s(round_, alone_s)
        completions_s = run_together(runner, delays_s, self.plan.runs, limit_s)
        idle_after, total_after = read_processor_times()
        idle_fraction = (idle_after - idle) / max(1.0, total_after - total)
        unmarked = runner.read_unmarked()
        return build_record(self.plan, round_, scheme, completions_s, idle_fraction, unmarked)


@contextmanager
def _record_writer(path: str | None) -> Iterator[Callable[[Record], None]]:
    if path is None:
        yield lambda _: None
        return
    with RecordWriter(path) as writer:
        yield writer.append


def _format_progress(round_: Round, record: Record, time_left_s: float) -> str:
    means = read_completions(record).items()
    took = ", ".join(f"{name} {mean_s:.2f} s" for name, mean_s in means)
    remaining = f"{format_duration(time_left_s)} left"
    line = f"{round_.repetition + 1:>3} {round_.scheme:>5}: {took}; {remaining}"
    unmarked = format_unmarked(read_fraction(record, UNMARKED))
    return f"{line}\n    {unmarked}" if unmarked else line


# ---- One round --------------------------------------------------------------------------------


class Runner(Protocol):
    """Runs of applications, by number."""

    def name(self, number: int) -> str:
        """What the application is called."""

    def now_s(self) -> float:
        """A clock."""

    def start(self, number: int) -> None:
        """Begins a run of an application that is not running."""

    def next_end(self, wait_s: float) -> tuple[int, float] | None:
        """Which run ends next, and how long it took; None if none does in that time."""

    def stop(self) -> None:
        """Ends all that runs."""


@dataclass(slots=True, kw_only=True)
class _Progress:
    runner: Runner
    runs: int
    limit_s: float
    waiting: list[tuple[float, int]]  # start times of those that have not begun, the next first
    completions_s: dict[int, list[float]]  # of runs that count
    began_s: dict[int, float] = field(default_factory=dict)  # of all that run
    counting: set[int] = field(default_factory=set)  # those whose current run counts

    @property
    def is_over(self) -> bool:
        return not self.waiting and self._has_enough() and not self.counting

    def step(self) -> None:
        """Waits until a run ends or begins."""
        oldest_s, oldest = min(((s, n) for n, s in self.began_s.items()), default=(inf, -1))
        begins_s = self.waiting[0][0] if self.waiting else inf
        next_s = min(begins_s, oldest_s + self.limit_s)
        ended = self.runner.next_end(max(0.0, next_s - self.runner.now_s()))
        if ended is not None:
            self._end(*ended)
        elif begins_s == next_s:
            self._begin(self.waiting.pop(0)[1])
        else:
            problem = f"a run did not end within {self.limit_s:.0f} s"
            remedy = "raise --timeout, or fix its command"
            raise InputError(f"application {self.runner.name(oldest)}", problem, remedy)

    def _has_enough(self) -> bool:
        return all(len(completions) >= self.runs for completions in self.completions_s.values())

    def _begin(self, number: int) -> None:
        self.runner.start(number)
        self.began_s[number] = self.runner.now_s()
        if not self.waiting and not self._has_enough():
            self.counting.add(number)

    def _end(self, number: int, took_s: float) -> None:
        del self.began_s[number]
        if number in self.counting:
            self.counting.remove(number)
            self.completions_s[number].append(took_s)
        if not self.is_over:
            self._begin(number)


def run_together(
    runner: Runner, delays_s: Mapping[int, float], runs: int, limit_s: float
) -> dict[int, list[float]]:
    """Completion times of the runs that count; each application has `runs` of them at least.

    `delays_s` is when each begins at first; a run that takes longer than `limit_s` is refused.
    """
    origin_s = runner.now_s()
    progress = _Progress(
        runner=runner,
        runs=runs,
        limit_s=limit_s,
        waiting=sorted((origin_s + delay_s, number) for number, delay_s in delays_s.items()),
        completions_s={number: [] for number in delays_s},
    )
    try:
        while not progress.is_over:
            progress.step()
    finally:
        runner.stop()
    return progress.completions_s
