"""`weft report RECORDS -o report.html`: one self-contained page; or a Parquet file."""

from __future__ import annotations

import argparse
from pathlib import Path

from weft.errors import InputError
from weft.plot import render_report
from weft.records import Record, Run, export_parquet, read_records


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
    records: list[Record] = []
    runs: list[Run] = []
    for path in args.records:
        file = read_records(path)
        records += file.records
        runs += file.headers
    if not records:
        raise InputError(", ".join(args.records), "holds no records", "run weft simulate -o first")
    write_page(Path(args.output), render_report(records, args.title, runs=runs))
    if args.parquet:
        export_parquet(args.parquet, records)
    print(f"{args.output}: {len(records)} records")
    return 0


def write_page(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error), "choose another file") from error
