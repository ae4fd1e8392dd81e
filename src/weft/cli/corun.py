"""`weft corun`: applications beside each other: one queue, equal queues, weft's weights."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import inf
from pathlib import Path

from weft.cli.profile import number, seconds, terminable
from weft.control.policy.lending import estimate_volume
from weft.corun.experiment import run_together
from weft.corun.outcome import compute_outcome, format_outcome, format_unmarked
from weft.corun.rounds import (
    UNMARKED,
    Plan,
    Round,
    build_identity,
    build_record,
    check_resumable,
    list_remaining,
    read_completions,
    read_fraction,
)
from weft.corun.schemes import ALONE, EQUAL, ONE, SCHEMES, Scheme, build_schemes
from weft.corun.testbed_runner import Job, TestbedRunner, open_testbed_runner, read_processor_times
from weft.errors import InputError
from weft.host.testbed import persistent
from weft.records import Record, RecordWriter, check_output, read_records
from weft.sensitivity.application import Application
from weft.sensitivity.application_table import AppTable, default_directory
from weft.sensitivity.place import testbed_text
from weft.sensitivity.profiler import format_duration
from weft.sensitivity.run_command import check_command

_SLOWER, _SPARE_S = 10, 30.0  # than alone, times the number of applications: then it is stuck
_BESIDE = 2  # runs of a round that do not count: at its beginning and at its end


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    corun = commands.add_parser(
        "corun",
        help="applications beside each other: one queue, equal queues, weft's weights",
        description="Runs profiled applications beside each other on a testbed, again and again, "
        "in one shared queue, in equal queues, and in queues with the weights that make the total "
        "predicted slowdown least. Needs root.",
    )
    corun.add_argument("names", nargs="+", metavar="NAME", help="of the table of `weft apps`")
    corun.add_argument(
        "--testbed",
        nargs="?",
        const=persistent.DEFAULT_NAME,
        metavar="NAME",
        default=persistent.DEFAULT_NAME,
        help="where; default: default",
    )
    corun.add_argument("--host", metavar="HOST", help="to start the commands on; the first")
    corun.add_argument("--repeat", default="3", metavar="N", help="repetitions of all ways, 3")
    corun.add_argument("--runs", default="4", metavar="N", help="of each application at a time, 4")
    corun.add_argument("--timeout", metavar="SECONDS", help="for a run to end")
    corun.add_argument("--seed", metavar="N", help="of orders and delays; default: any")
    corun.add_argument("--table", metavar="DIR", help=f"default: {default_directory()}")
    corun.add_argument("-o", "--output", metavar="FILE", help="records; one that is there goes on")
    corun.add_argument("--dry-run", action="store_true", help="weights, predictions, time; no run")
    corun.add_argument("--json", action="store_true")
    corun.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    table = AppTable(Path(args.table) if args.table else default_directory())
    timeout_s = seconds(args.timeout)
    plan = Plan(
        names=tuple(args.names),
        seed=_seed(args.seed),
        repeat=number(args.repeat, "--repeat"),
        runs=number(args.runs, "--runs"),
    )
    applications = [_runnable(table.load(name)) for name in plan.names]
    wiring = persistent.find_testbed(args.testbed).wiring
    link_bps = wiring.rate_bps
    _check_link(applications, link_bps)
    where = testbed_text(args.testbed, args.host or wiring.hosts[0], wiring)
    place = f"{where}, links of {link_bps / 1e6:.12g} Mb/s"
    plan = replace(plan, identity=build_identity(applications, place, str(Path.cwd())))
    models = [application.convex.model for application in applications]
    ways = build_schemes(models, link_bps, [*map(estimate_volume, applications)])
    if args.dry_run:
        _foretell(plan, applications, ways, as_json=args.json)
        return 0
    plan, records = _gone_on_with(args.output, plan, ways)
    try:
        _measure(args, plan, applications, ways, records, timeout_s)
    finally:
        _show(plan, ways, records, as_json=args.json)
    return 0


def _runnable(application: Application) -> Application:
    if not application.profile.command:
        problem = "its command is not known"
        raise InputError(f"application {application.name}", problem, "profile it with weft profile")
    check_command(application.profile.command)
    return application


def _check_link(applications: Sequence[Application], link_bps: float) -> None:
    for application in applications:
        had = application.profile.link_bps
        if had != link_bps:
            problem = f"profiled on a link of {had or 0:g} b/s, the testbed's are {link_bps:g}"
            remedy = "profile it on this testbed"
            raise InputError(f"application {application.name}", problem, remedy)


def _seed(text: str | None) -> int:
    return secrets.randbits(32) if text is None else number(text, "--seed")


def _gone_on_with(
    path: str | None, plan: Plan, ways: Mapping[str, Scheme]
) -> tuple[Plan, list[Record]]:
    """The plan, with the seed of those who began, and what they have measured."""
    if path is None:
        return plan, []
    check_output(path)
    if not Path(path).exists():
        return plan, []
    records = [*read_records(path).records]
    check_resumable(path, plan, ways, records)
    seeds = [r.provenance.seed for r in records if r.provenance.seed is not None]
    return replace(plan, seed=seeds[0] if seeds else plan.seed), records


# ---- Measuring --------------------------------------------------------------------------------


def _measure(
    args: argparse.Namespace,
    plan: Plan,
    applications: Sequence[Application],
    ways: Mapping[str, Scheme],
    records: list[Record],
    timeout_s: float | None,
) -> None:
    """Every round that is due; its record is kept before the next begins."""
    jobs = [Job(name=a.name, command=a.profile.command) for a in applications]
    alone_s = [application.profile.baseline for application in applications]
    limit_s = timeout_s or _SLOWER * len(jobs) * max(alone_s) + _SPARE_S
    due = list_remaining(plan, records)
    if records:
        _tell(f"goes on after {len(plan.rounds) - len(due)} of {len(plan.rounds)} rounds")
    with (
        _kept(args.output) as keep,
        terminable(),
        open_testbed_runner(args.testbed, args.host, jobs) as stage,
    ):
        for n, one in enumerate(due):
            record = _round(stage, plan, one, ways, alone_s, limit_s)
            records.append(record)
            keep(record)
            ahead_s = sum(expected_s(plan, applications, ways, other) for other in due[n + 1 :])
            _tell(_told(one, record, ahead_s))


def _round(
    stage: TestbedRunner,
    plan: Plan,
    one: Round,
    ways: Mapping[str, Scheme],
    alone_s: Sequence[float],
    limit_s: float,
) -> Record:
    stage.share(ways[ONE if one.way == ALONE else one.way])
    idle, whole = read_processor_times()
    completions_s = run_together(stage, plan.delays_s(one, alone_s), plan.runs, limit_s)
    idle_after, whole_after = read_processor_times()
    part = (idle_after - idle) / max(1.0, whole_after - whole)
    return build_record(plan, one, ways.get(one.way), completions_s, part, stage.unmarked())


@contextmanager
def _kept(path: str | None) -> Iterator[Callable[[Record], None]]:
    if path is None:
        yield lambda _: None
        return
    with RecordWriter(path) as writer:
        yield writer.append


def expected_s(
    plan: Plan, applications: Sequence[Application], ways: Mapping[str, Scheme], one: Round
) -> float:
    """What a round takes: the slowest application's runs, as the models predict them."""
    predicted = ways[EQUAL if one.way in (ONE, ALONE) else one.way].lent
    slower = [1.0 if one.way == ALONE else predicted[n] for n in range(len(applications))]
    runs = plan.runs + (0 if one.way == ALONE else _BESIDE)
    return runs * max(applications[n].profile.baseline * slower[n] for n in one.numbers)


