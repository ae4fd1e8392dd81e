"""Cases of the speedup studies: set-ups under ways to share, their records, rows and drawings.

A case has the set-ups of a cell of `evaluation.recording`, at flow level or packet by packet. By
default its recorded run is read; `Size` with seeds runs set-ups anew. The homogeneous set-ups of
Figs. 4.15 to 4.17 are quick, and always run. A claim holds if ours is within 10 % of the stated
factor, as docs/saba-hypotheses.md lays down.
Entry points: `Case`, `RecordedCase`, `HomogeneousCase`, `Size`, `evaluate_case`, `build_point`;
`Row`, `build_row`, `build_claim`, `describe_result`, `draw_ways`, `draw_product`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import __version__
from weft.fleet import Call, run_calls
from weft.records import Provenance, Quantity, Record, Scalar
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
from weft.studies.points import Point, RunContext
from weft.studies.published import PublishedTable
from weft.studies.saba.cohort import RECORDED
from weft.studies.saba.evaluation.cluster import PROFILED_NODES, build_homogeneous
from weft.studies.saba.evaluation.judgement import (
    BASELINE,
    PRODUCT,
    SABA,
    Estimate,
    Evaluation,
    compare_ways,
    decompose,
    join_evaluations,
)
from weft.studies.saba.evaluation.packet_level import CONGESTION_WAY, evaluate_packets
from weft.studies.saba.evaluation.recording import RECORDINGS, Cell, read_case
from weft.studies.saba.evaluation.ways import DEGREE, evaluate
from weft.studies.study import Result
from weft.studies.table_curves import COLOURS, draw_published, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SYSTEM = "flow level, substitute workloads"
PACKET_SYSTEM = "packet level, substitute workloads"
OVER_CONGESTION = "Saba over FECN/BECN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """So many seeds, run anew in so many processes; None: the recorded run, or a case's few."""

    seeds: int | None = None
    processes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCase:
    """Set-ups of a cell of a recording; `ways` are those of the study."""

    setting: str
    recording: str
    cell_name: str
    ways: tuple[str, ...]

    @property
    def cell(self) -> Cell:
        return RECORDINGS[self.recording].cells[self.cell_name]

    @property
    def degree(self) -> int:
        return DEGREE

    @property
    def system(self) -> str:
        return SYSTEM if self.cell.kind is None else PACKET_SYSTEM

    @property
    def level(self) -> str:
        return "flow level only" if self.cell.kind is None else f"packet level, {self.cell.kind}"

    def list_seeds(self, size: Size) -> Sequence[int]:
        if size.seeds is None:
            return self.read().seeds
        return range(self.cell.first_seed, self.cell.first_seed + size.seeds)

    def list_ways(self, size: Size) -> tuple[str, ...]:
        """The study's ways; of a recorded run those that it has."""
        if size.seeds is not None:
            return self.ways
        recorded = self.read().completions
        return tuple(way for way in self.ways if way in recorded)

    def describe(self, size: Size) -> str:
        """What was run, for its rows and records."""
        count = len(self.list_seeds(size))
        word = "recorded " if size.seeds is None else ""
        set_ups = f"{count} {word}set-up{'s' if count > 1 else ''}"
        return f"{set_ups}, {self.cell.servers:,} servers, {self.cell.jobs} jobs"

    def read(self) -> Evaluation:
        return _read_case(self.recording, self.cell_name)

    def evaluate_seed(self, seed: int) -> Evaluation:
        cell = self.cell
        if cell.kind is None:
            return evaluate(cell.draw, [seed], self.ways)
        return evaluate_packets(cell.draw, [seed], self.ways, cell.kind, hops=cell.hops)


@cache
def read_recording(recording: str) -> Any:
    """The file of a recording."""
    return json.loads((RECORDED / f"{recording}.json").read_text("utf-8"))


@cache
def _read_case(recording: str, cell_name: str) -> Evaluation:
    return read_case(read_recording(recording)["cases"][cell_name])


@dataclass(frozen=True, slots=True, kw_only=True)
class HomogeneousCase:
    """All ten workloads on every server (4.6.3), with models of a degree; `few` set-ups."""

    setting: str
    ways: tuple[str, ...] = PRODUCT
    few: int = 10
    nodes: int = PROFILED_NODES
    data: float = 1.0
    degree: int = DEGREE
    system: str = SYSTEM
    level: str = "flow level only"

    def list_seeds(self, size: Size) -> Sequence[int]:
        return range(1, 1 + (size.seeds or self.few))

    def list_ways(self, _: Size) -> tuple[str, ...]:
        return self.ways

    def describe(self, size: Size) -> str:
        count = len(self.list_seeds(size))
        return f"{count} set-up{'s' if count > 1 else ''}, {self.nodes} servers, 10 jobs"

    def evaluate_seed(self, seed: int) -> Evaluation:
        draw = partial(build_homogeneous, nodes=self.nodes, data=self.data)
        return evaluate(draw, [seed], self.ways, degree=self.degree)


Case = RecordedCase | HomogeneousCase


