"""Conditions that make a comparison fail: `probe.rtt:p99.9 > 1.1x`.

    [QUANTITY:]STAT OP NUMBER[x|%|UNIT]

QUANTITY is a dotted name in which * and ? match; left out, it is every quantity that has the
statistic. STAT is value, count, mean, min, max or a percentile such as p99.9. OP is >, <, >=
or <=. `x` compares the ratio B/A, `%` the change from A to B, a unit the value of B itself.
Entry points: `parse_check`, `fail_if`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from weft.errors import InputError
from weft.records.compare import Difference, Pair, difference, match_quantities
from weft.records.dimension import convert, format_number, format_value
from weft.records.schema import Record
from weft.records.statistic import parse_percentile

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


def _observed(check: Check, d: Difference) -> float | None:
    """The number a check looks at, in the check's unit; None when it has another dimension."""
    if check.unit not in ("x", "%"):
        return convert(d.b, d.unit, check.unit)
    if d.a == 0:
        return math.copysign(math.inf, d.b) if d.b else (1.0 if check.unit == "x" else 0.0)
    return d.b / d.a if check.unit == "x" else 100 * (d.b - d.a) / abs(d.a)


def _tested(check: Check, pairs: Sequence[Pair]) -> list[tuple[Difference, float]]:
    """The statistics a check applies to, of which there must be one: a check of nothing passes."""
    named = [pair for pair in pairs if fnmatchcase(pair.quantity, check.quantity)]
    found = [difference(pair, check.statistic) for pair in named]
    tested = [(d, seen) for d in found if d and (seen := _observed(check, d)) is not None]
    if not tested:
        unit = f" in {check.unit!r}" if check.unit not in ("x", "%") else ""
        known = ", ".join(sorted({pair.quantity for pair in pairs})[:12]) or "none"
        raise InputError(
            f"check {check.text!r}",
            f"no common quantity has {check.statistic}{unit} under that name",
            f"quantities in both files: {known}",
        )
    return tested


def fail_if(a: Sequence[Record], b: Sequence[Record], checks: Sequence[str]) -> tuple[Failure, ...]:
    """The failures of B against A under the given conditions; empty when B passes."""
    pairs = tuple(match_quantities(a, b))
    return tuple(
        Failure(check=check.text, difference=d)
        for check in map(parse_check, checks)
        for d, observed in _tested(check, pairs)
        if _OPERATORS[check.operator](observed, check.limit)
    )
