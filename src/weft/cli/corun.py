"""`weft corun`: applications beside each other: one queue, equal queues, weft's weights."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from math import inf
from pathlib import Path

from weft.cli.profile import parse_number, parse_seconds
from weft.control.policy.lending import estimate_volume
from weft.corun.outcome import compute_outcome, format_outcome
from weft.corun.rounds import SCHEMES, Plan, build_identity, build_schemes
from weft.corun.run_rounds import CoRunCampaign
from weft.errors import InputError
from weft.host.testbed import persistent
from weft.records import Record
from weft.sensitivity.application import Application
from weft.sensitivity.application_table import AppTable, default_directory
from weft.sensitivity.place import describe_testbed
from weft.sensitivity.profiler import format_duration
from weft.sensitivity.run_command import check_command
from weft.units import format_count


def run(args: argparse.Namespace) -> int:
    table = AppTable(Path(args.table) if args.table else default_directory())
    timeout_s = parse_seconds(args.timeout)
    plan = Plan(
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
        _forecast(campaign, as_json=args.json)
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
        _show(campaign, records, as_json=args.json)
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


def _choose_seed(text: str | None) -> int:
    return secrets.randbits(32) if text is None else parse_number(text, "--seed")


# ---- Output -----------------------------------------------------------------------------------


def _forecast(campaign: CoRunCampaign, *, as_json: bool) -> None:
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


def _show(campaign: CoRunCampaign, records: Sequence[Record], *, as_json: bool) -> None:
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
