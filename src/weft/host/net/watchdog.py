"""Restores links when the process that changed them ends, however it ends.

    python -P -m weft.host.net.watchdog PID JOURNAL

A session of its own, so that a terminal's signals do not reach it. It waits until standard
input is closed or the process PID is gone, restores what the journal lists, and ends with
status 0. Entry point: `main`.
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
    """Until the pipe from our parent closes, or it is gone though a child of its holds the pipe."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    poll.register(parent, select.POLLIN)
    poll.poll()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
