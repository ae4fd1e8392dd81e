"""Statistics of a quantity by name, and all of them as one flat table.

A scalar has `value`; a distribution has `count`, `mean`, `min`, `max` and any percentile `pNN`; a
series has `mean`, `min` and `max` of its points. The flat table has a row for each statistic of
each quantity: name, settings.*, quantity, statistic, unit, value; `export_parquet` writes it as a
Parquet file (extra `weft[parquet]`). `to_summary_line` is a record for other programs, which cannot
read a histogram. Entry points: `statistic`, `flatten`, `export_parquet`, `to_summary_line`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path

from weft.errors import InputError
from weft.records.schema import (
    Distribution,
    Plain,
    Quantity,
    Record,
    Scalar,
    Series,
    canonical_json,
    record_to_json,
)
from weft.records.store import replace_file
from weft.units import convert

# The percentiles that are shown, and their quantiles.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}


def parse_percentile(name: str) -> float | None:
    """0.999 for "p99.9"; None when the name is not a percentile from p0 to p100."""
    digits = name[1:]
    if not name.startswith("p") or not digits.replace(".", "", 1).isdecimal():
        return None
    quantile = Decimal(digits) / 100
    return float(quantile) if quantile <= 1 else None


def statistic_names(quantity: Quantity) -> tuple[str, ...]:
    """The statistics of a quantity that are shown by default."""
    match quantity:
        case Scalar():
            return ("value",)
        case Distribution():
            return (*PERCENTILES, "mean")
        case Series():
            return ("mean", "min", "max")


def statistic(quantity: Quantity, name: str) -> float | None:
    """The named statistic, or None when the quantity has none of that name."""
    match quantity:
        case Scalar():
            return quantity.value if name == "value" else None
        case Distribution():
            return _of_samples(quantity, name)
        case Series():
            return _of_points(quantity, name)


def _of_samples(distribution: Distribution, name: str) -> float | None:
    histogram = distribution.histogram
    if name == "count":
        return histogram.count
    if histogram.count == 0:
        return None
    quantile = parse_percentile(name)
    if quantile is not None:
        return histogram.quantile(quantile)
    moments = {"mean": histogram.mean, "min": histogram.min, "max": histogram.max}
    return moments.get(name)


def _of_points(series: Series, name: str) -> float | None:
    if not series.y:
        return None
    moments = {"mean": sum(series.y) / len(series.y), "min": min(series.y), "max": max(series.y)}
    return moments.get(name)


def statistic_unit(quantity: Quantity, name: str) -> str:
    """The unit of a statistic; counts have none."""
    if name == "count":
        return ""
    return quantity.y_unit if isinstance(quantity, Series) else quantity.unit


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


def to_summary_line(record: Record) -> str:
    """The record's line, with the statistics of each distribution beside its histogram."""
    data = record_to_json(record)
    for name, quantity in record.quantities.items():
        if isinstance(quantity, Distribution) and quantity.histogram.count:
            data["quantities"][name] |= summarise(quantity)
    return canonical_json(data)


def summarise(distribution: Distribution) -> dict[str, float | None]:
    """Statistics named for JSON: p99_9_ns is p99.9, p99_9_low_ns and p99_9_high_ns its interval.

    Times are in nanoseconds. None is an end that the samples cannot bound.
    """
    shown = {name: statistic(distribution, name) for name in ("mean", "min", "max", *PERCENTILES)}
    for name, level in PERCENTILES.items():
        shown[f"{name}_low"], shown[f"{name}_high"] = distribution.interval(level)
    unit = distribution.unit if convert(1, distribution.unit, "ns") is None else "ns"
    return {"count": distribution.histogram.count} | {
        f"{name.replace('.', '_')}_{unit}".rstrip("_"): None
        if value is None
        else convert(value, distribution.unit, unit)
        for name, value in shown.items()
    }


def _column(rows: Sequence[dict[str, Plain]], name: str) -> list[Plain]:
    """One column; a setting that mixes numbers and text becomes text."""
    values = [row.get(name) for row in rows]
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values]
    return values


def export_parquet(path: str | Path, records: Sequence[Record]) -> None:
    """Write the flat table to a Parquet file atomically."""
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
