"""Saba, Fig. 3.2: two workloads at the same time, the link shared evenly or by sensitivity.

Each is predicted by a model of it alone, at the share of the link that the scheme gives it; and the
allocator is asked for its own split. Models of LR and TS come from what other sections state:
samples (Figs. 4.3, 3.1), or completion times (Fig. 3.3). Beside them the same for the most and the
least sensitive of the applications profiled here.

What ran together here are recorded rounds of `weft corun`: all in one queue, a queue each of equal
weights, and of the weights with the lowest total predicted slowdown. Rows are means of the
repetitions, with their 95 % intervals in the verdicts, and beside them what was predicted when they
were measured. Entry points: `FIG3_2`, `build_fig3_2`, `CoRun`, `project_coruns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from weft.control.policy.allocate import allocate
from weft.control.policy.lending import model_volume, predict_slowdowns
from weft.corun.rounds import (
    EQUAL,
    LEND,
    ONE,
    SCHEMES,
    TITLES,
    WEFT,
    Mean,
    Outcome,
    compute_outcome,
    read_schemes,
)
from weft.records import Quantity, Record, Scalar
from weft.sensitivity.model import Sample, Sensitivity, fit_polynomial
from weft.studies.observation import (
    ANOTHER_SYSTEM,
    Claim,
    Kind,
    Observation,
    Records,
    Source,
    Unavailable,
    Verdict,
    build_claims,
    scalar_in,
)
from weft.studies.points import Point, model_point, record_point
from weft.studies.published import find_table
from weft.studies.saba.cohort import Cohort, project_cohort, read_coruns
from weft.studies.saba.stated_values import TIMED, TIMES, find_samples, find_slowdowns, split_times
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, draw_published, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = find_table("saba-fig3-2")
SAMPLES = "polynomials through the stated samples"
UNITS = 1000  # of the link: shares in tenths of a percent
MEAN, SHARE = "mean slowdown", "share of the link"
EVEN, SKEWED, BEST = *map(str, TABLE.cells("scheme")), "weft's split"
SHARES = dict(
    zip((EVEN, SKEWED), TABLE.column("LR_share_percent") / 100, strict=True)
)  # of the first of a pair
MUCH = 0.10  # of slowdown
REASON = (
    "Models are of each workload alone, at a fixed share. Together the published pair is slower "
    "than that in three of four cases; what else the two share (a core each of the same servers, "
    "half of the memory), and whether alone each had the same, is not stated."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two applications, the more sensitive one first, and models of each alone."""

    names: tuple[str, str]
    basis: str
    system: str
    models: Callable[[], tuple[Sensitivity, Sensitivity]]

    def setting(self, scheme: str) -> str:
        return f"{' and '.join(self.names)}{self.basis}, {scheme}"


def _fit_samples() -> tuple[Sensitivity, Sensitivity]:
    """LR of second degree, which the thesis says fits; of TS one slowdown is stated: a line."""
    line = [
        Sample(share=0.25, slowdown=find_slowdowns(0.25)["TS"]),
        Sample(share=1.0, slowdown=1.0),
    ]
    return fit_polynomial(find_samples("LR"), 2), fit_polynomial(line, 1)


def _fit_times() -> tuple[Sensitivity, Sensitivity]:
    return split_times("LR").model, split_times("TS").model


THEIRS = (
    Pair(names=("LR", "TS"), basis=", from samples", system=SAMPLES, models=_fit_samples),
    Pair(names=("LR", "TS"), basis=", from times", system=TIMES, models=_fit_times),
)


def choose_pair(cohort: Cohort) -> Pair | None:
    """The most and the least sensitive at a quarter of the link; None of fewer than two."""
    by_slowdown = cohort.by_sensitivity(0.25)
    if len(by_slowdown) < 2:
        return None
    most, least = by_slowdown[-1], by_slowdown[0]
    return Pair(
        names=(most.name, least.name),
        basis="",
        system=f"convex models of {cohort.system}",
        models=lambda: (most.convex.model, least.convex.model),
    )


def _point(pair: Pair, scheme: str) -> Point:
    def quantities() -> Mapping[str, Quantity]:
        models = pair.models()
        first = (
            float(allocate(models, [(0, 1)], units=UNITS).shares[0])
            if scheme == BEST
            else SHARES[scheme]
        )
        slowdowns = [float(m.slowdown(b)) for m, b in zip(models, (first, 1 - first), strict=True)]
        slowdown_scalars = {n: Scalar(d, "1") for n, d in zip(pair.names, slowdowns, strict=True)}
        return {
            **slowdown_scalars,
            MEAN: Scalar(float(np.mean(slowdowns)), "1"),
            SHARE: Scalar(first, "1"),
        }

    return model_point(
        pair.setting(scheme),
        {"pair": " and ".join(pair.names), "scheme": scheme},
        quantities,
        pair.system,
    )


