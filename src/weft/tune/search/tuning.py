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
from weft.tune.rules.evidence import Rule
from weft.tune.search.design import Schedule, design, list_profile
from weft.tune.search.recommend import (
    Recommendation,
    filter_recommendable,
    propose_improvements,
    rank_candidates,
    rank_settings,
    rank_ways,
    recommend,
)
from weft.tune.search.space import PROBED, SHARING, Candidate, Goal, MeasuredPoint, Space
from weft.tune.search.surface import CONFIDENCE, Interval, fit_surface

# Measures (setting, stage). Raises Stopped, or a WeftError where the setting is refused.
Observe = Callable[[Candidate, str], MeasuredPoint]
Progress = Callable[[float, str], None]
MOST_FAILED_SHARE = 0.34
LEAST_WAYS = 8  # places in a race for ways to share processors
MEASURED_PLACES = 8  # places in a race for the best measured settings
_NEIGHBOURS = 2  # of the recommendation that are confirmed beside it
_PRIOR_VALUES = 3  # with the average variance, added to each setting's own
Item = TypeVar("Item")


class Stopped(WeftError):
    """The run ends now: the user pressed Ctrl-C, or the peer is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A setting that could not be measured."""

    setting: Candidate
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuning:
    """The space, points, recommendation and confirmation of a run."""

    goal: Goal
    space: Space
    schedule: Schedule | None  # None: from stored records
    rows: tuple[MeasuredPoint, ...]
    failed: tuple[Failure, ...]
    recommendation: Recommendation
    confirmation: tuple[Confirmation, ...]
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
        """The recommendation's value in the confirmation."""
        rows = (row.measured for row in self.confirmation if row.role == RECOMMENDED)
        return next(rows, None)

    @property
    def records(self) -> list[Record]:
        return [row.record for row in self.rows if row.record is not None]


@dataclass(slots=True, kw_only=True)
class _Run:
    """The state of a run."""

    goal: Goal
    space: Space
    schedule: Schedule
    observe: Observe
    progress: Progress
    deadline: float
    rows: list[MeasuredPoint] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    turn: int = 0

    def measure(self, setting: Candidate, stage: str) -> float | None:
        """The value at a setting; None where it was refused."""
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

    def _fail(self, setting: Candidate, error: WeftError) -> None:
        """Remove a level that fails alone too; otherwise note that this setting failed."""
        for name, level in self._suspects(setting):
            try:
                self.observe({**self.space.default, name: level}, "try")
            except Stopped:
                raise
            except WeftError as again:
                self._remove_level(name, level, str(again))
                return
        self.failed.append(Failure(setting=setting, reason=str(error)))
        many = len(self.failed) > max(1, MOST_FAILED_SHARE * self.schedule.spread)
        if not self.rows:
            raise error
        if many:
            raise Stopped(f"{len(self.failed)} settings could not be measured, the last: {error}")

    def _remove_level(self, name: str, level: Plain, reason: str) -> None:
        """Remove a level, and the points measured with it."""
        self.space = self.space.remove_level(name, level, reason)
        self.rows = [row for row in self.rows if row.setting[name] != level]

    def _suspects(self, setting: Candidate) -> list[tuple[str, Plain]]:
        """Levels of words (waiting, inline, placement) that are not the default's."""
        words = [f.name for f in self.space.factors if not f.is_number]
        return [(n, setting[n]) for n in words if setting[n] != self.space.default[n]]

    def has_time(self, points: int) -> bool:
        """Whether time is left for this many points and the confirmation."""
        each = self.schedule.point_s + self.schedule.overhead_s
        return time.monotonic() + points * each + self.schedule.confirm_s <= self.deadline

    def list_measured(self) -> list[Candidate]:
        """Each measured setting once."""
        return self.deduplicate([row.setting for row in self.rows])

    def best_median(self) -> list[Candidate]:
        """The setting with the best median, whatever is predicted; none if all are lossy."""
        usable = {self.space.key(s): s for s in self.filter_recommendable(self.list_measured())}
        medians = {
            key: median(row.value for row in group)
            for key, group in self.space.group(self.rows).items()
            if key in usable
        }
        order = sorted(medians, key=lambda key: -self.goal.sign * medians[key])
        return [usable[key] for key in order[:1]]

    def rank_runners(
        self, runners: Sequence[Candidate], rows: Sequence[MeasuredPoint]
    ) -> list[Candidate]:
        """Best first, by the lower 95 % bounds of these rows' geometric means.

        Of settings that cannot be distinguished, the one that varies less leads. Those without rows
        come last.
        """
        least = _lower_bounds(
            {
                key: self.goal.sign * np.log([row.value for row in group])
                for key, group in self.space.group(rows).items()
            }
        )
        return sorted(
            self.filter_recommendable(runners), key=lambda r: -least.get(self.space.key(r), -np.inf)
        )

    def filter_recommendable(self, settings: Sequence[Candidate]) -> list[Candidate]:
        """Drop settings that may not be recommended."""
        return filter_recommendable(self.space, self.goal, self.rows, settings)

    def deduplicate(self, settings: Sequence[Candidate]) -> list[Candidate]:
        """Each setting once, in order."""
        return list({self.space.key(setting): setting for setting in settings}.values())

    def is_refused(self, setting: Candidate) -> bool:
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
    chosen, rounds, ended = _run_stages(run, random)
    return Tuning(
        goal=goal,
        space=run.space,
        schedule=schedule,
        rows=tuple(run.rows),
        failed=tuple(run.failed),
        recommendation=chosen,
        confirmation=summarise_rounds(goal, chosen, rounds),
        elapsed_s=time.monotonic() - started,
        ended=ended,
    )


