"""A tuning from stored records: the same model and recommendation, with nothing measured.

The choices are the settings that the records vary. All else must be equal, so the largest group of
records that differ in choices alone is used, and the rest is reported. Nothing is confirmed: the
evidence is the leave-one-out error and the records nearest to the recommendation. Where all
repetitions of a stored setting beat the best prediction, the records win over the model. Entry
points: `tune_records`, `find_nearest_records`, `predict_gain`. Units: the goal's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from scipy.special import ndtri

from weft.errors import InputError
from weft.measure.peer.client import LOCAL
from weft.model.fit import Fit
from weft.records import Plain
from weft.tune.rules.advice import advise
from weft.tune.rules.evidence import Evidence, Row, Setting, Spread, common_options, format_options
from weft.tune.search.recommend import Recommendation, recommend
from weft.tune.search.space import (
    CHOICES,
    Factor,
    Goal,
    MeasuredPoint,
    Refusal,
    Space,
    loss_percent,
)
from weft.tune.search.surface import CONFIDENCE, LEAST_ROWS, Interval
from weft.tune.search.tuning import Tuning
from weft.units import format_count, format_value, split_unit

STAGE = "stored"
_NEAREST = 3  # records shown beside a recommendation
LEAST_RUNS = 3  # of a setting that wins over the model
ONE_SIZE = ("latency", "message-rate")  # goals that the size decides by itself
SWEEPS = {
    "throughput": "size=4K..1M*4 depth=1,8,64 wait=spin,block",
    "cpu": "size=4K..1M*4 depth=1,8,64 wait=spin,block",
    "message-rate": "depth=1,8,64 qps=1,2 wait=spin,block",
    "latency": "wait=spin,block cpu=-1,auto offset=0,1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTuning:
    """A tuning, and the evidence that it does not use, in sentences."""

    tuning: Tuning
    peer: str  # "" on this host
    runs: Spread | None  # of the recommendation, where it was chosen by its records alone
    left_out: tuple[str, ...]

    @property
    def by_model(self) -> bool:
        """False: all repetitions of a stored setting beat the model's best prediction."""
        return self.runs is None


def tune_records(
    evidence: Evidence, goal: Goal, only: Mapping[str, Sequence[Plain]] | None = None
) -> StoredTuning:
    """The recommendation for a goal; `only` limits choices to some of their levels."""
    limits = dict(only or {})
    test = "latency" if goal.name == "latency" else "bandwidth"
    _check_limits(evidence.rows_of(test), limits)
    rows = [row for row in evidence.rows_of(test) if _is_within(row, limits)]
    rows, omitted = _select_comparable(rows, goal)
    points = [point for row in rows for point in _build_points(row, goal)]
    _check_enough(evidence, goal, points, limits)
    space = _build_space(evidence, goal, rows)
    restricted = _restrict_settings(space, points)
    chosen = recommend(space, goal, restricted)
    better = find_better_stored(space, goal, restricted, chosen)
    tuning = Tuning(
        goal=goal,
        space=space,
        schedule=None,
        rows=tuple(restricted),
        failed=(),
        recommendation=better[0] if better else chosen,
        confirmation=(),
        advice=advise(evidence, throughput=_throughput_fit(goal, chosen)),
    )
    return StoredTuning(
        tuning=tuning,
        peer=evidence.peer,
        runs=better[1] if better else None,
        left_out=(*evidence.left_out, *omitted),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearRecord:
    """The stored and the predicted value at a setting."""

    setting: Mapping[str, Plain]
    stored: float  # the median of `runs`
    predicted: float
    runs: int


def find_nearest_records(tuning: Tuning) -> list[NearRecord]:
    """The settings with records that are nearest to the recommendation, nearest first."""
    space, recommendation = tuning.space, tuning.recommendation
    groups = list(space.group(tuning.rows).values())
    at = space.coordinates([group[0].setting for group in groups])
    apart = space.squared_distances(at, space.coordinates([recommendation.setting]))[:, 0]
    return [
        NearRecord(
            setting=group[0].setting,
            stored=median(row.value for row in group),
            predicted=recommendation.predict_at(group[0].setting).value,
            runs=len(group),
        )
        for group in (groups[place] for place in np.argsort(apart, kind="stable")[:_NEAREST])
    ]


def predict_gain(tuning: Tuning) -> Interval | None:
    """The gain over the default; None if that is recommended or out of the records' reach."""
    space, recommendation = tuning.space, tuning.recommendation
    if find_unreached_factors(space) or space.key(recommendation.setting) == space.key(
        space.default
    ):
        return None
    log_ratio, error = recommendation.surface.predict_ratio(recommendation.setting, space.default)
    middle, half = tuning.goal.sign * log_ratio, float(ndtri(0.5 + CONFIDENCE / 2)) * error
    return Interval(
        value=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half)
    )


def find_unreached_factors(space: Space) -> list[Factor]:
    """Factors whose default the records neither have nor surround."""
    return [factor for factor in space.factors if not _is_reached(factor)]


def _is_reached(factor: Factor) -> bool:
    if not factor.is_number:
        return factor.default in factor.levels
    places = [factor.coordinate(level) for level in factor.levels]
    return min(places) <= factor.coordinate(factor.default) <= max(places)


def _throughput_fit(goal: Goal, recommendation: Recommendation) -> Fit | None:
    return recommendation.surface.fit if goal.name == "throughput" else None


