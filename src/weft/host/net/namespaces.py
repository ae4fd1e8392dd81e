"""weft's network namespaces: create, enter, and remove them even after their creator has died.

Namespaces that end with a process are named `weft-PID-START-NAME` after its number and start time,
so those of dead processes can be recognised and removed. A namespace has a hosts file in
/etc/netns, which commands inside see as /etc/hosts. Entry points: `create`, `remove`,
`remove_leftovers`, `run_inside`, `spawn`, `enter`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from weft.errors import InputError
from weft.host.machine.processes import end_with_parent, read_start_ticks

DIRECTORY = Path("/run/netns")
FILES = Path("/etc/netns")
COMMAND_TIMEOUT_S = 30
KILL_TIMEOUT_S = 3.0
_OURS = re.compile(r"weft-(\d+)-(\d+)-.+")
PROGRAMS = ("ip", "bridge")
CLONE_NEWNET, CLONE_NEWUTS = 0x40000000, 0x04000000
# Loaded now: nothing may be loaded between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")


class NamespaceGone(InputError):
    """There is no such namespace, or not any more."""

    @classmethod
    def of(cls, name: str) -> NamespaceGone:
        return cls(name, "no such network namespace", "see `ip netns`")


def find_obstacle() -> str | None:
    """Why this process cannot create namespaces; None if it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"no {', '.join(missing)}: install iproute2"
    if os.geteuid() != 0:
        return "not root"
    name = build_name("try")
    done = _try_command(["ip", "netns", "add", name])
    remove(name)
    return None if done.returncode == 0 else f"ip netns add: {done.stderr.strip()}"


def build_name(name: str) -> str:
    pid = os.getpid()
    return f"weft-{pid}-{read_start_ticks(pid)}-{name}"


def create(namespace: str, hosts: str = "") -> None:
    """A new namespace with its loopback up; `hosts` is its /etc/hosts."""
    run_command(["ip", "netns", "add", namespace])
    run_command(["ip", "-n", namespace, "link", "set", "lo", "up"])
    if hosts:
        _write_hosts(namespace, hosts)


def _write_hosts(namespace: str, text: str) -> None:
    while True:
        try:
            (FILES / namespace).mkdir(parents=True, exist_ok=True)
            (FILES / namespace / "hosts").write_text(text)
        except (FileNotFoundError, FileExistsError):
            continue  # another testbed has just removed the empty folder
        return


def remove_files(namespace: str) -> None:
    """Removes the hosts file, and its folder if empty."""
    (FILES / namespace / "hosts").unlink(missing_ok=True)
    with suppress(OSError):  # missing, or not empty
        (FILES / namespace).rmdir()
        FILES.rmdir()


def remove(namespace: str) -> None:
    """Ends all processes inside, deletes the namespace and its files; nothing if it is gone."""
    remove_files(namespace)
    if not (DIRECTORY / namespace).exists():
        return
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (pids := list_pids(namespace)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    _try_command(["ip", "netns", "del", namespace])


def remove_leftovers() -> list[str]:
    """Removes namespaces whose creator is dead; returns their names."""
    places = [folder for folder in (DIRECTORY, FILES) if folder.is_dir()]
    names = {path.name for folder in places for path in folder.glob("weft-*")}
    dead = sorted(name for name in names if is_orphan(name))
    for name in dead:
        remove(name)
    return dead


def read_identity(namespace: str | None) -> int:
    """The inode of a namespace, the same from everywhere; None: our namespace."""
    path = Path("/proc/thread-self/ns/net") if namespace is None else DIRECTORY / namespace
    try:
        return path.stat().st_ino
    except FileNotFoundError as error:
        raise NamespaceGone.of(str(namespace)) from error


def find_by_identity(wanted: int) -> str | None:
    """A name or path of the namespace with this identity: its name, or that of a process inside."""
    for path in (*DIRECTORY.glob("*"), *Path("/proc").glob("[0-9]*/ns/net")):
        with suppress(OSError):  # it has ended
            if path.stat().st_ino == wanted:
                return path.name if path.parent == DIRECTORY else str(path)
    return None


def run_inside(namespace: str | None, function: Callable[[], _T]) -> _T:
    """The result of a function run inside a namespace (a name or a path; None: ours).

    A separate thread enters, because a namespace belongs to a thread: its sockets and its files of
    /proc/sys/net are those of the namespace, and this thread stays where it is.
    """
    if namespace is None:
        return function()

    def run() -> _T:
        enter(namespace)
        return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def enter(namespace: str) -> None:
    """Moves this thread into a namespace; it does not come back."""
    try:
        handle = os.open(DIRECTORY / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NamespaceGone.of(namespace) from error
    try:
        if _LIBC.setns(handle, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            # `ip netns del` unmounts the namespace first, and then removes its file.
            kind = NamespaceGone if number == errno.EINVAL else InputError
            raise kind(namespace, f"cannot be entered: {os.strerror(number)}", "be root")
    finally:
        os.close(handle)


def spawn(
    namespace: str | None,
    argv: Sequence[str],
    *,
    hostname: str = "",
    join: Callable[[], None] = lambda: None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Starts a command inside (None: our namespace). It does not outlive the calling thread.

    The new process calls `join` before it becomes the command.
    """
    inside = argv if namespace is None else ["ip", "netns", "exec", namespace, *argv]
    parent = os.getpid()

    def prepare() -> None:
        end_with_parent(parent)
        _set_hostname(hostname)
        join()

    return subprocess.Popen(inside, preexec_fn=prepare, **options)


def exec_inside(namespace: str, argv: Sequence[str], *, hostname: str) -> NoReturn:
    """Becomes a command inside: output, signals and status are the command's."""
    _set_hostname(hostname)
    signal.signal(
        signal.SIGPIPE, signal.SIG_DFL
    )  # Python ignores SIGPIPE, and commands would inherit that
    os.execvp("ip", ["ip", "netns", "exec", namespace, *argv])


def _set_hostname(hostname: str) -> None:
    """Sets the host name for this process and its children only."""
    if hostname and _LIBC.unshare(CLONE_NEWUTS) == 0:
        socket.sethostname(hostname)


def run_command(argv: Sequence[str], text: str | None = None) -> str:
    """The output of a command; its failure is an InputError."""
    done = _try_command(argv, text)
    if done.returncode:
        raise InputError(" ".join(argv), done.stderr.strip() or f"status {done.returncode}")
    return done.stdout


def _try_command(argv: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )


def is_orphan(name: str) -> bool:
    match = _OURS.fullmatch(name)
    return match is not None and read_start_ticks(int(match[1])) != int(match[2])


def list_pids(namespace: str) -> list[int]:
    """The processes inside."""
    return [int(pid) for pid in _try_command(["ip", "netns", "pids", namespace]).stdout.split()]
