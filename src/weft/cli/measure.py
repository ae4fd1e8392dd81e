"""`weft measure PLAN.toml`: flows between many hosts, started together."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from weft.cli.progress import ProgressBar
from weft.measure.plan.plan import Plan, load_plan
from weft.measure.plan.run_plan import run_plan
from weft.measure.plan.step_record import format_steps
from weft.records import Record, RecordWriter, check_output, to_line
from weft.records.record_text import format_simulation


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "measure",
        help="measure patterns of traffic between many hosts",
        description="Run the steps of a plan on its hosts: processes of this machine, or the "
        "workers of a Dask cluster. See docs/many-hosts.md for every key.",
    )
    command.add_argument("plan", metavar="PLAN.toml")
    command.add_argument(
        "--cluster", metavar="tcp://HOST:PORT", help="a Dask scheduler with one worker per host"
    )
    command.add_argument(
        "--repetitions",
        type=int,
        metavar="N",
        help="run every step N times, whatever the plan says",
    )
    command.add_argument("-o", "--output", metavar="FILE", help="keep the records (JSON lines)")
    command.add_argument("--json", action="store_true", help="records on standard output")
    command.add_argument("--flows", action="store_true", help="every step in full, with each flow")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    plan = load_plan(args.plan, args.repetitions)
    if args.output:
        check_output(args.output)
    records: list[Record] = []
    try:
        _run(plan, args, records)
    finally:  # a host that was lost, too, leaves what was measured before
        if not args.json:
            _show(records, args.flows)
    missing = len(plan.steps) - len(records)
    cut_short = [record for record in records if record.ending]
    if cut_short or missing:
        print(
            f"weft: interrupted with {len(records) - len(cut_short)} of {len(plan.steps)} steps "
            "done",
            file=sys.stderr,
        )
        return 1
    return 0


def _run(plan: Plan, args: argparse.Namespace, records: list[Record]) -> None:
    """Adds each record as it comes, and stores it."""
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(f"measure {Path(args.plan).stem}"))
        writer: RecordWriter | None = None
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        for record in run_plan(plan, args.cluster, bar.update):
            if args.output and writer is None:
                writer = stack.enter_context(RecordWriter(args.output))
            if writer:
                writer.append(record)
            records.append(record)
            if args.json:
                print(to_line(record), flush=True)


def _show(records: list[Record], flows: bool) -> None:
    """One step in full, several as a table; in full too where flows are asked for."""
    if len(records) == 1 or flows:
        print("\n\n".join(format_simulation(record, flows=flows) for record in records))
    elif records:
        print(f"{records[0].name}\n\n{format_steps(records)}")
        print("", *dict.fromkeys(note for record in records for note in record.notes), sep="\n")
