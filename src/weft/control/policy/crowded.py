"""The split of ports, also of those whose applications' floors exceed what they have for them.

A model says nothing below its floor, and yet all must be served. At such a port all floors are
halved until they fit, the models being taken to go on as they are; the split is made in units so
fine that there are two for each application, and folded, so that some may have less than one.
Ports that are squeezed alike are solved in one call. Entry points: `Kinds`, `split`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from math import ceil

import numpy as np

from weft.control.policy.allocate import Models, allocate
from weft.control.policy.port import PortPolicy
from weft.sensitivity.model import Sensitivity

Weights = tuple[int, ...]

_ROUNDING = 1e-12  # a floor that was computed from a whole number of units means that number


@dataclass(frozen=True, slots=True)
class Squeeze:
    """How often a port's floors are halved, and how much finer its units are."""

    halvings: int
    finer: int


_ROOMY = Squeeze(0, 1)


class Kinds:
    """The models of a policy, with floors halved ever more often; made when first asked for."""

    def __init__(self, models: Sequence[Sensitivity]) -> None:
        self._lowered = [tuple(models)]
        self._solvers = {0: Models(models)}
        self._needs: dict[tuple[int, int], tuple[int, ...]] = {}

    def solver(self, halvings: int) -> Models:
        if halvings not in self._solvers:
            self._solvers[halvings] = Models(self._halved(halvings))
        return self._solvers[halvings]

    def need(self, rows: Sequence[int], units: int, halvings: int = 0) -> int:
        """Of a link's units, what the floors of these applications take."""
        key = units, halvings
        if key not in self._needs:
            self._needs[key] = tuple([least_units(m, units) for m in self._halved(halvings)])
        return sum(map(self._needs[key].__getitem__, rows))

    def squeeze(self, rows: Sequence[int], own: PortPolicy) -> Squeeze:
        """What makes room for these applications at a port."""
        if self.need(rows, own.units) <= own.managed_units:
            return _ROOMY
        finer = next(2**n for n in count() if own.managed_units * 2**n >= 2 * len(rows))
        units, room = own.units * finer, own.managed_units * finer
        return Squeeze(next(n for n in count() if self.need(rows, units, n) <= room), finer)

    def _halved(self, halvings: int) -> tuple[Sensitivity, ...]:
        while len(self._lowered) <= halvings:
            self._lowered.append(
                tuple([replace(model, floor=model.floor / 2) for model in self._lowered[-1]])
            )
        return self._lowered[halvings]


def least_units(model: Sensitivity, units: int) -> int:
    """Of a link's units, what an application must have."""
    return max(1, ceil(model.floor * units * (1 - _ROUNDING)))


def split(
    kinds: Kinds, rows: Sequence[Sequence[int]], at: Sequence[PortPolicy]
) -> list[tuple[Weights, float]]:
    """Units of each application (a row of `kinds`) at each port, and the gap of that split."""
    alike: dict[Squeeze, list[int]] = {}
    for place, (here, own) in enumerate(zip(rows, at, strict=True)):
        alike.setdefault(kinds.squeeze(here, own), []).append(place)
    found: dict[int, tuple[Weights, float]] = {}
    for squeeze, places in alike.items():
        found |= _solved(kinds, squeeze, {n: (rows[n], at[n]) for n in places})
    return [found[place] for place in range(len(rows))]


def _solved(
    kinds: Kinds, squeeze: Squeeze, ports: Mapping[int, tuple[Sequence[int], PortPolicy]]
) -> dict[int, tuple[Weights, float]]:
    found = allocate(
        kinds.solver(squeeze.halvings),
        [rows for rows, _ in ports.values()],
        units=[own.units * squeeze.finer for _, own in ports.values()],
        capacity=[own.capacity for _, own in ports.values()],
    )
    weights, gaps = tuple(found.weights.tolist()), found.gap.tolist()
    parts = [weights[start:end] for start, end in pairwise(found.ports.offsets.tolist())]
    if squeeze.finer > 1:
        totals = [own.managed_units for _, own in ports.values()]
        parts = [_folded(part, total) for part, total in zip(parts, totals, strict=True)]
    return dict(zip(ports, zip(parts, gaps, strict=True), strict=True))


def _folded(weights: Weights, total: int) -> Weights:
    """In whole units that sum to the total; any neighbours together have theirs but for one.

    So have the jobs of one application, which are neighbours.
    """
    ends = np.round(np.cumsum(weights) * (total / sum(weights))).astype(np.int64)
    return tuple(np.diff(ends, prepend=0).tolist())
