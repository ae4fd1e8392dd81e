"""Applications under less of the link: `weft profile`, `weft corun`, `weft apps`.

`weft profile`: how much slower a real command is with less of the link. `weft corun`: applications
beside each other: one queue, equal queues, weft's weights. `weft apps`: the table of applications
and how sensitive each is to bandwidth.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from math import inf
from pathlib import Path

from weft.cli.testbed import parse_link_rate
from weft.control.policy.lending import estimate_volume
from weft.corun.rounds import (
    SCHEMES,
    build_identity,
    build_schemes,
    compute_outcome,
    format_outcome,
)
from weft.corun.rounds import Plan as CoRunPlan
from weft.corun.run_rounds import CoRunCampaign
from weft.errors import InputError
from weft.host.machine.processes import hold_lock
from weft.host.testbed import persistent
from weft.records import Record, check_output, replace_file, write_text
from weft.records.schema import describe_run
from weft.sensitivity.application import (
    Application,
    CurveRow,
    build_curve,
    check_name,
    default_shares,
    parse_shares,
)
from weft.sensitivity.application_table import (
    AppTable,
    default_directory,
    format_application,
    format_table_of_applications,
    read_application,
    to_json,
)
from weft.sensitivity.place import (
    Place,
    build_cluster_place,
    build_interface_place,
    describe_testbed,
    open_testbed_place,
)
from weft.sensitivity.profiler import (
    FIRST_LIMIT_S,
    Plan,
    RunLog,
    TimeForecast,
    forecast_time,
    format_duration,
    profile_command,
    read_first_run,
    remaining_s,
)
from weft.sensitivity.run_command import CommandRun, check_command
from weft.units import format_count


def run(args: argparse.Namespace) -> int:
    command = tuple(args.command[1:] if args.command[:1] == ["--"] else args.command)
    shares, repeat = tuple(parse_shares(args.percent)), parse_number(args.repeat, "--repeat")
    timeout_s, seed = parse_seconds(args.timeout), _choose_seed(args.seed)
    table = AppTable(Path(args.table) if args.table else default_directory())
    check_command(command)
    if check_name(args.name, "--name") in table.names() and not args.replace and not args.dry_run:
        raise table.already_stored(args.name)
    with _hold_profile_lock(table, args.name), _choose_place(args) as place:
        place.check_share(shares[0])
        plan = Plan(
            name=args.name,
            command=command,
            shares=shares,
            repeat=repeat,
            place=place.description,
            link_bps=place.link_bps,
            seed=seed,
            directory=os.readlink("/proc/self/cwd"),
        )
        path = table.directory / f"{args.name}.runs.jsonl"
        if args.restart and not args.dry_run:
            path.unlink(missing_ok=True)
        log = RunLog(path, plan)
        if args.dry_run:
            _forecast(log, place, timeout_s, as_json=args.json)
            return 0
        application = _run_profile(log, place, timeout_s)
        stored = table.save(application, replace=args.replace)
        log.remove()
    _show(application, stored, as_json=args.json)
    return 0


@contextmanager
def _hold_profile_lock(table: AppTable, name: str) -> Iterator[None]:
    lock = table.directory / f"{name}.runs.lock"
    with table.ensure_directory(), hold_lock(lock, f"profile {name}", "weft profile", 0):
        yield


def _choose_place(args: argparse.Namespace) -> AbstractContextManager[Place]:
    if (args.testbed is None) == (args.interface is None):
        raise InputError(
            "profile",
            "no links are named, or two kinds of them",
            "give --testbed or --interface, one of them",
        )
    if args.testbed is not None:
        if args.rate is not None:
            raise InputError("--rate", "a testbed has its own", "leave it out")
        if args.sending_only or args.cluster is not None:
            option = "--sending-only" if args.sending_only else "--cluster"
            raise InputError(option, "is of interfaces", "give --interface, or leave it out")
        return open_testbed_place(args.testbed, args.host)
    if args.host is not None:
        raise InputError("--host", "is of a testbed", "give --testbed, or leave it out")
    rate = None if args.rate is None else parse_link_rate(args.rate, "--rate")
    allowed = {"allow_default_route": args.even_default_route, "sending_only": args.sending_only}
    if args.cluster is not None:
        return nullcontext(build_cluster_place(args.cluster, args.interface, rate, **allowed))
    return nullcontext(build_interface_place(args.interface, rate, **allowed))


# ---- Running ----------------------------------------------------------------------------------


def _run_profile(log: RunLog, place: Place, timeout_s: float | None) -> Application:
    if log.logged.runs:
        _report(f"resumes after {len(log.logged.runs)} of {len(log.plan.order)} runs")
    header = describe_run()
    machine = {"host": header.host, "os": header.os, "cpu": header.cpu, "weft": header.weft_version}
    with _keep_runs(log), place.capping() as links:

        def run_at(share: float, limit_s: float, where: str) -> CommandRun:
            links.cap(share)
            command_run = place.run(log.plan.command, limit_s=limit_s, where=where)
            links.check(share)
            return command_run

        return profile_command(
            log, run_at, _report, timeout_s=timeout_s, machine=machine, date=header.started
        )


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _keep_runs(log: RunLog) -> Iterator[None]:
    """If the block ends early: reports how many runs are kept, and removes a log without runs."""
    try:
        yield
    except InputError as error:
        summary = _summarize_kept(log)
        remedy = f"{error.remedy}; {summary}" if summary else error.remedy
        raise InputError(error.where, error.problem, remedy) from error
    except KeyboardInterrupt:
        _report(_summarize_kept(log) or "no run is kept")
        raise


def _summarize_kept(log: RunLog) -> str:
    if not log.logged.runs:
        log.remove()
        return ""
    done = f"{len(log.logged.runs)} of {len(log.plan.order)}"
    return f"{done} runs are kept: repeat the command to continue"


def _forecast(log: RunLog, place: Place, timeout_s: float | None, *, as_json: bool) -> None:
    left_s = remaining_s(log)
    if left_s is not None:
        runs = len(log.plan.order) - len(log.logged.runs)
        forecast = TimeForecast(runs=runs, expected_s=left_s, least_s=left_s, most_s=left_s)
        runs_left = format_count(runs, "run")
        text = f"an unfinished profile has {runs_left} left: about {format_duration(left_s)}"
    else:
        command_run = place.run(
            log.plan.command,
            limit_s=timeout_s or FIRST_LIMIT_S,
            where=f"{log.plan.command[0]}, first run",
        )
        first, estimate = read_first_run(log.plan, command_run, _report)
        forecast = forecast_time(log.plan, first, estimate)
        times_s = forecast.expected_s, forecast.least_s, forecast.most_s
        expected, least, most = map(format_duration, times_s)
        bounds = f"at least {least}, at most {most}"
        text = f"a first run and {forecast.runs} more: about {expected} ({bounds})"
    print(json.dumps(asdict(forecast)) if as_json else text)


def _show(application: Application, stored: Path, *, as_json: bool) -> None:
    if as_json:
        quality = asdict(application.convex.quality)
        print(json.dumps({"name": application.name, "file": str(stored), "quality": quality}))
        return
    print(format_application(application, build_curve(application, default_shares(application))))
    print(f"\nstored in {stored}")


# ---- Options ----------------------------------------------------------------------------------


def parse_number(text: str, where: str) -> int:
    """A whole number from an option."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InputError(f"{where} {text}", "is not a number", "write it in digits")
    return int(text)


