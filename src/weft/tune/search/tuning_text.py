"""A tuning as text: the recommendation, the confirmation, the model, advice and omissions.

Entry points: `format_plan`, `format_tuning` (a run), `format_stored` (from records).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from weft.measure.peer.client import LOCAL
from weft.measure.settings.options import options_of
from weft.measure.settings.values import ANYWHERE, AUTO
from weft.records import Plain
from weft.records.record_text import format_table
from weft.tune.rules.advice import advice_table
from weft.tune.rules.evidence import format_options
from weft.tune.search.from_records import (
    StoredTuning,
    find_nearest_records,
    find_unreached_factors,
    predict_gain,
)
from weft.tune.search.over_fabric import PreparedTuning
from weft.tune.search.space import Factor, Goal
from weft.tune.search.surface import Interval
from weft.tune.search.tuning import Tuning
from weft.tune.search.tuning_record import BY_RECORDS, NOT_CONFIRMED
from weft.units import format_value, split_unit

_SHOWN_UNIT = {"B/s": ("GB/s", 1e-9)}


def format_tuning(tuning: Tuning, *, peer: str = LOCAL, outcome: str = "") -> str:
    """The recommendation first; `outcome` replaces the confirmation."""
    parts = [
        _format_recommendation(tuning, peer),
        outcome or _format_confirmation(tuning),
        _format_model(tuning),
        _format_advice(tuning),
        _format_omissions(tuning),
    ]
    return "\n\n".join(part for part in parts if part)


def format_interval(goal: Goal, value: Interval) -> str:
    """A value with its interval, in the goal's unit."""
    unit, factor = _SHOWN_UNIT.get(goal.unit, (goal.unit, 1.0))
    return f"{value.scale(factor)} {unit}"


def format_level(name: str, level: Plain) -> str:
    """As it is written on the command line."""
    if name == "cpu" and level == AUTO:
        return "auto"
    if name in ("cpu", "numa") and level == ANYWHERE:
        return "any"
    unit = split_unit(name)[1]
    return format_value(level, unit) if unit and isinstance(level, int) else str(level)


def name_option(goal: Goal, field: str) -> str:
    """The option that sets a field: `size` of `size_bytes`."""
    options = options_of(goal.test.settings).items()
    return next((name for name, (set_field, _) in options if set_field == field), field)


def _format_levels(factor: Factor) -> list[str]:
    return [format_level(factor.name, level) for level in factor.levels]


def format_command(tuning: Tuning, peer: str = LOCAL) -> str:
    """The command that measures the recommendation."""
    target = [] if peer in ("", LOCAL) else [peer]
    words = [f"weft {tuning.goal.test.name}", *target, *format_options(tuning.space.options)]
    setting: Mapping[str, Plain] = {**tuning.space.fixed, **tuning.recommendation.setting}
    for field, level in setting.items():
        shown = format_level(field, level)
        if shown != "any":
            words.append(
                f"--{name_option(tuning.goal, field)} {'auto' if shown == 'auto' else level}"
            )
    return " ".join(words)


def _format_recommendation(tuning: Tuning, peer: str) -> str:
    recommendation, space = tuning.recommendation, tuning.space
    default = space.default
    rows = [
        [
            name_option(tuning.goal, f.name),
            format_level(f.name, recommendation.setting[f.name]),
            format_level(f.name, default[f.name]),
            ", ".join(_format_levels(f)),
        ]
        for f in space.factors
    ]
    head = f"recommended for {tuning.goal.name} ({tuning.goal.meaning}) over {tuning.space.over}"
    ended = f"\nended early: {tuning.ended}; from {len(tuning.rows)} points" if tuning.ended else ""
    table = format_table(("choice", "use", "default", "considered"), rows)
    return f"{head}{ended}\n\n{table}\n\n{format_command(tuning, peer)}"


def _format_confirmation(tuning: Tuning) -> str:
    if not tuning.confirmation:
        return f"{format_prediction(tuning)}; not confirmed by a measurement"
    rows = [
        [
            row.role,
            format_interval(tuning.goal, row.predicted),
            format_interval(tuning.goal, row.measured),
            "" if row.role == "recommended" else str(row.better),
            str(len(row.values)),
        ]
        for row in tuning.confirmation
    ]
    table = format_table(("", "predicted", "measured", "recommended is better by", "n"), rows)
    return f"{table}\n\n{_format_confirmed_gain(tuning)}"


def _format_confirmed_gain(tuning: Tuning) -> str:
    space = tuning.space
    if tuning.gain is None and space.key(tuning.recommendation.setting) != space.key(space.default):
        return "not compared with the default: too few rounds have both"
    return format_gain(tuning.gain)


def format_prediction(tuning: Tuning) -> str:
    """What the model expects of the recommendation."""
    predicted = format_interval(tuning.goal, tuning.recommendation.predicted)
    return f"predicted {predicted} (95 % interval)"


