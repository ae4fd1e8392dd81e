"""`weft model`: closed forms, each with its formula, source and range.

Values are written as in the options of the tests, and may be lists or ranges (64..4K*2).
"""

from __future__ import annotations

import argparse

from weft.cli.model_fit import FITTED, add_errors, add_fitted
from weft.cli.model_link import add_best_b, add_goodput, add_link_rate, add_signaling, add_wait


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    model = commands.add_parser(
        "model",
        help="rates, latencies, waits and settings from closed forms",
        description="Prints values of closed forms with their formula, source and range. Values "
        "may be lists and ranges: --size 64,4KiB or --size 64..8M*2.",
    )
    models = model.add_subparsers(title="models", metavar="MODEL", required=True)
    add_link_rate(_add_model(models, "link-rate", "data rate of a link by speed and width"))
    add_goodput(
        _add_model(models, "goodput", "the most payload and messages that a link can carry")
    )
    for name, about in FITTED.items():
        add_fitted(_add_model(models, name, about), name)
    add_errors(_add_model(models, "errors", "how far each fitted model is from its published rows"))
    add_best_b(_add_model(models, "best-b", "how many messages to keep outstanding"))
    add_signaling(_add_model(models, "signaling", "how many messages to send per signaled one"))
    add_wait(_add_model(models, "wait", "wait of a probe behind senders that saturate a switch"))


def _add_model(
    models: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str
) -> argparse.ArgumentParser:
    command = models.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    command.add_argument("--json", action="store_true")
    return command
