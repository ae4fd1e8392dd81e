"""The allocation is the best there is: beside brute force, SLSQP and itself from scratch."""

from __future__ import annotations

import os

import numpy as np
import pytest
from allocation_instances import (
    FINE_UNITS,
    brute_force,
    instance,
    least_units,
    total_slowdown,
)

from weft.control.policy.allocate import Assignment, Models, allocate, closed, opened
from weft.control.policy.paper import slsqp

# `make test-optimal` sets 10,000, which takes minutes.
SLSQP_INSTANCES = int(os.environ.get("WEFT_ALLOCATE_INSTANCES", "40"))


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


def test_never_above_slsqp_on_random_ports() -> None:
    rng = np.random.default_rng(2)
    for _ in range(SLSQP_INSTANCES):
        models = instance(rng, most=64, floor_unit=1 / FINE_UNITS)
        ours = allocate(models, [range(len(models))], units=FINE_UNITS)
        theirs = slsqp(models)
        # Whole units of 1e-7 of the link cost at most this beside shares of any size.
        assert ours.objective[0] <= theirs.objective + 1e-6 * max(1.0, abs(theirs.objective))
        assert ours.gap[0] <= 1e-9


@pytest.mark.parametrize("kind", ["convex", "polynomial"])
def test_a_changed_connection_gives_the_weights_of_a_whole_solution(kind: str) -> None:
    rng = np.random.default_rng(3)
    models = instance(rng, most=12, floor_unit=1 / 2040, kinds=(kind,))
    while len(models) < 6:
        models = instance(rng, most=12, floor_unit=1 / 2040, kinds=(kind,))
    state = Assignment(models=Models(models), units=2040)
    open_now: list[tuple[int, list[str]]] = []
    for _ in range(60):
        if open_now and rng.random() < 0.4:
            gone = open_now.pop(int(rng.integers(len(open_now))))
            state, _ = closed(state, [gone])
        else:
            path = [f"port {i}" for i in rng.choice(6, 3, replace=False)]
            open_now.append((int(rng.integers(len(models))), path))
            state, _ = opened(state, open_now[-1:])
        used = sorted({port for _, path in open_now for port in path})
        assert sorted(map(str, state.ports)) == used
        for port in used:
            apps = sorted({app for app, path in open_now if port in path})
            whole = allocate(models, [apps], units=2040)
            assert state.ports[port].objective == pytest.approx(whole.objective[0], rel=1e-9)
            assert sum(state.ports[port].weights.values()) == 2040


def test_the_same_input_gives_the_same_bytes() -> None:
    models = instance(np.random.default_rng(4), most=64, floor_unit=1 / 2040)
    first, second = (allocate(models, [range(len(models))], units=2040) for _ in range(2))
    assert first.weights.tobytes() == second.weights.tobytes()
    assert first.objective.tobytes() == second.objective.tobytes()
