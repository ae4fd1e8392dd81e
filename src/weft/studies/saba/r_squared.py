"""Saba, Fig. 4.4: R² of sensitivity models by degree of the polynomial.

Of the samples that the text states, of seven that agree with its R², and of the applications
profiled here. Entry points: `FIG4_4`, `build_fig4_4`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.records import Quantity, Scalar, Series
from weft.sensitivity.application import Application
from weft.sensitivity.fit import Sample, r_squared
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
from weft.studies.saba.model_degree import CONVEX, SLOWDOWN, STATED, fit_model
from weft.studies.saba.stated_values import (
    DEGREES,
    WORKLOADS,
    complete_samples,
    find_r_squared,
    find_samples,
)
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, MARKERS, draw_published, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
