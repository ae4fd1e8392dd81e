"""K-means of weighted points: the partition of least Σ weight · distance² to the group's mean.

Up to `EXACT` points by dynamic programming over subsets, the optimum: with cost(A) the spread of a
subset around its mean, best(k, A) = min over B ⊆ A that hold A's first point of
cost(B) + best(k − 1, A \\ B). Beyond that Lloyd's algorithm, the best of `STARTS` k-means++ starts
with a fixed seed: a partition in which every point is in the group whose mean is nearest.
The answer depends on points and weights alone. Entry point: `partition`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from weft.sensitivity.model import FloatArray

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