# ---- Rows -------------------------------------------------------------------------------------


def _row(pair: Pair, scheme: str, quantity: str, theirs: float | None = None) -> Observation:
    setting = pair.setting(scheme)
    share = quantity == SHARE
    return Observation(
        setting=setting,
        quantity=f"{quantity} of {pair.names[0]}" if share else quantity,
        unit="%" if share else "1",
        kind="value",
        published=theirs,
        read=lambda records: scalar_in(records[setting], quantity, "1") * (100 if share else 1),
        place=TABLE.place,
        reason=REASON,
        source="model",
        system=pair.system,
        tolerance=0.10,
        role="check" if quantity == MEAN else "prediction",  # the mean of the two rows before it
    )


def _thesis_rows(pair: Pair) -> list[Observation]:
    rows = []
    for scheme, _, first, second, mean in TABLE.rows:
        theirs = zip((*pair.names, MEAN), (first, second, mean), strict=True)
        rows += [_row(pair, str(scheme), name, float(value)) for name, value in theirs]
    # The floor of TS from samples leaves LR no other share: only times let the allocator choose.
    chosen = 100 * SHARES[SKEWED] if pair.system == TIMES else None
    return [*rows, _row(pair, BEST, SHARE, chosen), *_scheme_rows(pair, (BEST,))]


def _scheme_rows(pair: Pair, schemes: Sequence[str]) -> list[Observation]:
    return [_row(pair, scheme, name) for scheme in schemes for name in (*pair.names, MEAN)]


def _cohort_rows(pair: Pair) -> list[Observation]:
    return [*_scheme_rows(pair, (EVEN, SKEWED, BEST)), _row(pair, BEST, SHARE)]


# ---- Claims -----------------------------------------------------------------------------------


def _judge_mean(pair: Pair, records: Records) -> Verdict:
    means = [scalar_in(records[pair.setting(s)], MEAN, "1") for s in (EVEN, SKEWED, BEST)]
    first = scalar_in(records[pair.setting(BEST)], SHARE, "1")
    evidence = (
        f"mean slowdown {means[0]:.2f} evenly, {means[1]:.2f} with 75 : 25, {means[2]:.2f} "
        f"with weft's {100 * first:.0f} : {100 - 100 * first:.0f}"
    )
    return Verdict(holds=means[1] < means[0], evidence=evidence)


def _judge_gain(pair: Pair, records: Records) -> Verdict:
    even, skewed = (records[pair.setting(scheme)] for scheme in (EVEN, SKEWED))
    first, second = ([scalar_in(r, n, "1") for r in (even, skewed)] for n in pair.names)
    gain, loss = first[0] - first[1], second[1] - second[0]
    evidence = (
        f"{pair.names[0]} {first[0]:.2f} → {first[1]:.2f}, "
        f"{pair.names[1]} {second[0]:.2f} → {second[1]:.2f}"
    )
    return Verdict(holds=gain > MUCH and loss < gain / 2, evidence=evidence)


def _claims(pair: Pair) -> tuple[Claim, ...]:
    return build_claims(
        TABLE.place,
        "model",
        pair.system,
        {
            (
                f"A share of 75 % for the more sensitive of two ({pair.names[0]}) and 25 % "
                f"for the other ({pair.names[1]}) lowers their mean slowdown."
            ): partial(_judge_mean, pair),
            "The more sensitive one gains much more than the other loses.": partial(
                _judge_gain, pair
            ),
        },
    )


# ---- Figure -----------------------------------------------------------------------------------


