"""`weft study`: reproduce a paper's figures, side by side with its values.

`weft tour`: the whole product on one machine, on one screen and in one report.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from weft.cli import ProgressBar
from weft.errors import InputError
from weft.fleet import check_cluster, check_jobs
from weft.measure import Peer, open_peer
from weft.measure.settings.options import parse_over
from weft.plot import to_png, to_svg
from weft.records import (
    Record,
    check_directory,
    check_output,
    replace_file,
    write_records,
    write_text,
)
from weft.sensitivity.application_table import AppTable, default_directory
from weft.studies import (
    STUDIES,
    Result,
    Study,
    find_studies,
    row_line,
    run_study,
    study_figures,
    takes_applications,
    takes_seeds,
    with_applications,
    with_seeds,
)
from weft.studies.experiment import experiment_names, with_experiment
from weft.studies.report import SUMMARIES, studies_report, study_list, study_table, summarise_claims
from weft.studies.run_studies import run_studies
from weft.studies.saba.cohort import user_cohort
from weft.studies.tour import run_tour, tour_report
from weft.wire import read_token


def run_list(_: argparse.Namespace) -> int:
    print(study_list(STUDIES))
    return 0


def run(args: argparse.Namespace) -> int:
    studies = _add_applications(find_studies(args.names), args.table)
    studies = _add_experiments(studies, args)
    check_jobs(args.jobs)
    studies = _add_seeds(studies, args)
    if args.output:
        check_output(args.output)
    if args.report:
        check_output(args.report)
    if args.figure:
        check_directory(args.figure)
    if args.cluster:
        check_cluster(args.cluster)
    results = _run_and_print(studies, args)
    rows = [row for result in results for row in result.compared]
    for line in filter(None, (*(of(rows) for of in SUMMARIES), summarise_claims(results))):
        print(line, file=sys.stderr)
    return int(any(row.unexplained for row in rows))


def _add_applications(studies: Sequence[Study], directory: str | None) -> list[Study]:
    """The studies, with the user's applications where they show applications."""
    takers = [study.name for study in studies if takes_applications(study)]
    if directory and not takers:
        names = ", ".join(study.name for study in STUDIES if takes_applications(study))
        raise InputError(
            "--table", "none of these studies shows applications", f"use it with {names}"
        )
    table = AppTable(Path(directory) if directory else default_directory())
    applications, damaged = table.all() if takers else ([], [])
    for error in damaged:
        print(f"weft: {error}", file=sys.stderr)
    if directory and not applications:
        raise InputError(directory, "no application in it", "profile one with weft profile")
    if not applications:
        return list(studies)
    cohort = user_cohort(table.directory, applications)
    return [with_applications(s, cohort) if s.name in takers else s for s in studies]


def _add_seeds(studies: Sequence[Study], args: argparse.Namespace) -> list[Study]:
    """The studies, at the paper's size where they draw set-ups."""
    if args.seeds is None:
        return list(studies)
    if not any(map(takes_seeds, studies)):
        names = ", ".join(study.name for study in STUDIES if takes_seeds(study))
        raise InputError("--seeds", "none of these studies draws set-ups", f"use it with {names}")
    return [with_seeds(s, args.seeds, args.jobs) if takes_seeds(s) else s for s in studies]


def _add_experiments(studies: Sequence[Study], args: argparse.Namespace) -> list[Study]:
    """The studies, with their experiments where there is a peer to run them with."""
    if not args.peer:
        if args.over or args.token_file:
            option = "--over" if args.over else "--token-file"
            raise InputError(option, "is of an experiment", "name the other host: --peer HOST")
        return list(studies)
    names = experiment_names()
    if not any(study.name in names for study in studies):
        raise InputError(
            "--peer", "none of these studies has an experiment", f"use it with {', '.join(names)}"
        )
    if args.over:
        parse_over(args.over)
    with _connect(args):  # a peer that cannot be reached is an error, not a missing point
        pass
    return [with_experiment(s, args.peer, args.over) if s.name in names else s for s in studies]


def _connect(args: argparse.Namespace) -> Peer:
    return open_peer(args.peer, read_token(args.token_file) if args.token_file else None)


def _run_and_print(studies: Sequence[Study], args: argparse.Namespace) -> list[Result]:
    """Results are printed and stored as they come: an interrupt keeps those that there are."""
    results: list[Result] = []

    def finish(study: Study, simulated: Mapping[str, Record]) -> Result:
        with ProgressBar(study.name) as bar:
            result = run_study(study, bar.update, partial(_connect, args), simulated)
        results.append(result)
        _emit(result, args)
        return result

    try:
        with ProgressBar("simulate") as bar:
            run_studies(
                studies,
                finish,
                output=args.output,
                jobs=args.jobs,
                cluster=args.cluster,
                progress=bar.update,
                on_resume=lambda stored, of: print(
                    f"resuming: {stored} of {of} simulations are stored", file=sys.stderr
                ),
            )
    finally:
        if args.report and results:
            write_text(args.report, studies_report(results))
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
    """NAME.svg and NAME.png of the first panel, NAME-2.svg and so on of the others."""
    for number, figure in enumerate(study_figures(result), start=1):
        name = stem.name if number == 1 else f"{stem.name}-{number}"
        write_text(stem.with_name(f"{name}.svg"), to_svg(figure, title=result.study.title))
        with replace_file(stem.with_name(f"{name}.png")) as file:
            file.write_bytes(to_png(figure))


def show_tour(args: argparse.Namespace) -> int:
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
