"""Figures 4.13 to 4.18 of the Saba thesis: speedups, with workloads of our own.

Each study runs set-ups (`evaluation.cluster`) under several ways to share. Its records hold every
completion time, speedups with their intervals, and the product isolation × mapping × sensitivity.
Published values stand beside ours and are not judged row by row: the workloads are substitutes. A
claim holds if ours is within 10 % of the stated factor, as docs/saba-hypotheses.md lays down. The
figures run at flow level, where nothing blocks; `saba-packets` runs the same regimes packet by
packet. Entry points: `SPEEDUPS`, `SPEEDUP_BUILDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, nan
from typing import TYPE_CHECKING

import numpy as np

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
from weft.studies.published import PublishedTable, find_table
from weft.studies.saba.evaluation.judgement import (
    BASELINE,
    CLUSTERED,
    PLACEBO,
    PRODUCT,
    RANDOM,
    SABA,
    Estimate,
)
from weft.studies.saba.evaluation.packet_level import (
    CONGESTION_WAY,
    KINDS,
    PACKET_WAYS,
    WHOLE_FABRIC_HOPS,
)
from weft.studies.saba.speedup_cases import (
    OVER_CONGESTION,
    PACKET_SYSTEM,
    SYSTEM,
    Case,
    Size,
    build_point,
)
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, draw_published, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RIVALS = ("lane per workload", "Homa", "Sincronia", "SRPT")
QUEUE_WAYS = ("Saba, 2 queues", "Saba, 4 queues", "Saba", "Saba, 16 queues")
UNLIMITED, DISTRIBUTED = "Saba, unlimited queues", "Saba, distributed"
AS_PUBLISHED = 0.1


# ---- Rows and claims --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A stated value: where ours is, and what it is called."""

    setting: str
    quantity: str  # of the record
    label: str
    published: float | None
    unit: str = ""
    system: str = SYSTEM


def _build_row(row: _Row, table: PublishedTable, size_text: str) -> Observation:
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


def _read(records: Records, row: _Row) -> float:
    record = records[row.setting]
    if row.quantity not in record.quantities:
        raise Unavailable(f"{row.label}: no such job was drawn; use more seeds")
    return scalar_in(record, row.quantity, row.unit)


def _read_or_nan(records: Records, row: _Row) -> float:
    """For drawings."""
    try:
        return _read(records, row)
    except Unavailable:
        return nan


def _build_claim(row: _Row, table: PublishedTable) -> Claim:
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


def _describe_products(cases: Sequence[Case], result: Result) -> tuple[str, ...]:
    return tuple(line for case in cases for line in _describe_product(case, result))


def _describe_product(case: Case, result: Result) -> tuple[str, ...]:
    """The causes of the total, and the verdict of this set-up by the rules."""
    record = result.records.get(case.setting)
    if record is None or "product.sensitivity.low" not in record.quantities:
        return ()

    def read(name: str) -> Estimate:
        value, low, high = (scalar_in(record, f"{name}{end}", "") for end in ("", ".low", ".high"))
        return Estimate(value=value, low=low, high=high)

    total, isolation = read(f"{SABA}.speedup"), read("product.isolation")
    mapping, sensitivity = read("product.mapping"), read("product.sensitivity")
    placebo = read("Saba over placebo")
    return (
        f"{case.setting}: {total} = isolation {isolation} × mapping {mapping} × sensitivity "
        f"{sensitivity}; over the placebo {placebo}.",
    )


# ---- Drawings ---------------------------------------------------------------------------------


def _draw_ways(cases: Sequence[Case], rows: Sequence[_Row], ax: Axes, result: Result) -> None:
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


def _draw_product(case: Case, ax: Axes, result: Result) -> None:
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


# ---- Studies ----------------------------------------------------------------------------------

