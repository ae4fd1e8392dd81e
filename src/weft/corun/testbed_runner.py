"""A testbed on which applications run beside each other, each in its own queue.

An application is a group of processes whose connections carry its DSCP (`weft.host.net.marking`),
and every end of every cable has the queues of a scheme (`weft.host.net.weighted_queues`). When the
block ends, processes are killed and links are restored. Entry point: `open_testbed_runner`.
Units: seconds.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from weft.corun.rounds import Scheme, application_dscp, build_queues
from weft.errors import InputError
from weft.host.net import marking
from weft.host.net.caps import ChangedEnds, change_ends
from weft.host.net.marking import Group
from weft.host.net.weighted_queues import read_queues, set_queues
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
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
