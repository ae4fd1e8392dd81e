"""`weft compare A B`: two files of records side by side, with a verdict for scripts."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from weft.records import compare, fail_if, format_comparison, parse_check, read_records


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "compare",
        help="compare two files of records",
        description="Statistics of A and B with 95 % confidence intervals. Exit status 1 if a "
        "--fail-if condition holds.",
    )
    command.add_argument("a", metavar="A.jsonl")
    command.add_argument("b", metavar="B.jsonl")
    command.add_argument(
        "--fail-if", action="append", default=[], metavar="CONDITION",
        help="such as 'p99.9 > 1.1x', 'probe.rtt:p99 > 25us', '*.goodput:value < -5%%'",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="one object per statistic")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    for text in args.fail_if:  # a bad condition is told before any file is read
        parse_check(text)
    a, b = read_records(args.a).records, read_records(args.b).records
    comparison = compare(a, b)
    if args.json:
        for difference in comparison.differences:
            print(json.dumps(asdict(difference)))
    else:
        print(format_comparison(comparison))
    failures = fail_if(a, b, args.fail_if)
    for failure in failures:
        print(f"weft: {failure}", file=sys.stderr)
    return 1 if failures else 0
