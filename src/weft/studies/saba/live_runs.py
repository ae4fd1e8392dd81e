"""Saba's claim on real ports: recorded rounds, judged by the rules of docs/saba-hypotheses.md.

Records are those of `python -m weft.studies.saba.live`, with every round, also the rejected ones.
No cell is left out because a model predicts no gain for it. A way that a set-up does not need to
count is compared with equal queues on the set-ups that have it; so is the controller's default, by
size. Entry points: `LIVE`, `read_cell`, `read_comparison`, `judge_cell`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from weft.records import Quantity, Record, Scalar, Series, read_records
from weft.studies.observation import (
    ANOTHER_SYSTEM,
    Claim,
    Observation,
    Records,
    Unavailable,
    Verdict,
    scalar_in,
)
from weft.studies.points import Point, record_point
from weft.studies.saba.cohort import RECORDED
from weft.studies.saba.evaluation.judgement import (
    Estimate,
    Evaluation,
    Product,
    Word,
    compare_ways,
    judge_regime,
    judge_regimes,
)
from weft.studies.saba.live.campaign import (
    SEEDS,
    count_times,
    find_complete_seeds,
    is_good,
    list_needed_ways,
    read_profiles,
)
from weft.studies.saba.live.cells import (
    CAPS,
    CELLS,
    DURATION_S,
    EQUAL,
    LENDING,
    LIVE_WAYS,
    ONE,
    PLACEBO,
    PROFILE_SIZE,
    SABA,
    SIZE,
    SRPT,
    Cell,
)
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECTORY = RECORDED / "live"
SIZES = "size"  # rounds of equal queues and by size alone
SYSTEM = "jobs and programs in network namespaces, HTB queues of 20 Mb/s"
PLACE = "Section 4.6"
SATURATED = 0.8
_ONE = Estimate(value=1.0, low=1.0, high=1.0)
CellWord = Word | Literal["not saturated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCell:
    """The set-ups of a cell that count; `busy` is the busiest port's part under equal queues."""

    cell: Cell
    evaluation: Evaluation
    busy: float
    rejected: int  # rounds
    rounds: int

    @property
    def product(self) -> Product:
        return Product(
            total=compare_ways(self.evaluation, SABA, ONE),
            isolation=compare_ways(self.evaluation, EQUAL, ONE),
            mapping=_ONE,
            sensitivity=compare_ways(self.evaluation, SABA, EQUAL),
            over_placebo=compare_ways(self.evaluation, SABA, PLACEBO),
        )

    @property
    def is_complete(self) -> bool:
        return len(self.evaluation.seeds) >= SEEDS

    @property
    def must_saturate(self) -> bool:
        return self.cell.is_favourable or (self.cell.load or 0.0) >= 2


def judge_cell(live: LiveCell) -> CellWord:
    if live.must_saturate and live.busy < SATURATED:
        return "not saturated"
    return judge_regime(live.product).sensitivity


def read_cell(cell: Cell, directory: Path = DIRECTORY) -> LiveCell | None:
    """None before one set-up has a good round of every way that it needs."""
    records = _read_rounds(cell, directory)
    ways = list_needed_ways(cell)
    evaluation = _evaluate(cell, records, ways, directory)
    if evaluation is None:
        return None
    good = _find_good(records)
    busy = [_read_scalar(good[seed, EQUAL], "busy") for seed in evaluation.seeds]
    return LiveCell(
        cell=cell,
        evaluation=evaluation,
        busy=float(np.mean(busy)),
        rejected=sum(not is_good(record) for record in records),
        rounds=len(records),
    )


def _read_rounds(cell: Cell, directory: Path) -> list[Record]:
    path = directory / f"{cell.name}.jsonl"
    return [*read_records(path).records] if path.exists() else []


def _find_good(records: Sequence[Record]) -> dict[tuple[int, str], Record]:
    """The first good round of each set-up and way."""
    return {
        (int(str(r.settings["seed"])), str(r.settings["way"])): r
        for r in reversed(records)
        if is_good(r)
    }


