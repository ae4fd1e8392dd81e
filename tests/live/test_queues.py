"""Weighted queues at a port: who has which DSCP gets which share, and the port is as it was after.

The oracle is the definition: at a saturated port, bytes of a queue / bytes of all = its weight.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest
from needs import need_namespaces
from traffic import RATE_BPS, streams, when_full

from weft.errors import InputError
from weft.host.net import htb, namespaces, qdisc
from weft.host.net.caps import change_ends
from weft.host.net.htb import Queue, change_queues, read_queues, set_queues
from weft.host.net.link_ends import LinkEnd, SavedEnd
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import Wiring

DSCPS = {"a": 10, "b": 20, "c": 46}


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    need_namespaces()
    with testbed(Wiring(hosts=("a", "b", "c", "sink"), rate_bps=RATE_BPS)) as made:
        yield made


@pytest.fixture
def port(bed: Testbed) -> Iterator[SavedEnd]:
    with change_ends([bed.ends("sink")[1]]) as held:
        yield held.saved[0]


def weighted(weights: Sequence[float]) -> list[Queue]:
    marks = list(DSCPS.values())[: len(weights)]
    first, *others = [
        Queue(weight=w, dscps=(dscp,)) for w, dscp in zip(weights, marks, strict=True)
    ]
    return [Queue(weight=first.weight, dscps=(0, *first.dscps)), *others]


def measured(end: LinkEnd) -> tuple[list[float], float]:
    """Each queue's share of what passed in a second and a half, and the port's use."""
    started, before = time.monotonic(), read_queues(end)
    time.sleep(1.5)
    elapsed, after = time.monotonic() - started, read_queues(end)
    passed = [b.count.bytes - a.count.bytes for a, b in zip(before, after, strict=True)]
    return [p / sum(passed) for p in passed], 8 * sum(passed) / elapsed / RATE_BPS


def check_shares(end: LinkEnd, weights: Sequence[float]) -> None:
    wanted = pytest.approx([w / sum(weights) for w in weights], abs=0.02)
    assert when_full(lambda: measured(end), lambda shares: shares == wanted) == wanted


@pytest.mark.parametrize("weights", [(70, 30), (10, 90), (50, 30, 20), (5, 15, 80)])
def test_a_saturated_port_is_shared_by_the_weights(
    bed: Testbed, port: SavedEnd, weights: tuple[int, ...]
) -> None:
    sources = dict(list(DSCPS.items())[: len(weights)])
    with streams(bed, "sink", sources):
        set_queues(port, weighted(weights))
        check_shares(port.end, weights)


def test_weights_change_while_traffic_flows(bed: Testbed, port: SavedEnd) -> None:
    with streams(bed, "sink", {"a": 10, "b": 20}):
        set_queues(port, weighted((80, 20)))
        check_shares(port.end, (80, 20))
        change_queues(port, weighted((25, 75)))
        check_shares(port.end, (25, 75))


def test_what_a_queue_leaves_is_lent_to_the_others(bed: Testbed, port: SavedEnd) -> None:
    with streams(bed, "sink", {"b": 20}):
        set_queues(port, weighted((90, 10)))
        when_full(lambda: measured(port.end))


def test_queues_are_read_back_as_set_and_as_tc_shows_them(port: SavedEnd) -> None:
    set_queues(port, weighted((50, 30, 20)))
    result = read_queues(port.end)
    assert [one.dscps for one in result] == [(0, 10), (20,), (46,)]
    assert [one.rate_bps for one in result] == [10_000_000, 6_000_000, 4_000_000]
    assert {one.ceil_bps for one in result} == {RATE_BPS}
    # tc has no JSON for classes of HTB.
    where = ["tc", "-n", str(port.end.namespace), "class", "show", "dev", port.end.interface]
    lines = {line.split()[2]: line for line in namespaces.run_command(where).splitlines()}
    for minor, rate in ((1, 20), (0x10, 10), (0x11, 6), (0x12, 4)):
        line = lines[qdisc.format_handle(htb.MAJOR | minor)]
        assert f" rate {rate}Mbit ceil 20Mbit burst " in line
        assert line.endswith(" cburst 32Kb ")  # as long a time at the rate as at the ceil
    change_queues(port, weighted((1, 1, 2)))
    assert [one.share for one in read_queues(port.end)] == pytest.approx([0.25, 0.25, 0.5])


def test_after_the_block_the_port_has_its_token_bucket_again(bed: Testbed) -> None:
    end = bed.ends("sink")[1]
    with change_ends([end]) as before:
        set_queues(before.saved[0], weighted((1, 1)))
        set_queues(before.saved[0], weighted((1, 2, 3)))
        assert len(read_queues(end)) == 3
    with change_ends([end]) as after:
        assert after.saved == before.saved
    assert read_queues(end) == []


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([], "0 queues; use 1 to 64"),
        ([Queue(weight=1, dscps=(10,))], "no queue takes unmarked packets"),
        ([Queue(weight=0, dscps=(0,))], "a weight of 0; weights are above 0"),
        ([Queue(weight=float("nan"), dscps=(0,))], "a weight of nan"),
        ([Queue(weight=1, dscps=(0, 64))], "DSCP 64 is not in 0 to 63"),
        ([Queue(weight=1, dscps=(0, 1)), Queue(weight=1, dscps=(1,))], "DSCP 1 is listed twice"),
    ],
)
def test_queues_that_make_no_sense_are_refused(
    port: SavedEnd, wanted: list[Queue], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        set_queues(port, wanted)
    assert read_queues(port.end) == []