def _draw_bars(pairs: Sequence[Pair], theirs: bool, ax: Axes, result: Result) -> None:
    """Slowdown of both by scheme, a bar for each pair of models."""
    columns = [(s, n) for s in (EVEN, SKEWED, BEST) for n in (0, 1)]
    width = 0.8 / len(pairs)
    for number, pair in enumerate(pairs):
        heights = [
            scalar_in(result.records[pair.setting(s)], pair.names[n], "1") for s, n in columns
        ]
        x = np.arange(len(columns)) + (number - (len(pairs) - 1) / 2) * width
        label = " and ".join(pair.names) + pair.basis
        ax.bar(x, heights, width=0.92 * width, color=COLOURS[number], label=label)
    if theirs:
        marks = [float(value) for row in TABLE.rows for value in row[2:4]]
        draw_published(ax, enumerate(marks), "published")
    names = [{p.names[n] for p in pairs} for n in (0, 1)]
    labels = [f"{' / '.join(names[n])}\n{scheme}" for scheme, n in columns]
    ax.set_xticks(range(len(columns)), labels, fontsize=7.5)
    ax.set_ylim(bottom=0)
    name_axes(ax, "application and split of the link", "slowdown")


def _describe_lending(_: Result) -> tuple[str, ...]:
    """LR's slowdown if the port lends it what TS leaves of its share."""
    models = [split_times(workload).model for workload in TIMED]
    slowdown = predict_slowdowns(models, [0.5, 0.5])[0]
    return (
        "A port that serves by weights hands on what one does not use. By the completion times TS "
        f"sends {100 * model_volume(models[1]):.0f} % of its time, so that LR would be slowed by "
        f"{slowdown:.2f} with equal weights, not 2.03. TS would have to send much while it "
        "computes, as Section 3.4 says it does: times at two shares cannot show that.",
    )


# ---- Recorded co-runs -------------------------------------------------------------------------

TESTBED = "co-running on a testbed"
LENT_MODELS = "models of each alone, what one leaves lent to the others"
OUR_SCHEMES = (WEFT, LEND)


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
    return record_point(setting, {"applications": setting}, values, TESTBED, setting)


def corun_rows(corun: CoRun) -> list[Observation]:
    """The mean of each scheme, and by how much it is lower with weights, as the thesis has it."""
    means = [
        _corun_row(corun, _quantity(scheme, "mean slowdown"))
        for scheme in SCHEMES
        if scheme in corun.outcome.overall
    ]
    models = [
        _corun_row(corun, prediction_name(scheme), source="model", system=LENT_MODELS)
        for scheme in corun.outcome.expected
    ]
    even, skewed = TABLE.column("mean_slowdown")
    theirs = round(100 * (1 - skewed / even), 1)
    gains = {
        scheme: gain.value for scheme in OUR_SCHEMES if (gain := corun.gain(scheme)) is not None
    }
    lower_by = [
        _corun_row(
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


def _corun_row(
    corun: CoRun,
    quantity: str,
    *,
    unit: str = "1",
    kind: Kind = "value",
    read: Callable[[Records], float] | None = None,
    theirs: float | None = None,
    source: Source = "measurement",
    system: str = TESTBED,
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
        scheme for scheme in OUR_SCHEMES if any(corun.gain(scheme) is not None for corun in coruns)
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
            system=TESTBED,
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


# ---- The study --------------------------------------------------------------------------------


def build_fig3_2(cohorts: Sequence[Cohort], coruns: Sequence[CoRun] | None = None) -> Study:
    """The study, with a pair of each set of applications and what ran together here."""
    measured = project_coruns() if coruns is None else coruns
    cohort_pairs = [pair for pair in map(choose_pair, cohorts) if pair is not None]
    pairs = (*THEIRS, *cohort_pairs)
    return Study(
        name="saba-fig3.2",
        title="Two workloads at once, the link shared evenly or by sensitivity",
        paper=SABA_PAPER,
        place="Figure 3.2, 3.3",
        system=SAMPLES,
        points=(
            *(_point(pair, s) for pair in pairs for s in (EVEN, SKEWED, BEST)),
            *map(corun_point, measured),
        ),
        observations=(
            *(row for pair in THEIRS for row in _thesis_rows(pair)),
            *(row for pair in cohort_pairs for row in _cohort_rows(pair)),
            *(row for corun in measured for row in corun_rows(corun)),
        ),
        claims=(*(claim for pair in pairs for claim in _claims(pair)), *corun_claims(measured)),
        panels=(
            partial(_draw_bars, THEIRS, True),
            *(partial(_draw_bars, [pair], False) for pair in cohort_pairs),
            *([partial(draw_coruns, measured)] if measured else []),
        ),
        notes=(
            "weft's split makes the sum of both slowdowns least. From samples TS cannot have less "
            "than 25 %, the least share that is stated of it, so that LR cannot have more than 75.",
        ),
        remarks=_describe_lending,
    )


FIG3_2 = build_fig3_2((project_cohort(),))
