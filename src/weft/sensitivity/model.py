"""Slowdown of an application as a function of its share of the link, and fits of it to samples.

D(b) is completion time at the share b over completion time at the whole link. Two forms:

- `Polynomial`, as Saba has it (Eq. 4.1): D(b) = c0 + c1 b + ... + ck b^k.
- `Hinges`: D(b) = 1 + Σ c_j max(0, t_j/b − 1), c_j ≥ 0, 0 < t_j ≤ 1. A term is communication that
  takes the share t_j of the computation beside it, at the full rate: hidden as long as b ≥ t_j, and
  growing as 1/b below. So D(1) = 1, D never rises with b and is convex, whatever the terms.

Both are defined for floor ≤ b ≤ 1; below the floor nothing is predicted. Coefficients are at most
10⁹ in size: no slowdown that large was ever measured, and what is computed from them (distances,
sums of many curves) keeps its digits. Shares are fractions of the link, not percent.

**Fits of polynomials** of degree 1 to 3: least squares over all samples, of equal weight (Saba,
4.2.1).

**The convex fit**, the default: the least Σ ((d − D(b)) / σ)² over c ≥ 0 with knots at the profiled
shares, by non-negative least squares. σ is relative: the spread of the repetitions at that share,
drawn towards that of all shares as there are few. Knots at the profiled shares are enough: a hinge
between two neighbouring shares has, at every profiled share, the values of a mix of the hinges at
those two. Read backwards, two terms at neighbouring shares are one hinge between them, with the
same values at every sample: that one is kept, so that few terms stay.

Goodness: `r_squared` as in the paper, of all samples; `leave_one_out`, the error at each inner
share when the fit has not seen it; `confidence_band`, where the convex fit might lie if the profile
were repeated.
Entry points: `Polynomial`, `Hinges`, `fit_polynomial`, `fit_convex`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite, nan

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.model import ErrorSummary

FloatArray = npt.NDArray[np.float64]
LARGEST = 1e9  # coefficient
MAX_COEFFICIENTS = 4
_ROUNDING = 1e-9  # a share that was computed may miss an end of the range by so much


@dataclass(frozen=True, slots=True, kw_only=True)
class Polynomial:
    """c0 + c1 b + ...; nothing keeps it from rising, or from falling below 1."""

    coefficients: tuple[float, ...]
    floor: float

    def __post_init__(self) -> None:
        _check_floor(self.floor)
        where = "coefficients of a polynomial"
        if not 1 <= len(self.coefficients) <= MAX_COEFFICIENTS:
            problem = f"{len(self.coefficients)} of them, 1 to {MAX_COEFFICIENTS} are allowed"
            raise InputError(where, problem, "use degree 1 to 3")
        # Not a number is not at most anything.
        if not all(abs(c) <= LARGEST for c in self.coefficients):
            problem = f"{list(self.coefficients)} are not all numbers up to {LARGEST:g}"
            raise InputError(where, problem, "fit the model again")

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1

    def slowdown(self, share: npt.ArrayLike) -> FloatArray:
        b = _shares(share, self.floor)
        return np.asarray(np.polynomial.polynomial.polyval(b, self.coefficients))

    def slope(self, share: npt.ArrayLike) -> FloatArray:
        """dD/db."""
        b = _shares(share, self.floor)
        rates = [power * c for power, c in enumerate(self.coefficients)][1:] or [0.0]
        return np.asarray(np.polynomial.polynomial.polyval(b, rates))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hinges:
    """1 + Σ c max(0, t/b − 1) over the terms (t, c), t descending."""

    terms: tuple[tuple[float, float], ...]
    floor: float

    def __post_init__(self) -> None:
        _check_floor(self.floor)
        for t, c in self.terms:
            if not (0 < t <= 1 and 0 <= c <= LARGEST):
                problem = f"t = {t:g}, c = {c:g} is outside 0 < t <= 1, 0 <= c <= {LARGEST:g}"
                raise InputError("term of a convex model", problem, "fit the model again")
        if any(after >= before for (before, _), (after, _) in pairwise(self.terms)):
            raise InputError("terms of a convex model", "t does not descend", "fit it again")

    def slowdown(self, share: npt.ArrayLike) -> FloatArray:
        b = _shares(share, self.floor)
        t, c = self._columns(b.ndim)
        return np.asarray(1 + (c * np.maximum(0.0, t / b - 1)).sum(axis=0))

    def slope(self, share: npt.ArrayLike) -> FloatArray:
        """dD/db; at a knot that of the side below it, the steeper one."""
        b = _shares(share, self.floor)
        t, c = self._columns(b.ndim)
        return np.asarray(-(np.where(b <= t, c * t, 0.0) / b**2).sum(axis=0))

    def _columns(self, dimensions: int) -> tuple[FloatArray, FloatArray]:
        """t and c, with a first axis of their own before those of the shares."""
        both = np.array(self.terms, dtype=np.float64).reshape(len(self.terms), 2)
        shape = (-1,) + (1,) * dimensions
        return both[:, 0].reshape(shape), both[:, 1].reshape(shape)


Sensitivity = Polynomial | Hinges


def _check_floor(floor: float) -> None:
    if not 0 < floor <= 1:
        raise InputError("floor", f"{floor:g} is not a share of the link", "use 0 < floor <= 1")


def _shares(share: npt.ArrayLike, floor: float) -> FloatArray:
    b = np.asarray(share, dtype=np.float64)
    inside = (b >= floor * (1 - _ROUNDING)) & (b <= 1 + _ROUNDING)
    if not inside.all():
        worst = float(b[~inside].flat[0])
        if worst < floor:
            problem = f"{worst:.6g} is below the floor {floor:.6g}, the least share profiled"
            raise InputError("share", problem, "profile the application at that share")
        raise InputError("share", f"{worst:.6g} is not in {floor:.6g} to 1", "use a share up to 1")
    return np.clip(b, floor, 1.0)


# ---- Fits -------------------------------------------------------------------------------------

DEGREES = (1, 2, 3)
CONFIDENCE = 0.95
DRAWS = 400
SEED = 1
_PRIOR_RUNS = 4  # repetitions' worth of trust in the spread of all shares, against that of one
_LEAST_SPREAD = 1e-3  # relative; repetitions that agree better do so by chance
_NEGLIGIBLE = 1e-9  # of slowdown, at the floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run: completion time at a share of the link over that at the whole link."""

    share: float
    slowdown: float
    repetition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Pointwise confidence limits of the convex fit."""

    low: FloatArray
    high: FloatArray
    confidence: float


@dataclass(frozen=True, slots=True)
class _ShareStatistics:
    """The distinct shares, ascending; mean slowdown, and standard error over mean, at each."""

    share: FloatArray
    mean: FloatArray
    error: FloatArray
    freedom: int  # repetitions that the spread is known from; 0: it is not


def fit_polynomial(samples: Sequence[Sample], degree: int) -> Polynomial:
    """The paper's model: least squares over all samples, unweighted."""
    shares = {sample.share for sample in _check_samples(samples)}
    if not 1 <= degree < len(shares):
        problem = f"degree {degree} with {len(shares)} shares"
        raise InputError("polynomial", problem, f"use degree 1 to {len(shares) - 1}")
    b, d = _columns(samples)
    coefficients = np.polynomial.polynomial.polyfit(b, d, degree)
    return Polynomial(coefficients=tuple(map(float, coefficients)), floor=min(shares))


