"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
import time

WIDTH = 30


class ProgressBar:
    """One line with the fraction done and the estimated time left."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = sys.stderr.isatty()
        self._started = time.monotonic()
        self._last = 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def update(self, fraction: float, note: str = "") -> None:
        now = time.monotonic()
        if not self._shown or (now - self._last < 0.1 and fraction < 1):
            return
        self._last = now
        fraction = min(1.0, max(0.0, fraction))
        elapsed = now - self._started
        remaining = f"{elapsed / fraction - elapsed:.0f} s left" if fraction > 0.02 else ""
        bar = "#" * round(WIDTH * fraction)
        print(
            f"\r\x1b[K{self._label} [{bar:<{WIDTH}}] {fraction:4.0%} {note} {remaining}",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
