"""Saba, Figs. 4.3 and 4.4: sensitivity models by degree of the polynomial, and their R².

Fig. 4.3: the text states some of the samples of SQL and LR; our fits to those stand beside them.
Fig. 4.4: R² of the samples that the text states, of seven that agree with its R², and of the
applications profiled here. Entry points: `FIG4_3`, `FIG4_4`, `build_fig4_4`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.plot.style import OURS
from weft.records import Quantity, Scalar, Series
from weft.sensitivity.application import Application
from weft.sensitivity.model import Sample, Sensitivity, fit_convex, fit_polynomial, r_squared
from weft.studies.observation import (
    ANOTHER_SYSTEM,
    Claim,
    Observation,
    Records,
    Unavailable,
    Verdict,
    build_claims,
    scalar_in,
)
from weft.studies.points import Point, model_point, record_point
from weft.studies.published import find_statement, find_table
from weft.studies.saba.cohort import Cohort, cohort_row, project_cohort
from weft.studies.saba.stated_values import (
    DEGREES,
    WORKLOADS,
    complete_samples,
    find_r_squared,
    find_samples,
    format_share,
)
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, MARKERS, draw_published, name_axes, value_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATED = "fits to the samples that the text states"
CONVEX = "convex"
SLOWDOWN = "slowdown"
# A fit with as many coefficients as samples passes through all of them and tells nothing.
MODELS: Mapping[str, tuple[str, ...]] = {
    "SQL": ("degree 1", CONVEX),
    "LR": ("degree 1", "degree 2", CONVEX),
}
REASONS = {
    ("SQL", "degree 1"): "A line cannot bend: the thesis says so of SQL.",
    ("LR", "degree 1"): "A line cannot bend; R² of a line through the thesis's samples is 0.84.",
    ("LR", CONVEX): "From 25 % to 10 % LR grows by 1.3 only, where time spent on communication "
    "grows by 2.5: the stated samples rise more slowly than 1/b, which neither computing nor "
    "sending nor their overlap does.",
}


def fit_model(model: str, samples: Sequence[Sample]) -> Sensitivity:
    return fit_convex(samples) if model == CONVEX else fit_polynomial(samples, int(model[-1]))


# ---- Figure 4.3 -------------------------------------------------------------------------------


def _curve(workload: str, model: str) -> Point:
    def quantities() -> Mapping[str, Quantity]:
        samples = find_samples(workload)
        places = np.unique([*np.geomspace(samples[0].share, 1, 60), *(s.share for s in samples)])
        values = fit_model(model, samples).slowdown(places)
        return {SLOWDOWN: Series("share", "1", tuple(places), tuple(values))}

    return model_point(
        f"{workload}, {model}", {"workload": workload, "model": model}, quantities, STATED
    )


def _sample_row(workload: str, model: str, sample: Sample) -> Observation:
    point = f"{workload}, {model}"
    return Observation(
        setting=f"{point}, {format_share(sample.share)}",
        quantity=SLOWDOWN,
        unit="1",
        kind="value",
        read=lambda records: value_at(records[point], sample.share, SLOWDOWN),
        published=sample.slowdown,
        place=find_table("saba-fig4-3").place,
        source="model",
        reason=REASONS.get((workload, model), ""),
        system=STATED,
        tolerance=0.05,
        role="fit",
    )


def _completion_ratio() -> Observation:
    """Another section gives completion times: no sample of Fig. 4.3 was made from them."""
    times = find_table("saba-fig3-3")
    slow, fast = times.column("LR_s")
    point = "LR, degree 2"
    return Observation(
        setting="LR, degree 2, 25 % over 75 %",
        quantity="completion time",
        unit="1",
        kind="value",
        read=lambda records: (
            value_at(records[point], 0.25, SLOWDOWN) / value_at(records[point], 0.75, SLOWDOWN)
        ),
        published=round(slow / fast, 2),
        place=times.place,
        source="model",
        system=STATED,
        tolerance=0.05,
    )


def _errors(records: Records, workload: str, model: str) -> list[float]:
    record = records[f"{workload}, {model}"]
    return [
        abs(value_at(record, s.share, SLOWDOWN) / s.slowdown - 1) for s in find_samples(workload)
    ]


def _judge_error(
    workload: str, model: str, limit: float, *, within: bool
) -> Callable[..., Verdict]:
    def judge(records: Records) -> Verdict:
        worst = max(_errors(records, workload, model))
        evidence = f"{model} is off by up to {100 * worst:.1f} % of {workload}'s stated samples"
        return Verdict(holds=(worst <= limit) == within, evidence=evidence)

    return judge


def _judge_third_degree(_: Records) -> Verdict:
    return Verdict(
        holds=None,
        evidence="three samples of SQL are stated, and degree 2 passes through any three",
    )


def _draw_curves(workload: str, ax: Axes, result: Result) -> None:
    for number, model in enumerate(MODELS[workload]):
        series = result.records[f"{workload}, {model}"].quantities[SLOWDOWN]
        assert isinstance(series, Series)
        colour = OURS if model == CONVEX else COLOURS[number + 1]
        ax.plot(
            100 * np.array(series.x),
            series.y,
            color=colour,
            label=model,
            linestyle="-" if model == CONVEX else "--",
        )
    samples = find_samples(workload)
    draw_published(ax, ((100 * s.share, s.slowdown) for s in samples), "published")
    ax.set_xlim(0, 100)
    ax.set_ylim(bottom=0)
    name_axes(ax, "share of the link (%)", f"slowdown of {workload}")


FIG4_3 = Study(
    name="saba-fig4.3",
    title="Sensitivity models of SQL and logistic regression",
    paper=SABA_PAPER,
    place="Figure 4.3, 4.2.2",
    system=STATED,
    points=tuple(_curve(w, model) for w in WORKLOADS for model in MODELS[w]),
    observations=(
        *(
            _sample_row(w, model, sample)
            for w in WORKLOADS
            for model in MODELS[w]
            for sample in find_samples(w)
            if sample.share < 1
        ),
        _completion_ratio(),
    ),
    claims=build_claims(
        "4.2.2, Figure 4.3",
        "model",
        STATED,
        {
            "A polynomial of first degree cannot accommodate the samples of SQL.": _judge_error(
                "SQL", "degree 1", 0.15, within=False
            ),
            "A polynomial of second degree fits the samples of LR perfectly.": _judge_error(
                "LR", "degree 2", 0.02, within=True
            ),
            "SQL needs a polynomial of third degree.": _judge_third_degree,
        },
    ),
    panels=tuple(partial(_draw_curves, workload) for workload in WORKLOADS),
    notes=(
        "Published are the figure's samples as far as the text states them: SQL at 10, 25 and "
        "100 %, LR at 10, 25, 75 and 100 %. Fits that pass through any samples are left out.",
        "Beyond the paper: convex is our default form, 1 + Σ c max(0, t/b − 1).",
    ),
)


# ---- Figure 4.4 -------------------------------------------------------------------------------


COMPLETED = "fits to seven samples, the unstated ones chosen"
R2 = "R²"
PLACE = "4.2.2, Figure 4.4"
ABOVE = "R² of every workload is above 0.60 with degree 1."


def _r_squared_point(
    workload: str, samples: Callable[[str], Sequence[Sample]], system: str
) -> Point:
    def quantities() -> Mapping[str, Quantity]:
        points = samples(workload)
        models = [f"degree {k}" for k in DEGREES if k < len(points) - 1] + [CONVEX]
        return {
            model: Scalar(r_squared(fit_model(model, points), points), "1") for model in models
        } | {
            SLOWDOWN: Series(
                "share", "1", tuple(s.share for s in points), tuple(s.slowdown for s in points)
            )
        }

    return model_point(_setting(workload, system), {"workload": workload}, quantities, system)


def _setting(workload: str, system: str) -> str:
    return f"{workload}, {'seven samples' if system == COMPLETED else 'stated samples'}"


def _r_squared_row(workload: str, model: str, value: float | None, system: str) -> Observation:
    setting = _setting(workload, system)
    return Observation(
        setting=f"{setting}, {model}",
        quantity=R2,
        unit="1",
        kind="value",
        published=value,
        read=lambda records: scalar_in(records[setting], model, "1"),
        place=find_table("saba-fig4-4").place,
        source="model",
        system=system,
        tolerance=0.01 if system == COMPLETED else ANOTHER_SYSTEM,
        role="fit",
    )


def _rows(system: str) -> tuple[Observation, ...]:
    rows = []
    for workload in WORKLOADS:
        count = 7 if system == COMPLETED else len(find_samples(workload))
        values = find_r_squared(workload)
        rows += [
            _r_squared_row(workload, f"degree {k}", values.get(k), system)
            for k in DEGREES
            if k < count - 1
        ]
        rows.append(_r_squared_row(workload, CONVEX, None, system))
    return tuple(rows)


def _judge_growth(records: Records) -> Verdict:
    texts, holds = [], True
    for workload in WORKLOADS:
        record = records[_setting(workload, COMPLETED)]
        values = [scalar_in(record, f"degree {k}", "1") for k in DEGREES]
        holds &= bool((np.diff(values) >= 0).all())
        texts.append(f"{workload} {' → '.join(f'{value:.2f}' for value in values)}")
    evidence = f"{'; '.join(texts)}; of nested least-squares fits it must"
    return Verdict(holds=holds, evidence=evidence)


def _judge_workloads(_: Records) -> Verdict:
    least = find_statement("saba", "r2-least-degree-1").value
    values = {w: find_r_squared(w)[1] for w in WORKLOADS}
    text = ", ".join(f"{w} {value:.2f}" for w, value in values.items())
    evidence = f"samples of two of the ten workloads are stated ({text}, above {least:.2f})"
    return Verdict(holds=None, evidence=evidence)


# Applications here: R² of every degree, of seven samples or as many as were profiled.


def _cohort_point(cohort: Cohort, app: Application) -> Point:
    def quantities() -> Mapping[str, Quantity]:
        values = {f"degree {f.model.degree}": f.quality.r_squared for f in app.paper}
        values[CONVEX] = app.convex.quality.r_squared
        return {name: Scalar(value, "1") for name, value in values.items() if value is not None}

    setting, settings = cohort.setting(app.name), {"application": app.name}
    return record_point(setting, settings, quantities, cohort.system, app.name)


def _read_r_squared(cohort: Cohort, app: Application, model: str, records: Records) -> float:
    record = records[cohort.setting(app.name)]
    if model not in record.quantities:
        raise Unavailable(f"{app.name}: its samples do not determine {model}")
    return scalar_in(record, model, "1")


def _cohort_rows(cohort: Cohort) -> tuple[Observation, ...]:
    return tuple(
        cohort_row(
            cohort,
            f"{cohort.setting(app.name)}, {model}",
            R2,
            partial(_read_r_squared, cohort, app, model),
        )
        for app in cohort.sensitive
        for model in (*(f"degree {k}" for k in DEGREES), CONVEX)
    )


def _judge_cohort(cohort: Cohort, records: Records) -> Verdict:
    if not cohort.sensitive:
        raise Unavailable("no application is slowed enough for R² to tell")
    least = find_statement("saba", "r2-least-degree-1").value
    values = {
        app.name: _read_r_squared(cohort, app, "degree 1", records) for app in cohort.sensitive
    }
    text = ", ".join(f"{name} {value:.2f}" for name, value in values.items())
    return Verdict(holds=min(values.values()) > least, evidence=text)


def _draw_cohort(cohort: Cohort, ax: Axes, result: Result) -> None:
    models = [*(f"degree {k}" for k in DEGREES), CONVEX]
    for number, app in enumerate(cohort.sensitive):
        record = result.records[cohort.setting(app.name)]
        numbers = [n for n, model in enumerate(models) if model in record.quantities]
        ax.plot(
            numbers,
            [scalar_in(record, models[n], "1") for n in numbers],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            linewidth=1.2,
            color=COLOURS[number % len(COLOURS)],
            label=app.name,
        )
    ax.set_xticks(range(len(models)), models)
    ax.set_ylim(top=1.02)
    name_axes(ax, "model", "R²")


def _describe_chosen(result: Result) -> tuple[str, ...]:
    """The unstated samples that agree with the stated R²."""
    texts = []
    for workload in WORKLOADS:
        series = result.records[_setting(workload, COMPLETED)].quantities[SLOWDOWN]
        assert isinstance(series, Series)
        stated = {sample.share for sample in find_samples(workload)}
        chosen = [pair for pair in zip(series.x, series.y, strict=True) if pair[0] not in stated]
        texts.append(f"{workload} {', '.join(f'{d:.2f} at {100 * b:g} %' for b, d in chosen)}")
    return (f"Chosen so that R² come closest to the published ones: {'; '.join(texts)}.",)


def _r_squared_panel(ax: Axes, result: Result) -> None:
    for number, workload in enumerate(WORKLOADS):
        values = find_r_squared(workload)
        record = result.records[_setting(workload, COMPLETED)]
        ax.plot(
            DEGREES,
            [scalar_in(record, f"degree {k}", "1") for k in DEGREES],
            marker=".",
            color=COLOURS[number],
            label=f"{workload}, seven samples",
        )
        draw_published(ax, values.items(), f"published: {workload}", "os"[number], 8.5)
    ax.set_xticks(DEGREES)
    ax.set_ylim(0, 1.02)
    name_axes(ax, "degree of the polynomial", "R²")


def _claims(cohorts: Sequence[Cohort]) -> tuple[Claim, ...]:
    return (
        *build_claims(
            PLACE,
            "model",
            COMPLETED,
            {"R² grows with the degree of the polynomial.": _judge_growth, ABOVE: _judge_workloads},
        ),
        *(
            Claim(
                statement=ABOVE,
                place=PLACE,
                source="measurement",
                system=cohort.system,
                judge=partial(_judge_cohort, cohort),
            )
            for cohort in cohorts
        ),
    )


def build_fig4_4(cohorts: Sequence[Cohort]) -> Study:
    """The study, with these sets of applications beside the stated samples."""
    return Study(
        name="saba-fig4.4",
        title="R² of sensitivity models by degree of the polynomial",
        paper=SABA_PAPER,
        place="Figure 4.4, 4.2.2",
        system=COMPLETED,
        points=(
            *(_r_squared_point(w, find_samples, STATED) for w in WORKLOADS),
            *(_r_squared_point(w, complete_samples, COMPLETED) for w in WORKLOADS),
            *(_cohort_point(cohort, app) for cohort in cohorts for app in cohort.sensitive),
        ),
        observations=(
            *_rows(STATED),
            *_rows(COMPLETED),
            *(row for cohort in cohorts for row in _cohort_rows(cohort)),
        ),
        claims=_claims(cohorts),
        panels=(_r_squared_panel, *(partial(_draw_cohort, c) for c in cohorts if c.sensitive)),
        notes=(
            "The published R² are of seven samples (5, 10, 25, 50, 75, 90, 100 %), of which the "
            "text states 3 for SQL and 4 for LR: R² of fits to those alone are told, not judged.",
            "Seven samples: the unstated ones lie between their stated neighbours, at 5 % at most "
            "at twice the slowdown of 10 %. That such samples exist shows that the thesis's "
            "numbers agree with one another; they are not measurements.",
            "Applications that the least share profiled slows by less than 10 % are left out: R² "
            "is then about noise.",
        ),
        remarks=_describe_chosen,
    )


FIG4_4 = build_fig4_4((project_cohort(),))
