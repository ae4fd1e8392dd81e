"""`weft profile`: how much slower a real command is with less of the link."""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from weft.cli.testbed import parse_link_rate
from weft.errors import InputError
from weft.host.net.file_lock import hold_lock
from weft.host.testbed.persistent import DEFAULT_NAME
from weft.records.schema import describe_run
from weft.sensitivity.application import (
    Application,
    build_curve,
    check_name,
    default_shares,
    parse_shares,
)
from weft.sensitivity.application_table import AppTable, default_directory
from weft.sensitivity.application_text import application_text
from weft.sensitivity.place import Place, cluster_place, interface_place, testbed_place
from weft.sensitivity.profiler import (
    FIRST_LIMIT_S,
    RunLog,
    TimeForecast,
    forecast_time,
    format_duration,
    profile_command,
    read_first_run,
    remaining_s,
)
from weft.sensitivity.run_command import CommandRun, check_command
from weft.sensitivity.schedule import Plan

PERCENT = "5,10,25,50,75,90,100"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    profile = commands.add_parser(
        "profile",
        help="how much slower a real command is with less of the link",
        description="Runs a command, unmodified, with several shares of the link, in random order, "
        "and adds it to the table of `weft apps`. Needs root. Interrupted, the same command goes "
        "on.",
    )
    profile.add_argument("--name", required=True, metavar="NAME", help="in the table")
    profile.add_argument("--percent", default=PERCENT, metavar="LIST", help=PERCENT)
    profile.add_argument("--repeat", default="3", metavar="N", help="runs at each share, 3")
    profile.add_argument(
        "--testbed",
        nargs="?",
        const=DEFAULT_NAME,
        metavar="NAME",
        help="cap all cables of a testbed",
    )
    profile.add_argument("--host", metavar="HOST", help="of the testbed, to run on; the first")
    profile.add_argument(
        "--interface", nargs="+", metavar="IF", help="cap what these send and receive"
    )
    profile.add_argument(
        "--cluster",
        metavar="tcp://HOST:PORT",
        help="cap these interfaces on every worker of a Dask cluster",
    )
    profile.add_argument(
        "--sending-only",
        action="store_true",
        help="cap what the interfaces send, not what they receive",
    )
    profile.add_argument("--rate", metavar="RATE", help="of the interfaces' link, as 1G")
    profile.add_argument(
        "--even-default-route",
        action="store_true",
        help="cap an interface though it carries the default route",
    )
    profile.add_argument("--timeout", metavar="SECONDS", help="of a run; default: from the first")
    profile.add_argument("--seed", metavar="N", help="of the order; default: another each time")
    profile.add_argument("--table", metavar="DIR", help=f"default: {default_directory()}")
    profile.add_argument("--replace", action="store_true", help="one that is in the table")
    profile.add_argument("--restart", action="store_true", help="forget an unfinished profile")
    profile.add_argument(
        "--dry-run", action="store_true", help="say how long it takes: one run, links untouched"
    )
    profile.add_argument("--json", action="store_true")
    profile.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    profile.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    command = tuple(args.command[1:] if args.command[:1] == ["--"] else args.command)
    shares, repeat = tuple(parse_shares(args.percent)), number(args.repeat, "--repeat")
    timeout_s, seed = seconds(args.timeout), _seed(args.seed)
    table = AppTable(Path(args.table) if args.table else default_directory())
    check_command(command)
    if check_name(args.name, "--name") in table.names() and not args.replace and not args.dry_run:
        raise table.taken(args.name)
    with _alone(table, args.name), _place(args) as place:
        place.check_share(shares[0])
        plan = Plan(
            name=args.name,
            command=command,
            shares=shares,
            repeat=repeat,
            place=place.what,
            link_bps=place.link_bps,
            seed=seed,
            directory=_working_directory(),
        )
        path = table.directory / f"{args.name}.runs.jsonl"
        if args.restart and not args.dry_run:
            path.unlink(missing_ok=True)
        log = RunLog(path, plan)
        if args.dry_run:
            _foretell(log, place, timeout_s, as_json=args.json)
            return 0
        application = _profile(log, place, timeout_s)
        stored = table.save(application, replace=args.replace)
        log.remove()
    _show(application, stored, as_json=args.json)
    return 0


@contextmanager
def _alone(table: AppTable, name: str) -> Iterator[None]:
    lock = table.directory / f"{name}.runs.lock"
    with table.made(), hold_lock(lock, f"profile {name}", "weft profile", 0):
        yield


