"""Which slowdowns a job can have that is alone on a capped port.

A job is computations and messages that wait for each other. Let the port send its messages in a
fixed order and never idle while one waits. Completion is then the longest path: of its messages
S_p, of its computations C_p. At the share b, with x = 1/b and S the time of all messages at the
full rate:

    T(x) = max over paths p of C_p + S_p x,    0 <= S_p <= S,    T(x) >= S x

So D(x) = T(x) / T(1) is convex in x, never falls, and with the volume V = S / T(1)

    slope of D <= V <= D(x) / x = b D(b)    for every b    (volume bound)

The other way round, every such D through given points comes from stages one after another: with
slopes m_1 <= ... <= m_k between the points, one stage that sends m_1 after computing, and for each
rise of the slope one that sends beside a computation and hides it up to that point:

    D(x) = 1 + Σ c_j max(0, t_j x − 1),    c_j >= 0,    0 < t_j <= 1,    Σ c_j <= 1

(Σ c_j <= 1 is the volume bound: computation hides no more than there is of it.) Hence a linear
programme answers which values can come from one job. Published values are rounded: each stands for
an interval.
Entry points: `bound_slowdown`, `is_reachable`, `select_reachable`, `highest_r_squared`. Shares are
fractions of the link.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from weft.sensitivity.model import FloatArray

Interval = tuple[float, float]
_STARTS = 8  # of the search for the highest R²; all end at the same value


def bound_slowdown(stated: Mapping[float, Interval], share: float) -> Interval | None:
    """Least and greatest slowdown at a share, given intervals at others; None: no job has those."""
    ends = [_solve(stated, share, sign) for sign in (1, -1)]
    if ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1]


def is_reachable(stated: Mapping[float, Interval]) -> bool:
    """Whether one job can have a slowdown in each interval."""
    return _solve(stated, 1.0, 1) is not None


def select_reachable(stated: Mapping[float, Interval]) -> tuple[float, ...]:
    """The most shares whose intervals one job can meet; of equally many, the higher shares."""
    shares = sorted(stated, reverse=True)
    for count in range(len(shares), 0, -1):
        for selection in combinations(shares, count):
            if is_reachable({share: stated[share] for share in selection}):
                return selection
    return ()


def _solve(stated: Mapping[float, Interval], share: float, sign: int) -> float | None:
    """The least (sign 1) or greatest (-1) D at the share; unknowns are D at all shares, and V."""
    from scipy.optimize import linprog  # see weft.model.fit

    shares = sorted({1.0, share, *stated}, reverse=True)
    x = 1 / np.array(shares)
    count = len(shares)
    # Whoever computes next to nothing and only sends has D = x: more there is not.
    limits = [(1.0, 1.0) if b == 1 else stated.get(b, (1.0, 1 / b)) for b in shares]
    slopes = np.zeros((count - 1, count + 1))
    for n in range(count - 1):
        slopes[n, n : n + 2] = np.array([-1, 1]) / (x[n + 1] - x[n])
    volume = np.zeros(count + 1)
    volume[count] = 1
    rows = [slopes[n] - slopes[n + 1] for n in range(count - 2)]
    if count > 1:
        rows += [-slopes[0], slopes[-1] - volume]
    for n in range(count):
        rows.append(volume * x[n])
        rows[-1][n] = -1
    objective = np.zeros(count + 1)
    objective[shares.index(share)] = sign
    answer = linprog(objective, np.array(rows), np.zeros(len(rows)), bounds=[*limits, (0, 1)])
    return float(answer.x[shares.index(share)]) if answer.success else None


# ---- R² of polynomials ------------------------------------------------------------------------


def highest_r_squared(shares: Sequence[float], degree: int) -> float:
    """The best R² that a polynomial in b can have on any job profiled at these shares.

    R² does not change with the scale of D − 1: the search is over mixes of hinges at the shares.
    """
    from scipy.optimize import minimize

    b = np.array(sorted(shares))
    hinges = np.maximum(0, b[None, 1:] / b[:, None] - 1)  # none at the least: it is 0 everywhere
    powers = np.vander(b, degree + 1)
    residual = hinges - powers @ np.linalg.lstsq(powers, hinges, rcond=None)[0]
    spread = hinges - hinges.mean(axis=0)

    def compute_residual(mix: FloatArray) -> float:
        return float(((residual @ mix) ** 2).sum() / ((spread @ mix) ** 2).sum())

    starts = [*np.eye(len(b) - 1), *np.random.default_rng(1).random((_STARTS, len(b) - 1))]
    scaled = (start / np.abs(hinges @ start).max() for start in starts)
    minima: Iterable[float] = (
        minimize(compute_residual, start + 1e-6, bounds=[(0, None)] * len(start)).fun
        for start in scaled
    )
    return 1 - min(minima)