_NOTES = (
    "Flow level only: max-min fair rates; nothing blocks, so one lane is ideal, and what lanes "
    "gain on a switch against head-of-line blocking is missing.",
    "The workloads are substitutes fitted to what the thesis states of its own "
    "(docs/saba-workloads.md), each profiled.",
)
_SMALL = "Small by default; --seeds N runs N set-ups at the thesis's size."


def _build_study(
    figure: str,
    title: str,
    cases: Sequence[Case],
    rows: Sequence[_Row],
    size: Size,
    notes: tuple[str, ...] = (),
) -> Study:
    table = find_table(f"saba-fig4-{figure}")
    text = {case.setting: case.describe(size) for case in cases}
    with_product = [case for case in cases if set(case.ways) >= set(PRODUCT)]
    return Study(
        name=f"saba-fig4.{figure}",
        title=title,
        paper=SABA_PAPER,
        place=table.place,
        system=SYSTEM,
        points=tuple(build_point(case, size) for case in cases),
        observations=tuple(_build_row(row, table, text[row.setting]) for row in rows),
        claims=tuple(_build_claim(row, table) for row in rows if row.published is not None),
        panels=(
            partial(_draw_ways, cases, rows),
            *(partial(_draw_product, case) for case in with_product[:1]),
        ),
        notes=(*_NOTES, *notes, *(() if size.is_full else (_SMALL,))),
        remarks=partial(_describe_products, with_product),
    )


_TESTBED = Case(setting="testbed", kind="testbed", few=2, ways=(*PRODUCT, "fixed caps", *RIVALS))
_SCALE = Case(setting="scale", kind="scale", few=2, ways=(*PRODUCT, *RIVALS[:3]))


def build_fig4_13(size: Size) -> Study:
    stated = dict(zip(*map(find_table("saba-fig4-13").cells, ("workload", "speedup")), strict=True))
    rows = [
        _Row(
            setting="testbed",
            quantity=f"{SABA}.speedup" if name == "all" else f"{SABA}.{name}.speedup",
            label=f"speedup of {name}",
            published=float(value),
        )
        for name, value in stated.items()
    ]
    ways = [way for way in _TESTBED.ways if way not in (BASELINE, SABA)]
    rows += [_name_row("testbed", f"{way}.speedup", way) for way in ways]
    return _build_study("13", "Speedup of workloads on the testbed", [_TESTBED], rows, size)


def _name_row(setting: str, quantity: str, label: str, published: float | None = None) -> _Row:
    return _Row(setting=setting, quantity=quantity, label=label, published=published)


def build_fig4_14(size: Size) -> Study:
    stated = dict(zip(*map(find_table("saba-fig4-14").cells, ("of", "speedup")), strict=True))
    rows = [
        _Row(
            setting="testbed",
            quantity=f"set-up.{name.partition('_')[0]}",
            label={
                "least": "least mean speedup of a set-up",
                "most": "greatest mean speedup of a set-up",
                "losing_percent": "set-ups that lose",
            }[name],
            published=float(value),
            unit="%" if name == "losing_percent" else "",
        )
        for name, value in stated.items()
    ]
    return _build_study("14", "Mean speedup of each cluster set-up", [_TESTBED], rows, size)


def build_fig4_15(size: Size) -> Study:
    table = find_table("saba-fig4-15")
    cases, rows = [], []
    for data, speedup in zip(*map(table.column, ("data", "speedup")), strict=True):
        setting = f"{data:g} times the data"
        cases.append(Case(setting=setting, kind="same", few=10, ways=PRODUCT, data=float(data)))
        rows.append(_name_row(setting, f"{SABA}.speedup", "speedup", float(speedup)))
    note = (
        "Here data changes a job's length and not its sensitivity, and at flow level a run scales "
        "with it: the three sizes give the same speedup by construction.",
    )
    return _build_study("15", "Speedup by data size", cases, rows, size, note)


