"""`weft tour`: the studies that show what weft does, on one screen and in one report."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from weft.cli.progress import ProgressBar
from weft.errors import InputError
from weft.records import check_output, write_records, write_text
from weft.studies.tour import run_tour, summary, tour_records, tour_report


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tour = commands.add_parser(
        "tour",
        help="a first look: simulate one switch, two hops and a gamed lane",
        description="Run the studies of one switch, two hops and a gamed lane; print a summary, "
        "write a report and, beside it, the records (tour.jsonl).",
    )
    tour.add_argument("-o", "--output", metavar="FILE", default="report.html", help="the report")
    tour.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    report = Path(args.output)
    records = report.with_name("tour.jsonl")
    if check_output(report) == check_output(records):
        raise InputError(str(report), "also the records' file", "name the report otherwise")
    with ProgressBar("weft tour") as bar:
        results = run_tour(bar.update)
        write_records(records, tour_records(results))
        write_text(report, tour_report(results))
    print(summary(results, time.monotonic() - started, str(report), str(records)))
    return int(any(row.unexplained for result in results for row in result.rows))
