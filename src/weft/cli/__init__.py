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
from importlib import import_module

from weft import __version__
from weft.errors import WeftError

COMMANDS = ("tour", "simulate", "study", "fabric", "compare", "report")


def parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="weft", description="Measure, model, simulate and share high-performance fabrics."
    )
    top.add_argument("--version", action="version", version=f"weft {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        import_module(f"weft.cli.{name}").add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors a user can mend are one line on stderr."""
    given = list(sys.argv[1:] if argv is None else argv)
    # Plots take half a second to import: a command loads only what it needs.
    args = parser([n for n in COMMANDS if n in given[:1]] or COMMANDS).parse_args(given)
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
