"""Ctrl-C during a timed loop: the loop ends at once and what it measured is kept.

Python runs signal handlers between bytecodes of the main thread, which is inside the core while a
loop runs. So the signal's number goes through a pipe to a thread that sets the loop's flag. A
second Ctrl-C interrupts as usual.
Entry point: `Interrupt`.
"""

from __future__ import annotations

import signal
import socket
import threading
from types import FrameType
from typing import Any, Self

from weft._core import StopFlag


class Interrupt:
    """Sets a flag on SIGINT while entered; outside the main thread it does nothing."""

    def __init__(self, stop: StopFlag) -> None:
        self._stop = stop
        self._active = False
        self.is_set = False

    def __enter__(self) -> Self:
        self._active = threading.current_thread() is threading.main_thread()
        if self._active:
            self._read, self._write = socket.socketpair()
            self._write.setblocking(False)
            self._previous: Any = signal.signal(signal.SIGINT, self._on_signal)
            self._previous_fd = signal.set_wakeup_fd(
                self._write.fileno(), warn_on_full_buffer=False
            )
            self._thread = threading.Thread(target=self._watch, name="interrupt", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._active:
            self._active = False
            signal.set_wakeup_fd(self._previous_fd)
            signal.signal(signal.SIGINT, self._previous)
            self._write.close()
            self._thread.join()
            self._read.close()

    def _watch(self) -> None:
        while data := self._read.recv(64):
            if signal.SIGINT in data:
                self._stop.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_set and callable(self._previous):
            self._previous(number, frame)
        self.is_set = True
        self._stop.set()