def _evaluate_seed(case: Case, seed: int) -> Evaluation:
    return case.evaluate_seed(seed)


@cache
def evaluate_case(case: Case, size: Size) -> Evaluation:
    """All seeds of a case; studies of the same set-ups share it."""
    if isinstance(case, RecordedCase) and size.seeds is None:
        return case.read()
    seeds = case.list_seeds(size)
    calls = [Call(name=f"{case.setting}, seed {seed}", arguments=(case, seed)) for seed in seeds]
    ended = dict(run_calls(_evaluate_seed, calls, where="weft study", jobs=size.processes))
    return join_evaluations([ended[number] for number in range(len(seeds))])


# ---- Records ----------------------------------------------------------------------------------


def build_point(case: Case, size: Size) -> Point:
    settings = {"set-up": case.setting, "size": case.describe(size)}

    def run(_: RunContext) -> Record:
        evaluation = evaluate_case(case, size)
        return Record(
            kind="simulation",
            name=case.setting,
            quantities=dict(_list_quantities(evaluation)),
            tables={"completions": _list_completions(evaluation)},
            notes=(f"{case.level}: {case.describe(size)}, models of degree {case.degree}",),
            provenance=Provenance(weft_version=__version__, seed=_find_single_seed(evaluation)),
        )

    return Point(
        setting=case.setting, settings=settings, source="simulation", system=case.system, run=run
    )


def _find_single_seed(evaluation: Evaluation) -> int | None:
    return evaluation.seeds[0] if len(evaluation.seeds) == 1 else None


def _list_quantities(evaluation: Evaluation) -> Sequence[tuple[str, Quantity]]:
    quantities: list[tuple[str, Quantity]] = []

    def add(name: str, value: float, unit: str = "") -> None:
        quantities.append((name, Scalar(value, unit)))

    def add_estimate(name: str, estimate: Estimate) -> None:
        add(name, estimate.value)
        # Without a second seed there is no interval.
        if np.isfinite(estimate.high):
            add(f"{name}.low", estimate.low)
            add(f"{name}.high", estimate.high)

    has_alone = len(evaluation.alone) == len(evaluation.seeds)
    for way in evaluation.completions:
        add_estimate(f"{way}.speedup", compare_ways(evaluation, way))
        add(f"{way}.makespan", evaluation.makespan_s(way), "s")
        if has_alone:
            add(f"{way}.mean_slowdown", evaluation.mean_slowdown(way))
            add(f"{way}.worst_slowdown", evaluation.worst_slowdown(way))
            add(f"{way}.utilisation", evaluation.utilisation(way))
        speedups = evaluation.speedups_of(way)
        for workload, speedup in speedups.items():
            add(f"{way}.{workload}.speedup", speedup)
        add(f"{way}.most", max(speedups.values()))
        add(f"{way}.least", min(speedups.values()))
    if evaluation.completions.keys() >= set(PRODUCT):
        product = decompose(evaluation)
        add_estimate("product.isolation", product.isolation)
        add_estimate("product.mapping", product.mapping)
        add_estimate("product.sensitivity", product.sensitivity)
        add_estimate("Saba over placebo", product.over_placebo)
    if CONGESTION_WAY in evaluation.completions:
        add_estimate(OVER_CONGESTION, compare_ways(evaluation, SABA, CONGESTION_WAY))
    by_setup = np.exp(evaluation.log_ratios(SABA, BASELINE))
    add("set-up.least", float(by_setup.min()))
    add("set-up.most", float(by_setup.max()))
    add("set-up.losing", 100 * float((by_setup < 1).mean()), "%")
    return quantities


def _list_completions(evaluation: Evaluation) -> list[dict[str, str | float | None]]:
    """Every completion time, so that another rule can be applied to it."""
    return [
        {"seed": seed, "way": way, "job": job, "workload": workload, "completion_s": time}
        for way, runs in evaluation.completions.items()
        for seed, workloads, times in zip(evaluation.seeds, evaluation.workloads, runs, strict=True)
        for job, (workload, time) in enumerate(zip(workloads, times.tolist(), strict=True))
    ]


# ---- Rows and claims --------------------------------------------------------------------------

