"""Demand for bandwidth at a price: the share b of least D(b) + price · b, floor ≤ b ≤ 1.

For all applications at once, in closed form. Hinges with t descending and
q_j = Σ_{i≤j} c_i t_i: b = max_j min(t_j, √(q_j / price)), as D' = −q_j/b² between knots.
Polynomials: of the ends and the roots of D' = −price the one where D(b) + price · b is least, so
that the answer is the global one where D is not convex. Entry point: `Demands`. Prices are
slowdown per whole link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.control.policy.kmeans import IntArray
from weft.sensitivity.model import FloatArray, Hinges, Polynomial, Sensitivity

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
            terms[row, : len(hinged.terms)] = np.reshape(hinged.terms, (-1, 2))
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
    """Where the slope c1 + 2 c2 b + 3 c3 b² is nought; 0 where it never is."""
    _, c1, c2, c3 = coefficients.T
    # q keeps its digits where c3 is small: the roots are q/(3 c3) and c1/q.
    inner = np.sqrt(np.maximum(0.0, c2**2 - 3 * c3 * c1))
    q = -(c2 + np.copysign(inner, c2))
    with np.errstate(divide="ignore", invalid="ignore"):
        both = q / (3 * c3), c1 / q
    far, near = (np.nan_to_num(root, nan=0.0, posinf=0.0, neginf=0.0) for root in both)
    return far, near
