"""Which setting to use: the best predicted, with every factor at its default that gains nothing.

Points come from a tuning run or from stored records. `propose_improvements` names the settings
whose measurement may change the answer. A setting that loses too many messages is never
recommended. Entry points: `recommend`, `propose_improvements`, `rank_candidates`. Units: goal's.
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
from weft.tune.search.space import (
    DECISIVE,
    MOST_LOSS_PERCENT,
    PROBED,
    Candidate,
    Goal,
    MeasuredPoint,
    Space,
    list_candidates,
)
from weft.tune.search.surface import Interval, Surface, fit_surface

# A choice that gains less than this is left at its default.
NEGLIGIBLE = 0.01
MANY = 100  # candidates
_TRIED = 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recommendation:
    """What `surface` predicts at `setting`."""

    setting: dict[str, Plain]
    surface: Surface

    @property
    def predicted(self) -> Interval:
        return self.predict_at(self.setting)

    def predict_at(self, setting: Candidate) -> Interval:
        """At any setting of the space."""
        return self.surface.predict([setting]).interval(0)


def recommend(
    space: Space,
    goal: Goal,
    rows: Sequence[MeasuredPoint],
    among: Sequence[Candidate] | None = None,
) -> Recommendation:
    """The best of `among` (default: all candidates), as simple as possible."""
    surface = fit_surface(space, goal, rows, held_out=True)
    (chosen,) = (
        rank_settings(surface, goal, rows, among)[:1]
        if among
        else rank_candidates(surface, goal, rows, 1)
    )
    return Recommendation(setting=chosen, surface=surface)


def rank_candidates(
    surface: Surface, goal: Goal, rows: Sequence[MeasuredPoint], number: int
) -> list[dict[str, Plain]]:
    """The settings with the best predictions, each as simple as possible, best first."""
    space, lossy = surface.space, _find_lossy_keys(surface.space, rows)
    candidates = _drop_lossy(goal, rows, space, list_candidates(space))
    order = np.argsort(-_scores(goal, surface, candidates), kind="stable")
    ranked: dict[tuple[Plain, ...], dict[str, Plain]] = {}
    for place in order[: number * _TRIED]:
        plain = _simplify(goal, surface, candidates[place], lossy)
        ranked.setdefault(space.key(plain), plain)
        if len(ranked) == number:
            break
    return list(ranked.values())


def rank_ways(
    surface: Surface, goal: Goal, rows: Sequence[MeasuredPoint], names: Sequence[str]
) -> list[dict[str, Plain]]:
    """The best expected for each combination of these factors, best first."""
    space, lossy = surface.space, _find_lossy_keys(surface.space, rows)
    candidates = _drop_lossy(goal, rows, space, list_candidates(space))
    ways: dict[tuple[Plain, ...], Candidate] = {}
    for place in np.argsort(-_scores(goal, surface, candidates), kind="stable"):
        setting = candidates[place]
        ways.setdefault(tuple(setting[n] for n in names if n in setting), setting)
    return [
        space.repair({**_simplify(goal, surface, s, lossy), **{n: s[n] for n in names if n in s}})
        for s in ways.values()
    ]


def rank_settings(
    surface: Surface, goal: Goal, rows: Sequence[MeasuredPoint], settings: Sequence[Candidate]
) -> list[dict[str, Plain]]:
    """Those of these settings that may be recommended, by their expected values, best first."""
    usable = filter_recommendable(surface.space, goal, rows, settings)
    order = np.argsort(-_scores(goal, surface, usable), kind="stable")
    return [dict(usable[place]) for place in order]


def filter_recommendable(
    space: Space, goal: Goal, rows: Sequence[MeasuredPoint], settings: Sequence[Candidate]
) -> list[Candidate]:
    """Drop settings that lose too many messages or have a level that is only probed."""
    probed = [factor.name for factor in space.factors if factor.name in PROBED]
    unprobed = [s for s in settings if all(s[name] == space.default[name] for name in probed)]
    return list(_drop_lossy(goal, rows, space, unprobed))


def propose_improvements(
    surface: Surface,
    goal: Goal,
    rows: Sequence[MeasuredPoint],
    names: Sequence[str],
    *,
    ways: int,
    points: int,
) -> list[dict[str, Plain]]:
    """In the best ways to set these factors, the settings with the most expected improvement.

    The points are shared evenly among the ways; a single point is the way's best prediction. Where
    there are many candidates, factors that seldom decide stay at their default.
    """
    space = surface.space
    candidates = _keep_at_defaults(space, _drop_lossy(goal, rows, space, list_candidates(space)))
    expected = surface.predict(candidates)
    scores = goal.sign * expected.log_value
    of_way: dict[tuple[Plain, ...], list[int]] = {}
    for place, setting in enumerate(candidates):
        of_way.setdefault(tuple(setting.get(name) for name in names), []).append(place)
    best = sorted(of_way.values(), key=lambda places: -max(scores[places]))[:ways]
    proposals: list[dict[str, Plain]] = []
    for number, places in enumerate(best):
        share = points // len(best) + (number < points % len(best))
        if share == 1:
            proposals.append(dict(candidates[max(places, key=lambda place: scores[place])]))
            continue
        gains = _compute_improvements(
            scores[places], expected.log_error[places], max(scores[places])
        )
        proposals += _pick_spread_out(space, [candidates[place] for place in places], gains, share)
    return proposals


def _scores(goal: Goal, surface: Surface, candidates: Sequence[Candidate]) -> FloatArray:
    return np.asarray(goal.sign * surface.predict(candidates).log_value)


def _find_lossy_keys(space: Space, rows: Sequence[MeasuredPoint]) -> set[tuple[Plain, ...]]:
    """The settings at which too many messages are lost, on average over their rows."""
    return {
        key
        for key, group in space.group(rows).items()
        if fmean(row.lost_percent for row in group) > MOST_LOSS_PERCENT
    }


def _drop_lossy(
    goal: Goal, rows: Sequence[MeasuredPoint], space: Space, candidates: Sequence[Candidate]
) -> Sequence[Candidate]:
    lossy = _find_lossy_keys(space, rows)
    if not lossy:
        return candidates
    usable = [c for c in candidates if space.key(c) not in lossy]
    if all(space.key(row.setting) in lossy for row in rows):
        problem = f"more than {MOST_LOSS_PERCENT:g} % of the messages were lost at every point"
        raise InputError(f"goal {goal.name}", problem, "send slower (--rate), or use --over tcp")
    return usable


def _simplify(
    goal: Goal, surface: Surface, setting: Candidate, lossy: Collection[tuple[Plain, ...]]
) -> dict[str, Plain]:
    """Return each factor to its default where its gain is negligible or may be chance."""
    space = surface.space
    chosen, default = dict(setting), space.default
    for factor in reversed(space.factors):
        plain = space.repair({**chosen, factor.name: default[factor.name]})
        if space.key(plain) in lossy or not space.is_possible(plain):
            continue
        gain, error = surface.predict_ratio(chosen, plain)
        chance = 0.0 if factor.name in DECISIVE else error
        if goal.sign * gain <= max(NEGLIGIBLE, chance):
            chosen = plain
    return chosen


def _keep_at_defaults(space: Space, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Candidates with the factors that seldom decide at their default, if there are many."""
    seldom = [factor for factor in space.factors if factor.name not in DECISIVE]
    default = space.default
    at_defaults = [c for c in candidates if all(c[f.name] == default[f.name] for f in seldom)]
    return at_defaults if len(at_defaults) >= MANY else candidates


def _compute_improvements(scores: FloatArray, errors: FloatArray, best: float) -> FloatArray:
    """Expected improvement: of a normal variable of mean m and deviation s over b,
    (m − b) Φ((m − b)/s) + s φ((m − b)/s).
    """
    above = scores - best
    ratio = above / errors
    density = np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(above * ndtr(ratio) + errors * density)


def _pick_spread_out(
    space: Space, candidates: Sequence[Candidate], gains: FloatArray, number: int
) -> list[dict[str, Plain]]:
    """The greatest gains; each pick discounts the gains near it."""
    rows = space.coordinates(candidates)
    remaining = gains.copy()
    picked: list[dict[str, Plain]] = []
    for _ in range(min(number, len(candidates))):
        place = int(np.argmax(remaining))
        picked.append(dict(candidates[place]))
        near = space.squared_distances(rows, rows[place : place + 1])[:, 0]
        remaining = remaining * (1 - np.exp(-near / 2))
        remaining[place] = -np.inf
    return picked
