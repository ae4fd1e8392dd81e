"""Slowdown of an application as a function of its share of the link.

D(b) is completion time at the share b over completion time at the whole link. Two forms:

- `Polynomial`, as Saba has it (Eq. 4.1): D(b) = c0 + c1 b + ... + ck b^k.
- `Hinges`: D(b) = 1 + Σ c_j max(0, t_j/b − 1), c_j ≥ 0, 0 < t_j ≤ 1. A term is communication that
  takes the share t_j of the computation beside it, at the full rate: hidden as long as b ≥ t_j, and
  growing as 1/b below. So D(1) = 1, D never rises with b and is convex, whatever the terms.

Both are defined for floor ≤ b ≤ 1; below the floor nothing is predicted. Coefficients are at most
10⁹ in size: no slowdown that large was ever measured, and what is computed from them (distances,
sums of many curves) keeps its digits. Shares are fractions of the link, not percent.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from weft.errors import InputError

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
