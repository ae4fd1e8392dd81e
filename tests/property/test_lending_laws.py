"""Laws of weights that reckon with lending, over random groups of applications."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft.control.policy.lending import LendingPort, _extreme_weights
from weft.corun.rounds import EQUAL, LEND, MANAGED, WEFT, build_schemes
from weft.sensitivity.model import Hinges

SETTLED = 1e-6  # of slowdown, the accuracy of a prediction
LINK_BPS = 100e6
SENDS = Hinges(terms=((1.0, 0.95),), floor=0.05)
LIMITED = Hinges(terms=((0.17, 1.05),), floor=0.05)  # limits itself to a sixth of the link


@st.composite
def groups(draw: st.DrawFn, highest: float) -> list[Hinges]:
    """Two to five applications; `highest` of the link is what all floors may be together."""
    count = draw(st.integers(2, 5))
    fractions = st.integers(1, 100).map(lambda percent: percent / 100)
    models = []
    for _ in range(count):
        knots = sorted(draw(st.sets(fractions, max_size=3)), reverse=True)
        terms = tuple((t, draw(st.integers(0, 200)) / 100) for t in knots)
        floor = draw(st.integers(1, int(100 * highest / count))) / 100
        models.append(Hinges(terms=terms, floor=floor))
    return models


@settings(max_examples=60, deadline=None)
@example([SENDS, SENDS, LIMITED, LIMITED, LIMITED, LIMITED])  # far from equal, between two knots
@given(groups(highest=MANAGED))
def test_lending_is_never_rated_worse_than_equation_4_2_or_equal_queues(
    models: list[Hinges],
) -> None:
    """No floor is above an equal share here, so that equal queues are allowed."""
    ways = build_schemes(models, LINK_BPS)
    rated = {name: sum(ways[name].lent) for name in (LEND, WEFT, EQUAL)}
    assert rated[LEND] <= min(rated[WEFT], rated[EQUAL]) + 2 * SETTLED


@given(st.lists(st.floats(0.0, 0.15), min_size=2, max_size=6))
def test_a_search_starts_only_from_weights_of_the_whole_capacity_above_the_floors(
    floors: list[float],
) -> None:
    for weights in _extreme_weights(np.array(floors), MANAGED):
        assert weights.sum() == pytest.approx(MANAGED)
        assert (weights >= np.array(floors) - 1e-12).all()


@settings(max_examples=40, deadline=None)
@given(groups(highest=MANAGED), st.data())
def test_weights_with_lending_are_the_whole_capacity_and_keep_to_floors(
    models: list[Hinges], data: st.DataObject
) -> None:
    spare = int(100 * (MANAGED - sum(model.floor for model in models)) + 1e-9)
    raised = models[0].floor + data.draw(st.integers(0, spare)) / 100
    wide = [Hinges(terms=models[0].terms, floor=raised), *models[1:]]
    ways = build_schemes(wide, LINK_BPS)
    weights = ways[LEND].weights
    assert sum(weights) == pytest.approx(MANAGED)
    assert all(w >= model.floor - 1e-9 for w, model in zip(weights, wide, strict=True))
    assert sum(ways[LEND].lent) <= sum(ways[WEFT].lent) + 2 * SETTLED


@settings(max_examples=40, deadline=None)
@given(groups(highest=MANAGED), st.integers(0, 2**32))
def test_many_sets_of_weights_at_once_are_rated_as_each_alone(
    models: list[Hinges], seed: int
) -> None:
    many = np.random.default_rng(seed).dirichlet(np.ones(len(models)), 5) * 0.9 + 0.01
    lending = LendingPort(models)
    alone = np.array([lending.slowdowns(weights) for weights in many])
    assert lending.slowdowns(many) == pytest.approx(alone, rel=1e-9)
