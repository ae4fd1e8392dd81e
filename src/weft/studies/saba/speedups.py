"""Figures 4.13 to 4.18 of the Saba thesis: speedups, with workloads of our own.

Each study runs set-ups (`evaluation.cluster`) under several ways to share. Its records hold every
completion time, speedups with their intervals, and the product isolation × mapping × sensitivity.
Published values stand beside ours and are not judged row by row: the workloads are substitutes. A
claim holds if ours is within 10 % of the stated factor, as docs/saba-hypotheses.md lays down. The
figures are of the flow level, where nothing blocks; `saba-packets` has the same regimes packet by
packet. By default a study shows a recorded run; with seeds it runs anew.
Entry points: `SPEEDUPS`, `SPEEDUP_BUILDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, nan
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
    judge_unmodelled,
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
    Evaluation,
    compare_ways,
)
from weft.studies.saba.evaluation.packet_level import CONGESTION_WAY, KINDS, SwitchKind
from weft.studies.saba.evaluation.recording import (
    DISTRIBUTED,
    QUEUE_WAYS,
    RECORDINGS,
    SCALE_RIVALS,
    UNLIMITED,
)
from weft.studies.saba.speedup_cases import (
    OVER_CONGESTION,
    PACKET_SYSTEM,
    SYSTEM,
    Case,
    HomogeneousCase,
    RecordedCase,
    Size,
    build_point,
    read_recording,
)
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, draw_published, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TESTBED_RIVALS = ("fixed caps", *SCALE_RIVALS, "SRPT")
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


def _describe_result(cases: Sequence[Case], result: Result) -> tuple[str, ...]:
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

_WORKLOADS_NOTE = (
    "The workloads are substitutes fitted to what the thesis states of its own "
    "(docs/saba-workloads.md), each profiled."
)


def _build_notes(cases: Sequence[Case], size: Size) -> tuple[str, ...]:
    return (
        "Flow level only: max-min fair rates. Here one lane cannot block, so what lanes gain on a "
        f"switch is missing. {_describe_packet_level(cases[0])}",
        _WORKLOADS_NOTE,
        *_describe_source(cases[0], size),
    )


def _describe_packet_level(case: Case) -> str:
    """Where packets wait behind others, and what Saba brings there."""
    if isinstance(case, HomogeneousCase):
        return "saba-packets has other set-ups packet by packet, not these."
    recording = "packets" if case.setting == "testbed" else "packets-1944"
    totals = [
        f"{compare_ways(_read_packets(recording, case.setting, kind), SABA)} with "
        f"{'virtual output queues' if kind.virtual_output_queues else 'FIFO inputs'}"
        for kind in KINDS
        if kind.is_equal_in_total
    ]
    return f"Packet by packet (saba-{recording}) Saba is at {' and '.join(totals)}."


def _read_packets(recording: str, regime: str, kind: SwitchKind) -> Evaluation:
    name = f"{regime}, {kind}"
    return RecordedCase(setting=name, recording=recording, cell_name=name, ways=PRODUCT).read()


def _describe_source(case: Case, size: Size) -> tuple[str, ...]:
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


def _build_study(
    figure: str,
    title: str,
    cases: Sequence[Case],
    rows: Sequence[_Row],
    size: Size,
    notes: tuple[str, ...] = (),
    claims: tuple[Claim, ...] = (),
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
        claims=(*(_build_claim(row, table) for row in rows if row.published is not None), *claims),
        panels=(
            partial(_draw_ways, cases, rows),
            *(partial(_draw_product, case) for case in with_product[:1]),
        ),
        notes=(*_build_notes(cases, size), *notes),
        remarks=partial(_describe_result, cases),
    )


_TESTBED = RecordedCase(
    setting="testbed", recording="fig4.14", cell_name="testbed", ways=(*PRODUCT, *TESTBED_RIVALS)
)


def _build_scale_case(ways: tuple[str, ...]) -> RecordedCase:
    name = "scale, 1,944 servers"
    return RecordedCase(setting="scale", recording="fig4.18", cell_name=name, ways=ways)


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
    ways = [way for way in _TESTBED.list_ways(size) if way not in (BASELINE, SABA)]
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
    case = replace(_TESTBED, ways=PRODUCT)
    return _build_study("14", "Mean speedup of each cluster set-up", [case], rows, size)


def build_fig4_15(size: Size) -> Study:
    table = find_table("saba-fig4-15")
    cases, rows = [], []
    for data, speedup in zip(*map(table.column, ("data", "speedup")), strict=True):
        setting = f"{data:g} times the data"
        cases.append(HomogeneousCase(setting=setting, data=float(data)))
        rows.append(_name_row(setting, f"{SABA}.speedup", "speedup", float(speedup)))
    why = (
        "here data changes a job's length and not its sensitivity, and at flow level a run scales "
        "with it: the three sizes give the same speedup by construction"
    )
    claims = _claim_unmodelled(table, "Saba gains most at the profiled data size.", why)
    return _build_study("15", "Speedup by data size", cases, rows, size, claims=claims)


def _claim_unmodelled(table: PublishedTable, statement: str, why: str) -> tuple[Claim, ...]:
    judges = {statement: judge_unmodelled(why)}
    return build_claims(table.place, "simulation", SYSTEM, judges)


def build_fig4_16(size: Size) -> Study:
    table = find_table("saba-fig4-16")
    cases, rows = [], []
    for factor, *values in table.rows:
        setting = f"{factor:g} times the nodes"
        nodes = round(8 * float(factor))
        cases.append(HomogeneousCase(setting=setting, nodes=nodes))
        for name, value in zip(table.columns[1:], values, strict=True):
            if isnan(float(value)):
                continue
            quantity = f"{SABA}.speedup" if name == "all" else f"{SABA}.{name}.speedup"
            rows.append(_name_row(setting, quantity, f"speedup of {name}", float(value)))
    why = (
        "here the number of nodes changes a job's length and not its sensitivity, and every port "
        "carries the same jobs: all numbers of nodes give the same speedup by construction"
    )
    claims = _claim_unmodelled(table, "The gain falls from 2 to 4 times the nodes.", why)
    return _build_study("16", "Speedup by number of nodes", cases, rows, size, claims=claims)


def build_fig4_17(size: Size) -> Study:
    table = find_table("saba-fig4-17")
    cases, rows = [], []
    for degree, of_all, of_sql in table.rows:
        setting = f"degree {degree:g}"
        cases.append(HomogeneousCase(setting=setting, degree=round(float(degree))))
        stated = None if isnan(float(of_all)) else float(of_all)
        quantity = f"{SABA}.speedup"
        rows.append(
            _Row(setting=setting, quantity=quantity, label="speedup of all", published=stated)
        )
        rows.append(_name_row(setting, f"{SABA}.SQL.speedup", "speedup of SQL", float(of_sql)))
    return _build_study("17", "Speedup by degree of the models", cases, rows, size)


def build_fig4_18a(size: Size) -> Study:
    stated = dict(zip(*map(find_table("saba-fig4-18a").cells, ("way", "speedup")), strict=True))
    case = _build_scale_case((*PRODUCT, *SCALE_RIVALS))
    rows = [
        _name_row("scale", f"{way}.speedup", f"{way}", float(value))
        for way, value in stated.items()
        if way in case.ways
    ]
    rows += [_name_row("scale", f"{way}.speedup", way) for way in (RANDOM, CLUSTERED, PLACEBO)]
    rows += [
        _name_row("scale", f"{SABA}.{end}", label, float(stated[f"{end} of a workload"]))
        for end, label in (
            ("most", "Saba, workload that gains most"),
            ("least", "Saba, workload that gains least"),
        )
    ]
    return _build_study("18a", "Saba beside its rivals at scale", [case], rows, size)


def _build_scale_study(figure: str, title: str, ways: tuple[str, ...], size: Size) -> Study:
    table = find_table(f"saba-fig4-{figure}")
    stated = dict(zip(*map(table.cells, ("way", "speedup")), strict=True))
    case = _build_scale_case((BASELINE, *ways))
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

_PACKET_QUANTITIES = {
    f"{SABA}.speedup": "Saba over one lane",
    "product.isolation": "isolation",
    "product.mapping": "mapping",
    "product.sensitivity": "sensitivity",
    "Saba over placebo": "Saba over placebo",
}


def _list_packet_cases(recording: str) -> list[RecordedCase]:
    """All cells of a recording: regimes on kinds of switches."""
    return [
        RecordedCase(setting=name, recording=recording, cell_name=name, ways=cell.ways)
        for name, cell in RECORDINGS[recording].cells.items()
    ]


def _list_packet_rows(case: RecordedCase, size: Size) -> list[_Row]:
    regime, stated = case.setting.partition(",")[0], _find_stated(case)
    rows = [
        _Row(
            setting=case.setting,
            quantity=name,
            label=label,
            published=stated.get("all") if name == f"{SABA}.speedup" else None,
            system=PACKET_SYSTEM,
        )
        for name, label in _PACKET_QUANTITIES.items()
    ]
    if CONGESTION_WAY not in case.list_ways(size):
        return rows
    # The thesis's baseline is one lane with congestion control, on one switch of 32 servers.
    label = "Saba over one lane with FECN/BECN"
    over = replace(rows[0], quantity=OVER_CONGESTION, label=label)
    of_workloads = [
        replace(
            rows[0], quantity=f"{SABA}.{name}.speedup", label=f"speedup of {name}", published=value
        )
        for name, value in stated.items()
        if regime == "testbed" and name != "all"
    ]
    return [*rows, over, *of_workloads]


def _find_stated(case: RecordedCase) -> Mapping[str, float]:
    """What the thesis states of these set-ups: Saba's speedup of all jobs, and of workloads."""
    if case.setting.startswith("testbed"):
        table = find_table("saba-fig4-13")
        pairs = zip(*map(table.cells, ("workload", "speedup")), strict=True)
        return {str(name): float(value) for name, value in pairs}
    if case.recording == "packets-1944":
        table = find_table("saba-fig4-18a")
        by_way = dict(zip(*map(table.cells, ("way", "speedup")), strict=True))
        return {"all": float(by_way[SABA])}
    return {}


