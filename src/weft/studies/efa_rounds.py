"""Curves measured on this machine, and ratios of them that know how sure they are.

Every setting is measured in rounds over all settings of a study. The best round counts (the least
latency, the greatest throughput): what else runs on the machine only ever makes a round worse.
How far to trust it tells the next best; of a throughput also the time that others took from the
processor, while the median of a latency is of messages that nobody held up.
Entry points: `MeasuredLine`, `in_rounds`, `compared`, `verdict`, `rounds_panel`. Units: those of
each line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from matplotlib.axes import Axes

from weft.measure import Measurement
from weft.plot.style import label_log_axis, legend
from weft.records import Record, Scalar
from weft.studies.claim import NotHere, Verdict
from weft.studies.observation import Kind, Observation, Records, quantile_in
from weft.studies.site import Point, here, measured
from weft.studies.study import Result
from weft.studies.tabulated import COLOURS

ROUNDS = 3
COMMON: Mapping[str, object] = {"duration": "50 ms", "warmup": 100}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SPOILED = 3.0  # rounds that differ by more than this say nothing of the transport
ROOM, ROOM_LOG = 1.3, 2.5  # of the value axis beyond the values that count
Panel = Callable[[Axes, Result], None]


@dataclass(frozen=True, slots=True)
class Round:
    """One measured value, and the share of a processor that others took around it."""

    value: float
    lost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best of some rounds, and the factor by which it may be off."""

    value: float
    doubt: float

    @classmethod
    def of(cls, rounds: Sequence[Round], least: bool) -> Best:
        """Doubtful by the next best, and a throughput by what is done in the time that is left."""
        ordered = sorted(rounds, key=lambda one: one.value, reverse=not least)
        if len(ordered) == 1:
            return cls(value=ordered[0].value, doubt=inf)
        first, second = (one.value for one in ordered[:2])
        busy = 1.0 if least else 1 / max(1 - ordered[0].lost, 1e-3)
        return cls(value=first, doubt=max(first / second, second / first, busy))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLine:
    """A test over one transport with one option varied; `read` gives the value of a record."""

    label: str
    over: str
    test: Callable[..., Measurement]
    varied: str
    values: tuple[int, ...]
    quantity: str
    unit: str
    read: Callable[[Record], float]
    least: bool = False  # whether less is better
    options: Mapping[str, object] = field(default_factory=dict)
    kind: Kind = "value"

    def setting(self, value: int, number: int) -> str:
        return f"{self.name(value)}, round {number}"

    def name(self, value: int) -> str:
        written = f"{value} B" if self.varied == "size" else f"{self.varied} {value}"
        return f"{self.label}, {written}"

    def point(self, value: int, number: int) -> Point:
        options = {**COMMON, "over": self.over, **self.options, self.varied: value}
        told = {"repetition": number}
        return measured(self.setting(value, number), told, self.test, **options)

    def rounds(self, records: Records, value: int) -> list[Round]:
        numbers = range(1, ROUNDS + 1)
        found = records_there(records, [self.setting(value, number) for number in numbers])
        return [Round(self.read(record), lost_share(record)) for record in found]

    def best(self, records: Records, value: int) -> Best:
        return Best.of(self.rounds(records, value), self.least)

    def observations(self) -> tuple[Observation, ...]:
        """A row for each value: the best round, beside nothing published."""
        return tuple(
            Observation(
                setting=self.name(value), quantity=self.quantity, unit=self.unit, kind=self.kind,
                read=lambda records, value=value: self.best(records, value).value,  # type: ignore[misc]
                source="measurement", system=here(self.over), tolerance=inf,
            )
            for value in self.values
        )  # fmt: skip


def in_rounds(lines: Sequence[MeasuredLine]) -> tuple[Point, ...]:
    """Every value of every line, once before any is measured again."""
    return tuple(
        line.point(value, number)
        for number in range(1, ROUNDS + 1)
        for line in lines
        for value in line.values
    )


def rows_of(lines: Sequence[MeasuredLine]) -> tuple[Observation, ...]:
    return tuple(row for line in lines for row in line.observations())


# ---- Reading records --------------------------------------------------------------------------


def records_there(records: Records, settings: Sequence[str]) -> list[Record]:
    """Those that could be had; why there is none, where there is none."""
    found, missing = [], ""
    for setting in settings:
        try:
            found.append(records[setting])
        except NotHere as reason:
            missing = str(reason)
    if not found:
        raise NotHere(missing)
    return found


def lost_share(record: Record) -> float:
    """Of its time, what a spinning thread lost to others just before and after the run."""
    for row in record.tables.get("host", ()):
        if row["fact"] == "time lost to hiccups, %":
            return float(str(row["value"])) / 100
    return 0.0


