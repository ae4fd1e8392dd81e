"""A tuning for its readers: one record of kind "model", its figures, and text.

The record has scalars and tables with every point. Figures are drawn from the record's tables
alone: predicted beside measured, and curves through the recommendation. The text has the
recommendation, the confirmation, the model, advice and omissions.
Entry points: `build_tuning_record`, `format_tuning` (a run), `build_stored_record`, `format_stored`
(from records), `format_plan`, `tuning_sections` (for a report). Units: in the record; the goal's on
both axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from weft import __version__
from weft.measure.peer.client import LOCAL
from weft.measure.settings.options import options_of
from weft.measure.settings.values import ANYWHERE, AUTO
from weft.plot import Section, figure, to_svg
from weft.plot.html_page import join, picture, pictures, row_table
from weft.plot.style import MUTED, OURS, PALETTE, PUBLISHED, label_log_axis, legend
from weft.records import Plain, Provenance, Quantity, Record, Row, Scalar
from weft.records.record_text import format_table
from weft.tune.rules.advice import advice_rows, advice_table
from weft.tune.rules.evidence import format_options
from weft.tune.search.from_records import (
    StoredTuning,
    find_nearest_records,
    find_unreached_factors,
    predict_gain,
)
from weft.tune.search.over_fabric import PreparedTuning
from weft.tune.search.space import Factor, Goal
from weft.tune.search.surface import Interval, predict_log
from weft.tune.search.tuning import Tuning
from weft.units import format_value, split_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# ---- The record and its figures ---------------------------------------------------------------

NAME = "tune"
NOT_CONFIRMED = "not confirmed by measurement: run the command above, or weft tune PEER"
BY_RECORDS = (
    "chosen by its records: all its runs are better than the model's best is expected to be"
)


def build_tuning_record(tuning: Tuning) -> Record:
    """What was recommended and why, with every point that was measured."""
    return Record(
        kind="model",
        name=NAME,
        settings={"over": tuning.space.over, "goal": tuning.goal.name, **tuning.space.fixed},
        quantities=dict(_quantities(tuning)),
        tables={
            "recommendation": list(_choices(tuning)),
            "confirmation": list(_confirmation(tuning)),
            "parameters": list(_parameters(tuning)),
            "not considered": [
                {"choice": r.name, "reason": r.reason} for r in tuning.space.refusals
            ],
            "advice": advice_rows(tuning.advice),
            "curves": list(_curves(tuning)),
            "points": list(_points(tuning)),
        },
        notes=tuple(_notes(tuning)),
        provenance=Provenance(weft_version=__version__),
    )


def _quantities(tuning: Tuning) -> Iterator[tuple[str, Quantity]]:
    unit = tuning.goal.unit
    yield "predicted", Scalar(tuning.recommendation.predicted.value, unit)
    if tuning.measured is not None:
        yield "measured", Scalar(tuning.measured.value, unit)
    if tuning.gain is not None:
        yield "gain", Scalar(tuning.gain.value, "")
    yield "points", Scalar(len(tuning.rows), "")
    yield "elapsed", Scalar(tuning.elapsed_s, "s")


def _choices(tuning: Tuning) -> Iterator[Row]:
    default = tuning.space.default
    for factor in tuning.space.factors:
        yield {
            "choice": factor.name,
            "use": tuning.recommendation.setting[factor.name],
            "default": default[factor.name],
            "considered": ", ".join(str(level) for level in factor.levels),
        }


def _confirmation(tuning: Tuning) -> Iterator[Row]:
    for row in tuning.confirmation:
        yield {
            "what": row.role,
            **row.setting,
            **_interval("predicted", row.predicted),
            **_interval("measured", row.measured),
            **_interval("recommended is better by", row.better),
            "n": len(row.values),
            "unit": tuning.goal.unit,
        }


def _interval(name: str, interval: Interval) -> dict[str, Plain]:
    return {name: interval.value, f"{name}, low": interval.low, f"{name}, high": interval.high}


def _parameters(tuning: Tuning) -> Iterator[Row]:
    fitted = tuning.recommendation.surface.fit
    for p in fitted.parameters if fitted else ():
        error = p.standard_error if math.isfinite(p.standard_error) else None
        yield {
            "parameter": p.name,
            "value": p.value,
            "standard error": error,
            "unit": p.unit,
            "meaning": p.meaning,
        }


def _curves(tuning: Tuning) -> Iterator[Row]:
    """Predictions over each number, all else as recommended, for figures."""
    surface, chosen = tuning.recommendation.surface, tuning.recommendation.setting
    for factor in surface.space.factors:
        if not factor.is_number:
            continue
        settings = [surface.space.repair({**chosen, factor.name: level}) for level in factor.levels]
        expected = surface.predict(settings)
        model = predict_log(surface.fit, surface.space, settings)
        for place, level in enumerate(factor.levels):
            interval = expected.interval(place)
            yield {
                "choice": factor.name,
                "level": level,
                "expected": interval.value,
                "low": interval.low,
                "high": interval.high,
                "model": math.exp(float(model[place])) if surface.fit else None,
            }


def _points(tuning: Tuning) -> Iterator[Row]:
    """Every point with the model's and the surface's prediction."""
    surface = tuning.recommendation.surface
    settings = [row.setting for row in tuning.rows]
    expected = surface.predict(settings)
    model = predict_log(surface.fit, surface.space, settings)
    for place, row in enumerate(tuning.rows):
        yield {
            "stage": row.stage,
            **row.setting,
            "measured": row.value,
            "expected": expected.interval(place).value,
            "model": math.exp(float(model[place])) if surface.fit else None,
            "lost %": row.lost_percent,
        }


def _notes(tuning: Tuning) -> Iterator[str]:
    surface = tuning.recommendation.surface
    if surface.fit:
        yield f"model: {surface.fit.form.formula}; error {surface.fit.error}"
    else:
        yield f"no model was fitted: {surface.why}"
    if tuning.ended:
        yield f"ended early: {tuning.ended}"
    for failed in tuning.failed:
        yield f"not measured: {failed.reason}"


def build_stored_record(stored: StoredTuning) -> Record:
    """The record of a tuning, with the stored ones nearest to it."""
    record = build_tuning_record(stored.tuning)
    near = [
        {
            **record_near.setting,
            "stored": record_near.stored,
            "predicted": record_near.predicted,
            "runs": record_near.runs,
        }
        for record_near in find_nearest_records(stored.tuning)
    ]
    left_out = [f"left out: {sentence}" for sentence in stored.left_out]
    return replace(
        record,
        quantities={**record.quantities, **dict(_list_stored_quantities(stored))},
        tables={**record.tables, "nearest records": near},
        notes=(*([] if stored.by_model else [BY_RECORDS]), NOT_CONFIRMED, *record.notes, *left_out),
    )


def _list_stored_quantities(stored: StoredTuning) -> Iterator[tuple[str, Quantity]]:
    """What stored values and the model tell beside the prediction."""
    if stored.runs is not None:
        yield "stored", Scalar(stored.runs.median, stored.tuning.goal.unit)
    gain = predict_gain(stored.tuning)
    if gain is not None:
        yield "predicted.gain", Scalar(gain.value, "")
        yield "predicted.gain.low", Scalar(gain.low, "")
        yield "predicted.gain.high", Scalar(gain.high, "")


# ---- Sections of a report -----------------------------------------------------------------------

STAGES = ("spread", "refine", "race", "profile", "confirm", "stored")
DRAWN = ("size_bytes", "depth")


def tuning_sections(records: Sequence[Record]) -> list[Section]:
    """One for each tuning run among the records."""
    return [_section(record) for record in records if record.name == NAME and record.tables]


def _section(record: Record) -> Section:
    title = f"Tuning {record.settings['goal']} over {record.settings['over']}"
    drawings: dict[str, Callable[[Axes], None]] = {
        "expected beside measured": partial(draw_expected_and_measured, record=record)
    }
    swept = {row["choice"] for row in record.tables.get("curves", ())}
    for choice in DRAWN:
        if choice in swept:
            drawings[f"over {split_unit(choice)[0]}"] = partial(
                draw_curve, record=record, choice=choice
            )
    drawn = [
        picture(to_svg(figure(draw), salt=f"{title} {name}", title=f"{title}: {name}"), name)
        for name, draw in drawings.items()
    ]
    shown = [
        row_table(_short(record.tables[name]))
        for name in ("recommendation", "confirmation")
        if record.tables.get(name)
    ]
    return Section(title=title, markup=join([pictures(drawn), *shown]))


def _short(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [
        {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
        for row in rows
    ]


def _unit(record: Record) -> tuple[str, float]:
    unit = record.quantities["predicted"].unit  # type: ignore[union-attr]
    return ("GB/s", 1e-9) if unit == "B/s" else (unit, 1.0)


def draw_expected_and_measured(ax: Axes, record: Record) -> None:
    """Every point, coloured by stage; on the line the prediction is exact."""
    unit, factor = _unit(record)
    points = record.tables["points"]
    for number, stage in enumerate(STAGES):
        of_stage = [row for row in points if str(row["stage"]).startswith(stage)]
        measured = [_number(row["measured"]) * factor for row in of_stage]
        expected = [_number(row["expected"]) * factor for row in of_stage]
        if of_stage:
            ax.plot(measured, expected, "o", markersize=4, color=PALETTE[number], label=stage)
    every = [_number(row[k]) * factor for row in points for k in ("measured", "expected")]
    ends = [min(every), max(every)]
    ax.plot(ends, ends, "-", color=MUTED, linewidth=0.8)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        label_log_axis(axis)
    ax.set_xlabel(f"measured ({unit})")
    ax.set_ylabel(f"expected ({unit})")
    legend(ax)


def draw_curve(ax: Axes, record: Record, choice: str) -> None:
    """Prediction and model over one choice, and the points with all else as recommended."""
    unit, factor = _unit(record)
    rows = [row for row in record.tables["curves"] if row["choice"] == choice]
    x = [_number(row["level"]) for row in rows]
    lows, highs = ([_number(row[k]) * factor for row in rows] for k in ("low", "high"))
    ax.fill_between(x, lows, highs, color=OURS, alpha=0.15, linewidth=0)
    ax.plot(x, [_number(r["expected"]) * factor for r in rows], color=OURS, label="expected, 95 %")
    if all(row["model"] is not None for row in rows):
        model = [_number(row["model"]) * factor for row in rows]
        ax.plot(x, model, "--", color=MUTED, label="model alone")
    points = _on_curve(record, choice)
    ax.plot(
        [_number(row[choice]) for row in points],
        [_number(row["measured"]) * factor for row in points],
        "o",
        markersize=4,
        color=PUBLISHED,
        label="measured",
    )
    ax.set_xscale("log", base=2)
    name, x_unit = split_unit(choice)
    ax.set_xticks(x[:: -(-len(x) // 8)])
    ax.xaxis.minorticks_off()
    ax.xaxis.set_major_formatter(lambda v, _: format_value(round(v), x_unit))
    ax.set_xlabel(name)
    ax.set_ylabel(f"{record.settings['goal']} ({unit})")
    ax.set_ylim(0, 1.06 * max([*highs, *(_number(r["measured"]) * factor for r in points)]))
    legend(ax)


def _on_curve(record: Record, choice: str) -> list[Row]:
    use = {str(row["choice"]): row["use"] for row in record.tables["recommendation"]}
    fixed = {name: level for name, level in use.items() if name != choice}
    return [
        row
        for row in record.tables["points"]
        if all(row[name] == level for name, level in fixed.items())
    ]


def _number(value: Plain) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# ---- Text -------------------------------------------------------------------------------------

_SHOWN_UNIT = {"B/s": ("GB/s", 1e-9)}


def format_tuning(tuning: Tuning, *, peer: str = LOCAL, outcome: str = "") -> str:
    """The recommendation first; `outcome` replaces the confirmation."""
    parts = [
        _format_recommendation(tuning, peer),
        outcome or _format_confirmation(tuning),
        _format_model(tuning),
        _format_advice(tuning),
        "\n".join(_list_omissions(tuning)),
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
