"""Fits of closed forms to observed values, and predictions within the fitted range.

A `Form` is a formula with unknowns p. `fit` finds them within their bounds by minimising
Σ (ln f(p, x) − ln y)². The logarithm weights every row by its relative error, so a curve over six
decades fits at both ends. Standard errors are those of the linearised problem, s² (JᵀJ)⁻¹ with
s² = Σ r² / (n − k); each leave-one-out error comes from a fit without that row. Rows must be
complete, finite, positive and consistent; others are refused with an `InputError` that names the
row or the input. Entry points: `fit`, `Fit.predict`.
Units: those that the form gives to its inputs, unknowns and value; errors are |model/observed − 1|.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Self

import numpy as np
import numpy.typing as npt

from weft.errors import InputError

FloatArray = npt.NDArray[np.float64]

_FINE, _COARSE = 1e-10, 1e-7  # tolerances; the coarse one is for searches that creep along a bound
_STEPS_PER_UNKNOWN = 20
# Of model to observed: keeps the logarithm finite where a trial step goes wrong.
_SMALLEST_RATIO = 1e-12
_SMALLEST_SCALE = 1e-6  # of the previous scale; a smaller unknown is zero, at its bound
# Rows with the same inputs whose values differ by more than this come from different systems.
CONTRADICTION_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Unknown:
    """A parameter to be found, with a start of the right magnitude and the bounds physics sets."""

    name: str
    unit: str
    meaning: str
    start: float
    low: float = 0.0
    high: float = inf


@dataclass(frozen=True, slots=True)
class Input:
    """What a prediction is made from; below `least` it has no meaning, extrapolated or not."""

    name: str
    unit: str
    meaning: str
    least: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A formula with unknowns; `evaluate` is pure and takes one-dimensional arrays."""

    name: str
    formula: str
    source: str
    unit: str
    unknowns: tuple[Unknown, ...]
    inputs: tuple[Input, ...]
    evaluate: Callable[[Mapping[str, float], Mapping[str, FloatArray]], FloatArray] = field(
        repr=False, compare=False
    )

    def fix(self, **fixed: float) -> Form:
        """The same formula with some unknowns fixed."""
        names = [unknown.name for unknown in self.unknowns]
        for name in fixed:
            if name not in names:
                raise InputError(self.name, f"no unknown {name!r}", f"it has {', '.join(names)}")

        def evaluate(values: Mapping[str, float], inputs: Mapping[str, FloatArray]) -> FloatArray:
            return self.evaluate({**fixed, **values}, inputs)

        values = ", ".join(f"{name} = {value:g}" for name, value in fixed.items())
        return replace(
            self,
            formula=f"{self.formula}, with {values}",
            unknowns=tuple(unknown for unknown in self.unknowns if unknown.name not in fixed),
            evaluate=evaluate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A fitted unknown; its standard error is infinite where the rows do not determine it."""

    name: str
    unit: str
    meaning: str
    value: float
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The range of one input over the rows of a fit."""

    name: str
    unit: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Quantiles of |model/observed − 1| over n rows."""

    median: float
    p90: float
    worst: float
    n: int

    @classmethod
    def of(cls, relative: npt.ArrayLike) -> Self:
        sizes = np.abs(np.asarray(relative, dtype=np.float64))
        return cls(
            median=float(np.median(sizes)),
            p90=float(np.quantile(sizes, 0.9)),
            worst=float(np.max(sizes)),
            n=int(sizes.size),
        )

    def __str__(self) -> str:
        return (
            f"median {100 * self.median:.1f} %, p90 {100 * self.p90:.1f} %, "
            f"worst {100 * self.worst:.1f} % of {self.n} rows"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(ErrorSummary):
    """Leave-one-out errors; rows without which the fit did not settle are only counted."""

    unsettled: int = 0

    def __str__(self) -> str:
        text = ErrorSummary.__str__(self)  # slots make another class than super() knows
        unsettled = f"; without each of {self.unsettled} more the fit did not settle"
        return text + unsettled * (self.unsettled > 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A form with fitted parameters; residuals are model/observed − 1, row by row."""

    form: Form
    parameters: tuple[Parameter, ...]
    ranges: tuple[Range, ...]
    data: str
    residuals: FloatArray
    leave_one_out: FloatArray

    @property
    def error(self) -> ErrorSummary:
        return ErrorSummary.of(self.residuals)

    @property
    def held_out(self) -> HeldOut:
        """Each row predicted by a fit to all others; nan throughout after `fit(held_out=False)`."""
        settled = ~np.isnan(self.leave_one_out)
        if not settled.any():
            return HeldOut.of(self.leave_one_out)
        summary = HeldOut.of(self.leave_one_out[settled])
        return replace(summary, unsettled=int(np.count_nonzero(~settled)))

    @property
    def values(self) -> dict[str, float]:
        return {parameter.name: parameter.value for parameter in self.parameters}

    def value(self, name: str) -> float:
        values = self.values
        if name not in values:
            remedy = f"it has {', '.join(values)}"
            raise InputError(self.form.name, f"no parameter {name!r}", remedy)
        return values[name]

    def predict(
        self, *, extrapolate: bool = False, **inputs: float | npt.NDArray[np.generic]
    ) -> FloatArray:
        """The form's value at `inputs`, which broadcast; `extrapolate` allows any range."""
        rows = _build_columns(self.form, inputs, self.form.name)
        _check_inputs(self.form, rows, self.form.name)
        if not extrapolate:
            for fitted in self.ranges:
                _check_range(fitted, rows[fitted.name], f"{self.form.name} of {self.data}")
        shape = next(iter(rows.values())).shape
        flat = {name: column.ravel() for name, column in rows.items()}
        return self.form.evaluate(self.values, flat).reshape(shape)


def fit(
    form: Form,
    inputs: Mapping[str, npt.ArrayLike],
    observed: npt.ArrayLike,
    *,
    data: str,
    where: str = "fit",
    held_out: bool = True,
) -> Fit:
    """Fit the form's unknowns to rows of inputs and observed values; `data` names the rows.

    `held_out=False` skips the leave-one-out fits, which take most of the time; their errors are
    then nan.
    """
    rows = _build_columns(form, {**inputs}, where)
    values = np.asarray(observed, dtype=np.float64)
    _check_rows(form, rows, values, where)
    problem = _Problem(form, rows, values, where)
    all_rows = np.ones(values.size, dtype=bool)
    rough, _ = problem.solve(problem.start(), all_rows)
    problem.rescale(rough)
    solution, jacobian = problem.solve(rough, all_rows)
    residuals = problem.ratios(solution) - 1.0
    return Fit(
        form=form,
        parameters=_build_parameters(form, solution, problem.standard_errors(solution, jacobian)),
        ranges=tuple(_range_of(rows[column.name], column) for column in form.inputs),
        data=data,
        residuals=residuals,
        leave_one_out=problem.leave_one_out(solution, jacobian)
        if held_out
        else np.full(values.size, np.nan),
    )


class _Problem:
    """Least squares of a form over rows; unknowns are scaled to magnitude one."""

    def __init__(self, form: Form, rows: Mapping[str, FloatArray], values: FloatArray, where: str):
        self.form, self.rows, self.observed, self.where = form, rows, values, where
        self.scale = np.array([abs(unknown.start) or 1.0 for unknown in form.unknowns])
        self.bounds = np.array([(unknown.low, unknown.high) for unknown in form.unknowns]).T
        self.names = [unknown.name for unknown in form.unknowns]

    def start(self) -> FloatArray:
        for unknown in self.form.unknowns:
            if not unknown.low <= unknown.start <= unknown.high:
                raise InputError(
                    f"{self.where}: {unknown.name}",
                    f"starts at {unknown.start:g}, outside {unknown.low:g} to {unknown.high:g}",
                    "start it within its bounds",
                )
        return np.array([unknown.start for unknown in self.form.unknowns])

    def rescale(self, solution: FloatArray) -> None:
        """Finite differences step by the scale, so it must be near the solution."""
        size = np.abs(solution)
        self.scale = np.where(size > _SMALLEST_SCALE * self.scale, size, self.scale)

    def ratios(self, values: FloatArray) -> FloatArray:
        """Model over observed, row by row."""
        model = self.form.evaluate(dict(zip(self.names, values.tolist(), strict=True)), self.rows)
        return np.asarray(model, dtype=np.float64) / self.observed

    def solve(
        self,
        start: FloatArray,
        used: npt.NDArray[np.bool_],
        tolerances: Sequence[float] = (_FINE, _COARSE),
    ) -> tuple[FloatArray, FloatArray]:
        """The unknowns that fit the `used` rows best, and the Jacobian there."""
        # The import takes a quarter of a second, which commands without a fit do not need.
        from scipy.optimize import least_squares

        def residuals(scaled: FloatArray) -> FloatArray:
            ratios = self.ratios(scaled * self.scale)[used]
            return np.log(np.maximum(ratios, _SMALLEST_RATIO))

        scaled = np.clip(start, *self.bounds) / self.scale
        for tolerance in tolerances:
            solution = least_squares(
                residuals,
                scaled,
                bounds=self.bounds / self.scale,
                x_scale="jac",
                ftol=tolerance,
                xtol=tolerance,
                gtol=tolerance,
                max_nfev=_STEPS_PER_UNKNOWN * len(self.names),
            )
            scaled = solution.x
            if solution.success:
                break
        if not solution.success or not np.all(np.isfinite(solution.fun)):
            raise InputError(
                self.where,
                f"{self.form.name} did not settle in {solution.nfev} steps",
                "start its unknowns nearer, or give rows that the form can describe",
            )
        return np.asarray(solution.x * self.scale), np.asarray(solution.jac / self.scale)

    def standard_errors(self, solution: FloatArray, jacobian: FloatArray) -> FloatArray:
        rows, unknowns = jacobian.shape
        logs = np.log(np.maximum(self.ratios(solution), _SMALLEST_RATIO))
        variance = float(np.sum(logs**2)) / (rows - unknowns)
        scaled = jacobian * self.scale
        _, singular, directions = np.linalg.svd(scaled, full_matrices=False)
        determined = singular > singular.max(initial=0.0) * max(scaled.shape) * 1e-12
        spread = np.sum((directions[determined] / singular[determined, None]) ** 2, axis=0)
        loose = np.any(np.abs(directions[~determined]) > 1e-6, axis=0)
        errors = np.sqrt(variance * spread) * self.scale
        return np.where(loose, inf, errors)

    def leave_one_out(self, solution: FloatArray, jacobian: FloatArray) -> FloatArray:
        """The error at each row of a fit to the others; nan where that fit does not settle.

        Each fit starts from the full one, except for unknowns that only the omitted row determines.
        """
        errors = np.full(self.observed.size, np.nan)
        used = np.ones(self.observed.size, dtype=bool)
        for row in range(self.observed.size):
            used[row] = False
            undetermined = np.all(jacobian[used] == 0.0, axis=0)
            start = np.where(undetermined, self.start(), solution)
            with suppress(InputError):
                without_row, _ = self.solve(start, used, (_COARSE, _COARSE))
                errors[row] = self.ratios(without_row)[row] - 1.0
            used[row] = True
        if np.all(np.isnan(errors)):
            raise InputError(
                self.where,
                f"{self.form.name} does not settle without any one of its {errors.size} rows",
                "give more rows: the error of this fit between them is unknown",
            )
        return errors


def _range_of(values: FloatArray, column: Input) -> Range:
    return Range(
        name=column.name, unit=column.unit, low=float(values.min()), high=float(values.max())
    )


def _build_parameters(form: Form, values: FloatArray, errors: FloatArray) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            name=unknown.name,
            unit=unknown.unit,
            meaning=unknown.meaning,
            value=float(value),
            standard_error=float(error),
        )
        for unknown, value, error in zip(form.unknowns, values, errors, strict=True)
    )


