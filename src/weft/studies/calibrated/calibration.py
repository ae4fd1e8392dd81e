"""What a calibration is: a closed form, and the published rows that fix its unknowns.

Entry points: `Calibration`, whose `fit` gives the fitted model, and `Sample`, which can also be
divided into the rows that are fitted and the rows that are predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from weft.model import ErrorSummary, Fit, FloatArray, Form, fit

Quantity = Literal["latency", "throughput", "saturation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fitted model by name, and the system whose values it was fitted to."""

    name: str
    quantity: Quantity
    system: str
    fit: Callable[[], Fit]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """Rows of published tables and the form that describes them."""

    form: Form
    inputs: Mapping[str, FloatArray]
    observed: FloatArray
    data: str

    def fit(self) -> Fit:
        return fit(self.form, self.inputs, self.observed, data=self.data, where=self.data)

    def part(self, kept: npt.NDArray[np.bool_]) -> Sample:
        """Some of the rows."""
        return replace(
            self,
            inputs={name: column[kept] for name, column in self.inputs.items()},
            observed=self.observed[kept],
        )

    def error_of(self, fitted: Fit) -> ErrorSummary:
        """How far a model is from these rows, whether or not it was fitted to them."""
        predicted = fitted.predict(extrapolate=True, **self.inputs)
        return ErrorSummary.of(predicted / self.observed - 1.0)
