"""A paper's qualitative claim, in our words, and whether it holds for what we have.

A claim about other hardware that does not hold here is a finding, not an error. Entry points:
`Claim`, `Verdict`, `judge`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.errors import WeftError
from weft.studies.observation import Records, Source


class NotHere(WeftError):
    """A point that this machine cannot give; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a claim holds, with the numbers; None where it could not be judged."""

    holds: bool | None
    evidence: str

    @property
    def word(self) -> str:
        return {True: "holds", False: "does not hold", None: "not judged"}[self.holds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a paper says of its system, judged on records of `system`."""

    statement: str
    place: str
    source: Source
    system: str
    judge: Callable[[Records], Verdict]


def judge(claim: Claim, records: Records) -> Verdict:
    """The verdict; a point that is missing is its evidence."""
    try:
        return claim.judge(records)
    except NotHere as missing:
        return Verdict(holds=None, evidence=str(missing))
