"""What the Saba thesis states of its workloads: samples, slowdowns, R², completion times.

The thesis profiles at seven shares (4.5.1) and states the slowdown at some of them (Fig. 4.3), and
R² of polynomials through all seven (Fig. 4.4). `complete_samples` asks which slowdowns at the
unstated shares give R² closest to the stated ones: between their stated neighbours, and at 5 % at
most twice that at 10 %, as half the bandwidth at most doubles the time. It shows that the stated
numbers agree with one another, no more: they are what it was made from.

Two completion times (Fig. 3.3) give the time of computing, C, and of sending at the full rate, S,
nothing of it hidden; slowdowns, which the thesis states elsewhere, are predictions:

    T(b) = C + S / b,   D(b) = T(b) / T(1)

Entry points: `find_samples`, `complete_samples`, `find_times`, `split_times`. Shares are fractions,
times seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from weft.sensitivity.application import PAPER_SHARES
from weft.sensitivity.model import FloatArray, Hinges, Sample, fit_polynomial, r_squared
from weft.studies.published import find_table

WORKLOADS = ("SQL", "LR")
DEGREES = (1, 2, 3)
_PULL = 1e-3  # towards a straight line between stated samples, where R² leave a choice


def format_share(share: float) -> str:
    """0.25 as 25 %."""
    return f"{100 * share:g} %"


@cache
def find_samples(workload: str) -> tuple[Sample, ...]:
    """The samples that the text states, ascending in share."""
    table = find_table("saba-fig4-3")
    rows = zip(table.column("share_percent"), table.column(f"{workload}_slowdown"), strict=True)
    return tuple(Sample(share=float(p) / 100, slowdown=float(d)) for p, d in rows if np.isfinite(d))


def find_slowdowns(share: float) -> dict[str, float]:
    """Slowdown of each workload that the text states one of, at 0.25 or 0.75 (Fig. 3.1)."""
    table = find_table("saba-fig3-1")
    column = table.column(f"slowdown_{100 * share:g}_percent")
    rows = zip(table.cells("workload"), column, strict=True)
    return {str(name): float(slowdown) for name, slowdown in rows if np.isfinite(slowdown)}


def find_r_squared(workload: str) -> dict[int, float]:
    """R² by degree, as far as the text states it."""
    table = find_table("saba-fig4-4")
    rows = zip(table.column("degree"), table.column(f"{workload}_r2"), strict=True)
    return {int(k): float(value) for k, value in rows if np.isfinite(value)}


@cache
def complete_samples(workload: str) -> tuple[Sample, ...]:
    """All seven samples: the stated ones, and others that R² allow."""
    from scipy.optimize import least_squares  # see weft.model.fit

    stated = {sample.share: sample.slowdown for sample in find_samples(workload)}
    missing = [share for share in PAPER_SHARES if share not in stated]
    bounds = np.array([_bounds(share, stated) for share in missing])
    start = np.array([_interpolate(share, stated) for share in missing])
    wanted = find_r_squared(workload)

    def off(values: FloatArray) -> FloatArray:
        samples = _merge_samples(stated, missing, values)
        values_found = [r_squared(fit_polynomial(samples, k), samples) for k in wanted]
        return np.array(
            [*np.subtract(values_found, list(wanted.values())), *(_PULL * (values - start))]
        )

    inside = np.clip(start, bounds[:, 0] + 1e-6, bounds[:, 1] - 1e-6)
    answer = least_squares(off, inside, bounds=(bounds[:, 0], bounds[:, 1]))
    return tuple(_merge_samples(stated, missing, answer.x))


def _merge_samples(
    stated: dict[float, float], missing: Sequence[float], values: FloatArray
) -> list[Sample]:
    every = stated | dict(zip(missing, map(float, values), strict=True))
    return [Sample(share=share, slowdown=every[share]) for share in sorted(every)]


def _bounds(share: float, stated: dict[float, float]) -> tuple[float, float]:
    above = min(b for b in stated if b > share)
    below = [b for b in stated if b < share]
    return stated[above], stated[max(below)] if below else stated[above] * above / share


def _interpolate(share: float, stated: dict[float, float]) -> float:
    """Between stated samples a straight line; at 5 % halfway to the most that there can be."""
    if share < min(stated):
        return sum(_bounds(share, stated)) / 2
    shares = sorted(stated)
    return float(np.interp(share, shares, [stated[b] for b in shares]))


TIMED = ("LR", "TS")
TIMES = "computing and sending, from two completion times"
# Stated at 25 % and 75 %: below 25 % the form is extrapolated, as far as samples are stated.
FLOOR = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """C and S."""

    computing_s: float
    sending_s: float

    def completion_s(self, share: float) -> float:
        return self.computing_s + self.sending_s / share

    @property
    def model(self) -> Hinges:
        return Hinges(terms=((1.0, self.sending_s / self.completion_s(1.0)),), floor=FLOOR)


def find_times(workload: str) -> dict[float, float]:
    """Completion times by share, as the text states them."""
    table = find_table("saba-fig3-3")
    rows = zip(table.column("share_percent"), table.column(f"{workload}_s"), strict=True)
    return {float(percent) / 100: float(seconds) for percent, seconds in rows}


def split_times(workload: str) -> Parts:
    """The parts that give the two stated times."""
    (low, slow), (high, fast) = find_times(workload).items()
    sending = (slow - fast) / (1 / low - 1 / high)
    return Parts(computing_s=slow - sending / low, sending_s=sending)
