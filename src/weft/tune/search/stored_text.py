"""A tuning from stored records, for the terminal and as a record.

Entry points: `stored_text`, `stored_record`. Units: as in `weft.tune.search.report_text`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.records import Quantity, Record, Scalar
from weft.records.record_text import format_table
from weft.tune.rules.advice import advice_table
from weft.tune.search.confirm import Interval
from weft.tune.search.from_records import Stored, nearest, out_of_reach, predicted_gain
from weft.tune.search.report_text import (
    gain_text,
    level_text,
    predicted_text,
    tuning_text,
    value_text,
)
from weft.tune.search.tuning_record import tuning_record

NOT_CONFIRMED = "not confirmed by measurement: run the command above, or weft tune PEER"
BY_RECORDS = (
    "chosen by its records: all its runs are better than the model's best is expected to be"
)


def stored_text(stored: Stored) -> str:
    """The tuning, what speaks for it, what was left out, and every rule, known or not."""
    left_out = "\n".join(f"left out: {sentence}" for sentence in stored.left_out)
    bare = replace(stored.tuning, advice=())
    rules = f"advice\n\n{advice_table(stored.tuning.advice)}"
    told = tuning_text(bare, peer=stored.peer, outcome=_outcome(stored))
    parts = [told, _support(stored), left_out, rules]
    return "\n\n".join(part for part in parts if part)


def stored_record(stored: Stored) -> Record:
    """The record of a tuning, with the stored ones nearest to it."""
    record = tuning_record(stored.tuning)
    near = [
        {**one.setting, "stored": one.stored, "predicted": one.predicted, "runs": one.runs}
        for one in nearest(stored.tuning)
    ]
    left_out = [f"left out: {sentence}" for sentence in stored.left_out]
    return replace(
        record,
        quantities={**record.quantities, **dict(_quantities(stored))},
        tables={**record.tables, "nearest records": near},
        notes=(*([] if stored.by_model else [BY_RECORDS]), NOT_CONFIRMED, *record.notes, *left_out),
    )


def _quantities(stored: Stored) -> Iterator[tuple[str, Quantity]]:
    """What stored values and the model tell beside the prediction."""
    if stored.runs is not None:
        yield "stored", Scalar(stored.runs.median, stored.tuning.goal.unit)
    gain = predicted_gain(stored.tuning)
    if gain is not None:
        yield "predicted.gain", Scalar(gain.value, "")
        yield "predicted.gain.low", Scalar(gain.low, "")
        yield "predicted.gain.high", Scalar(gain.high, "")


def _outcome(stored: Stored) -> str:
    """What to expect: of the model, or of the runs that were chosen; and the gain."""
    tuning, runs = stored.tuning, stored.runs
    if runs is None:
        expected = predicted_text(tuning)
    else:
        seen = Interval(value=runs.median, low=runs.low, high=runs.high)
        expected = f"stored: {value_text(tuning.goal, seen)}, median (range) of {runs.n} runs"
    return f"{expected}\n{_gain(stored)}"


def _gain(stored: Stored) -> str:
    space = stored.tuning.space
    beyond = out_of_reach(space)
    if beyond:
        named = ", ".join(f"{f.name} {level_text(f.name, f.default)}" for f in beyond)
        return f"no gain over the default is predicted: the records do not reach its {named}"
    gain = predicted_gain(stored.tuning)
    return gain_text(gain) if gain is None else f"predicted: {gain_text(gain)}"


def _support(stored: Stored) -> str:
    """The records nearest to the recommendation beside what the model says there."""
    tuning = stored.tuning
    names = [factor.name for factor in tuning.space.factors]
    rows = [
        [
            *(level_text(name, one.setting[name]) for name in names),
            _value(stored, one.stored),
            _value(stored, one.predicted),
            str(one.runs),
        ]
        for one in nearest(tuning)
    ]
    table = format_table([*names, "stored", "predicted", "runs"], rows, left=0)
    chosen = "" if stored.by_model else f"{BY_RECORDS}\n"
    return f"{chosen}{NOT_CONFIRMED}; the records nearest to it:\n\n{table}"


def _value(stored: Stored, value: float) -> str:
    shown = value_text(stored.tuning.goal, Interval(value=value, low=value, high=value))
    number, _, unit = shown.partition(" (")
    return f"{number} {unit.partition(') ')[2]}"
