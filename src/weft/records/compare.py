"""Compare two sets of records, and fail on conditions such as `probe.rtt:p99.9 > 1.1x`.

Records are matched by name and settings, their quantities by name. Percentiles carry the
order-statistic confidence interval: where A's and B's are disjoint, the difference is more than
chance. A condition is

    [QUANTITY:]STAT OP NUMBER[x|%|UNIT]

QUANTITY is a dotted name with wildcards * and ?; without it, every quantity that has the
statistic. STAT is value, count, mean, min, max or a percentile such as p99.9. OP is >, <, >= or
<=. `x` compares the ratio B/A, `%` the change from A to B, a unit the value of B itself. Entry
points: `compare`, `find_failures`, `parse_check`, `ignore_settings`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from weft.errors import InputError
from weft.records.record_text import format_table
from weft.records.schema import Distribution, Plain, Quantity, Record, canonical_json
from weft.records.statistic import parse_percentile, statistic, statistic_names, statistic_unit
from weft.units import convert, format_number, format_value, split_unit

Interval = tuple[int | None, int | None]
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
    a_interval: Interval | None = None
    b_interval: Interval | None = None
    disjoint: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Every common statistic, and the labels of records on one side only.

    `settings` are those in which the first record that only A has differs from the nearest that
    only B has: name, A's value and B's.
    """

    differences: tuple[Difference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    settings: tuple[tuple[str, Plain, Plain], ...] = ()


def ignore_settings(records: Sequence[Record], names: Sequence[str]) -> list[Record]:
    """The records without these settings; `size` names `size_bytes`, too."""

    def is_ignored(key: str) -> bool:
        return key in names or split_unit(key)[0] in names

    return [
        replace(record, settings={k: v for k, v in record.settings.items() if not is_ignored(k)})
        for record in records
    ]


def _by_point(records: Sequence[Record], side: str) -> dict[str, Record]:
    """Records by name and settings; two of the same point are refused."""
    points: dict[str, Record] = {}
    for record in records:
        point = canonical_json([record.name, record.settings])
        if point in points:
            raise InputError(
                f"{side}: {record.label}",
                "two records have this name and settings",
                "compare files with one record for each point, or ignore fewer settings",
            )
        points[point] = record
    return points


def _require_comparable(a: Quantity, b: Quantity, where: str) -> None:
    units = statistic_unit(a, "value"), statistic_unit(b, "value")
    if type(a) is not type(b) or units[0] != units[1]:
        kinds = [f"{type(q).__name__.lower()} in {u!r}" for q, u in zip((a, b), units, strict=True)]
        raise InputError(
            where,
            f"A is a {kinds[0]} but B is a {kinds[1]}",
            "compare runs that record it in one unit",
        )


def match_quantities(a: Sequence[Record], b: Sequence[Record]) -> Iterator[Pair]:
    """The quantities that A and B have in common, in A's order."""
    b_points = _by_point(b, "B")
    for point, record in _by_point(a, "A").items():
        other = b_points.get(point)
        for name, quantity in record.quantities.items() if other else ():
            if other is not None and name in other.quantities:
                _require_comparable(quantity, other.quantities[name], f"{record.label}: {name}")
                yield Pair(record=record.label, quantity=name, a=quantity, b=other.quantities[name])


def ratio(a: float, b: float) -> float | None:
    """B/A; 1 when both are zero, None when only A is."""
    if a == 0:
        return 1.0 if b == 0 else None
    return b / a


def _quantile_interval(quantity: Quantity, name: str) -> Interval | None:
    quantile = parse_percentile(name)
    if quantile is None or not isinstance(quantity, Distribution):
        return None
    return quantity.interval(quantile, CONFIDENCE)


def _are_disjoint(a: Interval | None, b: Interval | None) -> bool | None:
    """Whether one interval ends before the other begins; an open end is unbounded."""
    if a is None or b is None:
        return None
    return _ends_before(a, b) or _ends_before(b, a)


def _ends_before(first: Interval, second: Interval) -> bool:
    return first[1] is not None and second[0] is not None and first[1] < second[0]


def find_difference(pair: Pair, name: str) -> Difference | None:
    """One statistic of a pair; None when either side lacks it (no samples, say)."""
    a, b = statistic(pair.a, name), statistic(pair.b, name)
    if a is None or b is None:
        return None
    a_ends, b_ends = _quantile_interval(pair.a, name), _quantile_interval(pair.b, name)
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
        disjoint=_are_disjoint(a_ends, b_ends),
    )


def compare(a: Sequence[Record], b: Sequence[Record]) -> Comparison:
    """Every statistic of every common quantity, A beside B."""
    differences = [
        find_difference(pair, name)
        for pair in match_quantities(a, b)
        for name in statistic_names(pair.a)
    ]
    in_a, in_b = _by_point(a, "A"), _by_point(b, "B")
    only_a = [record for point, record in in_a.items() if point not in in_b]
    only_b = [record for point, record in in_b.items() if point not in in_a]
    return Comparison(
        differences=tuple(d for d in differences if d is not None),
        only_a=tuple(record.label for record in only_a),
        only_b=tuple(record.label for record in only_b),
        settings=_find_nearest(only_a[0], only_b) if only_a else (),
    )