def build_fig4_16(size: Size) -> Study:
    table = find_table("saba-fig4-16")
    cases, rows = [], []
    for factor, *values in table.rows:
        setting = f"{factor:g} times the nodes"
        nodes = round(8 * float(factor))
        cases.append(Case(setting=setting, kind="same", few=10, ways=PRODUCT, nodes=nodes))
        for name, value in zip(table.columns[1:], values, strict=True):
            if isnan(float(value)):
                continue
            quantity = f"{SABA}.speedup" if name == "all" else f"{SABA}.{name}.speedup"
            rows.append(_name_row(setting, quantity, f"speedup of {name}", float(value)))
    note = (
        "Here the number of nodes changes a job's length and not its sensitivity, and every port "
        "carries the same jobs: all numbers of nodes give the same speedup by construction.",
    )
    return _build_study("16", "Speedup by number of nodes", cases, rows, size, note)


def build_fig4_17(size: Size) -> Study:
    table = find_table("saba-fig4-17")
    cases, rows = [], []
    for degree, of_all, of_sql in table.rows:
        setting = f"degree {degree:g}"
        case = Case(setting=setting, kind="same", few=10, ways=PRODUCT, degree=round(float(degree)))
        cases.append(case)
        stated = None if isnan(float(of_all)) else float(of_all)
        quantity = f"{SABA}.speedup"
        rows.append(
            _Row(setting=setting, quantity=quantity, label="speedup of all", published=stated)
        )
        rows.append(_name_row(setting, f"{SABA}.SQL.speedup", "speedup of SQL", float(of_sql)))
    return _build_study("17", "Speedup by degree of the models", cases, rows, size)


def build_fig4_18a(size: Size) -> Study:
    stated = dict(zip(*map(find_table("saba-fig4-18a").cells, ("way", "speedup")), strict=True))
    rows = [
        _name_row("scale", f"{way}.speedup", f"{way}", float(value))
        for way, value in stated.items()
        if way in _SCALE.ways
    ]
    rows += [_name_row("scale", f"{way}.speedup", way) for way in (RANDOM, CLUSTERED, PLACEBO)]
    rows += [
        _name_row("scale", f"{SABA}.{end}", label, float(stated[f"{end} of a workload"]))
        for end, label in (
            ("most", "Saba, workload that gains most"),
            ("least", "Saba, workload that gains least"),
        )
    ]
    return _build_study("18a", "Saba beside its rivals at scale", [_SCALE], rows, size)


def _build_scale_study(figure: str, title: str, ways: tuple[str, ...], size: Size) -> Study:
    table = find_table(f"saba-fig4-{figure}")
    stated = dict(zip(*map(table.cells, ("way", "speedup")), strict=True))
    case = Case(setting="scale", kind="scale", few=2, ways=(BASELINE, *ways))
    rows = [
        _Row(
            setting="scale",
            quantity=f"{way}.speedup",
            label=way,
            published=float(stated[way]) if way in stated else None,
        )
        for way in ways
    ]
    return _build_study(figure, title, [case], rows, size)


# ---- Packet by packet -------------------------------------------------------------------------

_REGIMES = ("testbed", "scale", "favourable")
_PACKET_QUANTITIES = {
    f"{SABA}.speedup": "Saba over one lane",
    "product.isolation": "isolation",
    "product.mapping": "mapping",
    "product.sensitivity": "sensitivity",
    "Saba over placebo": "Saba over placebo",
}
_PACKET_NOTES = (
    "Set-ups are shrunk, computation and volume together, until their packets make half a "
    "million hops (saba-packets-1944: 20 million). The scale is that of 72 servers and 12 "
    "workloads (saba-packets-1944: 1,944 and 20).",
    "Sincronia by stages runs at flow level only (saba-fig4.18a).",
)


