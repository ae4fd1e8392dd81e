"""The steps of a plan as one table: a line each, with what tells it from the others.

Of every probe p50 and p99, of every stream the throughput, of all flows of a traffic together.
Entry point: `steps_table`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.records import Distribution, Record, Scalar, statistic
from weft.records.record_text import format_table, is_flow_quantity
from weft.units import format_value

SHOWN = ("p50", "p99")


def steps_table(records: Sequence[Record]) -> str:
    """One line per record."""
    settings = list(dict.fromkeys(key for record in records for key in record.settings))
    columns = list(dict.fromkeys(column for record in records for column in _columns(record)))
    heads = [key.removeprefix("traffic.") for key in settings]
    heads += [f"{name} {stat}".removesuffix(" value") for name, stat in columns]
    rows = [
        [str(record.settings.get(key, "")) for key in settings]
        + [_cell(record, name, stat) for name, stat in columns]
        for record in records
    ]
    return format_table(heads, rows)


def _columns(record: Record) -> list[tuple[str, str]]:
    found = []
    for name, quantity in record.quantities.items():
        if is_flow_quantity(name):
            continue
        if isinstance(quantity, Distribution):
            found += [(name, stat) for stat in SHOWN]
        elif isinstance(quantity, Scalar) and name.endswith(".throughput"):
            found.append((name, "value"))
    return found


def _cell(record: Record, name: str, stat: str) -> str:
    quantity = record.quantities.get(name)
    value = None if quantity is None else statistic(quantity, stat)
    if value is None or not isinstance(quantity, Scalar | Distribution):
        return "-"
    return format_value(value, quantity.unit)
