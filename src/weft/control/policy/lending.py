"""What applications get at a port that lends: a weight is a promise, what one leaves others use.

A port that serves by weights never idles while someone waits. While an application computes, its
share goes to the others, so that each has more than its weight:

    b_i = max(w_i, C - sum of u_j over the others),   u_j = min(b_j, V_j / D_j(b_j)),

where V is the part of its time that an application keeps the whole link busy, with nobody else
there, and V / D(b) therefore its mean use of the link when it is slowed down. In a convex model a
term c max(0, t/b - 1) is communication of volume c t, so that V = sum of c t: what is hidden at
every share of the profile is not known and left out. For an application that always sends this is
exact; of two that alternate between computing and sending the phases are taken to be independent.
Entry points: `lent_shares`, `volume`. Shares are fractions of the link, volumes of its time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.errors import InputError
from weft.sensitivity.model import FloatArray, Hinges

_STEPS = 500
_SETTLED = 1e-9
_FINEST = 0.004  # of the link, the least weight that is handed over
_AS_GOOD = 0.005
_WORTH = 1e-4  # of slowdown, below which an exchange is not worth it


def volume(model: Hinges) -> float:
    """What the model says is sent in a run, as a fraction of a run's time with the whole link."""
    return min(1.0, sum(c * t for t, c in model.terms))


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
    volumes = np.array([volume(model) for model in models])
    shares = promised
    for _ in range(_STEPS):
        used = np.minimum(shares, volumes / _slowdowns(models, shares))
        left = capacity - (used.sum() - used)
        wanted = np.clip(np.maximum(promised, left), 0.0, 1.0)
        if np.abs(wanted - shares).max() < _SETTLED:
            break
        shares = (shares + wanted) / 2
    return shares


def _slowdowns(models: Sequence[Hinges], shares: FloatArray) -> FloatArray:
    pairs = zip(models, shares.tolist(), strict=True)
    return np.array([float(model.slowdown(max(b, model.floor))) for model, b in pairs])


def lent_slowdown(
    models: Sequence[Hinges], weights: Sequence[float], capacity: float = 1.0
) -> float:
    """The total slowdown, predicted with lending."""
    return float(_slowdowns(models, lent_shares(models, weights, capacity)).sum())


def weights_with_lending(models: Sequence[Hinges], capacity: float = 1.0) -> FloatArray:
    """Weights for which the total slowdown with lending is least, as far as exchanges find them.

    From equal weights, and from one application far before or behind the others, a part of one's
    weight is handed over to another as long as that helps, in ever smaller parts. The total is not
    convex in the weights: the best of the local answers is taken, and of the weights between it and
    equal ones those nearest to equal that are as good but for 0.5 %: a promise is worth something
    where a model is wrong.
    """
    floors = np.array([model.floor for model in models])
    equal = np.full(len(models), capacity / len(models))
    if (equal < floors).any():
        problem = f"floors of {len(models)} applications exceed equal weights"
        raise InputError("lending", problem, "lower the floors or admit fewer applications")
    starts = [equal]
    for one in np.eye(len(models)):
        before = np.where(one > 0, capacity - (floors.sum() - floors), floors)
        behind = floors + (1 - one) * (capacity - floors.sum()) / max(1, len(models) - 1)
        starts += [before, behind]
    found = [_improved(models, start, floors, capacity) for start in starts]
    best = min(found, key=lambda w: lent_slowdown(models, w.tolist(), capacity))
    return _nearest(models, equal, best, capacity)


def _nearest(
    models: Sequence[Hinges], equal: FloatArray, best: FloatArray, capacity: float
) -> FloatArray:
    enough = lent_slowdown(models, best.tolist(), capacity) * (1 + _AS_GOOD)
    for step in np.linspace(0, 1, 101):
        weights: FloatArray = equal + float(step) * (best - equal)
        if lent_slowdown(models, weights.tolist(), capacity) <= enough:
            return weights
    return best


def _improved(
    models: Sequence[Hinges], weights: FloatArray, floors: FloatArray, capacity: float
) -> FloatArray:
    best, part = lent_slowdown(models, weights.tolist(), capacity), 0.25 * capacity
    while part > _FINEST:
        found = _exchanged(models, weights, floors, part, capacity)
        total = best if found is None else lent_slowdown(models, found.tolist(), capacity)
        if found is None or total > best - _WORTH:
            part /= 2
        else:
            weights, best = found, total
    return weights


def _exchanged(
    models: Sequence[Hinges], weights: FloatArray, floors: FloatArray, part: float, capacity: float
) -> FloatArray | None:
    """The best single exchange; None if every one would go below a floor."""
    found = []
    for giver in range(len(models)):
        for taker in range(len(models)):
            if giver != taker and weights[giver] - part >= floors[giver]:
                changed = weights.copy()
                changed[giver] -= part
                changed[taker] += part
                found.append(changed)
    return min(found, key=lambda w: lent_slowdown(models, w.tolist(), capacity), default=None)
