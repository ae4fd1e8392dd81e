"""Saba, Fig. 4.3: sensitivity models of SQL and LR by degree of the polynomial.

The text states some of the figure's samples; our fits to those stand beside them. Entry point:
`FIG4_3`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.plot.style import OURS
from weft.records import Quantity, Series
from weft.sensitivity.fit import Sample, fit_convex, fit_polynomial
from weft.sensitivity.model import Sensitivity
from weft.studies.observation import Observation, Records, Verdict, build_claims
from weft.studies.points import Point, model_point
from weft.studies.published import find_table
from weft.studies.saba.stated_values import WORKLOADS, find_samples, format_share
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, draw_published, name_axes, value_at

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