def _describe_packets(cases: Sequence[RecordedCase]) -> str:
    hops = {case.cell.hops for case in cases}
    scale = next(case.cell for case in cases if case.setting.startswith("scale"))
    return (
        "Set-ups are shrunk, computation and volume together, until their data packets make "
        f"{' or '.join(f'{count:,}' for count in sorted(hops))} hops. The scale is that of "
        f"{scale.servers:,} servers and {scale.jobs} workloads."
    )


def _build_packet_study(recording: str, title: str, figure: str, size: Size) -> Study:
    """Isolation × mapping × sensitivity where packets wait behind others."""
    table, cases = find_table(f"saba-fig4-{figure}"), _list_packet_cases(recording)
    rows = [row for case in cases for row in _list_packet_rows(case, size)]
    text = {case.setting: case.describe(size) for case in cases}
    # Buffers equal in total decide.
    deciding = {
        case.setting for case in cases if case.cell.kind and case.cell.kind.is_equal_in_total
    }
    return Study(
        name=f"saba-{recording}",
        title=title,
        paper=SABA_PAPER,
        place=table.place,
        system=PACKET_SYSTEM,
        points=tuple(build_point(case, size) for case in cases),
        observations=tuple(_build_row(row, table, text[row.setting]) for row in rows),
        claims=tuple(
            _build_claim(row, table)
            for row in rows
            if row.published is not None and row.setting in deciding
        ),
        panels=tuple(
            partial(_draw_product, case)
            for case in cases
            if case.setting in deciding and len(case.ways) == max(len(c.ways) for c in cases)
        ),
        notes=(
            _describe_packets(cases),
            "Sincronia by stages is of the flow level only (saba-fig4.18a).",
            _WORKLOADS_NOTE,
            *_describe_source(cases[0], size),
        ),
        remarks=partial(_describe_result, cases),
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
        _build_scale_study,
        "18c",
        "Speedup by number of queues",
        (*QUEUE_WAYS[:2], SABA, *QUEUE_WAYS[2:], UNLIMITED),
    ),
    "saba-packets": partial(
        _build_packet_study, "packets", "Where the speedup comes from, packet by packet", "13"
    ),
    "saba-packets-1944": partial(
        _build_packet_study,
        "packets-1944",
        "Where the speedup comes from, packet by packet, at 1,944 servers",
        "18a",
    ),
}
SPEEDUPS: tuple[Study, ...] = tuple(build(Size()) for build in SPEEDUP_BUILDERS.values())
