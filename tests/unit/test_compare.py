"""Two sets of records side by side, and the conditions that fail them."""

from dataclasses import replace

import pytest

from weft.errors import InputError
from weft.records import (
    Distribution,
    Histogram,
    Provenance,
    Record,
    Scalar,
    Series,
    compare,
    find_failures,
    format_comparison,
    ignore_settings,
    parse_check,
)


def distribution(samples, unit: str = "ps") -> Distribution:
    histogram = Histogram()
    for sample in samples:
        histogram.record(sample)
    return Distribution(unit, histogram)


def record(name: str = "incast", load: float = 0.5, **quantities) -> Record:
    return Record(
        kind="simulation",
        name=name,
        settings={"load": load},
        quantities={key.replace("__", "."): value for key, value in quantities.items()},
        provenance=Provenance(weft_version="0"),
    )


def rtt(shift_ps: int = 0) -> Distribution:
    return distribution(range(10_000_000 + shift_ps, 20_000_000 + shift_ps, 1000))


def find(comparison, statistic):
    (difference,) = [d for d in comparison.differences if d.statistic == statistic]
    return difference


def test_records_match_by_name_and_settings():
    a = [record(load=0.5, x=Scalar(1, "B")), record(load=0.9, x=Scalar(2, "B"))]
    b = [record(load=0.9, x=Scalar(3, "B")), record(load=0.7, x=Scalar(4, "B"))]
    comparison = compare(a, b)
    assert [(d.a, d.b, d.ratio) for d in comparison.differences] == [(2, 3, 1.5)]
    assert comparison.only_a == ("incast (load=0.5)",)
    assert comparison.only_b == ("incast (load=0.7)",)


def test_the_settings_that_keep_the_nearest_records_apart_are_named():
    def at(**settings) -> Record:
        return replace(record(x=Scalar(1, "B")), settings=settings)

    a = [at(load=0.5, over="tcp", size_bytes=64), at(load=0.7, over="udp")]
    b = [at(load=0.6, over="ofi", size_bytes=8), at(load=0.5, over="udp"), at(load=0.7, over="udp")]
    comparison = compare(a, b)
    assert comparison.settings == (("over", "tcp", "udp"), ("size_bytes", 64, None))
    last = format_comparison(comparison).splitlines()[-1]
    assert "over (tcp in A, udp in B), size_bytes (64 in A, default in B)" in last
    assert "add --ignore over --ignore size_bytes" in last
    # Without these settings only load tells them apart, and `size` is `size_bytes`.
    a, b = (ignore_settings(side, ["over", "size"]) for side in (a, b))
    comparison = compare(a, b)
    assert (comparison.only_a, comparison.only_b) == ((), ("incast (load=0.6)",))
    assert comparison.settings == ()


def test_records_of_another_name_do_not_explain_a_missing_partner():
    comparison = compare([record("a", x=Scalar(1, "B"))], [record("b", 0.9, x=Scalar(1, "B"))])
    assert comparison.settings == ()


def test_distributions_are_compared_at_each_percentile_and_the_mean():
    comparison = compare([record(rtt=rtt())], [record(rtt=rtt())])
    expected = ["p50", "p90", "p99", "p99.9", "p99.99", "mean"]
    assert [d.statistic for d in comparison.differences] == expected
    assert all(d.ratio == 1 for d in comparison.differences)
    assert not any(d.disjoint for d in comparison.differences)


def test_disjoint_intervals_mark_a_difference_that_is_not_chance():
    comparison = compare([record(rtt=rtt())], [record(rtt=rtt(2_000_000))])
    assert find(comparison, "p50").disjoint is True
    assert find(comparison, "mean").disjoint is None


def test_intervals_that_touch_are_not_disjoint():
    # Half the samples at each of two values: the median's interval is from the one to the other.
    a, touching, apart = (
        distribution([low] * 100 + [high] * 100) for low, high in ((10, 20), (20, 30), (21, 30))
    )
    same = find(compare([record(rtt=a)], [record(rtt=touching)]), "p50")
    assert (same.a_interval, same.b_interval) == ((10, 20), (20, 30))
    assert same.disjoint is False
    assert find(compare([record(rtt=touching)], [record(rtt=a)]), "p50").disjoint is False
    assert find(compare([record(rtt=a)], [record(rtt=apart)]), "p50").disjoint is True


def test_an_open_interval_is_disjoint_from_nothing():
    few, far = distribution([1, 2, 3]), distribution([10**9] * 3)
    assert find(compare([record(rtt=few)], [record(rtt=far)]), "p50").disjoint is False


def test_zero_over_zero_is_1_and_anything_over_zero_is_unknown():
    a = [record(x=Scalar(0, ""), y=Scalar(0, ""))]
    b = [record(x=Scalar(0, ""), y=Scalar(2, ""))]
    assert [d.ratio for d in compare(a, b).differences] == [1.0, None]


