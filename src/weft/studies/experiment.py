"""A paper's experiment on the user's own fabric, from a data file beside the paper's values.

`PAPER/experiments/STUDY.toml` has lines (a test of `weft.measure`, its options, one option varied)
and the paper's claims as ratios of their points. `with_experiment` adds its points, rows, claims
and figure to a study; points are measured in rounds. The keys are explained in docs/studies.md.
Entry points: `find_experiment`, `with_experiment`, `experiment_names`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import inf, isnan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import weft.measure
from weft.errors import InputError
from weft.measure.tests import TESTS
from weft.plot.style import MUTED
from weft.records import Record, Series
from weft.records.record_text import REPETITION
from weft.studies.observation import (
    ANOTHER_SYSTEM,
    Claim,
    Kind,
    Observation,
    Records,
    Unavailable,
    Verdict,
    quantile_in,
    scalar_in,
)
from weft.studies.points import Point, measurement_point
from weft.studies.published import find_statement
from weft.studies.study import Result, Study
from weft.studies.table_curves import COLOURS, MARKERS, label_axes
from weft.toml_table import Table, load_toml

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


T = TypeVar("T")
ROOMS = Path(__file__).parent


# ---- Readings ----------------------------------------------------------------------------------


def _scalar(quantity: str, unit: str, name: str, kind: Kind = "bandwidth") -> Reading:
    return Reading(
        quantity=quantity, unit=unit, kind=kind, read=lambda record: scalar_in(record, name, unit)
    )


def _latency(quantity: str, q: float) -> Reading:
    return Reading(
        quantity=quantity,
        unit="us",
        kind="latency",
        exposed=False,
        read=lambda record: quantile_in(record, "half_rtt", q, "us"),
    )


def _probe(quantity: str, share: float) -> Reading:
    """The probe's median at the step of a saturation test with this share of the greatest load."""

    def read(record: Record) -> float:
        series = record.quantities["probe.p50"]
        assert isinstance(series, Series)
        return series.y[round(share * (len(series.y) - 1))] / 1e6

    return Reading(quantity=quantity, unit="us", kind="latency", read=read)


READINGS: Mapping[str, Reading] = {
    "latency": _latency("half RTT, median", 0.5),
    "least latency": _latency("half RTT, least", 0.0),
    "inverse latency": Reading(
        quantity="messages in half a round trip each",
        unit="M/s",
        kind="rate",
        exposed=False,
        read=lambda record: 1 / quantile_in(record, "half_rtt", 0.5, "us"),
    ),
    "message rate": _scalar("message rate", "M/s", "message_rate", "rate"),
    "throughput": _scalar("throughput", "Gb/s", "throughput"),
    # All data, from the first post to the last acknowledgement.
    "acknowledged throughput": _scalar("throughput", "Gb/s", "sender.throughput"),
    "processor share": _scalar("share of a processor, sender", "%", "cpu.percent", "value"),
    "processor time per bit": Reading(
        quantity="processor time, sender",
        unit="ms/Gb",
        kind="value",
        read=lambda record: (
            10
            * scalar_in(record, "cpu.percent", "%")
            / scalar_in(record, "sender.throughput", "Gb/s")
        ),
    ),
    "probe without load": _probe("probe half RTT, median, no load", 0.0),
    "probe at three quarters": _probe("probe half RTT, median, 3/4 of the most load", 0.75),
    "probe at full load": _probe("probe half RTT, median, most load", 1.0),
}


