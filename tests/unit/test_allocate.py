"""The allocation at single ports, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from bench.slsqp import slsqp

from weft._core import Allocator
from weft.control.policy.allocate import Ports, allocate
from weft.errors import InputError
from weft.sensitivity.model import Hinges, Polynomial

SENSITIVE = Hinges(terms=((1.0, 0.8),), floor=0.05)
HIDDEN = Hinges(terms=((0.25, 0.5),), floor=0.05)


def test_equal_applications_share_equally() -> None:
    (weights,) = allocate([SENSITIVE] * 5, [range(5)], units=100).weights.reshape(1, 5)
    assert weights.tolist() == [20] * 5


def test_the_square_root_rule_of_two_hinges() -> None:
    # D_i = 1 + c_i (1/b - 1): D_1' = D_2' where b_1/b_2 = sqrt(c_1/c_2).
    models = [Hinges(terms=((1.0, c),), floor=0.01) for c in (0.9, 0.1)]
    answer = allocate(models, [(0, 1)], units=1_000_000)
    assert answer.shares.tolist() == pytest.approx([0.75, 0.25], abs=1e-6)


def test_what_nobody_needs_is_spread_over_those_that_hide_their_traffic() -> None:
    answer = allocate([HIDDEN] * 2, [(0, 1)], units=200)
    assert answer.weights.tolist() == [100, 100]
    assert answer.objective[0] == 2.0


def test_of_straight_lines_the_steepest_takes_all() -> None:
    models = [Polynomial(coefficients=(4.0, -slope), floor=0.1) for slope in (1.0, 3.0, 2.0)]
    assert allocate(models, [(0, 1, 2)], units=100).weights.tolist() == [10, 80, 10]


def test_the_multiplier_is_a_number_where_floors_fill_the_port() -> None:
    # D = 1/b: a unit more would bring 1/b to one of them.
    models = [Hinges(terms=((1.0, 1.0),), floor=0.5)] * 2
    answer = allocate(models, [(0, 1), (0,)], units=100, capacity=[1.0, 0.6])
    expected = [100 * (1 / 0.5 - 1 / 0.51), 100 * (1 / 0.6 - 1 / 0.61)]
    assert answer.multiplier.tolist() == pytest.approx(expected)


def test_a_reserved_share_is_left_over() -> None:
    answer = allocate([SENSITIVE, HIDDEN], [(0, 1)], units=255, capacity=0.8)
    assert answer.weights.sum() == 204


def test_the_finest_grid_is_handed_out_to_the_last_unit() -> None:
    assert allocate([SENSITIVE, HIDDEN], [(0, 1)], units=2**40).weights.sum() == 2**40


def test_applications_of_a_port_may_be_in_any_order() -> None:
    answer = allocate([SENSITIVE, HIDDEN], [(0, 1), (1, 0)], units=255)
    assert answer.at(0) == answer.at(1)


def test_an_application_that_is_there_twice_has_two_parts() -> None:
    twice = allocate([SENSITIVE, HIDDEN], [(0, 1, 0)], units=255)
    apart = allocate([SENSITIVE, HIDDEN, SENSITIVE], [(0, 1, 2)], units=255)
    assert twice.weights.tolist() == apart.weights.tolist()
    assert twice.objective == apart.objective
    with pytest.raises(InputError, match="port 0: an application occurs twice"):
        twice.at(0)


def test_ports_are_independent_and_may_differ_in_units() -> None:
    both = allocate([SENSITIVE, HIDDEN], [(0, 1), (1,)], units=[255, 1000], capacity=[1.0, 0.5])
    alone = allocate([SENSITIVE, HIDDEN], [(0, 1)], units=255)
    assert both.at(0) == alone.at(0)
    assert both.at(1) == {1: 500}


def test_a_polynomial_that_rises_again_gets_no_more_than_its_best() -> None:
    dip = Polynomial(coefficients=(2.0, -4.0, 5.0), floor=0.05)
    answer = allocate([dip, SENSITIVE], [(0, 1)], units=1000)
    assert answer.weights[0] <= 400


def test_where_concave_curves_tie_one_of_them_takes_the_rest() -> None:
    arch = Polynomial(coefficients=(3.0, -0.5, -1.0), floor=0.1)
    answer = allocate([arch] * 4, [range(4)], units=100)
    assert sorted(answer.weights.tolist()) == [10, 10, 10, 70]
    assert answer.gap[0] <= 1e-9


@pytest.mark.parametrize(
    ("models", "ports", "units", "capacity", "message"),
    [
        ([SENSITIVE], [[]], 255, 1.0, "port 0: has no applications; leave it out"),
        ([SENSITIVE], [[0], []], 255, 1.0, "port 1: has no applications"),
        ([SENSITIVE], [[1]], 255, 1.0, "port 0: application 1 has no model, there are 1"),
        ([SENSITIVE] * 9, [range(9)], 8, 1.0, "9 applications, but only 8 units; use more"),
        ([SENSITIVE] * 21, [range(21)], 1000, 1.0, "floors of 21 applications take 1050 units"),
        ([SENSITIVE], [[0]], 0, 1.0, "units: 0 is not a whole number from 1 to 2^40; give"),
        ([SENSITIVE], [[0]], -255, 1.0, "units: -255 is not a whole number"),
        ([SENSITIVE], [[0]], 254.9, 1.0, "units: 254.9 is not a whole number"),
        ([SENSITIVE], [[0]], 2**40 + 1, 1.0, "units: 1099511627777 is not a whole number"),
        ([SENSITIVE], [[0]], float("nan"), 1.0, "units: nan is not a whole number"),
        ([SENSITIVE], [[0]], 255, 1.5, "capacity: 1.5 is not above 0 and up to 1; give a share"),
        ([SENSITIVE], [[0]], 255, -0.5, "capacity: -0.5 is not above 0"),
        ([SENSITIVE], [[0]], 255, float("nan"), "capacity: nan is not above 0"),
        ([SENSITIVE], [[0]], [255, 255], 1.0, "units: 2 values for 1 ports"),
    ],
)
def test_what_cannot_be_split_is_refused_in_one_line(
    models: list[Hinges], ports: list[list[int]], units: float, capacity: float, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        allocate(models, ports, units=units, capacity=capacity)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        (0, [1.0, float("nan")], "application 0: coefficient nan is not a number up to 1e9"),
        (0, [1.0, float("inf")], "coefficient inf"),
        (0, [1.0, -1e300], "coefficient -1e+300"),
        (0, [], "a polynomial of 0 coefficients, 1 to 4 are allowed"),
        (0, [1.0] * 5, "a polynomial of 5 coefficients"),
        (1, [0.5, -1.0], "weight -1 of a term is below 0"),
        (1, [0.5, 1e12], "weight of a term 1e+12 is not a number up to 1e9"),
        (1, [0.5, float("nan")], "weight of a term nan"),
        (1, [1.5, 1.0], "a term at 1.5 is not in 0 to 1"),
        (1, [0.2, 1.0, 0.5, 1.0], "terms do not descend at 0.5"),
    ],
)
def test_curves_that_are_none_are_refused_by_the_core(
    kind: int, numbers: list[float], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        Allocator(
            np.array([kind], dtype=np.uint8),
            np.array([0.1]),
            np.array([0, len(numbers)], dtype=np.int64),
            np.array(numbers, dtype=np.float64),
        )
    assert message in str(caught.value)


def test_slsqp_refuses_floors_beyond_the_capacity() -> None:
    with pytest.raises(InputError, match=r"3 applications with floors of 0\.15"):
        slsqp([SENSITIVE] * 3, capacity=0.1)


def test_ports_as_arrays_are_ports_as_lists() -> None:
    lists = Ports.of([(0, 1), (1,)])
    assert lists.offsets.tolist() == [0, 2, 3]
    assert lists.applications.tolist() == [0, 1, 1]
