"""Network namespaces of ours: made, entered, and removed even after their maker has died.

Each is named `weft-PID-START-NAME` after the process that made it and when that process started,
so that those of dead processes can be told and removed. Entry points: `create`, `remove`,
`remove_leftovers`, `spawn`.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.errors import InputError

DIRECTORY = Path("/run/netns")
COMMAND_S = 30
END_S = 3.0
_OURS = re.compile(r"weft-(\d+)-(\d+)-.+")
PROGRAMS = ("ip", "tc", "sysctl")
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # now: between fork and exec nothing may be loaded


def why_not() -> str | None:
    """What keeps this process from making namespaces; None if nothing does."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"no {', '.join(missing)}: install iproute2 and procps"
    if os.geteuid() != 0:
        return "not root"
    name = full_name("try")
    done = subprocess.run(
        ["ip", "netns", "add", name], capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    remove(name)
    return None if done.returncode == 0 else f"ip netns add: {done.stderr.strip()}"


def full_name(name: str) -> str:
    pid = os.getpid()
    return f"weft-{pid}-{_started(pid)}-{name}"


def create(name: str) -> str:
    """A new namespace with its loopback up; returns its full name."""
    namespace = full_name(name)
    command(["ip", "netns", "add", namespace])
    command(["ip", "-n", namespace, "link", "set", "lo", "up"])
    return namespace


def remove(namespace: str) -> None:
    """Ends all processes inside and deletes the namespace; nothing if it is not there."""
    if not (DIRECTORY / namespace).exists():
        return
    deadline = time.monotonic() + END_S
    while (pids := _pids(namespace)) and time.monotonic() < deadline:
        for pid in pids:
            _kill(pid)
        time.sleep(0.02)
    subprocess.run(
        ["ip", "netns", "del", namespace], capture_output=True, timeout=COMMAND_S, check=False
    )


def remove_leftovers() -> list[str]:
    """Removes namespaces whose maker is dead; returns their names."""
    found = [path.name for path in DIRECTORY.glob("weft-*")] if DIRECTORY.is_dir() else []
    dead = [name for name in found if _is_orphan(name)]
    for name in dead:
        remove(name)
    return dead


def spawn(namespace: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a command inside; it does not outlive the thread that started it."""
    inside = ["ip", "netns", "exec", namespace, *argv]
    parent = os.getpid()
    return subprocess.Popen(inside, preexec_fn=lambda: _end_with(parent), **options)


def _end_with(parent: int) -> None:
    """In the child, before the command: the signal is asked for, and our parent still lives."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def command(argv: Sequence[str], text: str | None = None) -> str:
    """Output of a command; its complaint is an InputError."""
    done = subprocess.run(
        argv, input=text, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    if done.returncode:
        raise InputError(" ".join(argv), done.stderr.strip() or f"status {done.returncode}")
    return done.stdout


def _is_orphan(name: str) -> bool:
    match = _OURS.fullmatch(name)
    return match is not None and _started(int(match[1])) != int(match[2])


def _started(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _pids(namespace: str) -> list[int]:
    done = subprocess.run(
        ["ip", "netns", "pids", namespace],
        capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    return [int(pid) for pid in done.stdout.split()]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
