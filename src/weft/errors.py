"""Errors that a user can act on.

`InputError` says where, which value, the limit and the remedy, on one line;
the command line prints it and exits with status 2. INTERRUPTS are the signals that end a command
early: Ctrl-C, and what batch systems and a closed terminal send.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WeftError(Exception):
    """An error that weft can explain; any other is a bug."""


class InputError(WeftError):
    """Input that cannot be used: `where: problem; remedy`."""

    def __init__(self, where: str, problem: str, remedy: str = "") -> None:
        self.where = where
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        return InputError, (self.where, self.problem, self.remedy)


@contextmanager
def locate_errors(where: str) -> Iterator[None]:
    """Put a file, line or key before the place that an `InputError` names."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error.where}", error.problem, error.remedy) from None


class InvariantError(WeftError):
    """The simulator broke one of its own laws (a drop, a negative credit): always a bug in weft."""
