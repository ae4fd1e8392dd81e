"""Processes: their processor time and run delay, an end with their parent, signs to systemd.

Times are from /proc/PID/task/TID/schedstat: nanoseconds on a processor, and nanoseconds ready but
waiting for one. The last reading of a thread stays counted after its end; later use is lost, so
read often. Descendants are found through their parents; a known descendant is followed even if its
parent ends. Linux signals a child when the thread that started it ends; elsewhere the signal is not
sent. Entry points: `TreeTimes`, `read_start_ticks`; in a child, `end_with_parent` and
`end_only_with_parent`; in a service, `notify_service_manager`. Units: seconds, kernel ticks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weft.errors import INTERRUPTS
from weft.host.machine.kernel_files import ROOT, list_names, read_text

_PR_SET_PDEATHSIG = 1
# Loaded now: nothing may be loaded between fork and exec.
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Times:
    """Since the threads began: on a processor, and ready but waiting for one."""

    cpu_s: float
    run_delay_s: float


def read_start_ticks(pid: int, root: Path = ROOT) -> int | None:
    """When a process started, in ticks since boot; None if it has ended, also as a zombie."""
    words = read_text(root / "proc" / str(pid) / "stat").rpartition(")")[2].split()
    return None if not words or words[0] in ("Z", "X") else int(words[19])


class TreeTimes:
    """The times of a process and its descendants, accumulated over `read`s."""

    def __init__(self, pid: int, root: Path = ROOT) -> None:
        self._root = root
        self._proc = root / "proc"
        self._pids = {pid}
        self._began = {pid: read_start_ticks(pid, root)}
        self._seen: dict[str, tuple[int, int]] = {}
        self._ended = (0, 0)

    def read(self) -> Times:
        """The times up to now; they never fall."""
        alive: set[int] = set()
        waiting = list(self._pids)
        while waiting:
            pid = waiting.pop()
            threads = list_names(self._proc / str(pid) / "task")
            if pid in alive or not threads:
                continue
            alive.add(pid)
            if pid not in self._pids:
                self._began[pid] = read_start_ticks(pid, self._root)
            for thread in threads:
                waiting += self._look(pid, thread)
        self._pids = alive
        spent = [self._ended, *self._seen.values()]
        return Times(sum(cpu for cpu, _ in spent) / 1e9, sum(delay for _, delay in spent) / 1e9)

    def living(self) -> list[int]:
        """The processes still alive; a process that reuses a number does not count."""
        return [
            pid
            for pid, began in self._began.items()
            if began is not None and read_start_ticks(pid, self._root) == began
        ]

    def _look(self, pid: int, thread: str) -> list[int]:
        """Records a thread's times; returns the processes that it started."""
        place = self._proc / str(pid) / "task" / thread
        words = read_text(place / "schedstat").split()
        if len(words) >= 2:
            now, then = (int(words[0]), int(words[1])), self._seen.get(thread, (0, 0))
            if now[0] < then[0] or now[1] < then[1]:  # a new thread reuses the number
                self._ended = (self._ended[0] + then[0], self._ended[1] + then[1])
            self._seen[thread] = now
        return [int(child) for child in read_text(place / "children").split()]


# ---- Processes that do not outlive their parent -------------------------------------------------


def end_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask for a signal when the parent dies; end at once if it is dead already."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def end_only_with_parent(parent: int) -> None:
    """As `end_with_parent`, and ignore interrupts: they are the parent's to handle."""
    for interrupt in INTERRUPTS:
        signal.signal(interrupt, signal.SIG_IGN)
    end_with_parent(parent)


def notify_service_manager(state: str) -> None:
    """As sd_notify(3): nothing happens unless systemd has started this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.setblocking(False)  # nobody waits for a manager that does not read
        end.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        end.sendall(state.encode())