def _run_stages(
    run: _Run, random: np.random.Generator
) -> tuple[Recommendation, list[dict[str, float]], str]:
    """The recommendation, the rounds of its confirmation, and why the run ended early, if so."""
    chosen: Recommendation | None = None
    rounds: list[dict[str, float]] = []
    ended = ""
    try:
        _explore(run, random)
        chosen = _race(run, random)
        for values in _run_rounds(run, chosen, random):
            rounds.append(values)
    except Stopped as stop:
        ended = str(stop)
    except KeyboardInterrupt:  # between two points
        ended = "interrupted"
    return chosen or _recommend_early(run, ended), rounds, ended


def _explore(run: _Run, random: np.random.Generator) -> None:
    """Measure the spread, then fewer and fewer of the best ways, then a profile of the leader."""
    plan = run.schedule
    for setting in design(run.space, plan.spread, plan.centres, random):
        run.measure(run.space.repair(setting), "spread")
    for ways, points in plan.refine:
        if run.has_time(points + plan.profile + plan.race_points):
            surface = fit_surface(run.space, run.goal, run.rows)
            proposals = propose_improvements(
                surface, run.goal, run.rows, SHARING, ways=ways, points=points
            )
            _measure_all(run, proposals, "refine", random)
    if plan.profile and run.has_time(plan.profile + plan.race_points):
        surface = fit_surface(run.space, run.goal, run.rows)
        measured = rank_settings(surface, run.goal, run.rows, run.list_measured())
        (leader, *_) = measured or rank_candidates(surface, run.goal, run.rows, 1)
        _measure_all(run, list_profile(run.space, run.space.repair(leader)), "profile", random)


def _race(run: _Run, random: np.random.Generator) -> Recommendation:
    """Heats in turns, so that drift affects all runners; each heat keeps the better ones.

    Runners are ranked by their points in the race alone: the points that qualified them were partly
    luck.
    """
    runners = _choose_entrants(run)
    race_start = len(run.rows)
    for places, turns in run.schedule.race:
        runners = runners[:places]
        for _ in range(turns):
            if run.has_time(len(runners)):
                _measure_all(run, runners, "race", random)
        runners = run.rank_runners(runners, run.rows[race_start:] or run.rows)
    return recommend(run.space, run.goal, run.rows, runners[:1])


def _lower_bounds(scores: Mapping[tuple[Plain, ...], FloatArray]) -> dict[tuple[Plain, ...], float]:
    """The mean of each less two standard errors.

    A variance from few values is uncertain: `_PRIOR_VALUES` values with the average variance of all
    are added to each.
    """
    squares = {key: float(np.sum((values - values.mean()) ** 2)) for key, values in scores.items()}
    degrees = sum(len(values) - 1 for values in scores.values())
    usual = sum(squares.values()) / max(1, degrees)
    bounds = {}
    for key, values in scores.items():
        variance = (squares[key] + _PRIOR_VALUES * usual) / (len(values) - 1 + _PRIOR_VALUES)
        bounds[key] = float(values.mean() - 2 * np.sqrt(variance / len(values)))
    return bounds


