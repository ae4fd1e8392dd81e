"""Measured cases in rounds, and how claims are judged on a machine that others use too.

Each round measures every case once, to and fro, so a drift of the machine meets all of them; two
cases are compared round by round. The least and the most of n ratios enclose the median of such
ratios with confidence 1 - 2^(1 - n), whatever their distribution (order statistics): 94 % of five
rounds. A claim is decided only where that interval decides it, and not while others took the
processors, unless what is read is not exposed to that.
Entry points: `Reading`, `Case`, `Line`, `in_rounds`, `rounds_of`, `ratio`, `within`, `gains`,
`together`, `either`. `rounds_draw` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from weft.measure import Measurement
from weft.records import Plain, Record
from weft.records.record_text import REPETITION
from weft.studies.claim import NotHere, Verdict
from weft.studies.observation import (
    ANOTHER_SYSTEM,
    Kind,
    Observation,
    Records,
    quantile_in,
    scalar_in,
)
from weft.studies.site import Point, here, measured

ROUNDS = 5
CONFIDENCE = 0.9  # of an interval that may decide a claim: five rounds have it, four have not
BUSY = 0.2  # of its time, what a spinning thread loses on a machine too busy to judge anything
RULE = (
    f"Measured on this machine in {ROUNDS} rounds. Shown is their median; a ratio is that of each "
    f"round, in brackets least and most, between which the true one is with "
    f"{1 - 2.0 ** (1 - ROUNDS):.0%} confidence. A claim is not judged where this interval decides "
    "nothing or, medians of latencies apart, others took a fifth of a processor."
)


# ---- What is measured -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read off the record of a round.

    `exposed`: time that others take from the processors is in it, as in a throughput or a tail.
    The median of a ping-pong is of messages that nobody held up.
    """

    quantity: str
    unit: str
    kind: Kind
    read: Callable[[Record], float]
    exposed: bool = True


def scalar(quantity: str, unit: str, kind: Kind, name: str) -> Reading:
    """A record's scalar, in the unit."""
    return Reading(
        quantity=quantity, unit=unit, kind=kind, read=lambda record: scalar_in(record, name, unit)
    )


def half_rtt(quantity: str, q: float) -> Reading:
    """A quantile of half the round trip, at most the median."""
    return Reading(
        quantity=quantity,
        unit="us",
        kind="latency",
        exposed=False,
        read=lambda record: quantile_in(record, "half_rtt", q, "us"),
    )


def mib_per_s(quantity: str) -> Reading:
    return Reading(
        quantity=quantity,
        unit="MiB/s",
        kind="bandwidth",
        read=lambda record: scalar_in(record, "throughput", "b/s") / 8 / 2**20,
    )


MEDIAN_US = half_rtt("half RTT, median", 0.5)
LEAST_US = half_rtt("half RTT, least", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One setting that is measured in every round; `options` as on the command line."""

    name: str
    settings: Mapping[str, Plain]
    test: Callable[..., Measurement]
    options: Mapping[str, object]

    @property
    def system(self) -> str:
        return here(str(self.options["over"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Cases by what is varied, and what is read off them."""

    label: str
    reading: Reading
    cases: Mapping[int, Case]

    def at(self, records: Records, value: int, reading: Reading | None = None) -> Rounds:
        return rounds_of(records, self.cases[value].name, reading or self.reading)


def varied(
    label: str,
    reading: Reading,
    test: Callable[..., Measurement],
    option: str,
    values: Sequence[int],
    **options: object,
) -> Line:
    """A line of short runs, one option of a test varied."""

    def case(value: int) -> Case:
        written = f"{value} B" if option == "size" else f"{option} {value}"
        return Case(
            name=f"{label}, {written}",
            settings={},
            test=test,
            options={"duration": "50 ms", "warmup": 100, **options, option: value},
        )

    return Line(label=label, reading=reading, cases={value: case(value) for value in values})


def cases_of(lines: Sequence[Line]) -> tuple[Case, ...]:
    return tuple(case for line in lines for case in line.cases.values())


def in_rounds(cases: Sequence[Case]) -> tuple[Point, ...]:
    """Points of all cases, one round after another, to and fro."""
    return tuple(
        measured(
            in_round(case.name, number),
            {**case.settings, REPETITION: number},
            case.test,
            **case.options,
        )
        for number in range(1, ROUNDS + 1)
        for case in cases[:: 1 if number % 2 else -1]
    )


def in_round(case: str, number: int) -> str:
    """The setting of a case's point."""
    return f"{case}, round {number}"


# ---- What came of it --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rounds:
    """A value of each round by its number, and what others took of a processor meanwhile."""

    values: Mapping[int, float]
    lost: Mapping[int, float]  # share of a spinning thread's time; 0 where it does not count

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
        both = [number for number in self.values if number in other.values]
        if not both:
            raise NotHere("no round has both of what is compared")
        return Rounds(
            {number: self.values[number] / other.values[number] for number in both},
            {number: max(self.lost[number], other.lost[number]) for number in both},
        )

    def each(self, change: Callable[[float], float]) -> Rounds:
        return Rounds({number: change(v) for number, v in self.values.items()}, self.lost)

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g}–{self.most:.3g})"


