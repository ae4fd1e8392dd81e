"""Testbeds that stay: built once, found again, and removed with all they made and nothing else."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from needs import need_namespaces

from weft.cli import main
from weft.errors import InputError
from weft.host.net import namespaces
from weft.host.net.caps import cap_links
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import SHAPES, Wiring

NAME = f"test-{os.getpid()}"
WIRING = Wiring(hosts=("h1", "h2"), rate_bps=200_000_000)
UP = ["testbed", "up", "--name", NAME, "--hosts", "2", "--rate", "200M"]
LIMIT_S = 60


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    need_namespaces()
    yield
    persistent.remove_testbed(NAME)
    assert traces() == []


def traces(dead: int = 0) -> list[Path]:
    """All that a testbed of this name could leave, or that process, which is dead."""
    marks = (f"weft-{NAME}-*", f"{NAME}.*", f"weft-{dead}-*")
    places = (namespaces.DIRECTORY, namespaces.FILES, persistent.STATES)
    return [path for place in places for mark in marks for path in place.glob(mark)]


def weft(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft.cli", *argv],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


# ---- Reach ------------------------------------------------------------------------------------


def all_reach_all(bed: Testbed) -> None:
    """A datagram from each host to each other, by name's address; who got it tells from whom."""
    with ExitStack() as opened:
        ends = {}
        for host in bed.wiring.hosts:
            made = namespaces.run_inside(
                bed.namespaces[host], lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            )
            ends[host] = opened.enter_context(made)
            made.bind((bed.addresses[host], 7000))
            made.settimeout(5)
        for source in ends:
            for target in ends:
                ends[source].sendto(f"{source} {target}".encode(), (bed.addresses[target], 7000))
                got, (address, _) = ends[target].recvfrom(100)
                assert got.decode() == f"{source} {target}"
                assert address == bed.addresses[source]


@pytest.mark.parametrize("shape", SHAPES)
def test_in_every_shape_all_hosts_reach_all_others(shape: str) -> None:
    hosts = tuple(f"h{n}" for n in range(1, 8))
    wiring = Wiring(hosts=hosts, rate_bps=10**9, switches=shape, leaves=3)  # type: ignore[arg-type]
    with testbed(wiring) as bed:
        all_reach_all(bed)
        # A frame to no one's address must not go round and round in a ring of switches.
        inside = bed.namespaces["h1"]
        lost = namespaces.run_inside(
            inside, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        )
        with lost:
            lost.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            lost.sendto(b"all", ("10.77.0.255", 7000))
        time.sleep(0.2)
        passed = [bed.read_port_counters(host).packets for host in hosts]
        assert max(passed) < 100


# ---- Up, exec, status, down -------------------------------------------------------------------


def test_up_twice_is_up_and_other_parameters_are_refused_with_the_difference() -> None:
    assert persistent.build_testbed(NAME, WIRING)[1]
    before = persistent.read_state(NAME)
    assert not persistent.build_testbed(NAME, WIRING)[1]
    assert persistent.read_state(NAME) == before
    refused = weft(*UP[:-1], "100M")
    assert refused.returncode == 2
    assert refused.stderr == (
        f"weft: testbed {NAME}: is up with rate_bps 200000000, not 100000000; "
        f"run `weft testbed down --name {NAME}`, then up again\n"
    )


