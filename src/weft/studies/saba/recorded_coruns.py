"""Beside Saba's Fig. 3.2: applications that ran at the same time here, in one queue and in several.

Recorded rounds of `weft corun`: all in one queue, a queue each of equal weights, and of the weights
with the lowest total predicted slowdown. Rows are means of the repetitions, with their 95 %
intervals in the verdicts, and beside them what was predicted when they were measured. Entry points:
`CoRun`, `project_coruns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from weft.corun.outcome import TITLES, Mean, Outcome, compute_outcome
from weft.corun.rounds import EQUAL, LEND, ONE, SCHEMES, WEFT, read_schemes
from weft.records import Quantity, Record, Scalar
from weft.studies.observation import (
    ANOTHER_SYSTEM,
    Claim,
    Kind,
    Observation,
    Records,
    Source,
    Unavailable,
    Verdict,
    scalar_in,
)
from weft.studies.points import Point, record_point
from weft.studies.published import find_table
from weft.studies.saba.cohort import read_coruns
from weft.studies.study import Result
from weft.studies.table_curves import COLOURS, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = find_table("saba-fig3-2")
SYSTEM = "co-running on a testbed"
MODELS = "models of each alone, what one leaves lent to the others"
OURS = (WEFT, LEND)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRun:
    """Applications that ran together, and what came out."""

    outcome: Outcome

    @property
    def setting(self) -> str:
        *names, last = self.outcome.names
        return f"{', '.join(names)} and {last}"

    def gain(self, scheme: str) -> Mean | None:
        """How much lower the mean slowdown is than with equal queues, as a part of it."""
        return self.outcome.gains.get((scheme, EQUAL))

    def predict_gain(self, scheme: str) -> float:
        """The same as the models predict it, with lending."""
        return self.outcome.predicted[scheme][0]


def project_coruns() -> tuple[CoRun, ...]:
    """The co-runs recorded in the project."""
    return tuple(_corun(*recorded) for recorded in read_coruns().items())


def _corun(where: str, records: Sequence[Record]) -> CoRun:
    names = str(records[0].settings["applications"]).split()
    outcome = compute_outcome(names, read_schemes(where, records), records)
    assert outcome is not None
    return CoRun(outcome=outcome)


def _quantity(scheme: str, name: str) -> str:
    return f"{name}, {TITLES[scheme]}"


def prediction_name(scheme: str) -> str:
    return f"predicted {_quantity(scheme, 'mean slowdown')}"


def gain_name(scheme: str) -> str:
    return f"lower than in equal queues, {TITLES[scheme]}"


def corun_point(corun: CoRun) -> Point:
    def values() -> Mapping[str, Quantity]:
        quantities: dict[str, Quantity] = {}
        for scheme, slowdowns in corun.outcome.slowdown.items():
            means = {**slowdowns, "mean slowdown": corun.outcome.overall[scheme]}
            quantities |= {
                _quantity(scheme, n): Scalar(mean.value, "1") for n, mean in means.items()
            }
        for scheme, (lent, _promised) in corun.outcome.expected.items():
            quantities[prediction_name(scheme)] = Scalar(lent, "1")
        return quantities

    setting = corun.setting
    return record_point(setting, {"applications": setting}, values, SYSTEM, setting)


def corun_rows(corun: CoRun) -> list[Observation]:
    """The mean of each scheme, and by how much it is lower with weights, as the thesis has it."""
    means = [
        _row(corun, _quantity(scheme, "mean slowdown"))
        for scheme in SCHEMES
        if scheme in corun.outcome.overall
    ]
    models = [
        _row(corun, prediction_name(scheme), source="model", system=MODELS)
        for scheme in corun.outcome.expected
    ]
    even, skewed = TABLE.column("mean_slowdown")
    theirs = round(100 * (1 - skewed / even), 1)
    gains = {scheme: gain.value for scheme in OURS if (gain := corun.gain(scheme)) is not None}
    lower_by = [
        _row(
            corun,
            gain_name(scheme),
            unit="%",
            kind="gain",
            theirs=theirs,
            read=partial(_in_percent, gain),
        )
        for scheme, gain in gains.items()
    ]
    return [*means, *lower_by, *models]


def _in_percent(gain: float, _: Records) -> float:
    return 100 * gain


def _row(
    corun: CoRun,
    quantity: str,
    *,
    unit: str = "1",
    kind: Kind = "value",
    read: Callable[[Records], float] | None = None,
    theirs: float | None = None,
    source: Source = "measurement",
    system: str = SYSTEM,
) -> Observation:
    return Observation(
        setting=corun.setting,
        quantity=quantity,
        unit=unit,
        kind=kind,
        read=read or (lambda records: scalar_in(records[corun.setting], quantity, "1")),
        published=theirs,
        place=TABLE.place,
        source=source,
        system=system,
        tolerance=ANOTHER_SYSTEM,
    )


# ---- Claims -----------------------------------------------------------------------------------


def _percent(gain: Mean) -> str:
    half = f" ± {100 * gain.half:.0f}" if isfinite(gain.half) else ""
    return f"{100 * gain.value:.0f}{half} %"


def _describe_gain(corun: CoRun, scheme: str, gain: Mean) -> str:
    predicted = 100 * corun.predict_gain(scheme)
    return f"{corun.setting} {_percent(gain)} ({predicted:.0f} % predicted)"


def judge_gains(coruns: Sequence[CoRun], scheme: str) -> Verdict:
    """Holds if every interval is above 0; fails if one is below 0, or no group gains at all.

    What the models predict decides nothing.
    """
    measured = [(corun, gain) for corun in coruns if (gain := corun.gain(scheme)) is not None]
    evidence = ", ".join(_describe_gain(corun, scheme, gain) for corun, gain in measured)
    gains = [gain for _, gain in measured]
    if any(gain.value + gain.half < 0 for gain in gains) or all(gain.value <= 0 for gain in gains):
        return Verdict(holds=False, evidence=evidence)
    holds = all(gain.value - gain.half > 0 for gain in gains)
    return Verdict(holds=True if holds else None, evidence=evidence)


def judge_losses(coruns: Sequence[CoRun], scheme: str) -> Verdict:
    """Fails with one interval wholly below 0, against one queue or equal queues."""
    comparisons = [
        (corun.setting, other, gain)
        for corun in coruns
        for other in (ONE, EQUAL)
        if (gain := corun.outcome.gains.get((scheme, other))) is not None and isfinite(gain.half)
    ]
    if not comparisons:
        raise Unavailable("no group ran often enough in one queue or in equal queues")
    worse = [
        comparison for comparison in comparisons if comparison[2].value + comparison[2].half < 0
    ]
    shown = worse or [min(comparisons, key=lambda comparison: comparison[2].value)]
    text = "; ".join(f"{s} over {TITLES[other]} {_percent(gain)}" for s, other, gain in shown)
    halves = [100 * gain.half for *_, gain in comparisons]
    wide = f"intervals of ± {min(halves):.1f} to {max(halves):.1f} points"
    how = f"{len(worse)} are worse" if worse else "none is worse, the least gain"
    return Verdict(
        holds=not worse, evidence=f"of {len(comparisons)} comparisons, {wide}, {how}: {text}"
    )


def corun_claims(coruns: Sequence[CoRun]) -> list[Claim]:
    """Two for each scheme of ours that was measured: lower, and nowhere worse."""
    measured = [
        scheme for scheme in OURS if any(corun.gain(scheme) is not None for corun in coruns)
    ]
    lowered = (
        "Shares by sensitivity lower the mean slowdown of applications that run at the same time, "
        "against equal shares"
    )
    never_raised = (
        "Shares by sensitivity raise the mean slowdown nowhere beyond noise, neither against one "
        "shared queue nor against equal shares"
    )
    return [
        Claim(
            statement=f"{statement} ({TITLES[scheme]}).",
            place=TABLE.place,
            source="measurement",
            system=SYSTEM,
            judge=partial(_judge, judge, coruns, scheme),
        )
        for statement, judge in ((lowered, judge_gains), (never_raised, judge_losses))
        for scheme in measured
    ]


def _judge(
    judge: Callable[[Sequence[CoRun], str], Verdict],
    coruns: Sequence[CoRun],
    scheme: str,
    _: Records,
) -> Verdict:
    return judge(coruns, scheme)


# ---- Figure -----------------------------------------------------------------------------------


def draw_coruns(coruns: Sequence[CoRun], ax: Axes, _: Result) -> None:
    """Mean slowdown of each group with each scheme, with its interval."""
    measured = [scheme for scheme in SCHEMES if any(scheme in c.outcome.overall for c in coruns)]
    width = 0.8 / len(measured)
    for number, scheme in enumerate(measured):
        means = [
            (n, c.outcome.overall[scheme])
            for n, c in enumerate(coruns)
            if scheme in c.outcome.overall
        ]
        x = np.array([n for n, _ in means]) + width * (number - (len(measured) - 1) / 2)
        halves = [mean.half if isfinite(mean.half) else 0.0 for _, mean in means]
        ax.bar(
            x,
            [mean.value for _, mean in means],
            width=0.92 * width,
            yerr=halves,
            capsize=3,
            color=COLOURS[number],
            label=TITLES[scheme],
        )
    labels = ["\n".join(c.outcome.names) for c in coruns]
    ax.set_xticks(range(len(coruns)), labels, fontsize=7.5)
    ax.set_ylim(bottom=0)
    name_axes(ax, "applications at the same time, measured", "mean slowdown")