def rounds_of(records: Records, case: str, reading: Reading) -> Rounds:
    """What the rounds of a case gave; those that failed are left out, and NotHere if all did."""
    found: dict[int, Record] = {}
    missing = ""
    for number in range(1, ROUNDS + 1):
        try:
            found[number] = records[in_round(case, number)]
        except NotHere as reason:
            missing = str(reason)
    if not found:
        raise NotHere(missing)
    return Rounds(
        {number: reading.read(record) for number, record in found.items()},
        {n: lost_share(record) if reading.exposed else 0.0 for n, record in found.items()},
    )


def lost_share(record: Record) -> float:
    """Of its time, what a spinning thread lost to others just before and after the run."""
    for row in record.tables.get("host", ()):
        if row["fact"] == "time lost to hiccups, %":
            return float(str(row["value"])) / 100
    return 0.0


def ratio(records: Records, case: str, to: str, reading: Reading) -> Rounds:
    """One case's value over another's, round by round."""
    return rounds_of(records, case, reading) / rounds_of(records, to, reading)


def highest(several: Sequence[Rounds]) -> Rounds:
    """The greatest of several in each round that has all of them."""
    numbers = [n for n in several[0].values if all(n in one.values for one in several)]
    if not numbers:
        raise NotHere("no round has all of what is compared")
    return Rounds(
        {number: max(one.values[number] for one in several) for number in numbers},
        {number: max(one.lost[number] for one in several) for number in numbers},
    )


def medians(cases: Sequence[Case], reading: Reading) -> tuple[Observation, ...]:
    """The median of each case's rounds; nothing is published for this machine."""
    return tuple(
        Observation(
            setting=case.name,
            quantity=reading.quantity,
            unit=reading.unit,
            kind=reading.kind,
            source="measurement",
            system=case.system,
            tolerance=ANOTHER_SYSTEM,
            read=lambda records, name=case.name: rounds_of(records, name, reading).median,  # type: ignore[misc]
        )
        for case in cases
    )


def medians_of(lines: Sequence[Line]) -> tuple[Observation, ...]:
    return tuple(row for line in lines for row in medians(tuple(line.cases.values()), line.reading))


# ---- Verdicts ---------------------------------------------------------------------------------


def within(found: Rounds, what: str, low: float = 0.0, high: float = inf) -> Verdict:
    """Whether a ratio is between the two."""
    yes = low <= found.least and found.most <= high
    return decided(found, what, yes=yes, no=found.most < low or high < found.least)


def gains(found: Rounds, least_gain: float, what: str) -> Verdict:
    """Whether a ratio exceeds 1, and may be as large as the paper's least: 0.05 is 5 %."""
    return decided(found, what, yes=found.least > 1, no=found.most < 1 + least_gain)


def alike(found: Rounds, share: float, what: str) -> Verdict:
    """Whether a ratio is 1 up to a share: 0.1 is from 1/1.1 to 1.1."""
    return within(found, what, 1 / (1 + share), 1 + share)


def decided(found: Rounds, what: str, *, yes: bool, no: bool) -> Verdict:
    """What the interval says of a ratio, if it says something and may."""
    evidence = f"{what}: ratio {found}"
    if not (yes or no):
        return Verdict(holds=None, evidence=f"{evidence}, undecided")
    return unless_busy(not no, evidence, found)


def unless_busy(holds: bool | None, evidence: str, *found: Rounds) -> Verdict:
    """The verdict, if the rounds that it rests on are enough and the machine's own."""
    fewest = min(len(one.values) for one in found)
    if min(one.confidence for one in found) < CONFIDENCE:
        return Verdict(holds=None, evidence=f"{evidence}, of only {fewest} of {ROUNDS} rounds")
    lost = max(median(one.lost.values()) for one in found)
    if lost > BUSY:
        busy = f"{evidence}, while others took {lost:.0%} of a processor"
        return Verdict(holds=None, evidence=busy)
    return Verdict(holds=holds, evidence=evidence)


def together(*verdicts: Verdict) -> Verdict:
    """All of them: one that does not hold decides, then one that is open."""
    words = [verdict.holds for verdict in verdicts]
    holds = False if False in words else None if None in words else True
    return Verdict(holds=holds, evidence="; ".join(verdict.evidence for verdict in verdicts))


def either(*verdicts: Verdict) -> Verdict:
    """Any of them: one that holds decides, then one that is open."""
    words = [verdict.holds for verdict in verdicts]
    holds = True if True in words else None if None in words else False
    return Verdict(holds=holds, evidence="; ".join(verdict.evidence for verdict in verdicts))