def _choose_seed(text: str | None) -> int:
    return secrets.randbits(32) if text is None else parse_number(text, "--seed")


def parse_seconds(text: str | None) -> float | None:
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


# ---- weft corun -------------------------------------------------------------------------------


def run_corun(args: argparse.Namespace) -> int:
    table = AppTable(Path(args.table) if args.table else default_directory())
    timeout_s = parse_seconds(args.timeout)
    plan = CoRunPlan(
        names=tuple(args.names),
        seed=_choose_seed(args.seed),
        repeat=parse_number(args.repeat, "--repeat"),
        runs=parse_number(args.runs, "--runs"),
    )
    applications = [_check_runnable(table.load(name)) for name in plan.names]
    wiring = persistent.find_testbed(args.testbed).wiring
    link_bps = wiring.rate_bps
    _check_link(applications, link_bps)
    where = describe_testbed(args.testbed, args.host or wiring.hosts[0], wiring)
    place = f"{where}, links of {link_bps / 1e6:.12g} Mb/s"
    plan = replace(plan, identity=build_identity(applications, place, str(Path.cwd())))
    models = [application.convex.model for application in applications]
    schemes = build_schemes(models, link_bps, [*map(estimate_volume, applications)])
    campaign = CoRunCampaign(plan=plan, applications=applications, schemes=schemes)
    if args.dry_run:
        _forecast_rounds(campaign, as_json=args.json)
        return 0
    campaign, records = campaign.resume(args.output)
    try:
        campaign.measure(
            records,
            testbed=args.testbed,
            host=args.host,
            path=args.output,
            timeout_s=timeout_s,
            report=partial(print, file=sys.stderr, flush=True),
        )
    finally:
        _show_outcome(campaign, records, as_json=args.json)
    return 0


