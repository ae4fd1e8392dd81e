"""Saba, Fig. 3.1: slowdown with 75 % and 25 % of the link, its workloads and applications here.

Other applications on other links: values stand side by side, and what is judged is what the thesis
says of them all. Entry points: `FIG3_1`, `build_fig3_1`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from weft.studies.observation import Claim, Observation, Records, Unavailable, Verdict, build_claims
from weft.studies.published import find_statement, find_table
from weft.studies.saba.cohort import (
    SLOWDOWN,
    Cohort,
    application_point,
    cohort_row,
    mean_at,
    project_cohort,
)
from weft.studies.saba.stated_values import find_slowdowns, format_share
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, draw_published, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = find_table("saba-fig3-1")
HIGH, LOW = 0.75, 0.25
APART, NOTICED, UNNOTICED = 2.0, 1.10, 1.05

Summary = Callable[[list[float]], float]


def _all_at(cohort: Cohort, records: Records, share: float) -> list[float]:
    """Slowdowns of those that were profiled at the share."""
    names = [app.name for app in cohort.by_sensitivity(share)]
    return [mean_at(records[cohort.setting(name)], SLOWDOWN, share) for name in names]


# ---- Rows -------------------------------------------------------------------------------------


def _row(
    cohort: Cohort, setting: str, read: Callable[[Records], float], published: float | None = None
) -> Observation:
    return cohort_row(cohort, setting, SLOWDOWN, read, published=published, place=TABLE.place)


def _spread_rows(cohort: Cohort) -> list[Observation]:
    """The extremes and the mean of all, which the text states of ten workloads with 25 %."""
    low = find_slowdowns(LOW).values()
    summaries: Sequence[tuple[str, Summary, float]] = (
        ("least", min, min(low)),
        ("mean", fmean, find_statement("saba", "slowdown-25-mean").value),
        ("most", max, max(low)),
    )
    if len(cohort.by_sensitivity(LOW)) < 2:
        return []
    return [
        _row(
            cohort,
            f"all{cohort.suffix}, {format_share(LOW)}, {name}",
            lambda records, f=summary: f(_all_at(cohort, records, LOW)),  # type: ignore[misc]
            theirs,
        )
        for name, summary, theirs in summaries
    ]


def _application_rows(cohort: Cohort) -> list[Observation]:
    """Each application, beside the workload that does the same, if there is one."""
    return [
        _row(
            cohort,
            f"{cohort.setting(name)}, {format_share(share)}",
            lambda records, n=name, s=share: mean_at(  # type: ignore[misc]
                records[cohort.setting(n)], SLOWDOWN, s
            ),
            find_slowdowns(share).get(cohort.alike.get(name, "")),
        )
        for name in cohort.applications
        for share in (HIGH, LOW)
    ]


# ---- Claims -----------------------------------------------------------------------------------


def _ends(cohort: Cohort, records: Records, share: float) -> tuple[float, float, str]:
    applications = cohort.by_sensitivity(share)
    if len(applications) < 2:
        raise Unavailable(
            f"fewer than two applications were profiled at {format_share(share)} of the link"
        )
    slowdowns = _all_at(cohort, records, share)
    text = (
        f"with {format_share(share)} from {slowdowns[0]:.2f} ({applications[0].name}) to "
        f"{slowdowns[-1]:.2f} ({applications[-1].name})"
    )
    return slowdowns[0], slowdowns[-1], text


def _judge_quarter(cohort: Cohort, records: Records) -> Verdict:
    least, most, text = _ends(cohort, records, LOW)
    return Verdict(holds=most >= APART * least, evidence=text)


def _judge_three_quarters(cohort: Cohort, records: Records) -> Verdict:
    least, most, text = _ends(cohort, records, HIGH)
    return Verdict(holds=most > NOTICED and least < UNNOTICED, evidence=text)


def _claims(cohort: Cohort) -> tuple[Claim, ...]:
    return build_claims(
        TABLE.place,
        "measurement",
        cohort.system,
        {
            (
                "Applications are not equally sensitive: with 25 % of the link some take "
                f"{APART:g} times as long as others, relative to the whole link."
            ): partial(_judge_quarter, cohort),
            "A quarter of the link less slows some considerably and others not at all.": partial(
                _judge_three_quarters, cohort
            ),
        },
    )


# ---- Figure -----------------------------------------------------------------------------------


def _draw_bars(cohort: Cohort, ax: Axes, result: Result) -> None:
    names = [app.name for app in cohort.by_sensitivity(LOW)]
    for number, share in enumerate((HIGH, LOW)):
        shown = [n for n in names if cohort.applications[n] in cohort.by_sensitivity(share)]
        heights = [mean_at(result.records[cohort.setting(n)], SLOWDOWN, share) for n in shown]
        x = np.array([names.index(n) for n in shown]) + 0.4 * (number - 0.5)
        ax.bar(x, heights, width=0.37, color=COLOURS[number], label=f"ours, {format_share(share)}")
    workloads = [str(name) for name in TABLE.cells("workload")]
    for number, share in enumerate((HIGH, LOW)):
        slowdowns = find_slowdowns(share)
        xs = [len(names) + workloads.index(n) + 0.4 * (number - 0.5) for n in slowdowns]
        points = zip(xs, slowdowns.values(), strict=True)
        draw_published(ax, points, f"published, {format_share(share)}", "so"[number], 7)
    ax.axhline(1, color="#9CA3AF", linewidth=0.8)
    labels = [*names, *workloads]
    ax.set_xticks(range(len(labels)), labels, rotation=30, ha="right", fontsize=8)
    ax.set_ylim(bottom=0)
    name_axes(ax, "application", "slowdown")


def build_fig3_1(cohorts: Sequence[Cohort]) -> Study:
    """The study of these sets of applications."""
    several = [cohort for cohort in cohorts if len(cohort.by_sensitivity(LOW)) > 1]
    return Study(
        name="saba-fig3.1",
        title="Slowdown with three quarters and with a quarter of the link",
        paper=SABA_PAPER,
        place="Figure 3.1, 3.2",
        system=cohorts[0].system,
        points=tuple(application_point(c, app) for c in cohorts for app in c.applications.values()),
        observations=tuple(
            row for c in cohorts for row in (*_spread_rows(c), *_application_rows(c))
        ),
        claims=tuple(claim for c in several for claim in _claims(c)),
        panels=tuple(partial(_draw_bars, cohort) for cohort in cohorts),
        notes=(
            "Published are ten Spark and Flink jobs on eight servers and 56 Gb/s InfiniBand; the "
            "text states four of their slowdowns, and with 25 % the extremes and the mean. Ours "
            "are other applications on another network, two of which do what LR and TS do "
            "(logistic regression and a sort on Spark): rows are told and not judged.",
        ),
    )


FIG3_1 = build_fig3_1((project_cohort(),))
