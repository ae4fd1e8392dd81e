"""A lock between processes: a file that says who holds it and goes away with its last holder.

The kernel gives a dead process's lock back, so a crash leaves at most the file.
Entry points: `held`; `held_in_own_folder`, whose folder goes away too.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.errors import InputError

_AGAIN_S = 0.02
_TRIES = 100  # of which each needs another process that removes the folder in just that moment


@contextmanager
def hold_lock(path: Path, where: str, purpose: str, wait_s: float) -> Iterator[None]:
    """Only one process is inside; after `wait_s` the others are told who that is."""
    handle = _acquire(path, where, wait_s)
    try:
        os.write(handle, f"process {os.getpid()} ({purpose})".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def hold_lock_in_folder(path: Path, where: str, purpose: str, wait_s: float) -> Iterator[None]:
    """As `held`; its folder and the one above are weft's, and go away when nothing is in them."""
    try:
        with hold_lock(path, where, purpose, wait_s):
            yield
    finally:
        with suppress(OSError):  # not empty, or gone
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
        os.close(handle)  # its holder has removed the file: the lock is on another one by now


def _open(path: Path) -> int:
    tries_left = _TRIES
    while True:
        tries_left -= 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            # The folder may go away at any moment; mkdir then says that it is or is not there.
            if tries_left and isinstance(error, FileNotFoundError | FileExistsError):
                continue
            problem = f"cannot be made: {error.strerror}"
            raise InputError(str(path), problem, "check the path and its permissions") from error


def _is_at(path: Path, handle: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False
