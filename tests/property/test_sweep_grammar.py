"""The sweep grammar: what each form stands for, over random values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.measure.settings.by_test import Streamed
from weft.measure.settings.options import Windowed, options_of, sweep_points
from weft.sweep_grammar import MAX_POINTS, expand_values

OPTIONS = options_of(Windowed)
SIZE = OPTIONS["size"][1]
LOSS = OPTIONS["delay.loss"][1]
DURATION = OPTIONS["duration"][1]
sizes = st.integers(1, 2**30)


def values_of(option, text):
    return expand_values(option.read, text, f"--sweep {option.name}")


@given(st.lists(sizes, min_size=1, max_size=20, unique=True))
def test_a_list_is_its_values_in_the_order_written(values):
    assert values_of(SIZE, ",".join(map(str, values))) == values


@given(first=sizes, last=sizes, factor=st.integers(2, 10))
def test_a_geometric_range_has_every_power_up_to_its_end_and_none_beyond(first, last, factor):
    first, last = min(first, last), max(first, last)
    values = values_of(SIZE, f"{first}..{last}*{factor}")
    assert values == [first * factor**i for i in range(len(values))]
    assert values[-1] <= last < values[-1] * factor


@given(first=sizes, steps=st.integers(0, 500), step=st.integers(1, 1000), rest=st.data())
def test_an_arithmetic_range_has_every_step_up_to_its_end_and_none_beyond(first, steps, step, rest):
    last = first + steps * step + rest.draw(st.integers(0, step - 1))
    assert values_of(SIZE, f"{first}..{last}+{step}") == list(range(first, last + 1, step))


@given(st.integers(1, 100))
def test_steps_that_are_not_exact_still_reach_the_end(parts):
    values = values_of(LOSS, f"0..1+{1 / parts!r}")
    assert len(values) == parts + 1
    assert math.isclose(values[-1], 1)


@given(exponent=st.integers(0, 9), unit=st.sampled_from(["K", "KiB"]))
def test_sizes_with_a_unit_are_bytes(exponent, unit):
    assert values_of(SIZE, f"{2**exponent}{unit}") == [2 ** (exponent + 10)]


@given(
    st.lists(sizes, min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 65536), min_size=1, max_size=4, unique=True),
)
def test_two_keys_give_every_combination_once(some_sizes, depths):
    swept = ["size=" + ",".join(map(str, some_sizes)), "depth=" + ",".join(map(str, depths))]
    points = sweep_points(Windowed, {"over": "tcp"}, swept)
    assert [(p.size_bytes, p.depth) for p in points] == [(s, d) for s in some_sizes for d in depths]
    assert {p.over for p in points} == {"tcp"}


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=30))
def test_any_text_is_values_or_one_error_that_names_the_key(text):
    points, problems = [], []
    try:
        points = values_of(SIZE, text)
    except InputError as error:
        problems = [(error.where, bool(error.remedy))]
    assert problems in ([], [("--sweep size", True)])
    assert (len(points) == 0) == bool(problems)
    assert all(isinstance(value, int) and value >= 1 for value in points)


def test_the_issue_s_example_is_doublings_times_depths():
    points = sweep_points(Streamed, {}, ["size=64..8M*2", "depth=1,4,16"])
    assert len(points) == 18 * 3
    assert points[0].size_bytes == 64
    assert points[-1].size_bytes == 8 * 2**20


def test_times_keep_their_units_and_ranges():
    assert values_of(DURATION, "1ms..100ms*10") == [10**6, 10**7, 10**8]
    assert values_of(DURATION, "1ms..2ms+500us") == [10**6, 1_500_000, 2 * 10**6]


def test_commas_in_parentheses_belong_to_the_value():
    wire = OPTIONS["delay.wire"][1]
    assert values_of(wire, "10us,uniform(5us,15us)") == ["10us", "uniform(5us,15us)"]


@pytest.mark.parametrize(
    ("sweeps", "problem"),
    [
        (["size"], "is not KEY=VALUES"),
        (["=3"], "is not KEY=VALUES"),
        (["colour=1"], "no such setting"),
        (["size=1,2", "size=3"], "is given twice"),
        (["size=1,2,1"], "1 is given twice"),
        (["size=,"], "has no values"),
        (["size=8..4*2"], "goes down"),
        (["size=1..8*1"], "does not grow"),
        (["size=1..8*x"], "is not a factor"),
        (["size=1..8+0"], "too small"),
        (["size=0"], "too small"),
        (["size=-4"], "is too small"),
        (["size=1.5"], "whole number of bytes"),
        (["size=4GG"], "is not a size"),
        (["size=1..2G+1"], f"more than {MAX_POINTS} values"),
        (["size=1..1000+1", "depth=1..1000+1"], "combinations are more than"),
        (["wait=spin..block"], "has no ranges"),
        (["wait=sleep"], "is not known"),
        (["duration=5"], "is not a time"),
        (["over=tcp"], "is also given by --sweep"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_by_name(sweeps, problem):
    with pytest.raises(InputError, match=problem):
        sweep_points(Windowed, {"over": "tcp"}, sweeps)
