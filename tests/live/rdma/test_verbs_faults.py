"""Peers that die and devices that go away: a clear error within seconds, and no hang."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rdma_network import run
from verbs_pairs import loop, opened, settings

from weft._core import Availability, Endpoint, StopFlag, complete, ping_pong

PEER = Path(__file__).with_name("echo_peer.py")
LIMIT_S = 30.0


@contextmanager
def echo_process(endpoint: Endpoint, device: str, kind: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that answers our endpoint; killed at the end if it is still there."""
    with subprocess.Popen(
        [sys.executable, str(PEER), device, kind, endpoint.address().hex()],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout
            endpoint.connect(bytes.fromhex(process.stdout.readline()), 5000)
            yield process
        finally:
            process.kill()


def stopped_after(seconds: float) -> StopFlag:
    stop = StopFlag()
    alarm = threading.Timer(seconds, stop.set)
    alarm.daemon = True
    alarm.start()
    return stop


def at_message(stop: StopFlag, number: int, action: object) -> threading.Thread:
    """Does `action` once the loop has done so many messages."""

    def wait() -> None:
        while stop.done < number and not stop.is_set:
            time.sleep(0.01)
        assert callable(action)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("events", [False, True], ids=["polling", "events"])
def test_sends_to_a_killed_peer_are_an_error_within_seconds(
    device: Availability, events: bool
) -> None:
    config = settings(device=device.device, events=events, receive_depth=16)
    with opened(config) as (endpoint,), echo_process(endpoint, device.device, "rc") as peer:
        stop = stopped_after(2 * LIMIT_S)
        killed: list[float] = []
        at_message(stop, 10, lambda: (peer.kill(), killed.append(time.monotonic())))
        # Sends are acknowledged by the peer's device. Who waits for an answer alone is told by the
        # control connection.
        result = complete(endpoint, loop(count=10**9, block=events), stop)
        took_s = time.monotonic() - killed[0]
    assert "the peer did not answer, retries used up" in result.counts.error
    assert "is the peer alive" in result.counts.error
    assert result.counts.sent >= 10
    assert took_s < LIMIT_S


def test_a_peer_killed_before_it_answers_at_all_is_an_error(device: Availability) -> None:
    with opened(settings(device=device.device)) as (endpoint,):
        with echo_process(endpoint, device.device, "rc") as peer:
            peer.kill()
            peer.wait(30)
        result = complete(endpoint, loop(count=1), stopped_after(LIMIT_S))
    assert "the peer did not answer" in result.counts.error


def test_datagrams_to_a_killed_peer_are_counted_as_lost(device: Availability) -> None:
    config = settings(device=device.device, endpoint="ud", receive_depth=16)
    with opened(config) as (endpoint,), echo_process(endpoint, device.device, "ud") as peer:
        stop = stopped_after(LIMIT_S)
        at_message(stop, 5, peer.kill)
        spec = loop(count=40, loss_timeout_ns=50_000_000)
        result = ping_pong(endpoint, spec, stop)
    assert result.counts.error == ""
    assert result.counts.sent == 40
    assert 0 < result.counts.lost < 40
    assert result.counts.received + result.counts.lost == 40


@contextmanager
def spare_device() -> Iterator[str]:
    """One more device, on an interface of its own, that a test may take away."""
    run("ip", "link", "add", "spare", "type", "dummy")
    run("ip", "address", "add", "10.9.2.1/24", "dev", "spare")
    run("ip", "link", "set", "spare", "up")
    run("rdma", "link", "add", "rxe9", "type", "rxe", "netdev", "spare")
    try:
        yield "rxe9"
    finally:
        run("ip", "link", "delete", "spare")


@pytest.mark.parametrize("events", [False, True], ids=["polling", "events"])
@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("rdma", "link", "delete", "rxe9"), "the device was removed or failed"),
        (("ip", "link", "set", "spare", "down"), "the port went down"),
    ],
)
def test_a_device_taken_away_is_a_clear_error(
    machine: Availability, command: tuple[str, ...], problem: str, events: bool
) -> None:
    assert machine.available
    stop = stopped_after(LIMIT_S)
    with spare_device() as name:
        with opened(settings(device=name, events=events, receive_depth=8)) as (endpoint,):
            endpoint.connect(endpoint.address(), 1000)
            remover = at_message(stop, 10, lambda: run(*command, timeout_s=LIMIT_S))
            result = complete(endpoint, loop(count=10**9, block=events), stop)
        remover.join(LIMIT_S)
        assert not remover.is_alive()
    assert problem in result.counts.error
    assert f"{name} port 1: " in result.counts.error
    assert result.counts.sent >= 10


def test_a_device_that_went_away_leaves_the_others_usable(machine: Availability) -> None:
    with opened(settings(device=machine.device, receive_depth=8)) as (endpoint,):
        endpoint.connect(endpoint.address(), 1000)
        assert complete(endpoint, loop(count=5), stopped_after(LIMIT_S)).counts.sent == 5
