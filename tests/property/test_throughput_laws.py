"""Laws of the throughput of windows: limits are limits, and more in flight never slows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.model.fit import FloatArray, fit
from weft.model.throughput import (
    ONE_BY_ONE,
    QUANTITIES,
    Refill,
    by_count,
    by_share,
    fragmented_rate,
    host_throughput,
    mapped_rate,
    throughput,
)

REFILLS = st.one_of(
    st.just(ONE_BY_ONE), st.integers(1, 300).map(by_count), st.floats(0.05, 1.0).map(by_share)
)
COSTS = st.floats(1e-3, 50.0)
LIMITS = st.floats(0.1, 100.0)
COUNTS = st.integers(1, 64)
SIZES = st.integers(1, 1 << 20)


@st.composite
def systems(draw: st.DrawFn) -> dict[str, float]:
    """Any costs and limits, without a cache's."""
    costs = {
        name: draw(COSTS | st.just(0.0))
        for name in QUANTITIES
        if name.endswith(("_us", "_ns")) and name != "miss_ns"
    }
    limits = {name: draw(LIMITS) for name in ("engines", "line_GBps")}
    return costs | limits | {"base_us": draw(COSTS)}


def rates_Mps(
    system: Mapping[str, float],
    size_bytes: float,
    depth: float | FloatArray,
    qps: float = 1,
    threads: float = 1,
    refill: Refill = ONE_BY_ONE,
) -> FloatArray:
    named = {"size_bytes": size_bytes, "depth": depth, "qps": qps, "threads": threads}
    columns = np.broadcast_arrays(*np.atleast_1d(*map(np.float64, named.values())))
    return throughput([], fixed=system, refill=refill).evaluate(
        {}, dict(zip(named, columns, strict=True))
    )


@given(systems(), SIZES, st.lists(st.integers(1, 5000), min_size=2), COUNTS, REFILLS)
def test_more_outstanding_messages_never_lower_the_rate_of_one_thread(
    system: dict[str, float], size: int, depths: list[int], qps: int, refill: Refill
) -> None:
    """If a second message costs no more than the first alone: two wait no longer than one twice."""
    gap_us = system["gap_us"] + system["gap_ns"] * size / 1e3
    extra_us = min(system["extra_us"], max(0.0, system["base_us"] - gap_us))
    rates = rates_Mps(
        system | {"extra_us": extra_us},
        size,
        np.sort(np.array(depths, dtype=np.float64)),
        qps,
        refill=refill,
    )
    assert np.all(np.diff(rates) >= -1e-9 * rates[:-1])


@given(systems(), SIZES, st.integers(1, 5000), COUNTS, COUNTS, REFILLS)
def test_no_rate_is_above_line_engines_or_threads(
    system: dict[str, float], size: int, depth: int, qps: int, threads: int, refill: Refill
) -> None:
    (rate,) = rates_Mps(system, size, depth, qps, threads, refill) * (1 - 1e-9)
    assert rate * size <= 1e3 * system["line_GBps"]
    assert rate * system["engine_us"] <= system["engines"]
    assert rate * system["message_us"] <= threads


@given(COSTS, SIZES, st.integers(1, 1000), COUNTS, COUNTS)
def test_alone_latency_gives_outstanding_over_latency(
    base_us: float, size: int, depth: int, qps: int, threads: int
) -> None:
    (rate,) = rates_Mps({"base_us": base_us}, size, depth, qps, threads)
    assert rate == pytest.approx(depth * qps * threads / base_us)


@given(COSTS, COSTS, st.integers(1, 100))
def test_a_window_that_is_waited_for_as_a_whole_takes_its_latency_and_its_gaps(
    base_us: float, gap_us: float, depth: int
) -> None:
    (rate,) = rates_Mps({"base_us": base_us, "gap_us": gap_us}, 1, depth, refill=by_count(100))
    window_us = max(base_us + (depth - 1) * gap_us, depth * gap_us)
    assert rate == pytest.approx(depth / window_us)


@given(systems(), SIZES, st.integers(1, 5000), st.floats(0.1, 10.0), REFILLS)
def test_a_system_with_all_times_scaled_is_that_much_slower(
    system: dict[str, float], size: int, depth: int, factor: float, refill: Refill
) -> None:
    def scaled(name: str, value: float) -> float:
        if name.endswith(("_us", "_ns")):
            return value * factor
        return value / factor if name.endswith("_GBps") else value

    slower = {name: scaled(name, value) for name, value in system.items()}
    fast, slow = (rates_Mps(s, size, depth, 2, 3, refill) for s in (system, slower))
    assert slow * factor == pytest.approx(fast)


def test_bytes_past_the_cache_cost_more_and_those_within_do_not() -> None:
    cached = {"base_us": 1e-3, "copy_ns": 0.1}
    small = cached | {"cache_bytes": 1e6, "miss_ns": 0.4}
    depths = np.array([1.0, 10.0, 100.0])
    slowdown = rates_Mps(cached, 1e5, depths) / rates_Mps(small, 1e5, depths)
    assert slowdown == pytest.approx([1.0, (0.1 + 0.4 / 2) / 0.1, (0.1 + 0.4) / 0.1], rel=1e-3)