def fit_convex(samples: Sequence[Sample]) -> Hinges:
    """The default model: decreasing, convex, D(1) = 1; its floor is the least share profiled."""
    return _fit_statistics(_summarize(_check_samples(samples)))


def r_squared(model: Sensitivity, samples: Sequence[Sample]) -> float:
    """1 − Σ (d − D)² / Σ (d − mean d)²; nan where all samples are equal."""
    b, d = _columns(samples)
    total = float(((d - d.mean()) ** 2).sum())
    return 1 - float(((d - model.slowdown(b)) ** 2).sum()) / total if total > 0 else nan


def leave_one_out(
    fit: Callable[[Sequence[Sample]], Sensitivity], samples: Sequence[Sample], least: int = 2
) -> ErrorSummary | None:
    """|predicted / observed − 1| at each share between floor and 1, by a fit without it.

    None where fewer than `least` shares would be left, or there is no share between.
    """
    levels = _summarize(_check_samples(samples))
    if levels.share.size <= max(least, 2):
        return None
    errors = []
    for share, mean in zip(levels.share[1:-1], levels.mean[1:-1], strict=True):
        model = fit([sample for sample in samples if sample.share != share])
        errors.append(abs(float(model.slowdown(share)) / float(mean) - 1))
    return ErrorSummary.of(errors)


def prediction_errors(model: Sensitivity, samples: Sequence[Sample]) -> ErrorSummary:
    """|predicted / observed − 1| at each share below 1, by a model not made from these samples."""
    levels = _summarize(_check_samples(samples))
    return ErrorSummary.of(model.slowdown(levels.share[:-1]) / levels.mean[:-1] - 1)


