"""One tuning run: spread, refine, profile, race, confirm; each stage from what was observed before.

What is measured comes through `Observe`, so that the same stages run over a fabric, on the delay
transport or on an invented function. A run that is stopped keeps what it has and recommends from
that. Entry points: `tune`, `Tuning`. Units: s, the goal's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeVar

import numpy as np
from scipy.special import stdtrit

from weft.errors import InputError, WeftError
from weft.model.fit import FloatArray
from weft.records import Plain, Record
from weft.tune.rules.rule import Rule
from weft.tune.search.design import Schedule, design, profile
from weft.tune.search.goal import Goal
from weft.tune.search.recommend import (
    Recommendation,
    contestants,
    improving,
    leaders,
    ranked,
    recommend,
    recommendable,
)
from weft.tune.search.space import PROBED, SHARING, Choice, Observed, Space
from weft.tune.search.surface import surface

# (setting, stage) -> what was seen; raises Stopped, or a WeftError where the setting is refused
Observe = Callable[[Choice, str], Observed]
Progress = Callable[[float, str], None]
MOST_FAILED_SHARE = 0.34
LEAST_WAYS = 8  # of sharing processors, in a race
MEASURED = 8  # places for the best measured, in a race of more ways
LATE = 2  # settings that join a race behind its first heat
_VARIED = 3  # values
Item = TypeVar("Item")


class Stopped(WeftError):
    """The run is to end now: the user's Ctrl-C, or a peer that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A setting that could not be measured."""

    setting: Choice
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuning:
    """What a run considered, saw, recommends and has confirmed."""

    goal: Goal
    space: Space
    schedule: Schedule | None  # None: from stored records
    rows: tuple[Observed, ...]
    failed: tuple[Failed, ...]
    recommendation: Recommendation
    confirmation: tuple[Confirmed, ...]
    elapsed_s: float = 0.0
    ended: str = ""  # why it ended early
    advice: tuple[Rule, ...] = ()
    no_advice: str = ""  # why there is none

    @property
    def gain(self) -> Interval | None:
        """The recommendation's ratio to the default, above 1 where it is better."""
        return next((row.better for row in self.confirmation if row.role == DEFAULT), None)

    @property
    def measured(self) -> Interval | None:
        """What the recommendation gave when it was measured again."""
        found = (row.measured for row in self.confirmation if row.role == RECOMMENDED)
        return next(found, None)

    @property
    def records(self) -> list[Record]:
        return [row.record for row in self.rows if row.record is not None]


@dataclass(slots=True, kw_only=True)
class _Run:
    """What there is so far."""

    goal: Goal
    space: Space
    schedule: Schedule
    observe: Observe
    progress: Progress
    deadline: float
    rows: list[Observed] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    turn: int = 0

    def measure(self, setting: Choice, stage: str) -> float | None:
        """The value there; None where the setting was refused."""
        self.progress(self.turn / self.schedule.points, stage)
        self.turn += 1
        try:
            row = self.observe(setting, stage)
        except Stopped:
            raise
        except WeftError as error:
            self._fail(setting, error)
            return None
        self.rows.append(replace(row, turn=self.turn))
        return row.value

    def _fail(self, setting: Choice, error: WeftError) -> None:
        """A level that cannot even be had alone is no choice; else this setting is none."""
        for name, level in self._suspects(setting):
            try:
                self.observe({**self.space.default, name: level}, "try")
            except Stopped:
                raise
            except WeftError as again:
                self._withdraw(name, level, str(again))
                return
        self.failed.append(Failed(setting=setting, reason=str(error)))
        many = len(self.failed) > max(1, MOST_FAILED_SHARE * self.schedule.spread)
        if not self.rows:
            raise error
        if many:
            raise Stopped(f"{len(self.failed)} settings could not be measured, the last: {error}")

    def _withdraw(self, name: str, level: Plain, reason: str) -> None:
        """A level that is no choice any more, and what was measured with it."""
        self.space = self.space.without(name, level, reason)
        self.rows = [row for row in self.rows if row.setting[name] != level]

    def _suspects(self, setting: Choice) -> list[tuple[str, Plain]]:
        """Words that are not the default's: how to wait, inline, placement."""
        words = [f.name for f in self.space.factors if not f.is_number]
        return [(n, setting[n]) for n in words if setting[n] != self.space.default[n]]

    def has_time(self, points: int) -> bool:
        """Whether so many more can be measured and the confirmation still be done."""
        each = self.schedule.point_s + self.schedule.overhead_s
        return time.monotonic() + points * each + self.schedule.confirm_s <= self.deadline

    def measured(self) -> list[Choice]:
        """The settings that were measured."""
        return self.distinct([row.setting for row in self.rows])

    def best_seen(self) -> list[Choice]:
        """The setting with the best median, whatever is expected there; none if all are lossy."""
        values: dict[tuple[Plain, ...], list[float]] = {}
        usable = {self.space.key(s): s for s in self.recommendable(self.measured())}
        for row in self.rows:
            if self.space.key(row.setting) in usable:
                values.setdefault(self.space.key(row.setting), []).append(row.value)
        order = sorted(values, key=lambda key: -self.goal.sign * median(values[key]))
        return [usable[key] for key in order[:1]]

    def placed(self, runners: Sequence[Choice], rows: Sequence[Observed]) -> list[Choice]:
        """By what the geometric means of these rows at least are, with 95 % confidence, best first.

        Of settings that are not told apart the one that varies less leads; those without rows
        come last.
        """
        logs: dict[tuple[Plain, ...], list[float]] = {}
        for row in rows:
            logs.setdefault(self.space.key(row.setting), []).append(float(np.log(row.value)))
        least = _assured({key: self.goal.sign * np.array(found) for key, found in logs.items()})
        return sorted(
            self.recommendable(runners), key=lambda r: -least.get(self.space.key(r), -np.inf)
        )

    def recommendable(self, settings: Sequence[Choice]) -> list[Choice]:
        """Without those that may not be recommended."""
        return recommendable(self.space, self.goal, self.rows, settings)

    def distinct(self, settings: Sequence[Choice]) -> list[Choice]:
        """Each once, in the order given."""
        return list({self.space.key(setting): setting for setting in settings}.values())

    def is_refused(self, setting: Choice) -> bool:
        return any(self.space.key(f.setting) == self.space.key(setting) for f in self.failed)


