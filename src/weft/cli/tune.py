"""`weft tune PEER --over TRANSPORT --goal GOAL`: measure little, fit, recommend, confirm.

`weft tune FILE ...` recommends from stored records, without measuring.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from weft.cli.progress import ProgressBar
from weft.cli.tests import WITHOUT_PEER, add_settings, read_settings
from weft.errors import InputError
from weft.host.machine.examination import read_provenance_facts
from weft.measure.peer.client import LOCAL, open_peer
from weft.measure.settings.options import options_of
from weft.measure.settings.values import integer_reader, read_time_ns
from weft.measure.tests.catalog import TESTS
from weft.records import Plain, RecordWriter, check_output, describe_run, to_line, write_records
from weft.sweep_grammar import expand_values
from weft.tune.rules.read_evidence import read_evidence
from weft.tune.search.design import POINT_S
from weft.tune.search.from_records import tune_records
from weft.tune.search.goal import GOALS, find_goal
from weft.tune.search.over_fabric import PreparedTuning, prepare_tuning
from weft.tune.search.space import CHOICES
from weft.tune.search.tuning import Tuning
from weft.tune.search.tuning_record import build_stored_record, build_tuning_record
from weft.tune.search.tuning_text import format_plan, format_stored, format_tuning
from weft.wire import read_token

MEASURING_OPTIONS = ("budget", "token_file", "dry_run")
SUFFIX = ".jsonl"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "tune",
        help="find the best settings for a goal, and prove them",
        description="Measures a small designed set of settings, fits the models to it, recommends, "
        "and measures the recommendation beside the default. A setting that is given is not a "
        "choice; several values (--size 4K..1M*4) limit it. See docs/tune.md.",
        usage="weft tune [PEER | RECORDS ...] [--over TRANSPORT] [--goal GOAL] "
        "[--SETTING VALUE ...] [-o FILE]",
        allow_abbrev=False,
    )
    command.add_argument(
        "targets",
        nargs="*",
        metavar="PEER | RECORDS",
        help="HOST[:PORT] of a weft serve, or local: one is started for this command; or files of "
        "records, from which to tune without measuring",
    )
    goals = ", ".join(GOALS)
    command.add_argument(
        "--goal", default="throughput", metavar="GOAL", help=f"what is best: {goals}"
    )
    command.add_argument("--budget", metavar="SECONDS", help="time for everything")
    command.add_argument("--point", metavar="TIME", help=f"timed part of each point [{POINT_S} s]")
    command.add_argument("--dry-run", action="store_true", help="print the plan; measure nothing")
    command.add_argument("-o", "--output", metavar="FILE", help="keep the records (JSON lines)")
    command.add_argument("--json", action="store_true", help="the result as a record")
    command.add_argument("--token-file", metavar="FILE", help="the token that the peer asks for")
    add_settings(command, TESTS["bandwidth"])
    command.add_argument("--transport", dest="over", metavar="TRANSPORT", help="same as --over")
    command.set_defaults(run=run)


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
    tuning = _run_tuning(args, prepared)
    print(
        to_line(build_tuning_record(tuning)) if args.json else format_tuning(tuning, peer=args.peer)
    )
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


def _run_tuning(args: argparse.Namespace, prepared: PreparedTuning) -> Tuning:
    with contextlib.ExitStack() as stack:
        peer = None
        if prepared.needs_peer:
            token = read_token(args.token_file) if args.token_file else None
            peer = stack.enter_context(open_peer(args.peer, token))
        writer = None
        if args.output:
            header = describe_run(sys.argv, **read_provenance_facts())
            writer = stack.enter_context(RecordWriter(args.output, header))
        bar = stack.enter_context(ProgressBar("weft tune"))
        keep = writer.append if writer else lambda _: None
        tuning = prepared.run(peer, keep, bar.update)
        if writer:
            writer.append(build_tuning_record(tuning))
    return tuning


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
