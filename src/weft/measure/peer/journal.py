"""Lines of a server's log, not more per second than can be read: a flood is counted, not copied.

Entry point: `Journal`. Units: seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LINES_PER_S = 20


class Journal:
    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def __call__(self, text: str) -> None:
        second = int(self._clock())
        if second != self._second:
            self._second, self._lines = second, 0
            self.flush()
        self._lines += 1
        if self._lines > LINES_PER_S:
            self._left_out += 1
        else:
            self._write(text)

    def flush(self) -> None:
        """Tells how many lines were left out."""
        if self._left_out:
            self._write(f"{self._left_out} more lines left out")
            self._left_out = 0
