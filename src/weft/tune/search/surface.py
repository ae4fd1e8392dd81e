"""Predictions for settings that were not measured: a closed form, plus a correction learnt here.

    ln y(x) = ln f(x; p) + g(x) + drift(turn) + noise
    f = model(size, depth, qps, threads; p) · Π effect[level] · Π gain^log2(number)

f is a closed form of `weft.model`, times the effect of other choices, fitted to the rows. A choice
that the model does not have (how completions are awaited, placement, lists) is one unknown: the
factor by which that level changes the value, or by which a doubling does. How to wait and how many
threads decide together: loops that sleep leave their processor to others. Only factors of which two
levels were observed are in it. g is a Gaussian process over the settings (kriging) that learns what
f misses, such as processors that two spinning loops share. Where rows have turns, a slow drift of
the machine is separated from the effects of the settings. Scale, reach and noise of g have the
greatest likelihood on a grid. Where no form fits, f is a constant and `why` has the reason.
Entry points: `fit_surface`, `fit_model`, `predict_log`. Units: the goal's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtri

from weft.errors import InputError
from weft.model.fit import Fit, FloatArray, Form, Input, Unknown, fit
from weft.model.throughput import INPUTS, host_throughput, throughput
from weft.tune.search.space import Candidate, Factor, Goal, MeasuredPoint, Space

_LEAST_EFFECT, _MOST_EFFECT = 0.02, 50.0
_AND = " and "
_SIZE = INPUTS[0]
_ROWS_FOR_CACHE = 16  # two more unknowns, and rows on both sides of the cache
WITH_ADAPTER = (
    "verbs",
    "delay",
    "ofi:verbs",
    "ofi:efa",
    "ofi:psm",
    "ofi:psm2",
    "ofi:opx",
    "ofi:cxi",
)
LEAST_ROWS = 4
CONFIDENCE = 0.95
_SCALES = (0.06, 0.15, 0.35, 0.8)
_NOISES = (0.02, 0.05, 0.12, 0.2, 0.3, 0.45, 0.6)
_REACHES = (0.25, 0.5, 0.8, 1.3, 2.2)
_DRIFTS = (0.0, 0.15, 0.4)
_DRIFT_TURNS = 8.0
_START = (0.35, 0.8, 0.12, 0.0)  # scale, reach, noise, drift


def fit_model(goal: Goal, space: Space, rows: Sequence[MeasuredPoint], *, held_out: bool) -> Fit:
    """The first of the goal's forms that fits the medians at the settings that were observed."""
    groups = space.group(rows).values()
    settings = [group[0].setting for group in groups]
    medians = [median(row.value for row in group) for group in groups]
    columns = {n.name: _build_column(n.name, space, settings) for n in form_inputs(goal.name)}
    problems: list[InputError] = []
    for base in base_forms(goal.name, space.over, columns, np.array(medians)):
        try:
            form = add_effects(base, _find_varied_factors(space, settings, base), len(settings))
            return fit(
                form,
                _build_columns(form, space, settings),
                medians,
                data=f"{len(rows)} points measured here",
                where=f"model of {goal.name}",
                held_out=held_out,
            )
        except InputError as error:
            problems.append(error)
    raise problems[-1]


def predict_log(fitted: Fit | None, space: Space, settings: Sequence[Candidate]) -> FloatArray:
    """ln of the form's value; 0 where there is no fit."""
    if fitted is None:
        return np.zeros(len(settings))
    inputs = _build_columns(fitted.form, space, settings)
    return np.log(np.maximum(fitted.predict(extrapolate=True, **inputs), 1e-300))


def add_effects(base: Form, factors: Sequence[Factor], rows: int) -> Form:
    """The base form times one unknown per level; as many as the rows leave room for."""
    room = rows - 1 - len(base.unknowns)
    unknowns: list[Unknown] = []
    for names in [*map(_effect_names, factors), *_joint_names(base, factors)]:
        if len(unknowns) + len(names) <= room:
            unknowns += map(_build_effect, names)
    if room < 0:
        problem = f"{rows} settings for {len(base.unknowns)} unknowns"
        raise InputError(base.name, problem, f"measure {len(base.unknowns) + 1} or more")
    names = [unknown.name for unknown in unknowns]

    def evaluate(p: Mapping[str, float], x: Mapping[str, FloatArray]) -> FloatArray:
        value = base.evaluate(p, x)
        for name in names:
            value = value * p[name] ** x[name]
        return np.asarray(value)

    return replace(
        base,
        formula=" · ".join([base.formula, *(f"[{name}]" for name in names)]),
        unknowns=(*base.unknowns, *unknowns),
        inputs=(*base.inputs, *(Input(name=n, unit="", meaning=f"how often {n}") for n in names)),
        evaluate=evaluate,
    )


def _effect_names(factor: Factor) -> list[str]:
    """Of each doubling of a number; of each level of a word but the first."""
    if factor.is_number:
        return [f"{factor.name} doubled"]
    return [f"{factor.name}={level}" for level in factor.levels[1:]]


