"""The outcome of co-running: slowdowns by application and scheme, intervals, verdicts.

Slowdown is completion in a round over the mean completion alone, of all repetitions. Intervals are
Student's, 95 %, over repetitions, widened by the interval of the mean alone; two schemes are
compared by the differences within repetitions. Pure. Entry points: `compute_outcome`,
`format_outcome`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import hypot, inf, isfinite, sqrt
from statistics import fmean, stdev

from weft.corun.rounds import (
    ALONE,
    EQUAL,
    IDLE,
    LEND,
    ONE,
    SCHEMES,
    UNMARKED,
    WEFT,
    Scheme,
    read_completions,
    read_fraction,
)
from weft.records import Record
from weft.records.record_text import format_table

_CONFIDENCE = 0.975
_FEW = 0.03  # of the bytes, what connections send before they bear their mark, and more
TITLES = {ONE: "one queue", EQUAL: "equal queues", WEFT: "weft", LEND: "weft, lending"}
_OURS, _OTHERS = (WEFT, LEND), (ONE, EQUAL)

_Rows = Mapping[int, Mapping[str, float]]  # slowdowns in each repetition


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of repetitions and half the width of its interval; inf of one repetition."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:.2f}" + (f" ± {self.half:.2f}" if isfinite(self.half) else "")

    def wider(self, *halves: float) -> Mean:
        """The mean with further, independent errors in its interval."""
        return Mean(self.value, hypot(self.half, *halves))


def estimate_mean(values: Sequence[float]) -> Mean:
    if len(values) < 2:
        return Mean(fmean(values), inf)
    from scipy.special import stdtrit  # see weft.model.fit

    quantile = float(stdtrit(len(values) - 1, _CONFIDENCE))
    return Mean(fmean(values), quantile * stdev(values) / sqrt(len(values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Slowdowns by scheme and application; `overall` their mean over applications, by scheme.

    `gains` of (ours, other): how much lower the mean slowdown is with our scheme, as a fraction of
    the other's. `expected` is the mean slowdown of a scheme as the models predict it, with lending
    and by the weights alone; `predicted` is the gain over equal queues that follows. `idle` is the
    mean of the rounds in which several ran, `unmarked` the most of any of them; None: not known.
    """

    names: tuple[str, ...]
    alone_s: Mapping[str, Mean]
    slowdown: Mapping[str, Mapping[str, Mean]]
    overall: Mapping[str, Mean]
    gains: Mapping[tuple[str, str], Mean]
    expected: Mapping[str, tuple[float, float]]
    predicted: Mapping[str, tuple[float, float]]
    idle: Mean | None
    unmarked: float | None


def compute_outcome(
    names: Sequence[str], schemes: Mapping[str, Scheme], records: Sequence[Record]
) -> Outcome | None:
    """None before each application has run alone."""
    alone_s = _estimate_alone(names, records)
    if alone_s is None:
        return None
    measured = _compute_slowdowns(alone_s, records)
    error = {name: mean.half / mean.value for name, mean in alone_s.items()}
    expected = {
        scheme.name: (fmean(scheme.lent), fmean(scheme.promised))
        for scheme in schemes.values()
        if scheme.weights
    }
    together = [record for record in records if record.settings["way"] != ALONE]
    return Outcome(
        names=tuple(names),
        alone_s=alone_s,
        slowdown={
            scheme: {name: _estimate_slowdown(rows, name, error[name]) for name in names}
            for scheme, rows in measured.items()
        },
        overall={scheme: _estimate_overall(rows, error) for scheme, rows in measured.items()},
        gains={
            (ours, other): _estimate_gain(measured[ours], measured[other], error)
            for ours, other in product(_OURS, _OTHERS)
            if measured.get(ours, {}).keys() & measured.get(other, {}).keys()
        },
        expected=expected,
        predicted=_predict_gains(expected),
        idle=_estimate_idle(together),
        unmarked=max(_read_fractions(together, UNMARKED), default=None),
    )


def _estimate_alone(names: Sequence[str], records: Sequence[Record]) -> dict[str, Mean] | None:
    rounds = [read_completions(record) for record in records if record.settings["way"] == ALONE]
    completions = {name: [r[name] for r in rounds if name in r] for name in names}
    if not all(completions.values()):
        return None
    return {name: estimate_mean(values) for name, values in completions.items()}


def _compute_slowdowns(alone_s: Mapping[str, Mean], records: Sequence[Record]) -> dict[str, _Rows]:
    """Slowdowns of each application by scheme and repetition."""
    rows: dict[str, dict[int, dict[str, float]]] = {scheme: {} for scheme in SCHEMES}
    for record in records:
        scheme, repetition = str(record.settings["way"]), record.settings["repetition"]
        if scheme in rows and isinstance(repetition, int):
            completions = read_completions(record)
            rows[scheme][repetition] = {
                name: completions[name] / s.value for name, s in alone_s.items()
            }
    return {scheme: measured for scheme, measured in rows.items() if measured}


