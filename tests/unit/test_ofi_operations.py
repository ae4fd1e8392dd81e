"""Every provider and endpoint kind of libfabric: what is sent, written or read arrives intact."""

from __future__ import annotations

import pytest
from ofi_pair import ATOMICS, KINDS, ONE_SIDED, TAGGED, connected, loop

from weft import _core
from weft._core import StopFlag

COUNT = 40
DATAGRAM_BYTES = 1472  # udp: what fits one Ethernet frame
SIZES = (0, 1, 64, 4096, 1 << 20)

_EXCHANGES = [(kind, op) for kind, ops in KINDS.items() for op in ops if op in TAGGED]
_ACCESSES = [(kind, op) for kind, ops in KINDS.items() for op in ops if op in ONE_SIDED]
_COUNTERS = [(kind, op) for kind, ops in KINDS.items() for op in ops if op in ATOMICS]


@pytest.mark.parametrize(("kind", "op"), _EXCHANGES, ids=lambda value: str(value))
def test_messages_come_back_as_sent(kind: tuple[str, str], op: str) -> None:
    with connected(*kind, send_bytes=64, receive_bytes=64) as pair:
        spec = loop(count=COUNT, bytes=64, op=op, validate=True)
        with pair.served(lambda theirs, stop: _core.echo(theirs, spec, stop)):
            counts = _core.ping_pong(pair.ours, spec, StopFlag()).counts
    assert counts.error == ""
    assert (counts.sent, counts.received, counts.corrupted) == (COUNT, COUNT, 0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_size_comes_back_as_sent(kind: tuple[str, str], size: int) -> None:
    if kind == ("udp", "dgram"):
        size = min(size, DATAGRAM_BYTES)
    with connected(*kind, send_bytes=size, receive_bytes=size) as pair:
        spec = loop(count=4, bytes=size, validate=True)
        with pair.served(lambda theirs, stop: _core.echo(theirs, spec, stop)):
            counts = _core.ping_pong(pair.ours, spec, StopFlag()).counts
    assert counts.error == ""
    assert (counts.received, counts.corrupted, counts.bytes) == (4, 0, 4 * size)


@pytest.mark.parametrize("size", [8, 4096, 1 << 20])
@pytest.mark.parametrize(("kind", "op"), _ACCESSES, ids=lambda value: str(value))
def test_what_is_written_is_there_and_what_is_there_is_read(
    kind: tuple[str, str], op: str, size: int
) -> None:
    fields = {"send_bytes": size, "receive_bytes": size, "remote_bytes": size}
    with connected(*kind, **fields) as pair:
        spec = loop(count=4, bytes=size, op=op, validate=True)
        with pair.served(lambda theirs, stop: _core.serve_window([theirs], spec, stop)):
            counts = _core.complete(pair.ours, spec, StopFlag()).counts
    assert counts.error == ""
    assert (counts.sent, counts.corrupted) == (4, 0)


@pytest.mark.parametrize(("kind", "op"), _COUNTERS, ids=lambda value: str(value))
def test_each_atomic_finds_the_number_of_those_before_it(kind: tuple[str, str], op: str) -> None:
    with connected(*kind, remote_bytes=64) as pair:
        spec = loop(count=COUNT, bytes=8, op=op, validate=True)
        with pair.served(lambda theirs, stop: _core.serve_window([theirs], spec, stop)):
            counts = _core.complete(pair.ours, spec, StopFlag()).counts
    assert counts.error == ""
    assert (counts.sent, counts.corrupted) == (COUNT, 0)


@pytest.mark.parametrize("op", ["write-imm", "send"])
@pytest.mark.parametrize("signal_every", [1, 4])
@pytest.mark.parametrize("kind", [k for k, ops in KINDS.items() if "write" in ops], ids=str)
def test_a_bulk_transfer_with_credits_arrives_complete(
    kind: tuple[str, str], signal_every: int, op: str
) -> None:
    fields = {"send_bytes": 4096, "receive_bytes": 4096, "remote_bytes": 8 * 4096}
    with connected(*kind, **fields) as pair:
        spec = loop(count=COUNT, bytes=4096, op=op, validate=True)
        options = {"outstanding": 8, "signal_every": signal_every, "remote_slots": 8}
        with pair.served(
            lambda theirs, stop: _core.transfer_receive(theirs, spec, stop, **options)
        ) as results:
            sent = _core.transfer_send(pair.ours, spec, StopFlag(), **options)
    assert (sent.error, results[0].error) == ("", "")
    assert (sent.sent, results[0].received, results[0].corrupted) == (COUNT, COUNT, 0)


@pytest.mark.parametrize("kind", [k for k in KINDS if k[1] != "dgram"], ids=str)
def test_lists_of_unsignaled_messages_all_arrive(kind: tuple[str, str]) -> None:
    with connected(*kind) as pair:
        spec = loop(count=200, bytes=64)
        finish = StopFlag()
        finish.finish_at(200)
        with pair.served(lambda theirs, _stop: _core.sink([theirs], spec, finish)) as results:
            sent = _core.stream(
                [pair.ours], spec, StopFlag(), window=8, post_list=4, signal_every=4
            )
    assert (sent.error, results[0].error) == ("", "")
    assert (sent.sent, results[0].received, results[0].lost) == (200, 200, 0)
