"""Cases of the speedup studies: set-ups of a kind, run under ways to share, and their records.

A case runs at flow level, or packet by packet where it has a kind of switch. By default cases are
few and small; `Size` with seeds runs them at the thesis's size, packets in shrunk set-ups.
Entry points: `Case`, `Size`, `evaluate_case`, `build_point`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from weft import __version__
from weft.fleet import Call, run_calls
from weft.records import Provenance, Quantity, Record, Scalar
from weft.studies.points import Point, RunContext
from weft.studies.saba.evaluation.cluster import (
    JOBS,
    PROFILED_NODES,
    SCALE,
    SERVERS,
    SMALL_SCALE,
    SetUp,
    build_homogeneous,
    draw_favourable,
    draw_scale,
    draw_testbed,
)
from weft.studies.saba.evaluation.judgement import (
    BASELINE,
    PRODUCT,
    SABA,
    Estimate,
    Evaluation,
    compare_ways,
    decompose,
)
from weft.studies.saba.evaluation.packet_level import (
    CONGESTION_WAY,
    HOPS,
    WHOLE_FABRIC_HOPS,
    SwitchKind,
    evaluate_packets,
)
from weft.studies.saba.evaluation.regimes import evaluate, join_evaluations
from weft.studies.saba.evaluation.ways import DEGREE

SYSTEM = "flow level, substitute workloads"
PACKET_SYSTEM = "packet level, substitute workloads"
OVER_CONGESTION = "Saba over FECN/BECN"
FEW_HOPS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """So many seeds at the thesis's size, in so many processes; None: few, and small."""

    seeds: int | None = None
    processes: int = 1

    @property
    def is_full(self) -> bool:
        return self.seeds is not None

    def list_seeds(self, few: int) -> range:
        return range(1, 1 + (few if self.seeds is None else self.seeds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One evaluation: set-ups of a kind, ways, degree of the models."""

    setting: str
    kind: str
    few: int  # seeds by default
    ways: tuple[str, ...]
    nodes: int = PROFILED_NODES
    data: float = 1.0
    degree: int = DEGREE
    switches: SwitchKind | None = None  # packet by packet
    hops: int = HOPS  # of packets, at full size

    @property
    def is_whole_fabric(self) -> bool:
        """Whether the full size of `scale` has the thesis's 1,944 servers."""
        return self.switches is None or self.hops >= WHOLE_FABRIC_HOPS

    def draw(self, seed: int, is_full: bool) -> SetUp:
        if self.kind == "testbed":
            return draw_testbed(seed)
        if self.kind == "scale":
            return draw_scale(seed, full=is_full and self.is_whole_fabric)
        if self.kind == "favourable":
            return draw_favourable(seed)
        return build_homogeneous(seed, nodes=self.nodes, data=self.data)

    def describe(self, size: Size) -> str:
        """What was run, for its rows and records."""
        is_large = size.is_full and self.is_whole_fabric
        servers, jobs = {
            "testbed": (SERVERS, JOBS),
            "scale": SCALE if is_large else SMALL_SCALE,
            "same": (self.nodes, 10),
            "favourable": (PROFILED_NODES, 12),
        }[self.kind]
        count = len(size.list_seeds(self.few))
        set_ups = f"{count} set-ups" if count > 1 else "1 set-up"
        return f"{set_ups}, {servers:,} servers, {jobs} jobs"


def _evaluate_seed(case: Case, seed: int, is_full: bool) -> Evaluation:
    draw = partial(case.draw, is_full=is_full)
    if case.switches is None:
        return evaluate(draw, [seed], case.ways, degree=case.degree)
    hops = case.hops if is_full else FEW_HOPS
    return evaluate_packets(draw, [seed], case.ways, case.switches, hops=hops)


@cache
def evaluate_case(case: Case, size: Size) -> Evaluation:
    """All seeds of a case; studies of the same set-ups share it."""
    seeds = size.list_seeds(case.few)
    calls = [
        Call(name=f"{case.setting}, seed {seed}", arguments=(case, seed, size.is_full))
        for seed in seeds
    ]
    ended = dict(run_calls(_evaluate_seed, calls, where="weft study", jobs=size.processes))
    return join_evaluations([ended[number] for number in range(len(seeds))])


# ---- Records ----------------------------------------------------------------------------------


def build_point(case: Case, size: Size) -> Point:
    settings = {"set-up": case.setting, "size": "the thesis's" if size.is_full else "small"}

    def run(_: RunContext) -> Record:
        evaluation = evaluate_case(case, size)
        return Record(
            kind="simulation",
            name=case.setting,
            quantities=dict(_list_quantities(evaluation)),
            tables={"completions": _list_completions(evaluation)},
            notes=(
                f"{_describe_level(case)}: {case.describe(size)}, models of degree {case.degree}",
            ),
            provenance=Provenance(weft_version=__version__, seed=_find_single_seed(evaluation)),
        )

    return Point(
        setting=case.setting,
        settings=settings,
        source="simulation",
        system=SYSTEM if case.switches is None else PACKET_SYSTEM,
        run=run,
    )


def _find_single_seed(evaluation: Evaluation) -> int | None:
    return evaluation.seeds[0] if len(evaluation.seeds) == 1 else None


def _describe_level(case: Case) -> str:
    return "flow level only" if case.switches is None else f"packet level, {case.switches}"


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

    for way in evaluation.completions:
        add_estimate(f"{way}.speedup", compare_ways(evaluation, way))
        add(f"{way}.mean_slowdown", evaluation.mean_slowdown(way))
        add(f"{way}.worst_slowdown", evaluation.worst_slowdown(way))
        add(f"{way}.makespan", evaluation.makespan_s(way), "s")
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
