"""A model fitted to some rows of a published table, judged by the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from weft.model import ErrorSummary
from weft.studies.calibrated import Sample


def judge_held_out(sample: Sample, fitted: npt.NDArray[np.bool_]) -> ErrorSummary:
    model, held_out = _select(sample, fitted).fit(), _select(sample, ~fitted)
    predicted = model.predict(extrapolate=True, **held_out.inputs)
    return ErrorSummary.of(predicted / held_out.observed - 1.0)


def _select(sample: Sample, rows: npt.NDArray[np.bool_]) -> Sample:
    inputs = {name: column[rows] for name, column in sample.inputs.items()}
    return replace(sample, inputs=inputs, observed=sample.observed[rows])
