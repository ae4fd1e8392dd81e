"""Published tables of the EFA thesis beside the models that were fitted to them.

Entry points: `latency_curve`, `fit_remarks`, `efa_study`. Units: those of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from weft.model import Fit, FloatArray
from weft.studies.calibrated import LATENCY
from weft.studies.claim import Claim
from weft.studies.paper import EFA
from weft.studies.published import published
from weft.studies.rounds import RULE, Line, cases_of, in_rounds, medians_of
from weft.studies.rounds_draw import Panel
from weft.studies.study import Result, Study
from weft.studies.tabulated import (
    Curve,
    curve,
    error_remark,
    observations_of,
    points_of,
    row_errors,
)

LATENCY_TOLERANCE = 0.12
SYSTEM = "EFA thesis (model), this machine (measured)"
HERE = (
    "What is measured on this machine is another system: it judges the thesis's claims and is "
    "compared with no published value. In a virtual machine ofi:shm has two speeds, as the "
    "hypervisor places the processors: a verdict on it may change from run to run."
)


def size_text(size_bytes: float) -> str:
    return f"{size_bytes:g} B"


def predicted(fitted: Fit, **varied: FloatArray) -> FloatArray:
    """The model's values; inputs that all its rows share are filled in."""
    (count,) = {len(values) for values in varied.values()}
    shared = {one.name: np.full(count, one.low) for one in fitted.ranges if one.name not in varied}
    return fitted.predict(extrapolate=False, **shared, **varied)


def latency_curve(
    table: str, column: str, calibration: str, label: str, quantity: str = "latency, average"
) -> Curve:
    """A column of latencies by size."""
    of = LATENCY[calibration]
    return curve(
        published(table),
        column,
        x="size_bytes",
        label=label,
        quantity=quantity,
        unit="us",
        predict=lambda size: predicted(of.fit(), size_bytes=size),
        system=of.system,
        tolerance=LATENCY_TOLERANCE,
        x_text=size_text,
    )


def fit_remarks(fits: Mapping[str, Callable[[], Fit]]) -> Callable[[Result], tuple[str, ...]]:
    """How far each fitted model is from the rows it was fitted to, and from rows left out."""

    def remarks(result: Result) -> tuple[str, ...]:
        made = {label: fit() for label, fit in fits.items()}
        told = (
            error_remark(f"Model {label}, fitted to {fitted.data}", fitted.error, fitted.held_out)
            for label, fitted in made.items()
        )
        return (error_remark("The models on this study's rows", row_errors(result)), *told)

    return remarks


def latency_remarks(names: Sequence[str]) -> Callable[[Result], tuple[str, ...]]:
    return fit_remarks({name: LATENCY[name].fit for name in names})


def efa_study(
    number: str,
    title: str,
    curves: Sequence[Curve],
    panels: Sequence[Panel],
    lines: Sequence[Line] = (),
    claims: Sequence[Claim] = (),
    notes: Sequence[str] = (),
    remarks: Callable[[Result], tuple[str, ...]] = lambda _: (),
) -> Study:
    """A table of appendix C: models beside published values, and what this machine measures."""
    return Study(
        name=f"efa-c{number}",
        title=title,
        paper=EFA,
        place=f"C.{number}",
        system=SYSTEM,
        points=(*points_of(curves), *in_rounds(cases_of(lines))),
        observations=(*observations_of(curves), *medians_of(lines)),
        panels=tuple(panels),
        claims=tuple(claims),
        remarks=remarks,
        notes=(*notes, *((HERE, RULE) if lines else ())),
    )
