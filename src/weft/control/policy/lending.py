"""What applications get at a port that lends: a weight is a promise, what one leaves others use.

A port that serves by weights never idles while someone waits. While an application computes, its
share goes to the others, so that each has more than its weight:

    b_i = max(w_i, C - sum of u_j over the others),   u_j = min(b_j, V_j / D_j(b_j)),

where V is the part of its time that an application keeps the whole link busy, with nobody else
there, and V / D(b) therefore its mean use of the link when it is slowed down. In a convex model a
term c max(0, t/b - 1) is communication of volume c t, so that V = sum of c t: what is hidden at
every share of the profile is not known and left out. For an application that always sends this is
exact; of two that alternate between computing and sending the phases are taken to be independent.
Entry points: `lent_shares`, `weights_with_lending`. Shares are fractions of the link, volumes of
its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from weft.control.policy.response import Responses
from weft.errors import InputError
from weft.sensitivity.model import FloatArray, Hinges

_STEPS = 500
_SETTLED = 1e-7
_FINEST = 0.004  # of the link, the least weight that is handed over
_AS_GOOD = 0.005
_WORTH = 1e-4  # of slowdown, below which an exchange is not worth it


def volume(model: Hinges) -> float:
    """What the model says is sent in a run, as a fraction of a run's time with the whole link."""
    return min(1.0, sum(c * t for t, c in model.terms))


@dataclass(frozen=True, slots=True)
class Lending:
    """Applications at a port whose managed share is `capacity`."""

    models: Sequence[Hinges]
    capacity: float = 1.0
    responses: Responses = field(init=False)
    volumes: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "responses", Responses.of(self.models))
        object.__setattr__(self, "volumes", np.array([volume(model) for model in self.models]))

    def shares(self, promised: FloatArray) -> FloatArray:
        """The mean share of each application, at or above its weight."""
        shares = promised
        for _ in range(_STEPS):
            used = np.minimum(shares, self.volumes / self.slowdowns(shares))
            left = self.capacity - (used.sum() - used)
            wanted = np.clip(np.maximum(promised, left), 0.0, 1.0)
            if np.abs(wanted - shares).max() < _SETTLED:
                break
            shares = (shares + wanted) / 2
        return shares

    def slowdowns(self, shares: FloatArray) -> FloatArray:
        """By the models; below a floor, what it is there."""
        return self.responses.slowdown(np.maximum(shares, self.responses.floor))

    def total(self, promised: FloatArray) -> float:
        """The slowdowns' sum with these weights."""
        return float(self.slowdowns(self.shares(promised)).sum())


def lent_shares(
    models: Sequence[Hinges], weights: Sequence[float], capacity: float = 1.0
) -> FloatArray:
    """The mean share of each application, at or above its weight."""
    promised = np.asarray(weights, dtype=np.float64)
    if promised.shape != (len(models),) or not (promised > 0).all():
        raise InputError("weights", f"{list(weights)}", "give a positive one for each model")
    if promised.sum() > capacity + _SETTLED:
        problem = f"{promised.sum():g} in all, the capacity is {capacity:g}"
        raise InputError("weights", problem, "scale them down")
    return Lending(models, capacity).shares(promised)


def weights_with_lending(models: Sequence[Hinges], capacity: float = 1.0) -> FloatArray:
    """Weights for which the total slowdown with lending is least, as far as exchanges find them.

    From equal weights, and from one application far before or behind the others, a part of one's
    weight is handed over to another as long as that helps, in ever smaller parts. The total is not
    convex in the weights: the best of the local answers is taken, and of the weights between it and
    equal ones those nearest to equal that are as good but for 0.5 %: a promise is worth something
    where a model is wrong.
    """
    lending = Lending(models, capacity)
    floors = lending.responses.floor
    equal = np.full(len(models), capacity / len(models))
    if (equal < floors).any():
        problem = f"floors of {len(models)} applications exceed equal weights"
        raise InputError("lending", problem, "lower the floors or admit fewer applications")
    starts = [equal]
    for one in np.eye(len(models)):
        before = np.where(one > 0, capacity - (floors.sum() - floors), floors)
        behind = floors + (1 - one) * (capacity - floors.sum()) / max(1, len(models) - 1)
        starts += [before, behind]
    best = min((_improved(lending, start) for start in starts), key=lending.total)
    return _nearest(lending, equal, best)


def _nearest(lending: Lending, equal: FloatArray, best: FloatArray) -> FloatArray:
    enough = lending.total(best) * (1 + _AS_GOOD)
    for step in np.linspace(0, 1, 101).tolist():
        weights: FloatArray = equal + step * (best - equal)
        if lending.total(weights) <= enough:
            return weights
    return best


def _improved(lending: Lending, weights: FloatArray) -> FloatArray:
    best, part = lending.total(weights), 0.25 * lending.capacity
    while part > _FINEST:
        found = min(_exchanges(lending, weights, part), key=lending.total, default=weights)
        total = lending.total(found)
        if total > best - _WORTH:
            part /= 2
        else:
            weights, best = found, total
    return weights


def _exchanges(lending: Lending, weights: FloatArray, part: float) -> Iterator[FloatArray]:
    """All that hand over a part of one's weight to another, and keep to its floor."""
    for giver, taker in permutations(range(len(weights)), 2):
        if weights[giver] - part >= lending.responses.floor[giver]:
            changed = weights.copy()
            changed[giver] -= part
            changed[taker] += part
            yield changed
