"""Speedups with intervals, the product of their causes, and the verdict.

G(X, Y) is the geometric mean over jobs of completion under Y over completion under X, paired by
seed and job. Intervals are 95 %, by bootstrap over whole seeds of the mean log ratio. The rules are
those of docs/saba-hypotheses.md, written before any run.
Entry points: `Evaluation`, `join_evaluations`, `compare_ways`, `decompose`, `judge_regime`,
`judge_regimes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Literal

import numpy as np

from weft.errors import InputError
from weft.studies.saba.evaluation.cluster import Floats

RESAMPLES, BOOTSTRAP_SEED = 10_000, 1
EXPLAINS = 0.8  # of the log total
EQUAL = 0.03  # half the width of an interval that says "equal to the placebo"
BASELINE, RANDOM, CLUSTERED, SABA, PLACEBO = (
    "one lane",
    "8 equal lanes, random",
    "8 equal lanes, k-means",
    "Saba",
    "placebo",
)
PRODUCT = (BASELINE, RANDOM, CLUSTERED, SABA, PLACEBO)
Word = Literal["confirmed", "at or below 1", "equal to the placebo", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Completion times of one regime: by way, one array of jobs for each seed.

    `alone`: of the same jobs alone; `busiest_s`: how long each seed's busiest port is needed at
    least; `workloads`: of each job, by seed.
    """

    seeds: tuple[int, ...]
    workloads: tuple[tuple[str, ...], ...]
    completions: Mapping[str, tuple[Floats, ...]]
    alone: tuple[Floats, ...]
    busiest_s: tuple[float, ...]

    def log_ratios(self, way: str, over: str) -> Floats:
        """The mean log of completion under `over` over that under `way`, by seed."""
        pairs = zip(self.completions[way], self.completions[over], strict=True)
        return np.array([np.log(slow / fast).mean() for fast, slow in pairs])

    def speedups_of(self, way: str) -> dict[str, float]:
        """The geometric mean of each workload's jobs, over the baseline."""
        logs: dict[str, list[float]] = {}
        for names, fast, slow in zip(
            self.workloads, self.completions[way], self.completions[BASELINE], strict=True
        ):
            for name, ratio in zip(names, np.log(slow / fast).tolist(), strict=True):
                logs.setdefault(name, []).append(ratio)
        return {name: exp(sum(values) / len(values)) for name, values in logs.items()}

    def mean_slowdown(self, way: str) -> float:
        """Of all jobs, against the same job alone."""
        return float(np.concatenate(self._slowdowns(way)).mean())

    def worst_slowdown(self, way: str) -> float:
        """Of the worst job, the mean over seeds."""
        return float(np.mean([each.max() for each in self._slowdowns(way)]))

    def makespan_s(self, way: str) -> float:
        """Until the last job has finished, the mean over seeds."""
        return float(np.mean([times.max() for times in self.completions[way]]))

    def utilisation(self, way: str) -> float:
        """Of the busiest port while any job runs, the mean over seeds."""
        used = zip(self.busiest_s, self.completions[way], strict=True)
        return float(np.mean([busy / times.max() for busy, times in used]))

    def _slowdowns(self, way: str) -> list[Floats]:
        return [t / a for t, a in zip(self.completions[way], self.alone, strict=True)]


def join_evaluations(parts: Sequence[Evaluation]) -> Evaluation:
    """The seeds of all parts, which have the same ways."""
    return Evaluation(
        seeds=tuple(seed for part in parts for seed in part.seeds),
        workloads=tuple(names for part in parts for names in part.workloads),
        completions={
            way: tuple(times for part in parts for times in part.completions[way])
            for way in parts[0].completions
        },
        alone=tuple(times for part in parts for times in part.alone),
        busiest_s=tuple(busy for part in parts for busy in part.busiest_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A factor and its 95 % interval; with one seed there is none."""

    value: float
    low: float
    high: float

    @property
    def is_above_1(self) -> bool:
        return self.low > 1

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f}–{self.high:.3f})"


def bootstrap(log_ratios: Floats) -> Estimate:
    """The exponential of the mean of the log ratios, one a seed, with its interval."""
    if not len(log_ratios):
        raise InputError("seeds", "none", "use at least 1")
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    drawn = rng.integers(0, len(log_ratios), (RESAMPLES, len(log_ratios)))
    low, high = np.percentile(log_ratios[drawn].mean(axis=1), [2.5, 97.5])
    if len(log_ratios) == 1:
        low, high = -np.inf, np.inf
    return Estimate(
        value=exp(float(log_ratios.mean())), low=float(np.exp(low)), high=float(np.exp(high))
    )


def compare_ways(evaluation: Evaluation, way: str, over: str = BASELINE) -> Estimate:
    """G(way, over)."""
    return bootstrap(evaluation.log_ratios(way, over))


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """total = isolation × mapping × sensitivity, and Saba over the placebo."""

    total: Estimate
    isolation: Estimate
    mapping: Estimate
    sensitivity: Estimate
    over_placebo: Estimate

    @property
    def isolation_part(self) -> float | None:
        """Of the log total; None where the total is not above 1."""
        return log(self.isolation.value) / log(self.total.value) if self.total.value > 1 else None


def decompose(evaluation: Evaluation) -> Product:
    return Product(
        total=compare_ways(evaluation, SABA, BASELINE),
        isolation=compare_ways(evaluation, RANDOM, BASELINE),
        mapping=compare_ways(evaluation, CLUSTERED, RANDOM),
        sensitivity=compare_ways(evaluation, SABA, CLUSTERED),
        over_placebo=compare_ways(evaluation, SABA, PLACEBO),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeVerdict:
    """What one regime says of sensitivity, and whether isolation explains the gain."""

    sensitivity: Word
    isolation_explains: bool | None  # None: there is no gain to explain


def judge_regime(product: Product) -> RegimeVerdict:
    part = product.isolation_part
    return RegimeVerdict(
        sensitivity=_judge_sensitivity(product),
        isolation_explains=None if part is None else part >= EXPLAINS,
    )


def _judge_sensitivity(product: Product) -> Word:
    over = product.over_placebo
    if product.sensitivity.is_above_1 and over.is_above_1:
        return "confirmed"
    if product.sensitivity.value <= 1:
        return "at or below 1"
    if over.low <= 1 <= over.high and over.low >= 1 - EQUAL and over.high <= 1 + EQUAL:
        return "equal to the placebo"
    return "undecided"


def judge_regimes(words: Sequence[Word]) -> Literal["confirmed", "refuted", "undecided"]:
    """Of all regimes: confirmed in one or more, refuted in every one, or neither."""
    if not words:
        raise InputError("regimes", "none", "judge at least one")
    if "confirmed" in words:
        return "confirmed"
    return "undecided" if "undecided" in words else "refuted"
