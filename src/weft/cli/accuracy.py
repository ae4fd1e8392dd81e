"""`weft accuracy`: what every estimator finds on this host beside what was injected."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from weft.errors import InputError
from weft.measure.accuracy import QUANTILES, Judgement, judge_estimators
from weft.records import Distribution
from weft.records.record_text import format_table
from weft.records.store import check_output, replace_file
from weft.units import format_value

OMISSION_QUANTILES = (0.5, 0.95, 0.99, 0.999, 0.9999)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "accuracy",
        help="every estimator beside known times, on this host",
        description="Runs every estimator over the delay transport, in which each message has a "
        "known time. Takes real-time priority, a second at a time, where it may.",
    )
    command.add_argument(
        "--messages", type=int, default=15_000, metavar="N", help="per estimator; 15000"
    )
    command.add_argument("--seed", type=int, default=1, metavar="N")
    command.add_argument(
        "--omission", metavar="FILE", help="draw what a closed loop hides, as a PNG"
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="status 1 if a median or p99.9 of the undisturbed messages is off by 1 %%",
    )
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
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
