"""Saba, Figs. 4.5 and 4.6: a model made with one amount of data, or nodes, used with another.

The model is of an application as it was profiled; R² is that of this model on the samples of the
same application, profiled again after the change. Entry points: `FIG4_5`, `FIG4_6`, `build_fig4_5`,
`build_fig4_6`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf, isfinite
from typing import TYPE_CHECKING

from weft.records import Quantity, Scalar
from weft.sensitivity.application import Application
from weft.sensitivity.model import Sensitivity, prediction_errors, r_squared
from weft.studies.observation import (
    Claim,
    Observation,
    Records,
    Unavailable,
    Verdict,
    build_claims,
    scalar_in,
)
from weft.studies.points import Point, record_point
from weft.studies.published import find_statement, find_table
from weft.studies.saba.cohort import (
    NOTICED,
    Cohort,
    Variant,
    cohort_row,
    is_sensitive,
    project_cohort,
)
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, MARKERS, draw_published, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DATA, NODES = find_table("saba-fig4-5"), find_table("saba-fig4-6")
PAPER, CONVEX = "R², degree 3", "R², convex"
ERROR = "worst error, convex"
LOWEST = -1.0  # in the figure


def _setting(cohort: Cohort, variant: Variant) -> str:
    return f"{cohort.setting(variant.base.name)}, {variant.factor:g} × {variant.change}"


def _as_profiled(cohort: Cohort, name: str) -> str:
    return f"{cohort.setting(name)}, as profiled"


def _variants(cohort: Cohort, change: str) -> list[Variant]:
    variants = [variant for variant in cohort.variants if variant.change == change]
    return sorted(variants, key=lambda variant: (variant.base.name, variant.factor))


# ---- Points -----------------------------------------------------------------------------------


def assess_change(base: Application, after: Application) -> dict[str, float]:
    """R² and worst error of the base's models on what was observed after the change."""
    samples = [s for s in after.profile.samples if s.share >= base.floor]
    models: dict[str, Sensitivity] = {f"R², degree {f.model.degree}": f.model for f in base.paper}
    models |= {CONVEX: base.convex.model}
    quality = {name: r_squared(model, samples) for name, model in models.items()}
    return quality | {ERROR: prediction_errors(base.convex.model, samples).worst}


def _point(cohort: Cohort, setting: str, base: Application, after: Application) -> Point:
    def quantities() -> Mapping[str, Quantity]:
        quality = assess_change(base, after)
        return {name: Scalar(value, "1") for name, value in quality.items() if isfinite(value)}

    settings = {"application": after.name, "model": base.name}
    return record_point(setting, settings, quantities, cohort.system, after.name)


def _points(cohort: Cohort, change: str) -> list[Point]:
    variants = _variants(cohort, change)
    bases = {variant.base.name: variant.base for variant in variants}
    return [
        *(_point(cohort, _as_profiled(cohort, name), app, app) for name, app in bases.items()),
        *(_point(cohort, _setting(cohort, v), v.base, v.application) for v in variants),
    ]


def _value(records: Records, setting: str, quantity: str) -> float:
    if quantity not in records[setting].quantities:
        raise Unavailable(f"{setting}: no {quantity}")
    return scalar_in(records[setting], quantity, "1")


# ---- Rows -------------------------------------------------------------------------------------


def _application_rows(cohort: Cohort, change: str) -> list[Observation]:
    return [
        cohort_row(
            cohort,
            point.setting,
            quantity,
            partial(_value, setting=point.setting, quantity=quantity),
        )
        for point in _points(cohort, change)
        for quantity in (PAPER, CONVEX, ERROR)
    ]


def _variants_between(cohort: Cohort, change: str, low: float, high: float) -> list[Variant]:
    """Variants with a factor in the range, of applications that are sensitive at all."""
    return [
        v
        for v in _variants(cohort, change)
        if low <= v.factor <= high and is_sensitive(v.application)
    ]


def _least(cohort: Cohort, variants: Sequence[Variant], records: Records) -> float:
    return min(_value(records, _setting(cohort, variant), PAPER) for variant in variants)


