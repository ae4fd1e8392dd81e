"""Predictions for settings that were not measured: the model, plus a correction learnt here.

    ln y(x) = ln f(x; p) + g(x) + drift(turn) + noise

f is the closed form fitted to the rows, g a Gaussian process over the settings (kriging) that
learns what f misses, such as processors that two spinning loops share. Where rows have turns, a
slow drift of the machine is separated from the effects of the settings. Scale, reach and noise of g
have the greatest likelihood on a grid. Where no form fits, f is a constant and `why` has the
reason. Entry point: `fit_surface`. Units: the goal's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtri

from weft.errors import InputError
from weft.model.fit import Fit, FloatArray
from weft.tune.search.forms import fit_model, predict_log
from weft.tune.search.goal import Goal
from weft.tune.search.space import Candidate, MeasuredPoint, Space

LEAST_ROWS = 4
CONFIDENCE = 0.95
_SCALES = (0.06, 0.15, 0.35, 0.8)
_NOISES = (0.02, 0.05, 0.12, 0.2, 0.3, 0.45, 0.6)
_REACHES = (0.25, 0.5, 0.8, 1.3, 2.2)
_DRIFTS = (0.0, 0.15, 0.4)
_DRIFT_TURNS = 8.0
_START = (0.35, 0.8, 0.12, 0.0)  # scale, reach, noise, drift


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A geometric mean and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def from_logs(cls, middle: float, half: float) -> Interval:
        """exp of a logarithm and of its interval's ends."""
        value, low, high = (float(np.exp(x)) for x in (middle, middle - half, middle + half))
        return cls(value=value, low=low, high=high)

    def scale(self, factor: float) -> Interval:
        return Interval(value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g}–{self.high:.3g})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """Logarithms of the values, and their standard errors."""

    log_value: FloatArray
    log_error: FloatArray

    def interval(self, place: int) -> Interval:
        """Of the mean of many measurements there."""
        half = float(ndtri(0.5 + CONFIDENCE / 2)) * float(self.log_error[place])
        return Interval.from_logs(float(self.log_value[place]), half)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surface:
    """A fitted response surface."""

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

    def predict(self, settings: Sequence[Candidate]) -> Prediction:
        """At any settings of the space."""
        at = self.space.coordinates(settings)
        near = _kernel(self.space, at, self.rows, self.scale, self.reach)
        mean = self._mean(settings) + near @ self.weights
        explained = np.sum(near * cho_solve(self.factor, near.T).T, axis=1)
        error = np.sqrt(np.maximum(self.scale**2 - explained, 1e-12))
        return Prediction(log_value=mean, log_error=error)

    def predict_ratio(self, ours: Candidate, theirs: Candidate) -> tuple[float, float]:
        """ln of the ratio of two settings' values, and its standard error."""
        at = self.space.coordinates([ours, theirs])
        near = _kernel(self.space, at, self.rows, self.scale, self.reach)
        among = _kernel(self.space, at, at, self.scale, self.reach)
        residual = among - near @ cho_solve(self.factor, near.T)
        mean = self._mean([ours, theirs]) + near @ self.weights
        variance = float(residual[0, 0] + residual[1, 1] - 2 * residual[0, 1])
        return float(mean[0] - mean[1]), max(variance, 0.0) ** 0.5

    def _mean(self, settings: Sequence[Candidate]) -> FloatArray:
        return predict_log(self.fit, self.space, settings) + self.level


def fit_surface(
    space: Space, goal: Goal, rows: Sequence[MeasuredPoint], *, held_out: bool = False
) -> Surface:
    """Fit a surface to measured points; `held_out` adds the model's leave-one-out error."""
    if len(rows) < LEAST_ROWS:
        problem = f"{len(rows)} measured points are too few for a model"
        raise InputError(f"goal {goal.name}", problem, f"measure {LEAST_ROWS} or more")
    fitted, why = _fit_or_reason(space, goal, rows, held_out)
    settings = [row.setting for row in rows]
    values = np.log([row.value for row in rows])
    mean = predict_log(fitted, space, settings)
    level = float(np.median(values - mean))
    residuals = values - mean - level
    at = space.coordinates(settings)
    likelihood = _Likelihood(space.squared_distances(at, at), _correlate_drift(rows), residuals)
    scale, reach, noise, drift = likelihood.maximise()
    covariance = likelihood.covariance(scale, reach, noise, drift)
    factor = cho_factor(covariance, lower=True)
    return Surface(
        space=space,
        fit=fitted,
        why=why,
        level=level,
        rows=at,
        scale=scale,
        reach=reach,
        noise=noise,
        factor=factor,
        weights=np.asarray(cho_solve(factor, residuals)),
    )


def _fit_or_reason(
    space: Space, goal: Goal, rows: Sequence[MeasuredPoint], held_out: bool
) -> tuple[Fit | None, str]:
    """The model, or why there is none."""
    try:
        return fit_model(goal, space, rows, held_out=held_out), ""
    except InputError as error:
        return None, str(error)


def _kernel(
    space: Space, ours: FloatArray, theirs: FloatArray, scale: float, reach: float
) -> FloatArray:
    apart = space.squared_distances(ours, theirs)
    return np.asarray(scale**2 * np.exp(-apart / (2 * reach**2)))


def _correlate_drift(rows: Sequence[MeasuredPoint]) -> FloatArray:
    """Correlation of the drift of two rows: 1 in one turn, small after `_DRIFT_TURNS`."""
    turns = [row.turn for row in rows if row.turn is not None]
    if len(turns) < len(rows):
        return np.zeros((len(rows), len(rows)))
    apart = np.subtract.outer(np.array(turns), np.array(turns)) / _DRIFT_TURNS
    return np.asarray(np.exp(-(apart**2) / 2))


@dataclass(frozen=True, slots=True)
class _Likelihood:
    """The likelihood of scale, reach, noise and drift, given residuals."""

    apart: FloatArray
    together: FloatArray
    residuals: FloatArray

    def maximise(self) -> tuple[float, float, float, float]:
        """Coordinate ascent on the grid."""
        drifts = _DRIFTS if self.together.any() else (0.0,)
        likelihood = functools.cache(self._log_likelihood)
        best: tuple[float, ...] = _START
        before: tuple[float, ...] = ()
        while best != before:
            before = best
            for place, levels in enumerate((_SCALES, _REACHES, _NOISES, drifts)):
                trials = [(*best[:place], level, *best[place + 1 :]) for level in levels]
                best = max([best, *trials], key=likelihood)
        scale, reach, noise, drift = best
        return scale, reach, noise, drift

    def covariance(self, scale: float, reach: float, noise: float, drift: float) -> FloatArray:
        near = scale**2 * np.exp(-self.apart / (2 * reach**2))
        return np.asarray(near + drift**2 * self.together + noise**2 * np.eye(len(self.apart)))

    def _log_likelihood(self, trial: tuple[float, ...]) -> float:
        scale, reach, noise, drift = trial
        covariance = self.covariance(scale, reach, noise, drift)
        factor, lower = cho_factor(covariance, lower=True)
        fit = float(self.residuals @ cho_solve((factor, lower), self.residuals))
        return -0.5 * fit - float(np.sum(np.log(np.diag(factor))))