def confidence_band(
    samples: Sequence[Sample], shares: FloatArray, *, draws: int = DRAWS
) -> Band | None:
    """Limits of the convex fit at the shares; None where no share has repetitions.

    Each draw moves the mean at every share, the baseline too, by its standard error and fits again.
    What the form itself cannot follow is not in it: `leave_one_out` shows that.
    """
    levels = _summarize(_check_samples(samples))
    if not levels.freedom:
        return None
    noise = np.random.default_rng(SEED).standard_t(levels.freedom, (draws, levels.share.size))
    factor = np.maximum(1 + levels.error * noise, 0.1)
    means = levels.mean * factor / factor[:, -1:]
    curves = np.array(
        [_fit_statistics(replace(levels, mean=mean)).slowdown(shares) for mean in means]
    )
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(curves, [tail, 1 - tail], axis=0)
    return Band(low=low, high=high, confidence=CONFIDENCE)


# ---- Samples ----------------------------------------------------------------------------------


def _check_samples(samples: Sequence[Sample]) -> Sequence[Sample]:
    for sample in samples:
        if not 0 < sample.share <= 1:
            problem = f"share {sample.share:g} is not in 0 to 1"
            raise InputError("sample", problem, "give fractions of the link, 0.25 for 25 %")
        if not (isfinite(sample.slowdown) and sample.slowdown > 0):
            problem = f"slowdown {sample.slowdown:g} at share {sample.share:g}"
            raise InputError("sample", problem, "leave out runs that did not finish")
    shares = {sample.share for sample in samples}
    if 1 not in shares or len(shares) < 2:
        problem = f"profiled at {_percent(shares) or 'no share'}"
        raise InputError("samples", problem, "profile at 100 % and at least one share below")
    return samples


def _percent(shares: Iterable[float]) -> str:
    return ", ".join(f"{100 * share:g} %" for share in sorted(shares))


def _columns(samples: Sequence[Sample]) -> tuple[FloatArray, FloatArray]:
    rows = np.array([(s.share, s.slowdown) for s in samples], dtype=np.float64)
    return rows[:, 0], rows[:, 1]


def _summarize(samples: Sequence[Sample]) -> _ShareStatistics:
    b, d = _columns(samples)
    share, which, count = np.unique(b, return_inverse=True, return_counts=True)
    mean = np.bincount(which, d) / count
    squares = np.bincount(which, (d / mean[which] - 1) ** 2)
    freedom = count - 1
    if not freedom.any():
        return _ShareStatistics(share, mean, np.ones_like(mean), 0)
    pooled = max(squares.sum() / freedom.sum(), _LEAST_SPREAD**2)
    spread = np.sqrt((squares + _PRIOR_RUNS * pooled) / (freedom + _PRIOR_RUNS))
    return _ShareStatistics(share, mean, spread / np.sqrt(count), int(freedom.sum()))


# ---- The convex fit ---------------------------------------------------------------------------


def _fit_statistics(levels: _ShareStatistics) -> Hinges:
    from scipy.optimize import nnls  # see weft.model.fit

    floor, knots = float(levels.share[0]), levels.share[:0:-1]  # 1 first; none at the floor
    below = levels.share[:-1]
    weight = 1 / (levels.mean * levels.error)[:-1]
    hinges = np.maximum(0.0, knots / below[:, None] - 1)
    coefficients, _ = nnls(hinges * weight[:, None], (levels.mean[:-1] - 1) * weight)
    gain = coefficients * (knots / floor - 1)
    terms = [
        (float(t), float(c))
        for t, c, g in zip(knots, coefficients, gain, strict=True)
        if g > _NEGLIGIBLE
    ]
    return Hinges(terms=tuple(_merge_terms(terms, levels.share)), floor=floor)


def _merge_terms(
    terms: Sequence[tuple[float, float]], shares: FloatArray
) -> list[tuple[float, float]]:
    """Neighbouring terms with no share strictly between them as one; equal at every share.

    From the lowest up: of an odd number the one that stays alone is the highest, which may be
    communication that nothing hides (t = 1).
    """
    merged: list[tuple[float, float]] = []
    remaining = list(terms)
    while remaining:
        low, c_low = remaining.pop()
        if remaining and not ((shares > low) & (shares < remaining[-1][0])).any():
            high, c_high = remaining.pop()
            c = c_high + c_low
            merged.append(((c_high * high + c_low * low) / c, c))
        else:
            merged.append((low, c_low))
    return merged[::-1]
