"""Restores links when the process that changed them ends, however it ends.

    python -P -m weft.host.net.watchdog PID JOURNAL

It runs in its own session, so a terminal's signals do not reach it. It waits until standard input
is closed or process PID is gone, restores what the journal lists, and exits with status 0. Entry
point: `main`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from weft.errors import WeftError
from weft.host.net.caps import restore_journal


def main(pid: int, journal: Path) -> int:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        parent = os.pidfd_open(pid)
    except ProcessLookupError:
        parent = None
    if parent is not None:
        print("watching", flush=True)
        _wait(parent)
    try:
        restore_journal(journal)
    except (WeftError, OSError) as error:
        print(f"weft: {error}", file=sys.stderr)
        return 1
    return 0


def _wait(parent: int) -> None:
    """Until the parent closes the pipe, or dies while a child of its own still holds the pipe."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    poll.register(parent, select.POLLIN)
    poll.poll()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
