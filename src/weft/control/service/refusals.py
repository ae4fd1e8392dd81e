"""A call that is not carried out, and the gRPC status that its caller gets.

Entry points: `Refused`, `raise_refusal`, `invalid`.
"""

from __future__ import annotations

from typing import TypeVar

from weft.control.state.events import Refusal
from weft.errors import InputError, WeftError

T = TypeVar("T")


class Refused(WeftError):
    """`code` is the name of a gRPC status."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


def raise_refusal(answer: T | Refusal) -> T:
    """The answer, unless it is a refusal."""
    if isinstance(answer, Refusal):
        raise Refused(answer.code, str(answer))
    return answer


def invalid(where: str, problem: str, remedy: str) -> Refused:
    """Refuses a malformed request; unprintable characters in `problem` become "?"."""
    shown = "".join(c if c.isprintable() else "?" for c in problem)
    return Refused("INVALID_ARGUMENT", str(InputError(where, shown, remedy)))
