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
levels are in at most as many clusters as it has queues. That is greedy: `partition_queues` has the
partition of the levels present whose squared distances to the queues' centres sum to the least.
Clusters are exact for few points and for points on a line. Else they are the best that several
starts reach: along the longest axis of the points, and k-means++; each is improved by Lloyd's
algorithm and then by moving single points.
Entry points: `assign_levels`, `build_hierarchy`, `map_queues`, `partition_queues`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import dist, fsum
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


def _set_numbers(levels: Levels, number: Mapping[int, int]) -> Levels:
    renamed = [replace(level, number=number[level.number]) for level in levels.levels]
    return replace(levels, levels=tuple(sorted(renamed, key=lambda level: level.number)))


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
    """Levels of each queue of a port, and the step of the hierarchy that they come from.

    Step 0: levels share queues by their best partition, not by the hierarchy.
    """

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
    present_levels = _check_present(present, hierarchy.levels, queues)
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


def partition_queues(levels: Levels, present: Collection[int], queues: int) -> QueueMap:
    """Queues whose levels are nearest each other, of all partitions of the levels present.

    At most `EXACT` levels: the number of partitions grows exponentially.
    """
    numbers = sorted(_check_present(present, [level.number for level in levels.levels], queues))
    if len(numbers) <= queues:
        return QueueMap(step=1, queues=tuple((number,) for number in numbers))
    if len(numbers) > EXACT:
        problem = f"{len(numbers)} levels share queues, at most {EXACT} can be partitioned exactly"
        raise InputError("queues of a port", problem, "use the hierarchy")
    centroid_of = {level.number: level.centroid for level in levels.levels}
    points = np.array([centroid_of[number] for number in numbers])
    group = _partition_exactly(points, np.ones(len(points)), queues)
    members = [np.flatnonzero(group == number).tolist() for number in range(queues)]
    shared = sorted(tuple(numbers[row] for row in rows) for rows in members if rows)
    return QueueMap(step=0, queues=tuple(shared))


def _check_present(
    present: Collection[int], levels: Collection[int], queues: int
) -> frozenset[int]:
    if queues < 1:
        raise InputError("queues of a port", f"{queues}", "use at least 1")
    if not present:
        raise InputError("queues of a port", "no level is present", "leave the port out")
    present_levels = frozenset(present)
    unknown = present_levels.difference(levels)
    if unknown:
        raise InputError(f"level {min(unknown)}", "is not in the hierarchy", "cluster all levels")
    return present_levels


def _select_present(levels: tuple[int, ...], present: frozenset[int]) -> tuple[int, ...]:
    return levels if present.issuperset(levels) else tuple([n for n in levels if n in present])


IntArray = npt.NDArray[np.int64]

EXACT = 10
STARTS = 40
SEED = 1
_FEW = 500  # points: more are clustered from a quarter of the starts, and differ less
_STRAIGHT = 1e-18  # of the points' spread: less beside the longest axis is rounding
_ROUNDS = 300


def partition(points: FloatArray, weights: npt.NDArray[Any], groups: int) -> IntArray:
    """The group of each point, counted from 0; points are distinct, weights positive."""
    if groups >= len(points):
        return np.arange(len(points))
    if len(points) <= EXACT:
        return _partition_exactly(points, weights.astype(float), groups)
    along, is_straight = _partition_along_axis(points, weights.astype(float), groups)
    if is_straight:
        return along
    return _partition_from_starts(points, weights.astype(float), groups, along)


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


# ---- Along a line -----------------------------------------------------------------------------


def _partition_along_axis(
    points: FloatArray, weights: FloatArray, groups: int
) -> tuple[IntArray, bool]:
    """The best groups of neighbours along the longest axis, and whether all points are on it.

    If they are, no partition is better: groups of the best one do not interleave.
    """
    centred = points - np.average(points, axis=0, weights=weights)
    _, lengths, axes = np.linalg.svd(centred * np.sqrt(weights)[:, None], full_matrices=False)
    order = np.argsort(centred @ axes[0], kind="stable")
    group = np.empty(len(points), dtype=np.int64)
    group[order] = _partition_in_order(centred[order], weights[order], groups)
    return group, bool((lengths[1:] ** 2).sum() <= _STRAIGHT * (lengths**2).sum())


def _partition_in_order(points: FloatArray, weights: FloatArray, groups: int) -> IntArray:
    """Runs of points with the least spread, by dynamic programming over where the last begins."""
    n = len(points)
    mass = np.concatenate(([0.0], np.cumsum(weights)))
    sums = np.vstack([np.zeros_like(points[:1]), np.cumsum(weights[:, None] * points, axis=0)])
    squares = np.concatenate(([0.0], np.cumsum(weights * (points**2).sum(axis=1))))
    least = np.full((groups + 1, n + 1), np.inf)
    least[0, 0] = 0.0
    begin = np.zeros((groups + 1, n + 1), dtype=np.int64)
    for end in range(1, n + 1):
        about = ((sums[end] - sums[:end]) ** 2).sum(axis=1) / (mass[end] - mass[:end])
        spread = np.maximum(0.0, squares[end] - squares[:end] - about)
        costs = least[:-1, :end] + spread
        begin[1:, end] = costs.argmin(axis=1)
        least[1:, end] = costs.min(axis=1)
    group, end = np.zeros(n, dtype=np.int64), n
    for number in range(groups, 0, -1):
        group[begin[number, end] : end] = number - 1
        end = int(begin[number, end])
    return group


# ---- From several starts ----------------------------------------------------------------------


def _partition_from_starts(
    points: FloatArray, weights: FloatArray, groups: int, first: IntArray
) -> IntArray:
    random = np.random.default_rng(SEED)
    starts = STARTS if len(points) <= _FEW else STARTS // 4
    partitions = [first]
    for _ in range(starts):
        centres = _draw_centres(points, weights, groups, random)
        partitions.append(_iterate(points, weights, centres))
    improved = [_move_points(points, weights, group) for group in partitions]
    return min(improved, key=lambda group: _compute_spread(points, weights, group))


def _move_points(points: FloatArray, weights: FloatArray, group: IntArray) -> IntArray:
    """Moves single points, the one that saves most first, while that lessens the spread.

    A point of weight w at distance a from its group of weight A, and b from another of weight B:
    the move saves w A a² / (A − w) − w B b² / (B + w).
    """
    group, rows = group.copy(), np.arange(len(points))
    least = 1e-12 * _compute_spread(points, weights, np.zeros_like(group))
    count = int(group.max()) + 1
    for _ in range(_ROUNDS * count):
        total = np.bincount(group, weights, minlength=count)
        means = _compute_means(points, weights, group, points[:count])
        distances = _compute_distances(points, means)
        rest = total[group] - weights
        is_alone = rest <= 1e-9 * weights
        saved = weights * total[group] * distances[rows, group] / np.where(is_alone, 1.0, rest)
        costs = weights[:, None] * total * distances / (total + weights[:, None])
        costs[rows, group] = np.inf
        gain = np.where(is_alone, -np.inf, saved - costs.min(axis=1))
        point = int(gain.argmax())
        if gain[point] <= least:
            break
        group[point] = int(costs[point].argmin())
    return group


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
