"""The first settings to measure: a Latin hypercube around the default, which is repeated.

The levels of what decides come equally often over the points and independently of each other, so
that few points tell the factors apart; of what loops share every combination comes equally often,
as they decide together. What seldom decides stays at its default: the profile tells it. Of
many such designs the one is taken whose closest points are furthest apart. The default stands among
them several times: its spread is the noise. The order is random, so that a drift of the machine is
not mistaken for an effect. Entry points: `design`, `profile`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from weft.records import Plain
from weft.tune.search.space import DECISIVE, SHARING, Choice, Factor, Space

TRIALS = 200
STEPS = 2  # of a profile on a long scale: a factor of four
Generator = np.random.Generator


def design(space: Space, points: int, centres: int, random: Generator) -> list[dict[str, Plain]]:
    """`points` settings in a random order, `centres` of which are the default."""
    spread = _best([_hypercube(space, points - centres, random) for _ in range(TRIALS)], space)
    every = [*spread, *(space.default for _ in range(centres))]
    return [every[place] for place in random.permutation(len(every))]


def profile(space: Space, centre: Choice) -> list[dict[str, Plain]]:
    """One factor at a time away from a setting."""
    moved = [{f.name: level} for f in space.factors for level in _others(f, centre[f.name])]
    found = [space.mended({**centre, **move}) for move in moved]
    distinct = {space.key(setting): setting for setting in found if space.is_possible(setting)}
    return [setting for key, setting in distinct.items() if key != space.key(centre)]


def _others(factor: Factor, level: Plain) -> list[Plain]:
    """Of a long scale the levels some steps to either side, else the first and the last others."""
    place, last = factor.levels.index(level), len(factor.levels) - 1
    if factor.is_number and last >= 2 * STEPS:
        near = {max(0, place - STEPS), min(last, place + STEPS)} - {place}
        return [factor.levels[at] for at in sorted(near)]
    left = [other for other in factor.levels if other != level]
    return list(dict.fromkeys([*left[:1], *left[-1:]]))


def profile_points(space: Space) -> int:
    """At most so many are in a profile: two of each scale, one of what has two levels."""
    return sum(min(2, len(factor.levels) - 1) for factor in space.factors)


def _hypercube(space: Space, points: int, random: Generator) -> list[dict[str, Plain]]:
    """Levels as even as they can be, each factor's in an order of its own."""
    columns = {
        factor.name: [
            factor.levels[place] for place in random.permutation(_even(len(factor.levels), points))
        ]
        for factor in _spread_factors(space)
    }
    sharing = _together(space, points)
    together = list(itertools.product(*(factor.levels for factor in sharing)))
    for number, factor in enumerate(sharing):
        columns[factor.name] = [together[i % len(together)][number] for i in range(points)]
    rows = [
        {**space.default, **{name: column[i] for name, column in columns.items()}}
        for i in range(points)
    ]
    return [_possible(space, space.mended(row)) for row in rows]


def _together(space: Space, points: int) -> list[Factor]:
    """Of what loops share, the first factors whose combinations are no more than the points."""
    known = {factor.name: factor for factor in space.factors}
    sharing = [known[name] for name in SHARING if name in known]
    while math.prod(len(factor.levels) for factor in sharing) > points:
        sharing.pop()
    return sharing


def _spread_factors(space: Space) -> Sequence[Factor]:
    """What decides; all, where nothing of that is to be chosen."""
    return [factor for factor in space.factors if factor.name in DECISIVE] or space.factors


def _even(levels: int, points: int) -> list[int]:
    """Places from the first level to the last, as often as each other."""
    return [min(levels - 1, (2 * i + 1) * levels // (2 * points)) for i in range(points)]


def _possible(space: Space, setting: Choice) -> dict[str, Plain]:
    """With fewer messages outstanding, where all of them would need too much memory."""
    found = dict(setting)
    for name in ("depth", "qps", "size_bytes"):
        for factor in space.factors:
            lower = [level for level in factor.levels if factor.name == name]
            while lower and not space.is_possible(found):
                found = space.mended({**found, name: lower.pop()})
    return found


def _best(designs: Sequence[list[dict[str, Plain]]], space: Space) -> list[dict[str, Plain]]:
    return max(designs, key=lambda settings: _closest(settings, space))


def _closest(settings: Sequence[Choice], space: Space) -> float:
    """The distance between the two points that are closest to each other."""
    if len(settings) < 2:
        return 0.0
    rows = space.coordinates([*settings, space.default])
    apart = space.squared_distances(rows, rows)
    return float(np.min(apart[~np.eye(len(rows), dtype=bool)]))
