"""A lock between processes: a file that names its holder and disappears with the last one.

The kernel releases the lock of a dead process, so a crash leaves at most the file. Entry points:
`hold_lock`; `hold_lock_in_folder`, which also removes its folder.
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