AS_PUBLISHED = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A stated value: where ours is, and what it is called."""

    setting: str
    quantity: str  # of the record
    label: str
    published: float | None
    unit: str = ""
    system: str = SYSTEM


def build_row(row: Row, table: PublishedTable, size_text: str) -> Observation:
    return Observation(
        setting=f"{row.setting} ({size_text})",
        quantity=row.label,
        unit=row.unit or "1",
        kind="value",
        read=lambda records: _read(records, row),
        published=row.published,
        place=table.place,
        system=row.system,
        tolerance=ANOTHER_SYSTEM,
    )


def _read(records: Records, row: Row) -> float:
    record = records[row.setting]
    if row.quantity not in record.quantities:
        raise Unavailable(f"{row.label}: no such job was drawn; use more seeds")
    return scalar_in(record, row.quantity, row.unit)


def _read_or_nan(records: Records, row: Row) -> float:
    """For drawings."""
    try:
        return _read(records, row)
    except Unavailable:
        return nan


def build_claim(row: Row, table: PublishedTable) -> Claim:
    published = row.published
    assert published is not None

    def judge(records: Records) -> Verdict:
        ours = _read(records, row)
        holds = abs(ours / published - 1) <= AS_PUBLISHED
        return Verdict(holds=holds, evidence=f"ours {ours:.3g}, stated {published:g}")

    (claim,) = build_claims(
        table.place,
        "simulation",
        row.system,
        {f"{row.label}, {row.setting}: {published:g} within 10 %": judge},
    )
    return claim


def describe_result(cases: Sequence[Case], result: Result) -> tuple[str, ...]:
    lines = [(_describe_product(case, result), _describe_speedups(case, result)) for case in cases]
    return tuple(line for both in lines for group in both for line in group)


def _read_estimate(record: Record, name: str) -> Estimate:
    value, low, high = (scalar_in(record, f"{name}{end}", "") for end in ("", ".low", ".high"))
    return Estimate(value=value, low=low, high=high)


def _describe_speedups(case: Case, result: Result) -> tuple[str, ...]:
    """Every way's speedup with its interval."""
    record = result.records.get(case.setting)
    if record is None:
        return ()
    ways = [
        f"{way} {_read_estimate(record, f'{way}.speedup')}"
        for way in case.ways
        if way != BASELINE and f"{way}.speedup.low" in record.quantities
    ]
    return (f"{case.setting}, over one lane: {', '.join(ways)}.",) if ways else ()


def _describe_product(case: Case, result: Result) -> tuple[str, ...]:
    """The causes of the total, and the verdict of this set-up by the rules."""
    record = result.records.get(case.setting)
    if record is None or "product.sensitivity.low" not in record.quantities:
        return ()
    read = partial(_read_estimate, record)
    total, isolation = read(f"{SABA}.speedup"), read("product.isolation")
    mapping, sensitivity = read("product.mapping"), read("product.sensitivity")
    placebo = read("Saba over placebo")
    return (
        f"{case.setting}: {total} = isolation {isolation} × mapping {mapping} × sensitivity "
        f"{sensitivity}; over the placebo {placebo}.",
    )


def name_row(setting: str, quantity: str, label: str, published: float | None = None) -> Row:
    return Row(setting=setting, quantity=quantity, label=label, published=published)


WORKLOADS_NOTE = (
    "The workloads are substitutes fitted to what the thesis states of its own "
    "(docs/saba-workloads.md), each profiled."
)


def describe_source(case: Case, size: Size) -> tuple[str, ...]:
    """Whether a recorded run is shown, and how to run others."""
    if size.seeds is not None:
        return ()
    if isinstance(case, HomogeneousCase):
        return (f"{case.few} set-ups by default; --seeds N runs N.",)
    record = read_recording(case.recording)
    return (
        f"A recorded run of {record['date']}: src/weft/studies/saba/recorded/{case.recording}.json "
        f"({record['command']}). --seeds N runs N set-ups anew.",
    )


# ---- Drawings ---------------------------------------------------------------------------------


def draw_ways(cases: Sequence[Case], rows: Sequence[Row], ax: Axes, result: Result) -> None:
    """A bar for each row: ours, and the stated value as a mark."""
    shown = [row for row in rows if not row.unit]
    places = np.arange(len(shown))
    ours = [_read_or_nan(result.records, row) for row in shown]
    ax.barh(places, ours, color=COLOURS[0], label="ours")
    stated = [(row.published, place) for place, row in enumerate(shown) if row.published]
    draw_published(ax, [(x, float(y)) for x, y in stated if x], "published", "o", 7)
    ax.axvline(1, color="0.5", linewidth=0.8)
    several = len(cases) > 1
    labels = [f"{row.label}, {row.setting}" if several else row.label for row in shown]
    ax.set_yticks(places, labels)
    ax.invert_yaxis()
    name_axes(ax, "speedup over one lane", "")


def draw_product(case: Case, ax: Axes, result: Result) -> None:
    """The factors and their intervals; the first three multiply to the total."""
    names = {
        "isolation": "product.isolation",
        "mapping": "product.mapping",
        "sensitivity": "product.sensitivity",
        "total": f"{SABA}.speedup",
        "over the placebo": "Saba over placebo",
    }
    record = result.records[case.setting]
    labels = []
    for place, (label, name) in enumerate(names.items()):
        value = scalar_in(record, name, "")
        labels.append(f"{label} {value:.3f}")
        ax.plot(value, place, "o", color=COLOURS[0])
        if f"{name}.low" in record.quantities:
            low, high = (scalar_in(record, f"{name}.{end}", "") for end in ("low", "high"))
            ax.plot([low, high], [place, place], color=COLOURS[0])
    ax.axvline(1, color="0.5", linewidth=0.8)
    ax.set_yticks(range(len(names)), labels)
    ax.set_ylim(len(names) - 0.5, -0.5)
    name_axes(ax, f"factor of the speedup, with 95 % interval\n{case.setting}", "")
