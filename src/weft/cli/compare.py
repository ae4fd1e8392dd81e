"""`weft compare A B`: two files of records side by side, with a verdict for scripts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from weft.errors import InputError
from weft.records import (
    Comparison,
    Record,
    compare,
    find_failures,
    format_comparison,
    format_mismatch,
    ignore_settings,
    parse_check,
    read_records,
)
from weft.units import split_unit


def run(args: argparse.Namespace) -> int:
    for text in args.fail_if:  # report a bad condition before any file is read
        parse_check(text)
    files = read_records(args.a).records, read_records(args.b).records
    _check_ignored(args.ignore, [*files[0], *files[1]])
    a, b = (ignore_settings(records, args.ignore) for records in files)
    comparison = compare(a, b)
    if not comparison.differences:
        raise InputError(f"{args.a} and {args.b}", *_explain_emptiness(comparison, a, b))
    if args.json:
        for item in _build_objects(comparison):
            print(json.dumps(item))
    else:
        print(format_comparison(comparison))
    # A record that B lacks cannot pass.
    lacking = [f"{label}: only in A" for label in comparison.only_a] if args.fail_if else []
    for line in lacking:
        print(f"weft: {line}", file=sys.stderr)
    failures = find_failures(a, b, args.fail_if)
    for failure in failures:
        print(f"weft: {failure}", file=sys.stderr)
    return 1 if failures or lacking else 0


def _check_ignored(names: Sequence[str], records: Sequence[Record]) -> None:
    settings = {key for record in records for key in record.settings}
    for name in names:
        if not any(name in (key, split_unit(key)[0]) for key in settings):
            listed = ", ".join(sorted(settings)) or "none"
            raise InputError(f"--ignore {name}", "no record has that setting", f"use: {listed}")


def _explain_emptiness(
    comparison: Comparison, a: Sequence[Record], b: Sequence[Record]
) -> tuple[str, str]:
    """Why nothing can be compared, and what to do."""
    if comparison.settings:
        problem, _, remedy = format_mismatch(comparison.settings).partition(": ")
        return f"no point in common: {problem}", remedy
    names = [", ".join(sorted({record.name for record in side})) or "nothing" for side in (a, b)]
    problem = f"nothing in common: A has {names[0]}, B has {names[1]}"
    return problem, "compare files of one test or scenario"


def _build_objects(comparison: Comparison) -> Iterator[Mapping[str, object]]:
    """A statistic each, then the records that have no partner."""
    yield from map(asdict, comparison.differences)
    yield from ({"record": label, "only_in": "A"} for label in comparison.only_a)
    yield from ({"record": label, "only_in": "B"} for label in comparison.only_b)