def _joint_names(base: Form, factors: Sequence[Factor]) -> list[list[str]]:
    """Of waiting beside other threads, where both are to be chosen."""
    threads = any(named.name == "threads" for named in base.inputs)
    waits = [factor for factor in factors if factor.name == "wait"]
    return (
        [[f"{name}{_AND}threads doubled" for name in _effect_names(waits[0])]]
        if (threads and waits)
        else []
    )


def _build_effect(name: str) -> Unknown:
    return Unknown(
        name=name,
        unit="",
        meaning=f"times the value with {name}",
        start=1.0,
        low=_LEAST_EFFECT,
        high=_MOST_EFFECT,
    )


def _find_varied_factors(space: Space, settings: Sequence[Candidate], base: Form) -> list[Factor]:
    """Factors that are no inputs of the form and were observed at two levels or more."""
    form_inputs = {named.name for named in base.inputs}
    return [
        factor
        for factor in space.factors
        if factor.name not in form_inputs
        and len({setting[factor.name] for setting in settings}) > 1
    ]


def _build_columns(
    form: Form, space: Space, settings: Sequence[Candidate]
) -> dict[str, FloatArray]:
    """Columns of the form's inputs: numbers as they are, effects as how often they apply."""
    return {named.name: _build_column(named.name, space, settings) for named in form.inputs}


def _build_column(name: str, space: Space, settings: Sequence[Candidate]) -> FloatArray:
    return np.array([_read_input(name, space, setting) for setting in settings], dtype=np.float64)


def _read_input(name: str, space: Space, setting: Candidate) -> float:
    if _AND in name:
        return math.prod(_read_input(part, space, setting) for part in name.split(_AND))
    factor, equals, level = name.partition("=")
    if equals:
        return float(str(setting[factor]) == level)
    if name.endswith(" doubled"):
        number = name.removesuffix(" doubled")
        return float(np.log2(float(setting.get(number, space.fixed.get(number, 1)) or 1)))
    value = setting.get(name, space.fixed.get(name, 1))
    return float(value) if isinstance(value, int | float) else 1.0


def form_inputs(goal: str) -> tuple[Input, ...]:
    """What the goal's form is a function of."""
    return INPUTS if goal in ("throughput", "message-rate") else (_SIZE,)


def base_forms(
    goal: str, over: str, x: Mapping[str, FloatArray], values: FloatArray
) -> Iterator[Form]:
    """The goal's forms, the fullest first; starts come from `values` observed at `x`."""
    match goal:
        case "throughput":
            yield from map(_in_bytes, _window_forms(over, x, values / x["size_bytes"] / 1e6))
        case "message-rate":
            yield from _window_forms(over, x, values)
        case "cpu":
            yield _cpu_form(float(np.median(values)))
        case _:
            yield _latency_form(float(np.median(values)))


def _window_forms(over: str, x: Mapping[str, FloatArray], rates_Mps: FloatArray) -> Iterator[Form]:
    if not over.startswith(WITH_ADAPTER):
        if len(rates_Mps) >= _ROWS_FOR_CACHE:
            yield host_throughput(x, rates_Mps, cache=True)
        yield host_throughput(x, rates_Mps)
        return
    starts = {
        "base_us": float(np.min(x["depth"] * x["qps"] * x["threads"] / rates_Mps)),
        "message_us": 0.5 / float(np.max(rates_Mps)),
        "engine_us": 0.5 / float(np.max(rates_Mps)),
        "line_GBps": float(np.max(rates_Mps * x["size_bytes"])) / 1e3,
    }
    yield throughput(list(starts), fixed={"engines": 1.0}, starts=starts)


def _in_bytes(form: Form) -> Form:
    """Bytes per second of a form that gives million messages per second."""
    return replace(
        form,
        formula=f"size·10⁶·{form.formula}",
        unit="B/s",
        evaluate=lambda p, x: 1e6 * x["size_bytes"] * form.evaluate(p, x),
    )


def _cpu_form(typical: float) -> Form:
    return Form(
        name="processor time per byte",
        formula="message/size + byte",
        source="a fixed cost of each message is spread over its bytes",
        unit="ns/B",
        unknowns=(
            Unknown("message_ns", "ns", "of processors for each message", 1000.0, 1e-3, 1e9),
            Unknown("byte_ns", "ns/B", "of processors for each byte", typical, 1e-6, 1e4),
        ),
        inputs=(_SIZE,),
        evaluate=lambda p, x: p["message_ns"] / x["size_bytes"] + p["byte_ns"],
    )


def _latency_form(typical: float) -> Form:
    return Form(
        name="latency of one size",
        formula="base",
        source="at one size there is one figure; choices change it by factors",
        unit="us",
        unknowns=(
            Unknown("base_us", "us", "half round trip at the first levels", typical, 1e-4, 1e8),
        ),
        inputs=(_SIZE,),
        evaluate=lambda p, x: p["base_us"] * np.ones_like(x["size_bytes"]),
    )


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
