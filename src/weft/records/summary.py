"""A record on one screen: rates, quantiles, and how the run ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.records.dimension import format_value
from weft.records.schema import Distribution, Quantity, Record, Scalar
from weft.records.text_table import format_table

QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999))


def format_simulation(record: Record, *, flows: bool = False) -> str:
    """The record's distributions and numbers as text tables; flow by flow if asked."""
    blocks = [record.label]
    shown = {k: q for k, q in record.quantities.items() if flows or not is_flow_quantity(k)}
    rows = list(_distribution_rows(shown))
    if rows:
        blocks.append(
            format_table(["distribution", "n", *(name for name, _ in QUANTILES), "max"], rows)
        )
    numbers = [
        [name, format_value(q.value, q.unit)] for name, q in shown.items() if isinstance(q, Scalar)
    ]
    if numbers:
        blocks.append(format_table(["quantity", "value"], numbers))
    blocks += ["\n".join(record.notes)] if record.notes else []
    return "\n\n".join(blocks)


def is_flow_quantity(name: str) -> bool:
    """Quantities of a single flow are named part.SRC-DST.quantity."""
    return any("-" in step for step in name.split(".")[1:-1])


def _distribution_rows(quantities: Mapping[str, Quantity]) -> Iterator[list[str]]:
    for name, q in quantities.items():
        if isinstance(q, Distribution) and q.histogram.count:
            cells = [format_value(q.quantile(level), q.unit) for _, level in QUANTILES]
            top = format_value(q.histogram.max, q.unit)
            yield [name, str(q.histogram.count), *cells, top]