def _evaluate(
    cell: Cell, records: Sequence[Record], ways: Sequence[str], directory: Path
) -> Evaluation | None:
    """Set-ups with a good round of each of these ways, equal queues among them."""
    seeds = find_complete_seeds(records, ways)
    if not seeds:
        return None
    good = _find_good(records)
    return Evaluation(
        seeds=tuple(seeds),
        workloads=tuple(_read_workloads(good[seed, EQUAL]) for seed in seeds),
        completions={
            way: tuple(_read_completions(cell, good[seed, way]) for seed in seeds) for way in ways
        },
        alone=tuple(_find_alone(cell, good[seed, EQUAL], directory) for seed in seeds),
        busiest_s=(nan,) * len(seeds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A way over another one on the set-ups of a cell that have both."""

    cell: Cell
    way: str
    over: str
    estimate: Estimate
    setups: int

    @property
    def name(self) -> str:
        return f"{self.way} over {self.over}"

    @property
    def setting(self) -> str:
        return f"{self.cell.name}: {self.name}"

    @property
    def word(self) -> str:
        """By the rule for size: the interval decides."""
        if self.estimate.low > 1:
            return "gains"
        return "loses" if self.estimate.high < 1 else "undecided"


def read_comparison(
    cell: Cell, way: str, over: str = EQUAL, directory: Path = DIRECTORY
) -> Comparison | None:
    """From the rounds of a cell, or from those of equal queues and size alone."""
    for place in (directory, directory / SIZES):
        evaluation = _evaluate(cell, _read_rounds(cell, place), (EQUAL, way, over), directory)
        if evaluation is not None:
            return Comparison(
                cell=cell,
                way=way,
                over=over,
                estimate=compare_ways(evaluation, way, over),
                setups=len(evaluation.seeds),
            )
    return None


def _read_scalar(record: Record, name: str) -> float:
    value = record.quantities[name]
    assert isinstance(value, Scalar)
    return value.value


def _read_completions(cell: Cell, record: Record) -> np.ndarray:
    """A job without two loops in a round of loops counts with the round's length."""
    series = record.quantities["completion"]
    assert isinstance(series, Series)
    return np.minimum(series.y, DURATION_S) if cell.is_loop else np.array(series.y)


def _read_workloads(record: Record) -> tuple[str, ...]:
    return tuple(job.partition(":")[0] for job in str(record.settings["jobs"]).split())


def _find_alone(cell: Cell, record: Record, directory: Path) -> np.ndarray:
    """A job's length as it was drawn; a program's time in its profile."""
    if cell.programs:
        profiles = read_profiles(directory, cell.programs)
        programs = [profiles[name] for name in _read_workloads(record)]
        return np.array([each.profile.baseline * count_times(each) for each in programs])
    lengths = [job.partition(":")[2] for job in str(record.settings["jobs"]).split()]
    return np.array([float(length) for length in lengths])


@cache
def read_cells() -> Mapping[str, LiveCell]:
    """Cells of the thesis's question."""
    cells = {
        name: read_cell(cell) for name, cell in CELLS.items() if SABA in list_needed_ways(cell)
    }
    return {name: live for name, live in cells.items() if live is not None}


_COMPARED = (
    *((way, EQUAL) for way in (SIZE, PROFILE_SIZE, CAPS, LENDING, SRPT)),
    (SIZE, PROFILE_SIZE),
)


@cache
def read_comparisons() -> Sequence[Comparison]:
    """Of ways that are no part of a cell's own evaluation."""
    read = [
        read_comparison(cell, way, over)
        for cell in CELLS.values()
        for way, over in _COMPARED
        if cell.ways or way not in LIVE_WAYS
    ]
    return [comparison for comparison in read if comparison is not None]


# ---- The study --------------------------------------------------------------------------------


def _add_estimate(quantities: dict[str, Quantity], name: str, estimate: Estimate) -> None:
    for end, value in (("", estimate.value), (".low", estimate.low), (".high", estimate.high)):
        if isfinite(value):
            quantities[name + end] = Scalar(value, "1")


def _list_quantities(live: LiveCell) -> Mapping[str, Quantity]:
    quantities: dict[str, Quantity] = {}
    for way in live.evaluation.completions:
        _add_estimate(quantities, f"{way}.speedup", compare_ways(live.evaluation, way, ONE))
        _add_estimate(quantities, f"{way}.over_equal", compare_ways(live.evaluation, way, EQUAL))
        quantities[f"{way}.mean_slowdown"] = Scalar(live.evaluation.mean_slowdown(way), "1")
        quantities[f"{way}.worst_slowdown"] = Scalar(live.evaluation.worst_slowdown(way), "1")
    _add_estimate(quantities, "isolation", live.product.isolation)
    _add_estimate(quantities, "sensitivity", live.product.sensitivity)
    _add_estimate(quantities, "over the placebo", live.product.over_placebo)
    quantities["busy"] = Scalar(live.busy, "1")
    quantities["set-ups"] = Scalar(len(live.evaluation.seeds), "1")
    return quantities


def _point(live: LiveCell) -> Point:
    name = live.cell.name
    return record_point(name, {"cell": name}, partial(_list_quantities, live), SYSTEM, name)


def _list_compared(comparison: Comparison) -> Mapping[str, Quantity]:
    quantities: dict[str, Quantity] = {"set-ups": Scalar(comparison.setups, "1")}
    _add_estimate(quantities, comparison.name, comparison.estimate)
    return quantities


def _compared_point(comparison: Comparison) -> Point:
    settings = {"cell": comparison.cell.name, "compared": comparison.name}
    list_quantities = partial(_list_compared, comparison)
    return record_point(comparison.setting, settings, list_quantities, SYSTEM, comparison.cell.name)


_ROWS = ("isolation", "sensitivity", "over the placebo")


def _rows(live: LiveCell) -> list[Observation]:
    names = [*_ROWS, *(f"{way}.speedup" for way in live.evaluation.completions if way != ONE)]
    return [_row(live.cell.name, name) for name in names]


def _row(setting: str, name: str) -> Observation:
    return Observation(
        setting=setting,
        quantity=name.replace(".speedup", " over one queue"),
        unit="1",
        kind="value",
        read=partial(_read_quantity, setting, name),
        published=None,
        place=PLACE,
        source="measurement",
        system=SYSTEM,
        tolerance=ANOTHER_SYSTEM,
    )


def _read_quantity(setting: str, name: str, records: Records) -> float:
    return scalar_in(records[setting], name, "1")


def _describe_cell(live: LiveCell) -> str:
    """What the rules say of a cell: ours, not a claim of the thesis."""
    product = live.product
    return (
        f"{live.cell.name}: sensitivity {judge_cell(live)}"
        f"{'' if live.is_complete else ' (indicative)'}: over equal queues "
        f"{product.sensitivity}, over the placebo {product.over_placebo}; "
        f"{len(live.evaluation.seeds)} set-ups, port {live.busy:.0%} busy; "
        f"{live.rejected} of {live.rounds} rounds rejected for late timers."
    )


def _judge_all(cells: Sequence[LiveCell], _: Records) -> Verdict:
    words = [word for live in cells if (word := judge_cell(live)) != "not saturated"]
    if not words:
        raise Unavailable("no cell was recorded")
    verdict = judge_regimes(words)
    counted = ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))
    holds = {"confirmed": True, "refuted": False, "undecided": None}[verdict]
    return Verdict(holds=holds, evidence=f"{verdict}: of {len(words)} cells {counted}")


