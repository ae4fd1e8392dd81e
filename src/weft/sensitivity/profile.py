"""A profile: what the runs of one command at several shares of the link took.

Runs are kept as they were observed; slowdowns are computed from them. Entry point: `Profile`.
Units: shares are fractions of the link, times seconds, rates bits per second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import fmean
from typing import Literal

from weft.errors import InputError
from weft.records import Plain
from weft.sensitivity.fit import Sample

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

CompletionUnit = Literal["s", "slowdown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run at a share of the link; None where something was not observed.

    `completion` is in the profile's unit. `bytes` are those of both directions, `sent_bytes` those
    of them that went out. `run_delay_s` is how long the command's processes were
    ready and waited for a processor: a contended run has much of it.
    """

    share: float
    completion: float
    repetition: int = 0
    bytes: int | None = None
    cpu_s: float | None = None
    run_delay_s: float | None = None
    sent_bytes: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            problem = f"{self.share:g} is not a fraction of the link"
            raise InputError("run: share", problem, "use 0 < share <= 1, 0.25 for 25 %")
        for name, least in (("completion", 0.0), ("bytes", -1), ("cpu_s", -1), ("run_delay_s", -1)):
            value = getattr(self, name)
            if value is not None and not least < value < inf:
                problem = f"{value:g} at share {self.share:g}"
                raise InputError(f"run: {name}", problem, "leave out runs that did not finish")
        if self.sent_bytes is not None and not 0 <= self.sent_bytes <= (self.bytes or 0):
            problem = f"{self.sent_bytes} of {self.bytes} in all"
            raise InputError("run: sent_bytes", problem, "give a part of its bytes")

    @property
    def received_bytes(self) -> int | None:
        if self.bytes is None or self.sent_bytes is None:
            return None
        return self.bytes - self.sent_bytes

    @property
    def busier_bytes(self) -> int | None:
        """Of the direction that had more of them; None where they were not counted apart."""
        sent, received = self.sent_bytes, self.received_bytes
        return None if sent is None or received is None else max(sent, received)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Runs of one command, where and when. `completion_unit` "slowdown": as published, no times.

    `link_bps` is the rate of the whole link, None where it is not known. `machine` says on what.
    """

    name: str
    runs: tuple[Run, ...]
    command: tuple[str, ...] = ()
    link_bps: float | None = None
    completion_unit: CompletionUnit = "s"
    machine: Mapping[str, Plain] = field(default_factory=dict)
    date: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.link_bps is not None and not (isfinite(self.link_bps) and self.link_bps > 0):
            raise InputError(self.name, f"link rate {self.link_bps:g} b/s", "give a positive rate")
        if not any(run.share == 1 for run in self.runs):
            problem = "no run with the whole link, which slowdown is relative to"
            raise InputError(self.name, problem, "profile at 100 % too")

    @property
    def baseline(self) -> float:
        """Completion with the whole link: the mean of its runs."""
        return fmean(run.completion for run in self.runs if run.share == 1)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Slowdown of each run."""
        baseline = self.baseline
        return tuple(
            Sample(share=run.share, slowdown=run.completion / baseline, repetition=run.repetition)
            for run in self.runs
        )


def is_name(text: str) -> bool:
    """Whether it can be the name of an application, which is also that of its file."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str, where: str = "name") -> str:
    """The name, if it can be one; `where` is what it was given as."""
    if not is_name(name):
        problem = f"{name!r} cannot be the name of an application"
        remedy = "use up to 64 letters, digits and . _ -, a letter or digit first"
        raise InputError(where, problem, remedy)
    return name
