"""The paper's solver: SciPy's SLSQP on shares that need not be whole units, for comparison only.

Minimises Σ D_i(w_i) with Σ w_i = capacity and floor_i ≤ w_i ≤ 1, from equal shares, with exact
gradients and SciPy's limit of 100 iterations. Entry point: `slsqp`. It finds a local minimum, and
on tens of applications may stop before it; its answer says whether SciPy reported success.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from weft.control.policy.allocate import Floats
from weft.errors import InputError
from weft.sensitivity.model import Hinges, Sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class SlsqpAnswer:
    """Shares of the link, their total slowdown, and whether SciPy reported success."""

    shares: Floats
    objective: float
    converged: bool


def slsqp(
    models: Sequence[Sensitivity], *, capacity: float = 1.0, tolerance: float = 1e-9
) -> SlsqpAnswer:
    """SLSQP's split of `capacity` among the applications of one port."""
    floors = np.array([model.floor for model in models])
    if not models or floors.sum() > capacity:
        problem = f"{len(models)} applications with floors of {floors.sum():g} in all"
        raise InputError("slsqp", problem, f"give some that fit into the capacity {capacity:g}")
    curves = _Curves.of(models)
    found = minimize(
        lambda shares: curves.slowdown(np.maximum(shares, floors)).sum(),
        floors + (capacity - floors.sum()) / len(models),
        jac=lambda shares: curves.slope(np.maximum(shares, floors)),
        method="SLSQP",
        bounds=[(floor, 1.0) for floor in floors],
        constraints={
            "type": "eq",
            "fun": lambda shares: shares.sum() - capacity,
            "jac": lambda shares: np.ones_like(shares),
        },
        options={"ftol": tolerance},
    )
    shares = _feasible(np.clip(found.x, floors, 1.0), floors, capacity)
    total = float(curves.slowdown(shares).sum())
    return SlsqpAnswer(shares=shares, objective=total, converged=bool(found.success))


def _feasible(shares: Floats, floors: Floats, capacity: float) -> Floats:
    """SciPy may stop with a sum that is not the capacity: what is above the floors is scaled."""
    above = shares - floors
    spare = capacity - floors.sum()
    part = above / above.sum() if above.sum() > 0 else np.full(len(floors), 1 / len(floors))
    return np.asarray(floors + spare * part)


@dataclass(frozen=True, slots=True)
class _Curves:
    """All models of a port as matrices, so that SciPy waits for one array operation each."""

    powers: Floats  # [application, power], of hinges the 1 they begin with
    t: Floats  # [application, term], 0 where there is none
    c: Floats

    @classmethod
    def of(cls, models: Sequence[Sensitivity]) -> _Curves:
        terms = [model.terms if isinstance(model, Hinges) else () for model in models]
        powers = [(1.0,) if isinstance(model, Hinges) else model.coefficients for model in models]
        most = max(map(len, terms), default=0)
        padded = np.array([[*own, *[(0.0, 0.0)] * (most - len(own))] for own in terms])
        t, c = np.moveaxis(padded.reshape(len(models), most, 2), 2, 0)
        width = max(map(len, powers))
        return cls(np.array([[*own, *[0.0] * (width - len(own))] for own in powers]), t, c)

    def slowdown(self, b: Floats) -> Floats:
        hinges = self.c * np.maximum(0.0, self.t / b[:, np.newaxis] - 1)
        smooth = np.polynomial.polynomial.polyval(b, self.powers.T, tensor=False)
        return np.asarray(smooth + hinges.sum(axis=1))

    def slope(self, b: Floats) -> Floats:
        rates = self.powers[:, 1:] * np.arange(1, self.powers.shape[1])
        smooth = (rates * b[:, np.newaxis] ** np.arange(rates.shape[1])).sum(axis=1)
        hinges = np.where(b[:, np.newaxis] <= self.t, self.c * self.t, 0.0).sum(axis=1)
        return np.asarray(smooth - hinges / b**2)
