"""Runs a command once and records what it took: time, bytes, processors, waiting.

The command runs in its own session. When it ends or takes too long, its session is killed, and so
are descendants that left the session, if they were seen before. If we are killed, a guard kills
its process group. Its output is dropped, except the
last line on failure. Interface counters come from /proc/PID/net/dev: the interface may be in
another network namespace. Entry points: `run_command`, `count_bytes`, `record_trace`.
Units: seconds, bytes.
"""

from __future__ import annotations

import io
import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import IO

import numpy as np

from weft.errors import InputError
from weft.host.machine.kernel_files import ROOT, read_text
from weft.host.machine.processes import TreeTimes
from weft.host.net import namespaces
from weft.sensitivity.application import Run
from weft.sensitivity.model import FloatArray
from weft.sensitivity.trace import Trace

INTERVAL_S = 0.02
_COMPUTING_QUANTILE = 0.95

Counters = Callable[[], tuple[int, int]]  # bytes received and sent


@dataclass(frozen=True, slots=True, eq=False)
class UsageSeries:
    """Counters of a command over its run, one row per moment."""

    at_s: FloatArray
    received_bytes: FloatArray
    sent_bytes: FloatArray
    cpu_s: FloatArray
    run_delay_s: FloatArray


def record_trace(
    process: subprocess.Popen[bytes],
    *,
    interface: str,
    link_bps: float,
    network_pid: int | None = None,
) -> Trace:
    """Watches a command and its descendants until it ends."""
    pid = process.pid if network_pid is None else network_pid
    last = interface_bytes(interface, pid)

    def counters() -> tuple[int, int]:
        nonlocal last
        last = interface_bytes(interface, pid, last)
        return last

    usage = record_usage(process, TreeTimes(process.pid), counters)
    process.wait()
    return build_trace(usage, link_bps)


def record_usage(
    process: subprocess.Popen[bytes],
    times: TreeTimes,
    counters: Counters,
    *,
    limit_s: float = inf,
    interval_s: float = INTERVAL_S,
) -> UsageSeries:
    """Records the counters of a command until it ends; TimeoutExpired after `limit_s`.

    Does not reap the process: its number cannot be reused before the caller waits for it.
    """
    rows = [_row(counters, times)]
    with ProcessEnd(process.pid) as ended:
        while not ended.wait(rows[-1][0] + interval_s):
            rows.append(_row(counters, times))
            if rows[-1][0] - rows[0][0] > limit_s:
                raise subprocess.TimeoutExpired(process.args, limit_s)
    # The command is gone: its CPU time since the last row is lost, at most one interval's.
    rows.append((time.monotonic(), *counters(), *rows[-1][3:]))
    return UsageSeries(*np.array(rows, dtype=np.float64).T)


def _row(counters: Counters, times: TreeTimes) -> tuple[float, int, int, float, float]:
    spent = times.read()
    return (time.monotonic(), *counters(), spent.cpu_s, spent.run_delay_s)


class ProcessEnd:
    """Waits for the end of a process without reaping it."""

    def __init__(self, pid: int) -> None:
        self._handle = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._handle, select.POLLIN)

    def __enter__(self) -> ProcessEnd:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def wait(self, until_s: float) -> bool:
        """Whether it ended by that time; returns as soon as it does."""
        left_s = max(0.0, until_s - time.monotonic())
        return bool(self._poll.poll(1000 * left_s))


def build_trace(usage: UsageSeries, link_bps: float) -> Trace:
    duration_s = np.diff(usage.at_s)
    if not duration_s.size or not (duration_s > 0).all():
        raise InputError("trace", "the command ended at once", "trace one that takes longer")
    # On a processor, or ready for one: a contended host must not look like a slow network.
    busy_s = np.diff(usage.cpu_s + usage.run_delay_s)
    return Trace(
        duration_s=duration_s,
        sent_bytes=np.maximum(np.diff(usage.sent_bytes), 0),
        received_bytes=np.maximum(np.diff(usage.received_bytes), 0),
        cpu_s=busy_s,
        link_bps=link_bps,
        cores=computing_cores(duration_s, busy_s),
    )


def computing_cores(duration_s: FloatArray, cpu_s: FloatArray) -> float:
    """How many processors the program uses when it computes: nearly the most, and at least one.

    What sending itself costs is less than one processor and must not look like computing.
    """
    return max(1.0, float(np.quantile(cpu_s / duration_s, _COMPUTING_QUANTILE)))


def interface_bytes(
    interface: str, pid: int, last: tuple[int, int] | None = None, root: Path = ROOT
) -> tuple[int, int]:
    """Bytes received and sent by an interface, as the process sees it; `last` once it has ended."""
    counters = bytes_by_interface(read_text(root / "proc" / str(pid) / "net" / "dev"))
    if interface in counters:
        return counters[interface]
    if last is not None and not counters:
        return last
    names = ", ".join(counters) or "none"
    raise InputError(f"interface {interface}", f"process {pid} has {names}", "name one of these")


