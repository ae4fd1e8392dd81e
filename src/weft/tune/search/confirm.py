"""The proof: recommendation, default and two neighbours measured in turns, and compared.

In each round every setting is measured once, in an order drawn anew. Values are geometric means
with t intervals of the logarithms; the gain over another setting is the mean over the rounds of the
ratio within the round, so that a drift of the machine hits both. Entry points: `neighbours`,
`confirmed`. Units: the goal's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from weft.model.fit import FloatArray
from weft.records import Plain
from weft.tune.search.goal import Goal
from weft.tune.search.recommend import Recommendation
from weft.tune.search.space import PROBED, Choice

CONFIDENCE = 0.95
LEAST_ROUNDS = 2
RECOMMENDED, DEFAULT = "recommended", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A geometric mean and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g}–{self.high:.3g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """One setting: predicted before, measured after. `better` is the recommendation over it."""

    role: str
    setting: Mapping[str, Plain]
    predicted: Interval
    measured: Interval
    better: Interval
    values: tuple[float, ...]


def neighbours(goal: Goal, found: Recommendation, number: int = 2) -> dict[str, dict[str, Plain]]:
    """The strongest rivals that differ in one factor: the best of each factor, best first."""
    space = found.surface.space
    default = space.key(space.default)
    rivals = [
        (factor, setting)
        for factor, setting in space.neighbours(found.setting)
        if space.key(setting) != default and factor not in PROBED
    ]
    if not rivals:
        return {}
    expected = found.surface.expected([setting for _, setting in rivals])
    taken: dict[str, dict[str, Plain]] = {}
    for place in np.argsort(-goal.sign * expected.log_value, kind="stable"):
        factor, setting = rivals[place]
        taken.setdefault(f"{factor} {setting[factor]}", setting)
    first: dict[str, dict[str, Plain]] = {}
    for role, setting in taken.items():
        factor = role.partition(" ")[0]
        if len(first) < number and not any(known.startswith(f"{factor} ") for known in first):
            first[role] = setting
    return first


def contenders(goal: Goal, found: Recommendation) -> dict[str, Choice]:
    """Role -> setting of all that are measured; equal ones once."""
    space = found.surface.space
    chosen: dict[str, Choice] = {RECOMMENDED: found.setting, **neighbours(goal, found)}
    if space.key(space.default) != space.key(found.setting):
        chosen[DEFAULT] = space.default
    return chosen


def confirmed(
    goal: Goal, found: Recommendation, rounds: Sequence[Mapping[str, float]]
) -> tuple[Confirmed, ...]:
    """One row for each role; `rounds` are the values of each round, by role.

    A role is judged by the rounds that it shares with the recommendation; one with too few of them
    is left out.
    """
    settings = contenders(goal, found)
    told: list[Confirmed] = []
    for role, setting in settings.items():
        shared = [(one[RECOMMENDED], one[role]) for one in rounds if {RECOMMENDED, role} <= {*one}]
        if len(shared) >= LEAST_ROUNDS:
            ours, theirs = np.log(shared).T
            told.append(
                Confirmed(
                    role=role,
                    setting=setting,
                    predicted=_predicted(found, setting),
                    measured=mean_interval(theirs),
                    better=mean_interval(goal.sign * (ours - theirs)),
                    values=tuple(np.exp(theirs).tolist()),
                )
            )
    return tuple(told)


def _predicted(found: Recommendation, setting: Choice) -> Interval:
    value, (low, high) = found.expected_at(setting)
    return Interval(value=value, low=low, high=high)


def mean_interval(logs: FloatArray) -> Interval:
    """exp of the mean, with Student's t interval."""
    n = len(logs)
    middle = float(np.mean(logs))
    half = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2) * np.std(logs, ddof=1) / np.sqrt(n))
    return Interval(
        value=float(np.exp(middle)),
        low=float(np.exp(middle - half)),
        high=float(np.exp(middle + half)),
    )
