"""Measurements: the tests, plans of many hosts, and the accuracy of estimators.

`weft latency`, `rperf`, `bandwidth`, `rate`, `paced`, `saturation`, `rma`, `transfer`:
one command per test of `weft.measure.tests`. Its options are the test's settings: a setting
that is declared there is an option here, a key of sweeps and an argument in Python. `weft measure
PLAN.toml`: flows between many hosts, started together. `weft accuracy`: what every estimator
measures on this host beside what was injected.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from weft.cli import ProgressBar
from weft.errors import InputError, WeftError
from weft.host.machine.examination import read_provenance_facts
from weft.measure import mpi
from weft.measure.accuracy import QUANTILES, Judgement, judge_estimators
from weft.measure.measurement import Point, Test, identify, is_complete, plan_points, run_point
from weft.measure.path_accuracy import (
    DELAYS_NS,
    MIN_DELAY_NS,
    WAITS,
    Finding,
    check_over,
    judge_transport,
)
from weft.measure.peer.client import LOCAL, Peer, open_peer
from weft.measure.plan import Plan, load_plan
from weft.measure.run_plan import format_steps, run_plan
from weft.measure.settings.options import options_of
from weft.measure.settings.values import integer_reader, read_time_ns
from weft.measure.tests import TESTS
from weft.records import (
    Distribution,
    Record,
    RecordWriter,
    Scalar,
    check_output,
    describe_run,
    note_ending,
    to_summary_line,
)
from weft.records.record_text import (
    format_measurement,
    format_simulation,
    format_sweep,
    format_table,
)
from weft.records.store import Campaign, replace_file, run_campaign
from weft.units import format_count, format_value
from weft.wire import read_token

MAX_REPETITIONS = 10_000
WITHOUT_PEER = {
    "delay": "the delay transport has no peer",
    "mpi": "mpirun starts both ranks and chooses their hosts",
}


def run(args: argparse.Namespace) -> int:
    test = TESTS[args.test]
    repeat = int(integer_reader(1, MAX_REPETITIONS)(args.repeat, "--repeat"))
    points = plan_points(test, read_settings(args, test), args.sweep, repeat, args.peer)
    _check_peer(args.peer, points)
    with contextlib.ExitStack() as stack:
        if any(point.settings.route.transport == "mpi" for point in points):
            if mpi.this_rank() == mpi.RESPONDS:
                mpi.respond()
                return 0
            stack.enter_context(mpi.ranks())
        return _run(args, test, points)


def _run(args: argparse.Namespace, test: Test, points: Sequence[Point]) -> int:
    campaign = Campaign(
        points={point.identity: point for point in points},
        identify=identify,
        is_complete=partial(is_complete, test),
        output=args.output,
    )
    done = campaign.done
    try:
        with contextlib.ExitStack() as stack:
            run_campaign(
                campaign,
                partial(_start_points, stack, args, test, len(points)),
                header=lambda: describe_run(sys.argv, **read_provenance_facts()),
                on_resume=lambda stored: print(
                    f"resuming: {stored} of {len(points)} points are stored", file=sys.stderr
                ),
            )
    finally:  # a full disk, too, leaves what was measured
        shown = [done[point.identity] for point in points if point.identity in done]
        _show(args, shown, points[0].shown)
    return _report_problems(test, points, done)


def read_settings(args: argparse.Namespace, test: Test) -> dict[str, object]:
    """Settings by their outside names, as they were written."""
    settings: dict[str, object] = {
        name: value
        for name in options_of(test.settings)
        if (value := getattr(args, name.replace("-", "_"), None)) is not None
    }
    for text in args.delay:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--delay {text!r}", "is not KEY=VALUE", "such as wire=5us loss=0.01")
        settings[f"delay.{key.strip()}"] = value
    return settings


def _check_peer(peer: str, points: Sequence[Point]) -> None:
    for point in points:
        transport = point.settings.route.transport
        if transport in WITHOUT_PEER and peer != LOCAL:
            raise InputError(f"{peer} --over {transport}", WITHOUT_PEER[transport], "leave it out")


Results = Generator[tuple[str, tuple[Record, ...], bool]]


def _start_points(
    stack: contextlib.ExitStack,
    args: argparse.Namespace,
    test: Test,
    total: int,
    points: Mapping[str, Point],
) -> Results:
    """Opens the peer, if a point needs one, before any record is stored."""
    peer = None
    if not all(point.settings.route.transport in WITHOUT_PEER for point in points.values()):
        token = read_token(args.token_file) if args.token_file else None
        peer = stack.enter_context(open_peer(args.peer, token))
    bar = stack.enter_context(ProgressBar(f"weft {test.name}"))
    return _run_points(test, peer, bar, points, is_alone=len(points) == total)


def _run_points(
    test: Test, peer: Peer | None, bar: ProgressBar, points: Mapping[str, Point], *, is_alone: bool
) -> Results:
    """Each point's records; a point that ends early is the last, and so is one that fails."""
    for number, (identity, point) in enumerate(points.items()):
        try:
            measured = run_point(test, peer, point, _scale_progress(bar, number, len(points)))
        except WeftError as error:
            if number == 0 and is_alone:
                raise
            print(f"weft: {error}", file=sys.stderr)
            return
        yield identity, measured.records, bool(measured.ended)


