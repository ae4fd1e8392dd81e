"""Pinned processes for one round of a peer: a server in the background, a client to its end.

Client and server get a CPU of their own where there are two, ours and the peers alike. Servers
die with this process and are ended by their own process group. Entry points: `serving`, `run`;
`read_answer` and `ask_peer` of programs that need no server.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0
PR_SET_PDEATHSIG = 1
LISTEN = "0A"
# A command to run every process under, ours and the peers': "chrt -f 1" where others use the CPUs.
PREFIX = "WEFT_BENCH_PREFIX"
_libc = ctypes.CDLL(None)


def cpus() -> tuple[int, int]:
    """The client's and the server's; the same one where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[1 % len(allowed)]


def free_ports(number: int) -> list[int]:
    """Ports that nobody uses now, for TCP and UDP."""
    with_sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [int(one.getsockname()[1]) for one in with_sockets]
    for one in with_sockets:
        one.close()
    return ports


def _on(cpu: int, command: Sequence[str]) -> list[str]:
    return [*shlex.split(os.environ.get(PREFIX, "")), "taskset", "-c", str(cpu), *command]


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(cpu: int, command: Sequence[str]) -> subprocess.Popen[str]:
    """A process of ours with pipes, pinned, that does not outlive us."""
    return subprocess.Popen(
        _on(cpu, command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_die_with_parent,
    )


def _start_quietly(cpu: int, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A peer's server in a process group of its own."""
    return subprocess.Popen(
        _on(cpu, command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


@contextmanager
def serving(
    command: Sequence[str], port: int, protocol: str = "tcp", *, ends_itself: bool = False
) -> Iterator[None]:
    """The peer's server, up and listening; one that ends with its client frees its own memory."""
    server = _start_quietly(cpus()[1], command)
    try:
        _wait_until_bound(server, command, port, protocol)
        yield
        if ends_itself:
            server.wait(TIMEOUT_S)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(TIMEOUT_S)


def run(command: Sequence[str]) -> str:
    """The peer's client, to its end; its output."""
    done = subprocess.run(
        _on(cpus()[0], command),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def read_answer(command: Sequence[str]) -> dict[str, Any]:
    """The JSON that a program prints at its end."""
    if (answer := ask_peer(command)) is None:
        raise SystemExit(f"{' '.join(command)}: something is not installed")
    return answer


def ask_peer(command: Sequence[str]) -> dict[str, Any] | None:
    """The same of a peer, or None where it is not installed (status 3: it says so itself)."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode == 3:
        print(done.stderr.strip(), file=sys.stderr)
        return None
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _wait_until_bound(
    server: subprocess.Popen[bytes], command: Sequence[str], port: int, protocol: str
) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if server.poll() is not None:
            raise SystemExit(f"{' '.join(command)}: ended with status {server.returncode}")
        if _is_bound(port, protocol):
            return
        time.sleep(0.01)
    raise SystemExit(f"{' '.join(command)}: not listening on port {port} after 10 s")


def _is_bound(port: int, protocol: str) -> bool:
    """Looked up, not tried: a connection would count as the peer's client."""
    for table in (protocol, f"{protocol}6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if int(local.rsplit(":", 1)[1], 16) == port and (protocol == "udp" or state == LISTEN):
                return True
    return False
