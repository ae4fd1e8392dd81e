"""What a controller tells its terminal, without waiting for it.

Lines go through a queue that a thread of its own empties. Where nobody reads them some wait, and
further ones are counted. Entry point: `Log`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

MOST_LINES = 1000
_LEAVE_S = 1.0


class Log:
    """`tell` writes a line, and may take as long as it likes."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._lines: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_LINES)
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="weft-log", daemon=True)
        self._thread.start()

    def tell(self, line: str) -> None:
        """From any thread."""
        self.say(partial(self._tell, line))

    def say(self, line: Callable[[], None]) -> None:
        """The same for what is told in another way; lines stay in order."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """When what was told has been written, or after a while."""
        try:
            self._lines.put(None, timeout=_LEAVE_S)
        except queue.Full:
            return
        self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                line()
                if self._left_out:
                    count, self._left_out = self._left_out, 0
                    self._tell(f"{count} lines left out: nobody read them in time")
        except OSError:
            return  # nobody reads any more: what is told from now on waits, and is counted
