"""Shares of saturated virtual lanes agree with the definition of InfiniBand's VL arbitration.

A turn of an entry (lane, weight) sends packets until weight x 64 bytes are used up, the last one
whole: ceil(weight / blocks) packets, a packet counting ceil(wire bytes / 64) blocks. While the
high table has sent less than limit x 4096 bytes it goes first; then one low packet may leave.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.records import Record, Scalar
from weft.simulate import scenario_from, simulate

HEADER = 26
Entry = tuple[int, int]


def saturated(sizes: list[int], tables: dict[str, Any], duration: str = "4 ms") -> Record:
    """One host per lane saturates the last host; lane i carries messages of sizes[i] bytes."""
    lanes = len(sizes)
    outcome = simulate(
        scenario_from(
            {
                "duration": duration,
                "warmup": "200 us",
                "fabric": {
                    "topology": "one_switch",
                    "hosts": lanes + 1,
                    "lanes": lanes,
                    "rate": "56 Gb/s",
                    "delay": "10 ns",
                },
                "switch": {"buffer": "128 KiB"},
                "host": {"buffer": "128 KiB"},
                "lanes": {"sl2vl": list(range(lanes)), **tables},
                "traffic": [
                    {
                        "name": f"vl{vl}",
                        "kind": "bandwidth",
                        "from": f"h{vl}",
                        "to": f"h{lanes}",
                        "size": f"{size} B",
                        "sl": vl,
                        "window": 1024,
                    }
                    for vl, size in enumerate(sizes)
                ],
            }
        )
    )
    return outcome.record


def goodput(record: Record, vl: int) -> float:
    quantity = record.quantities[f"vl{vl}.goodput"]
    assert isinstance(quantity, Scalar)
    return quantity.value


def blocks(size: int) -> int:
    return math.ceil((size + HEADER) / 64)


@st.composite
def weighted_lanes(draw: st.DrawFn) -> tuple[list[int], list[Entry]]:
    """A packet size per lane, and a table in which every lane has some weight."""
    lanes = draw(st.integers(2, 4))
    sizes = [draw(st.sampled_from([512, 1000, 1024, 2048, 4096])) for _ in range(lanes)]
    table = [(vl, draw(st.integers(1, 255))) for vl in range(lanes)]
    table += draw(st.lists(st.tuples(st.integers(0, lanes - 1), st.integers(0, 255)), max_size=5))
    return sizes, draw(st.permutations(table))


@settings(max_examples=25, deadline=None)
@given(weighted_lanes(), st.sampled_from(["low", "high"]))
def test_saturated_lanes_share_the_link_as_their_weights_say(
    problem: tuple[list[int], list[Entry]], table: str
) -> None:
    sizes, entries = problem
    packets = Counter[int]()
    for vl, weight in entries:
        packets[vl] += math.ceil(weight / blocks(sizes[vl]))
    total = sum(packets[vl] * (size + HEADER) for vl, size in enumerate(sizes))
    tables = {"low": [], "high": []} | {table: [list(entry) for entry in entries]}
    record = saturated(sizes, tables)
    for vl, size in enumerate(sizes):
        expected = 56 * packets[vl] * size / total
        assert goodput(record, vl) == pytest.approx(expected, rel=0.02)


@settings(max_examples=25, deadline=None)
@given(
    limit=st.one_of(st.sampled_from([0, 1, 2, 254]), st.integers(0, 60)),
    high_size=st.sampled_from([512, 2048, 4096]),
    low_size=st.sampled_from([512, 4096]),
)
def test_one_low_packet_leaves_for_every_limit_of_high_priority(
    limit: int, high_size: int, low_size: int
) -> None:
    record = saturated(
        [high_size, low_size], {"high": [[0, 200]], "low": [[1, 200]], "high_limit": limit}, "10 ms"
    )
    run = math.ceil(limit * 4096 / (64 * blocks(high_size))) if limit else 1
    per_round = run * (high_size + HEADER) + low_size + HEADER
    assert goodput(record, 0) == pytest.approx(56 * run * high_size / per_round, rel=0.02)
    assert goodput(record, 1) == pytest.approx(56 * low_size / per_round, rel=0.02, abs=0.01)


@pytest.mark.parametrize("size", [512, 4096])
def test_a_limit_of_255_lets_high_priority_starve_low_and_the_record_says_so(size: int) -> None:
    record = saturated(
        [size, 4096], {"high": [[0, 1]], "low": [[1, 255]], "high_limit": 255}, "4 ms"
    )
    assert goodput(record, 1) == 0
    assert goodput(record, 0) == pytest.approx(56 * size / (size + HEADER), rel=0.01)
    assert any("starved" in note and "vl1" in note for note in record.notes)


def test_low_priority_takes_what_high_priority_leaves() -> None:
    record = saturated([4096, 4096], {"high": [], "low": [[0, 64], [1, 128]], "high_limit": 0})
    assert goodput(record, 0) + goodput(record, 1) == pytest.approx(56 * 4096 / 4122, rel=0.01)
