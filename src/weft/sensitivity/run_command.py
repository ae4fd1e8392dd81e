"""Runs a command once, to its end, and tells what it took: time, bytes, processors, waiting.

The command is a session of its own. What is in it is ended with the command, when it has finished
and when it takes too long, and so are descendants that have left it, if they were seen before. Its
output is dropped but for what it says last when it fails. Entry points: `run_command`,
`host_bytes`. Units: seconds, bytes.
"""

from __future__ import annotations

import io
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import IO

from weft.errors import InputError
from weft.host.machine.process_times import TreeTimes
from weft.host.net import namespaces
from weft.sensitivity.profile import Run
from weft.sensitivity.record_trace import Counters, End, Watched, bytes_by_interface, watch

Spawn = Callable[..., subprocess.Popen[bytes]]  # the command, with options of Popen
_END_S, _AGAIN_S = 2.0, 0.005
_SAID_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that succeeded."""

    watched: Watched
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
def host_bytes(namespace: str | None, interface: str) -> Iterator[Counters]:
    """Bytes received and sent by an interface of a namespace (None: ours), as often as asked."""
    # Whoever reads it later: it stays the namespace's in which it was opened.
    with namespaces.run_inside(namespace, _open_dev) as file:
        _read_dev(file, interface)
        yield partial(_read_dev, file, interface)


def _read_dev(file: io.FileIO, interface: str) -> tuple[int, int]:
    file.seek(0)
    found = bytes_by_interface(file.read().decode())
    if interface not in found:
        remedy = f"use one of {', '.join(found)}"
        raise InputError(f"interface {interface}", "is not there", remedy)
    return found[interface]


def _open_dev() -> io.FileIO:
    """Without a buffer, which would give old counters again."""
    return open("/proc/thread-self/net/dev", "rb", buffering=0)


def check_command(command: Sequence[str]) -> None:
    if not command:
        raise InputError("profile", "no command is given", "weft profile … -- COMMAND …")
    if shutil.which(command[0]) is None:
        raise InputError(f"command {command[0]}", "no such program", "give its path")


def run_command(spawn: Spawn, counters: Counters, *, limit_s: float, where: str) -> Ran:
    """Runs it; fails with what it said last if its status is not 0, or if it takes longer."""
    with tempfile.TemporaryFile() as said:
        spent_s, before = _children_cpu_s(), counters()
        started = time.monotonic()
        process = _started(spawn, said, where)
        times = TreeTimes(process.pid)
        try:
            watched = watch(process, times, counters, limit_s=limit_s)
        except subprocess.TimeoutExpired:
            problem = f"not finished after {limit_s:.0f} s"
            raise InputError(where, problem, "raise --timeout, or give it less to do") from None
        finally:
            _end(process, times)
        if process.returncode:
            raise InputError(where, failure(process.returncode, said), "mend the command")
    received, sent = (after - then for after, then in zip(counters(), before, strict=True))
    return Ran(
        watched=watched,
        completion_s=float(watched.at_s[-1]) - started,
        received_bytes=received,
        sent_bytes=sent,
        # Waited-for children are counted exactly, the others as often as they were seen.
        cpu_s=max(_children_cpu_s() - spent_s, float(watched.cpu_s[-1])),
        run_delay_s=float(watched.run_delay_s[-1]),
    )


def _started(spawn: Spawn, said: IO[bytes], where: str) -> subprocess.Popen[bytes]:
    try:
        return spawn(
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )
    except OSError as error:
        problem = f"cannot be started: {error.strerror}"
        raise InputError(where, problem, "mend the command") from error


def _children_cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _end(process: subprocess.Popen[bytes], times: TreeTimes) -> None:
    """Ends the command if it runs, and what it has left running."""
    with End(process.pid) as ended:
        if not ended.wait(0):
            _signal(process.pid, signal.SIGTERM)
            ended.wait(time.monotonic() + _END_S)
    times.read()  # sees who was started since
    # Not waited for yet: so far no other group has its number.
    _signal(process.pid, signal.SIGKILL)
    process.wait()
    _end_detached(times)


def _end_detached(times: TreeTimes) -> None:
    deadline = time.monotonic() + _END_S
    while (pids := times.living()) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN_S)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def failure(status: int, said: IO[bytes]) -> str:
    """How a command failed, and what it said last."""
    how = f"exit status {status}" if status > 0 else f"ended by {signal.Signals(-status).name}"
    said.seek(max(0, said.seek(0, os.SEEK_END) - _SAID_BYTES))
    lines = said.read().decode(errors="replace").split("\n")
    last = [line.strip() for line in lines if line.strip()][-1:]
    return f"{how}, after {last[0]!r}" if last else how
