"""The allocation is the best there is: beside brute force, a programme, greed and SLSQP."""

from __future__ import annotations

import os

import numpy as np
import pytest
from allocation_instances import (
    FINE_UNITS,
    brute_force,
    instance,
    least_units,
    programme,
    total_slowdown,
    unit_by_unit,
)
from bench.slsqp import slsqp

from weft.control.policy.allocate import allocate

# Of each kind; `make test-optimal` sets more, which takes minutes.
SLSQP_PORTS = int(os.environ.get("WEFT_SLSQP_PORTS", "5"))


def test_weights_equal_brute_force_on_1500_small_instances() -> None:
    rng = np.random.default_rng(1)
    for _ in range(1500):
        models = instance(rng, most=4, floor_unit=1 / 24)
        budget = int(rng.integers(sum(least_units(models, 24)), 25))
        answer = allocate(models, [range(len(models))], units=24, capacity=budget / 24)
        best = brute_force(models, 24, budget)
        assert answer.weights.sum() == budget
        assert (answer.weights >= least_units(models, 24)).all()
        assert answer.objective[0] == pytest.approx(total_slowdown(models, answer.weights, 24))
        assert answer.objective[0] == pytest.approx(best, rel=1e-9, abs=1e-9)
        assert answer.gap[0] <= 1e-9


KINDS = [("convex",), ("polynomial",), ("convex", "polynomial")]


@pytest.mark.parametrize("kinds", KINDS, ids=" and ".join)
def test_weights_of_a_table_entry_equal_other_methods(kinds: tuple[str, ...]) -> None:
    """255 units, 5 to 32 applications, a share of the link reserved for others."""
    rng = np.random.default_rng(3)
    for _ in range(40):
        models = instance(rng, least=5, most=32, floor_unit=1 / 255, kinds=kinds)
        budget = int(rng.integers(150, 256))
        answer = allocate(models, [range(len(models))], units=255, capacity=budget / 255)
        best = programme(models, 255, budget)
        assert answer.weights.sum() == budget
        assert (answer.weights >= least_units(models, 255)).all()
        assert answer.objective[0] == pytest.approx(total_slowdown(models, answer.weights, 255))
        assert answer.objective[0] == pytest.approx(best, rel=1e-9, abs=1e-9)
        if kinds == ("convex",):
            assert unit_by_unit(models, 255, budget) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("kinds", KINDS, ids=" and ".join)
def test_never_above_slsqp_on_random_ports(kinds: tuple[str, ...]) -> None:
    rng = np.random.default_rng(2)
    excess, gaps, failed = [], [], 0
    for _ in range(SLSQP_PORTS):
        models = instance(rng, most=64, floor_unit=1 / FINE_UNITS, kinds=kinds)
        ours = allocate(models, [range(len(models))], units=FINE_UNITS)
        theirs = slsqp(models)
        total = ours.objective[0]
        excess.append((total - theirs.objective) / max(1.0, abs(theirs.objective)))
        gaps.append(ours.gap[0])
        failed += not theirs.converged
        # Whole units of 1e-7 of the link cost at most this beside shares of any size.
        assert excess[-1] <= 1e-6
        assert gaps[-1] <= 1e-9
    below = np.mean(np.array(excess) < -1e-6)
    print(
        f"{SLSQP_PORTS} ports, {' and '.join(kinds)}: ours above SLSQP by at most "
        f"{max(excess):.1e}, below by more than 1e-6 at {below:.1%} (most {-min(excess):.2g}); "
        f"SciPy reports failure at {failed}; greatest certified gap {max(gaps):.1e}"
    )


def test_the_same_input_gives_the_same_bytes() -> None:
    models = instance(np.random.default_rng(4), most=64, floor_unit=1 / 2040)
    first, second = (allocate(models, [range(len(models))], units=2040) for _ in range(2))
    assert first.weights.tobytes() == second.weights.tobytes()
    assert first.objective.tobytes() == second.objective.tobytes()
