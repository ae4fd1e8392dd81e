"""Shared memory that libfabric's shm provider leaves behind when a process is killed.

Each endpoint is a file of about 16 MiB in /dev/shm, named `pid:uid:number`. The provider removes it
when the endpoint is closed and on SIGTERM; kill -9 leaves it. Entry point: `remove_stale`.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

DIRECTORY = Path("/dev/shm")
_NAME = re.compile(r"(?P<pid>[1-9]\d*):(?P<uid>\d+):\d+")


def remove_stale(pid: int | None = None, directory: Path = DIRECTORY) -> list[Path]:
    """Remove the files of this process, or of every process, that no longer lives; say which.

    What another user owns stays, unless we may remove it. Processes of other containers cannot be
    seen: where containers share /dev/shm, name the process.
    """
    removed = []
    for path in find_stale(pid, directory):
        try:
            path.unlink()
        except (FileNotFoundError, PermissionError):
            continue
        removed.append(path)
    return removed


def find_stale(pid: int | None = None, directory: Path = DIRECTORY) -> list[Path]:
    """Files of libfabric's shm provider whose process has ended."""
    try:
        files = sorted(directory.iterdir())
    except OSError:
        return []
    return [path for path in files if _is_stale(path, pid)]


def _is_stale(path: Path, pid: int | None) -> bool:
    name = _NAME.fullmatch(path.name)
    if name is None or (pid is not None and int(name["pid"]) != pid):
        return False
    try:
        status = path.lstat()
    except OSError:
        return False
    is_endpoint = stat.S_ISREG(status.st_mode) and status.st_uid == int(name["uid"])
    return is_endpoint and not _is_alive(int(name["pid"]))


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent to notice its end does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Path(f"/proc/{pid}").exists()
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")
