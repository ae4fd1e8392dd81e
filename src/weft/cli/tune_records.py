"""`weft tune FILE ...`: recommend from stored records, without measuring."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from weft.cli.measurement import given_settings
from weft.errors import InputError
from weft.measure.peer.client import LOCAL
from weft.measure.settings.options import options_of
from weft.measure.settings.sweep import listed_values
from weft.measure.tests.catalog import TESTS
from weft.records import Plain, check_output, to_line, write_records
from weft.tune.rules.read_evidence import read_evidence
from weft.tune.search.from_records import tune_records
from weft.tune.search.goal import goal_named
from weft.tune.search.space import CHOICES
from weft.tune.search.stored_text import stored_record, stored_text

OF_MEASURING = ("budget", "token_file", "dry_run")
SUFFIX = ".jsonl"


def are_records(given: Sequence[str]) -> bool:
    """Whether the words name files rather than a peer."""
    return any(word.endswith(SUFFIX) or "/" in word or Path(word).is_file() for word in given)


def one_peer(given: Sequence[str]) -> str:
    if len(given) > 1:
        problem = f"{len(given)} peers, and none is a file of records"
        raise InputError(" ".join(given), problem, "tune with one peer at a time")
    return given[0] if given else LOCAL


def run_records(args: argparse.Namespace) -> int:
    for name in OF_MEASURING:
        if getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(option, "nothing is measured when tuning from records", "leave it out")
    if args.output:
        check_output(args.output)
        if Path(args.output).resolve() in {Path(path).resolve() for path in args.given}:
            raise InputError(args.output, "also an input, and would be lost", "name another file")
    settings = given_settings(args, TESTS["bandwidth"])
    over, endpoint = (str(settings.pop(name, "")) for name in ("over", "endpoint"))
    evidence = read_evidence(args.given, over=over, endpoint=endpoint)
    stored = tune_records(evidence, goal_named(args.goal), _limits(settings))
    record = stored_record(stored)
    if args.output:
        write_records(args.output, [record])
    print(to_line(record) if args.json else stored_text(stored))
    return 0


def _limits(settings: dict[str, object]) -> dict[str, list[Plain]]:
    """Levels by field of the settings given; only choices can be limited."""
    options = options_of(TESTS["bandwidth"].settings)
    found: dict[str, list[Plain]] = {}
    for name, text in settings.items():
        field, option = options[name]
        if field not in CHOICES:
            problem = "is not a choice, and the records are as they were measured"
            raise InputError(f"--{name}", problem, "leave it out, or give other files")
        found[field] = listed_values(option.read, str(text), f"--{name}")
    return found
