"""Where Saba's speedup comes from, packet by packet: isolation × mapping × sensitivity.

The set-ups of `evaluation.recording`, on switches with FIFO inputs and with virtual output queues;
what the thesis states of its testbed and of 1,944 servers stands beside ours. By default recorded
runs are shown. Entry point: `build_packet_study`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from weft.studies.published import find_table
from weft.studies.saba.evaluation.judgement import SABA
from weft.studies.saba.evaluation.packet_level import CONGESTION_WAY
from weft.studies.saba.evaluation.recording import RECORDINGS
from weft.studies.saba.speedup_cases import (
    OVER_CONGESTION,
    PACKET_SYSTEM,
    RecordedCase,
    Size,
    build_point,
)
from weft.studies.saba.speedup_rows import (
    WORKLOADS_NOTE,
    Row,
    build_claim,
    build_row,
    describe_result,
    describe_source,
    draw_product,
)
from weft.studies.study import SABA_PAPER, Study

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
