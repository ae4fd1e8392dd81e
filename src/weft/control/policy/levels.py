"""Priority levels of applications (Saba, 4.3.3.1), and queues of levels at a port (4.3.3.2).

**Levels** are K-means clusters of the applications' models. The coordinates of an application are
the coefficients of its polynomial, padded with zeros, as in the paper. Hinges of two applications
have different knots, so their numbers do not compare; where any model has that form, coordinates of
all are their slowdowns at `SHARES` (at the floor where that is higher). Distance is Euclidean,
unscaled. Equal applications are one point with a weight, and points are sorted by coordinates, so
that neither order nor names of applications change a level. Levels are numbered from 1 by
sensitivity, the least sensitive first.

**Queues** follow from a hierarchy of clusters. Step 1 has every level in a cluster of its own; each
further step joins the two nearest clusters and puts the new one at the midpoint of their
coordinates, down to one cluster. (The paper calls this average linkage; with midpoints it is median
linkage, WPGMC. Joins may come at smaller distances than earlier ones; steps are in the order of
joining, so that a later step never splits a cluster.) A port uses the first step at which its
levels are in at most as many clusters as it has queues.
Clusters are exact for few points, else the best of several starts of Lloyd's algorithm.
Entry points: `assign_levels`, `keep_levels`, `build_hierarchy`, `map_queues`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import dist, fsum, inf
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.sensitivity.model import FloatArray, Polynomial, Sensitivity

SHARES = (0.1, 0.25, 0.5, 0.75)
COEFFICIENTS = "coefficients of the polynomials"
SLOWDOWNS = "slowdowns at " + ", ".join(f"{share:.0%}" for share in SHARES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Applications that are marked alike. `sensitivity` is their mean slowdown at `SHARES`."""

    number: int
    applications: tuple[str, ...]  # in alphabetical order
    centroid: tuple[float, ...]
    sensitivity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Levels by number. `spread`: squared distances to the centroids, summed."""

    levels: tuple[Level, ...]
    coordinates: str  # what those of the centroids are
    spread: float

    def of(self, application: str) -> Level:
        """The level of an application."""
        for level in self.levels:
            if application in level.applications:
                return level
        raise InputError(f"application {application}", "has no level", "register it first")

    @property
    def assignment(self) -> dict[str, int]:
        """Level number of each application."""
        return {name: level.number for level in self.levels for name in level.applications}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLevels:
    """Levels after applications came or went, with nobody moved, and what that costs.

    `reclustered` is K-means from the start, its levels numbered so that the fewest applications
    change; `movers` are those that would.
    """

    levels: Levels
    reclustered: Levels
    movers: tuple[str, ...]

    @property
    def cost(self) -> float:
        """Spread of the kept levels over that of the new ones, less 1."""
        excess = self.levels.spread - self.reclustered.spread
        if excess <= 1e-12 * self.levels.spread:
            return 0.0
        return excess / self.reclustered.spread if self.reclustered.spread > 0 else inf


def assign_levels(models: Mapping[str, Sensitivity], max_levels: int) -> Levels:
    """At most `max_levels` levels; fewer where fewer applications differ."""
    members = _sort_members(models, max_levels)
    distinct, which, count = np.unique(
        members.points, axis=0, return_inverse=True, return_counts=True
    )
    clustered = _build_levels(members, partition(distinct, count, max_levels)[which.reshape(-1)])
    ranked = sorted(clustered.levels, key=lambda level: (level.sensitivity, level.centroid))
    return _set_numbers(
        clustered, {level.number: rank for rank, level in enumerate(ranked, start=1)}
    )


def keep_levels(before: Levels, models: Mapping[str, Sensitivity], max_levels: int) -> KeptLevels:
    """Levels for the applications of `models`; those that had a level keep it.

    A new application opens a level while fewer than `max_levels` are in use, or joins the nearest.
    """
    members = _sort_members(models, max_levels)
    old = before.assignment
    beyond = [number for name, number in old.items() if name in models and number > max_levels]
    if beyond:
        problem = f"level {max(beyond)} is in use, and {max_levels} are allowed"
        raise InputError("levels", problem, "assign all applications again")
    numbers = np.array([old.get(name, 0) for name in members.names])
    for row in np.flatnonzero(numbers == 0).tolist():
        numbers[row] = _choose_level(members.points, numbers, row, max_levels)
    reclustered = _match_numbers(assign_levels(models, max_levels), before, max_levels)
    movers = sorted(name for name, n in reclustered.assignment.items() if old.get(name, n) != n)
    return KeptLevels(
        levels=_build_levels(members, numbers), reclustered=reclustered, movers=tuple(movers)
    )


def compute_coordinates(models: Mapping[str, Sensitivity]) -> tuple[str, FloatArray]:
    """What the coordinates are, and a row of them for each model."""
    polynomials = [m.coefficients for m in models.values() if isinstance(m, Polynomial)]
    if len(polynomials) < len(models):
        return SLOWDOWNS, _compute_slowdowns(models)
    width = max(map(len, polynomials))
    return COEFFICIENTS, np.array([c + (0.0,) * (width - len(c)) for c in polynomials])


def _compute_slowdowns(models: Mapping[str, Sensitivity]) -> FloatArray:
    return np.array([m.slowdown(np.maximum(SHARES, m.floor)) for m in models.values()])


@dataclass(frozen=True, slots=True)
class _Members:
    """Applications in the order of their coordinates, whatever order they came in."""

    names: tuple[str, ...]
    points: FloatArray
    sensitivity: FloatArray
    coordinates: str


def _sort_members(models: Mapping[str, Sensitivity], max_levels: int) -> _Members:
    if not models:
        raise InputError("levels", "no applications", "register at least one")
    if max_levels < 1:
        raise InputError("levels", f"{max_levels} levels", "use at least 1")
    names = list(models)
    coordinates, points = compute_coordinates(models)
    order = sorted(range(len(names)), key=lambda row: (*points[row], names[row]))
    sensitivity = _compute_slowdowns(models).mean(axis=1)
    return _Members(
        tuple(names[row] for row in order), points[order], sensitivity[order], coordinates
    )


def _build_levels(members: _Members, numbers: IntArray) -> Levels:
    levels, spreads = [], []
    for number in np.unique(numbers).tolist():
        rows = np.flatnonzero(numbers == number)
        centroid = members.points[rows].mean(axis=0)
        spreads.append(sum_squares(members.points[rows], centroid))
        levels.append(
            Level(
                number=number,
                applications=tuple(sorted(members.names[row] for row in rows)),
                centroid=tuple(centroid.tolist()),
                sensitivity=float(members.sensitivity[rows].mean()),
            )
        )
    return Levels(levels=tuple(levels), coordinates=members.coordinates, spread=fsum(spreads))


def _choose_level(points: FloatArray, numbers: IntArray, row: int, max_levels: int) -> int:
    """The level of one more application, given those of the others (0: none yet)."""
    used = [number for number in np.unique(numbers).tolist() if number]
    free = [number for number in range(1, max_levels + 1) if number not in used]
    if not used:
        return free[0]
    centroids = np.array([points[numbers == number].mean(axis=0) for number in used])
    point = points[row : row + 1]
    best = int(find_nearest(point, centroids)[0])
    return free[0] if free and sum_squares(point, centroids[best]) > 0 else used[best]


# ---- Numbers ----------------------------------------------------------------------------------


def _set_numbers(levels: Levels, number: Mapping[int, int]) -> Levels:
    renamed = [replace(level, number=number[level.number]) for level in levels.levels]
    return replace(levels, levels=tuple(sorted(renamed, key=lambda level: level.number)))


def _match_numbers(levels: Levels, before: Levels, max_levels: int) -> Levels:
    """The same groups under the numbers that leave the most applications where they were."""
    from scipy.optimize import linear_sum_assignment  # see weft.model.fit

    old = before.assignment
    shared = np.zeros((len(levels.levels), max_levels))
    for row, level in enumerate(levels.levels):
        for name in level.applications:
            if old.get(name, max_levels + 1) <= max_levels:
                shared[row, old[name] - 1] += 1
    rows, numbers = linear_sum_assignment(shared, maximize=True)
    named = dict(zip(rows.tolist(), (numbers + 1).tolist(), strict=True))
    return _set_numbers(levels, {level.number: named[i] for i, level in enumerate(levels.levels)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Levels that share a queue where they must, and the coordinates that stand for them."""

    levels: tuple[int, ...]
    coordinates: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Clusters of each step, in the order of their first level; step 1 is `steps[0]`."""

    steps: tuple[tuple[Cluster, ...], ...]

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(cluster.levels[0] for cluster in self.steps[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMap:
    """Levels of each queue of a port, and the step of the hierarchy that they come from."""

    step: int
    queues: tuple[tuple[int, ...], ...]


def build_hierarchy(levels: Levels) -> Hierarchy:
    """All steps, from one cluster per level to one of all."""
    clusters = tuple(
        Cluster(levels=(level.number,), coordinates=level.centroid) for level in levels.levels
    )
    steps = [clusters]
    while len(clusters) > 1:
        clusters = _join_nearest(clusters)
        steps.append(clusters)
    return Hierarchy(steps=tuple(steps))


def _join_nearest(clusters: tuple[Cluster, ...]) -> tuple[Cluster, ...]:
    """The nearest two as one; of equally near ones those with the lowest levels."""
    a, b = min(combinations(clusters, 2), key=lambda two: _distance(*two))
    midpoint = tuple((x + y) / 2 for x, y in zip(a.coordinates, b.coordinates, strict=True))
    both = Cluster(levels=tuple(sorted(a.levels + b.levels)), coordinates=midpoint)
    return tuple(both if cluster is a else cluster for cluster in clusters if cluster is not b)


def _distance(a: Cluster, b: Cluster) -> float:
    return dist(a.coordinates, b.coordinates)


def map_queues(hierarchy: Hierarchy, present: Collection[int], queues: int) -> QueueMap:
    """Queues of the levels present at a port, in the order of their first level."""
    if queues < 1:
        raise InputError("queues of a port", f"{queues}", "use at least 1")
    if not present:
        raise InputError("queues of a port", "no level is present", "leave the port out")
    present_levels = frozenset(present)
    unknown = present_levels.difference(hierarchy.levels)
    if unknown:
        raise InputError(f"level {min(unknown)}", "is not in the hierarchy", "cluster all levels")
    # A step joins two clusters: fewer steps than levels beyond the queues cannot do.
    number = max(0, len(present_levels) - queues)
    while True:
        used = [
            c.levels for c in hierarchy.steps[number] if not present_levels.isdisjoint(c.levels)
        ]
        number += 1
        if len(used) <= queues:
            return QueueMap(
                step=number,
                queues=tuple(sorted([_select_present(levels, present_levels) for levels in used])),
            )


def _select_present(levels: tuple[int, ...], present: frozenset[int]) -> tuple[int, ...]:
    return levels if present.issuperset(levels) else tuple([n for n in levels if n in present])


IntArray = npt.NDArray[np.int64]

EXACT = 10
STARTS = 10
SEED = 1
_ROUNDS = 300


def partition(points: FloatArray, weights: npt.NDArray[Any], groups: int) -> IntArray:
    """The group of each point, counted from 0; points are distinct, weights positive."""
    if groups >= len(points):
        return np.arange(len(points))
    if len(points) <= EXACT:
        return _partition_exactly(points, weights.astype(float), groups)
    return _partition_by_lloyd(points, weights.astype(float), groups)


def sum_squares(points: FloatArray, centre: FloatArray) -> float:
    """Squared distances to a centre, summed."""
    return float(((points - centre) ** 2).sum())


def find_nearest(points: FloatArray, centres: FloatArray) -> IntArray:
    """Index of the nearest centre of each point, the first of equals."""
    return np.asarray(_compute_distances(points, centres).argmin(axis=1))


def _compute_distances(points: FloatArray, centres: FloatArray) -> FloatArray:
    return np.asarray(((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2))


# ---- All partitions ---------------------------------------------------------------------------


def _partition_exactly(points: FloatArray, weights: FloatArray, groups: int) -> IntArray:
    n = len(points)
    cost = _subset_costs(points, weights)
    best, first_groups = cost, []
    for _ in range(groups - 1):
        best, first = _add_group(best, cost, n)
        first_groups.append(first)
    group = np.zeros(n, dtype=np.int64)
    remaining = 2**n - 1
    for number, first in enumerate(reversed(first_groups), start=1):
        members = int(first[remaining])
        group[(members >> np.arange(n)) & 1 == 1] = number
        remaining ^= members
    return group


def _subset_costs(points: FloatArray, weights: FloatArray) -> FloatArray:
    """Spread of every subset, by its bit mask."""
    n = len(points)
    holds = ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(float) * weights
    total = np.maximum(holds.sum(axis=1), 1e-300)
    # Around the mean of all: the difference below would lose digits far from the origin.
    centred = points - np.average(points, axis=0, weights=weights)
    about = holds @ (centred**2).sum(axis=1)
    return np.asarray(np.maximum(0.0, about - ((holds @ centred) ** 2).sum(axis=1) / total))


def _add_group(best: FloatArray, cost: FloatArray, n: int) -> tuple[FloatArray, IntArray]:
    """Least cost of every subset with one group more, and the group of its first point."""
    more, first = np.zeros_like(best), np.zeros(len(best), dtype=np.int64)
    for mask in range(1, 2**n):
        lowest = mask & -mask
        rest = _list_subsets(mask ^ lowest)
        costs = cost[rest | lowest] + best[mask ^ lowest ^ rest]
        at = int(costs.argmin())
        more[mask], first[mask] = costs[at], rest[at] | lowest
    return more, first


def _list_subsets(mask: int) -> IntArray:
    subsets = np.zeros(1, dtype=np.int64)
    while mask:
        lowest = mask & -mask
        subsets = np.concatenate([subsets, subsets | lowest])
        mask ^= lowest
    return subsets


# ---- Lloyd's algorithm ------------------------------------------------------------------------


def _partition_by_lloyd(points: FloatArray, weights: FloatArray, groups: int) -> IntArray:
    random = np.random.default_rng(SEED)
    partitions = [
        _iterate(points, weights, _draw_centres(points, weights, groups, random))
        for _ in range(STARTS)
    ]
    return min(partitions, key=lambda group: _compute_spread(points, weights, group))


def _draw_centres(
    points: FloatArray, weights: FloatArray, groups: int, random: np.random.Generator
) -> FloatArray:
    """k-means++: each centre a point drawn by weight and squared distance to those before it."""
    centres = points[[random.choice(len(points), p=weights / weights.sum())]]
    while len(centres) < groups:
        odds = weights * _compute_distances(points, centres).min(axis=1)
        if odds.sum() == 0:  # points so near each other that the squares vanish
            break
        centres = np.vstack([centres, points[random.choice(len(points), p=odds / odds.sum())]])
    return centres


def _iterate(points: FloatArray, weights: FloatArray, centres: FloatArray) -> IntArray:
    group = find_nearest(points, centres)
    for _ in range(_ROUNDS):
        centres = _compute_means(points, weights, group, centres)
        moved = find_nearest(points, centres)
        if np.array_equal(moved, group):
            break
        group = moved
    return group


def _compute_means(
    points: FloatArray, weights: FloatArray, group: IntArray, centres: FloatArray
) -> FloatArray:
    """Mean of each group; a group that lost its last point starts again at the farthest one."""
    k = len(centres)
    total = np.bincount(group, weights, minlength=k)
    sums = np.stack([np.bincount(group, weights * x, minlength=k) for x in points.T], axis=1)
    means = np.where(total[:, None] > 0, sums / np.maximum(total, 1e-300)[:, None], centres)
    for empty in np.flatnonzero(total == 0):
        means[empty] = points[_compute_distances(points, means).min(axis=1).argmax()]
    return means


def _compute_spread(points: FloatArray, weights: FloatArray, group: IntArray) -> float:
    means = _compute_means(points, weights, group, points[: int(group.max()) + 1])
    return float((weights * ((points - means[group]) ** 2).sum(axis=1)).sum())
