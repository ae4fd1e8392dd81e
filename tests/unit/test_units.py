"""Quantities with units: limits of what is parsed, conversion, the unit that is shown."""

import pytest

from weft.errors import InputError
from weft.units import (
    choose_unit,
    convert,
    format_number,
    format_value,
    parse_rate,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(
    ("parse", "largest", "value", "beyond"),
    [
        (parse_time, "1000 s", 10**15, "1000.1 s"),
        (parse_size, "1048576 TiB", 2**60, "1048577 TiB"),
        (parse_rate, "1_000_000 Tb/s", 1e18, "1_000_001 Tb/s"),
    ],
)
def test_the_largest_quantity_is_allowed_and_the_next_is_not(parse, largest, value, beyond):
    assert parse(largest) == value
    with pytest.raises(InputError, match=r"is too large; use .* or less"):
        parse(beyond, "--x")


@pytest.mark.parametrize("text", [5, "5", "5 parsecs", "ns", "", None, "1e5x ns"])
def test_a_quantity_without_its_unit_is_refused(text):
    with pytest.raises(InputError, match="is not a time; write a number and a unit in quotes"):
        parse_time(text)


def test_units_convert_only_within_a_dimension():
    assert convert(25, "us", "ps") == 25_000_000
    assert convert(1, "GB/s", "Gb/s") == 8
    assert convert(1, "us", "B") is None
    assert convert(3, "packets", "packets") == 3


def test_values_are_shown_in_the_unit_people_would_choose():
    assert format_value(1_500_000, "ps") == "1.5 µs"
    assert format_value(0, "ps") == "0 ps"
    assert format_value(32768, "B") == "32 KiB"
    assert format_value(12, "") == "12"
    assert choose_unit("ns", 2500).unit == "µs"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1000, "ps", "1 ns"),
        (999, "ps", "999 ps"),
        (1024, "B", "1 KiB"),
        (1023, "B", "1023 B"),
        (-2000, "ps", "-2 ns"),
    ],
)
def test_a_value_of_exactly_one_unit_is_shown_in_it(value, unit, text):
    assert format_value(value, unit) == text


def test_counts_show_all_digits_up_to_a_million():
    assert [format_number(n) for n in (123_456, 999_999, 1_000_000)] == [
        "123456",
        "999999",
        "1e+06",
    ]
    assert format_number(0.123456) == "0.1235"