def _list_estimates(live: LiveCell, comparisons: Sequence[Comparison]) -> Mapping[str, Estimate]:
    """Speedup over equal queues of every way that ran in a cell."""
    ways = [way for way in live.evaluation.completions if way != EQUAL]
    compared = {
        each.way: each.estimate
        for each in comparisons
        if each.cell == live.cell and each.over == EQUAL
    }
    return compared | {way: compare_ways(live.evaluation, way, EQUAL) for way in ways}


def _draw_cells(
    cells: Sequence[LiveCell], comparisons: Sequence[Comparison], ax: Axes, _: Result
) -> None:
    """Speedup over equal queues by cell and way, with intervals."""
    ways = [*(way for way in LIVE_WAYS if way != EQUAL), SIZE]
    for place, live in enumerate(cells):
        estimates = _list_estimates(live, comparisons)
        for number, way in enumerate(ways):
            if way not in estimates:
                continue
            estimate = estimates[way]
            at = place + 0.11 * (number - (len(ways) - 1) / 2)
            ax.plot(estimate.value, at, "o", markersize=4, color=COLOURS[number])
            ax.plot([estimate.low, estimate.high], [at, at], color=COLOURS[number])
    for number, way in enumerate(ways):
        ax.plot([], [], "o", markersize=4, color=COLOURS[number], label=way)
    ax.axvline(1, color="0.5", linewidth=0.8)
    ax.set_yticks(range(len(cells)), [live.cell.name for live in cells])
    ax.invert_yaxis()
    name_axes(ax, "speedup over equal queues, measured, with 95 % interval", "cell")


def _claim_cells(cells: Sequence[LiveCell]) -> Claim:
    """The thesis's claim, judged on all cells together."""
    return Claim(
        statement="Weights by sensitivity make jobs faster than equal queues, and than permuted "
        "weights, in at least one cell.",
        place=PLACE,
        source="measurement",
        system=SYSTEM,
        judge=partial(_judge_all, cells),
    )


def build_live(cells: Sequence[LiveCell], comparisons: Sequence[Comparison] = ()) -> Study:
    return Study(
        name="saba-real",
        title="Ways to share real ports: what do weights by sensitivity bring?",
        paper=SABA_PAPER,
        place=PLACE,
        system=SYSTEM,
        points=(*map(_point, cells), *map(_compared_point, comparisons)),
        observations=(
            *(row for live in cells for row in _rows(live)),
            *(_row(comparison.setting, comparison.name) for comparison in comparisons),
        ),
        claims=(_claim_cells(cells),),
        panels=(partial(_draw_cells, cells, comparisons),) if cells else (),
        notes=(
            "TCP over HTB queues, not InfiniBand lanes: it tests what weights bring, not isolation "
            "on lossless hardware. docs/saba-hypotheses.md has the rules, docs/saba-verdict.md "
            "what came out.",
            *map(_describe_cell, cells),
            *(
                f"{comparison.setting}: {comparison.word}, {comparison.estimate}; "
                f"{comparison.setups} set-ups."
                for comparison in comparisons
            ),
        ),
    )


LIVE = build_live(tuple(read_cells().values()), read_comparisons())