def _data_rows(cohort: Cohort) -> list[Observation]:
    """Where R² fell most and least from what it was as profiled, as the thesis names NI and SVM."""
    rows = []
    for name, low, high, place in (("less data", 0.0, 0.99, 0), ("more data", 1.01, inf, 2)):
        variants = _variants_between(cohort, "data", low, high)
        for end, extent, column in ((max, "most", "NI_r2"), (min, "least", "SVM_r2")):
            if variants:
                rows.append(
                    cohort_row(
                        cohort,
                        f"{name}{cohort.suffix}, {extent} impact",
                        PAPER,
                        partial(_after_fall, cohort, variants, end),
                        published=float(DATA.column(column)[place]),
                        place=DATA.place,
                    )
                )
    return rows


def _after_fall(
    cohort: Cohort,
    variants: Sequence[Variant],
    end: Callable[[list[tuple[float, float]]], tuple[float, float]],
    records: Records,
) -> float:
    """R² after the most or the least fall."""
    after = [_value(records, _setting(cohort, variant), PAPER) for variant in variants]
    before = [
        _value(records, _as_profiled(cohort, variant.base.name), PAPER) for variant in variants
    ]
    return end([(b - a, a) for a, b in zip(after, before, strict=True)])[1]


def _nodes_rows(cohort: Cohort) -> list[Observation]:
    factor, least = map(float, NODES.rows[0])
    variants = _variants_between(cohort, "nodes", 0.5, factor)
    row = cohort_row(
        cohort,
        f"0.5 to {factor:g} × nodes{cohort.suffix}, least",
        PAPER,
        partial(_least, cohort, variants),
        published=least,
        place=NODES.place,
    )
    return [row] if variants else []


# ---- Claims -----------------------------------------------------------------------------------


def _judge_above(
    cohort: Cohort, change: str, least: float, low: float, high: float, records: Records
) -> Verdict:
    variants = _variants_between(cohort, change, low, high)
    if not variants:
        raise Unavailable(f"no application was profiled again with other {change}")
    texts, values = [], []
    for variant in variants:
        setting = _setting(cohort, variant)
        paper, convex = (_value(records, setting, name) for name in (PAPER, CONVEX))
        values.append(paper)
        texts.append(f"{setting} {paper:.2f} ({convex:.2f})")
    evidence = f"R² of degree 3 (convex): {', '.join(texts)}"
    return Verdict(holds=min(values) > least, evidence=evidence)


def _judge_below(cohort: Cohort, records: Records) -> Verdict:
    variants = _variants_between(cohort, "nodes", 4.0, inf)
    if not variants:
        raise Unavailable("no application was profiled again with four times the nodes")
    least = find_statement("saba", "r2-least-nodes").value
    values = [_value(records, _setting(cohort, variant), PAPER) for variant in variants]
    below = sum(value < least for value in values)
    evidence = f"R² of degree 3: {', '.join(f'{value:.2f}' for value in values)}"
    return Verdict(holds=below > len(values) / 2, evidence=evidence)


def _data_claims(cohort: Cohort) -> tuple[Claim, ...]:
    least = find_statement("saba", "r2-least-dataset")
    return build_claims(
        least.place,
        "measurement",
        cohort.system,
        {
            (
                f"R² of a model stays above {least.value:.2f} when the data are another "
                "size than when profiled (thesis: a tenth and ten times)."
            ): partial(_judge_above, cohort, "data", least.value, 0.0, inf)
        },
    )


def _nodes_claims(cohort: Cohort) -> tuple[Claim, ...]:
    least = find_statement("saba", "r2-least-nodes")
    return build_claims(
        least.place,
        "measurement",
        cohort.system,
        {
            (
                f"R² of a model stays above {least.value:.2f} with 0.5 to 3 times the nodes "
                "that it was profiled on."
            ): partial(_judge_above, cohort, "nodes", least.value, 0.5, 3.0),
            f"With 4 times the nodes R² of most models is below {least.value:.2f}.": partial(
                _judge_below, cohort
            ),
        },
    )


