"""The tuner beside an exhaustive sweep: how much of the best it finds, in how much of the time.

Every combination of size, depth, connections, threads, waiting, placement and length of lists is
measured once, in a random order, with points as long as the tuner's. Single points of one setting
differ by factors here and the best of hundreds is mostly luck: so the sweep's best few dozen are
measured again in turns, and fewer of them oftener, until one is left. Then `weft tune` runs a few
times, with a tenth of the sweep's time as its budget; its recommendations and the sweep's best take
turns, and the ratio within rounds counts. Time is that of measuring, set-up of each point included,
on both sides; the time to find the best among the sweep's few is not counted for it.

Entry point: `tune`. Units: GB/s (10^9), s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.figure import Figure
from weft.errors import WeftError
from weft.measure.peer.client import Peer, open_peer
from weft.model.fit import FloatArray
from weft.records import Plain
from weft.records.record_text import format_table
from weft.tune.search.over_fabric import PointMeasurer, PreparedTuning, prepare_tuning
from weft.tune.search.space import Candidate, MeasuredPoint, list_candidates
from weft.tune.search.surface import Interval
from weft.tune.search.tuning import Tuning, mean_interval
from weft.tune.search.tuning_report import format_level

TRANSPORTS = ("tcp", "ofi:tcp")
# 4,244 points on two CPUs; with signals as well they would be 10,660.
SWEPT = {"post-list": "1,4,16", "signal-every": "1", "offset": "0"}
QUICK = {
    **SWEPT,
    "post-list": "1",
    "cpu": "-1",
    "size": "32K,256K,1M",
    "depth": "1,16",
    "qps": "1",
    "threads": "1",
}
LEAST_SHARE, MOST_TIME = 0.95, 0.1
GIGA = 1e9
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """`finals` are heats of (settings, rounds) among the sweep's best; seeds of the tunings."""

    finals: tuple[tuple[int, int], ...] = ((40, 2), (12, 5), (5, 8))
    seeds: tuple[int, ...] = (1, 2, 3)
    judging: int = 60  # rounds
    budget_s: float | None = None  # of a tuning; None: a tenth of the sweep's time


