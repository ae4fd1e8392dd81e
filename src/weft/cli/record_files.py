"""Files of records: `weft compare` and `weft report`.

`weft compare A B`: two files side by side, with a verdict for scripts. `weft report RECORDS -o
report.html`: one self-contained page; or a Parquet file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from weft.errors import InputError
from weft.records import (
    Comparison,
    Record,
    Run,
    check_output,
    compare,
    export_parquet,
    find_failures,
    format_comparison,
    format_mismatch,
    ignore_settings,
    parse_check,
    read_records,
    write_text,
)
from weft.units import format_count, split_unit


def run_compare(args: argparse.Namespace) -> int:
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


def run_report(args: argparse.Namespace) -> int:
    # Plots take half a second to import.
    from weft.control.operators.timeline import timeline_sections
    from weft.plot import render_report
    from weft.tune.search.tuning_report import tuning_sections

    outputs = [path for path in (args.output, args.parquet) if path]
    _check_distinct(args.records, outputs)
    records: list[Record] = []
    runs: list[Run] = []
    for path in args.records:
        file = read_records(path)
        records += file.records
        runs += file.headers
    if not records:
        raise InputError(", ".join(args.records), "holds no records", "run weft simulate -o first")
    sections = [*tuning_sections(records), *timeline_sections(records)]
    write_text(args.output, render_report(records, args.title, sections, runs))
    if args.parquet:
        export_parquet(args.parquet, records)
    print(f"{args.output}: {format_count(len(records), 'record')}")
    return 0


def _check_distinct(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """No output may be an input, or another output."""
    uses = {Path(path).resolve(): "also an input" for path in inputs}
    for path in outputs:
        target = check_output(path)
        if target in uses:
            raise InputError(path, f"{uses[target]} of this command", "write to another file")
        uses[target] = "also another output"
