"""Random ports to split, and their best splits by methods of their own.

Small ports by trying all splits, larger ones by a dynamic programme over the applications, and
convex models unit by unit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.sensitivity.model import Hinges, Polynomial, Sensitivity

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FINE_UNITS = 10_000_000
KINDS = ("convex", "polynomial")


def instance(
    rng: np.random.Generator,
    *,
    most: int,
    floor_unit: float,
    kinds: Sequence[str] = KINDS,
    least: int = 2,
) -> list[Sensitivity]:
    """`least` to `most` applications, some alike; floors in `floor_unit`, together at most half."""
    count = round(np.exp(rng.uniform(np.log(least), np.log(most))))
    greatest = max(1, int(0.5 / count / floor_unit))
    floors = rng.integers(1, greatest + 1, count) * floor_unit
    models = [_model(rng, str(rng.choice(kinds)), float(floor)) for floor in floors]
    if rng.random() < 0.2:
        return [models[i] for i in rng.integers(0, max(1, count // 3), count)]
    return models


def _model(rng: np.random.Generator, kind: str, floor: float) -> Sensitivity:
    if kind == "convex":
        knots = np.sort(rng.uniform(0.05, 1.0, rng.integers(0, 4)))[::-1]
        weights = rng.uniform(0, 3, len(knots))
        return Hinges(terms=tuple(zip(knots.tolist(), weights.tolist(), strict=True)), floor=floor)
    coefficients = rng.normal(0, 5, rng.integers(2, 5))
    return Polynomial(coefficients=tuple(coefficients.tolist()), floor=floor)


def least_units(models: Sequence[Sensitivity], units: int) -> Ints:
    floors = np.array([model.floor for model in models])
    return np.maximum(1, np.ceil(floors * units - 1e-9)).astype(np.int64)


def total_slowdown(
    models: Sequence[Sensitivity], weights: Sequence[int] | Ints, units: int
) -> float:
    pairs = zip(models, weights, strict=True)
    return float(sum(float(model.slowdown(w / units)) for model, w in pairs))


def _above_floors(
    models: Sequence[Sensitivity], units: int, budget: int
) -> tuple[int, list[Floats]]:
    """Units beyond the least ones, and each application's slowdown with 0, 1, ... of them."""
    low = least_units(models, units)
    spare = int(budget - low.sum())
    more = np.arange(spare + 1)
    pairs = zip(models, low, strict=True)
    return spare, [np.asarray(model.slowdown((w + more) / units)) for model, w in pairs]


def unit_by_unit(models: Sequence[Sensitivity], units: int, budget: int) -> float:
    """The least total slowdown of convex models: each unit to whom it saves most."""
    spare, curves = _above_floors(models, units, budget)
    had = [0] * len(curves)
    for _ in range(spare):
        saves = [curve[w] - curve[w + 1] for curve, w in zip(curves, had, strict=True)]
        had[int(np.argmax(saves))] += 1
    return float(sum(curve[w] for curve, w in zip(curves, had, strict=True)))


def programme(models: Sequence[Sensitivity], units: int, budget: int) -> float:
    """The least total slowdown of any models: best(s) of some = min over w best(s − w) + D(w)."""
    spare, (first, *others) = _above_floors(models, units, budget)
    best = first
    for curve in others:
        more = np.full(spare + 1, np.inf)
        for w in range(spare + 1):
            np.minimum(more[w:], best[: spare + 1 - w] + curve[w], out=more[w:])
        best = more
    return float(best[spare])


def brute_force(models: Sequence[Sensitivity], units: int, budget: int) -> float:
    """The least total slowdown over all splits of `budget` units."""
    spare, curves = _above_floors(models, units, budget)
    grid = np.indices((spare + 1,) * (len(models) - 1)).reshape(len(models) - 1, -1)
    last = spare - grid.sum(axis=0)
    totals = sum(
        curve[own] for curve, own in zip(curves, (*grid, np.maximum(last, 0)), strict=True)
    )
    return float(np.where(last >= 0, totals, np.inf).min())