def find_better_stored(
    space: Space, goal: Goal, rows: Sequence[MeasuredPoint], chosen: Recommendation
) -> tuple[Recommendation, Spread] | None:
    """A setting of which even the worst repetition beats the interval of the recommendation."""
    groups = space.group(rows)
    scores = {
        key: [goal.sign * math.log(r.value) if r.is_acceptable else -math.inf for r in group]
        for key, group in groups.items()
    }
    bounds = chosen.predicted
    bound = max(goal.sign * math.log(end) for end in (bounds.low, bounds.high))
    worst = {
        key: min(repetitions)
        for key, repetitions in scores.items()
        if len(repetitions) >= LEAST_RUNS
    }
    best = max(worst, key=lambda key: worst[key], default=None)
    if best is None or worst[best] <= bound:
        return None
    runs = Spread(tuple(sorted(math.exp(goal.sign * score) for score in scores[best])))
    return replace(chosen, setting=dict(groups[best][-1].setting)), runs


def _check_limits(rows: Sequence[Row], limits: Mapping[str, Sequence[Plain]]) -> None:
    for name, levels in limits.items():
        present = sorted({getattr(row.setting, name) for row in rows}, key=_sort_key)
        absent = [level for level in levels if level not in present]
        if present and absent:
            listed = ", ".join(_format_level(name, level).partition(" ")[2] for level in present)
            where = f"--{split_unit(name)[0].replace('_', '-')}"
            raise InputError(
                where, f"no record has {_format_level(name, absent[0])}", f"use {listed}"
            )


def _is_within(row: Row, limits: Mapping[str, Sequence[Plain]]) -> bool:
    return all(getattr(row.setting, name) in levels for name, levels in limits.items())


def _select_comparable(rows: Sequence[Row], goal: Goal) -> tuple[list[Row], list[str]]:
    """The largest group that differs in choices alone; of equal ones that of the smaller size."""
    choices = [name for name in CHOICES if name != "size_bytes" or goal.name not in ONE_SIZE]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.setting.without(*choices), []).append(row)
    if not groups:
        return [], []
    largest = min(groups.values(), key=lambda group: (-len(group), group[0].setting.size_bytes))
    omitted = [
        f"{format_count(sum(len(r.records) for r in group), 'record')} with "
        f"{_describe_difference(group[0], largest[0], choices)}"
        for group in groups.values()
        if group is not largest
    ]
    return largest, omitted


def _describe_difference(ours: Row, used: Row, choices: Sequence[str]) -> str:
    names = [f.name for f in dataclasses.fields(Setting) if f.name not in choices]
    pairs = [(n, getattr(ours.setting, n), getattr(used.setting, n)) for n in names]
    return ", ".join(
        f"{_format_level(n, a)} (used: {_format_level(n, b)})" for n, a, b in pairs if a != b
    )


def _format_level(name: str, value: object) -> str:
    plain, unit = split_unit(name)
    shown = format_value(value, unit) if unit and isinstance(value, int) else str(value)
    return f"{plain} {shown}"


def _build_points(row: Row, goal: Goal) -> list[MeasuredPoint]:
    """One for each repetition that has the goal's value."""
    setting = {name: getattr(row.setting, name) for name in CHOICES}
    return [
        MeasuredPoint(
            setting=setting,
            value=value,
            stage=STAGE,
            record=record,
            lost_percent=loss_percent(record),
        )
        for record in row.records
        if (value := goal.read(record)) is not None and value > 0
    ]


def _check_enough(
    evidence: Evidence, goal: Goal, points: Sequence[MeasuredPoint], limits: Mapping[str, object]
) -> None:
    settings = {tuple(row.setting.items()) for row in points}
    if len(settings) >= LEAST_ROWS:
        return
    options = " ".join(format_options(common_options(evidence, goal.test.name)))
    sweep = f"--sweep {SWEEPS[goal.name]} --duration 100ms --repeat 3 -o FILE"
    command = f"weft {goal.test.name} {evidence.peer or LOCAL} {options} {sweep}"
    within = f" with {', '.join(limits)} as given" if limits else ""
    problem = f"{len(settings)} settings measured{within}, but a model needs {LEAST_ROWS} or more"
    raise InputError(f"goal {goal.name}", problem, f"measure more: {command}")


def _build_space(evidence: Evidence, goal: Goal, rows: Sequence[Row]) -> Space:
    """A factor for each choice that the records vary."""
    defaults: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(goal.test.settings)}
    levels_of = {
        name: sorted({getattr(row.setting, name) for row in rows}, key=_sort_key)
        for name in CHOICES
        if name in defaults
    }
    factors = tuple(
        Factor(name=name, levels=tuple(levels), default=defaults[name])
        for name, levels in levels_of.items()
        if len(levels) > 1
    )
    if not factors:
        problem = "the records vary nothing that could be chosen"
        raise InputError(f"goal {goal.name}", problem, f"sweep some of {', '.join(levels_of)}")
    single = {name: levels[0] for name, levels in levels_of.items() if len(levels) == 1}
    return Space(
        over=evidence.over,
        factors=factors,
        refusals=_refuse_unvaried(list(single)),
        options=common_options(evidence, goal.test.name) | _operation(rows[0].setting),
        fixed={
            name: level
            for name, level in single.items()
            if level != defaults[name] or name == "size_bytes"
        },
    )


def _operation(setting: Setting) -> dict[str, str]:
    return {} if setting.op == "send" else {"op": setting.op}


def _refuse_unvaried(names: Sequence[str]) -> tuple[Refusal, ...]:
    reason = "the records have one value of each"
    return (Refusal(name=", ".join(names), reason=reason),) if names else ()


def _sort_key(level: Plain) -> tuple[str, float]:
    return (level, 0.0) if isinstance(level, str) else ("", float(level or 0))


def _restrict_settings(space: Space, points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The points with settings restricted to the space's factors."""
    names = [factor.name for factor in space.factors]
    return [replace(row, setting={name: row.setting[name] for name in names}) for row in points]
