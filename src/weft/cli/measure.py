"""`weft measure PLAN.toml`: flows between many hosts, started together."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from weft.cli.progress import ProgressBar
from weft.measure.plan import Plan, load_plan
from weft.measure.run_plan import format_steps, run_plan
from weft.records import Record, RecordWriter, check_output, to_summary_line
from weft.records.record_text import format_simulation


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
            records.append(record)
            if args.json:
                print(to_summary_line(record), flush=True)
            if args.output and writer is None:
                writer = stack.enter_context(RecordWriter(args.output))
            if writer:
                writer.append(record)


def _show(records: list[Record], flows: bool) -> None:
    """One step in full, several as a table; in full too where flows are asked for."""
    if len(records) == 1 or flows:
        print("\n\n".join(format_simulation(record, flows=flows) for record in records))
    elif records:
        print(f"{records[0].name}\n\n{format_steps(records)}")
        print("", *dict.fromkeys(note for record in records for note in record.notes), sep="\n")