def _check_runnable(application: Application) -> Application:
    if not application.profile.command:
        problem = "its command is unknown"
        raise InputError(f"application {application.name}", problem, "profile it with weft profile")
    check_command(application.profile.command)
    return application


def _check_link(applications: Sequence[Application], link_bps: float) -> None:
    for application in applications:
        profiled_bps = application.profile.link_bps
        if profiled_bps != link_bps:
            problem = (
                f"profiled on a link of {profiled_bps or 0:g} b/s, the testbed's are {link_bps:g}"
            )
            remedy = "profile it on this testbed"
            raise InputError(f"application {application.name}", problem, remedy)


# ---- Output of weft corun ---------------------------------------------------------------------


def _forecast_rounds(campaign: CoRunCampaign, *, as_json: bool) -> None:
    plan, schemes = campaign.plan, campaign.schemes
    expected_s = sum(map(campaign.predict_s, plan.rounds))
    if as_json:
        rounds, values = len(plan.rounds), {name: asdict(s) for name, s in schemes.items()}
        print(json.dumps({"rounds": rounds, "expected_s": expected_s, "schemes": values}))
        return
    weighted = [schemes[name] for name in SCHEMES if schemes[name].weights]
    for n, application in enumerate(plan.names):
        cells = [f"{s.name} {100 * s.weights[n]:.1f} % {s.lent[n]:.2f}" for s in weighted]
        print(f"{application}: weight and predicted slowdown {', '.join(cells)}")
    print(f"{format_count(len(plan.rounds), 'round')}: about {format_duration(expected_s)}")


def _show_outcome(campaign: CoRunCampaign, records: Sequence[Record], *, as_json: bool) -> None:
    """Nothing before each application has run alone: there is no slowdown yet."""
    outcome = compute_outcome(campaign.plan.names, campaign.schemes, records)
    if outcome is None:
        return
    if as_json:
        print(json.dumps(_to_json_value(asdict(outcome))))
    else:
        print(format_outcome(outcome, campaign.schemes))


def _to_json_value(value: object) -> object:
    """JSON has no infinity, so that an interval of one repetition is null, and no pairs as keys."""
    if isinstance(value, dict):
        return {
            " over ".join(key) if isinstance(key, tuple) else key: _to_json_value(inner)
            for key, inner in value.items()
        }
    return None if value == inf else value


