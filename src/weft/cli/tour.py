"""`weft tour`: the studies that show what weft does, on one screen and in one report."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from weft.cli.progress import ProgressBar
from weft.errors import InputError
from weft.records import write_records
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
    if not report.parent.is_dir():
        raise InputError(str(report), "its directory does not exist", "make it, or name another")
    records = report.with_name("tour.jsonl")
    with ProgressBar("weft tour") as bar:
        results = run_tour(bar.update)
        write_records(records, tour_records(results))
        _write(report, tour_report(results))
    print(summary(results, time.monotonic() - started, str(report), str(records)))
    return int(any(row.unexplained for result in results for row in result.rows))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        problem = error.strerror or str(error)
        raise InputError(str(path), problem, "check the path and its permissions") from error
