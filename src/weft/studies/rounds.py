"""Measured cases in rounds, and how two of them compare on a machine that others use too.

Each round measures every case once, so a drift of the machine meets all of them; two cases are
compared round by round. The least and the most of five ratios enclose the median of such ratios
with 94 % confidence, whatever their distribution (order statistics); a claim is decided only
where that interval decides it and others left the processors alone.
Entry points: `Case`, `in_rounds`, `gains`, `alike`, `together`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.axes import Axes

from weft.measure import Measurement
from weft.plot.style import INK
from weft.records import Plain, Record, Scalar
from weft.records.dimension import convert
from weft.studies.claim import NotHere, Verdict
from weft.studies.efa_rounds import lost_share
from weft.studies.observation import Kind, Observation, Records
from weft.studies.site import Point, here, measured
from weft.studies.study import Result
from weft.studies.tabulated import COLOURS, measured_panel

ROUNDS = 5
BUSY = 0.2  # of its time, what a spinning thread loses on a machine too busy to judge anything
MEASURED = "measured here (range of the rounds)"


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
class Spread:
    """The median of the rounds, between what they were, and what others took meanwhile."""

    median: float
    least: float
    most: float
    lost: float = 0.0  # share of a spinning thread's time, median of the rounds

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g}–{self.most:.3g})"


def in_rounds(cases: Sequence[Case]) -> tuple[Point, ...]:
    """Points of all cases, one round after another, to and fro."""
    return tuple(
        measured(in_round(case.name, number), {**case.settings, "round": number}, case.test,
                 **case.options)
        for number in range(1, ROUNDS + 1)
        for case in cases[:: 1 if number % 2 else -1]
    )  # fmt: skip


def in_round(case: str, number: int) -> str:
    """The setting of a case's point."""
    return f"{case}, round {number}"


def scalar_in(record: Record, quantity: str, unit: str) -> float:
    """A record's scalar in the unit."""
    found = _scalar(record, quantity)
    value = convert(found.value, found.unit, unit)
    assert value is not None
    return value


def _scalar(record: Record, quantity: str) -> Scalar:
    found = record.quantities[quantity]
    assert isinstance(found, Scalar)
    return found


def spread_of(values: Sequence[float], lost: Sequence[float] = (0.0,)) -> Spread:
    return Spread(median=median(values), least=min(values), most=max(values), lost=median(lost))


def spread(records: Records, case: str, quantity: str, unit: str) -> Spread:
    """What the rounds of a case gave; those that failed are left out, and NotHere if all did."""
    rounds = [record for (record,) in _rounds(records, case)]
    return spread_of([scalar_in(r, quantity, unit) for r in rounds], [*map(lost_share, rounds)])


def ratio(records: Records, case: str, to: str, quantity: str) -> Spread:
    """One case's value over another's, round by round."""
    pairs = list(_rounds(records, case, to))
    return spread_of(
        [_scalar(a, quantity).value / _scalar(b, quantity).value for a, b in pairs],
        [max(lost_share(a), lost_share(b)) for a, b in pairs],
    )


def _rounds(records: Records, *cases: str) -> Iterator[tuple[Record, ...]]:
    reason: NotHere | None = None
    found = 0
    for number in range(1, ROUNDS + 1):
        try:
            yield tuple(records[in_round(case, number)] for case in cases)
            found += 1
        except NotHere as missing:
            reason = missing
    if not found and reason is not None:
        raise reason


def medians(
    cases: Sequence[Case], label: str, unit: str, kind: Kind, quantity: str
) -> tuple[Observation, ...]:
    """The median of each case's rounds; nothing is published for this machine."""
    return tuple(
        Observation(
            setting=case.name, quantity=label, unit=unit, kind=kind, source="measurement",
            system=case.system,
            read=lambda records, name=case.name: spread(records, name, quantity, unit).median,  # type: ignore[misc]
        )
        for case in cases
    )  # fmt: skip


Lines = Mapping[str, Sequence[tuple[float, str]]]  # label: (x, case) in order


