"""A tuning as one record of kind "model": scalars, and tables with every point.

Entry points: `build_tuning_record` (a run), `build_stored_record` (from records). Units: in the
record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from weft import __version__
from weft.records import Plain, Provenance, Quantity, Record, Row, Scalar
from weft.tune.rules.advice import advice_rows
from weft.tune.search.forms import predict_log
from weft.tune.search.from_records import StoredTuning, find_nearest_records, predict_gain
from weft.tune.search.surface import Interval
from weft.tune.search.tuning import Tuning

NAME = "tune"
NOT_CONFIRMED = "not confirmed by measurement: run the command above, or weft tune PEER"
BY_RECORDS = (
    "chosen by its records: all its runs are better than the model's best is expected to be"
)


def build_tuning_record(tuning: Tuning) -> Record:
    """What was recommended and why, with every point that was measured."""
    return Record(
        kind="model",
        name=NAME,
        settings={"over": tuning.space.over, "goal": tuning.goal.name, **tuning.space.fixed},
        quantities=dict(_quantities(tuning)),
        tables={
            "recommendation": list(_choices(tuning)),
            "confirmation": list(_confirmation(tuning)),
            "parameters": list(_parameters(tuning)),
            "not considered": [
                {"choice": r.name, "reason": r.reason} for r in tuning.space.refusals
            ],
            "advice": advice_rows(tuning.advice),
            "curves": list(_curves(tuning)),
            "points": list(_points(tuning)),
        },
        notes=tuple(_notes(tuning)),
        provenance=Provenance(weft_version=__version__),
    )


def _quantities(tuning: Tuning) -> Iterator[tuple[str, Quantity]]:
    unit = tuning.goal.unit
    yield "predicted", Scalar(tuning.recommendation.predicted.value, unit)
    if tuning.measured is not None:
        yield "measured", Scalar(tuning.measured.value, unit)
    if tuning.gain is not None:
        yield "gain", Scalar(tuning.gain.value, "")
    yield "points", Scalar(len(tuning.rows), "")
    yield "elapsed", Scalar(tuning.elapsed_s, "s")


def _choices(tuning: Tuning) -> Iterator[Row]:
    default = tuning.space.default
    for factor in tuning.space.factors:
        yield {
            "choice": factor.name,
            "use": tuning.recommendation.setting[factor.name],
            "default": default[factor.name],
            "considered": ", ".join(str(level) for level in factor.levels),
        }


def _confirmation(tuning: Tuning) -> Iterator[Row]:
    for row in tuning.confirmation:
        yield {
            "what": row.role,
            **row.setting,
            **_interval("predicted", row.predicted),
            **_interval("measured", row.measured),
            **_interval("recommended is better by", row.better),
            "n": len(row.values),
            "unit": tuning.goal.unit,
        }


def _interval(name: str, interval: Interval) -> dict[str, Plain]:
    return {name: interval.value, f"{name}, low": interval.low, f"{name}, high": interval.high}


def _parameters(tuning: Tuning) -> Iterator[Row]:
    fitted = tuning.recommendation.surface.fit
    for p in fitted.parameters if fitted else ():
        error = p.standard_error if math.isfinite(p.standard_error) else None
        yield {
            "parameter": p.name,
            "value": p.value,
            "standard error": error,
            "unit": p.unit,
            "meaning": p.meaning,
        }


def _curves(tuning: Tuning) -> Iterator[Row]:
    """Predictions over each number, all else as recommended, for figures."""
    surface, chosen = tuning.recommendation.surface, tuning.recommendation.setting
    for factor in surface.space.factors:
        if not factor.is_number:
            continue
        settings = [surface.space.repair({**chosen, factor.name: level}) for level in factor.levels]
        expected = surface.predict(settings)
        model = predict_log(surface.fit, surface.space, settings)
        for place, level in enumerate(factor.levels):
            interval = expected.interval(place)
            yield {
                "choice": factor.name,
                "level": level,
                "expected": interval.value,
                "low": interval.low,
                "high": interval.high,
                "model": math.exp(float(model[place])) if surface.fit else None,
            }


def _points(tuning: Tuning) -> Iterator[Row]:
    """Every point with the model's and the surface's prediction."""
    surface = tuning.recommendation.surface
    settings = [row.setting for row in tuning.rows]
    expected = surface.predict(settings)
    model = predict_log(surface.fit, surface.space, settings)
    for place, row in enumerate(tuning.rows):
        yield {
            "stage": row.stage,
            **row.setting,
            "measured": row.value,
            "expected": expected.interval(place).value,
            "model": math.exp(float(model[place])) if surface.fit else None,
            "lost %": row.lost_percent,
        }


def _notes(tuning: Tuning) -> Iterator[str]:
    surface = tuning.recommendation.surface
    if surface.fit:
        yield f"model: {surface.fit.form.formula}; error {surface.fit.error}"
    else:
        yield f"no model was fitted: {surface.why}"
    if tuning.ended:
        yield f"ended early: {tuning.ended}"
    for failed in tuning.failed:
        yield f"not measured: {failed.reason}"


def build_stored_record(stored: StoredTuning) -> Record:
    """The record of a tuning, with the stored ones nearest to it."""
    record = build_tuning_record(stored.tuning)
    near = [
        {
            **record_near.setting,
            "stored": record_near.stored,
            "predicted": record_near.predicted,
            "runs": record_near.runs,
        }
        for record_near in find_nearest_records(stored.tuning)
    ]
    left_out = [f"left out: {sentence}" for sentence in stored.left_out]
    return replace(
        record,
        quantities={**record.quantities, **dict(_list_stored_quantities(stored))},
        tables={**record.tables, "nearest records": near},
        notes=(*([] if stored.by_model else [BY_RECORDS]), NOT_CONFIRMED, *record.notes, *left_out),
    )


def _list_stored_quantities(stored: StoredTuning) -> Iterator[tuple[str, Quantity]]:
    """What stored values and the model tell beside the prediction."""
    if stored.runs is not None:
        yield "stored", Scalar(stored.runs.median, stored.tuning.goal.unit)
    gain = predict_gain(stored.tuning)
    if gain is not None:
        yield "predicted.gain", Scalar(gain.value, "")
        yield "predicted.gain.low", Scalar(gain.low, "")
        yield "predicted.gain.high", Scalar(gain.high, "")
