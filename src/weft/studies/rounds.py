"""Values measured in rounds, and how claims are judged on machines that others use too.

Each round measures every case once, to and fro, so that drift affects all cases alike; two cases
are compared round by round. The least and the most of n ratios enclose the median of such ratios
with confidence 1 - 2^(1 - n), whatever their distribution (order statistics): 94 % for five
rounds. A claim is decided only where that interval decides it, and not while other programs used
the processors, unless the reading is not exposed to that.
Entry points: `Reading`, `Rounds`, `read_rounds`, `judge_range`, `judge_gain`, `all_of`, `any_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from statistics import median

from weft.records import Record
from weft.studies.observation import Kind, Records, Unavailable, Verdict

ROUNDS = 5
CONFIDENCE = 0.9  # needed to decide a claim: five rounds have it, four have not
BUSY = 0.2  # share of time lost by a spinning thread above which nothing is judged
RULE = (
    f"Measured in {ROUNDS} rounds. Shown is their median; a ratio is that of each round, in "
    f"brackets least and most, between which the true one is with "
    f"{1 - 2.0 ** (1 - ROUNDS):.0%} confidence. A claim is not judged where this interval decides "
    "nothing or, medians of latencies apart, others took a fifth of a processor."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value read from the record of a round.

    `exposed`: the value includes time that others take from the processors, as a throughput or a
    tail does. The median of a ping-pong does not: it is of messages that were not held up.
    """

    quantity: str
    unit: str
    kind: Kind
    read: Callable[[Record], float]
    exposed: bool = True


def round_name(case: str, number: int) -> str:
    """The setting of a case's point in one round."""
    return f"{case}, round {number}"


@dataclass(frozen=True, slots=True)
class Rounds:
    """A value of each round by its number, and what others took of a processor meanwhile."""

    values: Mapping[int, float]
    lost: Mapping[int, float]  # share of a spinning thread's time; 0 for unexposed readings

    @property
    def median(self) -> float:
        return median(self.values.values())

    @property
    def least(self) -> float:
        return min(self.values.values())

    @property
    def most(self) -> float:
        return max(self.values.values())

    @property
    def confidence(self) -> float:
        """That the median of all such rounds is between the least and the most of these."""
        return float(1 - 2.0 ** (1 - len(self.values)))

    def __truediv__(self, other: Rounds) -> Rounds:
        """Round by round, where both have one."""
        common = [number for number in self.values if number in other.values]
        if not common:
            raise Unavailable("no round measured both cases of a comparison")
        return Rounds(
            {number: self.values[number] / other.values[number] for number in common},
            {number: max(self.lost[number], other.lost[number]) for number in common},
        )

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g}–{self.most:.3g})"


def read_rounds(records: Records, case: str, reading: Reading) -> Rounds:
    """The rounds of a case without those that failed; Unavailable if all did."""
    rounds: dict[int, Record] = {}
    reason = ""
    for number in range(1, ROUNDS + 1):
        try:
            rounds[number] = records[round_name(case, number)]
        except Unavailable as missing:
            reason = str(missing)
    if not rounds:
        raise Unavailable(reason)
    return Rounds(
        {number: reading.read(record) for number, record in rounds.items()},
        {n: lost_share(record) if reading.exposed else 0.0 for n, record in rounds.items()},
    )


def lost_share(record: Record) -> float:
    """The share of its time that a spinning thread lost to others just before and after the run."""
    for row in record.tables.get("host", ()):
        if row["fact"] == "time lost to hiccups, %":
            return float(str(row["value"])) / 100
    return 0.0


# ---- Verdicts ---------------------------------------------------------------------------------


def judge_range(ratio: Rounds, label: str, low: float = 0.0, high: float = inf) -> Verdict:
    """Whether a ratio is between the two limits."""
    inside = low <= ratio.least and ratio.most <= high
    return _decide(ratio, label, yes=inside, no=ratio.most < low or high < ratio.least)


def judge_gain(ratio: Rounds, label: str, least_gain: float) -> Verdict:
    """Whether a ratio exceeds 1, and may be as large as the paper's least: 0.05 is 5 %."""
    return _decide(ratio, label, yes=ratio.least > 1, no=ratio.most < 1 + least_gain)


def _decide(ratio: Rounds, label: str, *, yes: bool, no: bool) -> Verdict:
    evidence = f"{label}: ratio {ratio}"
    if not (yes or no):
        return Verdict(holds=None, evidence=f"{evidence}, undecided")
    if ratio.confidence < CONFIDENCE:
        count = f"of only {len(ratio.values)} of {ROUNDS} rounds"
        return Verdict(holds=None, evidence=f"{evidence}, {count}")
    lost = median(ratio.lost.values())
    if lost > BUSY:
        busy = f"{evidence}, while others took {lost:.0%} of a processor"
        return Verdict(holds=None, evidence=busy)
    return Verdict(holds=not no, evidence=evidence)


def all_of(*verdicts: Verdict) -> Verdict:
    """Holds if all do; one that does not hold decides, then one that is open."""
    return _combine(verdicts, decisive=False)


def any_of(*verdicts: Verdict) -> Verdict:
    """Holds if any does; one that holds decides, then one that is open."""
    return _combine(verdicts, decisive=True)


def _combine(verdicts: tuple[Verdict, ...], decisive: bool) -> Verdict:
    words = [verdict.holds for verdict in verdicts]
    holds = decisive if decisive in words else None if None in words else not decisive
    return Verdict(holds=holds, evidence="; ".join(verdict.evidence for verdict in verdicts))
