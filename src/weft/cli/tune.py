"""`weft tune PEER --over TRANSPORT --goal GOAL`: measure little, fit, recommend, confirm.

`weft tune FILE ...` recommends from stored records, without measuring.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from weft.cli import ProgressBar
from weft.cli.measure import WITHOUT_PEER, read_settings
from weft.errors import InputError
from weft.host.machine.examination import read_provenance_facts
from weft.measure.peer.client import LOCAL, open_peer
from weft.measure.settings.options import options_of
from weft.measure.settings.values import integer_reader, read_time_ns
from weft.measure.tests import TESTS
from weft.records import (
    Plain,
    Record,
    RecordWriter,
    check_output,
    describe_run,
    to_line,
    write_records,
)
from weft.sweep_grammar import expand_values
from weft.tune.rules.evidence import read_evidence
from weft.tune.search.design import POINT_S
from weft.tune.search.from_records import tune_records
from weft.tune.search.over_fabric import PreparedTuning, prepare_tuning
from weft.tune.search.space import CHOICES, find_goal
from weft.tune.search.tuning import Stopped
from weft.tune.search.tuning_report import (
    build_stored_record,
    build_tuning_record,
    format_plan,
    format_stored,
    format_tuning,
)
from weft.wire import read_token

MEASURING_OPTIONS = ("budget", "token_file", "dry_run")
SUFFIX = ".jsonl"


def run(args: argparse.Namespace) -> int:
    if _are_records(args.targets):
        if args.point is not None:
            raise InputError(
                "--point", "nothing is measured when tuning from records", "leave it out"
            )
        return _run_records(args)
    args.peer = _check_one_peer(args.targets)
    settings = read_settings(args, TESTS["bandwidth"])
    seed = int(integer_reader(0, 2**63 - 1)(settings.get("seed", 1), "--seed"))
    budget_s, point_s = (
        _parse_seconds(args.budget, "--budget"),
        _parse_seconds(args.point, "--point"),
    )
    prepared = prepare_tuning(
        settings,
        goal=args.goal,
        budget_s=budget_s,
        seed=seed,
        point_s=POINT_S if point_s is None else point_s,
    )
    if not prepared.needs_peer and args.peer != LOCAL:
        transport = prepared.base.route.transport
        raise InputError(f"{args.peer} --over {transport}", WITHOUT_PEER[transport], "leave it out")
    if args.output:
        check_output(args.output)
    print(format_plan(prepared), file=sys.stdout if args.dry_run else sys.stderr, flush=True)
    if args.dry_run:
        return 0
    return _run_tuning(args, prepared)


def _run_tuning(args: argparse.Namespace, prepared: PreparedTuning) -> int:
    """Prints the recommendation before it is stored: a full disk must not lose it."""
    with contextlib.ExitStack() as stack:
        peer = writer = None
        if prepared.needs_peer:
            token = read_token(args.token_file) if args.token_file else None
            peer = stack.enter_context(open_peer(args.peer, token))
        if args.output:
            header = describe_run(sys.argv, **read_provenance_facts())
            writer = stack.enter_context(RecordWriter(args.output, header))
        with ProgressBar("weft tune") as bar:
            tuning = prepared.run(peer, partial(_store, writer), bar.update)
        record = build_tuning_record(tuning)
        print(to_line(record) if args.json else format_tuning(tuning, peer=args.peer))
        if writer:
            writer.append(record)
    return 1 if tuning.ended else 0


def _parse_seconds(text: str | None, where: str) -> float | None:
    """Seconds of "20", "20 s" or "500ms"; finite and above 0."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = int(read_time_ns(text, where)) / 1e9
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(where, f"{text!r} is no time to measure for", "write such as 20 or 500ms")
    return seconds


def _store(writer: RecordWriter | None, record: Record) -> None:
    try:
        if writer:
            writer.append(record)
    except InputError as error:
        raise Stopped(str(error)) from error


def _are_records(targets: Sequence[str]) -> bool:
    """Whether the words name files rather than a peer."""
    return any(word.endswith(SUFFIX) or "/" in word or Path(word).is_file() for word in targets)


def _check_one_peer(targets: Sequence[str]) -> str:
    if len(targets) > 1:
        problem = f"{len(targets)} peers, and none is a file of records"
        raise InputError(" ".join(targets), problem, "tune with one peer at a time")
    return targets[0] if targets else LOCAL


def _run_records(args: argparse.Namespace) -> int:
    for name in MEASURING_OPTIONS:
        if getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(option, "nothing is measured when tuning from records", "leave it out")
    if args.output:
        check_output(args.output)
        if Path(args.output).resolve() in {Path(path).resolve() for path in args.targets}:
            raise InputError(args.output, "also an input, and would be lost", "name another file")
    settings = read_settings(args, TESTS["bandwidth"])
    over, endpoint = (str(settings.pop(name, "")) for name in ("over", "endpoint"))
    evidence = read_evidence(args.targets, over=over, endpoint=endpoint)
    stored = tune_records(evidence, find_goal(args.goal), _read_limits(settings))
    record = build_stored_record(stored)
    if args.output:
        write_records(args.output, [record])
    print(to_line(record) if args.json else format_stored(stored))
    return 0


def _read_limits(settings: dict[str, object]) -> dict[str, list[Plain]]:
    """The levels that options allow, by field; only choices can be limited."""
    options = options_of(TESTS["bandwidth"].settings)
    limits: dict[str, list[Plain]] = {}
    for name, text in settings.items():
        field, option = options[name]
        if field not in CHOICES:
            problem = "is not a choice, and the records are as they were measured"
            raise InputError(f"--{name}", problem, "leave it out, or give other files")
        limits[field] = expand_values(option.read, str(text), f"--{name}")
    return limits
