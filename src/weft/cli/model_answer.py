"""What the commands of `weft model` share: reading their options, and printing their answers.

Values are written as in the options of the tests: one, or a list with ranges (64..4K*2). An answer
has values, formula, source and range, and is printed as text or as JSON. Entry points:
`read_value`, `read_list`, `Answer`, `emit`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from weft.model import ErrorSummary, Fit, Parameter
from weft.records.record_text import format_table
from weft.sweep_grammar import Reader, expand_values
from weft.units import format_number, format_value

Cell = float | str


@dataclass(frozen=True, slots=True)
class Column:
    """One input or result; `key` names it in JSON, with its unit."""

    head: str
    key: str
    unit: str
    values: Sequence[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Columns of equal length, and where they come from."""

    model: str
    columns: Sequence[Column]
    formula: str
    source: str
    range: str
    notes: Sequence[str] = ()
    fit: Fit | None = field(default=None)


MISFIT = 0.25


def warn_of_misfit(fitted: Fit) -> list[str]:
    """A warning where the form does not describe the rows."""
    if fitted.error.median <= MISFIT:
        return []
    return [
        f"half of the rows are more than {100 * fitted.error.median:.0f} % off: do not rely on it"
    ]


def emit(answer: Answer, *, as_json: bool) -> int:
    print(
        json.dumps(_build_object(answer), ensure_ascii=False) if as_json else _format_answer(answer)
    )
    return 0


def _format_answer(answer: Answer) -> str:
    heads = [column.head for column in answer.columns]
    cells = [
        [_format_cell(value, column.unit) for value in column.values] for column in answer.columns
    ]
    facts = [("formula", answer.formula), ("source", answer.source), ("range", answer.range)]
    if answer.fit is not None:
        facts += [("data", answer.fit.data), ("error", str(answer.fit.error))]
        facts += [("held out", str(answer.fit.held_out))]
    facts += [("note", note) for note in answer.notes]
    lines = [format_table(heads, list(zip(*cells, strict=True))), ""]
    lines += [f"{name:>8}: {fact}" for name, fact in facts]
    if answer.fit is not None:
        lines += ["", _format_parameters(answer.fit.parameters)]
    return "\n".join(lines)


def _format_cell(value: Cell, unit: str) -> str:
    if isinstance(value, str):
        return value
    if not isfinite(value):
        return "-"
    if unit:
        return format_value(value, unit) if value else f"0 {unit}"
    whole = float(value).is_integer() or abs(value) >= 1e4
    return f"{value:.0f}" if whole else format_number(value)


def _format_parameters(parameters: Sequence[Parameter]) -> str:
    rows = [
        [p.name, p.meaning, format_number(p.value), _format_error(p.standard_error), p.unit]
        for p in parameters
    ]
    return format_table(["parameter", "meaning", "value", "± error", "unit"], rows, left_columns=2)


def _format_error(value: float) -> str:
    return f"{value:.2g}" if isfinite(value) else "unknown"


def _build_object(answer: Answer) -> dict[str, object]:
    rows = [
        dict(zip([c.key for c in answer.columns], map(_to_json_value, row), strict=True))
        for row in zip(*(column.values for column in answer.columns), strict=True)
    ]
    content: dict[str, object] = {"model": answer.model, "rows": rows}
    content |= {"formula": answer.formula, "source": answer.source, "range": answer.range}
    if answer.notes:
        content["notes"] = list(answer.notes)
    if answer.fit is not None:
        content |= _build_fit_object(answer.fit)
    return content


def _build_fit_object(fit: Fit) -> dict[str, object]:
    return {
        "data": fit.data,
        "error": _build_summary(fit.error),
        "held_out": _build_summary(fit.held_out),
        "parameters": [
            {
                "name": p.name,
                "unit": p.unit,
                "value": p.value,
                "standard_error": _to_json_value(p.standard_error),
            }
            for p in fit.parameters
        ],
    }


def _build_summary(error: ErrorSummary) -> dict[str, float]:
    return {"median": error.median, "p90": error.p90, "worst": error.worst, "n": error.n}


def _to_json_value(value: Cell) -> Cell | None:
    """JSON has no infinity; whole numbers are written without a fraction."""
    if isinstance(value, str):
        return value
    if not isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(value)


def read_list(args: argparse.Namespace, name: str, read: Reader) -> list[Any]:
    """The values of `--NAME`, such as 64,4K or 64..4K*2."""
    return expand_values(read, getattr(args, name.replace("-", "_")), f"--{name}")


def read_value(args: argparse.Namespace, name: str, read: Reader) -> Any:
    """The one value of `--NAME`."""
    return read(getattr(args, name.replace("-", "_")), f"--{name}")
