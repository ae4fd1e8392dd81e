"""`weft accuracy`: what every estimator finds on this host beside what was injected."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from weft.errors import InputError
from weft.measure.accuracy import QUANTILES, Judgement, judge_estimators
from weft.measure.path_accuracy import (
    DELAYS_NS,
    MIN_DELAY_NS,
    WAITS,
    Finding,
    check_over,
    judge_transport,
)
from weft.measure.settings.values import read_time_ns
from weft.records import Distribution
from weft.records.record_text import format_table
from weft.records.store import check_output, replace_file
from weft.units import format_value

OMISSION_QUANTILES = (0.5, 0.95, 0.99, 0.999, 0.9999)


def run(args: argparse.Namespace) -> int:
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
