"""Laws of the histogram, against the sorted samples and the binomial distribution itself."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from weft._core import Histogram

INT64 = st.integers(-(2**63), 2**63 - 1)
# Uniform integers would almost never be small: mix magnitudes.
VALUES = st.one_of(st.integers(-2048, 2048), st.integers(0, 10**9), INT64)
SAMPLES = st.lists(VALUES, min_size=1, max_size=300)
PERCENTS = st.decimals(0, 100, places=2)


def histogram_of(samples: list[int]) -> Histogram:
    histogram = Histogram()
    histogram.record_many(np.array(samples, dtype=np.int64))
    return histogram


def merged(*parts: Histogram) -> Histogram:
    total = Histogram()
    for part in parts:
        total.merge(part)
    return total


@given(SAMPLES, PERCENTS)
def test_a_quantile_is_within_a_thousandth_of_the_order_statistic(samples, percent):
    q = Fraction(percent) / 100
    exact = sorted(samples)[max(math.ceil(q * len(samples)), 1) - 1]
    assert abs(histogram_of(samples).quantile(float(q)) - exact) <= abs(exact) / 1000


@given(SAMPLES, SAMPLES, SAMPLES)
def test_merge_is_commutative_associative_and_equals_recording_all(a, b, c):
    ha, hb, hc = map(histogram_of, (a, b, c))
    assert merged(ha, hb) == merged(hb, ha)
    assert merged(merged(ha, hb), hc) == merged(ha, merged(hb, hc))
    assert merged(ha, hb, hc) == histogram_of(a + b + c)


@given(SAMPLES)
def test_count_extremes_and_sum_are_exact(samples):
    histogram = histogram_of(samples)
    *_, total = histogram.to_sparse()
    assert (histogram.count, histogram.min, histogram.max) == (
        len(samples),
        min(samples),
        max(samples),
    )
    assert total == sum(samples)


@given(st.lists(VALUES, max_size=300))
def test_the_sparse_form_round_trips(samples):
    histogram = histogram_of(samples)
    assert Histogram.from_sparse(*histogram.to_sparse()) == histogram


@given(SAMPLES)
def test_every_sample_is_counted_in_the_one_bucket_that_contains_it(samples):
    lower, upper, count = histogram_of(samples).buckets()
    values = np.array(samples, dtype=np.int64)
    for low, high, n in zip(lower, upper, count, strict=True):
        assert np.count_nonzero((values >= low) & (values <= high)) == n
    assert count.sum() == len(samples)


@given(SAMPLES, st.lists(PERCENTS, min_size=2, max_size=6))
def test_quantiles_never_decrease(samples, percents):
    histogram = histogram_of(samples)
    values = [histogram.quantile(float(p / 100)) for p in sorted(percents)]
    assert values == sorted(values)


def binomial_at_most(k: int, n: int, q: Fraction) -> Fraction:
    return sum((math.comb(n, i) * q**i * (1 - q) ** (n - i) for i in range(k + 1)), Fraction(0))


@settings(max_examples=60)
@given(st.integers(1, 120), st.integers(1, 99), st.sampled_from([80, 90, 95, 99]))
@example(1, 90, 80)  # P(B <= 0) is exactly alpha / 2
def test_interval_ranks_are_the_tightest_the_binomial_allows(n, percent, confidence):
    # With samples 1..n (exact buckets) the interval's ends are the ranks themselves.
    q, half_alpha = Fraction(percent, 100), (1 - Fraction(confidence, 100)) / 2
    histogram = histogram_of(list(range(1, n + 1)))
    low, high = histogram.quantile_interval(percent / 100, confidence / 100)
    low, high = low or 0, high or n + 1
    assert binomial_at_most(low - 1, n, q) <= half_alpha < binomial_at_most(low, n, q)
    assert 1 - binomial_at_most(high - 1, n, q) <= half_alpha
    assert 1 - binomial_at_most(high - 2, n, q) > half_alpha


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_interval_contains_the_point_estimate(seed, q):
    samples = np.random.default_rng(seed).lognormal(14, 1, 5000).astype(np.int64)
    histogram = histogram_of(samples.tolist())
    low, high = histogram.quantile_interval(q)
    assert low is not None
    assert high is not None
    assert low <= histogram.quantile(q) <= high


def test_the_95_percent_interval_covers_the_true_quantile_at_least_93_percent_of_the_time():
    random = np.random.default_rng(20_240_601)
    q, rate = 0.99, 1e-6
    truth = -math.log(1 - q) / rate
    covered = 0
    for _ in range(400):
        histogram = Histogram()
        histogram.record_many(random.exponential(1 / rate, 2000).astype(np.int64))
        low, high = histogram.quantile_interval(q)
        covered += low is not None and high is not None and low <= truth <= high
    assert covered >= 0.93 * 400


@given(arrays(np.int64, st.integers(0, 50)))
def test_recording_arrays_of_any_content_never_fails(values):
    histogram = Histogram()
    histogram.record_many(values)
    assert histogram.count == len(values)
