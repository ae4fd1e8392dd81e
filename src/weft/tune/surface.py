"""What is expected at settings that were not measured: the model, and where it is wrong here.

    ln y(x) = ln f(x; p) + g(x) + noise

f is the closed form fitted to the rows, g a Gaussian process over the settings (kriging) that
learns what f misses, such as processors that two spinning loops share. Both are of logarithms: all
errors are relative. Scale, reach and noise of g are those of the greatest likelihood on a grid.
Where no form fits, f is a constant, and `why` says so. Entry point: `surface`. Units: the goal's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtri

from weft.errors import InputError
from weft.model.fit import Fit, FloatArray
from weft.tune.forms import fit_of, model_log
from weft.tune.goal import Goal
from weft.tune.observed import Observed
from weft.tune.space import Choice, Space

LEAST_ROWS = 4
_FAR = 3.5  # deviations, estimated from the median of their sizes
_SCALES = (0.05, 0.1, 0.2, 0.4, 0.8)
_NOISES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
_REACHES = (0.5, 0.7, 1.0, 1.5, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expected:
    """Logarithms: of the values, their standard errors, and that of one more measurement."""

    log_value: FloatArray
    log_error: FloatArray
    log_noise: float

    def value(self, place: int) -> float:
        return float(np.exp(self.log_value[place]))

    def interval(self, place: int, confidence: float = 0.95) -> tuple[float, float]:
        """Of the mean of many measurements there."""
        half = float(ndtri(0.5 + confidence / 2)) * float(self.log_error[place])
        middle = float(self.log_value[place])
        return float(np.exp(middle - half)), float(np.exp(middle + half))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surface:
    """Rows and what was learnt from them."""

    space: Space
    fit: Fit | None
    why: str  # there is no fit; empty when there is
    level: float
    rows: FloatArray
    scale: float
    reach: float
    noise: float
    factor: tuple[FloatArray, bool]
    weights: FloatArray

    def expected(self, settings: Sequence[Choice]) -> Expected:
        """At any settings of the space."""
        at = self.space.coordinates(settings)
        near = _kernel(self.space, at, self.rows, self.scale, self.reach)
        mean = self._mean(settings) + near @ self.weights
        explained = np.sum(near * cho_solve(self.factor, near.T).T, axis=1)
        error = np.sqrt(np.maximum(self.scale**2 - explained, 1e-12))
        return Expected(log_value=mean, log_error=error, log_noise=self.noise)

    def difference(self, ours: Choice, theirs: Choice) -> tuple[float, float]:
        """ln of the ratio of two settings' values, and its standard error."""
        at = self.space.coordinates([ours, theirs])
        near = _kernel(self.space, at, self.rows, self.scale, self.reach)
        among = _kernel(self.space, at, at, self.scale, self.reach)
        left = among - near @ cho_solve(self.factor, near.T)
        mean = self._mean([ours, theirs]) + near @ self.weights
        variance = float(left[0, 0] + left[1, 1] - 2 * left[0, 1])
        return float(mean[0] - mean[1]), max(variance, 0.0) ** 0.5

    def _mean(self, settings: Sequence[Choice]) -> FloatArray:
        return model_log(self.fit, self.space, settings) + self.level


def surface(
    space: Space, goal: Goal, rows: Sequence[Observed], *, held_out: bool = False
) -> Surface:
    """Through what was observed; `held_out` also tells the model's error on new rows."""
    if len(rows) < LEAST_ROWS:
        problem = f"{len(rows)} measured points tell nothing of the others"
        raise InputError(f"goal {goal.name}", problem, f"measure {LEAST_ROWS} or more")
    found, why = _fitted(space, goal, rows, held_out)
    settings = [row.setting for row in rows]
    values = np.log([row.value for row in rows])
    mean = model_log(found, space, settings)
    level = float(np.median(values - mean))
    residuals = _tamed(values - mean - level)
    at = space.coordinates(settings)
    apart = space.squared_distances(at, at)
    scale, reach, noise = max(
        itertools.product(_SCALES, _REACHES, _NOISES),
        key=lambda trial: _log_likelihood(apart, residuals, *trial),
    )
    factor = cho_factor(_covariance(apart, scale, reach, noise), lower=True)
    return Surface(
        space=space, fit=found, why=why, level=level, rows=at, scale=scale, reach=reach,
        noise=noise, factor=factor, weights=np.asarray(cho_solve(factor, residuals)),
    )  # fmt: skip


def _fitted(
    space: Space, goal: Goal, rows: Sequence[Observed], held_out: bool
) -> tuple[Fit | None, str]:
    """The model, or why there is none."""
    try:
        return fit_of(goal, space, rows, held_out=held_out), ""
    except InputError as error:
        return None, str(error)


def _tamed(residuals: FloatArray) -> FloatArray:
    """Points that the host disturbed lie far below the others: they count as low, not as zero."""
    usual = max(0.1, 1.4826 * float(np.median(np.abs(residuals))))
    return np.clip(residuals, -_FAR * usual, _FAR * usual)


def _kernel(
    space: Space, ours: FloatArray, theirs: FloatArray, scale: float, reach: float
) -> FloatArray:
    apart = space.squared_distances(ours, theirs)
    return np.asarray(scale**2 * np.exp(-apart / (2 * reach**2)))


def _covariance(apart: FloatArray, scale: float, reach: float, noise: float) -> FloatArray:
    return np.asarray(scale**2 * np.exp(-apart / (2 * reach**2)) + noise**2 * np.eye(len(apart)))


def _log_likelihood(
    apart: FloatArray, residuals: FloatArray, scale: float, reach: float, noise: float
) -> float:
    factor, lower = cho_factor(_covariance(apart, scale, reach, noise), lower=True)
    fit = float(residuals @ cho_solve((factor, lower), residuals))
    return -0.5 * fit - float(np.sum(np.log(np.diag(factor))))
