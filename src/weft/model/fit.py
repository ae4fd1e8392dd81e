"""Fits of closed forms to observed values, and predictions that know their range.

A `Form` is a formula with unknowns p, found in their bounds as the least Σ (ln f(p, x) − ln y)².
The logarithm makes every row count by its relative error: curves over six decades fit at both
ends. Standard errors are those of the linearised problem, s² (JᵀJ)⁻¹ with s² = Σ r² / (n − k); each
leave-one-out error comes from a fit without that row. Entry point: `fit`, then `Fit.predict`.
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
from weft.model.fit_checks import check_inputs, check_range, check_rows, input_columns

FloatArray = npt.NDArray[np.float64]

_FINE, _COARSE = 1e-10, 1e-7  # a search that creeps along a bound goes on, held to less
_STEPS_PER_UNKNOWN = 20
_SMALLEST_RATIO = (
    1e-12  # of model to observed: keeps the logarithm finite where a trial step goes wrong
)

_SMALLEST_SCALE = 1e-6  # of the scale before it: less is zero, at its bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A parameter to be found, with a start of the right magnitude and the bounds physics sets."""

    name: str
    unit: str
    meaning: str
    start: float
    low: float = 0.0
    high: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def with_known(self, **known: float) -> Form:
        """The same formula with some unknowns told instead of found."""
        names = [unknown.name for unknown in self.unknowns]
        for name in known:
            if name not in names:
                raise InputError(self.name, f"no unknown {name!r}", f"it has {', '.join(names)}")

        def evaluate(found: Mapping[str, float], inputs: Mapping[str, FloatArray]) -> FloatArray:
            return self.evaluate({**known, **found}, inputs)

        told = ", ".join(f"{name} = {value:g}" for name, value in known.items())
        return replace(
            self,
            formula=f"{self.formula}, with {told}",
            unknowns=tuple(unknown for unknown in self.unknowns if unknown.name not in known),
            evaluate=evaluate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A found unknown; the standard error is infinite where the rows do not determine it."""

    name: str
    unit: str
    meaning: str
    value: float
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Where the rows of a fit lie along one input."""

    name: str
    unit: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Of |model/observed − 1| over n rows."""

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
    """Of rows that a fit to all others predicts; where such a fit does not settle, only counted."""

    unsettled: int = 0

    def __str__(self) -> str:
        told = ErrorSummary.__str__(self)  # slots make another class than super() knows
        more = f"; without each of {self.unsettled} more the fit did not settle"
        return told + more * (self.unsettled > 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A form with its parameters found; residuals are model/observed − 1, row by row."""

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
        """Each row predicted by a fit to all others; nan throughout if `fit` was told not to."""
        settled = ~np.isnan(self.leave_one_out)
        if not settled.any():
            return HeldOut.of(self.leave_one_out)
        found = HeldOut.of(self.leave_one_out[settled])
        return replace(found, unsettled=int(np.count_nonzero(~settled)))

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
        """The form's value at `inputs`, which broadcast; past the fitted range only if told to."""
        rows = input_columns(self.form, inputs, self.form.name)
        check_inputs(self.form, rows, self.form.name)
        if not extrapolate:
            for within in self.ranges:
                check_range(within, rows[within.name], f"{self.form.name} of {self.data}")
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
    """The form's unknowns from rows of inputs and observed values; `data` names the rows.

    Without `held_out` no row is left out in turn, which takes most of the time; they are nan.
    """
    rows = input_columns(form, {**inputs}, where)
    values = np.asarray(observed, dtype=np.float64)
    check_rows(form, rows, values, where)
    problem = _Problem(form, rows, values, where)
    everything = np.ones(values.size, dtype=bool)
    rough, _ = problem.solve(problem.start(), everything)
    problem.rescale(rough)
    found, jacobian = problem.solve(rough, everything)
    residuals = problem.ratios(found) - 1.0
    return Fit(
        form=form,
        parameters=_parameters(form, found, problem.standard_errors(found, jacobian)),
        ranges=tuple(_range_of(rows[named.name], named) for named in form.inputs),
        data=data,
        residuals=residuals,
        leave_one_out=problem.leave_one_out(found, jacobian)
        if held_out
        else np.full(values.size, np.nan),
    )


class _Problem:
    """Rows and a form, in unknowns divided by a scale so that all are of magnitude one."""

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

    def rescale(self, found: FloatArray) -> None:
        """Differences are taken in steps of the scale: it must be near what is found."""
        size = np.abs(found)
        self.scale = np.where(size > _SMALLEST_SCALE * self.scale, size, self.scale)

    def ratios(self, found: FloatArray) -> FloatArray:
        model = self.form.evaluate(dict(zip(self.names, found.tolist(), strict=True)), self.rows)
        return np.asarray(model, dtype=np.float64) / self.observed

    def solve(
        self,
        start: FloatArray,
        kept: npt.NDArray[np.bool_],
        tolerances: Sequence[float] = (_FINE, _COARSE),
    ) -> tuple[FloatArray, FloatArray]:
        # A quarter of a second to import, which commands that fit nothing do not wait for.
        from scipy.optimize import least_squares

        def residuals(scaled: FloatArray) -> FloatArray:
            ratios = self.ratios(scaled * self.scale)[kept]
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

    def standard_errors(self, found: FloatArray, jacobian: FloatArray) -> FloatArray:
        rows, unknowns = jacobian.shape
        logs = np.log(np.maximum(self.ratios(found), _SMALLEST_RATIO))
        variance = float(np.sum(logs**2)) / (rows - unknowns)
        scaled = jacobian * self.scale
        _, singular, directions = np.linalg.svd(scaled, full_matrices=False)
        determined = singular > singular.max(initial=0.0) * max(scaled.shape) * 1e-12
        spread = np.sum((directions[determined] / singular[determined, None]) ** 2, axis=0)
        loose = np.any(np.abs(directions[~determined]) > 1e-6, axis=0)
        errors = np.sqrt(variance * spread) * self.scale
        return np.where(loose, inf, errors)

    def leave_one_out(self, found: FloatArray, jacobian: FloatArray) -> FloatArray:
        """From the full fit on, except for what only the row left out could tell.

        nan where the fit without a row does not settle; refused where that is so of every row.
        """
        errors = np.full(self.observed.size, np.nan)
        kept = np.ones(self.observed.size, dtype=bool)
        for row in range(self.observed.size):
            kept[row] = False
            blind = np.all(jacobian[kept] == 0.0, axis=0)
            start = np.where(blind, self.start(), found)
            with suppress(InputError):
                without, _ = self.solve(start, kept, (_COARSE, _COARSE))
                errors[row] = self.ratios(without)[row] - 1.0
            kept[row] = True
        if np.all(np.isnan(errors)):
            raise InputError(
                self.where,
                f"{self.form.name} does not settle without any one of its {errors.size} rows",
                "give more rows: nothing tells how far this fit is off between them",
            )
        return errors


def _range_of(column: FloatArray, named: Input) -> Range:
    return Range(
        name=named.name, unit=named.unit, low=float(column.min()), high=float(column.max())
    )


def _parameters(form: Form, found: FloatArray, errors: FloatArray) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            name=unknown.name,
            unit=unknown.unit,
            meaning=unknown.meaning,
            value=float(value),
            standard_error=float(error),
        )
        for unknown, value, error in zip(form.unknowns, found, errors, strict=True)
    )
