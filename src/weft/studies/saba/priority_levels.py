"""Saba, Figs. 4.7 to 4.9: applications to priority levels, levels clustered and mapped to queues.

Fig. 4.7, K-means on the coefficients of models, is judged on the workloads whose slowdown the text
states, and shown for profiled applications. The coordinates of Figs. 4.8 and 4.9 are only in the
picture; ours are eight applications of known sensitivity, and what is judged is what the text says
of the method. Entry points: `FIG4_7`, `build_fig4_7`, `FIG4_8`, `FIG4_9`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from typing import TYPE_CHECKING

from weft.control.policy.levels import Hierarchy, Levels, assign_levels, build_hierarchy
from weft.control.policy.plan import ConnectionPath, Plan, build_plan, build_policy
from weft.control.policy.port_policy import PortPolicy, VlArbitration
from weft.fabric import Port
from weft.plot.style import MUTED
from weft.records import Quantity, Scalar
from weft.sensitivity.model import Hinges, Polynomial, Sample, Sensitivity, fit_polynomial
from weft.studies.observation import Claim, Observation, Records, Verdict, build_claims, scalar_in
from weft.studies.points import Point, model_point
from weft.studies.published import find_table
from weft.studies.saba.cohort import Cohort, project_cohort
from weft.studies.saba.stated_values import find_slowdowns
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARE = 0.25
AXES_HEIGHT_PT = 170  # of a panel's axes, about
GROUP_TABLE = find_table("saba-fig4-7")
LINES = "lines through the stated slowdowns at 25 and 100 %"
MAPPED = "workloads with a stated slowdown"
FIGURE_LEVELS = int(max(GROUP_TABLE.column("level")))


def _group(workload: str) -> int:
    return int(GROUP_TABLE.column("level")[GROUP_TABLE.cells("workload").index(workload)])


@cache
def fit_stated_lines() -> Mapping[str, Polynomial]:
    """First-degree models of the workloads whose slowdown at 25 % the text states."""
    return {
        name: fit_polynomial(
            [Sample(share=SHARE, slowdown=slowdown), Sample(share=1.0, slowdown=1.0)], 1
        )
        for name, slowdown in find_slowdowns(SHARE).items()
    }


@cache
def assign_stated_levels() -> Levels:
    """As many levels as the stated workloads are in, in the figure."""
    return assign_levels(fit_stated_lines(), len({_group(name) for name in fit_stated_lines()}))


def _levels_quantities() -> Mapping[str, Quantity]:
    return {name: Scalar(number, "1") for name, number in assign_stated_levels().assignment.items()}


def _judge_groups(records: Records) -> Verdict:
    record = records[MAPPED]
    ours = {name: scalar_in(record, name, "1") for name in fit_stated_lines()}
    pairs = [(a, b) for a in ours for b in ours if a < b]
    holds = all((ours[a] == ours[b]) == (_group(a) == _group(b)) for a, b in pairs)
    groups = [", ".join(level.applications) for level in assign_stated_levels().levels]
    evidence = f"with {len(groups)} levels: {' | '.join(groups)}"
    return Verdict(holds=holds, evidence=evidence)


def _judge_ten(_: Records) -> Verdict:
    unknown = [
        str(name) for name in GROUP_TABLE.cells("workload") if name not in fit_stated_lines()
    ]
    evidence = f"no slowdown or coefficient of {', '.join(unknown)} is stated"
    return Verdict(holds=None, evidence=evidence)


def _draw_levels(models: Mapping[str, Polynomial], levels: Levels, ax: Axes, _: Result) -> None:
    assignment = levels.assignment
    for number in sorted(set(assignment.values())):
        coefficients = [models[name].coefficients for name in models if assignment[name] == number]
        ax.plot(
            [c[0] for c in coefficients],
            [c[1] for c in coefficients],
            "o",
            color=COLOURS[number],
            label=f"level {number}",
        )
    slopes = [model.coefficients[1] for model in models.values()]
    points = AXES_HEIGHT_PT / ((max(slopes) - min(slopes)) or 1.0)
    below = inf  # where the name before stands: names keep a line's distance
    for name, model in sorted(models.items(), key=lambda item: -item[1].coefficients[1]):
        c0, c1 = model.coefficients
        below = min(points * c1 + 4, below - 10)
        offset = (6, below - points * c1)
        ax.annotate(name, (c0, c1), textcoords="offset points", xytext=offset)
    ax.margins(x=0.15)
    name_axes(ax, "c0 (slowdown)", "c1 (slowdown per link)")


# Applications here, in as many levels as the figure has.


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedCohort:
    """A set of applications with their first-degree models, and the levels they get."""

    cohort: Cohort
    models: Mapping[str, Polynomial]

    @property
    def setting(self) -> str:
        return f"applications{self.cohort.suffix or ' here'}"

    @property
    def system(self) -> str:
        return f"first-degree models of {self.cohort.system}"

    @property
    def levels(self) -> Levels:
        return assign_levels(self.models, FIGURE_LEVELS)


def _map_cohort(cohort: Cohort) -> MappedCohort | None:
    """None of fewer applications than levels."""
    models = {
        app.name: f.model
        for app in cohort.by_sensitivity(SHARE)
        for f in app.paper
        if f.model.degree == 1
    }
    return MappedCohort(cohort=cohort, models=models) if len(models) >= FIGURE_LEVELS else None


def _cohort_quantities(mapped: MappedCohort) -> Mapping[str, Quantity]:
    return {name: Scalar(level, "1") for name, level in mapped.levels.assignment.items()}


def _judge_cohort(mapped: MappedCohort, records: Records) -> Verdict:
    """By slowdown at a quarter of the link, the least first, levels never fall."""
    record = records[mapped.setting]
    order = [scalar_in(record, name, "1") for name in mapped.models]
    groups = [", ".join(level.applications) for level in mapped.levels.levels]
    return Verdict(holds=order == sorted(order), evidence=" | ".join(groups))


def _level_claims(mapped: Sequence[MappedCohort]) -> Iterator[Claim]:
    yield from build_claims(
        GROUP_TABLE.place,
        "model",
        LINES,
        {
            "TS, PR and SQL get one level and LR another, by the coefficients of their "
            "first-degree models.": _judge_groups,
            "With three levels: TS, WC, PR, SQL; SVM, NI, NW; LR, RF, GBT.": _judge_ten,
        },
    )
    grouped = (
        "K-means on the coefficients of first-degree models groups applications by their "
        f"sensitivity to bandwidth ({FIGURE_LEVELS} levels)."
    )
    for m in mapped:
        judges = {grouped: partial(_judge_cohort, m)}
        yield from build_claims(GROUP_TABLE.place, "model", m.system, judges)


def _level_points(mapped: Sequence[MappedCohort]) -> Iterator[Point]:
    yield model_point(MAPPED, {"levels": 2}, _levels_quantities, LINES)
    for m in mapped:
        quantities = partial(_cohort_quantities, m)
        yield model_point(m.setting, {"levels": FIGURE_LEVELS}, quantities, m.system)


def build_fig4_7(cohorts: Sequence[Cohort]) -> Study:
    """The study, with these sets of applications beside the stated workloads."""
    mapped = [m for m in map(_map_cohort, cohorts) if m is not None]
    return Study(
        name="saba-fig4.7",
        title="Applications to priority levels by K-means",
        paper=SABA_PAPER,
        place="Figure 4.7, 4.3.3.1",
        system=LINES,
        points=tuple(_level_points(mapped)),
        observations=(),
        claims=tuple(_level_claims(mapped)),
        panels=(
            partial(_draw_levels, fit_stated_lines(), assign_stated_levels()),
            *(partial(_draw_levels, m.models, m.levels) for m in mapped),
        ),
        notes=(
            "The coefficients of the ten workloads are in the picture only. Four have a stated "
            "slowdown at 25 % of the link; a first-degree model passes through it and through 1 "
            "at 100 %. They are in two of the figure's three groups, so that two levels are asked "
            "for.",
        ),
    )


FIG4_7 = build_fig4_7((project_cohort(),))


STEP, CLUSTERS = "step of the hierarchy", "clusters"
EXAMPLE = "eight applications, each twice as sensitive as the one before"
LEVELS, LEAST_QUEUES = (int(value) for value in find_table("saba-fig4-8").rows[0])
PORTS = find_table("saba-fig4-9")
QUEUES = 2


@cache
def example_models() -> Mapping[str, Sensitivity]:
    """App n spends c = 0.01 · 2^(n − 1) of its time on communication that nothing hides."""
    return {
        f"App{n}": Hinges(terms=((1.0, 0.01 * 2.0 ** (n - 1)),), floor=0.05)
        for n in range(1, LEVELS + 1)
    }


@cache
def example_hierarchy() -> Hierarchy:
    return build_hierarchy(assign_levels(example_models(), LEVELS))


def _hierarchy_quantities() -> Mapping[str, Quantity]:
    steps = example_hierarchy().steps
    return {f"step {n}": Scalar(len(step), "1") for n, step in enumerate(steps, start=1)}


HIERARCHY = "hierarchy of eight levels"


def _example_row(
    setting: str, quantity: str, published: float, record: str, name: str, place: str
) -> Observation:
    """A number that the text states of its own example, beside that of ours."""
    return Observation(
        setting=setting,
        quantity=quantity,
        unit="1",
        kind="value",
        published=published,
        read=lambda records: scalar_in(records[record], name, "1"),
        place=place,
        source="model",
        tolerance=0.0,
        role="check",
    )


def _clusters_row(step: int, clusters: int) -> Observation:
    place = find_table("saba-fig4-8").place
    return _example_row(f"step {step}", CLUSTERS, clusters, HIERARCHY, f"step {step}", place)


def _judge_steps(records: Records) -> Verdict:
    counts = [scalar_in(records[HIERARCHY], f"step {n}", "1") for n in range(1, LEVELS + 1)]
    text = " → ".join(f"{count:g}" for count in counts)
    holds = counts == [LEVELS - n for n in range(LEVELS)]
    return Verdict(holds=holds, evidence=f"clusters {text}; the paper stops at the fewest queues")


def _draw_hierarchy(ax: Axes, _: Result) -> None:
    for number, step in enumerate(example_hierarchy().steps, start=1):
        for cluster in step:
            y = [-number] * len(cluster.levels)
            ax.plot(cluster.levels, y, "-o", color=COLOURS[0], markersize=7, linewidth=3)
    ax.axhline(-(LEVELS - LEAST_QUEUES + 1) - 0.5, color=MUTED, linestyle=":")
    ax.set_yticks([-n for n in range(1, LEVELS + 1)], [str(n) for n in range(1, LEVELS + 1)])
    ax.set_xlabel("priority level")
    ax.set_ylabel("step; joined levels are linked")


FIG4_8 = Study(
    name="saba-fig4.8",
    title="Priority levels clustered step by step",
    paper=SABA_PAPER,
    place="Figure 4.8, 4.3.3.2",
    system=EXAMPLE,
    points=(model_point(HIERARCHY, {"levels": LEVELS}, _hierarchy_quantities, EXAMPLE),),
    observations=(_clusters_row(1, LEVELS), _clusters_row(LEVELS - LEAST_QUEUES + 1, LEAST_QUEUES)),
    claims=build_claims(
        "4.3.3.2",
        "model",
        EXAMPLE,
        {
            (
                "Every step joins two clusters into one, until as many are left as the "
                "switch with the fewest queues has."
            ): _judge_steps
        },
    ),
    panels=(_draw_hierarchy,),
    notes=(
        "Which levels the figure joins is in the picture only: ours are joined by the "
        "paper's rule (nearest first, midpoints) from coordinates that are ours.",
        "Ours goes on to one cluster, for ports with one queue for managed traffic; a port takes "
        "the first step that fits, so that the steps before are the same.",
    ),
)


# ---- Figure 4.9 -------------------------------------------------------------------------------


def _numbers(text: object) -> tuple[int, ...]:
    return tuple(int(word) for word in str(text).split())


@cache
def example_plan() -> Plan:
    """Both ports with the levels that the text puts there: level n is that of App n."""
    policy = build_policy(
        example_models(), PortPolicy(scheduler=VlArbitration(queues=QUEUES)), LEVELS
    )
    connections = [
        ConnectionPath(application=f"App{level}", ports=(Port(0, number),))
        for number, (_, present, *_) in enumerate(PORTS.rows, start=1)
        for level in _numbers(present)
    ]
    return build_plan(policy, connections)


def _port_quantities(number: int) -> Mapping[str, Quantity]:
    port = example_plan().ports[Port(0, number)]
    return {STEP: Scalar(port.step, "1"), "queues": Scalar(len(port.queues), "1")} | {
        a.application: Scalar(a.units, "1") for a in port.applications
    }


def _step_row(name: str, step: float) -> Observation:
    return _example_row(f"port {name}", STEP, step, f"port {name}", STEP, PORTS.place)


def _queues_text(number: int) -> str:
    queues = example_plan().ports[Port(0, number)].queues
    return " | ".join(" ".join(map(str, queue.levels)) for queue in queues)


def _judge_mapping(_: Records) -> Verdict:
    ours = {str(row[0]): _queues_text(n) for n, row in enumerate(PORTS.rows, start=1)}
    text = "; ".join(f"{port}: {queues}" for port, queues in ours.items())
    holds = all(ours[str(port)] == queues for port, *_, queues in PORTS.rows)
    return Verdict(holds=holds, evidence=f"levels by queue, {text}")


def _judge_weights(records: Records) -> Verdict:
    units = [scalar_in(records[f"port {row[0]}"], "App1", "1") for row in PORTS.rows]
    text = " and ".join(f"{unit:g} of 255" for unit in units)
    return Verdict(holds=len(set(units)) == len(units), evidence=f"App1 has {text} units")


def _draw_ports(ax: Axes, _: Result) -> None:
    labels, place = [], 0
    for number, row in enumerate(PORTS.rows, start=1):
        for queue in example_plan().ports[Port(0, number)].queues:
            assignments = [
                a
                for a in example_plan().ports[Port(0, number)].applications
                if a.queue == queue.number
            ]
            below = 0
            for assigned in assignments:
                ax.bar(place, assigned.units, bottom=below, color=COLOURS[assigned.level])
                ax.annotate(
                    assigned.application,
                    (place, below + assigned.units / 2),
                    ha="center",
                    va="center",
                    color="white",
                )
                below += assigned.units
            labels.append(f"{row[0]} queue {queue.number}")
            place += 1
    ax.set_xticks(range(place), labels)
    ax.set_xlabel("port and queue")
    ax.set_ylabel("weight (units of 255)")


FIG4_9 = Study(
    name="saba-fig4.9",
    title="Priority levels to queues at two ports",
    paper=SABA_PAPER,
    place="Figure 4.9, 4.3.3.2",
    system=EXAMPLE,
    points=tuple(
        model_point(
            f"port {row[0]}",
            {"port": str(row[0]), "levels": str(row[1])},
            partial(_port_quantities, n),
            EXAMPLE,
        )
        for n, row in enumerate(PORTS.rows, start=1)
    ),
    observations=tuple(_step_row(str(row[0]), float(row[2])) for row in PORTS.rows),
    claims=build_claims(
        PORTS.place,
        "model",
        EXAMPLE,
        {
            (
                "Levels 1 and 4 have a queue each at one port; at the other levels 1 and 2 "
                "share one, and level 3 has the second."
            ): _judge_mapping,
            (
                "An application has different weights at two ports that it shares with "
                "different applications."
            ): _judge_weights,
        },
    ),
    panels=(_draw_ports,),
    notes=(
        "The models are ours: the text says which levels are joined at step 2 of its clustering (1 "
        "and 2), and any example whose two least sensitive levels are nearest has that step.",
    ),
)