def test_series_compare_by_mean_min_and_max():
    a, b = (Series("ps", "B", (0, 1), y) for y in ((2, 4), (3, 9)))
    comparison = compare([record(q=a)], [record(q=b)])
    assert [(d.statistic, d.a, d.b) for d in comparison.differences] == [
        ("mean", 3, 6),
        ("min", 2, 3),
        ("max", 4, 9),
    ]


def test_empty_distributions_are_left_out_rather_than_compared():
    assert compare([record(rtt=distribution([]))], [record(rtt=rtt())]).differences == ()


def test_one_quantity_in_two_units_is_refused():
    with pytest.raises(InputError, match="A is a scalar in 'B' but B is a scalar in 'KiB'"):
        compare([record(x=Scalar(1, "B"))], [record(x=Scalar(1, "KiB"))])


def test_two_records_of_one_point_are_refused():
    with pytest.raises(InputError, match=r"A: incast \(load=0.5\): two records"):
        compare([record(), record()], [record()])


def test_the_text_table_shows_values_ratios_and_strays():
    a = [record(rtt=rtt()), record(name="lost")]
    text = format_comparison(compare(a, [record(rtt=rtt(2_000_000))]))
    assert "p99.9" in text
    assert "1.133x" in text
    assert text.endswith("only in A: lost (load=0.5)")


@pytest.mark.parametrize(
    ("check", "fails"),
    [
        ("probe.rtt:p99.9 > 25us", False),
        ("probe.rtt:p99.9 > 21us", True),
        ("probe.rtt:p99.9 >= 21000 ns", True),
        ("p50 > 1.1x", True),
        ("p50 > 1.2x", False),
        ("*.rtt:p50 > 10%", True),
        ("probe.*:mean > 20 %", False),
        ("*.goodput:value < 0.95x", True),
        ("value < -5%", True),
        ("value < 0.5x", False),
        ("s.goodput:value < 8.5Gb/s", False),
        ("s.goodput:value<9.5Gb/s", True),
        ("count < 20000", True),
        ("probe.rtt:p99.95 > 1x", True),
        ("probe.rtt:p100 > 21.9us", True),
        ("probe.rtt:p100 > 22.1us", False),
        ("s.goodput:value <= 9Gb/s", True),
        ("s.goodput:value < 9Gb/s", False),
        ("s.goodput:value >= 9Gb/s", True),
        ("s.goodput:value > 9Gb/s", False),
    ],
)
def test_checks_fail_exactly_when_their_condition_holds(check, fails):
    a = [record(probe__rtt=rtt(), s__goodput=Scalar(10e9, "b/s"))]
    b = [record(probe__rtt=rtt(2_000_000), s__goodput=Scalar(9e9, "b/s"))]
    assert bool(find_failures(a, b, [check])) is fails


def test_growth_from_zero_exceeds_every_ratio():
    a, b = [record(drops=Scalar(0, ""))], [record(drops=Scalar(1, ""))]
    assert find_failures(a, b, ["drops:value > 100x"])
    assert not find_failures(a, a, ["drops:value > 1x"])
    assert not find_failures(a, a, ["drops:value > 0%"])


def test_a_change_from_a_negative_value_counts_in_its_own_direction():
    a, b = [record(offset=Scalar(-10, "ns"))], [record(offset=Scalar(-5, "ns"))]
    assert find_failures(a, b, ["offset:value > 49%"])
    assert not find_failures(a, b, ["offset:value > 51%"])
    assert find_failures(b, a, ["offset:value < -99%"])


def test_a_failure_says_which_record_quantity_and_values():
    (failure,) = find_failures(
        [record(rtt=rtt())], [record(rtt=rtt(2_000_000))], ["p50 > 1.1x", "p50 > 2x"]
    )
    text = "incast (load=0.5): rtt p50: A 15 µs, B 16.99 µs"
    assert str(failure).startswith(text)
    assert str(failure).endswith("fails 'p50 > 1.1x'")


@pytest.mark.parametrize(
    "text", ["", "p99", "p99 = 3x", "> 3x", "p101 > 1x", "speed > 1x", "p50 > x", "a b:p50 > 1x"]
)
def test_a_malformed_check_is_refused_with_the_grammar(text):
    with pytest.raises(InputError, match=r"\[QUANTITY:\]STAT"):
        parse_check(text)


@pytest.mark.parametrize(
    "check", ["nosuch:p50 > 1x", "rtt:p50 > 1KiB", "rtt:p50 > 5", "value > 1x"]
)
def test_a_check_that_tests_nothing_is_an_error_rather_than_a_pass(check):
    with pytest.raises(InputError, match="quantities in both files: rtt"):
        find_failures([record(rtt=rtt())], [record(rtt=rtt())], [check])