def test_host_throughput_finds_the_system_that_made_the_rows() -> None:
    made = {"base_us": 20.0, "byte_ns": 0.3, "message_us": 0.8, "copy_ns": 0.15, "contention": 0.6}
    grid = np.meshgrid([64, 4096, 65536], [1, 4, 64], [1, 2], [1, 2])
    x = dict(zip(("size_bytes", "depth", "qps", "threads"), (g.ravel() for g in grid), strict=True))
    rates = throughput([], fixed=made).evaluate({}, {k: np.float64(v) for k, v in x.items()})
    found = fit(host_throughput(x, rates), x, rates, data="made rows")
    assert found.error.worst < 1e-3
    assert found.values == pytest.approx(made, rel=0.02)


def test_host_throughput_finds_a_cache_that_the_rows_straddle() -> None:
    made = {
        "base_us": 20.0,
        "byte_ns": 0.3,
        "message_us": 0.8,
        "copy_ns": 0.1,
        "contention": 0.6,
        "cache_bytes": 2e6,
        "miss_ns": 0.2,
    }
    grid = np.meshgrid([64, 4096, 65536, 262144], [1, 4, 16, 64], [1, 2], [1, 2])
    x = dict(zip(("size_bytes", "depth", "qps", "threads"), map(np.ravel, grid), strict=True))
    rates = throughput([], fixed=made).evaluate({}, {k: np.float64(v) for k, v in x.items()})
    found = fit(host_throughput(x, rates, cache=True), x, rates, data="made rows")
    assert found.values == pytest.approx(made, rel=0.05)


@pytest.mark.parametrize("rates", [[], [1.0, 0.0], [1.0, float("nan")]])
def test_rows_that_are_no_rates_are_refused(rates: list[float]) -> None:
    x = dict.fromkeys(("size_bytes", "depth", "qps", "threads"), 1.0)
    with pytest.raises(InputError, match="leave such rows out"):
        host_throughput(x, rates)


def test_a_missing_input_is_named() -> None:
    with pytest.raises(InputError, match="'qps' is missing"):
        host_throughput({"size_bytes": 1.0, "depth": 1.0, "threads": 1.0}, [1.0])


def test_an_unknown_quantity_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match="no quantity 'latency_us'; use base_us, byte_ns"):
        throughput(["latency_us"])


# ---- Formulas worked by hand -------------------------------------------------------------------


def test_each_stage_takes_what_its_formula_says() -> None:
    at = {"size_bytes": 1000.0, "depth": 4.0, "qps": 2.0, "threads": 3.0}
    stages = {
        # 10 us + 1000 · 0.5 ns + 0.3 us once + 0.05 us for each of the 4 of 2 other threads, over
        # 4 outstanding and 6 connections
        ("base_us", "byte_ns", "extra_us", "share_us"): (10, 0.5, 0.3, 0.05, (10.8 + 0.4) / 24),
        # two of six connections share an engine: four engines
        ("engine_us", "engines"): (0.8, 4, 0.8 / 4),
        # (0.4 + 1000 · 0.1 ns) · (1 + 0.25 · 2) + half a turn of 0.1 us, in three threads
        ("message_us", "copy_ns", "contention", "turn_us"): (0.4, 0.1, 0.25, 0.1, 0.8 / 3),
        # 1100 bytes at 10 GB/s
        ("line_GBps", "header_bytes"): (10, 100, 0.11),
    }
    for names, (*values, us) in stages.items():
        form = throughput(names)
        rows = {name: np.array([value]) for name, value in at.items()}
        rate = form.evaluate(dict(zip(names, values, strict=True)), rows)
        assert float(rate[0]) == pytest.approx(1 / us, rel=1e-6), names


def test_a_datagram_costs_its_time_its_further_fragments_and_its_bytes() -> None:
    sizes = {"size_bytes": np.array([100.0, 1472.0, 1473.0, 1472.0 + 1480.0, 3000.0])}
    values = {"datagram_us": 2.0, "fragment_us": 1.0, "byte_ns": 1.0}
    expected = [2.1, 3.472, 4.473, 4.0 + 1.952, 7.0]  # of an MTU of 1500: 1, 1, 2, 2, 3 packets
    rates = fragmented_rate(1500).evaluate(values, sizes)
    assert (1 / rates).tolist() == pytest.approx(expected)


def test_pages_are_mapped_for_datagrams_that_are_not_copied() -> None:
    values = {"datagram_us": 2.0, "map_us": 3.0, "byte_ns": 1.0}
    rates = mapped_rate(256).evaluate(values, {"size_bytes": np.array([255.0, 256.0])})
    assert (1 / rates).tolist() == pytest.approx([2.255, 5.256])