def tune(
    observe: Observe,
    space: Space,
    goal: Goal,
    schedule: Schedule,
    *,
    seed: int = 1,
    budget_s: float = float("inf"),
    progress: Progress = lambda *_: None,
) -> Tuning:
    """Measure, fit, recommend and confirm."""
    started = time.monotonic()
    random = np.random.default_rng(seed)
    run = _Run(
        goal=goal,
        space=space,
        schedule=schedule,
        observe=observe,
        progress=progress,
        deadline=started + budget_s,
    )
    chosen: Recommendation | None = None
    rounds: list[dict[str, float]] = []
    ended = ""
    try:
        _explore(run, random)
        chosen = _race(run, random)
        for one in _rounds(run, chosen, random):
            rounds.append(one)
    except Stopped as stop:
        ended = str(stop)
    except KeyboardInterrupt:  # between two points
        ended = "interrupted"
    if chosen is None:
        chosen = _from_what_there_is(run, ended)
    return Tuning(
        goal=goal,
        space=run.space,
        schedule=schedule,
        rows=tuple(run.rows),
        failed=tuple(run.failed),
        recommendation=chosen,
        confirmation=confirmed(goal, chosen, rounds),
        elapsed_s=time.monotonic() - started,
        ended=ended,
    )


def _explore(run: _Run, random: np.random.Generator) -> None:
    """The spread points, then the best ways, ever fewer, then a profile around the leader."""
    plan = run.schedule
    for setting in design(run.space, plan.spread, plan.centres, random):
        run.measure(run.space.mended(setting), "spread")
    for ways, points in plan.refine:
        if run.has_time(points + plan.profile + plan.race_points):
            found = surface(run.space, run.goal, run.rows)
            chosen = improving(found, run.goal, run.rows, SHARING, ways=ways, points=points)
            _visit(run, chosen, "refine", random)
    if run.has_time(plan.profile + plan.race_points):
        found = surface(run.space, run.goal, run.rows)
        measured = ranked(found, run.goal, run.rows, run.measured())
        (leader, *_) = measured or contestants(found, run.goal, run.rows, 1)
        _visit(run, profile(run.space, run.space.mended(leader)), "profile", random)


def _race(run: _Run, random: np.random.Generator) -> Recommendation:
    """Heats in turns, so that a drift meets all runners; each heat keeps the better ones.

    Places go by what was measured in the race: not by the luck that let one in. Behind the first
    heat the best that is now expected joins.
    """
    runners = _entrants(run)
    since = len(run.rows)
    for number, (places, turns) in enumerate(run.schedule.race):
        if number == 1:
            found = surface(run.space, run.goal, run.rows)
            late = contestants(found, run.goal, run.rows, LATE)
            runners = run.distinct([*runners[: places - LATE], *late, *runners[places - LATE :]])
        runners = runners[:places]
        for _ in range(turns):
            if run.has_time(len(runners)):
                _visit(run, runners, "race", random)
        runners = run.placed(runners, run.rows[since:] or run.rows)
    return recommend(run.space, run.goal, run.rows, runners[:1])


def _assured(scores: Mapping[tuple[Plain, ...], FloatArray]) -> dict[tuple[Plain, ...], float]:
    """Of each the mean less two standard errors.

    Few values tell little of how much they vary: to each `_VARIED` more are added that vary as all
    do on average.
    """
    squares = {key: float(np.sum((found - found.mean()) ** 2)) for key, found in scores.items()}
    free = sum(len(found) - 1 for found in scores.values())
    usual = sum(squares.values()) / max(1, free)
    least = {}
    for key, found in scores.items():
        variance = (squares[key] + _VARIED * usual) / (len(found) - 1 + _VARIED)
        least[key] = float(found.mean() - 2 * np.sqrt(variance / len(found)))
    return least


