"""Priority levels to queues: a hierarchy of clusters, and its first step that fits a port.

Saba, 4.3.3.2. Step 1 has every level in a cluster of its own; each further step joins the two
clusters that are nearest (Euclidean) and gives the new one the midpoint of their coordinates, down
to one cluster. (The paper calls this average linkage; with midpoints it is what others call median
linkage, WPGMC. Joins may come at smaller distances than earlier ones; steps are in the order of
joining, so that a later step never splits a cluster.) At a port the first step counts at which the
levels present there are in at most as many clusters as it has queues.
Entry points: `hierarchy_of`, `queues_at`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations
from math import dist

from weft.control.policy.levels import Levels
from weft.errors import InputError


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


def hierarchy_of(levels: Levels) -> Hierarchy:
    """All steps, from one cluster per level to one of all."""
    clusters = tuple(
        Cluster(levels=(level.number,), coordinates=level.centroid) for level in levels.levels
    )
    steps = [clusters]
    while len(clusters) > 1:
        clusters = _joined(clusters)
        steps.append(clusters)
    return Hierarchy(steps=tuple(steps))


def _joined(clusters: tuple[Cluster, ...]) -> tuple[Cluster, ...]:
    """The nearest two as one; of equally near ones those with the lowest levels."""
    a, b = min(combinations(clusters, 2), key=lambda two: _distance(*two))
    midpoint = tuple((x + y) / 2 for x, y in zip(a.coordinates, b.coordinates, strict=True))
    both = Cluster(levels=tuple(sorted(a.levels + b.levels)), coordinates=midpoint)
    return tuple(both if cluster is a else cluster for cluster in clusters if cluster is not b)


def _distance(a: Cluster, b: Cluster) -> float:
    return dist(a.coordinates, b.coordinates)


def queues_at(hierarchy: Hierarchy, present: Collection[int], queues: int) -> QueueMap:
    """Queues of the levels present at a port, in the order of their first level."""
    if queues < 1:
        raise InputError("queues of a port", f"{queues}", "use at least 1")
    if not present:
        raise InputError("queues of a port", "no level is present", "leave the port out")
    here = frozenset(present)
    unknown = here.difference(hierarchy.levels)
    if unknown:
        raise InputError(f"level {min(unknown)}", "is not in the hierarchy", "cluster all levels")
    # A step joins two clusters: fewer steps than levels beyond the queues cannot do.
    number = max(0, len(here) - queues)
    while True:
        used = [c.levels for c in hierarchy.steps[number] if not here.isdisjoint(c.levels)]
        number += 1
        if len(used) <= queues:
            return QueueMap(step=number, queues=tuple(sorted([_within(own, here) for own in used])))


def _within(levels: tuple[int, ...], present: frozenset[int]) -> tuple[int, ...]:
    return levels if present.issuperset(levels) else tuple([n for n in levels if n in present])