def _find_nearest(
    record: Record, records: Sequence[Record]
) -> tuple[tuple[str, Plain, Plain], ...]:
    """The fewest settings in which the record differs from another of its name."""
    candidates = [
        tuple(
            (key, record.settings.get(key), other.settings.get(key))
            for key in dict.fromkeys([*record.settings, *other.settings])
            if record.settings.get(key) != other.settings.get(key)
        )
        for other in records
        if other.name == record.name
    ]
    return min(candidates, key=len, default=())


def format_interval(ends: Interval | None, unit: str) -> str:
    """[low, high] in readable units; an end the samples cannot bound is "…"."""
    if ends is None:
        return ""
    low, high = ("…" if end is None else format_value(end, unit) for end in ends)
    return f"[{low}, {high}]"


def _format_cells(d: Difference) -> list[str]:
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
    """A comparison as a text table, then the unmatched records and why they do not match."""
    heads = ["record", "quantity", "statistic", "A", "A 95 %", "B", "B 95 %", "B/A", "differs"]
    table = format_table(heads, [_format_cells(d) for d in comparison.differences], left_columns=3)
    unmatched = [f"only in A: {label}" for label in comparison.only_a]
    unmatched += [f"only in B: {label}" for label in comparison.only_b]
    if comparison.settings:
        unmatched.append(f"{format_mismatch(comparison.settings)} to compare them nevertheless")
    return "\n".join([table, *unmatched])


def format_mismatch(settings: Sequence[tuple[str, Plain, Plain]]) -> str:
    """The settings that keep two records apart, and the options that ignore them."""
    shown = ", ".join(f"{key} ({_show(a)} in A, {_show(b)} in B)" for key, a, b in settings)
    options = " ".join(f"--ignore {key}" for key, _, _ in settings)
    return f"A and B differ in {shown}: add {options}"


def _show(value: Plain) -> str:
    return "default" if value is None else f"{value}"


GRAMMAR = (
    "write [QUANTITY:]STAT (>|<|>=|<=) NUMBER[x|%|UNIT], such as 'probe.rtt:p99.9 > 25us', "
    "'p99.9 > 1.1x' or '*.goodput:value < -5%'"
)
_CHECK = re.compile(
    r"\s*(?:(?P<quantity>[^\s:<>=]+)\s*:)?\s*(?P<statistic>[a-z][a-z0-9.]*)\s*(?P<operator>[<>]=?)"
    r"\s*(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>[^\s\d]*)\s*"
)
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_STATISTICS = ("value", "count", "mean", "min", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A parsed condition; when it holds, the comparison has failed."""

    text: str
    quantity: str
    statistic: str
    operator: str
    limit: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A condition that holds, and the statistic on which it does."""

    check: str
    difference: Difference

    def __str__(self) -> str:
        d = self.difference
        change = "" if d.ratio is None else f", {format_number(d.ratio)}x"
        values = f"A {format_value(d.a, d.unit)}, B {format_value(d.b, d.unit)}{change}"
        return f"{d.record}: {d.quantity} {d.statistic}: {values}: fails {self.check!r}"


def parse_check(text: str) -> Check:
    """The condition written in `text`."""
    match = _CHECK.fullmatch(text)
    if match is None:
        raise InputError(f"check {text!r}", "not a condition", GRAMMAR)
    name = match["statistic"]
    if name not in _STATISTICS and parse_percentile(name) is None:
        raise InputError(f"check {text!r}", f"{name!r} is not a statistic", GRAMMAR)
    return Check(
        text=text,
        quantity=match["quantity"] or "*",
        statistic=name,
        operator=match["operator"],
        limit=float(match["number"]),
        unit=match["unit"],
    )


def _value_to_check(check: Check, d: Difference) -> float | None:
    """The number that a check tests, in the check's unit; None if the dimension differs."""
    if check.unit not in ("x", "%"):
        return convert(d.b, d.unit, check.unit)
    if d.a == 0:
        return math.copysign(math.inf, d.b) if d.b else (1.0 if check.unit == "x" else 0.0)
    return d.b / d.a if check.unit == "x" else 100 * (d.b - d.a) / abs(d.a)


def _select_values(check: Check, pairs: Sequence[Pair]) -> list[tuple[Difference, float]]:
    """The statistics a check applies to; none is an error, as such a check would always pass."""
    named = [pair for pair in pairs if fnmatchcase(pair.quantity, check.quantity)]
    differences = [find_difference(pair, check.statistic) for pair in named]
    tested = [
        (d, value) for d in differences if d and (value := _value_to_check(check, d)) is not None
    ]
    if not tested:
        unit = f" in {check.unit!r}" if check.unit not in ("x", "%") else ""
        quantities = ", ".join(sorted({pair.quantity for pair in pairs})[:12]) or "none"
        raise InputError(
            f"check {check.text!r}",
            f"no common quantity has {check.statistic}{unit} under that name",
            f"quantities in both files: {quantities}",
        )
    return tested


def find_failures(
    a: Sequence[Record], b: Sequence[Record], checks: Sequence[str]
) -> tuple[Failure, ...]:
    """The failures of B against A under the given conditions; empty when B passes."""
    pairs = tuple(match_quantities(a, b))
    return tuple(
        Failure(check=check.text, difference=d)
        for check in map(parse_check, checks)
        for d, observed in _select_values(check, pairs)
        if _OPERATORS[check.operator](observed, check.limit)
    )