def _entrants(run: _Run) -> list[Choice]:
    """The best expected in each of the best ways to share processors, then the best measured.

    Such ways decide together and differ much in noise: the surface alone is not to choose.
    """
    found = surface(run.space, run.goal, run.rows)
    ways = leaders(found, run.goal, run.rows, SHARING)
    measured = ranked(found, run.goal, run.rows, run.measured())
    # What the surface takes for luck is given the chance to repeat it.
    (places, _), *_ = run.schedule.race
    most = max(LEAST_WAYS, places - MEASURED)
    return run.distinct([*ways[:most], *run.best_seen(), *measured])


def _visit(run: _Run, settings: Sequence[Choice], stage: str, random: np.random.Generator) -> None:
    """Measure each, in a random order."""
    for setting in _shuffled(settings, random):
        if not run.is_refused(setting):
            run.measure(run.space.mended(setting), stage)


def _rounds(
    run: _Run, chosen: Recommendation, random: np.random.Generator
) -> Iterator[dict[str, float]]:
    """Values by role, round by round."""
    settings = contenders(run.goal, chosen)
    for _ in range(run.schedule.repeats):
        values: dict[str, float] = {}
        for role in _shuffled(list(settings), random):
            if run.is_refused(settings[role]):
                continue
            value = run.measure(settings[role], f"confirm: {role}")
            if value is not None:
                values[role] = value
        yield values


def _from_what_there_is(run: _Run, ended: str) -> Recommendation:
    try:
        return recommend(run.space, run.goal, run.rows)
    except InputError as error:
        problem = f"ended after {len(run.rows)} points ({ended}): too few to recommend from"
        raise InputError("weft tune", problem, "run it again") from error


def _shuffled(items: Sequence[Item], random: np.random.Generator) -> list[Item]:
    return [items[place] for place in random.permutation(len(items))]


CONFIDENCE = 0.95
LEAST_ROUNDS = 2
RECOMMENDED, DEFAULT = "recommended", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A geometric mean and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g}–{self.high:.3g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """One setting: predicted before, measured after. `better` is the recommendation over it."""

    role: str
    setting: Mapping[str, Plain]
    predicted: Interval
    measured: Interval
    better: Interval
    values: tuple[float, ...]


def neighbours(goal: Goal, found: Recommendation, number: int = 2) -> dict[str, dict[str, Plain]]:
    """The strongest rivals that differ in one factor: the best of each factor, best first."""
    space = found.surface.space
    default = space.key(space.default)
    rivals = [
        (factor, setting)
        for factor, setting in space.neighbours(found.setting)
        if space.key(setting) != default and factor not in PROBED
    ]
    if not rivals:
        return {}
    expected = found.surface.expected([setting for _, setting in rivals])
    taken: dict[str, dict[str, Plain]] = {}
    for place in np.argsort(-goal.sign * expected.log_value, kind="stable"):
        factor, setting = rivals[place]
        taken.setdefault(f"{factor} {setting[factor]}", setting)
    first: dict[str, dict[str, Plain]] = {}
    for role, setting in taken.items():
        factor = role.partition(" ")[0]
        if len(first) < number and not any(known.startswith(f"{factor} ") for known in first):
            first[role] = setting
    return first


def contenders(goal: Goal, found: Recommendation) -> dict[str, Choice]:
    """Role -> setting of all that are measured; equal ones once."""
    space = found.surface.space
    chosen: dict[str, Choice] = {RECOMMENDED: found.setting, **neighbours(goal, found)}
    if space.key(space.default) != space.key(found.setting):
        chosen[DEFAULT] = space.default
    return chosen


def confirmed(
    goal: Goal, found: Recommendation, rounds: Sequence[Mapping[str, float]]
) -> tuple[Confirmed, ...]:
    """One row for each role; `rounds` are the values of each round, by role.

    A role is judged by the rounds that it shares with the recommendation; one with too few of them
    is left out.
    """
    settings = contenders(goal, found)
    told: list[Confirmed] = []
    for role, setting in settings.items():
        shared = [(one[RECOMMENDED], one[role]) for one in rounds if {RECOMMENDED, role} <= {*one}]
        if len(shared) >= LEAST_ROUNDS:
            ours, theirs = np.log(shared).T
            told.append(
                Confirmed(
                    role=role,
                    setting=setting,
                    predicted=_predicted(found, setting),
                    measured=mean_interval(theirs),
                    better=mean_interval(goal.sign * (ours - theirs)),
                    values=tuple(np.exp(theirs).tolist()),
                )
            )
    return tuple(told)


def _predicted(found: Recommendation, setting: Choice) -> Interval:
    value, (low, high) = found.expected_at(setting)
    return Interval(value=value, low=low, high=high)


def mean_interval(logs: FloatArray) -> Interval:
    """exp of the mean, with Student's t interval."""
    n = len(logs)
    middle = float(np.mean(logs))
    half = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2) * np.std(logs, ddof=1) / np.sqrt(n))
    return Interval(
        value=float(np.exp(middle)),
        low=float(np.exp(middle - half)),
        high=float(np.exp(middle + half)),
    )
