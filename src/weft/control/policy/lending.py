"""Slowdowns at a port that lends: a weight is a promise, and idle bandwidth goes to the others.

A port that serves by weights never idles while a queue waits. An application that sends while of
the others only the set S does has the share w_i / (w_i + sum of w_j over S), and the whole link
alone; so it is faster than its weight promises whenever another one computes. If the others send
independently of each other, j for the fraction a_j of the time,

    1 / D_i = sum over S of P(S) / D_i(b_iS),   a_j = min(1, V_j / (b_j D_j)),   b_j the mean b_jS,

where V is the fraction of its time for which an application keeps the whole link busy when alone:
by its bytes (`estimate_volume`) or by its model. In a convex model a term c max(0, t/b - 1) is
communication of volume c t, so V = sum of c t (what is hidden at every share of the profile is
unknown and left out). Progress is averaged, not shares: that is right where the others' phases last
long beside what an application can hide.
`Demands` gives the share each application takes at a price per share.
Entry points: `predict_slowdowns`, `choose_weights`. Shares are fractions of the link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from math import log, sqrt
from statistics import median

import numpy as np

from weft.control.policy.allocate import allocate
from weft.control.policy.levels import IntArray
from weft.errors import InputError
from weft.sensitivity.application import Application, Run
from weft.sensitivity.model import FloatArray, Hinges, Polynomial, Sensitivity

MAX_APPLICATIONS = 10  # every subset of them is evaluated
_MAX_ITERATIONS = 200
_SETTLED = 1e-6
_ROUNDING = 1e-9
_UNITS = 1_000_000  # of the link, in which Eq. 4.2's weights are whole numbers
_MIN_STEP = 0.004  # of weight, as a fraction of the capacity
_TOLERANCE = 0.005  # of the total: weights nearer to equal are preferred
_MIN_GAIN = 1e-4  # of slowdown, for a step to be taken


def model_volume(model: Hinges) -> float:
    """Time that a run sends, by its model, as a fraction of its time with the whole link."""
    return min(1.0, sum(c * t for t, c in model.terms))


def estimate_volume(application: Application) -> float:
    """The same from the bytes of its runs with the whole link, if the profile has them.

    A profile has the bytes that the host of the command sent and received. The busier direction
    counts. If directions were not counted separately, it had all of the bytes or half of them,
    whichever is nearer to the model. If that differs from the model by more than a factor of √2,
    other hosts sent the rest, and the model's volume is used.
    """
    profile, predicted = application.profile, model_volume(application.convex.model)
    counted = [run for run in profile.runs if run.share == 1 and run.bytes]
    if not counted or not predicted or profile.link_bps is None or profile.completion_unit != "s":
        return predicted
    link_bytes = profile.link_bps * profile.baseline / 8
    possible = [bytes_ / link_bytes for bytes_ in _candidate_bytes(counted)]
    nearest = min(possible, key=lambda sent: abs(log(sent / predicted)))
    near = 1 / sqrt(2) <= nearest / predicted <= sqrt(2)
    return min(1.0, nearest) if near else predicted


def _candidate_bytes(runs: Sequence[Run]) -> tuple[float, ...]:
    """Possible bytes of the busier direction."""
    separate = [run.busier_bytes for run in runs if run.busier_bytes is not None]
    if separate:
        return (median(separate),)
    both = median(run.bytes or 0 for run in runs)
    return both, both / 2


@dataclass(frozen=True, slots=True)
class LendingPort:
    """Applications at a port whose managed share is `capacity`.

    `volumes` are the part of its time that each keeps the whole link busy alone; by default what
    the models say.
    """

    models: Sequence[Hinges]
    capacity: float = 1.0
    volumes: Sequence[float] = ()
    demands: Demands = field(init=False)
    sent: FloatArray = field(init=False)
    rivals: IntArray = field(init=False)  # [application]: the rows of the others
    sets: FloatArray = field(init=False)  # [rival, set]: 1 for each that sends

    def __post_init__(self) -> None:
        count = len(self.models)
        if not 1 <= count <= MAX_APPLICATIONS:
            raise InputError("lending", f"{count} applications", f"use 1 to {MAX_APPLICATIONS}")
        object.__setattr__(self, "demands", Demands.of(self.models))
        sent = np.array(self.volumes or [model_volume(model) for model in self.models])
        if sent.shape != (count,) or not ((sent >= 0) & (sent <= 1)).all():
            problem = f"{[*self.volumes]} of {count} applications"
            raise InputError("volumes", problem, "give one of 0 to 1 for each")
        object.__setattr__(self, "sent", sent)
        rivals = [[j for j in range(count) if j != i] for i in range(count)]
        object.__setattr__(self, "rivals", np.array(rivals, dtype=np.int64))
        # In the order in which `_find_probabilities` doubles them: the first changes fastest.
        sets = [bits[::-1] for bits in product((0.0, 1.0), repeat=count - 1)]
        object.__setattr__(self, "sets", np.array(sets).T)

    def slowdowns(self, weights: FloatArray) -> FloatArray:
        """Predicted slowdown of each application; `weights` may have many rows."""
        shares = self._find_shares(weights)
        progress = 1 / self._find_slowdowns(shares)
        sending, mean_slowdown = np.ones(weights.shape), np.ones(weights.shape)
        for _ in range(_MAX_ITERATIONS):
            probability = self._find_probabilities(sending)
            mean_slowdown = 1 / np.einsum("...s,...s->...", probability, progress)
            mean_share = np.einsum("...s,...s->...", probability, shares)
            target = np.minimum(1.0, self.sent / (mean_share * mean_slowdown))
            moving = np.abs(target - sending).max(axis=-1, keepdims=True) >= _SETTLED
            if not moving.any():
                break
            sending = np.where(moving, (sending + target) / 2, sending)
        return mean_slowdown

    def totals(self, weights: FloatArray) -> FloatArray:
        """Total slowdown with each row of weights."""
        return np.asarray(self.slowdowns(weights).sum(axis=-1))

    def _find_shares(self, weights: FloatArray) -> FloatArray:
        """Share of each application while it sends beside each set of others (last axis)."""
        beside = weights[..., self.rivals] @ self.sets
        return np.asarray(weights[..., None] / (weights[..., None] + beside))

    def _find_slowdowns(self, shares: FloatArray) -> FloatArray:
        """Slowdowns at these shares; below its floor a model gives that at the floor."""
        b = np.maximum(shares, self.demands.floor[:, None])
        slowdowns = np.ones_like(b)
        for t, c in zip(self.demands.t.T, self.demands.c.T, strict=True):
            slowdowns += c[:, None] * np.maximum(0.0, t[:, None] / b - 1)
        return slowdowns

    def _find_probabilities(self, sending: FloatArray) -> FloatArray:
        """Probability of each set beside an application: the others in it send, the rest do not."""
        chances = sending[..., self.rivals]
        probability = np.ones((*sending.shape, 1))
        for rival in range(len(self.sets)):
            chance = chances[..., rival, None]
            parts = probability * (1 - chance), probability * chance
            probability = np.concatenate(parts, axis=-1)
        return probability


def predict_slowdowns(
    models: Sequence[Hinges],
    weights: Sequence[float],
    capacity: float = 1.0,
    volumes: Sequence[float] = (),
) -> FloatArray:
    """The predicted slowdown of each application, with lending."""
    weight_array = np.asarray(weights, dtype=np.float64)
    if weight_array.shape != (len(models),) or not (weight_array > 0).all():
        raise InputError("weights", f"{list(weights)}", "give a positive one for each model")
    if weight_array.sum() > capacity + _ROUNDING:
        problem = f"{weight_array.sum():g} in all, the capacity is {capacity:g}"
        raise InputError("weights", problem, "scale them down")
    return LendingPort(models, capacity, volumes).slowdowns(weight_array)


def choose_weights(
    models: Sequence[Hinges],
    capacity: float = 1.0,
    volumes: Sequence[float] = (),
    *,
    units: int = _UNITS,
) -> FloatArray:
    """Weights that minimise the total slowdown with lending, by a local search.

    The total is not convex in the weights, so the search has three starts: weights as equal as the
    floors allow, those of Eq. 4.2 (whole `units` of the link), and the best of those that favour or
    starve one application. The answer lies between the best end and the equal weights, as near to
    equal as costs at most 0.5 %, since a weight is a promise where a model is wrong. It is no worse
    than the equal weights and those of Eq. 4.2, up to the precision of slowdowns (10⁻⁶).
    """
    lending = LendingPort(models, capacity, volumes)
    promised = allocate(models, [range(len(models))], units=units, capacity=capacity).shares
    equal = _equal_weights(lending.demands.floor, capacity)
    extremes = np.array([*_extreme_weights(lending.demands.floor, capacity)])
    corners = np.array([equal, promised, *extremes])
    starts = (equal, promised, extremes[lending.totals(extremes).argmin()])
    ends = np.array([_improve(lending, start, corners) for start in starts])
    totals = lending.totals(ends)
    known_total = lending.totals(corners[:2]).min() + _SETTLED
    enough = min(known_total, totals.min() * (1 + _TOLERANCE))
    return _move_towards_equal(lending, equal, ends[totals.argmin()], enough)


def _equal_weights(floors: FloatArray, capacity: float) -> FloatArray:
    """Equal weights, except where a floor is higher."""
    held = np.zeros(len(floors), dtype=bool)
    while True:
        level = (capacity - floors[held].sum()) / (~held).sum()
        short = ~held & (floors > level + _ROUNDING)
        if not short.any():
            return np.asarray(np.where(held, floors, level))
        held |= short


def _extreme_weights(floors: FloatArray, capacity: float) -> Iterator[FloatArray]:
    """One application with all that the floors leave, or with its floor alone."""
    spare, rest = capacity - floors.sum(), max(1, len(floors) - 1)
    for unit in np.eye(len(floors)):
        yield floors + unit * spare
        yield floors + (1 - unit) * spare / rest


def _move_towards_equal(
    lending: LendingPort, equal: FloatArray, best: FloatArray, enough: float
) -> FloatArray:
    """The first weights on the way from equal to the best with a total of `enough` or less."""
    weights = equal + np.linspace(0, 1, 101)[:, None] * (best - equal)
    suitable = np.flatnonzero(lending.totals(weights) <= enough)
    return weights[suitable[0]] if len(suitable) else best


def _improve(lending: LendingPort, weights: FloatArray, corners: FloatArray) -> FloatArray:
    """Takes the best step until none helps, with ever smaller steps."""
    best, part = float(lending.totals(weights)), 0.25
    while part > _MIN_STEP:
        steps = np.array(
            [
                *_list_exchanges(lending, weights, part * lending.capacity),
                *(weights + part * (corners - weights)),
            ]
        )
        totals = lending.totals(steps)
        if totals.min() > best - _MIN_GAIN:
            part /= 2
        else:
            weights, best = steps[totals.argmin()], float(totals.min())
    return weights


def _list_exchanges(lending: LendingPort, weights: FloatArray, part: float) -> Iterator[FloatArray]:
    """Weights after moving `part` from one application to another, floors kept."""
    for giver, taker in permutations(range(len(weights)), 2):
        if weights[giver] - part >= lending.demands.floor[giver]:
            changed = weights.copy()
            changed[giver] -= part
            changed[taker] += part
            yield changed


_SIZE = 4  # coefficients of a cubic


@dataclass(frozen=True, slots=True)
class Demands:
    """The models of some applications as columns."""

    floor: FloatArray
    hinges: IntArray  # rows
    t: FloatArray  # [hinges, term], 0 where there is none
    c: FloatArray
    polynomials: IntArray  # rows
    coefficients: FloatArray  # [polynomials, power]

    @classmethod
    def of(cls, models: Sequence[Sensitivity]) -> Demands:
        hinges = [(i, m) for i, m in enumerate(models) if isinstance(m, Hinges)]
        polynomials = [(i, m) for i, m in enumerate(models) if isinstance(m, Polynomial)]
        terms = np.zeros((len(hinges), max((len(m.terms) for _, m in hinges), default=0), 2))
        for row, (_, hinged) in enumerate(hinges):
            terms[row, : len(hinged.terms)] = np.reshape(hinged.terms, (len(hinged.terms), 2))
        coefficients = np.zeros((len(polynomials), _SIZE))
        for row, (_, polynomial) in enumerate(polynomials):
            coefficients[row, : len(polynomial.coefficients)] = polynomial.coefficients
        return cls(
            floor=np.array([model.floor for model in models]),
            hinges=np.array([i for i, _ in hinges], dtype=np.int64),
            t=terms[..., 0],
            c=terms[..., 1],
            polynomials=np.array([i for i, _ in polynomials], dtype=np.int64),
            coefficients=coefficients,
        )

    def slowdown(self, shares: FloatArray) -> FloatArray:
        """D of each application at its own share."""
        slowdowns = np.empty_like(shares)
        b = shares[self.hinges, None]
        slowdowns[self.hinges] = 1 + (self.c * np.maximum(0.0, self.t / b - 1)).sum(axis=1)
        slowdowns[self.polynomials] = _evaluate(self.coefficients, shares[self.polynomials])
        return slowdowns

    def find_shares(self, price: FloatArray) -> FloatArray:
        """The share of each application at its own price; the least one where several do."""
        shares = np.empty_like(price)
        shares[self.hinges] = self._find_hinge_shares(price[self.hinges])
        shares[self.polynomials] = self._find_polynomial_shares(price[self.polynomials])
        return shares

    def _find_hinge_shares(self, price: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            root = np.sqrt(np.cumsum(self.c * self.t, axis=1) / price[:, None])
        least = np.minimum(self.t, np.nan_to_num(root, nan=0.0, posinf=np.inf))
        return np.asarray(np.maximum(least.max(axis=1, initial=0.0), self.floor[self.hinges]))

    def _find_polynomial_shares(self, price: FloatArray) -> FloatArray:
        floor = self.floor[self.polynomials]
        c = self.coefficients.copy()
        c[:, 1] += price
        stationary = [np.clip(root, floor, 1.0) for root in _find_stationary(c)]
        several = np.stack([floor, *stationary, np.ones_like(floor)])
        best = np.stack([_evaluate(c, b) for b in several]).argmin(axis=0)
        return np.asarray(np.take_along_axis(several, best[None], axis=0)[0])


def _evaluate(coefficients: FloatArray, b: FloatArray) -> FloatArray:
    c0, c1, c2, c3 = coefficients.T
    return np.asarray(c0 + b * (c1 + b * (c2 + b * c3)))


def _find_stationary(coefficients: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Where the slope c1 + 2 c2 b + 3 c3 b² is zero; 0 where it never is."""
    _, c1, c2, c3 = coefficients.T
    # q keeps its digits where c3 is small: the roots are q/(3 c3) and c1/q.
    inner = np.sqrt(np.maximum(0.0, c2**2 - 3 * c3 * c1))
    q = -(c2 + np.copysign(inner, c2))
    with np.errstate(divide="ignore", invalid="ignore"):
        both = q / (3 * c3), c1 / q
    far, near = (np.nan_to_num(root, nan=0.0, posinf=0.0, neginf=0.0) for root in both)
    return far, near