# ---- Figures ----------------------------------------------------------------------------------


def _draw(
    cohort: Cohort,
    change: str,
    marks: Mapping[str, list[tuple[float, float]]],
    ax: Axes,
    result: Result,
) -> None:
    variants = _variants(cohort, change)
    for number, name in enumerate(dict.fromkeys(variant.base.name for variant in variants)):
        places = {1.0: _as_profiled(cohort, name)}
        places |= {v.factor: _setting(cohort, v) for v in variants if v.base.name == name}
        for quantity, style in ((PAPER, "--"), (CONVEX, "-")):
            points = [
                (x, _value(result.records, s, quantity))
                for x, s in sorted(places.items())
                if quantity in result.records[s].quantities
            ]
            ax.plot(
                [x for x, _ in points],
                [max(y, LOWEST) for _, y in points],
                style,
                color=COLOURS[number % len(COLOURS)],
                marker=".",
                label=f"{name}, {quantity.partition(', ')[2]}",
            )
    for number, (name, points) in enumerate(marks.items()):
        draw_published(ax, points, f"published: {name}", MARKERS[number])
    ax.set_xscale("log")
    factors = sorted(
        {1.0, *(v.factor for v in variants), *(x for p in marks.values() for x, _ in p)}
    )
    ax.set_xticks(factors, [f"{factor:g}" for factor in factors])
    ax.minorticks_off()
    ax.set_ylim(top=1.03)
    name_axes(ax, f"{change}, times that of the profile", f"R² (not below {LOWEST:g})")


def build_fig4_5(cohorts: Sequence[Cohort]) -> Study:
    """The study of these sets of applications."""
    marks = {
        w: list(zip(DATA.column("dataset_factor"), DATA.column(f"{w}_r2"), strict=True))
        for w in ("SVM", "NI")
    }
    return _change_study(
        cohorts,
        "data",
        marks,
        _data_rows,
        _data_claims,
        name="saba-fig4.5",
        title="R² of models when the data are another size than when profiled",
        place="Figure 4.5, 4.2.2",
    )


def build_fig4_6(cohorts: Sequence[Cohort]) -> Study:
    """The study of these sets of applications."""
    marks = {"NW, the least": [(float(x), float(y)) for x, y in NODES.rows]}
    return _change_study(
        cohorts,
        "nodes",
        marks,
        _nodes_rows,
        _nodes_claims,
        name="saba-fig4.6",
        title="R² of models with more or fewer nodes than when profiled",
        place="Figure 4.6, 4.2.2",
    )


def _change_study(
    cohorts: Sequence[Cohort],
    change: str,
    marks: Mapping[str, list[tuple[float, float]]],
    rows: Callable[[Cohort], Iterable[Observation]],
    claims: Callable[[Cohort], Iterable[Claim]],
    *,
    name: str,
    title: str,
    place: str,
) -> Study:
    """Models beside what was observed after one change, for the sets that have it."""
    present = [cohort for cohort in cohorts if _variants(cohort, change)]
    return Study(
        name=name,
        title=title,
        paper=SABA_PAPER,
        place=place,
        system=cohorts[0].system,
        points=tuple(point for c in present for point in _points(c, change)),
        observations=tuple(
            row for c in present for row in (*rows(c), *_application_rows(c, change))
        ),
        claims=tuple(claim for c in present for claim in claims(c)),
        panels=tuple(partial(_draw, c, change, marks) for c in present),
        notes=NOTES,
    )


NOTES = (
    "The model is of the application as profiled, and R² of that model on samples observed after "
    "the change; it is below 0 where the samples' own mean would have been nearer. Slowdowns are "
    "relative to the whole link after the change.",
    f"Applications that the least share slows by less than {100 * (NOTICED - 1):.0f} % are told "
    "and not judged: R² is then about noise. Published values are of other workloads.",
)
FIG4_5, FIG4_6 = build_fig4_5((project_cohort(),)), build_fig4_6((project_cohort(),))