def format_gain(gain: Interval | None) -> str:
    """Over the default; None where that is the recommendation."""
    if gain is None:
        return "the default is the recommendation"
    sure = "" if gain.low > 1 else ": may be chance" if gain.high >= 1 else ": a loss"
    return f"{gain} times as good as the default (95 % interval){sure}"


def _format_model(tuning: Tuning) -> str:
    surface = tuning.recommendation.surface
    if surface.fit is None:
        return f"no model was fitted: {surface.why}"
    rows = [
        [p.name, f"{p.value:.4g}", f"{p.standard_error:.2g}", p.unit, p.meaning]
        for p in surface.fit.parameters
    ]
    head = (
        f"model: {surface.fit.form.formula}\n"
        f"error on the points: {surface.fit.error}; left out one by one: {surface.fit.held_out}"
    )
    return (
        f"{head}\n\n{format_table(('parameter', 'value', '± (1 s.e.)', 'unit', 'meaning'), rows)}"
    )


def _format_advice(tuning: Tuning) -> str:
    if tuning.no_advice:
        return f"no advice: {tuning.no_advice}"
    known_rules = [rule for rule in tuning.advice if rule.is_known]
    unknown = len(tuning.advice) - len(known_rules)
    remark = f"{unknown} more rules need other measurements: --json names them, or weft tune FILE"
    table = f"advice\n\n{advice_table(known_rules)}\n\n" if known_rules else ""
    return f"{table}{remark if unknown else ''}".rstrip()


def _format_omissions(tuning: Tuning) -> str:
    return "\n".join(_list_omissions(tuning))


def _list_omissions(tuning: Tuning) -> Iterator[str]:
    for refusal in tuning.space.refusals:
        name = name_option(tuning.goal, refusal.name)
        yield f"{name}: not a choice here, because {refusal.reason}"
    for failed in tuning.failed:
        yield f"not measured: {failed.reason}"
    lossy = sum(not row.is_acceptable for row in tuning.rows)
    if lossy:
        yield f"{lossy} points lost too many messages to be recommended"


def format_plan(prepared: PreparedTuning) -> str:
    """What will be measured."""
    space, goal = prepared.space, prepared.goal
    head = f"tuning {goal.name} over {space.over}: {prepared.schedule.text()}"
    choices = [
        f"  {name_option(goal, f.name)}: {', '.join(_format_levels(f))}" for f in space.factors
    ]
    refusals = [
        f"  {name_option(goal, r.name)}: not a choice here, because {r.reason}"
        for r in space.refusals
    ]
    return "\n".join([head, *choices, *refusals])


def format_stored(stored: StoredTuning) -> str:
    """The tuning, its evidence, what was left out, and every rule, known or not."""
    left_out = "\n".join(f"left out: {sentence}" for sentence in stored.left_out)
    bare = replace(stored.tuning, advice=())
    rules = f"advice\n\n{advice_table(stored.tuning.advice)}"
    text = format_tuning(bare, peer=stored.peer, outcome=_format_stored_outcome(stored))
    parts = [text, _format_support(stored), left_out, rules]
    return "\n\n".join(part for part in parts if part)


def _format_stored_outcome(stored: StoredTuning) -> str:
    """What to expect: of the model, or of the runs that were chosen; and the gain."""
    tuning, runs = stored.tuning, stored.runs
    if runs is None:
        expected = format_prediction(tuning)
    else:
        interval = Interval(value=runs.median, low=runs.low, high=runs.high)
        expected = (
            f"stored: {format_interval(tuning.goal, interval)}, median (range) of {runs.n} runs"
        )
    return f"{expected}\n{_format_stored_gain(stored)}"


def _format_stored_gain(stored: StoredTuning) -> str:
    space = stored.tuning.space
    beyond = find_unreached_factors(space)
    if beyond:
        goal = stored.tuning.goal
        named = ", ".join(
            f"{name_option(goal, f.name)} {format_level(f.name, f.default)}" for f in beyond
        )
        return f"no gain over the default is predicted: the records do not reach its {named}"
    gain = predict_gain(stored.tuning)
    return format_gain(gain) if gain is None else f"predicted: {format_gain(gain)}"


def _format_support(stored: StoredTuning) -> str:
    """The records nearest to the recommendation beside the predictions."""
    tuning = stored.tuning
    names = [factor.name for factor in tuning.space.factors]
    rows = [
        [
            *(format_level(name, near.setting[name]) for name in names),
            _format_value(stored, near.stored),
            _format_value(stored, near.predicted),
            str(near.runs),
        ]
        for near in find_nearest_records(tuning)
    ]
    heads = [*(name_option(tuning.goal, name) for name in names), "stored", "predicted", "runs"]
    table = format_table(heads, rows, left_columns=0)
    chosen = "" if stored.by_model else f"{BY_RECORDS}\n"
    return f"{chosen}{NOT_CONFIRMED}; the records nearest to it:\n\n{table}"


def _format_value(stored: StoredTuning, value: float) -> str:
    shown = format_interval(stored.tuning.goal, Interval(value=value, low=value, high=value))
    number, _, unit = shown.partition(" (")
    return f"{number} {unit.partition(') ')[2]}"
