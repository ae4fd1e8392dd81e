"""The histogram seen from Python: arrays, pickles, errors. Its arithmetic: core/tests."""

import pickle

import numpy as np
import pytest

from weft._core import Histogram


def histogram_of(*samples: int) -> Histogram:
    histogram = Histogram()
    histogram.record_many(np.array(samples, dtype=np.int64))
    return histogram


def test_record_many_equals_record_one_by_one():
    one_by_one = Histogram()
    for sample in (3, -9, 70_000, 3):
        one_by_one.record(sample)
    assert histogram_of(3, -9, 70_000, 3) == one_by_one


def test_buckets_are_numpy_arrays_in_ascending_order():
    lower, upper, count = histogram_of(5, 5, 2048, -3).buckets()
    assert lower.tolist() == [-3, 5, 2048]
    assert upper.tolist() == [-3, 5, 2051]
    assert count.tolist() == [1, 2, 1]
    assert (lower.dtype, count.dtype) == (np.int64, np.uint64)


def test_a_pickled_histogram_is_equal_and_independent():
    original = histogram_of(1, 2, 3_000_000, -(2**63), 2**63 - 1)
    copy = pickle.loads(pickle.dumps(original))
    assert copy == original
    copy.record(7)
    assert copy != original


def test_the_sum_is_exact_beyond_64_bits():
    histogram = Histogram()
    histogram.record(2**62, n=40)
    assert histogram.to_sparse()[4] == 40 * 2**62
    assert histogram.mean == 2**62


def test_arrays_of_another_type_are_refused_rather_than_rounded():
    with pytest.raises(TypeError):
        Histogram().record_many(np.array([0.5]))


@pytest.mark.parametrize("statistic", ["min", "max", "mean"])
def test_an_empty_histogram_has_no_statistics(statistic):
    with pytest.raises(ValueError, match="empty"):
        getattr(Histogram(), statistic)


def test_a_quantile_outside_0_to_1_is_refused_with_its_value():
    with pytest.raises(ValueError, match=r"1\.5.*between 0"):
        histogram_of(1).quantile(1.5)


def test_too_few_samples_leave_an_end_of_the_interval_open():
    low, high = histogram_of(*range(1000)).quantile_interval(0.999)
    assert low is not None
    assert low <= 998
    assert high is None


def test_a_histogram_equals_nothing_else_and_has_no_hash():
    assert Histogram() != 3
    with pytest.raises(TypeError):
        hash(Histogram())