def _place(args: argparse.Namespace) -> AbstractContextManager[Place]:
    if (args.testbed is None) == (args.interface is None):
        raise InputError("profile", "which links?", "give --testbed or --interface, one of them")
    if args.testbed is not None:
        if args.rate is not None:
            raise InputError("--rate", "a testbed has its own", "leave it out")
        if args.sending_only or args.cluster is not None:
            option = "--sending-only" if args.sending_only else "--cluster"
            raise InputError(option, "is of interfaces", "give --interface, or leave it out")
        return testbed_place(args.testbed, args.host)
    if args.host is not None:
        raise InputError("--host", "is of a testbed", "give --testbed, or leave it out")
    rate = None if args.rate is None else parse_link_rate(args.rate, "--rate")
    allowed = {"allow_default_route": args.even_default_route, "sending_only": args.sending_only}
    if args.cluster is not None:
        return nullcontext(cluster_place(args.cluster, args.interface, rate, **allowed))
    return nullcontext(interface_place(args.interface, rate, **allowed))


# ---- Running ----------------------------------------------------------------------------------


def _profile(log: RunLog, place: Place, timeout_s: float | None) -> Application:
    if log.logged.runs:
        _tell(f"resumes after {len(log.logged.runs)} of {len(log.plan.order)} runs")
    header = describe_run()
    machine = {"host": header.host, "os": header.os, "cpu": header.cpu, "weft": header.weft_version}
    with _kept(log), terminable(), place.capping() as links:

        def run_at(share: float, limit_s: float, where: str) -> CommandRun:
            links.cap(share)
            ran = place.run(log.plan.command, limit_s=limit_s, where=where)
            links.check(share)
            return ran

        return profile_command(
            log, run_at, _tell, timeout_s=timeout_s, machine=machine, date=header.started
        )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _kept(log: RunLog) -> Iterator[None]:
    """Whatever ends the block early: says what is kept, and keeps nothing if nothing counts."""
    try:
        yield
    except InputError as error:
        told = _what_is_kept(log)
        remedy = f"{error.remedy}; {told}" if told else error.remedy
        raise InputError(error.where, error.problem, remedy) from error
    except KeyboardInterrupt:
        _tell(_what_is_kept(log) or "no run is kept")
        raise


def _what_is_kept(log: RunLog) -> str:
    if not log.logged.runs:
        log.remove()
        return ""
    done = f"{len(log.logged.runs)} of {len(log.plan.order)}"
    return f"{done} runs are kept, the same command goes on with them"


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: the command is ended, the links are restored."""
    had = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, had)


def _foretell(log: RunLog, place: Place, timeout_s: float | None, *, as_json: bool) -> None:
    left = remaining_s(log)
    if left is not None:
        runs = len(log.plan.order) - len(log.logged.runs)
        found = TimeForecast(runs=runs, expected_s=left, least_s=left, most_s=left)
        text = f"{runs} runs are left of an unfinished profile: about {format_duration(left)}"
    else:
        with terminable():
            ran = place.run(
                log.plan.command,
                limit_s=timeout_s or FIRST_LIMIT_S,
                where=f"{log.plan.command[0]}, first run",
            )
        first, estimate = read_first_run(log.plan, ran, _tell)
        found = forecast_time(log.plan, first, estimate)
        bounds = (
            f"at least {format_duration(found.least_s)}, at most {format_duration(found.most_s)}"
        )
        expected = format_duration(found.expected_s)
        text = f"{found.runs} runs and a first one: about {expected} ({bounds})"
    print(json.dumps(asdict(found)) if as_json else text)


def _show(application: Application, stored: Path, *, as_json: bool) -> None:
    if as_json:
        quality = asdict(application.convex.quality)
        print(json.dumps({"name": application.name, "file": str(stored), "quality": quality}))
        return
    print(application_text(application, build_curve(application, default_shares(application))))
    print(f"\nstored in {stored}")


# ---- Options ----------------------------------------------------------------------------------


def number(text: str, where: str) -> int:
    """A whole number from an option."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InputError(f"{where} {text}", "is not a number", "write it in digits")
    return int(text)


def _working_directory() -> str:
    return os.readlink("/proc/self/cwd")  # is told though it is gone


def _seed(text: str | None) -> int:
    return secrets.randbits(32) if text is None else number(text, "--seed")


def seconds(text: str | None) -> float | None:
    """A time from an option; None where it was not given."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"--timeout {text}", "is not a time", "write seconds: 300")
    return value
