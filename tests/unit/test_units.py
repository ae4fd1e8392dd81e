"""Quantities with units: limits of what is parsed, conversion, the unit that is shown."""

import pytest

from weft.errors import InputError
from weft.units import (
    choose_unit,
    convert,
    format_count,
    format_number,
    format_setting,
    format_settings,
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
    assert [format_value(0, unit) for unit in ("ps", "KiB", "Gb/s", "M/s", "x")] == [
        "0 s",
        "0 B",
        "0 b/s",
        "0 /s",
        "0 x",
    ]
    assert format_value(0.0003437, "M/s") == "343.7 /s"
    assert format_value(84_830.2, "1/s") == "84.83 k/s"
    assert format_value(1.697, "M/s") == "1.697 M/s"
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


def test_numbers_have_four_digits_or_all_before_the_point():
    assert [format_number(n) for n in (123_456, 12_345_678, 84_830.2, 9_999.4, 0.12345)] == [
        "123456",
        "12345678",
        "84830",
        "9999",
        "0.1235",
    ]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("size_bytes", 64, "64 B"),
        ("size_bytes", 1500, "1500 B"),
        ("size_bytes", 65_536, "64 KiB"),
        ("size_bytes", 3 << 20, "3 MiB"),
        ("size_bytes", 0, "0 B"),
        ("duration_ns", 500_000_000, "500 ms"),
        ("duration_ns", 123_456_789, "123.456789 ms"),
        ("busy_poll_us", 50, "50 µs"),
        ("rate", 300.0, "300"),
        ("nagle", True, "True"),
        ("over", "tcp", "tcp"),
        ("count", None, "None"),
    ],
)
def test_a_setting_is_shown_exactly_as_people_write_it(name, value, text):
    assert format_setting(name, value) == text


def test_settings_are_sorted_by_name_without_their_units():
    settings = {"size_bytes": 64, "over": "tcp", "duration_ns": 5 * 10**8}
    assert format_settings(settings) == "duration=500 ms, over=tcp, size=64 B"


def test_nouns_agree_with_their_number():
    counts = [(1, "switch"), (2, "switch"), (0, "host"), (1, "process"), (3, "process")]
    assert [format_count(*count) for count in counts] == [
        "1 switch",
        "2 switches",
        "0 hosts",
        "1 process",
        "3 processes",
    ]
