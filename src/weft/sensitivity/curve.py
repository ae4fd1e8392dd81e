"""An application's slowdown as numbers: observed, both kinds of model, confidence band.

Entry points: `curve_rows`, `usual_shares`. Shares and slowdowns are plain ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from weft.sensitivity.application import Application
from weft.sensitivity.fit import band

# What `weft profile` and the paper (4.5.1) use.
PAPER_SHARES = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow:
    """Slowdown at one share; None where nothing was observed, or no spread is known."""

    share: float
    observed: float | None
    convex: float
    low: float | None
    high: float | None
    paper: tuple[float, ...]  # by degree, in the application's order
    traced: float | None


def usual_shares(application: Application) -> tuple[float, ...]:
    """The profiled shares and those of the paper above the floor, ascending."""
    profiled = {run.share for run in application.profile.runs}
    return tuple(sorted(profiled | {b for b in PAPER_SHARES if b >= application.floor}))


def curve_rows(application: Application, shares: Sequence[float]) -> list[CurveRow]:
    """The application's curve at the shares."""
    places = np.array(shares, dtype=np.float64)
    samples = application.profile.samples
    convex = application.convex.model.slowdown(places)
    paper = [fitted.model.slowdown(places) for fitted in application.paper]
    traced = None if application.traced is None else application.traced.model.slowdown(places)
    limits = band(samples, places)
    return [
        CurveRow(
            share=share,
            observed=mean(seen) if seen else None,
            convex=float(convex[n]),
            low=None if limits is None else float(limits.low[n]),
            high=None if limits is None else float(limits.high[n]),
            paper=tuple(float(values[n]) for values in paper),
            traced=None if traced is None else float(traced[n]),
        )
        for n, share in enumerate(shares)
        for seen in [[sample.slowdown for sample in samples if sample.share == share]]
    ]
