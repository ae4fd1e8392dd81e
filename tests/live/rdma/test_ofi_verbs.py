"""libfabric's verbs provider on a real device: connections."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from verbs_pairs import loop, opened, served, settings

from weft import _core
from weft._core import Counts, Endpoint, StopFlag

pytestmark = pytest.mark.usefixtures("machine")

CONNECT_MS = 20_000


@contextmanager
def connected(**fields: Any) -> Iterator[tuple[Endpoint, Endpoint]]:
    """Two endpoints of this process over libfabric; both connect at once."""
    address = os.environ.get("WEFT_RDMA_ADDRESS", "10.9.0.1")
    common = {
        "transport": "ofi",
        "device": "verbs",
        "endpoint": "msg",
        "address": address,
        "depth": 8,
        "receive_depth": 8,
        **fields,
    }
    with opened(settings(**common), settings(**common, server=True)) as (ours, theirs):
        thread = threading.Thread(target=lambda: theirs.connect(ours.address(), CONNECT_MS))
        thread.start()
        try:
            ours.connect(theirs.address(), CONNECT_MS)
        finally:
            thread.join()
        yield ours, theirs


def outcome(counts: Counts) -> tuple[str, int, int]:
    return counts.error, counts.sent, counts.corrupted


@pytest.mark.parametrize(("op", "size"), [("send", 65536), ("inject", 64)])
def test_messages_come_back_as_sent(op: str, size: int) -> None:
    with connected(send_bytes=size, receive_bytes=size) as (ours, theirs):
        spec = loop(bytes=size, op=op, validate=True)
        result, _ = served(
            lambda stop: _core.ping_pong(ours, spec, stop),
            lambda stop: _core.echo(theirs, spec, stop),
        )
    assert outcome(result.counts) == ("", 20, 0)


@pytest.mark.parametrize("op", ["write", "read"])
def test_what_is_written_is_there_and_what_is_there_is_read(op: str) -> None:
    fields = {"send_bytes": 65536, "receive_bytes": 65536, "remote_bytes": 65536}
    with connected(**fields) as (ours, theirs):
        spec = loop(bytes=65536, op=op, validate=True)
        result, _ = served(
            lambda stop: _core.complete(ours, spec, stop),
            lambda stop: _core.serve_window([theirs], spec, stop),
        )
    assert outcome(result.counts) == ("", 20, 0)


def test_atomics_that_would_use_the_operands_address_are_refused() -> None:
    with connected(remote_bytes=64) as (ours, _):
        counts = _core.complete(ours, loop(bytes=8, op="fetch-add"), StopFlag()).counts
    assert "the provider's msg endpoint has no fetch-add" in counts.error


def test_a_transfer_by_write_with_immediate_arrives_complete() -> None:
    fields = {"send_bytes": 4096, "receive_bytes": 4096, "remote_bytes": 8 * 4096}
    with connected(**fields) as (ours, theirs):
        spec = loop(bytes=4096, op="write-imm", validate=True)
        options = {"outstanding": 8, "signal_every": 4, "remote_slots": 8}
        sent, received = served(
            lambda stop: _core.transfer_send(ours, spec, stop, **options),
            lambda stop: _core.transfer_receive(theirs, spec, stop, **options),
        )
    assert (sent.error, sent.sent) == ("", 20)
    assert (received.error, received.received, received.corrupted) == ("", 20, 0)


def test_a_sleeping_loop_gets_every_message() -> None:
    with connected(events=True) as (ours, theirs):
        spec = loop(bytes=64, block=True, validate=True)
        result, _ = served(
            lambda stop: _core.ping_pong(ours, spec, stop),
            lambda stop: _core.echo(theirs, spec, stop),
        )
    assert outcome(result.counts) == ("", 20, 0)