def median_us(record: Record) -> float:
    """The median of half the round trip."""
    return quantile_in(record, "half_rtt", 0.5, "us")


def least_us(record: Record) -> float:
    """The shortest half round trip."""
    return quantile_in(record, "half_rtt", 0.0, "us")


def sustained_bps(record: Record) -> float:
    """Payload per second at the slower end.

    Both ends agree in a long run. In a short one the receiver may still find what was waiting for
    it, and the sender may be ahead by all that is in buffers.
    """
    names = ("throughput", "sender.throughput")
    found = [q for name in names if isinstance(q := record.quantities.get(name), Scalar)]
    return min(quantity.value for quantity in found)


def mib_per_s(record: Record) -> float:
    return sustained_bps(record) / 8 / 2**20


def million_per_s(record: Record) -> float:
    size_bytes = record.settings["size_bytes"]
    assert isinstance(size_bytes, int)
    return sustained_bps(record) / 8 / size_bytes / 1e6


# ---- Judging ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A quotient of two bests, and the factor by which it may be off either way."""

    name: str
    value: float
    doubt: float

    def __str__(self) -> str:
        low, high = self.value / self.doubt, self.value * self.doubt
        return f"{self.name} {self.value:.2f} ({low:.2f}–{high:.2f})"

    def between(self, low: float, high: float) -> bool | None:
        """Whether it is; None where the doubt reaches across an end, or spoils the value."""
        if self.doubt > SPOILED:
            return None
        if low <= self.value / self.doubt and self.value * self.doubt <= high:
            return True
        outside = self.value * self.doubt < low or high < self.value / self.doubt
        return False if outside else None


def compared(name: str, above: Best, below: Best) -> Ratio:
    return Ratio(name=name, value=above.value / below.value, doubt=max(above.doubt, below.doubt))


def verdict(ratios: Sequence[Ratio], low: float = 0.0, high: float = inf) -> Verdict:
    """All ratios must be between the two; one that surely is not decides."""
    found = [ratio.between(low, high) for ratio in ratios]
    holds = False if False in found else None if None in found else True
    told = "; ".join(map(str, ratios))
    unsure = "; the rounds of a setting differ too much to tell" if holds is None else ""
    return Verdict(holds=holds, evidence=told + unsure)


# ---- Drawing ----------------------------------------------------------------------------------


def rounds_panel(
    lines: Sequence[MeasuredLine],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = True,
    log_y: bool = True,
) -> Panel:
    """The best round of each setting as a line, every round as a faint mark."""
    overs = ", ".join(dict.fromkeys(line.over for line in lines))

    def draw(ax: Axes, result: Result) -> None:
        for number, line in enumerate(lines):
            _draw_line(ax, line, number, result)
        ax.set_xlabel(f"{x_label}; measured on this machine, {overs}")
        ax.set_ylabel(y_label)
        if log_x:
            ax.set_xscale("log", base=2)
            ticks = sorted({value for line in lines for value in line.values})
            ax.set_xticks(ticks, [f"{value}" for value in ticks])
            ax.minorticks_off()
        _value_axis(ax, [line.best(result.records, value).value for line in lines
                         for value in _there(line, result.records)], log_y)  # fmt: skip
        legend(ax)

    return draw


def _value_axis(ax: Axes, best: Sequence[float], log: bool) -> None:
    """Room for what counts: a round that the machine spoiled may lie outside."""
    if not best:
        return
    if log:
        ax.set_yscale("log")
        label_log_axis(ax.yaxis)
        ax.set_ylim(min(best) / ROOM_LOG, max(best) * ROOM_LOG)
    else:
        ax.set_ylim(0, ROOM * max(best))


def zoomed(panel: Panel) -> Panel:
    """A panel whose value axis has its data alone, not zero."""

    def draw(ax: Axes, result: Result) -> None:
        panel(ax, result)
        ax.set_ylim(auto=True)
        ax.autoscale_view(scalex=False)

    return draw


def _draw_line(ax: Axes, line: MeasuredLine, number: int, result: Result) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    there = _there(line, result.records)
    for value in there:
        every = [one.value for one in line.rounds(result.records, value)]
        ax.plot([value] * len(every), every, marker, color=colour, alpha=0.3, markersize=3.5)
    best = [line.best(result.records, value).value for value in there]
    ax.plot(there, best, marker=marker, markersize=4.5, color=colour, label=line.label)


def _there(line: MeasuredLine, records: Records) -> list[int]:
    numbers = range(1, ROUNDS + 1)
    return [
        value for value in line.values
        if any(line.setting(value, number) in records for number in numbers)
    ]  # fmt: skip
