"""Collectives on a non-blocking fabric beside their closed forms, and LogGOPSim's example.

A step in which every rank sends s bytes takes the wire time of its packets and one crossing:
flight, switch, flight, and the last packet through the switch again (cut-through counts it once).
Within 1 % at the packet level. LogGOP times are equal, to the picosecond.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from weft.records import Scalar
from weft.simulate import scenario_from, simulate
from weft.simulate.workload.collectives import Plan, build_collective
from weft.simulate.workload.operations import LogGop, run_loggop

RATE_BPS = 100e9
HEADER_BYTES = 26  # LRH 8, BTH 12, ICRC 4, VCRC 2
DELAY_S, SWITCH_S = 10e-9, 200e-9
MTU = 4096
SIZE = 4_000_000


def wire_s(size: float) -> float:
    return (size + HEADER_BYTES * math.ceil(size / MTU)) * 8 / RATE_BPS


def step_s(size: float) -> float:
    return wire_s(size) + 2 * DELAY_S + SWITCH_S


def run(n: int, **traffic: Any) -> dict[str, float]:
    data = {
        "duration": "1 s",
        "fabric": {
            "topology": "one_switch",
            "hosts": n,
            "rate": f"{RATE_BPS / 1e9} Gb/s",
            "delay": f"{DELAY_S * 1e9} ns",
        },
        "switch": {"latency": f"{SWITCH_S * 1e9} ns", "virtual_output_queues": True},
        "traffic": [{"name": "c", "kind": "collective", "size": f"{SIZE} B"} | traffic],
    }
    outcome = simulate(scenario_from(data))
    assert outcome.ended == "finished"
    quantities = outcome.record.quantities
    return {key: q.value for key, q in quantities.items() if isinstance(q, Scalar)}


def levels(n: int) -> int:
    return (n - 1).bit_length()


def halves(n: int) -> float:
    return sum(step_s(SIZE / 2 ** (level + 1)) for level in range(levels(n)))


CLOSED_FORMS = {
    ("all-reduce", "ring"): lambda n: 2 * (n - 1) * step_s(SIZE / n),
    ("all-reduce", "tree"): lambda n: 2 * levels(n) * step_s(SIZE),
    ("all-reduce", "halving-doubling"): lambda n: 2 * halves(n),
    ("reduce-scatter", "ring"): lambda n: (n - 1) * step_s(SIZE / n),
    ("reduce-scatter", "halving-doubling"): halves,
    ("all-gather", "ring"): lambda n: (n - 1) * step_s(SIZE / n),
    ("all-gather", "halving-doubling"): halves,
    ("broadcast", "tree"): lambda n: levels(n) * step_s(SIZE),
    ("broadcast", "ring"): lambda n: (2 * n - 2) * step_s(SIZE / n),
    ("reduce", "tree"): lambda n: levels(n) * step_s(SIZE),
    ("scatter", "tree"): lambda n: sum(step_s(SIZE / 2**k) for k in range(1, levels(n) + 1)),
    ("gather", "tree"): lambda n: sum(step_s(SIZE / 2**k) for k in range(1, levels(n) + 1)),
    ("all-to-all", "pairwise"): lambda n: (n - 1) * step_s(SIZE / n),
    ("all-to-all", "bruck"): lambda n: levels(n) * step_s(SIZE / 2),
}


@pytest.mark.parametrize("n", [8, 16])
@pytest.mark.parametrize(("operation", "algorithm"), CLOSED_FORMS)
def test_a_collective_takes_the_time_of_its_closed_form(
    operation: str, algorithm: str, n: int
) -> None:
    observed = run(n, operation=operation, algorithm=algorithm)
    expected_us = 1e6 * CLOSED_FORMS[operation, algorithm](n)
    assert observed["c.completion"] == pytest.approx(expected_us, rel=0.01)


@pytest.mark.parametrize("group", [2, 4])
def test_a_hierarchical_all_reduce_takes_the_sum_of_its_phases(group: int) -> None:
    n, groups = 8, 8 // group
    within = 2 * (group - 1) * step_s(SIZE / group)
    across = 2 * (groups - 1) * step_s(SIZE / n)
    observed = run(n, operation="all-reduce", algorithm="hierarchical", group=group)
    assert observed["c.completion"] == pytest.approx(1e6 * (within + across), rel=0.01)


def test_repetitions_take_so_many_times_as_long() -> None:
    observed = run(8, operation="all-reduce", repetitions=3)
    assert observed["c.completion"] == pytest.approx(3e6 * 14 * step_s(SIZE / 8), rel=0.01)


def test_a_ring_has_the_bus_bandwidth_of_its_links_but_for_headers_and_crossings() -> None:
    observed = run(8, operation="all-reduce")
    assert observed["c.bus_bound"] == RATE_BPS / 1e9
    assert observed["c.bus_share"] == pytest.approx(
        SIZE / 8 * 8 / RATE_BPS / step_s(SIZE / 8), 0.01
    )
    assert observed["c.bus_share"] < 1


def test_the_ring_is_the_ring_of_the_kind_allreduce() -> None:
    fabric = {"topology": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 4}
    times = []
    for traffic in ({"kind": "allreduce"}, {"kind": "collective", "operation": "all-reduce"}):
        entry = {"name": "t", "size": "800 kB"} | traffic
        data = {"duration": "1 s", "fabric": fabric, "traffic": [entry]}
        (finished,) = [
            q.value
            for key, q in simulate(scenario_from(data)).record.quantities.items()
            if key == "t.finished" and isinstance(q, Scalar)
        ]
        times.append(finished)
    assert times[0] == times[1]


# LogGOPSim's README: schedgen's binomialtreereduce of 1,024 B over 8 ranks, default parameters
# L=2500 o=1500 g=1000 G=6 O=0 S=65535, in ns here in ps.
README = LogGop(
    latency_ps=2500,
    overhead_ps=1500,
    gap_ps=1000,
    gap_ps_per_byte=6.0,
    rendezvous_above_bytes=65535,
)


def test_a_binomial_reduce_takes_the_times_that_loggopsim_prints() -> None:
    operations = build_collective("reduce", "tree", Plan(ranks=8, size_bytes=1024))
    times = run_loggop(operations, README).rank_ps.tolist()
    assert times == [34_914, 24_776, 13_138, 13_138, 1_500, 1_500, 1_500, 1_500]


def test_a_dissemination_over_16_ranks_takes_the_22_us_of_loggopsim() -> None:
    """Its README: 22000 ns. Four steps of a byte: o + L + o each, as o exceeds g."""
    operations = build_collective("barrier", "dissemination", Plan(ranks=16, size_bytes=1))
    assert run_loggop(operations, README).rank_ps.tolist() == [22_000] * 16


@pytest.mark.parametrize("size", [1, 1024, 60_000])
@pytest.mark.parametrize("n", [2, 8, 64])
def test_collectives_under_loggop_take_their_closed_forms(n: int, size: int) -> None:
    """A step is o + L + o + (s - 1) G; a ring has n - 1 of them, a tree log2 n."""
    o, latency, byte = 1500, 2500, 6

    def step(s: int) -> int:
        return o + latency + o + (s - 1) * byte

    ring = build_collective("all-gather", "ring", Plan(ranks=n, size_bytes=n * size))
    assert run_loggop(ring, README).rank_ps.max() == (n - 1) * step(size)
    reduce = build_collective("reduce", "tree", Plan(ranks=n, size_bytes=size))
    assert run_loggop(reduce, README).rank_ps[0] == levels(n) * step(size)
    eager = replace(README, rendezvous_above_bytes=2**40)
    bruck = build_collective("all-to-all", "bruck", Plan(ranks=n, size_bytes=n * size))
    assert run_loggop(bruck, eager).rank_ps.max() == levels(n) * step(n * size // 2)
