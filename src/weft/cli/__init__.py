"""The command line: parse, call one function, emit.

Each command is a module with `add(commands)`, which declares its options, and a function that
runs it and returns the exit status: 0 done, 1 done but a check failed, 2 could not run.
Entry point: `main`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from weft import __version__
from weft.cli import compare, fabric, report, simulate, study, tour
from weft.errors import WeftError

COMMANDS = (tour, simulate, study, fabric, compare, report)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="weft", description="Measure, model, simulate and share high-performance fabrics."
    )
    top.add_argument("--version", action="version", version=f"weft {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors a user can mend are one line on stderr."""
    args = parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except WeftError as error:
        print(f"weft: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status
