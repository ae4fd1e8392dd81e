"""Outstanding messages and signaling: the printed equations, and what generalises them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.model.outstanding import (
    FDR_STUDY,
    KI,
    MI,
    Pipe,
    best_outstanding,
    calibrate_pipe,
    count_cached,
    count_covering,
    equation_1,
    equation_2,
    signaling_period,
    throughput_gbps,
)

POWERS = [2**i for i in range(15, 27)]  # 32 Ki to 64 Mi


def test_equation_1_gives_the_printed_values() -> None:
    expected = [96, 48, 24, 16, 8, 4, 2, 2, 2, 2, 2, 2]
    assert equation_1(POWERS).tolist() == expected


def test_the_128_of_equation_1_binds_below_24_ki_only() -> None:
    assert equation_1([8 * KI, 24 * KI, 25 * KI], extrapolate=True).tolist() == [128, 128, 123]


def test_the_generalisation_with_the_studys_cache_is_equation_1_at_every_power_of_two() -> None:
    assert best_outstanding(POWERS, FDR_STUDY).tolist() == equation_1(POWERS).tolist()


def test_in_the_study_the_cache_decides_not_the_latency() -> None:
    decided = count_cached(POWERS, FDR_STUDY) <= count_covering(POWERS, FDR_STUDY)
    assert decided.all()


def test_the_studys_single_messages_show_a_loop_that_few_messages_cover() -> None:
    # 32 Ki alone move 10 Gb/s (Section 3.3): 26.2 µs, 5.2 of which on the line of 50 Gb/s.
    pipe = Pipe(line_rate_gbps=50.0, base_latency_us=32 * KI * 8e-3 / 10 - 32 * KI * 8e-3 / 50)
    assert throughput_gbps(32 * KI, 1, pipe) == pytest.approx(10.0)
    assert best_outstanding(32 * KI, pipe) == 5


# S = 1 strictly between 16 Ki and 128 Ki, else min(SQ/2, SQ - B), at least 1.
@pytest.mark.parametrize(
    ("size", "outstanding", "depth", "period"),
    [
        (32 * KI, 96, 128, 1),
        (64 * KI, 48, 256, 1),
        (128 * KI, 24, 128, 64),
        (128 * KI, 100, 128, 28),
        (MI, 4, 16, 8),
        (MI, 16, 16, 1),
        (8 * MI, 2, 2, 1),
        (8 * MI, 2, 3, 1),
    ],
)
def test_equation_2_as_stated(size: int, outstanding: int, depth: int, period: int) -> None:
    assert equation_2(size, outstanding, depth) == period


def test_the_printed_first_case_of_equation_2_is_one() -> None:
    assert all(min(b / 2, 1) == 1 for b in range(2, 129))


def test_without_credit_by_completion_the_period_is_equation_2s_second_case() -> None:
    for size in (s for s in POWERS if s >= 128 * KI):
        best = equation_1(size)
        assert signaling_period(best, 256) == equation_2(size, best, 256)


def test_where_every_message_is_needed_every_message_is_signaled() -> None:
    for size in (32 * KI, 64 * KI):
        best = equation_1(size)
        assert signaling_period(best, 256, needed=best) == equation_2(size, best, 256) == 1


pipes = st.builds(
    Pipe,
    line_rate_gbps=st.floats(1, 800),
    base_latency_us=st.floats(0.5, 500),
    message_us=st.floats(0, 5),
    cache_bytes=st.floats(1e4, 1e9),
)


@given(pipes, st.integers(1, 2**26))
def test_covering_is_the_fewest_that_fill_the_line(pipe: Pipe, size: int) -> None:
    fewest = float(count_covering(size, pipe))
    line_us = pipe.message_us + size * 8e-3 / pipe.line_rate_gbps
    full = size * 8e-3 / line_us
    assert throughput_gbps(size, fewest, pipe) == pytest.approx(full)
    exact = pipe.base_latency_us / line_us
    if abs(exact - round(exact)) > 1e-9 * exact:
        assert throughput_gbps(size, fewest - 1, pipe) < full


@given(pipes, st.integers(1, 2**26))
def test_the_best_number_stays_in_the_cache_unless_two_do_not_fit(pipe: Pipe, size: int) -> None:
    best = float(best_outstanding(size, pipe))
    assert 2 <= best <= pipe.most
    assert best == 2 or best * size <= pipe.cache_bytes


@given(st.integers(1, 4096), st.integers(0, 4096), st.integers(0, 4096))
def test_a_period_never_fills_the_queue_nor_starves_the_line(
    outstanding: int, more: int, spare: int
) -> None:
    depth = outstanding + more
    needed = max(1, outstanding - spare)
    period = float(signaling_period(outstanding, depth, needed=needed))
    assert period >= 1
    assert outstanding + period - 1 <= depth
    assert period == 1 or outstanding - (period - 1) >= needed


def rows(
    pipe: Pipe, loss: float, noise: float = 0.0, seed: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    size, messages = (
        column.ravel().astype(float)
        for column in np.meshgrid([2**i for i in range(12, 24, 2)], [1, 2, 4, 8, 16, 32])
    )
    moved = throughput_gbps(size, messages, pipe)
    moved = moved * np.where(size * messages > pipe.cache_bytes, 1 - loss, 1.0)
    return size, messages, moved * np.exp(noise * np.random.default_rng(seed).normal(size=36))


def test_calibration_finds_the_pipe_that_made_the_rows() -> None:
    true = Pipe(line_rate_gbps=49.0, base_latency_us=21.0, cache_bytes=4 * MI)
    found = calibrate_pipe(*rows(true, 0.06), data="made up")
    assert found.pipe.line_rate_gbps == pytest.approx(49.0, rel=1e-4)
    assert found.pipe.base_latency_us == pytest.approx(21.0, rel=1e-4)
    assert found.pipe.cache_bytes == 4 * MI
    assert found.fit.value("loss") == pytest.approx(0.06, rel=1e-3)


def test_calibration_tells_a_messages_cost_from_its_bytes() -> None:
    true = Pipe(line_rate_gbps=20.0, base_latency_us=12.0, message_us=1.5)
    found = calibrate_pipe(*rows(true, 0.0), data="made up").pipe
    assert found.message_us == pytest.approx(1.5, rel=1e-3)
    assert found.line_rate_gbps == pytest.approx(20.0, rel=1e-3)


def test_calibration_bears_noise_and_sees_no_cache_where_none_is() -> None:
    true = Pipe(line_rate_gbps=20.0, base_latency_us=12.0)
    missed = 0
    for seed in range(5):
        found = calibrate_pipe(*rows(true, 0.0, 0.03, seed), data="made up")
        assert found.pipe.line_rate_gbps == pytest.approx(20.0, rel=0.05)
        assert found.pipe.base_latency_us == pytest.approx(12.0, rel=0.1)
        missed += found.pipe.cache_bytes < np.inf
    assert missed <= 1


@pytest.mark.parametrize("size", [1, 16 * KI, 65 * MI, 2**40])
def test_sizes_that_the_study_never_sent_are_refused_unless_told_to(size: int) -> None:
    with pytest.raises(InputError, match="outside the study's 32768 to 67108864 B"):
        equation_1(size)
    assert equation_1(size, extrapolate=True) >= 2


@pytest.mark.parametrize(
    ("outstanding", "depth", "words"),
    [
        (128, 64, "64 entries cannot hold 128 outstanding messages; use 128 or more"),
        (0, 64, "0 messages; keep 1 or more"),
        ([2, 16], [8, 8], "8 entries cannot hold 16"),
    ],
)
def test_a_queue_that_cannot_hold_the_messages_is_refused(
    outstanding: int | list[int], depth: int | list[int], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        equation_2(MI, outstanding, depth)


def test_a_pipe_without_a_rate_is_refused() -> None:
    with pytest.raises(InputError, match="line_rate_gbps is 0"):
        Pipe(line_rate_gbps=0, base_latency_us=1)


def test_too_few_rows_for_a_calibration_are_refused() -> None:
    with pytest.raises(InputError, match="2 rows for the 3 unknowns"):
        calibrate_pipe([64, 128], [1, 1], [1.0, 2.0], data="two rows")