def _choose_entrants(run: _Run) -> list[Candidate]:
    """The best prediction in each of the best ways to share processors, then the best measured.

    Ways differ much in noise, so the surface alone does not decide.
    """
    surface = fit_surface(run.space, run.goal, run.rows)
    ways = rank_ways(surface, run.goal, run.rows, SHARING)
    measured = rank_settings(surface, run.goal, run.rows, run.list_measured())
    # The best measured may have been luck or not: the race decides.
    (places, _), *_ = run.schedule.race
    most = max(LEAST_WAYS, places - MEASURED_PLACES)
    return run.deduplicate([*ways[:most], *run.best_median(), *measured])


def _measure_all(
    run: _Run, settings: Sequence[Candidate], stage: str, random: np.random.Generator
) -> None:
    """Measure each, in a random order."""
    for setting in _shuffle(settings, random):
        if not run.is_refused(setting):
            run.measure(run.space.repair(setting), stage)


def _run_rounds(
    run: _Run, chosen: Recommendation, random: np.random.Generator
) -> Iterator[dict[str, float]]:
    """Values by role, round by round."""
    settings = list_contenders(run.goal, chosen)
    for _ in range(run.schedule.repeats):
        values: dict[str, float] = {}
        for role in _shuffle(list(settings), random):
            if run.is_refused(settings[role]):
                continue
            value = run.measure(settings[role], f"confirm: {role}")
            if value is not None:
                values[role] = value
        yield values


def _recommend_early(run: _Run, ended: str) -> Recommendation:
    try:
        return recommend(run.space, run.goal, run.rows)
    except InputError as error:
        problem = f"ended after {len(run.rows)} points ({ended}): too few to recommend from"
        raise InputError("weft tune", problem, "run it again") from error


def _shuffle(items: Sequence[Item], random: np.random.Generator) -> list[Item]:
    return [items[place] for place in random.permutation(len(items))]


LEAST_ROUNDS = 2
RECOMMENDED, DEFAULT = "recommended", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """One setting: predicted before, measured after. `better` is the recommendation over it."""

    role: str
    setting: Mapping[str, Plain]
    predicted: Interval
    measured: Interval
    better: Interval
    values: tuple[float, ...]


def find_strongest_neighbours(
    goal: Goal, recommendation: Recommendation
) -> dict[str, dict[str, Plain]]:
    """The two best neighbours that differ in one factor, each in another, best first."""
    space = recommendation.surface.space
    default = space.key(space.default)
    rivals = [
        (factor, setting)
        for factor, setting in space.neighbours(recommendation.setting)
        if space.key(setting) != default and factor not in PROBED
    ]
    if not rivals:
        return {}
    expected = recommendation.surface.predict([setting for _, setting in rivals])
    best_of: dict[str, dict[str, Plain]] = {}
    for place in np.argsort(-goal.sign * expected.log_value, kind="stable"):
        factor, setting = rivals[place]
        best_of.setdefault(factor, setting)
    strongest = list(best_of.items())[:_NEIGHBOURS]
    return {f"{factor} {setting[factor]}": setting for factor, setting in strongest}


def list_contenders(goal: Goal, recommendation: Recommendation) -> dict[str, Candidate]:
    """The settings to confirm, by role; equal settings once."""
    space = recommendation.surface.space
    contenders: dict[str, Candidate] = {
        RECOMMENDED: recommendation.setting,
        **find_strongest_neighbours(goal, recommendation),
    }
    if space.key(space.default) != space.key(recommendation.setting):
        contenders[DEFAULT] = space.default
    return contenders


def summarise_rounds(
    goal: Goal, recommendation: Recommendation, rounds: Sequence[Mapping[str, float]]
) -> tuple[Confirmation, ...]:
    """One row for each role; `rounds` are the values of each round, by role.

    A role is judged by the rounds it shares with the recommendation; a role with too few of them
    is omitted.
    """
    settings = list_contenders(goal, recommendation)
    confirmations: list[Confirmation] = []
    for role, setting in settings.items():
        shared = [(v[RECOMMENDED], v[role]) for v in rounds if {RECOMMENDED, role} <= {*v}]
        if len(shared) >= LEAST_ROUNDS:
            ours, theirs = np.log(shared).T
            confirmations.append(
                Confirmation(
                    role=role,
                    setting=setting,
                    predicted=recommendation.predict_at(setting),
                    measured=mean_interval(theirs),
                    better=mean_interval(goal.sign * (ours - theirs)),
                    values=tuple(np.exp(theirs).tolist()),
                )
            )
    return tuple(confirmations)


def mean_interval(logs: FloatArray) -> Interval:
    """exp of the mean, with Student's t interval."""
    n = len(logs)
    middle = float(np.mean(logs))
    half = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2) * np.std(logs, ddof=1) / np.sqrt(n))
    return Interval.from_logs(middle, half)
