"""`weft model errors`: the error of every model that is fitted to published tables."""

from __future__ import annotations

import argparse
import json

from weft.errors import InputError
from weft.model import ErrorSummary, Fit
from weft.records.record_text import format_table

HEADS = ["system", "model", "rows", "median", "p90", "worst", "held out: median", "p90", "worst"]


def add_errors(command: argparse.ArgumentParser) -> None:
    command.add_argument("systems", nargs="*", metavar="SYSTEM", help="all if none is named")
    command.set_defaults(run=_errors)


def _errors(args: argparse.Namespace) -> int:
    # The studies bring matplotlib: half a second that no other model needs.
    from weft.studies.calibrated import CALIBRATED

    for name in args.systems:
        if name not in CALIBRATED:
            known = ", ".join(CALIBRATED)
            raise InputError("system", f"{name!r} is not known", f"use one of {known}")
    chosen = [CALIBRATED[name] for name in args.systems or CALIBRATED]
    fits = [(one.name, one.quantity, one.fit()) for one in chosen]
    if args.json:
        for name, quantity, fit in fits:
            print(json.dumps({"system": name, "model": quantity, **_object(fit)}))
    else:
        print(format_table(HEADS, [_row(*one) for one in fits], left=2))
        print("\n|model / published − 1|; held out: each row predicted by a fit to the others")
    return 0


def _row(name: str, quantity: str, fit: Fit) -> list[str]:
    return [name, quantity, str(fit.error.n), *_percent(fit.error), *_percent(fit.held_out)]


def _percent(error: ErrorSummary) -> list[str]:
    return [f"{100 * value:.1f} %" for value in (error.median, error.p90, error.worst)]


def _object(fit: Fit) -> dict[str, object]:
    return {
        "data": fit.data,
        **{f"error_{k}": getattr(fit.error, k) for k in ("median", "p90", "worst", "n")},
        **{f"held_out_{k}": getattr(fit.held_out, k) for k in ("median", "p90", "worst")},
    }