def _scale_progress(bar: ProgressBar, number: int, total: int) -> Callable[[float], None] | None:
    """Shown on a terminal only: each look costs the loops some time."""
    if not sys.stderr.isatty():
        return None
    note = f"{number + 1} of {total}" if total > 1 else ""
    return lambda share: bar.update((number + share) / total, note)


def _show(
    args: argparse.Namespace, done: Sequence[tuple[Record, ...]], swept: Sequence[str]
) -> None:
    """All as JSON lines; one point in full, several as a table."""
    if args.json:
        for records in done:
            for record in records:
                print(to_summary_line(record))
    elif len(done) == 1:
        *steps, record = done[0]
        print(
            *([f"{format_sweep(steps)}\n"] if steps else []), format_measurement(record), sep="\n"
        )
    elif done:
        print(format_sweep([records[-1] for records in done], swept))


def _report_problems(
    test: Test, points: Sequence[Point], done: Mapping[str, tuple[Record, ...]]
) -> int:
    """Prints what was cut short or is wrong; 1 when there is something."""
    records = [done[point.identity][-1] for point in points if point.identity in done]
    problems = [f"{r.label}: {note_ending(r.ending)}" for r in records if r.ending]
    for record in records:
        corrupted = record.quantities.get("corrupted")
        if isinstance(corrupted, Scalar) and corrupted.value:
            count = format_count(int(corrupted.value), "corrupted message")
            problems.append(f"{record.label}: {count}")
    if len(records) < len(points):
        problems.append(f"{test.name}: {len(records)} of {len(points)} points done")
    for line in problems:
        print(f"weft: {line}", file=sys.stderr)
    return 1 if problems else 0


# ---- Plans of many hosts ----------------------------------------------------------------------


def run_plan_file(args: argparse.Namespace) -> int:
    plan = load_plan(args.plan, args.repetitions)
    if args.output:
        check_output(args.output)
    records: list[Record] = []
    try:
        _run_plan(plan, args, records)
    finally:  # a host that was lost, too, leaves what was measured before
        if not args.json:
            _show_steps(records, args.flows)
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


def _run_plan(plan: Plan, args: argparse.Namespace, records: list[Record]) -> None:
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


def _show_steps(records: list[Record], flows: bool) -> None:
    """One step in full, several as a table; in full too where flows are asked for."""
    if len(records) == 1 or flows:
        print("\n\n".join(format_simulation(record, flows=flows) for record in records))
    elif records:
        print(f"{records[0].name}\n\n{format_steps(records)}")
        print("", *dict.fromkeys(note for record in records for note in record.notes), sep="\n")


# ---- Accuracy ---------------------------------------------------------------------------------


OMISSION_QUANTILES = (0.5, 0.95, 0.99, 0.999, 0.9999)


def run_accuracy(args: argparse.Namespace) -> int:
    if args.over:
        return _judge_transports(args)
    for name in ("delay", "wait"):
        if getattr(args, name):
            raise InputError(f"--{name}", "is of real transports", "give --over, or leave it out")
    if args.messages < 1000:
        problem = f"{args.messages} messages have no p99.9"
        raise InputError("--messages", problem, "use 1000 or more")
    if args.omission:
        check_output(args.omission)
    judgements = list(judge_estimators(args.messages, args.seed))
    if args.json:
        print("\n".join(json.dumps(_build_fields(judgement)) for judgement in judgements))
    else:
        print(_format_judgements(judgements))
    if args.omission:
        _report_omission(args.omission, args.seed, quiet=args.json)
    return 1 if args.check and not all(j.is_accurate() for j in judgements) else 0


