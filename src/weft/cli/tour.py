"""`weft tour`: the whole product on one machine, on one screen and in one report."""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

from weft.cli.progress import ProgressBar
from weft.errors import InputError
from weft.records import check_output, write_records, write_text
from weft.studies.tour import run_tour, tour_report


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    report = Path(args.output)
    records = report.with_name("tour.jsonl")
    if check_output(report) == check_output(records):
        raise InputError(str(report), "also the records' file", "name the report otherwise")
    with tempfile.TemporaryDirectory() as directory, ProgressBar("weft tour") as bar:
        tour = run_tour(Path(directory), partial(print, flush=True), bar.update)
    write_records(records, tour.records)
    write_text(report, tour_report(tour))
    print(f"\n{time.monotonic() - started:.0f} s in all")
    print(f"Report: {report}\nRecords: {records}\nNext: weft study run all")
    return int(any(row.unexplained for result in tour.results for row in result.rows))
