"""The first settings to measure: a Latin hypercube around the default, which is repeated.

Each factor's levels come equally often over the points and independently of the others', so that
few points tell the factors apart; of many such designs the one is taken whose closest points are
furthest apart. The default stands among them several times: its spread is the noise. The order is
random, so that a drift of the machine is not mistaken for an effect. Entry points: `design`,
`profile`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.records import Plain
from weft.tune.space import Choice, Space

TRIALS = 200
PROFILED = 2
# Loops that spin take processors from each other: what pays for one thread may not for two.
SHARING = ("threads", "wait")
Generator = np.random.Generator


def design(space: Space, points: int, centres: int, random: Generator) -> list[dict[str, Plain]]:
    """`points` settings in a random order, `centres` of which are the default."""
    spread = _best([_hypercube(space, points - centres, random) for _ in range(TRIALS)], space)
    every = [*spread, *(space.default for _ in range(centres))]
    return [every[place] for place in random.permutation(len(every))]


def profile(space: Space, centre: Choice) -> list[dict[str, Plain]]:
    """One factor at a time away from a setting; of those that share processors, all at once too."""
    levels = {f.name: _others(f.levels, centre[f.name]) for f in space.factors}
    found = [space.mended({**centre, name: level}) for name in levels for level in levels[name]]
    if all(levels.get(name) for name in SHARING):
        found.append(space.mended({**centre, **{name: levels[name][-1] for name in SHARING}}))
    distinct = {space.key(setting): setting for setting in found if space.is_possible(setting)}
    return [setting for key, setting in distinct.items() if key != space.key(centre)]


def _others(levels: Sequence[Plain], level: Plain) -> list[Plain]:
    """The first and the last of the other levels."""
    left = [other for other in levels if other != level]
    return list(dict.fromkeys([*left[:1], *left[-1:]]))


def profile_points(space: Space) -> int:
    """At most so many are in a profile."""
    levels = {factor.name: len(factor.levels) for factor in space.factors}
    together = all(levels.get(name, 1) > 1 for name in SHARING)
    return sum(min(PROFILED, number - 1) for number in levels.values()) + together


def _hypercube(space: Space, points: int, random: Generator) -> list[dict[str, Plain]]:
    """Levels as even as they can be, each factor's in an order of its own."""
    columns = {
        factor.name: [
            factor.levels[place] for place in random.permutation(_even(len(factor.levels), points))
        ]
        for factor in space.factors
    }
    rows = [{name: column[i] for name, column in columns.items()} for i in range(points)]
    return [_possible(space, space.mended(row)) for row in rows]


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
