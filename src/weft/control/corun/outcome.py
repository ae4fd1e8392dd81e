"""What came out of co-running: slowdown of each application in each way, intervals, verdicts.

Slowdown is completion in a round divided by the mean completion alone, of all repetitions.
Intervals are Student's, 95 %, over repetitions; two ways are compared by the differences within
repetitions. Pure. Entry points: `outcome_of`, `outcome_text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, sqrt
from statistics import fmean, stdev

from scipy.special import stdtrit

from weft.control.corun.rounds import completions_of
from weft.control.corun.ways import ALONE, EQUAL, LEND, ONE, WAYS, WEFT, Way
from weft.records import Record
from weft.records.table import text_table

_CONFIDENCE = 0.975
TITLES = {ONE: "one queue", EQUAL: "equal queues", WEFT: "weft", LEND: "weft, lending"}
_OURS, _OTHERS = (WEFT, LEND), (ONE, EQUAL)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of repetitions and half the width of its interval; inf of one repetition."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:.2f}" + (f" ± {self.half:.2f}" if self.half < inf else "")


def mean_of(values: Sequence[float]) -> Mean:
    if len(values) < 2:
        return Mean(fmean(values), inf)
    quantile = float(stdtrit(len(values) - 1, _CONFIDENCE))
    return Mean(fmean(values), quantile * stdev(values) / sqrt(len(values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Slowdowns by way and application; `overall` their mean over applications, by way.

    `gains` is by how much the mean slowdown is lower in a way of ours than in another, as a part of
    the other's: of (ours, other). `predicted` is the same by the models over equal queues, with
    lending and by the weights alone.
    """

    names: tuple[str, ...]
    alone_s: Mapping[str, Mean]
    slowdown: Mapping[str, Mapping[str, Mean]]
    overall: Mapping[str, Mean]
    gains: Mapping[tuple[str, str], Mean]
    predicted: Mapping[str, tuple[float, float]]
    idle: Mean


def outcome_of(
    names: Sequence[str], ways: Mapping[str, Way], records: Sequence[Record]
) -> Outcome | None:
    """None before each application has run alone."""
    alone = [record for record in records if record.settings["way"] == ALONE]
    alone_s = {name: [c[name] for c in map(completions_of, alone) if name in c] for name in names}
    if not all(alone_s.values()):
        return None
    whole_s = {name: fmean(values) for name, values in alone_s.items()}
    rows: dict[str, dict[int, dict[str, float]]] = {way: {} for way in WAYS}
    for record in records:
        way, repetition = str(record.settings["way"]), record.settings["repetition"]
        if way in rows and isinstance(repetition, int):
            found = completions_of(record)
            rows[way][repetition] = {name: found[name] / whole_s[name] for name in names}
    measured = {way: found for way, found in rows.items() if found}
    return Outcome(
        names=tuple(names),
        alone_s={name: mean_of(values) for name, values in alone_s.items()},
        slowdown={
            way: {name: mean_of([r[name] for r in found.values()]) for name in names}
            for way, found in measured.items()
        },
        overall={
            way: mean_of([fmean(r.values()) for r in found.values()])
            for way, found in measured.items()
        },
        gains=_gains(measured),
        predicted=_predicted_gains(ways),
        idle=mean_of([_idle(r) for r in records if r.settings["way"] != ALONE] or [0.0]),
    )


def _idle(record: Record) -> float:
    value = record.quantities["processors.idle"]
    return float(getattr(value, "value", 0.0))


def _gains(
    rows: Mapping[str, Mapping[int, Mapping[str, float]]],
) -> dict[tuple[str, str], Mean]:
    gains = {}
    for ours, other in product(_OURS, _OTHERS):
        both = sorted(rows.get(ours, {}).keys() & rows.get(other, {}).keys())
        if both:
            before = [fmean(rows[other][r].values()) for r in both]
            after = [fmean(rows[ours][r].values()) for r in both]
            lower = mean_of([b - a for a, b in zip(after, before, strict=True)])
            whole = fmean(before)
            gains[ours, other] = Mean(lower.value / whole, lower.half / whole)
    return gains


def _predicted_gains(ways: Mapping[str, Way]) -> dict[str, tuple[float, float]]:
    equal = ways[EQUAL]
    return {
        ours: (
            1 - fmean(ways[ours].lent) / fmean(equal.lent),
            1 - fmean(ways[ours].promised) / fmean(equal.promised),
        )
        for ours in _OURS
    }


# ---- Text -------------------------------------------------------------------------------------


def outcome_text(outcome: Outcome, ways: Mapping[str, Way]) -> str:
    """What was measured; in brackets what was predicted, with the weight it was predicted for."""
    measured = [way for way in WAYS if way in outcome.slowdown]
    heads = ["application", "alone, s"]
    for way in measured:
        heads += [TITLES[way], "predicted"] if ways[way].weights else [TITLES[way]]
    rows = [_row(outcome, ways, measured, n, name) for n, name in enumerate(outcome.names)]
    total = ["mean", ""]
    for way in measured:
        total.append(str(outcome.overall[way]))
        if ways[way].weights:
            total.append(f"{fmean(ways[way].lent):.2f} ({fmean(ways[way].promised):.2f})")
    return "\n".join([text_table(heads, [*rows, total]), "", *verdicts(outcome)])


def _row(
    outcome: Outcome, ways: Mapping[str, Way], measured: Sequence[str], number: int, name: str
) -> list[str]:
    cells = [name, str(outcome.alone_s[name])]
    for way in measured:
        cells.append(str(outcome.slowdown[way][name]))
        if ways[way].weights:
            weight, lent = ways[way].weights[number], ways[way].lent[number]
            cells.append(f"{100 * weight:.0f} %: {lent:.2f} ({ways[way].promised[number]:.2f})")
    return cells


def verdicts(outcome: Outcome) -> list[str]:
    """A line for each comparison, beside what was predicted, and how idle the processors were."""
    told = []
    for (ours, other), gain in outcome.gains.items():
        how = f"{gain.value:+.1%}" + (f" ± {100 * gain.half:.1f}" if gain.half < inf else "")
        noise = "within noise" if abs(gain.value) <= gain.half else "beyond noise"
        line = f"{TITLES[ours]} over {TITLES[other]}: gain in mean slowdown {how}, {noise}"
        if other == EQUAL:
            lent, promised = outcome.predicted[ours]
            line += f"; predicted {lent:+.1%}, by weights alone {promised:+.1%}"
        told.append(line)
    return [*told, f"processors idle: {outcome.idle.value:.0%} of the time"]
