"""Saba, Figs. 3.1 and 3.3: slowdown and completion times with 75 % and 25 % of the link.

**Fig. 3.1** has the slowdown of the thesis's workloads and of applications here. Other applications
on other links: values stand side by side, and what is judged is what the thesis says of them all.

**Fig. 3.3** has four completion times, and where the time goes. Taken as computing and sending
apart (`split_times`) they predict slowdowns that the thesis states elsewhere. Beside them the times
of profiled applications, and how long they computed.
Entry points: `FIG3_1`, `build_fig3_1`, `FIG3_3`, `build_fig3_3`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from weft.plot.style import INK
from weft.records import Quantity, Record, Scalar, Series
from weft.sensitivity.application import Application
from weft.studies.observation import (
    Claim,
    Observation,
    Records,
    Role,
    Unavailable,
    Verdict,
    build_claims,
    scalar_in,
)
from weft.studies.points import Point, model_point
from weft.studies.published import find_statement, find_table
from weft.studies.saba.cohort import (
    COMPLETION,
    CPU,
    SLOWDOWN,
    Cohort,
    application_point,
    cohort_row,
    mean_at,
    project_cohort,
    runs_at,
)
from weft.studies.saba.stated_values import (
    TIMED,
    TIMES,
    find_samples,
    find_slowdowns,
    find_times,
    format_share,
    split_times,
)
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, draw_published, name_axes, value_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# ---- Fig. 3.1 ---------------------------------------------------------------------------------

SLOWDOWNS = find_table("saba-fig3-1")
HIGH, LOW = 0.75, 0.25
APART, NOTICED, UNNOTICED = 2.0, 1.10, 1.05

Summary = Callable[[list[float]], float]


def _all_at(cohort: Cohort, records: Records, share: float) -> list[float]:
    """Slowdowns of those that were profiled at the share."""
    names = [app.name for app in cohort.by_sensitivity(share)]
    return [mean_at(records[cohort.setting(name)], SLOWDOWN, share) for name in names]


# ---- Fig. 3.1: rows ---------------------------------------------------------------------------


def _slowdown_row(
    cohort: Cohort, setting: str, read: Callable[[Records], float], published: float | None = None
) -> Observation:
    return cohort_row(cohort, setting, SLOWDOWN, read, published=published, place=SLOWDOWNS.place)


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
        _slowdown_row(
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
        _slowdown_row(
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


# ---- Fig. 3.1: claims -------------------------------------------------------------------------


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


def _slowdown_claims(cohort: Cohort) -> tuple[Claim, ...]:
    return build_claims(
        SLOWDOWNS.place,
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


# ---- Fig. 3.1: figure -------------------------------------------------------------------------


def _draw_bars(cohort: Cohort, ax: Axes, result: Result) -> None:
    names = [app.name for app in cohort.by_sensitivity(LOW)]
    for number, share in enumerate((HIGH, LOW)):
        shown = [n for n in names if cohort.applications[n] in cohort.by_sensitivity(share)]
        heights = [mean_at(result.records[cohort.setting(n)], SLOWDOWN, share) for n in shown]
        x = np.array([names.index(n) for n in shown]) + 0.4 * (number - 0.5)
        ax.bar(x, heights, width=0.37, color=COLOURS[number], label=f"ours, {format_share(share)}")
    workloads = [str(name) for name in SLOWDOWNS.cells("workload")]
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
        claims=tuple(claim for c in several for claim in _slowdown_claims(c)),
        panels=tuple(partial(_draw_bars, cohort) for cohort in cohorts),
        notes=(
            "Published are ten Spark and Flink jobs on eight servers and 56 Gb/s InfiniBand; the "
            "text states four of their slowdowns, and with 25 % the extremes and the mean. Ours "
            "are other applications on another network, two of which do what LR and TS do "
            "(logistic regression and a sort on Spark): rows are told and not judged.",
        ),
    )


FIG3_1 = build_fig3_1((project_cohort(),))


# ---- Fig. 3.3 ---------------------------------------------------------------------------------

COMPLETIONS = find_table("saba-fig3-3")
GROWS = f"{COMPLETION}, 25 % over 75 %"
COMPUTING, SENDING, EXPOSED = "computing", "sending at the full rate", "part that is sending"
SLOWED = 1.5  # 25 % over 75 %: below, there is hardly a wait to tell from computing
AS_LONG = 1.25
COUNTED = 0.03  # of its time: below, what is on a processor is not the application
REASONS = {
    ("TS", LOW): "165 s with 25 % over 138 s with 75 % are 1.20 already: the 1.1 that 3.2 states "
    "cannot be of the same runs.",
    ("LR", 0.10): "Time spent on sending grows by 2.5 from 25 % to 10 %; the stated samples of LR "
    "grow by 1.3, which neither computing nor sending does.",
}


# ---- Fig. 3.3: the stated times ---------------------------------------------------------------


def _find_slowdowns(workload: str) -> dict[float, tuple[float, str]]:
    """Slowdowns that other sections state, with their place."""
    slowdowns = {LOW: (find_slowdowns(LOW)[workload], SLOWDOWNS.place)}
    if workload == "LR":
        opening = find_statement("saba", "slowdown-75-lr")
        slowdowns[HIGH] = (opening.value, opening.place)
        (low,) = [s for s in find_samples("LR") if s.share < LOW]
        slowdowns[low.share] = (low.slowdown, find_table("saba-fig4-3").place)
    return dict(sorted(slowdowns.items(), reverse=True))


def _parts_point(workload: str) -> Point:
    def quantities() -> Mapping[str, Quantity]:
        parts = split_times(workload)
        shares = np.unique(
            [*np.geomspace(parts.model.floor, 1, 60), *_find_slowdowns(workload), HIGH]
        )
        took = [parts.completion_s(share) for share in shares]
        return {
            SLOWDOWN: Series("share", "1", tuple(shares), tuple(parts.model.slowdown(shares))),
            COMPLETION: Series("share", "s", tuple(shares), tuple(took)),
            COMPUTING: Scalar(parts.computing_s, "s"),
            SENDING: Scalar(parts.sending_s, "s"),
            EXPOSED: Scalar(parts.sending_s / parts.completion_s(1.0), "1"),
        }

    return model_point(workload, {"workload": workload}, quantities, TIMES)


def _model_row(
    workload: str, share: float, quantity: str, unit: str, theirs: float, place: str, role: Role
) -> Observation:
    return Observation(
        setting=f"{workload}, {format_share(share)}",
        quantity=quantity,
        unit=unit,
        kind="value",
        read=lambda records: value_at(records[workload], share, quantity),
        published=theirs,
        place=place,
        reason=REASONS.get((workload, share), "") if role == "prediction" else "",
        source="model",
        system=TIMES,
        tolerance=0.05,
        role=role,
    )


def _model_rows(workload: str) -> list[Observation]:
    return [
        *(
            _model_row(workload, share, COMPLETION, "s", seconds, COMPLETIONS.place, "fit")
            for share, seconds in reversed(find_times(workload).items())
        ),
        *(
            _model_row(workload, share, SLOWDOWN, "1", theirs, place, "prediction")
            for share, (theirs, place) in _find_slowdowns(workload).items()
        ),
        *(
            Observation(
                setting=f"{workload}, {format_share(1)}",
                quantity=quantity,
                unit=unit,
                kind="value",
                read=lambda records, q=quantity, u=unit: scalar_in(records[workload], q, u),  # type: ignore[misc]
                source="model",
                system=TIMES,
            )
            for quantity, unit in ((COMPUTING, "s"), (SENDING, "s"), (EXPOSED, "1"))
        ),
    ]


# ---- Fig. 3.3: applications here --------------------------------------------------------------


def select_timed(cohort: Cohort) -> list[Application]:
    """Applications with completion times at both shares, the least slowed first."""
    return [
        app
        for app in cohort.by_sensitivity(LOW)
        if runs_at(app, HIGH) and app.profile.completion_unit == "s"
    ]


def _growth(cohort: Cohort, app: Application, records: Records, quantity: str) -> float:
    record = records[cohort.setting(app.name)]
    return mean_at(record, quantity, LOW) / mean_at(record, quantity, HIGH)


def _cohort_rows(cohort: Cohort) -> list[Observation]:
    """Times of each, and how much those grow that do what TS and LR do, or the extremes."""
    applications = select_timed(cohort)
    rows = [
        cohort_row(
            cohort,
            f"{cohort.setting(app.name)}, {format_share(share)}",
            quantity,
            lambda records, a=app, s=share, q=quantity: mean_at(  # type: ignore[misc]
                records[cohort.setting(a.name)], q, s
            ),
            unit="s",
            place=COMPLETIONS.place,
        )
        for app in applications
        for share in (HIGH, LOW)
        for quantity in (COMPLETION, CPU)
    ]
    if len(applications) < 2:
        return rows
    alike = [(app, cohort.alike[app.name]) for app in applications if app.name in cohort.alike]
    ends = alike or [(applications[0], "TS"), (applications[-1], "LR")]
    return rows + [
        cohort_row(
            cohort,
            cohort.setting(app.name),
            GROWS,
            lambda records, a=app: _growth(cohort, a, records, COMPLETION),  # type: ignore[misc]
            published=_find_growth(workload),
            place=COMPLETIONS.place,
        )
        for app, workload in ends
    ]


def _find_growth(workload: str) -> float:
    times = find_times(workload)
    return round(times[LOW] / times[HIGH], 2)


# ---- Fig. 3.3: claims -------------------------------------------------------------------------


def _judge_parts(records: Records) -> Verdict:
    parts = {w: scalar_in(records[w], EXPOSED, "1") for w in TIMED}
    text = ", ".join(f"{w} {100 * part:.0f} %" for w, part in parts.items())
    return Verdict(holds=parts["LR"] > 0.5 > parts["TS"], evidence=f"of the whole: {text}")


def _judge_computing(cohort: Cohort, records: Records) -> Verdict:
    ratios = {}
    for app in select_timed(cohort):
        slowed = _growth(cohort, app, records, COMPLETION) >= SLOWED
        if slowed and _is_counted(records[cohort.setting(app.name)]):
            ratios[app.name] = _growth(cohort, app, records, CPU)
    if not ratios:
        raise Unavailable("none of the applications is slowed enough to tell")
    text = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    evidence = f"processor time, 25 % over 75 %, of those that take {SLOWED:g} times: {text}"
    return Verdict(holds=max(ratios.values()) <= AS_LONG, evidence=evidence)


def _is_counted(record: Record) -> bool:
    """Whether it computes in processes of its own, and not in a service that runs anyway."""
    return mean_at(record, CPU, HIGH) >= COUNTED * mean_at(record, COMPLETION, HIGH)


def _judge_traffic(cohort: Cohort, records: Records) -> Verdict:
    """The traffic of each as a part of what its link could carry, against its slowdown."""
    texts, hidden = [], []
    for app in select_timed(cohort):
        busy = least_utilisation(app)
        if busy is None:
            continue
        record = records[cohort.setting(app.name)]
        slowdown = mean_at(record, SLOWDOWN, LOW)
        texts.append(f"{app.name} {100 * busy:.0f} % and {slowdown:.2f}")
        # Were all of it waited for, time would grow by so much of 1/b.
        hidden += [app.name] * (busy > 0.1 and slowdown - 1 < 0.5 * busy * (1 / LOW - 1))
    if not texts:
        raise Unavailable("no bytes were recorded")
    head = f"use of the link alone, at least, and slowdown with {format_share(LOW)}"
    evidence = f"{head}: {'; '.join(texts)}"
    return Verdict(holds=bool(hidden), evidence=evidence)


def least_utilisation(app: Application) -> float | None:
    """The link's utilisation by its runs alone, in the busier direction of its host.

    If directions were not counted separately, each is taken to have half of the bytes.
    """
    runs = [run for run in runs_at(app, 1.0) if run.bytes is not None]
    if not runs or app.profile.link_bps is None:
        return None
    one_way_bits = sum(8 * (run.busier_bytes or (run.bytes or 0) / 2) for run in runs)
    return one_way_bits / (app.profile.link_bps * sum(run.completion for run in runs))


def _completion_claims(cohort: Cohort) -> tuple[Claim, ...]:
    return build_claims(
        COMPLETIONS.place,
        "measurement",
        cohort.system,
        {
            (
                "Less bandwidth leaves computing as it is: what grows is the time on the network."
            ): partial(_judge_computing, cohort),
            (
                "How much is sent does not decide: what is sent while computing hardly slows "
                "an application."
            ): partial(_judge_traffic, cohort),
        },
    )


# ---- Fig. 3.3: figures ------------------------------------------------------------------------


def _draw_parts(ax: Axes, result: Result) -> None:
    """Computing and sending of both workloads at each stated share."""
    bars = [(w, share) for w in TIMED for share in (HIGH, LOW)]
    for n, (workload, share) in enumerate(bars):
        record = result.records[workload]
        computing = scalar_in(record, COMPUTING, "s")
        sending = scalar_in(record, SENDING, "s") / share
        first = n == 0
        ax.bar(n, computing, color=COLOURS[0], width=0.6, label=COMPUTING if first else None)
        ax.bar(
            n,
            sending,
            bottom=computing,
            color=COLOURS[4],
            width=0.6,
            label="sending" if first else None,
        )
        label = "published" if first else "_"
        draw_published(ax, [(n, find_times(workload)[share])], label)
    ax.set_xticks(range(len(bars)), [f"{w}, {format_share(share)}" for w, share in bars])
    name_axes(ax, "workload and share of the link", "completion time (s)")


def _draw_cohort(cohort: Cohort, ax: Axes, result: Result) -> None:
    applications = select_timed(cohort)
    for number, share in enumerate((HIGH, LOW)):
        x = np.arange(len(applications)) + 0.4 * (number - 0.5)
        records = [result.records[cohort.setting(app.name)] for app in applications]
        ax.bar(
            x,
            [mean_at(record, COMPLETION, share) for record in records],
            width=0.37,
            color=COLOURS[number],
            label=f"completion, {format_share(share)}",
        )
        cpu = [
            (at, mean_at(record, CPU, share))
            for at, record in zip(x, records, strict=True)
            if CPU in record.quantities
        ]
        ax.plot(
            [at for at, _ in cpu],
            [seconds for _, seconds in cpu],
            "_",
            color=INK,
            markersize=14,
            markeredgewidth=2,
            label="processor time" if number else None,
        )
    ax.set_xticks(
        range(len(applications)), [app.name for app in applications], rotation=30, ha="right"
    )
    name_axes(ax, "application", "time (s)")


def build_fig3_3(cohorts: Sequence[Cohort]) -> Study:
    """The study, with these sets of applications beside the stated times."""
    present = [cohort for cohort in cohorts if select_timed(cohort)]
    return Study(
        name="saba-fig3.3",
        title="Completion time with three quarters and with a quarter of the link",
        paper=SABA_PAPER,
        place="Figure 3.3, 3.4",
        system=TIMES,
        points=(
            *map(_parts_point, TIMED),
            *(application_point(cohort, app) for cohort in present for app in select_timed(cohort)),
        ),
        observations=(
            *(row for workload in TIMED for row in _model_rows(workload)),
            *(row for cohort in present for row in _cohort_rows(cohort)),
        ),
        claims=(
            *build_claims(
                COMPLETIONS.place,
                "model",
                TIMES,
                {"LR spends most of its time on communication, TS little.": _judge_parts},
            ),
            *(claim for cohort in present for claim in _completion_claims(cohort)),
        ),
        panels=(_draw_parts, *(partial(_draw_cohort, cohort) for cohort in present)),
        notes=(
            "From two completion times follow two numbers, computing and sending; slowdowns, "
            "stated elsewhere, are predictions. The timelines of the figure are in the picture "
            "only.",
            "Processor time is that of the command and all that it starts; an application that "
            "hands its work to a service (Spark) is not judged by it.",
        ),
    )


FIG3_3 = build_fig3_3((project_cohort(),))
