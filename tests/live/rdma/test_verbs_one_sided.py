"""One-sided operations over verbs, their contents checked, and what each endpoint refuses."""

from __future__ import annotations

import pytest
from verbs_pairs import loop, opened, pair, served, settings

from weft._core import Availability, StopFlag, complete, serve_window, stream
from weft.errors import InputError

MODES = pytest.mark.parametrize("events", [False, True], ids=["polling", "events"])
LEGAL = {
    "rc": {"send", "write", "write-imm", "read", "fetch-add", "compare-swap"},
    "uc": {"send", "write", "write-imm"},
    "ud": {"send"},
}


@MODES
@pytest.mark.parametrize("size", [8, 1024, 9001])
@pytest.mark.parametrize("op", ["write", "read"])
def test_what_is_written_and_read_is_what_is_there(
    device: Availability, op: str, size: int, events: bool
) -> None:
    # Complete reads each write back; a read finds what serve_window put into the window.
    fields = {"send_bytes": size, "receive_bytes": 8, "remote_bytes": size, "events": events}
    spec = loop(bytes=size, op=op, validate=True, block=events)
    with pair(device=device.device, depth=4, receive_depth=4, **fields) as (a, b):
        result, other = served(
            lambda stop: complete(a, spec, stop), lambda stop: serve_window([b], spec, stop)
        )
    assert result.counts.error == other.error == ""
    assert (result.counts.sent, result.counts.corrupted) == (20, 0)


@MODES
@pytest.mark.parametrize("op", ["fetch-add", "compare-swap"])
def test_atomics_return_the_value_before_each(device: Availability, op: str, events: bool) -> None:
    if op not in device.operations:
        pytest.skip(f"rdma: {device.device} has no atomics")
    spec = loop(bytes=8, op=op, validate=True, block=events)
    with pair(device=device.device, remote_bytes=8, events=events) as (a, b):
        result, _ = served(
            lambda stop: complete(a, spec, stop), lambda stop: serve_window([b], spec, stop)
        )
    assert (result.counts.error, result.counts.sent, result.counts.corrupted) == ("", 20, 0)


@pytest.mark.parametrize("op", ["write", "read", "fetch-add"])
def test_many_one_sided_operations_are_outstanding_at_once(device: Availability, op: str) -> None:
    spec = loop(bytes=2048 if op != "fetch-add" else 8, op=op, count=100)
    fields = {"send_bytes": 2048, "receive_bytes": 8, "remote_bytes": 2048, "depth": 16}
    with pair(device=device.device, **fields) as (a, b):
        result, _ = served(
            lambda stop: stream([a], spec, stop, window=16, post_list=4, signal_every=8),
            lambda stop: serve_window([b], spec, stop),
        )
    assert (result.error, result.sent) == ("", 100)


@pytest.mark.parametrize("kind", LEGAL)
@pytest.mark.parametrize("op", [*sorted(LEGAL["rc"]), "tagged", "inject"])
def test_an_endpoint_takes_its_operations_and_refuses_the_others(
    device: Availability, kind: str, op: str
) -> None:
    spec = loop(bytes=8, op=op, count=5)
    fields = {"remote_bytes": 64, "depth": 8, "receive_depth": 8}
    with pair(device=device.device, endpoint=kind, **fields) as (a, b):
        result, _ = served(
            lambda stop: complete(a, spec, stop), lambda stop: serve_window([b], spec, stop)
        )
    if op in LEGAL[kind]:
        assert (result.counts.error, result.counts.sent) == ("", 5)
    else:
        assert f"{kind} endpoints have no {op}; use " in result.counts.error
        assert result.counts.sent == 0


def test_operations_outside_the_peers_window_are_refused_before_they_leave(
    device: Availability,
) -> None:
    spec = loop(bytes=64, op="write", count=1)
    fields = {"remote_bytes": 63, "send_bytes": 64}
    with pair(device=device.device, **fields) as (a, _):
        result = complete(a, spec, StopFlag())
    assert "leaves the peer's window of 63 B" in result.counts.error


def test_sends_longer_than_the_peer_receives_are_refused_before_they_leave(
    device: Availability,
) -> None:
    ours = settings(device=device.device, send_bytes=128)
    theirs = settings(device=device.device, receive_bytes=100)
    with opened(ours, theirs) as (a, b):
        a.connect(b.address(), 1000)
        b.connect(a.address(), 1000)
        result = complete(a, loop(bytes=128, count=1), StopFlag())
    assert "send of 128 B exceeds the agreed 100 B" in result.counts.error


@pytest.mark.parametrize(
    "address", [b"", b"tcp 127.0.0.1 5", b"verbs1 rc", b"verbs1 rc 1 2 3 zz 400 1 1 1 1 1", b"\0"]
)
def test_an_address_that_is_not_one_is_refused(device: Availability, address: bytes) -> None:
    with (
        opened(settings(device=device.device)) as (endpoint,),
        pytest.raises(InputError, match="not one of the verbs transport"),
    ):
        endpoint.connect(address, 1000)


def test_endpoints_of_different_kinds_do_not_connect(device: Availability) -> None:
    ours = settings(device=device.device, endpoint="rc")
    theirs = settings(device=device.device, endpoint="ud")
    with (
        opened(ours, theirs) as (a, b),
        pytest.raises(InputError, match="our endpoint is rc, the peer's ud"),
    ):
        a.connect(b.address(), 1000)
