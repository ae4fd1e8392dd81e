"""Which slowdowns a job on a capped port can have: the programme against jobs, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.jobs import Job, read_job
from weft.sensitivity.application import PAPER_SHARES
from weft.sensitivity.model import Sample, fit_polynomial, r_squared
from weft.studies.saba.workloads import (
    bound_slowdown,
    complete_s,
    fit_mix,
    highest_r_squared,
    is_reachable,
    select_reachable,
)
from weft.toml_table import Table

RATE_BPS = 1e9
EXACT = 1e-6


def make_job(stages: list[tuple[int, int, float]]) -> Job:
    rows = [
        {"compute": f"{c} ms", "volume": f"{v} MB", "pattern": "shuffle", "overlap": overlap}
        for c, v, overlap in stages
    ]
    return read_job(Table({"name": "j", "instances": 4, "stage": rows}, "test"))


JOBS = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(1, 100), st.floats(0, 1)), min_size=1, max_size=5
).map(make_job)


def slowdown(job: Job, share: float) -> float:
    return complete_s(job, RATE_BPS, share) / complete_s(job, RATE_BPS)


@given(JOBS, st.sampled_from(PAPER_SHARES), st.sets(st.sampled_from(PAPER_SHARES), max_size=4))
@settings(deadline=None, max_examples=60)
def test_what_a_job_has_is_within_the_bounds_from_its_other_slowdowns(
    job: Job, share: float, others: set[float]
) -> None:
    stated = {b: (slowdown(job, b) - EXACT, slowdown(job, b) + EXACT) for b in others - {1.0}}
    assert is_reachable(stated)
    assert select_reachable(stated) == tuple(sorted(stated, reverse=True))
    bound = bound_slowdown(stated, share)
    assert bound is not None
    assert bound[0] - 1e-4 <= slowdown(job, share) <= bound[1] + 1e-4


@given(JOBS)
@settings(deadline=None)
def test_no_job_sends_more_than_its_port_carries_in_its_time(job: Job) -> None:
    """V <= b D(b)."""
    sent = sum(stage.volume_bytes for stage in job.stages) * 8 / RATE_BPS
    for share in PAPER_SHARES:
        assert sent <= share * complete_s(job, RATE_BPS, share) * (1 + 1e-9)


def test_bounds_by_hand() -> None:
    """3.4 with 25 %: V is at least 2.4 / 3 and at most 3.4 / 4, so 10 % adds 6 times that."""
    assert bound_slowdown({0.25: (3.4, 3.4)}, 0.1) == pytest.approx((8.2, 8.5))
    # 4.5 with 10 %: at most the chord from 1 at x = 1 to 4.5 at x = 10, at least 4.5 - 6 V.
    assert bound_slowdown({0.1: (4.5, 4.5)}, 0.25) == pytest.approx((1.8, 1 + 3.5 / 9 * 3))
    assert bound_slowdown({}, 0.5) == pytest.approx((1, 2))
    assert not is_reachable({0.25: (3.35, 3.45), 0.1: (4.45, 4.55)})
    assert not is_reachable({0.5: (2.05, 2.1)})  # half the rate at most doubles the time
    assert select_reachable({0.75: (1.3, 1.3), 0.25: (3.4, 3.4)}) == (0.75,)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_no_job_has_a_higher_r_squared_than_the_highest(degree: int) -> None:
    highest = highest_r_squared(PAPER_SHARES, degree)
    rng = np.random.default_rng(7)
    found = []
    for _ in range(200):
        stages = [
            (int(rng.integers(1, 1000)), int(rng.integers(1, 100)), float(rng.random()))
            for _ in range(3)
        ]
        samples = [Sample(share=b, slowdown=slowdown(make_job(stages), b)) for b in PAPER_SHARES]
        found.append(r_squared(fit_polynomial(samples, degree), samples))
    blocking = [Sample(share=b, slowdown=1 / b) for b in PAPER_SHARES]
    reached = r_squared(fit_polynomial(blocking, degree), blocking)
    assert max(found) <= highest + 1e-9
    assert highest == pytest.approx(reached, abs=2e-3)  # who only sends comes close


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@settings(deadline=None)
def test_the_fit_finds_the_mix_that_slowdowns_come_from(exchanged: float, part: float) -> None:
    """D(25 %) = 1 + 3 E and D(10 %) = 1 + 9 E + 1.5 H, whatever E + H <= 1."""
    streamed = part * (1 - exchanged)
    slowdowns = {0.25: 1 + 3 * exchanged, 0.1: 1 + 9 * exchanged + 1.5 * streamed}
    mix = fit_mix(slowdowns, volume=exchanged + 0.25 * streamed)
    assert (mix.exchanged, mix.streamed) == pytest.approx((exchanged, streamed), abs=1e-4)
    assert mix.exchanged + mix.streamed <= 1 + 1e-6