def test_commands_run_on_hosts_with_their_names_and_give_their_status() -> None:
    built = weft(*UP, "--json")
    assert json.loads(built.stdout)["built"] is True
    script = "hostname; getent hosts h2 | cut -d' ' -f1; exit 7"
    done = weft("testbed", "exec", "--name", NAME, "h1", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (7, "h1\n10.77.0.2\n")
    unknown = weft("testbed", "exec", "--name", NAME, "h9", "--", "true")
    assert unknown.returncode == 2
    assert unknown.stderr == "weft: testbed: no host or switch 'h9'; there are switch, h1, h2\n"


def test_status_reads_rates_from_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    bed, _ = persistent.build_testbed(NAME, WIRING)
    assert main(["testbed", "status", "--name", NAME, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["testbeds"]
    assert {port["rate_bps"] for port in shown["ports"]} == {200_000_000}
    with cap_links(bed.ends("h2"), percent=25):
        assert main(["testbed", "status", "--name", NAME]) == 1
        message = capsys.readouterr().out
        assert message.startswith(f"testbed {NAME}: damaged, ")
        assert "h2 eth0 is at 50000000 b/s, not 200000000" in message
    assert main(["testbed", "status", "--name", NAME]) == 0


def test_a_cable_that_is_lost_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    bed, _ = persistent.build_testbed(NAME, WIRING)
    namespaces.run_command(["ip", "-n", bed.namespaces["h1"], "link", "del", "eth0"])
    lost = "has lost the cable h1 eth0 - switch port1"
    assert main(["testbed", "status", "--name", NAME]) == 1
    head, problem = capsys.readouterr().out.splitlines()
    assert (head, problem) == (f"testbed {NAME}: damaged, 0 processes on its hosts", f"  {lost}")
    remedy = f"run `weft testbed down --name {NAME}`, then up again"
    for argv in (UP, ["testbed", "exec", "--name", NAME, "h1", "--", "true"]):
        refused = weft(*argv)
        assert (refused.returncode, refused.stderr) == (
            2,
            f"weft: testbed {NAME}: {lost}; {remedy}\n",
        )


def test_down_ends_what_runs_on_the_hosts() -> None:
    bed, _ = persistent.build_testbed(NAME, WIRING)
    with bed.spawn("h1", ["sleep", "100"]) as sleeper:
        time.sleep(0.2)
        assert weft("testbed", "down", "--name", NAME).returncode == 0
        assert sleeper.wait(10) != 0


def test_two_testbeds_stand_side_by_side() -> None:
    other = f"{NAME}-b"
    try:
        first, _ = persistent.build_testbed(NAME, WIRING)
        second, _ = persistent.build_testbed(other, WIRING)
        all_reach_all(first)
        all_reach_all(second)
        assert {NAME, other} <= set(persistent.list_testbeds())
    finally:
        persistent.remove_testbed(other)
    all_reach_all(persistent.find_testbed(NAME))


def test_a_testbed_in_use_is_not_changed() -> None:
    persistent.build_testbed(NAME, WIRING)
    with persistent.use_testbed(NAME, "profile"):
        message = f"testbed {NAME}: is in use by process {os.getpid()}"
        with pytest.raises(InputError, match=message):
            persistent.remove_testbed(NAME, wait_s=0.1)
    assert len(persistent.remove_testbed(NAME)) == 3


def test_ups_at_the_same_time_build_it_once() -> None:
    argv = [sys.executable, "-m", "weft.cli", *UP, "--json"]
    ups = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    built = [json.loads(process.communicate(timeout=LIMIT_S)[0])["built"] for process in ups]
    assert sorted(built) == [False, False, False, True]


# ---- Crashes ----------------------------------------------------------------------------------

CRASHING = """
import os, signal, subprocess, sys
from weft.host.testbed import persistent
from weft.host.testbed.wiring import Wiring
left = int(sys.argv[2])
print(os.getpid(), flush=True)
def dying(function):
    def call(*args, **kwargs):
        global left
        result = function(*args, **kwargs)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
persistent._write_state = dying(persistent._write_state)
subprocess.run = dying(subprocess.run)
persistent.build_testbed(sys.argv[1], Wiring(hosts=("h1", "h2"), rate_bps=200_000_000))
"""


def crash(after: int) -> int:
    """Builds, and dies after so many writes of state and commands: its number, 0 if it lived."""
    argv = [sys.executable, "-c", CRASHING, NAME, str(after)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, timeout=LIMIT_S, check=False)
    return int(done.stdout) if done.returncode == -signal.SIGKILL else 0


def test_after_a_crash_at_any_step_down_leaves_nothing() -> None:
    steps = 0
    while dead := crash(steps + 1):
        steps += 1
        persistent.remove_testbed(NAME)
        left = [path for path in traces(dead) if path.suffix != ".lock"]
        assert left == [], f"after {steps} steps"
    print(f"{steps} points of crashing")
    assert steps > 20


def test_after_a_crash_up_builds_it_anew() -> None:
    assert crash(15)
    problems = persistent.read_status(NAME)
    assert problems is not None
    assert "was not finished, at: " in problems.problems[0]
    assert weft("testbed", "status", "--name", NAME).stdout.startswith(f"testbed {NAME}: damaged, ")
    with pytest.raises(InputError, match="was not finished"):
        persistent.find_testbed(NAME)
    bed, built = persistent.build_testbed(NAME, WIRING)
    assert built
    all_reach_all(bed)


def test_an_error_while_building_removes_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    real = namespaces.run_command

    def failing(argv: list[str], text: str | None = None) -> str:
        if "fdb" in (text or ""):
            raise InputError("bridge", "no memory")
        return real(argv, text)

    monkeypatch.setattr(namespaces, "run_command", failing)
    with pytest.raises(InputError, match="no memory"):
        persistent.build_testbed(NAME, WIRING)
    assert traces() == []


# ---- What is not ours -------------------------------------------------------------------------


@pytest.fixture
def foreign() -> Iterator[str]:
    name = f"foreign-{os.getpid()}"
    namespaces.run_command(["ip", "netns", "add", name])
    yield name
    namespaces.run_command(["ip", "netns", "del", name])


def test_namespaces_of_others_stay(foreign: str) -> None:
    others = {path: path.stat().st_ino for path in namespaces.DIRECTORY.iterdir()}
    with subprocess.Popen(["ip", "netns", "exec", foreign, "sleep", "100"]) as sleeper:
        persistent.build_testbed(NAME, WIRING)
        persistent.remove_testbed(NAME)
        assert sleeper.poll() is None
        sleeper.kill()
    assert others == {path: path.stat().st_ino for path in others}


def test_a_namespace_that_has_our_name_but_is_not_ours_is_refused_and_stays() -> None:
    taken = f"weft-{NAME}-h2"
    namespaces.run_command(["ip", "netns", "add", taken])
    try:
        with pytest.raises(InputError, match=f"{taken}: exists already, and no testbed"):
            persistent.build_testbed(NAME, WIRING)
        persistent.remove_testbed(NAME)
        assert (namespaces.DIRECTORY / taken).exists()
    finally:
        namespaces.run_command(["ip", "netns", "del", taken])


def test_a_namespace_that_was_exchanged_is_told_and_stays() -> None:
    taken = f"weft-{NAME}-h2"
    persistent.build_testbed(NAME, WIRING)
    # Another one first, or the kernel may give the new one the same number again.
    namespaces.run_command(["ip", "netns", "add", f"{taken}-new"])
    namespaces.run_command(["ip", "netns", "del", taken])
    place = namespaces.DIRECTORY / taken
    namespaces.run_command(["ip", "netns", "add", taken])
    try:
        with pytest.raises(InputError, match="has lost h2; run `weft testbed down"):
            persistent.build_testbed(NAME, WIRING)
        assert persistent.remove_testbed(NAME) == [f"weft-{NAME}-switch", f"weft-{NAME}-h1"]
        assert place.exists()
    finally:
        namespaces.run_command(["ip", "netns", "del", taken])
        namespaces.run_command(["ip", "netns", "del", f"{taken}-new"])
