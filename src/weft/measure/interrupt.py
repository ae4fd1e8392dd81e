"""An interrupt during a timed loop: the loop ends at once and what it measured is kept.

Interrupts are Ctrl-C, and SIGTERM and SIGHUP where the program handles them, as `weft` does. Python
runs handlers between bytecodes of the main thread, which is inside the core while a loop runs. So
the signal's number goes through a pipe to a thread that sets the loop's flag. A second interrupt
acts as usual. If the loop never returns (a driver or provider hangs), the third ends the process.
Entry point: `Interrupt`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from weft._core import StopFlag
from weft.errors import INTERRUPTS

Handler = Callable[[int, FrameType | None], Any]

HANGING_AFTER = 3  # interrupts in one loop: it ends within a second of the first unless it hangs


class Interrupt:
    """Sets a flag on an interrupt while entered; outside the main thread it does nothing.

    Signals that kill the process or that it ignores keep doing so.
    """

    def __init__(self, stop: StopFlag) -> None:
        self._stop = stop
        self._active = False
        self._previous: dict[int, Handler] = {}
        self.is_set = False

    def __enter__(self) -> Self:
        self._active = threading.current_thread() is threading.main_thread()
        if self._active:
            self._read, self._write = socket.socketpair()
            self._write.setblocking(False)
            handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
            self._previous = {n: handler for n, handler in handlers.items() if callable(handler)}
            for number in self._previous:
                signal.signal(number, self._on_signal)
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
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._write.close()
            self._thread.join()
            self._read.close()

    def _watch(self) -> None:
        count = 0
        while data := self._read.recv(64):
            for number in data:
                if number not in self._previous:
                    continue
                self._stop.set()
                count += 1
                if count == HANGING_AFTER:
                    print(
                        "weft: the transport does not return; its results are lost",
                        file=sys.stderr,
                        flush=True,
                    )
                    os._exit(128 + number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        with suppress(*() if self.is_set else (KeyboardInterrupt,)):
            self.is_set = True
            self._stop.set()
            self._previous[number](number, frame)
