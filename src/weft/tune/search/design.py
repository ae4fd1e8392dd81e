"""The design of a tuning run: how many points each stage measures, and the first settings.

    spread    a Latin hypercube around the default, which is repeated
    refine    in the best ways to share processors and connections, what is expected to improve
              most; round by round in fewer of them
    profile   one factor at a time away from the leader
    race      the best expected of the best ways, and the best measured, in turns; then fewer of
              them, oftener (successive halving)
    confirm   recommendation, default and two neighbours, in turns

A budget that is too small for the least of each is refused. Entry points: `schedule` (how many),
`design` (the spread), `list_profile`. Units: s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.errors import InputError
from weft.records import Plain
from weft.tune.search.space import DECISIVE, SHARING, Candidate, Factor, Space, list_candidates

POINT_S = 0.2
CENTRES = 2
MOST_WAYS = 24  # each once in the spread
# Rounds: in how many of the best ways, and points in all.
REFINE = ((24, 24), (12, 24), (6, 24), (3, 24))
# Of each heat: settings, and how often each. Single points of a setting may differ by factors: what
# two settings differ by shows in the mean of many.
RACE = ((16, 4), (8, 8), (3, 16))
# Where a budget has time for more: a wider race, several times as long. What a few points took for
# a bad way to share processors is given more of them there; further rounds gain less.
WIDER = ((24, 3), (12, 5), (4, 10))
MOST_TIMES = 12
# Where a budget has no time for more: the race, and of how many rounds at least and at most.
SHORTER = ((((14, 2), (5, 4), (2, 8)), 2, 4), (((8, 2), (4, 3), (2, 4)), 0, 2))
CONFIRMED, REPEATS = 4, 5  # recommendation, default, two neighbours; each so often
# Beside the timed part: connections, warm-up, a look at the host's noise before and after.
OVERHEAD_S = {"delay": 0.15, "tcp": 0.2, "udp": 0.2}
OTHER_OVERHEAD_S = 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Numbers of points.

    `refine` has ways and points of each round, `race` settings and turns of each heat.
    """

    spread: int
    centres: int
    refine: tuple[tuple[int, int], ...]
    race: tuple[tuple[int, int], ...]
    profile: int
    repeats: int
    point_s: float
    overhead_s: float

    @property
    def race_points(self) -> int:
        return sum(runners * turns for runners, turns in self.race)

    @property
    def refine_points(self) -> int:
        return sum(points for _, points in self.refine)

    @property
    def confirm(self) -> int:
        return CONFIRMED * self.repeats

    @property
    def points(self) -> int:
        return self.spread + self.refine_points + self.race_points + self.profile + self.confirm

    @property
    def measuring_s(self) -> float:
        """The timed parts alone."""
        return self.points * self.point_s

    @property
    def seconds(self) -> float:
        """With what each point needs beside its timed part: an estimate."""
        return self.points * (self.point_s + self.overhead_s)

    @property
    def confirm_s(self) -> float:
        return self.confirm * (self.point_s + self.overhead_s)

    def text(self) -> str:
        stages = (
            f"{self.spread} spread over the choices, {self.refine_points} where most is to be "
            f"gained, {self.profile} around the leader, {self.race_points} in a race of "
            f"the best, {self.confirm} to confirm"
        )
        return (
            f"{self.points} points of {self.point_s:g} s: {self.measuring_s:.1f} s of measuring, "
            f"about {self.seconds:.0f} s in all ({stages})"
        )


def schedule(
    space: Space, transport: str, *, budget_s: float | None = None, point_s: float = POINT_S
) -> Schedule:
    """The usual numbers; with a budget a longer or shorter race, and fewer rounds of refinement."""
    overhead_s = OVERHEAD_S.get(transport, OTHER_OVERHEAD_S)
    candidates = len(list_candidates(space))
    usual = Schedule(
        spread=max(8, 2 * len(space.factors) - 4, _count_ways(space)) + CENTRES,
        centres=CENTRES,
        refine=_plan_refine(len(REFINE), candidates),
        race=_plan_race(RACE, candidates),
        profile=count_profile(space),
        repeats=REPEATS,
        point_s=point_s,
        overhead_s=overhead_s,
    )
    if budget_s is None:
        return usual
    longer = [_lengthen_race(times) for times in range(MOST_TIMES, 1, -1)]
    usually = len(REFINE)
    for race, fewest, most in (*((race, usually, usually) for race in (*longer, RACE)), *SHORTER):
        for rounds in range(most, fewest - 1, -1):
            shortest = replace(
                usual, race=_plan_race(race, candidates), refine=_plan_refine(rounds, candidates)
            )
            if shortest.seconds <= budget_s:
                return shortest
    problem = f"{budget_s:g} s is too short for {shortest.points} points"
    raise InputError("--budget", problem, f"give {shortest.seconds:.0f} s or more")


def _lengthen_race(times: int) -> tuple[tuple[int, int], ...]:
    return tuple((places, times * turns) for places, turns in WIDER)


