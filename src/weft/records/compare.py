"""Two sets of records side by side.

Records are matched by name and settings, their quantities by name. Distributions carry the
order-statistic confidence interval of each percentile: when A's and B's do not overlap, the
difference is more than chance. Entry point: `compare`; `matched` gives the bare pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.errors import InputError
from weft.records.dimension import format_number, format_value
from weft.records.record_line import canonical_json
from weft.records.schema import Distribution, Quantity, Record
from weft.records.statistic import parse_percentile, statistic, statistic_names, statistic_unit
from weft.records.text_table import format_table

Ends = tuple[int | None, int | None]
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One quantity as A and as B observed it."""

    record: str
    quantity: str
    a: Quantity
    b: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One statistic of a pair. Intervals are of percentiles only; `ratio` is B/A."""

    record: str
    quantity: str
    statistic: str
    unit: str
    a: float
    b: float
    ratio: float | None
    a_interval: Ends | None = None
    b_interval: Ends | None = None
    disjoint: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Every common statistic, and the labels of records that only one side has."""

    differences: tuple[Difference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


def _by_point(records: Sequence[Record], side: str) -> dict[str, Record]:
    """Records by name and settings, which must tell them apart."""
    points: dict[str, Record] = {}
    for record in records:
        point = canonical_json([record.name, record.settings])
        if point in points:
            raise InputError(
                f"{side}: {record.label}",
                "two records have this name and settings",
                "compare files with one record for each point",
            )
        points[point] = record
    return points


def _comparable(a: Quantity, b: Quantity, where: str) -> None:
    units = statistic_unit(a, "value"), statistic_unit(b, "value")
    if type(a) is not type(b) or units[0] != units[1]:
        kinds = [f"{type(q).__name__.lower()} in {u!r}" for q, u in zip((a, b), units, strict=True)]
        raise InputError(
            where, f"A is a {kinds[0]} but B is a {kinds[1]}", "compare runs that record it alike"
        )


def match_quantities(a: Sequence[Record], b: Sequence[Record]) -> Iterator[Pair]:
    """The quantities that A and B have in common, in A's order."""
    theirs = _by_point(b, "B")
    for point, record in _by_point(a, "A").items():
        other = theirs.get(point)
        for name, quantity in record.quantities.items() if other else ():
            if other is not None and name in other.quantities:
                _comparable(quantity, other.quantities[name], f"{record.label}: {name}")
                yield Pair(record=record.label, quantity=name, a=quantity, b=other.quantities[name])


def ratio(a: float, b: float) -> float | None:
    """B/A; 1 when both are zero, None when only A is."""
    if a == 0:
        return 1.0 if b == 0 else None
    return b / a


def _ends(quantity: Quantity, name: str) -> Ends | None:
    quantile = parse_percentile(name)
    if quantile is None or not isinstance(quantity, Distribution):
        return None
    return quantity.interval(quantile, CONFIDENCE)


def _disjoint(a: Ends | None, b: Ends | None) -> bool | None:
    """Whether one interval ends before the other begins; an open end reaches everywhere."""
    if a is None or b is None:
        return None
    return _before(a, b) or _before(b, a)


def _before(first: Ends, second: Ends) -> bool:
    return first[1] is not None and second[0] is not None and first[1] < second[0]


def difference(pair: Pair, name: str) -> Difference | None:
    """One statistic of a pair; None when either side lacks it (no samples, say)."""
    a, b = statistic(pair.a, name), statistic(pair.b, name)
    if a is None or b is None:
        return None
    a_ends, b_ends = _ends(pair.a, name), _ends(pair.b, name)
    return Difference(
        record=pair.record,
        quantity=pair.quantity,
        statistic=name,
        unit=statistic_unit(pair.a, name),
        a=a,
        b=b,
        ratio=ratio(a, b),
        a_interval=a_ends,
        b_interval=b_ends,
        disjoint=_disjoint(a_ends, b_ends),
    )


def compare(a: Sequence[Record], b: Sequence[Record]) -> Comparison:
    """Every statistic of every common quantity, A beside B."""
    found = [
        difference(pair, name)
        for pair in match_quantities(a, b)
        for name in statistic_names(pair.a)
    ]
    in_a, in_b = _by_point(a, "A"), _by_point(b, "B")
    return Comparison(
        differences=tuple(d for d in found if d is not None),
        only_a=tuple(record.label for point, record in in_a.items() if point not in in_b),
        only_b=tuple(record.label for point, record in in_b.items() if point not in in_a),
    )


def format_interval(ends: Ends | None, unit: str) -> str:
    """[low, high] in readable units; an end the samples cannot bound is "…"."""
    if ends is None:
        return ""
    low, high = ("…" if end is None else format_value(end, unit) for end in ends)
    return f"[{low}, {high}]"


def _cells(d: Difference) -> list[str]:
    verdict = {True: "yes", False: "no", None: ""}[d.disjoint]
    return [
        d.record,
        d.quantity,
        d.statistic,
        format_value(d.a, d.unit),
        format_interval(d.a_interval, d.unit),
        format_value(d.b, d.unit),
        format_interval(d.b_interval, d.unit),
        "" if d.ratio is None else f"{format_number(d.ratio)}x",
        verdict,
    ]


def format_comparison(comparison: Comparison) -> str:
    """A comparison as a text table, then the records that have no partner."""
    heads = ["record", "quantity", "statistic", "A", "A 95 %", "B", "B 95 %", "B/A", "differs"]
    table = format_table(heads, [_cells(d) for d in comparison.differences], left=3)
    alone = [f"only in A: {label}" for label in comparison.only_a]
    alone += [f"only in B: {label}" for label in comparison.only_b]
    return "\n".join([table, *alone])
