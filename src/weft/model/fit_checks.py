"""What a fit and its predictions accept: complete, finite, positive rows that agree, in the range.

Everything else is refused with an `InputError` that names the row or the input. Entry points:
`input_columns`, `check_rows`, `check_inputs`, `check_range`. Units: those of the form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from weft.errors import InputError

if TYPE_CHECKING:
    from weft.model.fit import FloatArray, Form, Range

CONTRADICTION_FACTOR = 2.0
"""Rows with the same inputs whose values are further apart than this cannot be one system's."""


def input_columns(
    form: Form, given: Mapping[str, npt.ArrayLike], where: str
) -> dict[str, FloatArray]:
    """The inputs by name, broadcast to one shape."""
    names = [named.name for named in form.inputs]
    unknown = sorted(set(given) - set(names))
    missing = [name for name in names if name not in given]
    remedy = f"give {', '.join(names)}"
    if unknown:
        raise InputError(where, f"unknown input {unknown[0]!r}", remedy)
    if missing:
        raise InputError(where, f"input {missing[0]!r} is missing", remedy)
    columns = [np.asarray(given[name], dtype=np.float64) for name in names]
    try:
        return dict(zip(names, np.broadcast_arrays(*columns), strict=True))
    except ValueError:
        shapes = ", ".join(f"{name} {c.shape}" for name, c in zip(names, columns, strict=True))
        raise InputError(where, f"inputs of unlike shape: {shapes}", "give one length") from None


def check_rows(
    form: Form, rows: Mapping[str, FloatArray], observed: FloatArray, where: str
) -> None:
    """Rows that a fit can be made to."""
    if not form.unknowns:
        raise InputError(where, f"{form.name} has nothing to find", "leave an unknown open")
    needed = len(form.unknowns) + 1
    for name, column in rows.items():
        if column.shape != observed.shape or observed.ndim != 1:
            raise InputError(
                where,
                f"{name} has shape {column.shape}, the observed values {observed.shape}",
                "give one-dimensional rows of one length",
            )
    if observed.size < needed:
        raise InputError(
            where,
            f"{observed.size} rows for the {len(form.unknowns)} unknowns of {form.name}",
            f"give at least {needed}",
        )
    check_inputs(form, rows, where)
    bad = np.flatnonzero(~(np.isfinite(observed) & (observed > 0)))
    if bad.size:
        raise InputError(
            where,
            f"row {bad[0]} has the value {observed[bad[0]]:g}, relative errors need one above 0",
            "leave the row out",
        )
    _check_contradictions(form, rows, observed, where)


def _check_contradictions(
    form: Form, rows: Mapping[str, FloatArray], observed: FloatArray, where: str
) -> None:
    extremes: dict[tuple[float, ...], tuple[float, float]] = {}
    keys = zip(*(rows[named.name].tolist() for named in form.inputs), strict=True)
    for key, value in zip(keys, observed.tolist(), strict=True):
        low, high = extremes.get(key, (value, value))
        extremes[key] = low, high = min(low, value), max(high, value)
        if high > CONTRADICTION_FACTOR * low:
            at = ", ".join(
                f"{named.name} {part:g}" for named, part in zip(form.inputs, key, strict=True)
            )
            raise InputError(
                where,
                f"rows contradict each other at {at}: {low:g} and {high:g} {form.unit}, "
                f"more than {CONTRADICTION_FACTOR:g} times apart",
                "fit one system at a time",
            )


def check_inputs(form: Form, rows: Mapping[str, FloatArray], where: str) -> None:
    """Finite, and not below what has a meaning."""
    for named in form.inputs:
        column = rows[named.name].ravel()
        bad = np.flatnonzero(~(np.isfinite(column) & (column >= named.least)))
        if bad.size:
            raise InputError(
                where,
                f"{named.name} of row {bad[0]} is {column[bad[0]]:g}",
                f"give finite inputs of at least {named.least:g} {named.unit}",
            )


def check_range(within: Range, column: FloatArray, where: str) -> None:
    """Not past the rows of the fit."""
    outside = column[(column < within.low) | (column > within.high)]
    if outside.size:
        raise InputError(
            where,
            f"{within.name} {outside[0]:.10g} {within.unit} is outside the fitted range "
            f"{within.low:.10g} to {within.high:.10g} {within.unit}",
            "stay within it, or say extrapolate=True (--extrapolate)",
        )
