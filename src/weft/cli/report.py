"""`weft report RECORDS -o report.html`: one self-contained page; or a Parquet file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from weft.control.operators.timeline import timeline_sections
from weft.errors import InputError
from weft.plot import render_report
from weft.records import Record, Run, check_output, export_parquet, read_records, write_text
from weft.tune.search.tuning_record import tuning_sections
from weft.units import format_count


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
