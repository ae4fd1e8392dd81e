"""`weft study`: reproduce a paper's figures, side by side with its values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from weft.cli.progress import ProgressBar
from weft.plot import to_png, to_svg
from weft.records import (
    Record,
    check_directory,
    check_output,
    replacing,
    write_records,
    write_text,
)
from weft.studies import (
    STUDIES,
    Result,
    Study,
    find_studies,
    row_line,
    run_study,
    study_figure,
    study_records,
)
from weft.studies.text import standing, study_list, study_table, verdict


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    study = commands.add_parser(
        "study",
        help="reproduce a paper's figures beside its published values",
        description="Studies hold a paper's published values, simulate the same setting and "
        "compare. Exit status 1: a row is outside its tolerance and no reason is written.",
    )
    actions = study.add_subparsers(title="actions", metavar="ACTION", required=True)
    actions.add_parser("list", help="name the studies").set_defaults(run=run_list)
    command = actions.add_parser("run", help="run studies by name, or all")
    command.add_argument("names", nargs="+", metavar="NAME", help="a study's name, or all")
    command.add_argument("--json", action="store_true", help="one JSON object per published row")
    command.add_argument("-o", "--output", metavar="FILE", help="write the records (JSON lines)")
    command.add_argument("--figure", metavar="DIR", help="draw each study as DIR/NAME.svg and .png")
    command.set_defaults(run=run)


def run_list(_: argparse.Namespace) -> int:
    print(study_list(STUDIES))
    return 0


def run(args: argparse.Namespace) -> int:
    studies = find_studies(args.names)
    if args.output:
        check_output(args.output)
    if args.figure:
        check_directory(args.figure)
    results = _run_and_print(studies, args)
    rows = [row for result in results for row in result.compared]
    print(f"{verdict(rows)}\n{standing(rows)}", file=sys.stderr)
    return int(any(row.unexplained for row in rows))


def _run_and_print(studies: Sequence[Study], args: argparse.Namespace) -> list[Result]:
    """Results are printed and stored as they come: an interrupt keeps those that there are."""
    results: list[Result] = []
    records: list[Record] = []
    try:
        for study in studies:
            with ProgressBar(study.name) as bar:
                result = run_study(study, bar.update)
            results.append(result)
            records += study_records(result)
            _emit(result, args)
    finally:
        if args.output:
            write_records(args.output, records)
    return results


def _emit(result: Result, args: argparse.Namespace) -> None:
    if args.json:
        for row in result.compared:
            print(row_line(row))
    else:
        print(f"{study_table(result)}\n")
    if args.figure:
        _draw(result, Path(args.figure) / result.study.name)


def _draw(result: Result, stem: Path) -> None:
    figure = study_figure(result)
    write_text(stem.with_suffix(".svg"), to_svg(figure, title=result.study.title))
    with replacing(stem.with_suffix(".png")) as file:
        file.write_bytes(to_png(figure))