IN_FULL = Effort()
QUICKLY = Effort(finals=((3, 1),), seeds=(1,), judging=4, budget_s=45)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """All points of the sweep; `best` is what was left of them."""

    points: int
    highest: float  # of single points: luck is in it
    best: Candidate
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """One tuning; `ratio` is of its recommendation to the sweep's best."""

    tuning: Tuning
    seconds: float
    measured: Interval
    ratio: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One transport."""

    over: str
    swept: Swept
    best: Interval
    tuned: tuple[Tuned, ...]

    @property
    def ratio(self) -> float:
        """The geometric mean over the tunings."""
        return float(np.exp(np.mean([np.log(one.ratio.value) for one in self.tuned])))

    @property
    def time_share(self) -> float:
        return max(one.seconds for one in self.tuned) / self.swept.seconds


class _Timed:
    """Measuring, and how long it took in all."""

    def __init__(self, measuring: PointMeasurer) -> None:
        self._measuring = measuring
        self.seconds = 0.0

    def __call__(self, setting: Candidate, stage: str) -> MeasuredPoint:
        started = time.monotonic()
        try:
            return self._measuring(setting, stage)
        finally:
            self.seconds += time.monotonic() - started


def tune(quick: bool) -> list[Figure]:
    """Run and print all transports; `quick`: a few points, which prove nothing."""
    effort = QUICKLY if quick else IN_FULL
    outcomes = [_outcome(over, QUICK if quick else {}, effort) for over in TRANSPORTS]
    heads = (
        "over",
        "seed",
        "recommended",
        "best of the sweep",
        "ratio",
        "tuner s",
        "points",
        "sweep s",
        "points",
        "time",
        "all of it, s",
    )
    rows = [row for outcome in outcomes for row in _rows(outcome, effort)]
    print(format_table(heads, rows, left_columns=1))
    for outcome in outcomes:
        print(
            f"\n{outcome.over}: best of the sweep {_words(outcome.swept.best)}; the highest of "
            f"its single points {outcome.swept.highest / GIGA:.3g}"
        )
        for seed, one in zip(effort.seeds, outcome.tuned, strict=True):
            words = _words(one.tuning.recommendation.setting)
            print(f"{outcome.over}: recommended, seed {seed}: {words}")
    print(
        f"\nGB/s, geometric means of {effort.judging} rounds with 95 % intervals. "
        f"Goals: ratio at least {LEAST_SHARE}, time at most {MOST_TIME} of the sweep's."
    )
    return [figure for outcome in outcomes for figure in _figures(outcome)]


def _outcome(over: str, given: Mapping[str, str], effort: Effort) -> Outcome:
    sweep = prepare_tuning({"over": over, **SWEPT, **given}, seed=SEED)
    with open_peer("local") as peer:
        swept = _swept(sweep, peer, effort)
        budget_s = effort.budget_s or MOST_TIME * swept.seconds
        runs = [_tuned(over, given, peer, seed, budget_s) for seed in effort.seeds]
        prepared = prepare_tuning({"over": over, **given}, seed=SEED)
        ours = prepared.build_measurer(peer, lambda _: None)
        theirs = {**prepared.space.default, **swept.best}
        settings = [theirs, *(tuning.recommendation.setting for tuning, _ in runs)]
        judged = _in_turns(ours, settings, effort.judging)
    found = Outcome(
        over=over,
        swept=swept,
        best=mean_interval(judged[:, 0]),
        tuned=tuple(
            Tuned(
                tuning=tuning,
                seconds=seconds,
                measured=mean_interval(logs),
                ratio=mean_interval(logs - judged[:, 0]),
            )
            for (tuning, seconds), logs in zip(runs, judged[:, 1:].T, strict=True)
        ),
    )
    _say(f"{over}: ratio {found.ratio:.3g}, time {found.time_share:.3f}")
    return found


def _swept(prepared: PreparedTuning, peer: Peer, effort: Effort) -> Swept:
    """Every point once; then its best few in turns, fewer of them oftener."""
    measuring = _Timed(prepared.build_measurer(peer, lambda _: None))
    every = list_candidates(prepared.space)
    _say(f"{prepared.space.over}: sweep of {len(every)} points")
    values: dict[int, float] = {}
    for number, place in enumerate(np.random.default_rng(SEED).permutation(len(every))):
        try:
            values[int(place)] = measuring(every[place], "sweep").value
        except WeftError as error:
            _say(f"left out: {error}")
        if number % 100 == 99:
            _say(f"{number + 1} of {len(every)}, {measuring.seconds:.0f} s")
    left: list[Candidate] = [every[place] for place in sorted(values, key=lambda p: -values[p])]
    seconds = measuring.seconds
    for settings, rounds in effort.finals:
        left = left[:settings]
        means = _in_turns(measuring, left, rounds).mean(axis=0)
        left = [left[place] for place in np.argsort(-means)]
    return Swept(points=len(values), highest=max(values.values()), best=left[0], seconds=seconds)


def _tuned(
    over: str, given: Mapping[str, str], peer: Peer, seed: int, budget_s: float
) -> tuple[Tuning, float]:
    """A tuning, and the time that it measured."""
    prepared = prepare_tuning({"over": over, **given}, seed=seed, budget_s=budget_s)
    _say(f"{over}: tuner, {prepared.schedule.text()}")
    timed = _Timed(prepared.build_measurer(peer, lambda _: None))
    return prepared.run_with(timed), timed.seconds


def _in_turns(
    measuring: _Timed | PointMeasurer, settings: Sequence[Candidate], rounds: int
) -> FloatArray:
    """Logarithms, a row for each round; every round has an order of its own."""
    random = np.random.default_rng(SEED)
    logs = np.empty((rounds, len(settings)))
    for turn in range(rounds):
        for place in random.permutation(len(settings)):
            logs[turn, place] = np.log(measuring(settings[place], "again").value)
    return logs


def _rows(outcome: Outcome, effort: Effort) -> list[Sequence[str]]:
    swept = outcome.swept
    return [
        (
            outcome.over,
            str(seed),
            _giga(one.measured),
            _giga(outcome.best),
            str(one.ratio),
            f"{one.seconds:.1f}",
            str(len(one.tuning.rows)),
            f"{swept.seconds:.1f}",
            str(swept.points),
            f"{one.seconds / swept.seconds:.3f}",
            f"{one.tuning.elapsed_s:.1f}",
        )
        for seed, one in zip(effort.seeds, outcome.tuned, strict=True)
    ]


def _giga(found: Interval) -> str:
    return str(found.scale(1 / GIGA))


def _words(setting: Mapping[str, Plain]) -> str:
    return ", ".join(f"{name} {format_level(name, level)}" for name, level in setting.items())


def _figures(outcome: Outcome) -> list[Figure]:
    speed = Figure(
        name=f"tuner over {outcome.over}: throughput",
        unit="GB/s",
        ours=outcome.ratio * outcome.best.value / GIGA,
        peer="best of an exhaustive sweep",
        theirs=outcome.best.value / GIGA,
        goal=LEAST_SHARE,
        ratio=outcome.ratio,
        n=len(outcome.tuned),
        half="tune",
    )
    seconds = Figure(
        name=f"tuner over {outcome.over}: measuring time",
        unit="s",
        ours=outcome.time_share * outcome.swept.seconds,
        peer="exhaustive sweep",
        theirs=outcome.swept.seconds,
        goal=MOST_TIME,
        ratio=outcome.time_share,
        n=len(outcome.tuned),
        half="tune",
    )
    return [speed, seconds]


def _say(line: str) -> None:
    print(f"bench   {line}", file=sys.stderr, flush=True)
