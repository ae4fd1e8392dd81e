"""Parts of the accuracy figures by their definitions: quantiles, stalls of the omission model."""

import numpy as np
import pytest

from weft.measure.accuracy import (
    STALL_EVERY_NS,
    STALL_NS,
    Judgement,
    add_stalls,
    build_injected,
    quantile,
)

STALL_PS, STALL_START_PS = STALL_NS * 1e3, (STALL_EVERY_NS - STALL_NS) * 1e3
MOVING_PS = 40e6


@pytest.mark.parametrize(
    ("count", "q", "rank"),
    [(1000, 0.999, 999), (1000, 0.5, 500), (999, 0.5, 500), (3, 0.34, 2), (7, 1.0, 7), (7, 0.0, 1)],
)
def test_a_quantile_is_the_ceil_qn_th_smallest(count, q, rank):
    values = np.random.default_rng(1).permutation(np.arange(1, count + 1))
    assert quantile(values, q) == rank


def test_disturbed_messages_are_left_out_unless_every_one_is_wanted():
    judgement = Judgement(
        estimator="e",
        target="t",
        samples_ps=np.array([10, 20, 9000]),
        truth_ps=np.array([11, 21, 1000]),
        late_ps=np.array([0, 9, 10]),  # 1 % of the longest
    )
    assert judgement.quantile_pair_ps(1.0) == (20, 21)
    assert judgement.quantile_pair_ps(1.0, every=True) == (9000, 1000)


@pytest.mark.parametrize(
    ("due_ps", "wait_ps"),
    [
        (0.0, 0.0),
        (STALL_START_PS - MOVING_PS - 1, 0.0),  # back just before the stall
        (STALL_START_PS - MOVING_PS, STALL_PS),  # the stall begins as it arrives
        (STALL_START_PS - 1, STALL_PS),  # on its way: waits for the whole stall
        (STALL_START_PS, STALL_PS),  # due as the stall begins
        (STALL_START_PS + STALL_PS / 4, 0.75 * STALL_PS),  # due within it: waits for its end
    ],
)
def test_a_message_waits_for_the_stall_it_meets(due_ps, wait_ps):
    (total_ps,) = add_stalls(np.array([due_ps]), np.array([MOVING_PS]))
    assert total_ps == MOVING_PS + wait_ps


def test_as_many_messages_meet_a_stall_on_their_way_as_are_due_in_that_time():
    histogram = build_injected(1)
    # 50 us on the wire on average, twice: due in the first such part of the stall, and on the way.
    over = 2 * 50e3 / STALL_EVERY_NS
    assert histogram.quantile(1 - 0.9 * over) >= STALL_PS
    assert histogram.quantile(1 - 1.1 * over) < STALL_PS


@pytest.mark.parametrize(("factor", "is_accurate"), [(1.005, True), (0.995, True), (1.03, False)])
@pytest.mark.parametrize("which", [slice(None), slice(-2, None)], ids=["median", "tail"])
def test_an_estimate_is_accurate_within_a_percent_at_the_median_and_in_the_tail(
    which, factor, is_accurate
):
    truth = np.linspace(1e9, 2e9, 1000).astype(np.int64)
    samples = truth.copy()
    samples[which] = (samples[which] * factor).astype(np.int64)
    judgement = Judgement(
        estimator="e", target="t", samples_ps=samples, truth_ps=truth, late_ps=np.zeros_like(truth)
    )
    assert judgement.is_accurate() is is_accurate
