"""Namespaces as hosts: they reach each other at the rate of their ports, and leave no trace."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from needs import need_namespaces

from weft.host.net import namespaces
from weft.host.testbed.build import testbed
from weft.host.testbed.wiring import SWITCH, Wiring

RATE_BPS = 50_000_000
BURST_BYTES = 16 * 1024
WIRING = Wiring(
    hosts=("a", "b"),
    rate_bps=RATE_BPS,
    limit_bytes=64 * 1514,
    burst_bytes=BURST_BYTES,
    offloads=False,
)

RECEIVE = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listening", flush=True)
    with server.accept()[0] as connection:
        while connection.recv(65536):
            pass
"""
SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000)) as connection:
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        connection.sendall(bytes(16384))
"""


@pytest.fixture(autouse=True)
def _needs() -> None:
    need_namespaces()


def ours() -> set[str]:
    return {path.name for path in namespaces.DIRECTORY.glob(f"{namespaces.build_name('')}*")}


def test_a_port_passes_its_rate_and_no_more() -> None:
    with testbed(WIRING) as bed:
        address = bed.addresses["b"]
        receiver = bed.spawn(
            "b", [sys.executable, "-c", RECEIVE, address], stdout=subprocess.PIPE, text=True
        )
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listening\n"
        sender = bed.spawn("a", [sys.executable, "-c", SEND, address])
        time.sleep(0.5)
        started, before = time.monotonic(), bed.read_port_counters("b")
        time.sleep(0.8)
        elapsed, after = time.monotonic() - started, bed.read_port_counters("b")
        assert sender.wait(20) == 0
        assert receiver.wait(20) == 0
        receiver.stdout.close()
    bits = 8 * (after.bytes - before.bytes)
    assert 0 < bits <= RATE_BPS * elapsed * 1.03 + 8 * BURST_BYTES


def test_the_route_has_the_congestion_control_that_was_asked_for() -> None:
    with testbed(WIRING) as bed:
        for host in ("a", "b", SWITCH):
            routes = namespaces.run_command(["ip", "-n", bed.namespaces[host], "route"])
            assert "congctl cubic" in routes


def test_nothing_is_left_after_an_error_inside() -> None:
    sleepers = []

    def fail() -> None:
        with testbed(WIRING) as bed:
            sleepers.append(bed.spawn("a", ["sleep", "100"]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ours() == set()
    assert sleepers[0].wait(10) != 0


MAKER = """
from weft.host.testbed.build import testbed
from weft.host.testbed.wiring import Wiring
with testbed(Wiring(hosts=("a",), rate_bps=10**8, limit_bytes=10**5)) as bed:
    process = bed.spawn("a", ["sleep", "100"])
    print(bed.namespaces["a"], process.pid, flush=True)
    process.wait()
"""


def test_what_a_killed_process_left_is_found_and_removed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(MAKER)], stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        namespace, sleeper = maker.stdout.readline().split()
        maker.kill()
    deadline = time.monotonic() + 10
    while _lives(sleeper) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(sleeper), "a command inside outlived its parent"
    assert (namespaces.DIRECTORY / namespace).exists()
    assert namespace in namespaces.remove_leftovers()
    assert not (namespaces.DIRECTORY / namespace).exists()


def _lives(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
