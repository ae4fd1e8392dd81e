"""`weft report RECORDS -o report.html`: one self-contained page; or a Parquet file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from weft.control.operators.timeline import timeline_sections
from weft.errors import InputError
from weft.plot import render_report
from weft.records import Record, Run, check_output, export_parquet, read_records, write_text
from weft.tune.search.tuning_figures import tuning_sections


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "report",
        help="make one HTML page of records",
        description="Tables, distributions, series, topology and provenance of records in one "
        "self-contained HTML file.",
    )
    command.add_argument("records", nargs="+", metavar="RECORDS.jsonl")
    command.add_argument("-o", "--output", default="report.html", metavar="FILE")
    command.add_argument("--title", default="weft report")
    command.add_argument("--parquet", metavar="FILE", help="also export the numbers as Parquet")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
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
    print(f"{args.output}: {len(records)} records")
    return 0


def _check_distinct(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """No output may be an input, or another output."""
    uses = {Path(path).resolve(): "also an input" for path in inputs}
    for path in outputs:
        target = check_output(path)
        if target in uses:
            raise InputError(path, f"{uses[target]} of this command", "write to another file")
        uses[target] = "also another output"