# ---- Words ------------------------------------------------------------------------------------


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _told(one: Round, record: Record, left_s: float) -> str:
    took = ", ".join(f"{name} {mean_s:.2f} s" for name, mean_s in read_completions(record).items())
    lost = format_unmarked(read_fraction(record, UNMARKED))
    line = f"{one.repetition + 1:>3} {one.way:>5}: {took}; {format_duration(left_s)} left"
    return f"{line}\n    {lost}" if lost else line


def _foretell(
    plan: Plan, applications: Sequence[Application], ways: Mapping[str, Scheme], *, as_json: bool
) -> None:
    ahead_s = sum(expected_s(plan, applications, ways, one) for one in plan.rounds)
    if as_json:
        found = {name: asdict(way) for name, way in ways.items()}
        print(json.dumps({"rounds": len(plan.rounds), "expected_s": ahead_s, "ways": found}))
        return
    for n, name in enumerate(plan.names):
        told = [
            f"{way} {100 * ways[way].weights[n]:.1f} % {ways[way].lent[n]:.2f}"
            for way in SCHEMES
            if ways[way].weights
        ]
        print(f"{name}: weight and predicted slowdown {', '.join(told)}")
    print(f"{len(plan.rounds)} rounds: about {format_duration(ahead_s)}")


def _show(
    plan: Plan, ways: Mapping[str, Scheme], records: Sequence[Record], *, as_json: bool
) -> None:
    """Nothing before each application has run alone: there is no slowdown yet."""
    outcome = compute_outcome(plan.names, ways, records)
    if outcome is None:
        return
    if as_json:
        print(json.dumps(_plain(asdict(outcome))))
    else:
        print(format_outcome(outcome, ways))


def _plain(value: object) -> object:
    """JSON has no infinity, so that an interval of one repetition is null, and no pairs as keys."""
    if isinstance(value, dict):
        return {
            " over ".join(key) if isinstance(key, tuple) else key: _plain(inner)
            for key, inner in value.items()
        }
    return None if value == inf else value