def _judge_transports(args: argparse.Namespace) -> int:
    """Status 0 if every estimator is within the tolerance."""
    delays_ns = [int(read_time_ns(text, "--delay")) for text in args.delay or ()] or DELAYS_NS
    for over in args.over:
        check_over(over)
    if min(delays_ns) < MIN_DELAY_NS:
        problem = f"{min(delays_ns)} ns is as short as the way to the forwarder"
        raise InputError("--delay", problem, f"use {MIN_DELAY_NS // 1000} us or more")
    findings: list[Finding] = []
    try:
        for over in args.over:
            for finding in judge_transport(over, delays_ns, args.wait or WAITS):
                findings.append(finding)
                if args.json:
                    fields = asdict(finding) | {"error": finding.error, "verdict": finding.verdict}
                    print(json.dumps(fields), flush=True)
    finally:  # an interrupt, too, leaves what was measured
        if findings and not args.json:
            print(_format_findings(findings))
    return 0 if all(finding.is_accurate for finding in findings) else 1


def _format_findings(findings: Sequence[Finding]) -> str:
    heads = ["over", "wait", "estimator", "verdict", "injected", "truth", "measured", "error"]
    heads += ["client's stack", "forwarder late", "p99"]
    rows = [
        [
            *(f.over, f.wait, f.estimator, f.verdict),
            *(format_value(value, f.unit) for value in (f.injected, f.truth, f.measured)),
            f"{100 * f.error:+.2f} %",
            format_value(f.crossing_ns, "ns") if f.crossing_ns else "–",
            *(format_value(late, "ns") for late in f.late_ns),
        ]
        for f in findings
    ]
    return format_table(heads, rows, left_columns=4)


def _format_judgements(judgements: Sequence[Judgement]) -> str:
    heads = ["estimator", "undisturbed"]
    for q in QUANTILES:
        heads += [f"p{100 * q:g} injected", "found", "off"]
    rows = []
    for judgement in judgements:
        row = [judgement.estimator, f"{100 * judgement.undisturbed.mean():.1f} %"]
        for q in QUANTILES:
            estimate, truth = judgement.quantile_pair_ps(q)
            off = f"{100 * (estimate / truth - 1):+.2f} %"
            row += [format_value(truth, "ps"), format_value(estimate, "ps"), off]
        rows.append(row)
    return format_table(heads, rows)


def _build_fields(judgement: Judgement) -> dict[str, object]:
    fields: dict[str, object] = {
        "estimator": judgement.estimator,
        "target": judgement.target,
        "messages": len(judgement.samples_ps),
        "undisturbed": round(float(judgement.undisturbed.mean()), 6),
    }
    for q in QUANTILES:
        for kind, every in (("", False), ("every_", True)):
            estimate, truth = judgement.quantile_pair_ps(q, every=every)
            fields[f"{kind}p{100 * q:g}_injected_ps"] = truth
            fields[f"{kind}p{100 * q:g}_found_ps"] = estimate
    return fields | {"accurate": judgement.is_accurate()}


def _report_omission(path: str, seed: int, *, quiet: bool) -> None:
    # Plots take half a second to import.
    from weft.measure.accuracy import draw_omission, measure_omission
    from weft.plot import figure, to_png

    omission = measure_omission(seed=seed)
    with replace_file(check_output(path)) as file:
        file.write_bytes(to_png(figure(lambda ax: draw_omission(ax, omission))))
    if quiet:
        return
    loops = {
        "injected": omission.injected,
        "open loop": omission.open,
        "closed loop": omission.closed,
    }
    heads = ["round trip", *(f"p{100 * q:g}" for q in OMISSION_QUANTILES)]
    print("\n" + format_table(heads, [[name, *_format_quantiles(d)] for name, d in loops.items()]))


def _format_quantiles(distribution: Distribution) -> list[str]:
    return [format_value(distribution.quantile(q), "ps") for q in OMISSION_QUANTILES]
