"""Messages over verbs: every kind of endpoint, polling and events, sizes below and above the MTU.

Contents are checked by the loops themselves (`validate`). Times are not looked at: the device may
be a software one in an emulated machine.
"""

from __future__ import annotations

from typing import Any

import pytest
from verbs_pairs import drained, loop, loopback, pair, served

from weft._core import (
    Availability,
    StopFlag,
    complete,
    duplex,
    echo,
    ping_pong,
    sink,
    stream,
    transfer_receive,
    transfer_send,
)

KINDS = ("rc", "uc", "ud")
MODES = pytest.mark.parametrize("events", [False, True], ids=["polling", "events"])
DEPTHS = {"depth": 16, "receive_depth": 64}


def sizes(kind: str, device: Availability) -> list[int]:
    mtu = int(device.facts["mtu_bytes"])
    return [1, 8, mtu] if kind == "ud" else [1, 8, mtu, mtu + 1, 5 * mtu + 3]


@MODES
@pytest.mark.parametrize("kind", KINDS)
def test_every_message_comes_back_whole(device: Availability, kind: str, events: bool) -> None:
    for size in sizes(kind, device):
        fields: dict[str, Any] = {"send_bytes": size, "receive_bytes": size, "events": events}
        spec = loop(bytes=size, validate=True, block=events, warmup=2)
        with pair(endpoint=kind, **DEPTHS, **fields) as (a, b):
            result, served_ = served(
                lambda stop, a=a, spec=spec: ping_pong(a, spec, stop),
                lambda stop, b=b, spec=spec: echo(b, spec, stop),
            )
        counts = result.counts
        assert counts.error == served_.error == ""
        assert (counts.sent, counts.received, counts.lost, counts.corrupted) == (20, 20, 0, 0)
        assert result.latency.count == 20
        assert counts.bytes == 20 * size


@pytest.mark.parametrize("size", [1, 63, 64, 65])
@pytest.mark.parametrize("kind", KINDS)
def test_inline_messages_are_whole_on_both_sides_of_the_limit(
    device: Availability, kind: str, size: int
) -> None:
    fields = {"send_bytes": size, "receive_bytes": size, "inline_bytes": 64}
    spec = loop(bytes=size, validate=True)
    with pair(device=device.device, endpoint=kind, **DEPTHS, **fields) as (a, b):
        assert a.describe()["inline_bytes"] == "64"
        result, _ = served(lambda s: ping_pong(a, spec, s), lambda s: echo(b, spec, s))
    assert (result.counts.received, result.counts.corrupted) == (20, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_at_odd_offsets_are_whole(device: Availability, kind: str) -> None:
    fields = {"send_bytes": 100, "receive_bytes": 100, "offset": 13}
    spec = loop(bytes=100, validate=True)
    with pair(device=device.device, endpoint=kind, **DEPTHS, **fields) as (a, b):
        result, _ = served(lambda s: ping_pong(a, spec, s), lambda s: echo(b, spec, s))
    assert (result.counts.received, result.counts.corrupted) == (20, 0)


@MODES
@pytest.mark.parametrize(("post_list", "signal_every"), [(1, 1), (8, 1), (1, 16), (8, 16), (16, 5)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_arrives_in_lists_and_with_few_completions(
    device: Availability, kind: str, post_list: int, signal_every: int, events: bool
) -> None:
    fields = {"send_bytes": 512, "receive_bytes": 512, "events": events}
    spec = loop(bytes=512, count=200, validate=True, block=events, warmup=0)
    with pair(device=device.device, endpoint=kind, depth=32, receive_depth=256, **fields) as (a, b):
        sent, got = drained(
            lambda stop: stream(
                [a], spec, stop, window=32, post_list=post_list, signal_every=signal_every
            ),
            lambda stop: sink([b], spec, stop),
        )
    assert sent.error == got.error == ""
    assert sent.sent == 200
    # 256 receives are posted: none of 200 messages is lost for want of one.
    assert (got.received, got.lost, got.reordered, got.corrupted) == (200, 0, 0, 0)


def test_several_queue_pairs_carry_what_they_were_given(device: Availability) -> None:
    spec = loop(bytes=64, count=50, validate=True)
    with (
        pair(device=device.device, **DEPTHS) as (a0, b0),
        pair(device=device.device, **DEPTHS) as (a1, b1),
        pair(device=device.device, **DEPTHS) as (a2, b2),
    ):
        assert len({endpoint.describe()["qp"] for endpoint in (a0, a1, a2, b0, b1, b2)}) == 6
        sent, got = drained(
            lambda stop: stream([a0, a1, a2], spec, stop, window=8),
            lambda stop: sink([b0, b1, b2], spec, stop),
        )
    assert (sent.sent, got.received, got.corrupted) == (150, 150, 0)


def test_both_directions_at_once_lose_nothing(device: Availability) -> None:
    spec = loop(bytes=2048, count=60, validate=True)
    fields = {"send_bytes": 2048, "receive_bytes": 2048}

    def both(endpoint: Any, stop: StopFlag) -> Any:
        stop.finish_at(60)
        return duplex([endpoint], spec, stop, window=8)

    with pair(device=device.device, **DEPTHS, **fields) as (a, b):
        (sent, got), (their_sent, their_got) = served_duplex(a, b, both)
    assert sent.sent == their_sent.sent == 60
    assert got.received == their_got.received == 60
    assert got.corrupted == their_got.corrupted == 0


def served_duplex(a: Any, b: Any, both: Any) -> tuple[Any, Any]:
    # The responder ends by itself, with its count.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(both, endpoint, StopFlag()) for endpoint in (a, b)]
        first, second = (future.result(timeout=60) for future in futures)
    return first, second


@MODES
@pytest.mark.parametrize("op", ["write-imm", "send"])
@pytest.mark.parametrize("kind", ["rc", "uc"])
def test_a_bulk_transfer_arrives_whole(
    device: Availability, kind: str, op: str, events: bool
) -> None:
    size = 6000
    fields = {"send_bytes": size, "receive_bytes": size, "remote_bytes": 8 * size}
    spec = loop(bytes=size, count=40, op=op, validate=True, block=events, warmup=4)
    options = {"outstanding": 8, "signal_every": 4, "remote_slots": 8}
    with pair(
        device=device.device, endpoint=kind, events=events, depth=8, receive_depth=16, **fields
    ) as (a, b):
        sent, got = served(
            lambda stop: transfer_send(a, spec, stop, **options),
            lambda stop: transfer_receive(b, spec, stop, **options),
        )
    assert sent.error == got.error == ""
    assert (sent.received, got.received, got.corrupted, got.reordered) == (40, 40, 0, 0)


def test_one_shared_send_buffer_is_enough(device: Availability) -> None:
    spec = loop(bytes=64, count=100)
    with pair(device=device.device, one_buffer=True, **DEPTHS) as (a, b):
        sent, got = drained(
            lambda stop: stream([a], spec, stop, window=16), lambda stop: sink([b], spec, stop)
        )
    assert (sent.sent, got.received) == (100, 100)


@MODES
@pytest.mark.parametrize("kind", KINDS)
def test_an_endpoint_connected_to_itself_is_a_loopback(
    device: Availability, kind: str, events: bool
) -> None:
    spec = loop(bytes=64, count=50, block=events)
    with loopback(device=device.device, endpoint=kind, events=events, **DEPTHS) as endpoint:
        result = complete(endpoint, spec, StopFlag())
    assert result.counts.error == ""
    assert (result.counts.sent, result.latency.count) == (50, 50)
