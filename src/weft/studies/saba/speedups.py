"""Figures 4.13 to 4.18 of the Saba thesis: speedups, with workloads of our own.

Each study runs set-ups (`evaluation.cluster`) under several ways to share. Its records hold every
completion time, speedups with their intervals, and the product isolation × mapping × sensitivity.
Published values stand beside ours and are not judged row by row: the workloads are substitutes. The
figures are of the flow level, where nothing blocks.

`saba-packets` has the same regimes packet by packet, on switches with FIFO inputs and with virtual
output queues; what the thesis states of its testbed and of 1,944 servers stands beside ours. By
default a study shows a recorded run; with seeds it runs anew.
Entry points: `SPEEDUPS`, `SPEEDUP_BUILDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isnan

from weft.studies.observation import Claim, build_claims, judge_unmodelled
from weft.studies.published import PublishedTable, find_table
from weft.studies.saba.evaluation.judgement import (
    BASELINE,
    CLUSTERED,
    PLACEBO,
    PRODUCT,
    RANDOM,
    SABA,
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
    WORKLOADS_NOTE,
    Case,
    HomogeneousCase,
    RecordedCase,
    Row,
    Size,
    build_claim,
    build_point,
    build_row,
    describe_result,
    describe_source,
    draw_product,
    draw_ways,
    name_row,
)
from weft.studies.study import SABA_PAPER, Study

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


def _list_packet_rows(case: RecordedCase, size: Size) -> list[Row]:
    regime, stated = case.setting.partition(",")[0], _find_stated(case)
    rows = [
        Row(
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


def build_packet_study(recording: str, title: str, figure: str, size: Size) -> Study:
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
        observations=tuple(build_row(row, table, text[row.setting]) for row in rows),
        claims=tuple(
            build_claim(row, table)
            for row in rows
            if row.published is not None and row.setting in deciding
        ),
        panels=tuple(
            partial(draw_product, case)
            for case in cases
            if case.setting in deciding and len(case.ways) == max(len(c.ways) for c in cases)
        ),
        notes=(
            _describe_packets(cases),
            "Sincronia by stages is of the flow level only (saba-fig4.18a).",
            WORKLOADS_NOTE,
            *describe_source(cases[0], size),
        ),
        remarks=partial(describe_result, cases),
    )


# ---- Figures ----------------------------------------------------------------------------------

TESTBED_RIVALS = ("fixed caps", *SCALE_RIVALS, "SRPT")


def _build_notes(cases: Sequence[Case], size: Size) -> tuple[str, ...]:
    return (
        "Flow level only: max-min fair rates. Here one lane cannot block, so what lanes gain on a "
        f"switch is missing. {_describe_packet_level(cases[0])}",
        WORKLOADS_NOTE,
        *describe_source(cases[0], size),
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


def _build_study(
    figure: str,
    title: str,
    cases: Sequence[Case],
    rows: Sequence[Row],
    size: Size,
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
        observations=tuple(build_row(row, table, text[row.setting]) for row in rows),
        claims=(*(build_claim(row, table) for row in rows if row.published is not None), *claims),
        panels=(
            partial(draw_ways, cases, rows),
            *(partial(draw_product, case) for case in with_product[:1]),
        ),
        notes=_build_notes(cases, size),
        remarks=partial(describe_result, cases),
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
        Row(
            setting="testbed",
            quantity=f"{SABA}.speedup" if name == "all" else f"{SABA}.{name}.speedup",
            label=f"speedup of {name}",
            published=float(value),
        )
        for name, value in stated.items()
    ]
    ways = [way for way in _TESTBED.list_ways(size) if way not in (BASELINE, SABA)]
    rows += [name_row("testbed", f"{way}.speedup", way) for way in ways]
    return _build_study("13", "Speedup of workloads on the testbed", [_TESTBED], rows, size)


def build_fig4_14(size: Size) -> Study:
    stated = dict(zip(*map(find_table("saba-fig4-14").cells, ("of", "speedup")), strict=True))
    rows = [
        Row(
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
        rows.append(name_row(setting, f"{SABA}.speedup", "speedup", float(speedup)))
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
            rows.append(name_row(setting, quantity, f"speedup of {name}", float(value)))
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
            Row(setting=setting, quantity=quantity, label="speedup of all", published=stated)
        )
        rows.append(name_row(setting, f"{SABA}.SQL.speedup", "speedup of SQL", float(of_sql)))
    return _build_study("17", "Speedup by degree of the models", cases, rows, size)


def build_fig4_18a(size: Size) -> Study:
    stated = dict(zip(*map(find_table("saba-fig4-18a").cells, ("way", "speedup")), strict=True))
    case = _build_scale_case((*PRODUCT, *SCALE_RIVALS))
    rows = [
        name_row("scale", f"{way}.speedup", f"{way}", float(value))
        for way, value in stated.items()
        if way in case.ways
    ]
    rows += [name_row("scale", f"{way}.speedup", way) for way in (RANDOM, CLUSTERED, PLACEBO)]
    rows += [
        name_row("scale", f"{SABA}.{end}", label, float(stated[f"{end} of a workload"]))
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
        Row(
            setting="scale",
            quantity=f"{way}.speedup",
            label=way,
            published=float(stated[way]) if way in stated else None,
        )
        for way in ways
        if way in stated or way in case.list_ways(size)
    ]
    return _build_study(figure, title, [case], rows, size)


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
        build_packet_study, "packets", "Where the speedup comes from, packet by packet", "13"
    ),
    "saba-packets-1944": partial(
        build_packet_study,
        "packets-1944",
        "Where the speedup comes from, packet by packet, at 1,944 servers",
        "18a",
    ),
}
SPEEDUPS: tuple[Study, ...] = tuple(build(Size()) for build in SPEEDUP_BUILDERS.values())