def bytes_by_interface(dev: str) -> dict[str, tuple[int, int]]:
    """Bytes received and sent, from the text of net/dev."""
    lines = (line.partition(":") for line in dev.splitlines()[2:])
    words = {name.strip(): rest.split() for name, _, rest in lines}
    return {name: (int(counts[0]), int(counts[8])) for name, counts in words.items()}


Spawn = Callable[..., subprocess.Popen[bytes]]  # the command, with options of Popen
_END_S, _POLL_S = 2.0, 0.005
_STDERR_BYTES = 2000


@dataclass(frozen=True, slots=True)
class CommandRun:
    """A run that succeeded."""

    usage: UsageSeries
    completion_s: float
    received_bytes: int
    sent_bytes: int
    cpu_s: float
    run_delay_s: float

    def at(self, share: float, repetition: int) -> Run:
        return Run(
            share=share,
            completion=self.completion_s,
            repetition=repetition,
            bytes=self.received_bytes + self.sent_bytes,
            sent_bytes=self.sent_bytes,
            cpu_s=self.cpu_s,
            run_delay_s=self.run_delay_s,
        )


@contextmanager
def count_bytes(namespace: str | None, interface: str) -> Iterator[Counters]:
    """Bytes received and sent by an interface of a namespace (None: ours), read on each call."""
    # The open file stays bound to its namespace, whichever thread reads it.
    with namespaces.run_inside(namespace, _open_dev) as file:
        _read_dev(file, interface)
        yield partial(_read_dev, file, interface)


def _read_dev(file: io.FileIO, interface: str) -> tuple[int, int]:
    file.seek(0)
    counters = bytes_by_interface(file.read().decode())
    if interface not in counters:
        remedy = f"use one of {', '.join(counters)}"
        raise InputError(f"interface {interface}", "is not there", remedy)
    return counters[interface]


def _open_dev() -> io.FileIO:
    """Unbuffered: a buffer would repeat old counters."""
    return open("/proc/thread-self/net/dev", "rb", buffering=0)


def check_command(command: Sequence[str]) -> None:
    if not command:
        raise InputError("profile", "no command is given", "weft profile … -- COMMAND …")
    if shutil.which(command[0]) is None:
        raise InputError(f"command {command[0]}", "no such program", "give its path")


def run_command(spawn: Spawn, counters: Counters, *, limit_s: float, where: str) -> CommandRun:
    """Runs a command; raises with its last line of stderr if it fails or exceeds the limit."""
    with tempfile.TemporaryFile() as stderr:
        spent_s, before = _children_cpu_s(), counters()
        started = time.monotonic()
        process = _start(spawn, stderr, where)
        guard = _start_guard(process.pid)
        times = TreeTimes(process.pid)
        try:
            usage = record_usage(process, times, counters, limit_s=limit_s)
        except subprocess.TimeoutExpired:
            problem = f"not finished after {limit_s:.0f} s"
            raise InputError(where, problem, "raise --timeout, or give it less to do") from None
        finally:
            guard.kill()  # before the group's number is free
            _end(process, times)
            spent_s = _children_cpu_s() - spent_s
            guard.communicate()
        if process.returncode:
            raise InputError(where, describe_failure(process.returncode, stderr), "fix the command")
    received, sent = (after - then for after, then in zip(counters(), before, strict=True))
    return CommandRun(
        usage=usage,
        completion_s=float(usage.at_s[-1]) - started,
        received_bytes=received,
        sent_bytes=sent,
        # Waited-for children are counted exactly, the others as often as they were seen.
        cpu_s=max(spent_s, float(usage.cpu_s[-1])),
        run_delay_s=float(usage.run_delay_s[-1]),
    )


def _start(spawn: Spawn, stderr: IO[bytes], where: str) -> subprocess.Popen[bytes]:
    try:
        return spawn(
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    except OSError as error:
        problem = f"cannot be started: {error.strerror}"
        raise InputError(where, problem, "fix the command") from error


def _start_guard(group: int) -> subprocess.Popen[bytes]:
    """Kills the command's group when our end of its pipe closes: when we are killed."""
    return subprocess.Popen(
        ["sh", "-c", f"read -r line; kill -s KILL -- -{group}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _children_cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _end(process: subprocess.Popen[bytes], times: TreeTimes) -> None:
    """Kills the command if it runs, and everything it left running."""
    with ProcessEnd(process.pid) as ended:
        if not ended.wait(0):
            _signal(process.pid, signal.SIGTERM)
            ended.wait(time.monotonic() + _END_S)
    times.read()  # finds processes started since
    # Not reaped yet, so no other group can have its number.
    _signal(process.pid, signal.SIGKILL)
    process.wait()
    _end_detached(times)


def _end_detached(times: TreeTimes) -> None:
    deadline = time.monotonic() + _END_S
    while (pids := times.living()) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def describe_failure(status: int, stderr: IO[bytes]) -> str:
    """How a command failed, and its last line of stderr."""
    how = f"exit status {status}" if status > 0 else f"ended by {signal.Signals(-status).name}"
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_BYTES))
    lines = stderr.read().decode(errors="replace").split("\n")
    last = [line.strip() for line in lines if line.strip()][-1:]
    return f"{how}, after {last[0]!r}" if last else how
