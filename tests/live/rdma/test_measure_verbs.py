"""The tests of `weft.measure` over verbs, from one process to another: they end and count right."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from weft._core import Availability
from weft.measure import (
    Measurement,
    Peer,
    bandwidth,
    latency,
    open_peer,
    paced,
    rate,
    rma,
    rperf,
    saturation,
    transfer,
)
from weft.records import Distribution, Scalar

MESSAGES = 30
FEW = {"count": MESSAGES, "warmup": 5}


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with open_peer("local") as opened:
        yield opened


@pytest.fixture
def over(device: Availability) -> str:
    return f"verbs:{device.device}"


def number(run: Measurement, name: str) -> float:
    quantity = run.record.quantities[name]
    assert isinstance(quantity, Scalar)
    return quantity.value


def samples_in(run: Measurement, name: str) -> int:
    quantity = run.record.quantities[name]
    assert isinstance(quantity, Distribution)
    return quantity.histogram.count


@pytest.mark.parametrize("wait", ["spin", "block"])
@pytest.mark.parametrize("endpoint", ["rc", "uc", "ud"])
def test_a_ping_pong_over_each_kind_of_endpoint(
    peer: Peer, over: str, endpoint: str, wait: str
) -> None:
    run = latency(peer, over=over, endpoint=endpoint, wait=wait, validate=True, **FEW)
    assert samples_in(run, "half_rtt") == MESSAGES
    assert number(run, "corrupted") == 0


@pytest.mark.parametrize("order", ["wire-first", "loopback-first", "alternating"])
def test_rperf_pairs_the_wire_with_a_queue_pair_connected_to_itself(
    peer: Peer, over: str, order: str
) -> None:
    run = rperf(peer, over=over, order=order, **FEW)
    for name in ("rtt", "post_poll.rtt", "loopback.rtt", "ping_pong.half_rtt"):
        assert samples_in(run, name) == MESSAGES


@pytest.mark.parametrize("both", [False, True])
def test_streams_over_several_queue_pairs_arrive_whole(peer: Peer, over: str, both: bool) -> None:
    stream = partial(bandwidth, peer, over=over, size="4K", depth=8, post_list=4, signal_every=4)
    run = stream(bidirectional=both, validate=True, qps=2, **FEW)
    assert number(run, "messages") >= 2 * MESSAGES
    assert number(run, "corrupted") == 0


def test_rate_paced_and_saturation_end(peer: Peer, over: str) -> None:
    assert number(rate(peer, over=over, threads=2, **FEW), "messages") == 2 * MESSAGES
    run = paced(peer, over=over, rate=200, arrivals="poisson", **FEW)
    assert samples_in(run, "half_rtt") == MESSAGES
    steps = saturation(peer, over=over, steps=1, duration="300 ms", warmup=5, wait="block").records
    assert [record.settings.get("load") for record in steps] == [0, 1, None]


@pytest.mark.parametrize("op", ["write", "read", "fetch-add", "compare-swap"])
def test_one_sided_operations_do_what_they_say(peer: Peer, over: str, op: str) -> None:
    run = rma(peer, over=over, op=op, validate=True, **FEW)
    assert samples_in(run, "operation") == MESSAGES
    assert number(run, "corrupted") == 0


@pytest.mark.parametrize("wait", ["spin", "block"])
def test_a_transfer_is_by_write_with_immediate_data(peer: Peer, over: str, wait: str) -> None:
    run = transfer(
        peer,
        over=over,
        size="16K",
        total="512K",
        outstanding=4,
        signal_every=2,
        wait=wait,
        warmup=4,
        validate=True,
    )
    assert number(run, "messages") == 32
    assert run.record.settings["op"] == "write-imm"


def test_a_record_has_the_device_s_counters_and_both_ends(peer: Peer, over: str) -> None:
    record = latency(peer, over=over, **FEW).record
    device = over.partition(":")[2]
    assert any(str(row["where"]).startswith(device) for row in record.tables["counters"])
    assert {row["side"] for row in record.tables["endpoints"]} == {"ours", "peer"}
