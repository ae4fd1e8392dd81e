"""Saba, Fig. 4.7: applications to priority levels by K-means on the coefficients of their models.

Judged on the workloads whose slowdown the text states, and shown of the applications profiled here.
Entry points: `FIG4_7`, `fig4_7`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from weft.control.policy.levels import Levels, assign_levels
from weft.plot.style import legend
from weft.records import Quantity, Scalar
from weft.sensitivity.fit import Sample, fit_polynomial
from weft.sensitivity.model import Polynomial
from weft.studies.observation import Claim, Records, Verdict, scalar_in
from weft.studies.points import model_point
from weft.studies.published import published
from weft.studies.saba.cohort import Cohort, recorded_here
from weft.studies.saba.samples import stated_slowdowns
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.tabulated import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARE = 0.25
GROUPS = published("saba-fig4-7")
LINES = "lines through the stated slowdowns at 25 and 100 %"
MAPPED = "workloads with a stated slowdown"
FIGURE_LEVELS = int(max(GROUPS.column("level")))


def _group(workload: str) -> int:
    return int(GROUPS.column("level")[GROUPS.cells("workload").index(workload)])


@cache
def stated_lines() -> Mapping[str, Polynomial]:
    """First-degree models of the workloads whose slowdown at 25 % the text states."""
    return {
        name: fit_polynomial(
            [Sample(share=SHARE, slowdown=slowdown), Sample(share=1.0, slowdown=1.0)], 1
        )
        for name, slowdown in stated_slowdowns(SHARE).items()
    }


@cache
def stated_levels() -> Levels:
    """As many levels as the stated workloads are in, in the figure."""
    return assign_levels(stated_lines(), len({_group(name) for name in stated_lines()}))


def _levels_quantities() -> Mapping[str, Quantity]:
    return {name: Scalar(number, "1") for name, number in stated_levels().assignment.items()}


def _same_groups(records: Records) -> Verdict:
    record = records[MAPPED]
    ours = {name: scalar_in(record, name, "1") for name in stated_lines()}
    pairs = [(a, b) for a in ours for b in ours if a < b]
    holds = all((ours[a] == ours[b]) == (_group(a) == _group(b)) for a, b in pairs)
    told = [", ".join(level.applications) for level in stated_levels().levels]
    evidence = f"with {len(told)} levels: {' | '.join(told)}"
    return Verdict(holds=holds, evidence=evidence)


def _three_levels(_: Records) -> Verdict:
    unknown = [str(name) for name in GROUPS.cells("workload") if name not in stated_lines()]
    evidence = f"no slowdown or coefficient of {', '.join(unknown)} is stated"
    return Verdict(holds=None, evidence=evidence)


def _levels_panel(
    models: Mapping[str, Polynomial], levels: Levels
) -> Callable[[Axes, Result], None]:
    def draw(ax: Axes, _: Result) -> None:
        assignment = levels.assignment
        for number in sorted(set(assignment.values())):
            own = [models[name].coefficients for name in models if assignment[name] == number]
            ax.plot(
                [c[0] for c in own],
                [c[1] for c in own],
                "o",
                color=COLOURS[number],
                label=f"level {number}",
            )
        for name, model in models.items():
            c0, c1 = model.coefficients
            ax.annotate(name, (c0, c1), textcoords="offset points", xytext=(6, 4))
        ax.margins(x=0.15)
        ax.set_xlabel("c0 (slowdown)")
        ax.set_ylabel("c1 (slowdown per link)")
        legend(ax)

    return draw


# Applications here, in as many levels as the figure has.


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """A set of applications with their first-degree models, and the levels they get."""

    cohort: Cohort
    models: Mapping[str, Polynomial]

    @property
    def setting(self) -> str:
        return f"applications{self.cohort.mark or ' here'}"

    @property
    def system(self) -> str:
        return f"first-degree models of {self.cohort.system}"

    @property
    def levels(self) -> Levels:
        return assign_levels(self.models, FIGURE_LEVELS)


def _mapped(cohort: Cohort) -> Mapped | None:
    """None of fewer applications than levels."""
    models = {
        app.name: f.model
        for app in cohort.by_sensitivity(SHARE)
        for f in app.paper
        if f.model.degree == 1
    }
    return Mapped(cohort=cohort, models=models) if len(models) >= FIGURE_LEVELS else None


def _mapped_quantities(mapped: Mapped) -> Mapping[str, Quantity]:
    return {name: Scalar(level, "1") for name, level in mapped.levels.assignment.items()}


def _by_sensitivity(mapped: Mapped) -> Callable[[Records], Verdict]:
    """By slowdown at a quarter of the link, the least first, levels never fall."""

    def judge(records: Records) -> Verdict:
        record = records[mapped.setting]
        order = [scalar_in(record, name, "1") for name in mapped.models]
        told = [", ".join(level.applications) for level in mapped.levels.levels]
        return Verdict(holds=order == sorted(order), evidence=" | ".join(told))

    return judge


def _mapped_claim(mapped: Mapped) -> Claim:
    return Claim(
        statement="K-means on the coefficients of first-degree models groups applications by their "
        f"sensitivity to bandwidth ({FIGURE_LEVELS} levels).",
        place=GROUPS.place,
        source="model",
        system=mapped.system,
        judge=_by_sensitivity(mapped),
    )


def fig4_7(cohorts: Sequence[Cohort]) -> Study:
    """The study, with these sets of applications beside the stated workloads."""
    mapped = [found for found in map(_mapped, cohorts) if found is not None]
    return Study(
        name="saba-fig4.7",
        title="Applications to priority levels by K-means",
        paper=SABA_PAPER,
        place="Figure 4.7, 4.3.3.1",
        system=LINES,
        points=(
            model_point(MAPPED, {"levels": 2}, _levels_quantities, LINES),
            *(
                model_point(
                    m.setting, {"levels": FIGURE_LEVELS}, partial(_mapped_quantities, m), m.system
                )
                for m in mapped
            ),
        ),
        observations=(),
        claims=(
            Claim(
                statement="TS, PR and SQL get one level and LR another, by the coefficients of "
                "their first-degree models.",
                place=GROUPS.place,
                source="model",
                system=LINES,
                judge=_same_groups,
            ),
            Claim(
                statement="With three levels: TS, WC, PR, SQL; SVM, NI, NW; LR, RF, GBT.",
                place=GROUPS.place,
                source="model",
                system=LINES,
                judge=_three_levels,
            ),
            *map(_mapped_claim, mapped),
        ),
        panels=(
            _levels_panel(stated_lines(), stated_levels()),
            *(_levels_panel(m.models, m.levels) for m in mapped),
        ),
        notes=(
            "The coefficients of the ten workloads are in the picture only. Four have a stated "
            "slowdown at 25 % of the link; a first-degree model passes through it and through 1 "
            "at 100 %. They are in two of the figure's three groups, so that two levels are asked "
            "for.",
        ),
    )


FIG4_7 = fig4_7((recorded_here(),))
