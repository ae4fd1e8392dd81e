"""`weft compare A B`: two files of records side by side, with a verdict for scripts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from weft.records import Comparison, compare, fail_if, format_comparison, parse_check, read_records


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "compare",
        help="compare two files of records",
        description="Statistics of A and B with 95 % confidence intervals. Exit status 1 if a "
        "--fail-if condition holds, or if there is one and B lacks a record of A.",
    )
    command.add_argument("a", metavar="A.jsonl")
    command.add_argument("b", metavar="B.jsonl")
    command.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="such as 'p99.9 > 1.1x', 'probe.rtt:p99 > 25us', '*.goodput:value < -5%%'",
    )
    command.add_argument(
        "--json",
        action="store_true",
        help="one object per statistic, and per record that only one file has",
    )
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    for text in args.fail_if:  # report a bad condition before any file is read
        parse_check(text)
    a, b = read_records(args.a).records, read_records(args.b).records
    comparison = compare(a, b)
    if args.json:
        for item in _build_objects(comparison):
            print(json.dumps(item))
    else:
        print(format_comparison(comparison))
    # A record that B lacks cannot pass.
    lacking = [f"{label}: only in A" for label in comparison.only_a] if args.fail_if else []
    for line in lacking:
        print(f"weft: {line}", file=sys.stderr)
    failures = fail_if(a, b, args.fail_if)
    for failure in failures:
        print(f"weft: {failure}", file=sys.stderr)
    return 1 if failures or lacking else 0


def _build_objects(comparison: Comparison) -> Iterator[Mapping[str, object]]:
    """A statistic each, then the records that have no partner."""
    yield from map(asdict, comparison.differences)
    yield from ({"record": label, "only_in": "A"} for label in comparison.only_a)
    yield from ({"record": label, "only_in": "B"} for label in comparison.only_b)