def _estimate_slowdown(rows: _Rows, name: str, error: float) -> Mean:
    mean = estimate_mean([row[name] for row in rows.values()])
    return mean.wider(mean.value * error)


def _estimate_overall(rows: _Rows, error: Mapping[str, float]) -> Mean:
    """The mean over applications; `error` is the relative error of each one's time alone."""
    mean = estimate_mean([fmean(row.values()) for row in rows.values()])
    each = {name: fmean(row[name] for row in rows.values()) for name in error}
    return mean.wider(*(each[name] / len(each) * part for name, part in error.items()))


def _estimate_gain(ours: _Rows, other: _Rows, error: Mapping[str, float]) -> Mean:
    """g = sum of (x - y) / a over sum of x / a: an error of one a counts as far as its application
    gains more or less than all do."""
    both = sorted(ours.keys() & other.keys())
    lower = estimate_mean([fmean(other[r].values()) - fmean(ours[r].values()) for r in both])
    mean_other = fmean(fmean(other[r].values()) for r in both)
    gain = Mean(lower.value / mean_other, lower.half / mean_other)
    before, after = (
        {name: fmean(rows[r][name] for r in both) for name in error} for rows in (other, ours)
    )
    more = {name: (1 - gain.value) * before[name] - after[name] for name in error}
    return gain.wider(
        *(more[name] / len(error) / mean_other * part for name, part in error.items())
    )


def _predict_gains(expected: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    if EQUAL not in expected:
        return {}
    lent, promised = expected[EQUAL]
    return {
        ours: (1 - expected[ours][0] / lent, 1 - expected[ours][1] / promised)
        for ours in _OURS
        if ours in expected
    }


def _estimate_idle(records: Sequence[Record]) -> Mean | None:
    fractions = _read_fractions(records, IDLE)
    return estimate_mean(fractions) if fractions else None


def _read_fractions(records: Sequence[Record], name: str) -> list[float]:
    return [part for record in records if (part := read_fraction(record, name)) is not None]


# ---- Text -------------------------------------------------------------------------------------


def format_outcome(outcome: Outcome, schemes: Mapping[str, Scheme]) -> str:
    """Measured slowdowns; in brackets the predicted ones, with their weight."""
    measured = [scheme for scheme in SCHEMES if scheme in outcome.slowdown]
    heads = ["application", "alone, s"]
    for scheme in measured:
        heads += [TITLES[scheme], "predicted"] if schemes[scheme].weights else [TITLES[scheme]]
    rows = [
        _format_row(outcome, schemes, measured, n, name) for n, name in enumerate(outcome.names)
    ]
    total = ["mean", ""]
    for scheme in measured:
        total.append(str(outcome.overall[scheme]))
        if scheme in outcome.expected:
            lent, promised = outcome.expected[scheme]
            total.append(f"{lent:.2f} ({promised:.2f})")
    return "\n".join([format_table(heads, [*rows, total]), "", *format_verdicts(outcome)]).rstrip()


def _format_row(
    outcome: Outcome, schemes: Mapping[str, Scheme], measured: Sequence[str], number: int, name: str
) -> list[str]:
    cells = [name, str(outcome.alone_s[name])]
    for scheme in measured:
        cells.append(str(outcome.slowdown[scheme][name]))
        if schemes[scheme].weights:
            weight, lent = schemes[scheme].weights[number], schemes[scheme].lent[number]
            promised = schemes[scheme].promised[number]
            cells.append(f"{100 * weight:.0f} %: {lent:.2f} ({promised:.2f})")
    return cells


def format_verdicts(outcome: Outcome) -> list[str]:
    """A line for each comparison, beside what was predicted, and what may have spoilt it."""
    lines = []
    for (ours, other), gain in outcome.gains.items():
        line = f"{TITLES[ours]} over {TITLES[other]}: gain in mean slowdown {_format_gain(gain)}"
        if other == EQUAL and ours in outcome.predicted:
            lent, promised = outcome.predicted[ours]
            line += f"; predicted {lent:+.1%}, by weights alone {promised:+.1%}"
        lines.append(line)
    if outcome.idle is not None:
        lines.append(f"processors idle: {outcome.idle.value:.0%} of the time")
    unmarked = format_unmarked(outcome.unmarked)
    return [*lines, unmarked] if unmarked else lines


def _format_gain(gain: Mean) -> str:
    if not isfinite(gain.half):
        return f"{gain.value:+.1%}, noise not known: too few repetitions"
    noise = "within noise" if abs(gain.value) <= gain.half else "beyond noise"
    return f"{gain.value:+.1%} ± {100 * gain.half:.1f}, {noise}"


def format_unmarked(part: float | None) -> str:
    """A warning about unmarked traffic; empty if there is little."""
    if part is None or part <= _FEW:
        return ""
    return (
        f"{part:.0%} of the bytes bore no application's mark and had 1 % of the link: is a service "
        "that was running before part of an application?"
    )
