"""`weft simulate SCENARIO.toml`: one scenario or a sweep over its keys."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.cli.progress import ProgressBar
from weft.errors import InputError
from weft.records import Record, RecordWriter, read_records, this_run, to_line, write_records
from weft.records.summary import summary
from weft.simulate.sweep import Point, Source, check_points, identity, points, sweep
from weft.simulate.systems import parameters, system_names
from weft.toml_table import load_toml

INTERRUPTED = "ended: interrupted"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "simulate",
        help="simulate a fabric packet by packet",
        description="Simulate the scenario in a TOML file. See docs/simulate.md for every key.",
    )
    command.add_argument("scenario", nargs="?", metavar="SCENARIO.toml")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="fixed",
        help="override one key, such as switch.order=round-robin or traffic.probe.size='128 B'",
    )  # fmt: skip
    command.add_argument(
        "--sweep", action="append", default=[], metavar="KEY=A,B,C", dest="swept",
        help="run every combination of the values; give it once per key",
    )  # fmt: skip
    command.add_argument(
        "-o", "--output", metavar="FILE", help="keep the records (JSON lines); resumes"
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
        return _print_parameters(args.parameters)
    if not args.scenario:
        raise InputError(
            "weft simulate", "no scenario given", "name a TOML file, see docs/simulate.md"
        )
    if args.jobs < 1:
        raise InputError("--jobs", f"{args.jobs} is too few", "use 1 or more")
    path = Path(args.scenario)
    source = Source(data=load_toml(path), where=str(path), base=path.parent)
    swept = {key: _values(text) for key, text in map(_assignment, args.swept)}
    todo = points({k: _value(v) for k, v in map(_assignment, args.fixed)}, swept)
    identities = check_points(source, todo)
    stored = _stored(args.output)
    left = [point for point, key in zip(todo, identities, strict=True) if key not in stored]
    if len(left) < len(todo):
        print(
            f"resuming: {len(todo) - len(left)} of {len(todo)} points are stored", file=sys.stderr
        )
    records = _run_points(args, source, left)
    everything = stored | {identity(record): record for record in records}
    ordered = [everything[key] for key in identities if key in everything]
    if args.output and len(ordered) == len(todo) and all(map(_is_whole, ordered)):
        others = [record for key, record in stored.items() if key not in set(identities)]
        write_records(args.output, [*others, *ordered], this_run())
    for record in ordered:
        print(to_line(record) if args.json else f"{summary(record, flows=args.flows)}\n")
    troubles = [f"{r.label}: {note}" for r in ordered for note in r.notes if _is_trouble(note)]
    if len(ordered) < len(todo):
        troubles.append(f"interrupted with {len(ordered)} of {len(todo)} points done")
    for line in troubles:
        print(f"weft: {line}", file=sys.stderr)
    return 1 if troubles else 0


def _run_points(args: argparse.Namespace, source: Source, todo: Sequence[Point]) -> list[Record]:
    """Runs the points; an interrupt keeps those that are done, and what a lone point has so far."""
    records: list[Record] = []
    jobs = min(args.jobs, max(1, len(todo)))
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(RecordWriter(args.output)) if args.output and todo else None
        bar = stack.enter_context(ProgressBar(f"simulate {Path(args.scenario).stem}"))
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        for _, record, ended in sweep(source, todo, jobs, bar.update):
            records.append(record)
            if writer:
                writer.append(record)
            if ended == "interrupted":
                break
    return records


def _is_trouble(note: str) -> bool:
    """Notes that make the exit status 1."""
    return note.startswith(("deadlock:", "ended: deadlock", INTERRUPTED))


def _is_whole(record: Record) -> bool:
    return not any(note.startswith(INTERRUPTED) for note in record.notes)


def _stored(output: str | None) -> dict[tuple[str, str], Record]:
    """What an earlier run has finished; points that were cut short run again."""
    if not output or not Path(output).exists():
        return {}
    return {identity(r): r for r in read_records(output).records if _is_whole(r)}


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError(repr(text), "is not KEY=VALUE", "such as switch.order=round-robin")
    return key.strip(), value


def _values(text: str) -> list[Any]:
    values = [_value(item) for item in text.split(",") if item.strip()]
    if not values:
        raise InputError(
            "--sweep", f"{text!r} has no values", "such as traffic.senders.window=1,8,64"
        )
    return values


def _value(text: str) -> Any:
    """A TOML value where it is one (8, true, [1, 2]), else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _print_parameters(system: str) -> int:
    if system not in system_names():
        known = ", ".join(system_names())
        raise InputError("--parameters", f"{system!r} is not a system", f"use one of {known}")
    for p in parameters(system):
        print(f"{p.section}.{p.key} = {p.value}")
        for label, text in (("meaning", p.meaning), ("source", p.source)):
            print(
                textwrap.fill(
                    f"{label}: {text}", 96, initial_indent="    ", subsequent_indent="        "
                )
            )
    return 0