# ---- The data file -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Runs of one test, one option varied; `over` is None where the user's transport is meant."""

    name: str
    test: str
    over: str | None
    vary: str
    values: tuple[int | str, ...]
    options: Mapping[str, object]
    readings: tuple[Reading, ...]

    def cases(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Name and options of each point; a line that varies nothing is one point."""
        if not self.vary:
            yield self.name, self.options
        for value in self.values:
            yield f"{self.name} @ {value}", {**self.options, self.vary: value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two cases, or two pairs of them, whose ratio decides a claim."""

    cases: tuple[str, ...]  # a/b, or (a/b)/(c/d)
    readings: tuple[Reading, ...]
    low: float
    high: float
    gain: float | None

    @property
    def label(self) -> str:
        names = list(self.cases)
        if len(set(self.cases)) < len(set(zip(self.cases, self.readings, strict=True))):
            names = [r.quantity for r in self.readings]  # one case, read in several ways
        pairs = [f"{above} over {below}" for above, below in _pairs(names)]
        return pairs[0] if len(pairs) == 1 else f"({pairs[0]}) over ({pairs[1]})"

    def judge(self, records: Records) -> Verdict:
        rounds = [read_rounds(records, *c) for c in zip(self.cases, self.readings, strict=True)]
        ratios = [above / below for above, below in _pairs(rounds)]
        ratio = ratios[0] if len(ratios) == 1 else ratios[0] / ratios[1]
        if self.gain is not None:
            return judge_gain(ratio, self.label, self.gain)
        return judge_range(ratio, self.label, self.low, self.high)


def _pairs(values: Sequence[T]) -> list[tuple[T, T]]:
    return list(pairwise(values))[::2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentClaim:
    """What the paper says, and the comparisons that decide it: all of them, or any."""

    statement: str
    place: str
    any: bool
    comparisons: tuple[Comparison, ...]

    def judge(self, records: Records) -> Verdict:
        verdicts = [comparison.judge(records) for comparison in self.comparisons]
        return any_of(*verdicts) if self.any else all_of(*verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A data file as it was read; `over` is the paper's transport."""

    study: str
    over: str
    x: str
    lines: tuple[Line, ...]
    claims: tuple[ExperimentClaim, ...]
    notes: tuple[str, ...]


@cache
def experiment_names() -> tuple[str, ...]:
    """The studies that have an experiment."""
    return tuple(sorted(path.stem for path in ROOMS.glob("*/experiments/*.toml")))


def find_experiment(study: str) -> Experiment:
    """The experiment of a study."""
    if study not in experiment_names():
        raise InputError(
            f"study {study}", "has no experiment", f"use one of {', '.join(experiment_names())}"
        )
    return read_experiment(ROOMS / study.split("-")[0] / "experiments" / f"{study}.toml")


def read_experiment(path: Path) -> Experiment:
    """An experiment from its file, whose name is that of the study."""
    table = Table(load_toml(path), path.name)
    shared = _read_defaults(table)
    lines = tuple(_read_line(item, shared) for item in table.tables("line"))
    experiment = Experiment(
        study=path.stem,
        over=table.text("over", "verbs"),
        x=table.text("x", shared["vary"]),
        lines=lines,
        claims=tuple(_read_claim(item, path, lines) for item in table.tables("claim", [])),
        notes=table.texts("notes", []),
    )
    table.done()
    return experiment


def _read_defaults(table: Table) -> dict[str, Any]:
    """What all lines have, unless they say otherwise."""
    return {
        "test": table.text("test"),
        "vary": table.text("vary", ""),
        "values": table.raw("values", []),
        "read": table.texts("read"),
        "options": table.raw("options", {}),
    }


def _read_line(table: Table, shared: Mapping[str, Any]) -> Line:
    line = Line(
        name=table.text("name"),
        test=table.text("test", shared["test"]),
        over=table.text("over", None),
        vary=table.text("vary", shared["vary"]),
        values=tuple(table.raw("values", shared["values"])),
        options={**shared["options"], **table.raw("options", {})},
        readings=tuple(_find_reading(name, table) for name in table.texts("read", shared["read"])),
    )
    table.done()
    if line.test not in TESTS:
        raise InputError(
            table.place("test"), f"{line.test!r} is no test", f"use one of {', '.join(TESTS)}"
        )
    return line


def _find_reading(name: str, table: Table) -> Reading:
    if name not in READINGS:
        raise InputError(
            table.place("read"), f"{name!r} is unknown", f"use one of {', '.join(READINGS)}"
        )
    return READINGS[name]


def _read_claim(table: Table, path: Path, lines: Sequence[Line]) -> ExperimentClaim:
    statement, place = table.text("statement", ""), table.text("place", "")
    key = table.text("key", "")
    if key:
        value = find_statement(path.parent.parent.name, key)
        number = "" if isnan(value.value) else f": {value.value:g} {value.unit}"
        place = value.place
        statement = f"{value.says}{number}" + (f"; {statement}" if statement else "")
    claim = ExperimentClaim(
        statement=statement,
        place=place,
        any=table.flag("any", False),
        comparisons=tuple(c for item in table.tables("check") for c in _comparisons(item, lines)),
    )
    table.done()
    return claim


def _comparisons(table: Table, lines: Sequence[Line]) -> Iterator[Comparison]:
    """A comparison for each value of `at`, or one where the cases name their values."""
    names, read = table.texts("ratio"), table.texts("read", [])
    values = table.raw("at", [None])
    limits = (table.number("low", 0, inf, 0.0), table.number("high", 0, inf, inf))
    gain = table.number("gain", 0, inf) if table.has("gain") else None
    table.done()
    readings = _readings_of(names, read, lines, table)
    for value in values:
        cases = tuple(name if value is None else f"{name} @ {value}" for name in names)
        _check_cases(cases, lines, table)
        yield Comparison(cases=cases, readings=readings, low=limits[0], high=limits[1], gain=gain)


def _readings_of(
    names: Sequence[str], read: Sequence[str], lines: Sequence[Line], table: Table
) -> tuple[Reading, ...]:
    """Those named, one for all cases or one for each; else the first reading of each line."""
    if read:
        readings = [_find_reading(name, table) for name in read]
        return tuple(readings * len(names) if len(readings) == 1 else readings)
    first = {line.name: line.readings[0] for line in lines}
    return tuple(first.get(name.split(" @ ")[0], lines[0].readings[0]) for name in names)


def _check_cases(cases: Sequence[str], lines: Sequence[Line], table: Table) -> None:
    cases_measured = [name for line in lines for name, _ in line.cases()]
    if len(cases) not in (2, 4):
        raise InputError(
            table.place("ratio"), f"{len(cases)} cases", "name two, or four for a ratio of ratios"
        )
    for case in cases:
        if case not in cases_measured:
            raise InputError(
                table.place("ratio"),
                f"{case!r} is not measured",
                f"use one of {', '.join(cases_measured)}",
            )


# ---- As part of a study ------------------------------------------------------------------------


def with_experiment(study: Study, peer: str, over: str | None = None) -> Study:
    """The study and its experiment with a peer, over a transport (default: the paper's)."""
    experiment = find_experiment(study.name)
    system = f"this host to {peer}, {over or experiment.over}"
    claims = tuple(
        Claim(
            statement=claim.statement,
            place=claim.place,
            source="measurement",
            system=system,
            judge=claim.judge,
        )
        for claim in experiment.claims
    )
    return replace(
        study,
        points=(*study.points, *experiment_points(experiment, system, over)),
        observations=(*study.observations, *_medians(experiment, system)),
        claims=(*study.claims, *claims),
        panels=(*study.panels, *_panels(experiment)),
        notes=(*study.notes, *experiment.notes, RULE),
    )


def experiment_points(
    experiment: Experiment, system: str, over: str | None = None
) -> Iterator[Point]:
    """Every case once in each round, every other round in reverse order."""
    cases = [(line, *case) for line in experiment.lines for case in line.cases()]
    for number in range(1, ROUNDS + 1):
        for line, name, options in cases[:: 1 if number % 2 else -1]:
            transport = line.over or over or experiment.over
            yield measurement_point(
                round_name(name, number),
                {REPETITION: number},
                getattr(weft.measure, line.test),
                system,
                **{**options, "over": transport},
            )


def _medians(experiment: Experiment, system: str) -> Iterator[Observation]:
    """The median of each case's rounds; no value is published for the user's fabric."""
    for line in experiment.lines:
        for reading in line.readings:
            for name, _ in line.cases():
                yield Observation(
                    setting=name,
                    quantity=reading.quantity,
                    unit=reading.unit,
                    kind=reading.kind,
                    source="measurement",
                    system=system,
                    tolerance=ANOTHER_SYSTEM,
                    read=_median_reader(name, reading),
                )


def _median_reader(case: str, reading: Reading) -> Callable[[Records], float]:
    return lambda records: read_rounds(records, case, reading).median


def _panels(experiment: Experiment) -> Iterator[Callable[[Axes, Result], None]]:
    """A panel for each quantity that lines over numbers have."""
    numeric = [line for line in experiment.lines if line.vary and _are_numbers(line.values)]
    for reading in dict.fromkeys(reading for line in numeric for reading in line.readings):
        lines = [line for line in numeric if reading in line.readings]
        yield rounds_panel(lines, reading, experiment.x)


def _are_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(value, int) for value in values)


def rounds_panel(lines: Sequence[Line], reading: Reading, x: str) -> Callable[[Axes, Result], None]:
    """Medians of the rounds over what is varied, with a bar from the least to the most."""

    def draw(ax: Axes, result: Result) -> None:
        drawn = False
        for number, line in enumerate(lines):
            points = list(_read_line_rounds(line, reading, result.records))
            colour = COLOURS[number % len(COLOURS)]
            xs = [x for x, _ in points]
            lows, highs = [y.least for _, y in points], [y.most for _, y in points]
            ax.vlines(xs, lows, highs, color=colour, linewidth=5, alpha=0.25)
            ax.plot(
                xs,
                [y.median for _, y in points],
                label=line.name,
                color=colour,
                marker=MARKERS[number % len(MARKERS)],
                markersize=4,
                linewidth=1.4,
            )
            drawn = drawn or bool(points)
        if not drawn:
            ax.text(0.5, 0.5, "nothing could be measured", ha="center", color=MUTED)
            ax.set_axis_off()
            return
        title = "measured (median and range of the rounds)"
        log_x = all(float(value) > 0 for line in lines for value in line.values)
        label_axes(ax, x, f"{reading.quantity} ({reading.unit})", log_x, False, title)

    return draw


def _read_line_rounds(
    line: Line, reading: Reading, records: Records
) -> Iterator[tuple[float, Rounds]]:
    for (name, _), value in zip(line.cases(), line.values, strict=True):
        try:
            yield float(value), read_rounds(records, name, reading)
        except Unavailable:
            continue
