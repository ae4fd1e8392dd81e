"""Laws of the allocation: what is certified holds, and what must not matter does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from allocation_instances import brute_force, instance, least_units
from hypothesis import given
from hypothesis import strategies as st
from some_examples import examples

from weft.control.policy.allocate import Allocation, Models, Ports, allocate
from weft.sensitivity.model import Hinges, Polynomial, Sensitivity

UNITS = 24
SEEDS = st.integers(0, 2**32 - 1)


def ports(seed: int, kinds: Sequence[str], most: int = 4) -> list[Sensitivity]:
    return instance(np.random.default_rng(seed), most=most, floor_unit=1 / UNITS, kinds=kinds)


def rough(models: Sequence[Sensitivity], nodes: int) -> tuple[float, float]:
    """Objective and gap when splitting stops after so many nodes and no programme is run."""
    one = Ports.of([range(len(models))])
    weights = np.empty(len(models), dtype=np.int64)
    objective, gap, multiplier = np.empty(1), np.empty(1), np.full(1, np.nan)
    units = np.array([UNITS], dtype=np.int64)
    Models.of(models).core.solve(
        one.offsets,
        one.applications,
        units,
        units,
        weights,
        objective,
        gap,
        multiplier,
        nodes=nodes,
        programme_steps=0.0,
    )
    return float(objective[0]), float(gap[0])


def solved(models: Sequence[Sensitivity], units: int = UNITS, capacity: float = 1.0) -> Allocation:
    return allocate(models, [range(len(models))], units=units, capacity=capacity)


@examples(300)
@given(SEEDS, st.integers(1, 3))
def test_the_certified_gap_is_a_true_bound_however_early_the_search_stops(
    seed: int, nodes: int
) -> None:
    models = ports(seed, ("polynomial",))
    objective, gap = rough(models, nodes)
    best = brute_force(models, UNITS, UNITS)
    slack = 1e-9 * max(1.0, abs(objective))
    assert best - slack <= objective <= best + gap * abs(objective) + slack


@examples(100)
@given(SEEDS)
def test_the_programme_agrees_with_splitting(seed: int) -> None:
    models = ports(seed, ("polynomial", "convex"), most=8)
    one = Ports.of([range(len(models))])
    weights = np.empty(len(models), dtype=np.int64)
    objective, gap, multiplier = np.empty(1), np.empty(1), np.full(1, np.nan)
    units = np.array([UNITS], dtype=np.int64)
    Models.of(models).core.solve(
        one.offsets, one.applications, units, units, weights, objective, gap, multiplier, nodes=1
    )
    assert objective[0] == pytest.approx(solved(models).objective[0], rel=1e-9, abs=1e-9)
    assert weights.sum() == UNITS


@examples(100)
@given(SEEDS, st.floats(0.1, 10), st.floats(-5, 5))
def test_scaling_all_slowdowns_and_adding_a_constant_changes_only_the_objective(
    seed: int, factor: float, constant: float
) -> None:
    models = [m for m in ports(seed, ("polynomial",)) if isinstance(m, Polynomial)]
    scaled = [
        replace(
            m,
            coefficients=(
                constant + factor * m.coefficients[0],
                *(factor * c for c in m.coefficients[1:]),
            ),
        )
        for m in models
    ]
    expected = factor * solved(models).objective[0] + constant * len(models)
    assert solved(scaled).objective[0] == pytest.approx(expected, rel=1e-8, abs=1e-8)


@examples(100)
@given(SEEDS, st.randoms(use_true_random=False))
def test_the_order_of_applications_does_not_matter(seed: int, random: object) -> None:
    models = ports(seed, ("polynomial", "convex"), most=16)
    order = list(range(len(models)))
    random.shuffle(order)  # type: ignore[attr-defined]
    mixed = [models[i] for i in order]
    assert solved(mixed).objective[0] == pytest.approx(
        solved(models).objective[0], rel=1e-9, abs=1e-9
    )


@examples(100)
@given(SEEDS, st.integers(1, 200))
def test_more_capacity_never_slows_down_applications_that_hide_or_wait(
    seed: int, more: int
) -> None:
    models = ports(seed, ("convex",), most=16)
    least = int(least_units(models, 2040).sum())
    less = min(2040 - more, max(least, 1000))
    if less < least:
        return
    small = solved(models, 2040, less / 2040).objective[0]
    assert solved(models, 2040, (less + more) / 2040).objective[0] <= small * (1 + 1e-12)


@examples(100)
@given(SEEDS, st.integers(0, 10**6), st.booleans())
def test_the_multiplier_is_what_one_unit_more_saves(seed: int, above: int, convex: bool) -> None:
    models = ports(seed, ("convex",) if convex else ("polynomial", "convex"), most=16)
    units = 1000 * UNITS
    least = int(least_units(models, units).sum())
    budget = least + above % (units - least)
    less, more = (solved(models, units, own / units) for own in (budget, budget + 1))
    saved = units * (less.objective[0] - more.objective[0])
    slack = 1e-6 + 2e-9 * units * abs(less.objective[0])
    assert less.multiplier[0] <= saved + slack
    if convex:
        assert less.multiplier[0] == pytest.approx(saved, rel=1e-6, abs=1e-6)


@examples(100)
@given(SEEDS, st.floats(1.0, 5.0))
def test_who_becomes_more_sensitive_gets_no_less(seed: int, factor: float) -> None:
    models = [m for m in ports(seed, ("convex",), most=16) if isinstance(m, Hinges)]
    needier = replace(models[0], terms=tuple((t, c * factor) for t, c in models[0].terms))
    before, after = solved(models, 2040), solved([needier, *models[1:]], 2040)
    needs = sum(m.terms[0][0] if m.terms else m.floor for m in models)
    if needs >= 1:  # else there is more than all can use, and the rest may go anywhere
        assert after.weights[0] >= before.weights[0] - 1


@examples(100)
@given(SEEDS)
def test_finer_units_are_never_worse(seed: int) -> None:
    models = ports(seed, ("polynomial", "convex"), most=16)
    coarse, fine = solved(models, UNITS), solved(models, 8 * UNITS)
    slack = 1e-9 * max(1.0, abs(coarse.objective[0]))
    assert fine.objective[0] <= coarse.objective[0] + slack
