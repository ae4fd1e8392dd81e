"""Saba's profiling samples: those that the text states, and what the others may have been.

The thesis profiles at seven shares (4.5.1) and states the slowdown at some of them (Fig. 4.3), and
R² of polynomials through all seven (Fig. 4.4). `completed` asks which slowdowns at the unstated
shares give R² closest to the stated ones: between their stated neighbours, and at 5 % at most twice
that at 10 %, as half the bandwidth at most doubles the time. It shows that the stated numbers agree
with one another, no more: they are what it was made from. Entry points: `stated_samples`,
`completed`. Shares are fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from weft.sensitivity.application import PAPER_SHARES
from weft.sensitivity.fit import Sample, fit_polynomial, r_squared
from weft.sensitivity.model import FloatArray
from weft.studies.published import published

WORKLOADS = ("SQL", "LR")
DEGREES = (1, 2, 3)
_PULL = 1e-3  # towards a straight line between stated samples, where R² leave a choice


@cache
def stated_samples(workload: str) -> tuple[Sample, ...]:
    """The samples that the text states, ascending in share."""
    table = published("saba-fig4-3")
    rows = zip(table.column("share_percent"), table.column(f"{workload}_slowdown"), strict=True)
    return tuple(Sample(share=float(p) / 100, slowdown=float(d)) for p, d in rows if np.isfinite(d))


def stated_slowdowns(share: float) -> dict[str, float]:
    """Slowdown of each workload that the text states one of, at 0.25 or 0.75 (Fig. 3.1)."""
    table = published("saba-fig3-1")
    column = table.column(f"slowdown_{100 * share:g}_percent")
    rows = zip(table.cells("workload"), column, strict=True)
    return {str(name): float(slowdown) for name, slowdown in rows if np.isfinite(slowdown)}


def stated_r_squared(workload: str) -> dict[int, float]:
    """R² by degree, as far as the text states it."""
    table = published("saba-fig4-4")
    rows = zip(table.column("degree"), table.column(f"{workload}_r2"), strict=True)
    return {int(k): float(value) for k, value in rows if np.isfinite(value)}


@cache
def completed(workload: str) -> tuple[Sample, ...]:
    """All seven samples: the stated ones, and others that R² allow."""
    from scipy.optimize import least_squares  # see weft.model.fit

    known = {sample.share: sample.slowdown for sample in stated_samples(workload)}
    unknown = [share for share in PAPER_SHARES if share not in known]
    bounds = np.array([_bounds(share, known) for share in unknown])
    start = np.array([_straight(share, known) for share in unknown])
    wanted = stated_r_squared(workload)

    def off(values: FloatArray) -> FloatArray:
        samples = _together(known, unknown, values)
        found = [r_squared(fit_polynomial(samples, k), samples) for k in wanted]
        return np.array([*np.subtract(found, list(wanted.values())), *(_PULL * (values - start))])

    inside = np.clip(start, bounds[:, 0] + 1e-6, bounds[:, 1] - 1e-6)
    answer = least_squares(off, inside, bounds=(bounds[:, 0], bounds[:, 1]))
    return tuple(_together(known, unknown, answer.x))


def _together(
    known: dict[float, float], unknown: Sequence[float], values: FloatArray
) -> list[Sample]:
    every = known | dict(zip(unknown, map(float, values), strict=True))
    return [Sample(share=share, slowdown=every[share]) for share in sorted(every)]


def _bounds(share: float, known: dict[float, float]) -> tuple[float, float]:
    above = min(b for b in known if b > share)
    below = [b for b in known if b < share]
    return known[above], known[max(below)] if below else known[above] * above / share


def _straight(share: float, known: dict[float, float]) -> float:
    """Between stated samples a straight line; at 5 % halfway to the most that there can be."""
    if share < min(known):
        return sum(_bounds(share, known)) / 2
    shares = sorted(known)
    return float(np.interp(share, shares, [known[b] for b in shares]))
