"""The tuner beside an exhaustive sweep: how much of the best it finds, in how much of the time.

Over each transport `weft tune` runs with its defaults; then every combination of size, depth,
connections, threads, waiting and placement is measured for as long a point, in a random order. The
best of hundreds of noisy points is partly luck: so the sweep's best few and the recommendation are
measured again, in turns: some rounds choose the best of the few, then many (single points of one
setting differ by factors here) tell the ratio to it.
Time is that of measuring, set-up of each point included, on both sides. Entry point: `tune`.
Units: GB/s (10^9), s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.figure import Figure
from weft.errors import WeftError
from weft.measure.peer import Peer, open_peer
from weft.model.fit import FloatArray
from weft.records import Plain
from weft.records.table import text_table
from weft.tune.confirm import Interval, mean_interval
from weft.tune.measuring import Measuring
from weft.tune.observed import Observed
from weft.tune.over_fabric import Prepared, prepare
from weft.tune.report_text import level_text
from weft.tune.space import Choice, candidates_of
from weft.tune.tuning import Tuning

TRANSPORTS = ("tcp", "ofi:tcp")
# All that decides; the rest is at its default.
SWEPT = {"post-list": "1", "signal-every": "1", "offset": "0"}
QUICK = {**SWEPT, "cpu": "-1", "size": "32K,256K,1M", "depth": "1,16", "qps": "1", "threads": "1"}
FINALISTS, CHOOSING, JUDGING = 5, 8, 80  # rounds
QUICK_ROUNDS = 4
LEAST_SHARE, MOST_TIME = 0.95, 0.1
GIGA = 1e9
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """All points of the sweep."""

    settings: tuple[Choice, ...]
    values: tuple[float, ...]
    seconds: float

    def best(self, number: int) -> list[Choice]:
        order = np.argsort(-np.array(self.values))
        return [self.settings[place] for place in order[:number]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One transport. `ratio` is of the recommendation to the best of the sweep, measured anew."""

    over: str
    tuning: Tuning
    tuner_s: float
    swept: Swept
    recommended: Interval
    best: Interval
    best_setting: Choice
    ratio: Interval

    @property
    def sweep_best(self) -> float:
        """What the sweep itself saw: the best of many, so too high."""
        return max(self.swept.values)


def tune(quick: bool) -> list[Figure]:
    """Run and print all transports; `quick`: a few points, which prove nothing."""
    outcomes = [_outcome(over, quick) for over in TRANSPORTS]
    heads = ("over", "recommended", "best of the sweep, again", "sweep itself", "ratio",
             "tuner s", "points", "sweep s", "points", "time", "all of it, s")  # fmt: skip
    print(text_table(heads, [_row(outcome) for outcome in outcomes]))
    for outcome in outcomes:
        print(f"\n{outcome.over}: recommended {_words(outcome.tuning.recommendation.setting)}")
        print(f"{outcome.over}: best of the sweep {_words(outcome.best_setting)}")
    print(
        f"\nGB/s, geometric means of {JUDGING} rounds with 95 % intervals. "
        f"Goals: ratio at least {LEAST_SHARE}, time at most {MOST_TIME} of the sweep's."
    )
    return [figure for outcome in outcomes for figure in _figures(outcome)]


def _outcome(over: str, quick: bool) -> Outcome:
    prepared = prepare({"over": over, **(QUICK if quick else {})}, seed=SEED)
    sweep = prepare({"over": over, **(QUICK if quick else SWEPT)}, seed=SEED)
    with open_peer("local") as peer:
        _say(f"{over}: tuner, {prepared.schedule.text()}")
        timed = _Timed(prepared.measuring(peer, lambda _: None))
        tuning = prepared.run_with(timed)
        swept = _sweep(sweep, peer)
        rounds = (QUICK_ROUNDS, QUICK_ROUNDS) if quick else (CHOOSING, JUDGING)
        return _again(over, sweep, prepared, peer, tuning, timed.seconds, swept, *rounds)


class _Timed:
    """Measuring, and how long it took in all."""

    def __init__(self, measuring: Measuring) -> None:
        self._measuring = measuring
        self.seconds = 0.0

    def __call__(self, setting: Choice, stage: str) -> Observed:
        started = time.monotonic()
        try:
            return self._measuring(setting, stage)
        finally:
            self.seconds += time.monotonic() - started


