"""What the tuner decides from numbers: boundaries and formulas, without a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from weft.errors import InputError
from weft.model.link import count_fragments
from weft.records import Plain
from weft.tune.rules.advice import _find_enough, _find_linear_crossing, _find_log_crossing
from weft.tune.rules.evidence import FIRM, SINGLE, WEAK, Spread, judge_confidence
from weft.tune.search.design import design, schedule
from weft.tune.search.from_records import find_better_stored, find_unreached_factors
from weft.tune.search.over_fabric import DISTURBANCE_RATIO, _drop_disturbed
from weft.tune.search.recommend import (
    NEGLIGIBLE,
    Recommendation,
    _compute_improvements,
    filter_recommendable,
    rank_candidates,
)
from weft.tune.search.space import (
    GOALS,
    Candidate,
    Factor,
    HostLimits,
    MeasuredPoint,
    Space,
    build_space,
)
from weft.tune.search.surface import Prediction, Surface, fit_surface
from weft.tune.search.tuning import Tuning, _lower_bounds, find_strongest_neighbours

THROUGHPUT, LATENCY = GOALS["throughput"], GOALS["latency"]
LIMITS = HostLimits(
    transport="tcp", cpus=2, nodes=(0,), inline_limit=0, largest_bytes=2**30, size_bytes=64
)
TWO_FACTORS = Space(
    over="tcp",
    factors=(
        Factor(name="depth", levels=(1, 2, 4, 8), default=1),
        Factor(name="signal_every", levels=(1, 2), default=1),
    ),
    fixed={"size_bytes": 4096},
)


def point(value: float, lost_percent: float = 0.0, **setting: int) -> MeasuredPoint:
    return MeasuredPoint(
        setting={"depth": 1, "signal_every": 1, **setting},
        value=value,
        stage="test",
        lost_percent=lost_percent,
    )


@pytest.mark.parametrize(("shares", "allowed"), [((0, 0, 3), True), ((0, 0, 3.03), False)])
def test_a_setting_may_lose_one_per_cent_on_average_and_no_more(
    shares: Sequence[float], allowed: bool
) -> None:
    rows = [point(2.0, lost, depth=2) for lost in shares] + [point(1.0)]
    settings = [row.setting for row in rows]
    assert (
        {"depth": 2, "signal_every": 1}
        in filter_recommendable(TWO_FACTORS, THROUGHPUT, rows, settings)
    ) is allowed


@dataclass
class FixedSurface:
    """Level 2 of one factor is better by `gain`, with a standard error of `error`."""

    factor: str
    gain: float
    error: float
    space: Space = TWO_FACTORS

    def _score(self, setting: Candidate) -> float:
        return self.gain * (setting[self.factor] == 2)

    def predict(self, settings: Sequence[Candidate]) -> Prediction:
        scores = np.array([self._score(setting) for setting in settings])
        return Prediction(log_value=scores, log_error=0 * scores + self.error)

    def predict_ratio(self, ours: Candidate, theirs: Candidate) -> tuple[float, float]:
        return self._score(ours) - self._score(theirs), self.error


@pytest.mark.parametrize(
    ("factor", "gain", "error", "chosen"),
    [
        ("signal_every", 0.05, 0.06, 1),  # seldom decides: less than its standard error is chance
        ("signal_every", 0.07, 0.06, 2),
        ("depth", 0.05, 0.06, 2),  # decisive: taken though it may be chance
        ("depth", 0.9 * NEGLIGIBLE, 0.0, 1),
        ("depth", 1.1 * NEGLIGIBLE, 0.0, 2),
    ],
)
def test_a_factor_leaves_its_default_for_more_than_nothing_and_more_than_chance(
    factor: str, gain: float, error: float, chosen: int
) -> None:
    surface = cast(Surface, FixedSurface(factor, gain, error))
    (best,) = rank_candidates(surface, THROUGHPUT, [], 1)
    assert best[factor] == chosen


def test_lower_bounds_are_means_less_two_standard_errors_of_a_shrunk_variance() -> None:
    # squares 2 and 8, 1 + 1 degrees of freedom: usual variance 5; three such values join each
    bounds = _lower_bounds({("a",): np.array([1.0, 3.0]), ("b",): np.array([4.0, 8.0])})
    first, second = (2 + 3 * 5) / (1 + 3), (8 + 3 * 5) / (1 + 3)
    assert bounds[("a",)] == pytest.approx(2 - 2 * math.sqrt(first / 2))
    assert bounds[("b",)] == pytest.approx(6 - 2 * math.sqrt(second / 2))


def test_expected_improvement_is_that_of_a_normal_variable() -> None:
    # (m - b) Φ(z) + s φ(z), z = (m - b)/s: at z = 0 it is s/sqrt(2π); far above b it is m - b
    result = _compute_improvements(np.array([1.0, 9.0]), np.array([0.5, 0.1]), 1.0)
    assert result == pytest.approx([0.5 / math.sqrt(2 * math.pi), 8.0])


def test_a_95_per_cent_interval_is_1_96_standard_errors_to_either_side() -> None:
    at = Prediction(log_value=np.array([2.0]), log_error=np.array([0.5]))
    interval = at.interval(0)
    logs = np.log([interval.value, interval.low, interval.high])
    assert logs == pytest.approx([2, 2 - 1.96 * 0.5, 2 + 1.96 * 0.5], abs=1e-4)


def surface_of_rows() -> Surface:
    random = np.random.default_rng(4)
    rows = [
        point(1e6 * depth**0.5 * math.exp(0.05 * random.normal()), depth=depth, signal_every=s)
        for depth in (1, 2, 4)
        for s in (1, 2)
    ]
    return fit_surface(TWO_FACTORS, THROUGHPUT, [replace(row) for row in rows])


def test_a_ratio_of_predictions_is_certain_of_a_setting_beside_itself() -> None:
    surface = surface_of_rows()
    one, other = {"depth": 2, "signal_every": 1}, {"depth": 8, "signal_every": 2}
    assert surface.predict_ratio(one, one) == pytest.approx((0.0, 0.0), abs=1e-6)
    ratio, error = surface.predict_ratio(one, other)
    logs = surface.predict([one, other]).log_value
    assert ratio == pytest.approx(logs[0] - logs[1])
    assert surface.predict_ratio(other, one) == pytest.approx((-ratio, error))
    # Var(a − b) = Var a + Var b − 2 Cov(a, b), and |Cov| is at most the product of both errors
    near, far = surface.predict([one, other]).log_error
    assert abs(near - far) - 1e-9 <= error <= near + far + 1e-9


def test_a_window_may_hold_64_mib_and_no_more() -> None:
    space = build_space(THROUGHPUT, LIMITS, {})
    held = {**space.default, "size_bytes": 2**20, "depth": 32, "qps": 2, "threads": 1}
    assert space.is_possible(held)
    assert not space.is_possible({**held, "threads": 2})
    assert not space.is_possible({**held, "depth": 1, "signal_every": 4})


def test_a_schedule_takes_all_of_a_budget_and_not_a_point_more() -> None:
    space = build_space(THROUGHPUT, LIMITS, {})
    usual = schedule(space, "tcp")
    assert schedule(space, "tcp", budget_s=usual.seconds) == usual
    assert schedule(space, "tcp", budget_s=usual.seconds - 0.01).points < usual.points
    with pytest.raises(InputError, match="too short") as refused:
        schedule(space, "tcp", budget_s=1)
    least_s = float(str(refused.value).split("give ")[1].split(" s")[0])
    assert schedule(space, "tcp", budget_s=least_s + 1).seconds <= least_s + 1
    with pytest.raises(InputError, match="too short"):
        schedule(space, "tcp", budget_s=least_s - 1)


@pytest.mark.parametrize(
    ("over_bound", "wins"),
    [((1.05, 1.1, 1.5), True), ((1.0, 1.1, 1.5), False), ((1.25, 1.5), False)],
)
def test_records_win_over_the_model_by_three_runs_that_are_all_better(
    over_bound: Sequence[float], wins: bool
) -> None:
    chosen = Recommendation(setting={"depth": 1, "signal_every": 1}, surface=surface_of_rows())
    values = [factor * chosen.predicted.high for factor in over_bound]
    rows = [point(value, depth=8) for value in values]
    better = find_better_stored(TWO_FACTORS, THROUGHPUT, rows, chosen)
    assert (better is not None) is wins
    if better is not None:
        assert better[0].setting == {"depth": 8, "signal_every": 1}
        assert better[1].values == pytest.approx(values)


def test_a_default_at_the_edge_of_the_records_is_within_their_reach() -> None:
    def reached(default: int) -> bool:
        factor = Factor(name="depth", levels=(2, 8), default=default)
        return not find_unreached_factors(replace(TWO_FACTORS, factors=(factor,)))

    assert [reached(default) for default in (1, 2, 4, 8, 16)] == [False, True, True, True, False]


def test_a_design_spreads_decisive_factors_alone_or_all_if_none_is_decisive() -> None:
    def levels_of(space: Space, name: str) -> set[Plain]:
        return {row[name] for row in design(space, 8, 0, np.random.default_rng(1), trials=1)}

    fixed = {"size_bytes": 4096, "depth": 8}
    undecisive = replace(TWO_FACTORS, factors=TWO_FACTORS.factors[1:], fixed=fixed)
    assert levels_of(TWO_FACTORS, "depth") == {1, 2, 4, 8}
    assert levels_of(TWO_FACTORS, "signal_every") == {1}
    assert levels_of(undecisive, "signal_every") == {1, 2}


def test_neighbours_to_confirm_differ_in_one_factor_each_and_are_never_the_default() -> None:
    surface = cast(Surface, FixedSurface("depth", 0.1, 0.0))
    chosen = Recommendation(setting={"depth": 2, "signal_every": 1}, surface=surface)
    neighbours = find_strongest_neighbours(THROUGHPUT, chosen)
    # Depth 1 is as good as depth 4, but is the default.
    assert neighbours == {
        "signal_every 2": {"depth": 2, "signal_every": 2},
        "depth 4": {"depth": 4, "signal_every": 1},
    }


def test_repetitions_far_from_their_median_are_no_evidence() -> None:
    ratios = [1.0, *(side * DISTURBANCE_RATIO for side in (0.99, 1.01))]
    ratios += [side / DISTURBANCE_RATIO for side in (1.01, 0.99)]
    rows = tuple(replace(point(ratio), record=cast("None", f"{ratio:.2f}")) for ratio in ratios)
    tuning = SimpleNamespace(space=TWO_FACTORS, rows=rows)
    assert list(map(str, _drop_disturbed(cast(Tuning, tuning)))) == ["1.00", "1.58", "0.63"]


@pytest.mark.parametrize(
    ("numbers", "spread", "runs", "confidence"),
    [
        ([12.0, 15.0], 1.0, 2, FIRM),
        ([12.0, 15.0], 1.0, 1, SINGLE),
        ([12.0, 15.0], 2.0, 2, WEAK),  # repetitions scatter as much as the number is off
        ([9.0, 15.0], 0.5, 2, WEAK),  # on both sides
    ],
)
def test_a_rule_is_firm_where_all_numbers_are_clear_of_the_threshold(
    numbers: list[float], spread: float, runs: int, confidence: str
) -> None:
    assert judge_confidence(numbers, 10.0, spread, runs) == confidence


def test_a_spread_is_half_its_range_over_its_median() -> None:
    assert Spread((8.0, 10.0, 14.0)).relative == pytest.approx(6 / (2 * 10))
    assert Spread((5.0,)).relative == 0


def test_curves_are_read_between_their_points() -> None:
    # Log-log: from (1, 1) to (100, 100) the value 10 is at 10. Linear: half the rise is halfway.
    assert _find_log_crossing([1.0, 100.0], [1.0, 100.0], 10.0) == pytest.approx(10.0)
    assert _find_log_crossing([1.0, 100.0], [1.0, 100.0], 1.0) == 1.0
    assert _find_linear_crossing([0.0, 4.0, 8.0], [1.0, 1.0, 3.0], 2.0) == pytest.approx(6.0)
    assert _find_linear_crossing([0.0, 4.0], [1.0, 1.5], 2.0) == 4.0
    assert _find_enough([1.0, 2.0, 4.0], [89.0, 90.0, 100.0]) == 2


def test_fragments_but_the_last_carry_a_multiple_of_eight_bytes() -> None:
    # MTU 1006 less 20 of IPv4 leaves 986, of which 984 can be used: 2 · 984 + 986 + 1 need four
    sizes = np.array([984 - 8, 2 * 984 - 8, 2 * 984 + 986 + 1 - 8], dtype=np.float64)
    assert count_fragments(sizes, 1006).tolist() == [1, 2, 4]


def test_less_is_better_for_latency_where_the_records_decide() -> None:
    chosen = Recommendation(setting={"depth": 1, "signal_every": 1}, surface=surface_of_rows())
    rows = [point(factor * chosen.predicted.low, depth=8) for factor in (0.95, 0.75, 0.5)]
    assert find_better_stored(TWO_FACTORS, LATENCY, rows, chosen) is not None
    assert find_better_stored(TWO_FACTORS, THROUGHPUT, rows, chosen) is None
