"""Quantities as one flat table, and that table as a Parquet file (extra `weft[parquet]`).

One row for each statistic of each quantity: name, settings.*, quantity, statistic, unit, value.
Entry points: `flatten`, `export_parquet`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from weft.errors import InputError
from weft.records.output import replace_file
from weft.records.schema import Distribution, Plain, Quantity, Record
from weft.records.statistic import statistic, statistic_names, statistic_unit


def _names(quantity: Quantity) -> tuple[str, ...]:
    shown = statistic_names(quantity)
    return (*shown, "count", "min", "max") if isinstance(quantity, Distribution) else shown


def flatten(records: Sequence[Record]) -> Iterator[dict[str, Plain]]:
    """One row for each statistic that has a value."""
    for record in records:
        settings = {f"settings.{key}": value for key, value in record.settings.items()}
        for quantity, observed in record.quantities.items():
            for name in _names(observed):
                value = statistic(observed, name)
                if value is not None:
                    yield {
                        "name": record.name,
                        **settings,
                        "quantity": quantity,
                        "statistic": name,
                        "unit": statistic_unit(observed, name),
                        "value": float(value),
                    }


def _column(rows: Sequence[dict[str, Plain]], name: str) -> list[Plain]:
    """One column; a setting that is a number here and text there becomes text."""
    values = [row.get(name) for row in rows]
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values]
    return values


def export_parquet(path: str | Path, records: Sequence[Record]) -> None:
    """Write the flat table to a Parquet file, whole or not at all."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        problem = "Parquet files need pyarrow, which is not installed"
        raise InputError(str(path), problem, "run: pip install 'weft[parquet]'") from error
    rows = list(flatten(records))
    settings = sorted({key for row in rows for key in row if key.startswith("settings.")})
    heads = ["name", *settings, "quantity", "statistic", "unit", "value"]
    table = pyarrow.table({head: _column(rows, head) for head in heads})
    with replace_file(path) as file:
        pyarrow.parquet.write_table(table, file)
