"""Records the trace of a running command: interface counters and processor time, side by side.

Counters are those of /proc/PID/net/dev, so that the interface may be one of another network
namespace, that of `network_pid`. Entry points: `record_trace`; `watch` and `trace_of`, its two
halves. Units: seconds, bytes.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from weft.errors import InputError
from weft.host.machine.kernel_files import ROOT, read_text
from weft.host.machine.process_times import TreeTimes
from weft.sensitivity.model import FloatArray
from weft.sensitivity.trace import Trace

INTERVAL_S = 0.02
_COMPUTING_QUANTILE = 0.95

Counters = Callable[[], tuple[int, int]]  # bytes received and sent


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """A command from beginning to end, a row per moment."""

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
    interval_s: float = INTERVAL_S,
) -> Trace:
    """Watches a command from now to its end; its descendants count too."""
    pid = process.pid if network_pid is None else network_pid
    last = interface_bytes(interface, pid)

    def counters() -> tuple[int, int]:
        nonlocal last
        last = interface_bytes(interface, pid, last)
        return last

    watched = watch(process, TreeTimes(process.pid), counters, interval_s=interval_s)
    process.wait()
    return trace_of(watched, link_bps)


def watch(
    process: subprocess.Popen[bytes],
    times: TreeTimes,
    counters: Counters,
    *,
    limit_s: float = inf,
    interval_s: float = INTERVAL_S,
) -> Watched:
    """Looks at a command until its end; TimeoutExpired if that does not come in time.

    It is still to be waited for: until then its number is no other process's, nor group's.
    """
    rows = [_row(counters, times)]
    with End(process.pid) as ended:
        while not ended.wait(rows[-1][0] + interval_s):
            rows.append(_row(counters, times))
            if rows[-1][0] - rows[0][0] > limit_s:
                raise subprocess.TimeoutExpired(process.args, limit_s)
    # The command is gone: what it did since the last row is at most one interval's.
    rows.append((time.monotonic(), *counters(), *rows[-1][3:]))
    return Watched(*np.array(rows, dtype=np.float64).T)


def _row(counters: Counters, times: TreeTimes) -> tuple[float, int, int, float, float]:
    spent = times.read()
    return (time.monotonic(), *counters(), spent.cpu_s, spent.run_delay_s)


class End:
    """Tells the end of a process the moment it comes, and leaves it to be waited for."""

    def __init__(self, pid: int) -> None:
        self._handle = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._handle, select.POLLIN)

    def __enter__(self) -> End:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def wait(self, until_s: float) -> bool:
        """True once it has ended; False if it still runs when that time has come."""
        left_s = max(0.0, until_s - time.monotonic())
        return bool(self._poll.poll(1000 * left_s))


def trace_of(watched: Watched, link_bps: float) -> Trace:
    duration_s = np.diff(watched.at_s)
    if not duration_s.size or not (duration_s > 0).all():
        raise InputError("trace", "the command ended at once", "trace one that takes longer")
    # On a processor, or ready for one: a contended host must not look like a slow network.
    busy_s = np.diff(watched.cpu_s + watched.run_delay_s)
    return Trace(
        duration_s=duration_s,
        sent_bytes=np.maximum(np.diff(watched.sent_bytes), 0),
        received_bytes=np.maximum(np.diff(watched.received_bytes), 0),
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
    interface: str, pid: int, gone: tuple[int, int] | None = None, root: Path = ROOT
) -> tuple[int, int]:
    """Bytes received and sent by an interface, as the process sees it; `gone` once it has ended."""
    counters = bytes_by_interface(read_text(root / "proc" / str(pid) / "net" / "dev"))
    if interface in counters:
        return counters[interface]
    if gone is not None and not counters:
        return gone
    known = ", ".join(counters) or "none"
    raise InputError(f"interface {interface}", f"process {pid} has {known}", "name one of these")


def bytes_by_interface(dev: str) -> dict[str, tuple[int, int]]:
    """Bytes received and sent, from the text of net/dev."""
    lines = (line.partition(":") for line in dev.splitlines()[2:])
    words = {name.strip(): rest.split() for name, _, rest in lines}
    return {name: (int(counts[0]), int(counts[8])) for name, counts in words.items()}