def rounds_panel(
    lines: Lines, quantity: str, unit: str, x_label: str, y_label: str, *, log_x: bool = True
) -> Callable[[Axes, Result], None]:
    """Medians of the rounds over one axis, with a bar from the least to the most."""

    def seen(records: Records) -> dict[str, list[tuple[float, Spread]]]:
        found = {
            label: list(_had(records, cases, quantity, unit)) for label, cases in lines.items()
        }
        return {label: points for label, points in found.items() if points}

    base = measured_panel(
        lambda records: {k: [(x, s.median) for x, s in v] for k, v in seen(records).items()},
        x_label, y_label, log_x=log_x, title=MEASURED,
    )  # fmt: skip

    def draw(ax: Axes, result: Result) -> None:
        for number, points in enumerate(seen(result.records).values()):
            ax.vlines([x for x, _ in points], [s.least for _, s in points],
                      [s.most for _, s in points], color=COLOURS[number % len(COLOURS)],
                      linewidth=5, alpha=0.25)  # fmt: skip
        base(ax, result)
        _say_if_empty(ax)

    return draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A case as a bar; those of one `kind` have one colour."""

    label: str
    case: str
    kind: str


def rounds_bars(
    bars: Sequence[Bar], quantity: str, unit: str, x_label: str
) -> Callable[[Axes, Result], None]:
    """A bar for each case that there is: the median, and a line from the least to the most."""
    kinds = list(dict.fromkeys(bar.kind for bar in bars))

    def draw(ax: Axes, result: Result) -> None:
        labels: list[str] = []
        for bar in bars:
            for _, found in _had(result.records, [(0, bar.case)], quantity, unit):
                colour = COLOURS[kinds.index(bar.kind) % len(COLOURS)]
                ax.barh(len(labels), found.median, color=colour, height=0.6)
                ax.plot([found.least, found.most], [len(labels)] * 2, color=INK, linewidth=1)
                labels.append(bar.label)
        ax.set_yticks(range(len(labels)), labels)
        ax.invert_yaxis()
        ax.set_xlabel(f"{x_label}; {MEASURED}")
        ax.grid(visible=False, axis="y")
        _say_if_empty(ax)

    return draw


def _say_if_empty(ax: Axes) -> None:
    if not ax.get_lines():
        ax.text(0.5, 0.5, "not measured here", transform=ax.transAxes, ha="center")


def _had(
    records: Records, cases: Sequence[tuple[float, str]], quantity: str, unit: str
) -> Iterator[tuple[float, Spread]]:
    for x, case in cases:
        try:
            yield x, spread(records, case, quantity, unit)
        except NotHere:
            continue


# ---- Verdicts ----------------------------------------------------------------------------------


def gains(found: Spread, least_gain: float, what: str) -> Verdict:
    """Whether a ratio exceeds 1, and may be as large as the paper's least: 0.05 is 5 %."""
    return _decided(found, what, yes=found.least > 1, no=found.most < 1 + least_gain)


def alike(found: Spread, within: float, what: str) -> Verdict:
    """Whether a ratio is 1 up to a share: 0.1 is from 1/1.1 to 1.1."""
    low, high = 1 / (1 + within), 1 + within
    yes = low <= found.least and found.most <= high
    return _decided(found, what, yes=yes, no=found.most < low or high < found.least)


def keeps(found: Spread, share: float, what: str) -> Verdict:
    """Whether a ratio stays at a share or above: 0.97 is at most 3 % lost."""
    return _decided(found, what, yes=found.least >= share, no=found.most < share)


def _decided(found: Spread, what: str, *, yes: bool, no: bool) -> Verdict:
    if not (yes or no):
        return Verdict(holds=None, evidence=f"{what}: ratio {found}, undecided")
    return unless_busy(not no, f"{what}: ratio {found}", found)


def unless_busy(holds: bool | None, evidence: str, *found: Spread) -> Verdict:
    """The verdict, if the rounds that it rests on were the machine's own."""
    lost = max(one.lost for one in found)
    if lost > BUSY:
        busy = f"{evidence}, while others took {lost:.0%} of a processor"
        return Verdict(holds=None, evidence=busy)
    return Verdict(holds=holds, evidence=evidence)


def together(*verdicts: Verdict) -> Verdict:
    """All of them: one that does not hold decides, then one that is open."""
    evidence = "; ".join(verdict.evidence for verdict in verdicts)
    words = [verdict.holds for verdict in verdicts]
    if False in words:
        return Verdict(holds=False, evidence=evidence)
    return Verdict(holds=None if None in words else True, evidence=evidence)