def _count_ways(space: Space) -> int:
    """Ways that the spread covers (glossary: way), at most MOST_WAYS."""
    sharing = [factor for factor in space.factors if factor.name in SHARING]
    return min(MOST_WAYS, math.prod(len(factor.levels) for factor in sharing))


def _plan_refine(rounds: int, candidates: int) -> tuple[tuple[int, int], ...]:
    return tuple((ways, min(points, candidates)) for ways, points in REFINE[:rounds])


def _plan_race(heats: tuple[tuple[int, int], ...], candidates: int) -> tuple[tuple[int, int], ...]:
    return tuple((min(runners, candidates), turns) for runners, turns in heats)


TRIALS = 200
STEPS = 2  # of a profile on a long scale: a factor of four
Generator = np.random.Generator


def design(
    space: Space, points: int, centres: int, random: Generator, *, trials: int = TRIALS
) -> list[dict[str, Plain]]:
    """`points` settings in a random order, `centres` of which are the default."""
    spread = _widest([_hypercube(space, points - centres, random) for _ in range(trials)], space)
    settings = [*spread, *(space.default for _ in range(centres))]
    return [settings[place] for place in random.permutation(len(settings))]


def list_profile(space: Space, centre: Candidate) -> list[dict[str, Plain]]:
    """One factor at a time away from a setting."""
    moves = [{f.name: level} for f in space.factors for level in _other_levels(f, centre[f.name])]
    settings = [space.repair({**centre, **move}) for move in moves]
    distinct = {space.key(setting): setting for setting in settings if space.is_possible(setting)}
    return [setting for key, setting in distinct.items() if key != space.key(centre)]


def _other_levels(factor: Factor, level: Plain) -> list[Plain]:
    """On a long scale the levels `STEPS` to either side; else the first and the last others."""
    place, last = factor.levels.index(level), len(factor.levels) - 1
    if factor.is_number and last >= 2 * STEPS:
        near = {max(0, place - STEPS), min(last, place + STEPS)} - {place}
        return [factor.levels[at] for at in sorted(near)]
    rest = [other for other in factor.levels if other != level]
    return list(dict.fromkeys([*rest[:1], *rest[-1:]]))


def count_profile(space: Space) -> int:
    """The most points a profile can have: two per factor, one where it has two levels."""
    return sum(min(2, len(factor.levels) - 1) for factor in space.factors)


def _hypercube(space: Space, points: int, random: Generator) -> list[dict[str, Plain]]:
    """A Latin hypercube: each factor's levels equally often, in a random order per factor."""
    columns = {
        factor.name: [
            factor.levels[place]
            for place in random.permutation(_even_places(len(factor.levels), points))
        ]
        for factor in _spread_factors(space)
    }
    sharing = _joint_factors(space, points)
    together = list(itertools.product(*(factor.levels for factor in sharing)))
    for number, factor in enumerate(sharing):
        columns[factor.name] = [together[i % len(together)][number] for i in range(points)]
    rows = [
        {**space.default, **{name: column[i] for name, column in columns.items()}}
        for i in range(points)
    ]
    return [_shrink_window(space, space.repair(row)) for row in rows]


def _joint_factors(space: Space, points: int) -> list[Factor]:
    """The first of the `SHARING` factors, as many as have no more combinations than points."""
    by_name = {factor.name: factor for factor in space.factors}
    sharing = [by_name[name] for name in SHARING if name in by_name]
    while math.prod(len(factor.levels) for factor in sharing) > points:
        sharing.pop()
    return sharing


def _spread_factors(space: Space) -> Sequence[Factor]:
    """The decisive factors; all factors if none of them is to be chosen."""
    return [factor for factor in space.factors if factor.name in DECISIVE] or space.factors


def _even_places(levels: int, points: int) -> list[int]:
    """Indices of levels, first to last, each equally often."""
    return [min(levels - 1, (2 * i + 1) * levels // (2 * points)) for i in range(points)]


def _shrink_window(space: Space, setting: Candidate) -> dict[str, Plain]:
    """The setting with fewer messages outstanding, if it would need too much memory."""
    shrunk = dict(setting)
    for name in ("depth", "qps", "size_bytes"):
        for factor in space.factors:
            lower = [level for level in factor.levels if factor.name == name]
            while lower and not space.is_possible(shrunk):
                shrunk = space.repair({**shrunk, name: lower.pop()})
    return shrunk


def _widest(designs: Sequence[list[dict[str, Plain]]], space: Space) -> list[dict[str, Plain]]:
    return max(designs, key=lambda settings: _least_distance(settings, space))


def _least_distance(settings: Sequence[Candidate], space: Space) -> float:
    """The distance between the two points that are closest to each other."""
    if len(settings) < 2:
        return 0.0
    rows = space.coordinates([*settings, space.default])
    apart = space.squared_distances(rows, rows)
    return float(np.min(apart[~np.eye(len(rows), dtype=bool)]))
