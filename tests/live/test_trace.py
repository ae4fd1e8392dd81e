"""The estimate from one traced run beside the same program run at smaller shares of a real link."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from needs import need_namespaces
from traffic import watched

from weft.host.testbed.build import testbed
from weft.host.testbed.wiring import Wiring
from weft.sensitivity.run_command import record_trace
from weft.sensitivity.trace import Estimate, estimate

RATE_BPS = 100_000_000
SHARES = (0.5, 0.25)

TRIES = 3
SERVE = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listening", flush=True)
    with server.accept()[0] as connection:
        while size := connection.recv(8, socket.MSG_WAITALL):
            left = int.from_bytes(size, "big")
            while left:
                left -= len(connection.recv(min(left, 65536)))
            connection.sendall(b"1")
"""
PROGRAM = """
import socket, sys, threading, time
address, kind = sys.argv[1:]
connection = socket.create_connection((address, 5000))

def send(size):
    connection.sendall(size.to_bytes(8, "big") + bytes(size))
    assert connection.recv(1) == b"1"

def compute(seconds):
    until = time.monotonic() + seconds  # others' load must not change how long it takes
    while time.monotonic() < until:
        sum(range(100))

for _ in range(6):
    if kind == "serial":  # 6 (0.2 + 0.12 / b)
        compute(0.2)
        send(1_500_000)
    elif kind == "hidden":  # 6 max(0.3, 0.12 / b)
        sender = threading.Thread(target=send, args=(1_500_000,))
        sender.start()
        compute(0.3)
        sender.join()
    else:
        compute(0.3)
"""


@pytest.fixture(autouse=True)
def _needs() -> None:
    need_namespaces()


def wiring(share: float) -> Wiring:
    return Wiring(hosts=("a", "b"), rate_bps=round(share * RATE_BPS), limit_bytes=100 * 1514)


@contextmanager
def started(share: float, kind: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The program on a link of that share, and a process that stays on its host as long."""
    with testbed(wiring(share)) as bed, ExitStack() as until:
        address = bed.addresses["b"]
        server = bed.spawn("b", [sys.executable, "-c", SERVE, address], stdout=subprocess.PIPE)
        until.enter_context(server)
        assert server.stdout is not None
        assert server.stdout.readline() == b"listening\n"
        stays = until.enter_context(bed.spawn("a", ["cat"], stdin=subprocess.PIPE))
        time.sleep(0.3)  # until it is in its namespace
        yield bed.spawn("a", [sys.executable, "-c", PROGRAM, address, kind]), stays.pid


def traced(kind: str) -> tuple[Estimate, float]:
    with started(1, kind) as (process, pid):
        begun = time.monotonic()
        trace = record_trace(process, interface="eth0", link_bps=RATE_BPS, network_pid=pid)
        assert process.returncode == 0
        return estimate(trace), time.monotonic() - begun


def time_at(share: float, kind: str) -> float:
    with started(share, kind) as (process, _):
        begun = time.monotonic()
        assert process.wait(60) == 0
        return time.monotonic() - begun


@pytest.mark.parametrize("kind", ["serial", "hidden", "compute"])
def test_one_traced_run_tells_how_the_program_fares_with_less(kind: str) -> None:
    for _ in range(TRIES):
        with watched() as machine:
            result, whole_s = traced(kind)
            seen = pytest.approx([time_at(share, kind) / whole_s for share in SHARES], rel=0.2)
        message = [float(result.model.slowdown(share)) for share in SHARES]
        print(f"{kind}: estimated {message}, measured {seen}")
        if message == seen:
            break
    if message != seen and machine.trouble:
        pytest.skip(machine.trouble)
    assert message == seen
