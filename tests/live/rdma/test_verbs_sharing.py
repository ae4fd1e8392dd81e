"""What queue pairs share, how they post and what they send inline: all of it carries messages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from verbs_pairs import drained, loop, loopback, opened, pair, served, settings

from weft._core import (
    Availability,
    complete,
    echo,
    ping_pong,
    serve_window,
    sink,
    stream,
    write_echo,
    write_ping_pong,
)
from weft.errors import InputError
from weft.measure import Peer, bandwidth, latency, open_peer
from weft.records import Distribution, Scalar

MEMBERS = 8


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with open_peer("local") as opened_peer:
        yield opened_peer


def count_contexts() -> int:
    """Device files that this process has open."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum("uverbs" in str(os.readlink(link)) for link in links if link.is_symlink())


def test_queue_pairs_share_one_context_and_few_registrations(device: Availability) -> None:
    before = count_contexts()
    configs = [settings(device=device.device, depth=4, receive_depth=4) for _ in range(MEMBERS)]
    with opened(*configs) as endpoints:
        assert count_contexts() - before == 1
        registrations = int(endpoints[-1].describe()["registrations"])
    # One piece for the first, then each as large as all before it together.
    assert registrations <= MEMBERS // 2
    assert count_contexts() == before


def test_separate_contexts_are_as_many_as_queue_pairs(device: Availability) -> None:
    before = count_contexts()
    configs = [settings(device=device.device, separate_contexts=True) for _ in range(MEMBERS)]
    with opened(*configs) as endpoints:
        assert count_contexts() - before == MEMBERS
        assert {e.describe()["registrations"] for e in endpoints} == {"1"}


@pytest.mark.parametrize("posting", ["wr", "list"])
@pytest.mark.parametrize("kind", ["rc", "uc", "ud"])
@pytest.mark.parametrize("size", [8, 200, 1000])
def test_both_ways_to_post_carry_the_same_messages(
    device: Availability, posting: str, kind: str, size: int
) -> None:
    spec = loop(bytes=size, validate=True)
    fields: dict[str, Any] = {
        "send_bytes": size,
        "receive_bytes": size,
        "receive_depth": 4,
        "posting": posting,
    }
    fields["inline_by_device"] = True
    with pair(device=device.device, endpoint=kind, **fields) as (a, b):
        facts = a.describe()
        result, _ = served(lambda s: ping_pong(a, spec, s), lambda s: echo(b, spec, s))
    assert (result.counts.received, result.counts.corrupted) == (20, 0)
    assert facts["posting"] == {"wr": "ibv_wr", "list": "ibv_post_send"}[posting]
    # Chosen by the device, small messages go inline, large ones never.
    assert int(facts["inline_bytes"]) == (size if size <= 256 else 0)


@pytest.mark.parametrize("posting", ["wr", "list"])
@pytest.mark.parametrize("op", ["write", "read", "fetch-add", "compare-swap"])
def test_both_ways_to_post_do_every_one_sided_operation(
    device: Availability, posting: str, op: str
) -> None:
    spec = loop(bytes=8, op=op, validate=True)
    fields: dict[str, Any] = {"send_bytes": 8, "remote_bytes": 8, "posting": posting}
    with pair(device=device.device, **fields) as (a, b):
        result, _ = served(
            lambda s: complete(a, spec, s), lambda s: serve_window([b], loop(validate=True), s)
        )
    assert (result.counts.sent, result.counts.corrupted) == (20, 0)


@pytest.mark.parametrize("events", [False, True])
def test_queue_pairs_of_a_thread_share_a_completion_queue(
    device: Availability, events: bool
) -> None:
    spec = loop(bytes=64, count=30, validate=True, block=events)
    fields = {"queue_members": 4, "depth": 8, "receive_depth": 16, "events": events}
    config = settings(device=device.device, **fields)
    with opened(*[config] * 8) as endpoints:
        ours, theirs = endpoints[:4], endpoints[4:]
        for a, b in zip(ours, theirs, strict=True):
            a.connect(b.address(), 5000)
            b.connect(a.address(), 5000)
        assert ours[0].describe()["completion_queue"] == "shared"
        sent, received = drained(
            lambda s: stream(ours, spec, s, window=8), lambda s: sink(theirs, spec, s)
        )
    assert sent.sent == received.received == 4 * 30
    assert received.corrupted == 0


@pytest.mark.parametrize("kind", ["rc", "uc"])
@pytest.mark.parametrize("size", [1, 8, 5000])
def test_a_write_ping_pong_sees_its_messages_in_memory(
    device: Availability, kind: str, size: int
) -> None:
    spec = loop(bytes=size, warmup=3, validate=True)
    fields = {"send_bytes": size, "remote_bytes": size, "depth": 2, "strict_ordering": True}
    with pair(device=device.device, endpoint=kind, **fields) as (a, b):
        assert a.describe()["ordering"] == "strict"
        result, answered = served(
            lambda s: write_ping_pong(a, spec, s), lambda s: write_echo(b, spec, s)
        )
    assert (result.counts.error, answered.error) == ("", "")
    assert (result.counts.received, result.counts.corrupted, result.counts.lost) == (20, 0, 0)
    assert result.latency.count == 20
    assert answered.sent == 23


def test_the_tests_offer_them(peer: Peer, device: Availability) -> None:
    over = f"verbs:{device.device}"
    run = latency(peer, over=over, op="write", count=30, warmup=5, validate=True, cpu="auto")
    half_rtt, corrupted = run.record.quantities["half_rtt"], run.record.quantities["corrupted"]
    assert isinstance(half_rtt, Distribution)
    assert isinstance(corrupted, Scalar)
    assert (half_rtt.histogram.count, corrupted.value) == (30, 0)
    for fields in ({"shared_cq": True, "qps": 3}, {"separate_contexts": True, "qps": 3}):
        run = bandwidth(peer, over=over, size=256, depth=4, count=30, validate=True, **fields)
        assert not run.ended


def test_what_excludes_each_other_is_refused(device: Availability, peer: Peer) -> None:
    over = f"verbs:{device.device}"
    with pytest.raises(InputError, match="a completion queue belongs to one context"):
        bandwidth(peer, over=over, shared_cq=True, separate_contexts=True)
    with pytest.raises(InputError, match="no event tells that memory changed"):
        latency(peer, over=over, op="write", wait="block")
    with (
        pytest.raises(InputError, match="posting 'both' is unknown; use auto, wr or list"),
        loopback(device=device.device, posting="both"),
    ):
        pass
