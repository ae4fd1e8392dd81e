"""Processes that do not outlive the one that started them.

Linux signals a child when the thread that started it ends. Elsewhere the signal is not sent.
Entry points, in the child: `end_with_parent`, `end_only_with_parent`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from weft.errors import INTERRUPTS

_PR_SET_PDEATHSIG = 1
# Loaded now: nothing may be loaded between fork and exec.
_LIBC = ctypes.CDLL(None)


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