# ---- weft apps --------------------------------------------------------------------------------

FIGURES = (".svg", ".png")


def _open_table(args: argparse.Namespace) -> AppTable:
    return AppTable(Path(args.table) if args.table else default_directory())


def run_list(args: argparse.Namespace) -> int:
    """Status 1 where a file is damaged; the others are listed."""
    applications, damaged = _open_table(args).all()
    if args.json:
        for application in applications:
            print(json.dumps(_build_summary(application), ensure_ascii=False))
    elif applications or damaged:
        print(format_table_of_applications(applications))
    else:
        print(f"No application in {_open_table(args).directory}.")
    for error in damaged:
        print(f"weft: {error}", file=sys.stderr)
    return int(bool(damaged))


def run_show(args: argparse.Namespace) -> int:
    application = _open_table(args).load(args.name)
    shares = parse_shares(args.percent) if args.percent else default_shares(application)
    figure = _check_figure_file(args.figure) if args.figure else None
    rows = build_curve(application, shares)
    if figure is not None:
        _draw(application, figure)
    if args.json:
        print(json.dumps(_build_detail(application, rows), ensure_ascii=False))
    else:
        print(format_application(application, rows))
    return 0


def run_export(args: argparse.Namespace) -> int:
    text = to_json(_open_table(args).load(args.name))
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    return 0


def run_import(args: argparse.Namespace) -> int:
    """All files are read before the first is stored: a damaged one changes nothing."""
    table = _open_table(args)
    applications = [read_application(path) for path in args.files]
    _check_different(applications)
    present = table.names()
    for application in applications:
        if application.name in present and not args.replace:
            raise table.already_stored(application.name)
    for application in applications:
        table.save(application, replace=args.replace)
    _print_changed("imported", [a.name for a in applications], as_json=args.json)
    return 0


def run_remove(args: argparse.Namespace) -> int:
    table = _open_table(args)
    names = list(dict.fromkeys(args.names))
    for name in names:
        table.find_file(name)
    for name in names:
        table.remove(name)
    _print_changed("removed", names, as_json=args.json)
    return 0


def _check_different(applications: Sequence[Application]) -> None:
    names = [application.name for application in applications]
    for name in names:
        if names.count(name) > 1:
            raise InputError("import", f"two files of {name!r}", "import one of them")


def _print_changed(action: str, names: Sequence[str], *, as_json: bool) -> None:
    print(json.dumps({action: list(names)}) if as_json else f"{action} {', '.join(names)}")


def _check_figure_file(path: str) -> Path:
    if Path(path).suffix not in FIGURES:
        raise InputError(f"--figure {path}", "not .svg or .png", "name such a file")
    check_output(path)
    return Path(path)


def _draw(application: Application, path: Path) -> None:
    # Plots take half a second to import.
    from weft.plot import figure, to_png, to_svg
    from weft.sensitivity.application_table import sensitivity_curve

    drawing = figure(lambda ax: sensitivity_curve(ax, application))
    if path.suffix == ".svg":
        write_text(path, to_svg(drawing, title=f"Slowdown of {application.name}"))
    else:
        with replace_file(path) as file:
            file.write_bytes(to_png(drawing))


def _build_summary(application: Application) -> dict[str, object]:
    profile, quality = application.profile, application.convex.quality
    return {
        "name": application.name,
        "runs": len(profile.runs),
        "shares": sorted({run.share for run in profile.runs}),
        "link_bps": profile.link_bps,
        "floor": application.floor,
        "slowdown_at_floor": float(application.convex.model.slowdown(application.floor)),
        "quality": asdict(quality),
        "date": profile.date,
    }


def _build_detail(application: Application, rows: Sequence[CurveRow]) -> dict[str, object]:
    stored: dict[str, object] = json.loads(to_json(application))
    curve = [asdict(row) for row in rows]
    return stored | {"curve": curve, "notes": list(application.warnings)}
