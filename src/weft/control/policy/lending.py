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
