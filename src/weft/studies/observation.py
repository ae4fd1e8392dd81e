"""What a study observes and what the paper gives for it; what the paper claims, and the verdict.

An observation is read from the records of a study; where the paper states a value it has that
value, its place in the paper, and a tolerance: its own, or by system and kind of quantity. Ours
is a simulation, a model or a measurement, of a named system. A published range is two
observations, "least" and "most". Each row has a role: only a prediction tests physics. A claim
about other hardware that does not hold is a finding, not an error. Units are written beside values.
Entry points: `Observation`, `Row`, `Claim`, `Verdict`, `judge`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from weft.errors import WeftError
from weft.records import Distribution, Record, Scalar
from weft.units import convert

Kind = Literal["median", "tail", "bandwidth", "latency", "rate", "value", "gain"]
Source = Literal["simulation", "model", "measurement"]  # what our column is
Records = Mapping[str, Record]  # by setting

# fit: the published value set a parameter. check: arithmetic, a definition, an example of ours.
# repeat: the same value as in another row, read the same way. prediction: everything else.
Role = Literal["fit", "check", "repeat", "prediction"]
Bound = Literal["", ">", "<"]  # the paper says "more than" or "less than"

# Ours is of another system than the published value: the ratio is shown and not judged.
ANOTHER_SYSTEM = math.inf

# The share of the published value that ours may be off by.
TOLERANCE: Mapping[str, Mapping[Kind, float]] = {
    "omnet": {"median": 0.15, "tail": 0.30, "bandwidth": 0.20},
    "sx6012": {"median": 0.20, "tail": 0.30, "bandwidth": 0.20},
}

MEDIAN_RTT, TAIL_RTT = "probe RTT median", "probe RTT tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One number of a study; `published` is None where the paper states none.

    `reason` is the physical cause of a difference that exceeds the tolerance. An empty `system`
    is the study's; a `tolerance` of None is that of the system and kind. A `bound` has no
    tolerance: ours is on its side or not.
    """

    setting: str
    quantity: str
    unit: str
    kind: Kind
    read: Callable[[Records], float]
    published: float | None = None
    place: str = ""
    reason: str = ""
    source: Source = "simulation"
    system: str = ""
    tolerance: float | None = None
    role: Role = "prediction"
    bound: Bound = ""

    @property
    def counts_as(self) -> Role | Literal["shown", ""]:
        """Its role; "shown" where ours is not judged, nothing where nothing is published."""
        if self.published is None:
            return ""
        return "shown" if self.kind == "gain" or self.tolerance == ANOTHER_SYSTEM else self.role


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An observation made: ours beside the published value."""

    study: str
    system: str  # of ours
    observation: Observation
    ours: float

    @property
    def published(self) -> float | None:
        return self.observation.published

    @property
    def ratio(self) -> float | None:
        """ours / published; None of a bound, and of a gain, which may be of either sign."""
        if self.published is None or self.observation.kind == "gain" or self.observation.bound:
            return None
        return self.ours / self.published

    @property
    def tolerance(self) -> float:
        tolerance = self.observation.tolerance
        return TOLERANCE[self.system][self.observation.kind] if tolerance is None else tolerance

    @property
    def judged(self) -> bool:
        """Whether ours should be the published value, or beyond the published bound."""
        return self.observation.counts_as not in ("", "shown")

    @property
    def within(self) -> bool:
        """Whether ours is within the tolerance or the bound; true where neither is published."""
        if self.published is not None and self.observation.bound:
            bound = self.observation.bound
            return self.ours > self.published if bound == ">" else self.ours < self.published
        return self.ratio is None or abs(self.ratio - 1) <= self.tolerance

    @property
    def unexplained(self) -> bool:
        """Outside the tolerance, and no reason is written."""
        return not self.within and not self.observation.reason


def row_fields(row: Row) -> dict[str, str | float | None]:
    """The row as it is stored and printed for machines."""
    return {
        "study": row.study,
        "setting": row.observation.setting,
        "quantity": row.observation.quantity,
        "unit": row.observation.unit,
        "published": row.published,
        "bound": row.observation.bound,
        "ours": float(f"{row.ours:.6g}"),
        "ratio": None if row.ratio is None else float(f"{row.ratio:.4g}"),
        "role": row.observation.counts_as,
        "source": row.observation.source,
        "system": row.system,
    }


def row_line(row: Row) -> str:
    """The row as one line of JSON."""
    return json.dumps(row_fields(row), ensure_ascii=False)


# ---- Reading records --------------------------------------------------------------------------


def quantile_in(record: Record, name: str, q: float, unit: str) -> float:
    """A quantile of a record's distribution, in the unit."""
    quantity = record.quantities[name]
    assert isinstance(quantity, Distribution)
    value = convert(quantity.quantile(q), quantity.unit, unit)
    assert value is not None
    return value


def scalar_in(record: Record, name: str, unit: str) -> float:
    """A record's scalar, in the unit."""
    quantity = record.quantities[name]
    assert isinstance(quantity, Scalar)
    value = convert(quantity.value, quantity.unit, unit)
    assert value is not None
    return value


def goodput(record: Record, part: str) -> float:
    """Payload of a part of the traffic, in Gb/s."""
    quantity = record.quantities[f"{part}.goodput"]
    assert isinstance(quantity, Scalar)
    return quantity.value


class Unavailable(WeftError):
    """A point that this machine cannot give; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a claim holds, with the numbers; None where it could not be judged.

    A claim is not modelled if what it says has no mechanism in ours: no run could confirm it.
    """

    holds: bool | None
    evidence: str
    modelled: bool = True

    @property
    def word(self) -> str:
        if not self.modelled:
            return "not modelled"
        return {True: "holds", False: "does not hold", None: "not judged"}[self.holds]


def judge_unmodelled(evidence: str) -> Callable[[Records], Verdict]:
    """The verdict on a claim for which ours has no mechanism."""
    return lambda _: Verdict(holds=None, evidence=evidence, modelled=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a paper says of its system, judged on records of `system`."""

    statement: str
    place: str
    source: Source
    system: str
    judge: Callable[[Records], Verdict]


def build_claims(
    place: str, source: Source, system: str, judges: Mapping[str, Callable[[Records], Verdict]]
) -> tuple[Claim, ...]:
    """Claims of one place in the paper, all judged on the same: statement and judge of each."""
    return tuple(
        Claim(statement=statement, place=place, source=source, system=system, judge=judge)
        for statement, judge in judges.items()
    )


def judge(claim: Claim, records: Records) -> Verdict:
    """The verdict; a point that is missing is its evidence."""
    try:
        return claim.judge(records)
    except Unavailable as missing:
        return Verdict(holds=None, evidence=str(missing))
