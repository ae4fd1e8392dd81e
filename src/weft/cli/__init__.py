"""The command line: parse, call one function, emit.

Each command is a module with `add(commands)`, which declares its options, and a function that
runs it and returns the exit status: 0 done, 1 done but a check failed, 2 could not run. The tests
of fabrics share one module. Entry point: `main`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

from weft import __version__
from weft.errors import WeftError

TESTS = ("latency", "rperf", "bandwidth", "rate", "paced", "saturation", "rma", "transfer")
COMMANDS = (
    "doctor",
    "accuracy",
    "tour",
    *TESTS,
    "tune",
    "measure",
    "serve",
    "testbed",
    "profile",
    "corun",
    "control",
    "run",
    "simulate",
    "model",
    "apps",
    "study",
    "fabric",
    "compare",
    "report",
)


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="weft",
        description="Measure and simulate high-performance fabrics, and see the numbers beside "
        "published ones.",
    )
    top.add_argument("--version", action="version", version=f"weft {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        if name in TESTS:
            import_module("weft.cli.tests").add(commands, name)
        else:
            import_module(f"weft.cli.{name}").add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors that a user can fix are one line on stderr."""
    _fill_standard_files()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _build_warning_printer()
            return _run(list(sys.argv[1:] if argv is None else argv))
    except WeftError as error:
        print(f"weft: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        _drop_output()
        return 0
    except OSError as error:
        if error.filename is not None:  # not from standard output: a bug, shown with its traceback
            raise
        print(f"weft: standard output: {error.strerror}; make room", file=sys.stderr)
        _drop_output()
        return 2


def _run(argv: list[str]) -> int:
    if argv[:1] == ["serve"]:  # it forks, so no library may start threads
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Plots take half a second to import: a command loads only what it needs.
    needed = [n for n in COMMANDS if n in argv[:1]] or COMMANDS
    args = build_parser(() if argv[:1] == ["--version"] else needed).parse_args(argv)
    status: int = args.run(args)
    if sys.stdout:  # None if it was closed before the start
        sys.stdout.flush()
    return status


def _fill_standard_files() -> None:
    """Open closed standard files, so that no later file gets their numbers."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # standard error
        pass
    os.close(opened)


def _build_warning_printer() -> Callable[..., None]:
    """A function that prints each warning once, without the source line that raised it."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in shown:
            print(f"weft: {message}", file=sys.stderr)
        shown.add(str(message))

    return show


def _drop_output() -> None:
    """Discard pending output: Python flushes it at exit, which would fail again."""
    with contextlib.suppress(io.UnsupportedOperation):  # not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
