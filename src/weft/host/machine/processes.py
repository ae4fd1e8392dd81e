"""Processes: their processor time and run delay, an end with their parent, locks between them.

Times are from /proc/PID/task/TID/schedstat: nanoseconds on a processor, and nanoseconds ready but
waiting for one. The last reading of a thread stays counted after its end; later use is lost, so
read often. Descendants are found through their parents; a known descendant is followed even if its
parent ends. Linux signals a child when the thread that started it ends; elsewhere the signal is not
sent.

A lock is a file that names its holder and disappears with the last one. The kernel releases the
lock of a dead process, so a crash leaves at most the file.
Entry points: `TreeTimes`, `read_start_ticks`; in a child, `end_with_parent` and
`end_only_with_parent`; in a service, `notify_service_manager`; `hold_lock`, and
`hold_lock_in_folder`, which also removes its folder. Units: seconds, kernel ticks.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weft.errors import INTERRUPTS, InputError
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


# ---- Locks ------------------------------------------------------------------------------------

_AGAIN_S = 0.02
_TRIES = 100  # a try fails only if another process removes the folder at that moment


@contextmanager
def hold_lock(path: Path, where: str, purpose: str, wait_s: float) -> Iterator[None]:
    """One process is inside the block; after `wait_s` others get an error that names it."""
    handle = _acquire(path, where, wait_s)
    try:
        os.write(handle, f"process {os.getpid()} ({purpose})".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def hold_lock_in_folder(path: Path, where: str, purpose: str, wait_s: float) -> Iterator[None]:
    """As `hold_lock`; its folder and the parent are weft's, and are removed when empty."""
    try:
        with hold_lock(path, where, purpose, wait_s):
            yield
    finally:
        with suppress(OSError):  # not empty, or missing
            path.parent.rmdir()
            path.parent.parent.rmdir()


def _acquire(path: Path, where: str, wait_s: float) -> int:
    deadline = time.monotonic() + wait_s
    while True:
        handle = _open(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 200).decode(errors="replace")
            os.close(handle)
            if time.monotonic() >= deadline:
                problem = f"is in use by {holder or 'another process'}"
                raise InputError(where, problem, "wait until it has ended") from None
            time.sleep(_AGAIN_S)
            continue
        if _is_at(path, handle):
            os.truncate(handle, 0)
            return handle
        os.close(handle)  # the holder removed the file: the lock is on a new one now


def _open(path: Path) -> int:
    tries_left = _TRIES
    while True:
        tries_left -= 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            # Another process may remove the folder at any moment; mkdir then fails either way.
            if tries_left and isinstance(error, FileNotFoundError | FileExistsError):
                continue
            problem = f"cannot be made: {error.strerror}"
            raise InputError(str(path), problem, "check the path and its permissions") from error


def _is_at(path: Path, handle: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False
