"""`weft simulate SCENARIO.toml`: one scenario or a sweep over its keys."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from weft.cli.progress import ProgressBar
from weft.errors import InputError
from weft.records import Record, note_ending, to_line
from weft.records.campaign import Campaign, run_campaign
from weft.records.record_text import format_simulation
from weft.simulate.scenario import Parameter, parameters, system_names
from weft.simulate.sweep import (
    Identity,
    Point,
    Source,
    check_points,
    combine_points,
    identify,
    sweep,
)
from weft.sweep_grammar import expand_values, split_assignments
from weft.toml_table import load_toml, parse_value


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "simulate",
        help="simulate a fabric packet by packet",
        description="Simulate the scenario in a TOML file. See docs/simulate.md for every key.",
    )
    command.add_argument("scenario", nargs="?", metavar="SCENARIO.toml")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="fixed",
        help="override one key, such as switch.order=round-robin or traffic.probe.size='128 B'",
    )
    command.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=A,B,C",
        dest="swept",
        help="run every combination of the values; give it once per key",
    )
    command.add_argument(
        "-o", "--output", metavar="FILE", help="store the records (JSON lines); resumes"
    )
    command.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    command.add_argument("--json", action="store_true", help="records on standard output")
    command.add_argument("--flows", action="store_true", help="show each flow, not only sums")
    command.add_argument(
        "--parameters", metavar="SYSTEM", help="print a system's parameters and exit"
    )
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.parameters:
        return _print_parameters(args.parameters, args.json)
    source, points = _read_points(args)
    identities = check_points(source, points)
    campaign = Campaign(
        points=dict(zip(identities, points, strict=True)),
        identify=identify,
        is_complete=lambda records: not _is_interrupted(records[-1]),
        output=args.output,
    )
    done = run_campaign(
        campaign,
        partial(_run_points, args, source),
        on_resume=lambda stored: print(
            f"resuming: {stored} of {len(points)} points are stored", file=sys.stderr
        ),
    )
    records = [done[key][-1] for key in identities if key in done]
    for record in records:
        print(to_line(record) if args.json else f"{format_simulation(record, flows=args.flows)}\n")
    problems = [f"{r.label}: {note}" for r in records for note in _find_problems(r)]
    if len(records) < len(points):
        problems.append(f"interrupted with {len(records)} of {len(points)} points done")
    for line in problems:
        print(f"weft: {line}", file=sys.stderr)
    return 1 if problems else 0


def _read_points(args: argparse.Namespace) -> tuple[Source, list[dict[str, Any]]]:
    """The scenario, and the points to run of it."""
    if not args.scenario:
        raise InputError(
            "weft simulate", "no scenario given", "name a TOML file, see docs/simulate.md"
        )
    if args.jobs < 1:
        raise InputError("--jobs", f"{args.jobs} is too few", "use 1 or more")
    example = "switch.order=round-robin"
    fixed = {
        key: parse_value(text)
        for key, text in split_assignments("--set", args.fixed, example).items()
    }
    swept = {
        key: expand_values(parse_value, text, f"--sweep {key}")
        for key, text in split_assignments("--sweep", args.swept, example).items()
    }
    for key in fixed.keys() & swept.keys():
        raise InputError(f"--set {key}", "is also given by --sweep", "keep one of the two")
    path = Path(args.scenario)
    source = Source(data=load_toml(path), where=str(path), base=path.parent)
    return source, combine_points(fixed, swept)


def _run_points(
    args: argparse.Namespace, source: Source, points: Mapping[Identity, Point]
) -> Iterator[tuple[Identity, tuple[Record], bool]]:
    """Run the points; an interrupted one comes last, with what it has so far."""
    jobs = min(args.jobs, max(1, len(points)))
    with ProgressBar(f"simulate {Path(args.scenario).stem}") as bar:
        for _, record, ended in sweep(source, list(points.values()), jobs, bar.update):
            yield identify(record), (record,), ended == "interrupted"


def _find_problems(record: Record) -> list[str]:
    """Notes that make the exit status 1."""
    is_cut = _is_interrupted(record) or record.ending.startswith("deadlock")
    ending = [note_ending(record.ending)] if is_cut else []
    return ending + [note for note in record.notes if note.startswith("deadlock:")]


def _is_interrupted(record: Record) -> bool:
    return record.ending.startswith("interrupted")


def _print_parameters(system: str, as_json: bool) -> int:
    if system not in system_names():
        names = ", ".join(system_names())
        raise InputError("--parameters", f"{system!r} is not a system", f"use one of {names}")
    for p in parameters(system):
        print(json.dumps(asdict(p), ensure_ascii=False) if as_json else _format_parameter(p))
    return 0


def _format_parameter(p: Parameter) -> str:
    notes = [
        textwrap.fill(f"{label}: {text}", 96, initial_indent="    ", subsequent_indent="        ")
        for label, text in (("meaning", p.meaning), ("source", p.source))
    ]
    return "\n".join([f"{p.section}.{p.key} = {p.value}", *notes])