def _build_columns(
    form: Form, inputs: Mapping[str, npt.ArrayLike], where: str
) -> dict[str, FloatArray]:
    """The inputs by name, broadcast to one shape."""
    names = [column.name for column in form.inputs]
    unknown = sorted(set(inputs) - set(names))
    missing = [name for name in names if name not in inputs]
    remedy = f"give {', '.join(names)}"
    if unknown:
        raise InputError(where, f"unknown input {unknown[0]!r}", remedy)
    if missing:
        raise InputError(where, f"input {missing[0]!r} is missing", remedy)
    columns = [np.asarray(inputs[name], dtype=np.float64) for name in names]
    try:
        return dict(zip(names, np.broadcast_arrays(*columns), strict=True))
    except ValueError:
        shapes = ", ".join(f"{name} {c.shape}" for name, c in zip(names, columns, strict=True))
        raise InputError(where, f"inputs of unlike shape: {shapes}", "give one length") from None


def _check_rows(
    form: Form, rows: Mapping[str, FloatArray], observed: FloatArray, where: str
) -> None:
    """Refuse rows that cannot be fitted."""
    if not form.unknowns:
        raise InputError(where, f"{form.name} has no unknowns", "leave one unknown open")
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
    _check_inputs(form, rows, where)
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
    keys = zip(*(rows[column.name].tolist() for column in form.inputs), strict=True)
    for key, value in zip(keys, observed.tolist(), strict=True):
        low, high = extremes.get(key, (value, value))
        extremes[key] = low, high = min(low, value), max(high, value)
        if high > CONTRADICTION_FACTOR * low:
            at = ", ".join(
                f"{column.name} {value:g}" for column, value in zip(form.inputs, key, strict=True)
            )
            raise InputError(
                where,
                f"rows contradict each other at {at}: {low:g} and {high:g} {form.unit}, "
                f"more than {CONTRADICTION_FACTOR:g} times apart",
                "fit one system at a time",
            )


def _check_inputs(form: Form, rows: Mapping[str, FloatArray], where: str) -> None:
    """Refuse inputs that are not finite or below their least value."""
    for column in form.inputs:
        values = rows[column.name].ravel()
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= column.least)))
        if bad.size:
            raise InputError(
                where,
                f"{column.name} of row {bad[0]} is {values[bad[0]]:g}",
                f"give finite inputs of at least {column.least:g} {column.unit}",
            )


def _check_range(fitted: Range, column: FloatArray, where: str) -> None:
    """Refuse values outside the fitted range."""
    outside = column[(column < fitted.low) | (column > fitted.high)]
    if outside.size:
        raise InputError(
            where,
            f"{fitted.name} {outside[0]:.10g} {fitted.unit} is outside the fitted range "
            f"{fitted.low:.10g} to {fitted.high:.10g} {fitted.unit}",
            "stay within it, or say extrapolate=True (--extrapolate)",
        )
