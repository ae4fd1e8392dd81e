"""The tuner's stages on emulated machines: what each wins over a Latin hypercube with a race.

Nothing is measured. A machine is a known truth and noise around it, so the share of the best
throughput that a recommendation reaches is exact, and many seeds take minutes. Two truths:

    swept     a real sweep over tcp of a 2-core host that other work kept busy (tune_sweep.csv, 572
              settings of 0.1 s twice), smoothed over size and depth within each way to share
              processors and connections
    formula   the closed form of `weft.model.throughput` with the parameters below; each seed draws
              another effect, best size and best depth for each way

Lists and signals multiply the value by factors drawn for each seed (sd 6 %); an offset costs 3 %.
The noise of ln is 0.1 to 0.2 where two threads sleep and 0.3 to 0.5 elsewhere, as 960 repeated
points on a quiet host had it; a slow drift has an sd of 0.1. A variant without a stage gives the
stage's points to the race, so that all measure about equally many. Entry point: `tune_emulated`.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from weft.model.throughput import throughput
from weft.records.record_text import format_table
from weft.tune.search.design import Schedule, design, schedule
from weft.tune.search.space import (
    GOALS,
    Candidate,
    HostLimits,
    MeasuredPoint,
    build_space,
    list_candidates,
)
from weft.tune.search.tuning import Interval, mean_interval, tune

SWEEP = Path(__file__).with_name("tune_sweep.csv")
SEEDS, QUICK_SEEDS = 24, 2
ENOUGH = 0.95  # of the best throughput
GOAL = GOALS["throughput"]
LIMITS = HostLimits(
    transport="tcp", cpus=2, nodes=(0,), inline_limit=0, largest_bytes=2**30, size_bytes=64
)
SPACE = build_space(GOAL, LIMITS, {})
SHARING = ("qps", "threads", "wait", "cpu")
WIDTH = 1.5  # doublings, of the kernel that smooths the sweep
PARAMETERS = {
    "base_us": 25.0,
    "byte_ns": 0.15,
    "message_us": 2.0,
    "copy_ns": 0.17,
    "contention": 0.2,
    "cache_bytes": 2e6,
    "miss_ns": 0.25,
}
HEATS = ((24, 3), (12, 5), (4, 10))  # of the plain race
DESIGN_POINTS = 156  # of the plain hypercube: half of the points

Way = tuple[Any, ...]
Truth = Callable[[Candidate], float]  # ln of B/s, by size, depth and way
Heats = tuple[tuple[int, int], ...]


def way_of(setting: Candidate) -> Way:
    return tuple(setting[name] for name in SHARING)


def swept_truth(_: int) -> Truth:
    """The sweep, smoothed by a Gaussian kernel over log2 size and depth within each way."""
    rows: dict[Way, list[tuple[float, float, float]]] = defaultdict(list)
    with SWEEP.open() as file:
        for row in csv.DictReader(file):
            way = (int(row["qps"]), int(row["threads"]), row["wait"], int(row["cpu"]))
            at = math.log2(int(row["size_bytes"])), math.log2(int(row["depth"]))
            rows[way].append((*at, math.log(float(row["Bps"]))))
    cells = {way: np.array(points) for way, points in rows.items()}

    def truth(setting: Candidate) -> float:
        sizes, depths, logs = cells[way_of(setting)].T
        squares = (sizes - _log2(setting, "size_bytes")) ** 2
        squares += (depths - _log2(setting, "depth")) ** 2
        weights = np.exp(-squares / (2 * WIDTH**2))
        return float(weights @ logs / weights.sum())

    return truth


def formula_truth(seed: int) -> Truth:
    """The closed form, and for each way an effect and a gentle hill over size and depth."""
    random = np.random.default_rng([seed, 11])
    bonus = {(2, "block"): 0.3, (2, "spin"): -0.5}
    ways = {
        (qps, threads, wait, cpu): (
            random.normal(0, 0.25) + bonus.get((threads, wait), 0.0),
            random.normal(0, 1.5),
            random.normal(0, 1.5),
        )
        for qps in (1, 2, 4)
        for threads in (1, 2)
        for wait in ("spin", "block")
        for cpu in (-1, -2)
    }
    form = throughput(list(PARAMETERS))

    def truth(setting: Candidate) -> float:
        names = ("size_bytes", "depth", "qps", "threads")
        inputs = {name: np.array([2.0 ** _log2(setting, name)]) for name in names}
        rate = float(form.evaluate(PARAMETERS, inputs)[0]) * 1e6 * inputs["size_bytes"][0]
        effect, size, depth = ways[way_of(setting)]
        squares = (_log2(setting, "size_bytes") - 19 - size) ** 2
        squares += (_log2(setting, "depth") - 2 - depth) ** 2
        return math.log(rate) + effect - 0.02 * squares

    return truth


def _log2(setting: Candidate, name: str) -> float:
    return math.log2(float(setting[name] or 1))


TRUTHS = {"swept": swept_truth, "formula": formula_truth}


class Machine:
    """Noisy points of a truth; `log_value` has no noise."""

    def __init__(self, truth: Truth, seed: int) -> None:
        self._truth = truth
        self._random = np.random.default_rng([seed, 7])
        random = np.random.default_rng([seed, 3])
        self._effects = {
            (name, level): random.normal(0, 0.06)
            for name in ("post_list", "signal_every")
            for level in (4, 16)
        }
        ways = sorted({way_of(setting) for setting in list_candidates(SPACE)})
        self._noise = {
            way: random.uniform(0.1, 0.2) if way[1:3] == (2, "block") else random.uniform(0.3, 0.5)
            for way in ways
        }
        self._cells: dict[tuple[object, ...], float] = {}
        self._drift = 0.0
        self.points = 0

    def log_value(self, setting: Candidate) -> float:
        key = (*way_of(setting), setting["size_bytes"], setting["depth"])
        if key not in self._cells:
            self._cells[key] = self._truth(setting)
        effects = sum(
            self._effects.get((name, setting[name]), 0.0)  # type: ignore[arg-type]
            for name in ("post_list", "signal_every")
        )
        return self._cells[key] + effects - 0.03 * (setting["offset_bytes"] != 0)

    def __call__(self, setting: Candidate, stage: str) -> MeasuredPoint:
        self.points += 1
        self._drift = 0.9 * self._drift + math.sqrt(1 - 0.81) * 0.1 * self._random.normal()
        noise = self._noise[way_of(setting)] * self._random.normal()
        value = math.exp(self.log_value(setting) + self._drift + noise)
        return MeasuredPoint(setting=setting, value=value, stage=stage)

    def share_of_best(self, setting: Candidate) -> float:
        best = max(self.log_value(candidate) for candidate in list_candidates(SPACE))
        return math.exp(self.log_value(setting) - best)


USUAL = replace(schedule(SPACE, "tcp"), repeats=0)  # a confirmation changes no recommendation


def _longer(heats: Heats, points: int) -> Heats:
    """The same heats with so many points more."""
    total = sum(runners * turns for runners, turns in heats)
    return tuple((runners, round(turns * (total + points) / total)) for runners, turns in heats)


def _tuner(plan: Schedule) -> Callable[[Machine, int], Candidate]:
    return lambda machine, seed: tune(machine, SPACE, GOAL, plan, seed=seed).recommendation.setting


def plain_race(machine: Machine, seed: int) -> Candidate:
    """A Latin hypercube over all factors, each point once; the best race, ranked by their means."""
    random = np.random.default_rng(seed)
    settings: list[Candidate] = list(design(SPACE, DESIGN_POINTS, 1, random, trials=1))
    runners = sorted(settings, key=lambda s: -machine(s, "spread").value)
    heats = _longer(HEATS, USUAL.points - DESIGN_POINTS - sum(n * turns for n, turns in HEATS))
    logs: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for places, turns in heats:
        runners = runners[:places]
        for _ in range(turns):
            for place in random.permutation(len(runners)):
                value = machine(runners[place], "race").value
                logs[SPACE.key(runners[place])].append(math.log(value))
        runners.sort(key=lambda setting: -fmean(logs[SPACE.key(setting)]))
    return runners[0]


_NO_RACE = (*USUAL.refine, (3, USUAL.race_points // 2), (3, USUAL.race_points // 2))
VARIANTS: dict[str, Callable[[Machine, int], Candidate]] = {
    "all stages": _tuner(USUAL),
    "without refine": _tuner(
        replace(USUAL, refine=(), race=_longer(USUAL.race, USUAL.refine_points))
    ),
    "without profile": _tuner(replace(USUAL, profile=0, race=_longer(USUAL.race, USUAL.profile))),
    "without race": _tuner(replace(USUAL, refine=_NO_RACE, race=((1, 0),))),
    "hypercube and race": plain_race,
}


def tune_emulated(quick: bool) -> None:
    """Run and print every variant on both machines; nothing is saved."""
    seeds = range(1, (QUICK_SEEDS if quick else SEEDS) + 1)
    print("EMULATED: no network was measured; see bench/tune_emulated.py for the truth and noise.")
    for name, build_truth in TRUTHS.items():
        shares = {
            variant: [_share(run, Machine(build_truth(seed), seed), seed) for seed in seeds]
            for variant, run in VARIANTS.items()
        }
        print(f"\n{name}, {len(seeds)} seeds, {USUAL.points} points each\n")
        print(_table(shares))


def _share(run: Callable[[Machine, int], Candidate], machine: Machine, seed: int) -> float:
    share = machine.share_of_best(run(machine, seed))
    print(f"bench   seed {seed}: {share:.3f}, {machine.points} points", file=sys.stderr, flush=True)
    return share


def _table(shares: dict[str, list[float]]) -> str:
    reference = np.log(shares["all stages"])
    rows = [
        [
            variant,
            f"{median(values):.3f}",
            f"{fmean(value >= ENOUGH for value in values):.2f}",
            "" if variant == "all stages" else _ratio(mean_interval(reference - np.log(values))),
        ]
        for variant, values in shares.items()
    ]
    heads: Sequence[str] = ("", "median of best", f"above {ENOUGH}", "all stages over it")
    return format_table(heads, rows)


def _ratio(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f}–{interval.high:.3f})"