def _list_packet_cases(size: Size) -> list[Case]:
    """All regimes on all kinds of switches; by default two regimes on two kinds, few ways."""
    regimes = _REGIMES if size.is_full else _REGIMES[::2]
    return [
        Case(
            setting=f"{regime}, {kind}",
            kind=regime,
            few=1,
            ways=PACKET_WAYS if size.is_full and kind.is_equal_in_total else PRODUCT,
            switches=kind,
        )
        for regime in regimes
        for kind in KINDS
        if size.is_full or kind.is_equal_in_total
    ]


def _list_whole_fabric_cases(size: Size) -> list[Case]:  # noqa: ARG001
    """Fig. 4.18a's set-ups on switches that block and on switches that do not."""
    return [
        Case(
            setting=f"scale, {kind}",
            kind="scale",
            few=1,
            ways=PRODUCT,
            switches=kind,
            hops=WHOLE_FABRIC_HOPS,
        )
        for kind in KINDS
        if kind.is_equal_in_total
    ]


def _list_packet_rows(cases: Sequence[Case], stated: float) -> list[_Row]:
    rows = [
        replace(_name_row(case.setting, name, label), system=PACKET_SYSTEM)
        for case in cases
        for name, label in _PACKET_QUANTITIES.items()
    ]
    return rows + [
        _Row(
            setting=case.setting,
            quantity=OVER_CONGESTION,
            label="Saba over one lane with FECN/BECN",
            published=stated if case.kind == "testbed" else None,
            system=PACKET_SYSTEM,
        )
        for case in cases
        if CONGESTION_WAY in case.ways
    ]


def _build_packet_study(
    name: str, title: str, figure: str, list_cases: Callable[[Size], list[Case]], size: Size
) -> Study:
    """Isolation × mapping × sensitivity where packets wait behind others."""
    table, testbed = find_table(f"saba-fig4-{figure}"), find_table("saba-fig4-13")
    cases = list_cases(size)
    # The thesis's baseline is one lane with congestion control, on one switch of 32 servers.
    stated = dict(zip(*map(testbed.cells, ("workload", "speedup")), strict=True))["all"]
    rows = _list_packet_rows(cases, float(stated))
    text = {case.setting: case.describe(size) for case in cases}
    return Study(
        name=name,
        title=title,
        paper=SABA_PAPER,
        place=table.place,
        system=PACKET_SYSTEM,
        points=tuple(build_point(case, size) for case in cases),
        observations=tuple(_build_row(row, table, text[row.setting]) for row in rows),
        claims=tuple(_build_claim(row, table) for row in rows if row.published is not None),
        panels=tuple(partial(_draw_product, case) for case in cases),
        notes=(*_PACKET_NOTES, _NOTES[1], *(() if size.is_full else (_SMALL,))),
        remarks=partial(_describe_products, cases),
    )


BuildStudy = Callable[[Size], Study]

SPEEDUP_BUILDERS: Mapping[str, BuildStudy] = {
    "saba-fig4.13": build_fig4_13,
    "saba-fig4.14": build_fig4_14,
    "saba-fig4.15": build_fig4_15,
    "saba-fig4.16": build_fig4_16,
    "saba-fig4.17": build_fig4_17,
    "saba-fig4.18a": build_fig4_18a,
    "saba-fig4.18b": partial(
        _build_scale_study, "18b", "Centralised and distributed controller", (SABA, DISTRIBUTED)
    ),
    "saba-fig4.18c": partial(
        _build_scale_study, "18c", "Speedup by number of queues", (*QUEUE_WAYS, UNLIMITED)
    ),
    "saba-packets": partial(
        _build_packet_study,
        "saba-packets",
        "Where the speedup comes from, packet by packet",
        "13",
        _list_packet_cases,
    ),
    "saba-packets-1944": partial(
        _build_packet_study,
        "saba-packets-1944",
        "Where the speedup comes from, packet by packet, at 1,944 servers",
        "18a",
        _list_whole_fabric_cases,
    ),
}
SPEEDUPS: tuple[Study, ...] = tuple(build(Size()) for build in SPEEDUP_BUILDERS.values())
