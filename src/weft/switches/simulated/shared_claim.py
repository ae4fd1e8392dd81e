"""The claim on simulated switches whose registers are in a file: several processes share it.

A lock on the file is held during each write, so that a write of a lower epoch never comes after
the claim of a higher one. Entry point: `SharedClaim`.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from weft.records.store import explain_file_errors
from weft.switches.claims import Grant, decode_grant, grant
from weft.switches.tables import Claim, Taken, build_taken_error


class SharedClaim:
    """One for all nodes of a group. Without a claim, ports may be written while no owner runs."""

    def __init__(self, registers: Path, group: str = "") -> None:
        name = f"{registers.name}.{group}.claim" if group else f"{registers.name}.claim"
        self._path = path = registers.with_name(name)
        self._threads = threading.Lock()  # a lock on the file holds off other processes only
        self._claim: Claim | None = None
        with explain_file_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        os.close(self._file)

    def claim(self, claim: Claim) -> None:
        with self._lock():
            last = self._read()
            granted = grant(last, claim, is_connected=_is_running(last.pid))
            if granted is None:
                raise self._refuse(last, "switches")
            if granted != last:
                granted = msgspec.structs.replace(granted, pid=os.getpid())
                data = msgspec.json.encode(granted)
                os.pwrite(self._file, data, 0)
                os.ftruncate(self._file, len(data))
        self._claim = replace(claim, epoch=granted.epoch)

    @contextmanager
    def hold(self, node: str) -> Iterator[None]:
        """Nobody claims the switches during the block."""
        with self._lock():
            last = self._read()
            if self._claim is None:
                is_fenced = _is_running(last.pid)
            else:
                is_fenced = not last.belongs_to(self._claim)
            if is_fenced:
                raise self._refuse(last, node)
            yield

    def _refuse(self, last: Grant, where: str) -> Taken:
        return build_taken_error(where, last.owner, last.epoch)

    def _read(self) -> Grant:
        return decode_grant(os.pread(self._file, 4096, 0), str(self._path))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)


def _is_running(pid: int) -> bool:
    if not pid or pid == os.getpid():
        return False
    return Path(f"/proc/{pid}").exists()
