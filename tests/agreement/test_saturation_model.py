"""Latency beside load against C.8 of the EFA thesis: at most 10 % from the curve of medians."""

from __future__ import annotations

import numpy as np
import pytest
from held_out import judge_held_out
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.model import Fit, fit
from weft.model.latency import doubling_load_MBps, saturation
from weft.studies.calibrated import (
    Quantile,
    capacity_MBps,
    doubling_load,
    saturation_fit,
    saturation_sample,
)
from weft.studies.published import find_table


def test_every_row_of_the_median_curve_is_within_10_percent() -> None:
    assert saturation_fit("p50").error.worst <= 0.10


def test_the_99th_percentile_is_within_10_percent_at_the_median_row() -> None:
    assert saturation_fit("p99").error.median <= 0.10


@pytest.mark.parametrize("quantile", ["p50", "p99"])
def test_a_fit_to_every_other_row_predicts_the_rest(quantile: Quantile) -> None:
    sample = saturation_sample(quantile)
    even = np.arange(sample.observed.size) % 2 == 0
    held_out = judge_held_out(sample, even)
    print(f"saturation {quantile}, every other row: {held_out}")
    assert held_out.median <= 0.10, held_out


def test_the_load_folds_back_so_that_no_function_of_it_meets_the_last_rows() -> None:
    table = find_table("efa-c8-1")
    load, latency_us = table.column("load_MBps"), table.column("p50_us")
    assert load[-1] < load[-3]
    assert latency_us[-1] > latency_us[-3]


def test_the_median_does_not_double_below_capacity_and_the_tail_does() -> None:
    """As the thesis says of the median at its peak: almost twice."""
    assert doubling_load("p50") is None
    unloaded, full = saturation_fit("p50").predict(
        load_MBps=np.array([0.0, capacity_MBps()]), extrapolate=True
    )
    assert 1.8 <= full / unloaded < 2.0
    tail = doubling_load("p99")
    assert tail is not None
    assert 6260 <= tail <= 10270


def test_the_wait_is_one_burst_of_each_thread_on_the_line() -> None:
    """At long intervals load · interval is what 8 threads post at once: 4 messages each."""
    table, fitted = find_table("efa-c8-1"), saturation_fit("p50")
    burst_bytes = table.column("load_MBps")[0] * table.column("wait_ns")[0] / 1e3
    assert burst_bytes == pytest.approx(8 * 4 * 4096, rel=0.05)
    wait = next(p for p in fitted.parameters if p.name == "wait_us")
    assert abs(wait.value - burst_bytes / 12.5e3) <= wait.standard_error


def made(base: float, wait: float, window: float) -> tuple[Fit, float]:
    capacity = 1000.0
    form = saturation(capacity, unloaded_us=base)
    load = np.linspace(0.0, capacity, 30)
    values = {"base_us": base, "wait_us": wait, "window": window}
    return fit(
        form, {"load_MBps": load}, form.evaluate(values, {"load_MBps": load}), data="made"
    ), capacity


def test_the_doubling_load_is_where_the_latency_is_twice_the_unloaded() -> None:
    model, capacity = made(10.0, 1.0, 20.0)
    load = doubling_load_MBps(model, capacity)
    assert load is not None
    assert float(model.predict(load_MBps=load)) == pytest.approx(20.0, rel=1e-6)


@given(
    st.floats(0.1, 100),
    st.floats(0, 10),
    st.floats(1, 1000),
    st.lists(st.floats(0, 1e4), min_size=2),
)
def test_latency_rises_with_load_and_ends_at_the_full_windows(
    base: float, wait: float, window: float, loads: list[float]
) -> None:
    form = saturation(5e3)
    values = {"base_us": base, "wait_us": wait, "window": window}
    latency_us = form.evaluate(values, {"load_MBps": np.sort(np.array([0.0, *loads, 5e3]))})
    assert np.all(np.diff(latency_us) >= -1e-9)
    assert latency_us[0] == pytest.approx(base)
    assert latency_us[-1] == pytest.approx(base + wait * window)


@pytest.mark.parametrize("capacity", [0.0, -1.0, float("nan"), float("inf")])
def test_a_capacity_that_is_none_is_refused(capacity: float) -> None:
    with pytest.raises(InputError, match="give one above 0"):
        saturation(capacity)
