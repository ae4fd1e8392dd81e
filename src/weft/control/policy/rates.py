"""What rates the splits of single ports give along whole paths.

An application with the shares w_ip along its path is promised the least of them. Ports that serve
by weights leave no room unused, so that it has more where others are held back elsewhere:

    r_i = min over its ports of θ_p w_ip,   Σ_i min(r_i, θ_p w_ip) = C_p  wherever θ_p is finite,

found by setting each θ_p in turn until none changes. Entry points: `promised_rates`,
`working_rates`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.fabric import Port
from weft.sensitivity.model import FloatArray

Shares = Mapping[Port, Mapping[str, float]]  # of each application at each port

_SWEEPS = 1000
_SETTLED = 1e-10


def promised_rates(shares: Shares) -> dict[str, float]:
    """The least share of each application along its path."""
    rates: dict[str, float] = {}
    for port in shares.values():
        for name, share in port.items():
            rates[name] = min(share, rates.get(name, 1.0))
    return rates


def working_rates(shares: Shares, capacity: Mapping[Port, float]) -> dict[str, float] | None:
    """Rates if all send as much as they can, at most a whole link; None if they do not settle."""
    names = sorted({name for port in shares.values() for name in port})
    weights = np.array([[port.get(name, np.inf) for name in names] for port in shares.values()])
    offers = weights.copy()
    for _ in range(_SWEEPS):
        before = offers.copy()
        for p, (port, weight) in enumerate(zip(shares, weights, strict=True)):
            here = np.isfinite(weight)
            elsewhere = np.minimum(np.delete(offers, p, axis=0).min(axis=0, initial=np.inf), 1.0)
            level = _level(weight[here], elsewhere[here], capacity[port])
            offers[p, here] = weight[here] * level
        if np.allclose(offers, before, rtol=_SETTLED, atol=0.0):
            return dict(zip(names, np.minimum(offers.min(axis=0), 1.0).tolist(), strict=True))
    return None


def _level(weights: FloatArray, limits: FloatArray, capacity: float) -> float:
    """θ with Σ min(limit, θ · weight) = capacity; without bound where the limits leave room."""
    if limits.sum() <= capacity:
        return float("inf")
    order = np.argsort(limits / weights)
    limits, weights = limits[order], weights[order]
    taken = np.concatenate([[0.0], np.cumsum(limits)[:-1]])
    level = (capacity - taken) / np.cumsum(weights[::-1])[::-1]
    return float(level[np.argmax(level * weights <= limits)])