def _sweep(prepared: Prepared, peer: Peer) -> Swept:
    measuring = _Timed(prepared.measuring(peer, lambda _: None))
    every = candidates_of(prepared.space)
    _say(f"{prepared.space.over}: sweep of {len(every)} points")
    order = np.random.default_rng(SEED).permutation(len(every))
    settings: list[Choice] = []
    values: list[float] = []
    for number, place in enumerate(order):
        try:
            values.append(measuring(every[place], "sweep").value)
            settings.append(every[place])
        except WeftError as error:
            _say(f"left out: {error}")
        if number % 100 == 99:
            _say(f"{number + 1} of {len(every)}, {measuring.seconds:.0f} s")
    return Swept(settings=tuple(settings), values=tuple(values), seconds=measuring.seconds)


def _again(
    over: str, sweep: Prepared, prepared: Prepared, peer: Peer, tuning: Tuning, tuner_s: float,
    swept: Swept, choosing: int, judging: int,
) -> Outcome:  # fmt: skip
    """The sweep's best few in turns, then the best of them and the recommendation."""
    theirs = sweep.measuring(peer, lambda _: None)
    ours = prepared.measuring(peer, lambda _: None)
    finalists = swept.best(FINALISTS)
    chosen = _in_turns([partial(theirs, one, "again") for one in finalists], choosing)
    best = finalists[int(np.argmax(chosen.mean(axis=0)))]
    judged = _in_turns(
        [partial(ours, tuning.recommendation.setting, "again"), partial(theirs, best, "again")],
        judging,
    )
    found = Outcome(
        over=over, tuning=tuning, tuner_s=tuner_s, swept=swept,
        recommended=mean_interval(judged[:, 0]), best=mean_interval(judged[:, 1]),
        best_setting=best, ratio=mean_interval(judged[:, 0] - judged[:, 1]),
    )  # fmt: skip
    _say(f"{over}: ratio {found.ratio}, time {tuner_s / swept.seconds:.3f}")
    return found


def _in_turns(measured: Sequence[Callable[[], Observed]], rounds: int) -> FloatArray:
    """Logarithms, a row for each round; every round has an order of its own."""
    random = np.random.default_rng(SEED)
    logs = np.empty((rounds, len(measured)))
    for turn in range(rounds):
        for place in random.permutation(len(measured)):
            logs[turn, place] = np.log(measured[place]().value)
    return logs


def _row(outcome: Outcome) -> Sequence[str]:
    swept, tuning = outcome.swept, outcome.tuning
    return (
        outcome.over, _giga(outcome.recommended), _giga(outcome.best),
        f"{outcome.sweep_best / GIGA:.3g}", str(outcome.ratio),
        f"{outcome.tuner_s:.1f}", str(len(tuning.rows)), f"{swept.seconds:.1f}",
        str(len(swept.values)), f"{outcome.tuner_s / swept.seconds:.3f}",
        f"{tuning.elapsed_s:.1f}",
    )  # fmt: skip


def _giga(found: Interval) -> str:
    return str(Interval(value=found.value / GIGA, low=found.low / GIGA, high=found.high / GIGA))


def _words(setting: Mapping[str, Plain]) -> str:
    return ", ".join(f"{name} {level_text(name, level)}" for name, level in setting.items())


def _figures(outcome: Outcome) -> list[Figure]:
    speed = Figure(
        name=f"tuner over {outcome.over}: throughput", unit="GB/s",
        ours=outcome.recommended.value / GIGA, peer="best of an exhaustive sweep",
        theirs=outcome.best.value / GIGA, goal=LEAST_SHARE, ratio=outcome.ratio.value,
        n=JUDGING, half="tune",
    )  # fmt: skip
    seconds = Figure(
        name=f"tuner over {outcome.over}: measuring time", unit="s", ours=outcome.tuner_s,
        peer="exhaustive sweep", theirs=outcome.swept.seconds, goal=MOST_TIME,
        ratio=outcome.tuner_s / outcome.swept.seconds, half="tune",
    )  # fmt: skip
    return [speed, seconds]


def _say(line: str) -> None:
    print(f"bench   {line}", file=sys.stderr, flush=True)
