"""Rows, claims, notes and drawings of the speedup studies.

A claim holds if ours is within 10 % of the stated factor, as docs/saba-hypotheses.md lays down.
Entry points: `Row`, `build_row`, `build_claim`, `describe_result`, `describe_source`, `draw_ways`,
`draw_product`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import TYPE_CHECKING

import numpy as np

from weft.records import Record
from weft.studies.observation import (
    ANOTHER_SYSTEM,
    Claim,
    Observation,
    Records,
    Unavailable,
    Verdict,
    build_claims,
    scalar_in,
)
from weft.studies.published import PublishedTable
from weft.studies.saba.evaluation.judgement import BASELINE, SABA, Estimate
from weft.studies.saba.speedup_cases import SYSTEM, Case, HomogeneousCase, Size, read_recording
from weft.studies.study import Result
from weft.studies.table_curves import COLOURS, draw_published, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AS_PUBLISHED = 0.1


# ---- Rows and claims --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A stated value: where ours is, and what it is called."""

    setting: str
    quantity: str  # of the record
    label: str
    published: float | None
    unit: str = ""
    system: str = SYSTEM


def build_row(row: Row, table: PublishedTable, size_text: str) -> Observation:
    return Observation(
        setting=f"{row.setting} ({size_text})",
        quantity=row.label,
        unit=row.unit or "1",
        kind="value",
        read=lambda records: _read(records, row),
        published=row.published,
        place=table.place,
        system=row.system,
        tolerance=ANOTHER_SYSTEM,
    )


def _read(records: Records, row: Row) -> float:
    record = records[row.setting]
    if row.quantity not in record.quantities:
        raise Unavailable(f"{row.label}: no such job was drawn; use more seeds")
    return scalar_in(record, row.quantity, row.unit)


def _read_or_nan(records: Records, row: Row) -> float:
    """For drawings."""
    try:
        return _read(records, row)
    except Unavailable:
        return nan


def build_claim(row: Row, table: PublishedTable) -> Claim:
    published = row.published
    assert published is not None

    def judge(records: Records) -> Verdict:
        ours = _read(records, row)
        holds = abs(ours / published - 1) <= AS_PUBLISHED
        return Verdict(holds=holds, evidence=f"ours {ours:.3g}, stated {published:g}")

    (claim,) = build_claims(
        table.place,
        "simulation",
        row.system,
        {f"{row.label}, {row.setting}: {published:g} within 10 %": judge},
    )
    return claim


def describe_result(cases: Sequence[Case], result: Result) -> tuple[str, ...]:
    lines = [(_describe_product(case, result), _describe_speedups(case, result)) for case in cases]
    return tuple(line for both in lines for group in both for line in group)


def _read_estimate(record: Record, name: str) -> Estimate:
    value, low, high = (scalar_in(record, f"{name}{end}", "") for end in ("", ".low", ".high"))
    return Estimate(value=value, low=low, high=high)


def _describe_speedups(case: Case, result: Result) -> tuple[str, ...]:
    """Every way's speedup with its interval."""
    record = result.records.get(case.setting)
    if record is None:
        return ()
    ways = [
        f"{way} {_read_estimate(record, f'{way}.speedup')}"
        for way in case.ways
        if way != BASELINE and f"{way}.speedup.low" in record.quantities
    ]
    return (f"{case.setting}, over one lane: {', '.join(ways)}.",) if ways else ()


def _describe_product(case: Case, result: Result) -> tuple[str, ...]:
    """The causes of the total, and the verdict of this set-up by the rules."""
    record = result.records.get(case.setting)
    if record is None or "product.sensitivity.low" not in record.quantities:
        return ()
    read = partial(_read_estimate, record)
    total, isolation = read(f"{SABA}.speedup"), read("product.isolation")
    mapping, sensitivity = read("product.mapping"), read("product.sensitivity")
    placebo = read("Saba over placebo")
    return (
        f"{case.setting}: {total} = isolation {isolation} × mapping {mapping} × sensitivity "
        f"{sensitivity}; over the placebo {placebo}.",
    )


def name_row(setting: str, quantity: str, label: str, published: float | None = None) -> Row:
    return Row(setting=setting, quantity=quantity, label=label, published=published)


WORKLOADS_NOTE = (
    "The workloads are substitutes fitted to what the thesis states of its own "
    "(docs/saba-workloads.md), each profiled."
)


def describe_source(case: Case, size: Size) -> tuple[str, ...]:
    """Whether a recorded run is shown, and how to run others."""
    if size.seeds is not None:
        return ()
    if isinstance(case, HomogeneousCase):
        return (f"{case.few} set-ups by default; --seeds N runs N.",)
    record = read_recording(case.recording)
    return (
        f"A recorded run of {record['date']}: src/weft/studies/saba/recorded/{case.recording}.json "
        f"({record['command']}). --seeds N runs N set-ups anew.",
    )


# ---- Drawings ---------------------------------------------------------------------------------


def draw_ways(cases: Sequence[Case], rows: Sequence[Row], ax: Axes, result: Result) -> None:
    """A bar for each row: ours, and the stated value as a mark."""
    shown = [row for row in rows if not row.unit]
    places = np.arange(len(shown))
    ours = [_read_or_nan(result.records, row) for row in shown]
    ax.barh(places, ours, color=COLOURS[0], label="ours")
    stated = [(row.published, place) for place, row in enumerate(shown) if row.published]
    draw_published(ax, [(x, float(y)) for x, y in stated if x], "published", "o", 7)
    ax.axvline(1, color="0.5", linewidth=0.8)
    several = len(cases) > 1
    labels = [f"{row.label}, {row.setting}" if several else row.label for row in shown]
    ax.set_yticks(places, labels)
    ax.invert_yaxis()
    name_axes(ax, "speedup over one lane", "")


def draw_product(case: Case, ax: Axes, result: Result) -> None:
    """The factors and their intervals; the first three multiply to the total."""
    names = {
        "isolation": "product.isolation",
        "mapping": "product.mapping",
        "sensitivity": "product.sensitivity",
        "total": f"{SABA}.speedup",
        "over the placebo": "Saba over placebo",
    }
    record = result.records[case.setting]
    labels = []
    for place, (label, name) in enumerate(names.items()):
        value = scalar_in(record, name, "")
        labels.append(f"{label} {value:.3f}")
        ax.plot(value, place, "o", color=COLOURS[0])
        if f"{name}.low" in record.quantities:
            low, high = (scalar_in(record, f"{name}.{end}", "") for end in ("low", "high"))
            ax.plot([low, high], [place, place], color=COLOURS[0])
    ax.axvline(1, color="0.5", linewidth=0.8)
    ax.set_yticks(range(len(names)), labels)
    ax.set_ylim(len(names) - 0.5, -0.5)
    name_axes(ax, f"factor of the speedup, with 95 % interval\n{case.setting}", "")
