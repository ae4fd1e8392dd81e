"""A tuning from stored records, for the terminal and as a record.

Entry points: `stored_text`, `stored_record`. Units: as in `weft.tune.report_text`.
"""

from __future__ import annotations

from dataclasses import replace

from weft.records import Record
from weft.records.table import text_table
from weft.tune.advice import advice_table
from weft.tune.confirm import Interval
from weft.tune.from_records import Stored, nearest
from weft.tune.record import tuning_record
from weft.tune.report_text import level_text, tuning_text, value_text

NOT_CONFIRMED = "not confirmed by measurement: run the command above, or weft tune PEER"
BY_RECORDS = (
    "chosen by its records: all its runs are better than the model's best is expected to be"
)


def stored_text(stored: Stored) -> str:
    """The tuning, what speaks for it, what was left out, and every rule, known or not."""
    left_out = "\n".join(f"left out: {sentence}" for sentence in stored.left_out)
    bare = replace(stored.tuning, advice=())
    rules = f"advice\n\n{advice_table(stored.tuning.advice)}"
    parts = [tuning_text(bare), _support(stored), left_out, rules]
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
        tables={**record.tables, "nearest records": near},
        notes=(*([] if stored.by_model else [BY_RECORDS]), NOT_CONFIRMED, *record.notes, *left_out),
    )


def _support(stored: Stored) -> str:
    """The records nearest to the recommendation beside what the model says there."""
    tuning = stored.tuning
    names = [factor.name for factor in tuning.space.factors]
    rows = [
        [*(level_text(name, one.setting[name]) for name in names),
         _value(stored, one.stored), _value(stored, one.predicted), str(one.runs)]
        for one in nearest(tuning)
    ]  # fmt: skip
    table = text_table([*names, "stored", "predicted", "runs"], rows, left=0)
    chosen = "" if stored.by_model else f"{BY_RECORDS}\n"
    return f"{chosen}{NOT_CONFIRMED}; the records nearest to it:\n\n{table}"


def _value(stored: Stored, value: float) -> str:
    shown = value_text(stored.tuning.goal, Interval(value=value, low=value, high=value))
    number, _, unit = shown.partition(" (")
    return f"{number} {unit.partition(') ')[2]}"
