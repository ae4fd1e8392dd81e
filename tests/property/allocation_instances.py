"""Random ports to split, and the best split of small ones by trying them all."""

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
    rng: np.random.Generator, *, most: int, floor_unit: float, kinds: Sequence[str] = KINDS
) -> list[Sensitivity]:
    """2 to `most` applications, some alike; floors in `floor_unit`, together at most half."""
    count = round(np.exp(rng.uniform(np.log(2), np.log(most))))
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


def brute_force(models: Sequence[Sensitivity], units: int, budget: int) -> float:
    """The least total slowdown over all splits of `budget` units."""
    low = least_units(models, units)
    spare = int(budget - low.sum())
    curves = [
        np.asarray(model.slowdown((least + np.arange(spare + 1)) / units))
        for model, least in zip(models, low, strict=True)
    ]
    grid = np.indices((spare + 1,) * (len(models) - 1)).reshape(len(models) - 1, -1)
    last = spare - grid.sum(axis=0)
    totals = sum(
        curve[own] for curve, own in zip(curves, (*grid, np.maximum(last, 0)), strict=True)
    )
    return float(np.where(last >= 0, totals, np.inf).min())
