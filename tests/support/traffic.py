"""TCP traffic between hosts of a testbed, as much as the links take, until the block ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from weft.host.testbed.build import Testbed

T = TypeVar("T")

# What the processors of a shared machine fill with ease: a port that is not full says nothing.
RATE_BPS = 20_000_000
FULL = 0.95
TRIES = 8
_TICK_S = 0.001
_LATE_S = 0.004  # what a token bucket makes good
_BUSY, _STALLED = 0.9, 0.02

RECEIVE = """
import socket, threading
def drain(connection):
    room = bytearray(1 << 18)
    while connection.recv_into(room):
        pass
with socket.create_server(("", 5000)) as server:
    print("listening", flush=True)
    while True:
        threading.Thread(target=drain, args=(server.accept()[0],), daemon=True).start()
"""
SEND = """
import socket, sys
with socket.socket() as connection:
    connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[2]) << 2)
    connection.connect((sys.argv[1], 5000))
    while True:
        connection.sendall(bytes(1 << 18))
"""


@contextmanager
def streams(bed: Testbed, target: str, dscps: Mapping[str, int]) -> Iterator[None]:
    """Each source sends to the target, its packets marked."""
    with ExitStack() as running:
        receiver = bed.spawn(target, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
        running.callback(_end, receiver)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == b"listening\n"
        for source, dscp in dscps.items():
            argv = [sys.executable, "-c", SEND, target, str(dscp)]
            running.callback(_end, bed.spawn(source, argv))
        yield


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


class Machine:
    """What the machine did while someone looked: how busy it was, how much of the time it slept.

    A processor that another machine has is not always counted as busy; then timers fire late.
    """

    def __init__(self) -> None:
        self._before = _jiffies()
        self._over = threading.Event()
        self._began = time.monotonic()
        self._stalled_s = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            time.sleep(_TICK_S)
            self._stalled_s += max(0.0, time.monotonic() - began - _TICK_S - _LATE_S)

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        idle, total = (now - then for now, then in zip(_jiffies(), self._before, strict=True))
        self.busy = 1 - idle / max(total, 1)
        self.stalled = self._stalled_s / (time.monotonic() - self._began)

    @property
    def trouble(self) -> str | None:
        """Why it may not have done what was asked of it."""
        if self.busy > _BUSY:
            return f"processors {self.busy:.0%} busy"
        return f"timers late {self.stalled:.0%} of the time" if self.stalled > _STALLED else None


@contextmanager
def watched() -> Iterator[Machine]:
    machine = Machine()
    try:
        yield machine
    finally:
        machine.end()


def when_full(
    look: Callable[[], tuple[T, float]], is_right: Callable[[T], bool] = lambda _: True
) -> T:
    """What is seen at a port that is full, once it is right or at the last try.

    `look` gives what it sees and the port's use. Skips where the machine may have kept the port,
    or one of its queues, from filling.
    """
    for _ in range(TRIES):
        time.sleep(1.0)
        with watched() as machine:
            found, use = look()
        right = use > FULL and is_right(found)
        if right:
            break
    print(f"seen {found}, {use:.1%} used, {machine.busy:.0%} busy, {machine.stalled:.1%} stalled")
    if not right and machine.trouble:
        pytest.skip(f"{machine.trouble}, the port may not be saturated ({use:.0%} used)")
    assert use > FULL
    return found


def _jiffies() -> tuple[int, int]:
    numbers = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    return numbers[3] + numbers[4], sum(numbers)


def rate_bps(bed: Testbed, host: str, seconds: float) -> float:
    """What passes the switch's port towards a host, by the port's own counter."""
    started, before = time.monotonic(), bed.read_port_counters(host).bytes
    time.sleep(seconds)
    passed = bed.read_port_counters(host).bytes - before
    return 8 * passed / (time.monotonic() - started)
