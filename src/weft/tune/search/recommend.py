"""Which setting to use, from what was observed: the best expected, and nothing changed for nothing.

`recommend` takes rows from anywhere (a tuning run, stored records) and a space; `improving` names
the settings whose measurement may change the answer. A setting at which too many messages were lost
is never recommended. Entry points: `recommend`, `improving`, `contestants`. Units: the goal's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.special import ndtr

from weft.errors import InputError
from weft.model.fit import FloatArray
from weft.records import Plain
from weft.tune.search.goal import MOST_LOSS_PERCENT, Goal
from weft.tune.search.space import DECISIVE, PROBED, Choice, Observed, Space, candidates_of
from weft.tune.search.surface import Surface, surface

# A choice that gains less than this is left at its default.
NEGLIGIBLE = 0.01
MANY = 100  # candidates
_TRIED = 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recommendation:
    """`predicted` with its 95 % interval, at `setting`; both are read from `surface`."""

    setting: dict[str, Plain]
    predicted: float
    interval: tuple[float, float]
    surface: Surface

    def expected_at(self, setting: Choice) -> tuple[float, tuple[float, float]]:
        """(value, 95 % interval) at another setting of the space."""
        found = self.surface.expected([setting])
        return found.value(0), found.interval(0)


def recommend(
    space: Space, goal: Goal, rows: Sequence[Observed], among: Sequence[Choice] | None = None
) -> Recommendation:
    """The best of `among` (default: all candidates), as simple as it can be."""
    found = surface(space, goal, rows, held_out=True)
    (chosen,) = ranked(found, goal, rows, among)[:1] if among else contestants(found, goal, rows, 1)
    at = found.expected([chosen])
    return Recommendation(
        setting=chosen, predicted=at.value(0), interval=at.interval(0), surface=found
    )


def contestants(
    found: Surface, goal: Goal, rows: Sequence[Observed], number: int
) -> list[dict[str, Plain]]:
    """The settings with the best expected values, each as simple as it can be, best first."""
    space, lossy = found.space, _lossy(found.space, rows)
    candidates = _acceptable(goal, rows, space, candidates_of(space))
    order = np.argsort(-_scores(goal, found, candidates), kind="stable")
    taken: dict[tuple[Plain, ...], dict[str, Plain]] = {}
    for place in order[: number * _TRIED]:
        plain = _simplest(goal, found, candidates[place], lossy)
        taken.setdefault(space.key(plain), plain)
        if len(taken) == number:
            break
    return list(taken.values())


def leaders(
    found: Surface, goal: Goal, rows: Sequence[Observed], names: Sequence[str]
) -> list[dict[str, Plain]]:
    """The best expected for each combination of these factors, best first."""
    space, lossy = found.space, _lossy(found.space, rows)
    candidates = _acceptable(goal, rows, space, candidates_of(space))
    ways: dict[tuple[Plain, ...], Choice] = {}
    for place in np.argsort(-_scores(goal, found, candidates), kind="stable"):
        setting = candidates[place]
        ways.setdefault(tuple(setting[n] for n in names if n in setting), setting)
    return [
        space.mended({**_simplest(goal, found, s, lossy), **{n: s[n] for n in names if n in s}})
        for s in ways.values()
    ]


def ranked(
    found: Surface, goal: Goal, rows: Sequence[Observed], settings: Sequence[Choice]
) -> list[dict[str, Plain]]:
    """Those of these settings that may be recommended, by their expected values, best first."""
    usable = recommendable(found.space, goal, rows, settings)
    order = np.argsort(-_scores(goal, found, usable), kind="stable")
    return [dict(usable[place]) for place in order]


def recommendable(
    space: Space, goal: Goal, rows: Sequence[Observed], settings: Sequence[Choice]
) -> list[Choice]:
    """Without those that lose too many messages or have a level that is only probed."""
    probed = [factor.name for factor in space.factors if factor.name in PROBED]
    kept = [s for s in settings if all(s[name] == space.default[name] for name in probed)]
    return list(_acceptable(goal, rows, space, kept))


def improving(
    found: Surface,
    goal: Goal,
    rows: Sequence[Observed],
    names: Sequence[str],
    *,
    ways: int,
    points: int,
) -> list[dict[str, Plain]]:
    """In the best ways to set these factors, what is expected to improve most on the way's best.

    Each way is given as many of the points; where that is one, it is the way's best expected. Where
    there are many candidates, what seldom decides stays at its default.
    """
    space = found.space
    candidates = _plain(space, _acceptable(goal, rows, space, candidates_of(space)))
    expected = found.expected(candidates)
    scores = goal.sign * expected.log_value
    of_way: dict[tuple[Plain, ...], list[int]] = {}
    for place, setting in enumerate(candidates):
        of_way.setdefault(tuple(setting.get(name) for name in names), []).append(place)
    best = sorted(of_way.values(), key=lambda places: -max(scores[places]))[:ways]
    taken: list[dict[str, Plain]] = []
    for number, places in enumerate(best):
        share = points // len(best) + (number < points % len(best))
        if share == 1:
            taken.append(dict(candidates[max(places, key=lambda place: scores[place])]))
            continue
        gains = _improvements(scores[places], expected.log_error[places], max(scores[places]))
        taken += _apart(space, [candidates[place] for place in places], gains, share)
    return taken


def _scores(goal: Goal, found: Surface, candidates: Sequence[Choice]) -> FloatArray:
    return np.asarray(goal.sign * found.expected(candidates).log_value)


def _lossy(space: Space, rows: Sequence[Observed]) -> set[tuple[Plain, ...]]:
    """The settings at which too many messages are lost, on average over their rows."""
    lost: dict[tuple[Plain, ...], list[float]] = {}
    for row in rows:
        lost.setdefault(space.key(row.setting), []).append(row.lost_percent)
    return {key for key, shares in lost.items() if fmean(shares) > MOST_LOSS_PERCENT}


def _acceptable(
    goal: Goal, rows: Sequence[Observed], space: Space, candidates: Sequence[Choice]
) -> Sequence[Choice]:
    lossy = _lossy(space, rows)
    if not lossy:
        return candidates
    kept = [c for c in candidates if space.key(c) not in lossy]
    if all(space.key(row.setting) in lossy for row in rows):
        problem = f"more than {MOST_LOSS_PERCENT:g} % of the messages were lost at every point"
        raise InputError(f"goal {goal.name}", problem, "send slower (--rate), or use --over tcp")
    return kept


def _simplest(
    goal: Goal, found: Surface, setting: Choice, lossy: Collection[tuple[Plain, ...]]
) -> dict[str, Plain]:
    """Each factor back at its default where the gain is nothing, or is not told from chance."""
    space = found.space
    chosen, default = dict(setting), space.default
    for factor in reversed(space.factors):
        plain = space.mended({**chosen, factor.name: default[factor.name]})
        if space.key(plain) in lossy or not space.is_possible(plain):
            continue
        gain, error = found.difference(chosen, plain)
        doubt = 0.0 if factor.name in DECISIVE else error
        if goal.sign * gain <= max(NEGLIGIBLE, doubt):
            chosen = plain
    return chosen


def _plain(space: Space, candidates: Sequence[Choice]) -> Sequence[Choice]:
    """With what seldom decides at its default, where there are many."""
    seldom = [factor for factor in space.factors if factor.name not in DECISIVE]
    default = space.default
    found = [c for c in candidates if all(c[f.name] == default[f.name] for f in seldom)]
    return found if len(found) >= MANY else candidates


def _improvements(scores: FloatArray, errors: FloatArray, best: float) -> FloatArray:
    """Expected improvement: of a normal variable of mean m and deviation s over b,
    (m − b) Φ((m − b)/s) + s φ((m − b)/s).
    """
    above = scores - best
    ratio = above / errors
    density = np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(above * ndtr(ratio) + errors * density)


def _apart(
    space: Space, candidates: Sequence[Choice], gains: FloatArray, number: int
) -> list[dict[str, Plain]]:
    """The greatest gains; around each taken one the others count less."""
    rows = space.coordinates(candidates)
    left = gains.copy()
    taken: list[dict[str, Plain]] = []
    for _ in range(min(number, len(candidates))):
        place = int(np.argmax(left))
        taken.append(dict(candidates[place]))
        near = space.squared_distances(rows, rows[place : place + 1])[:, 0]
        left = left * (1 - np.exp(-near / 2))
        left[place] = -np.inf
    return taken
