"""The simulator's half: packet-hops per CPU second, ours and ns-3's in turn.

Entry point: `simulate`. Scenarios are in `bench.scenarios`, one process each.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.figure import Figure
from bench.peers.processes import ask_peer, read_answer
from weft.records.record_text import format_table

HERE = Path(__file__).parent
NS3 = HERE / "peers" / "ns3" / "run.sh"
MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One benchmark: a scenario, its goal, the peer's command and how often to run it."""

    name: str
    goal_millions: float | None
    peer: tuple[str, ...]
    runs: int


LARGEST = "fabric-1944"
CASES = (
    Case(name="S1", goal_millions=25, peer=("s1", "100"), runs=7),
    Case(name="S2-k8", goal_millions=9, peer=("s2", "8"), runs=7),
    Case(name="S2-k16", goal_millions=6, peer=("s2", "16"), runs=5),
    Case(name="S2-k24", goal_millions=5, peer=(), runs=3),
    Case(name=LARGEST, goal_millions=None, peer=(), runs=1),
)
FABRIC_WALL_S, FABRIC_CPU_S, FABRIC_MEMORY_MIB = 60.0, 15.0, 4096.0

HEADS = (
    "scenario",
    "packet-hops",
    "ours M/s",
    "spread",
    "goal",
    "ns-3 M/s",
    "ratio",
    "MiB",
    "ns-3 MiB",
    "wall s",
)
LEGEND = (
    "M/s: million packet-hops per CPU second of the event loop, one core, median of the runs and "
    "their spread.\nS1 is 100 ms simulated ten times over, packet-hops and CPU time summed up.\n"
    "ns-3 3.37, raw point-to-point devices: no credits, no cut-through, window-limited; weft with "
    "all lossless features."
)


def simulate(quick: bool) -> list[Figure]:
    """Run and print all scenarios; `quick`: ours once each, without the peer and the largest."""
    cases = [_quick(case) for case in CASES if case.name != LARGEST] if quick else CASES
    figures: list[Figure] = []
    rows: list[list[str]] = []
    for case in cases:
        ours, theirs = _interleaved(case)
        figures += _figures(case, ours, theirs)
        rows.append(_row(case, ours, theirs))
    print(f"{format_table(HEADS, rows)}\n\n{LEGEND}")
    return figures


def _quick(case: Case) -> Case:
    return replace(case, peer=(), runs=1)


def _interleaved(case: Case) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Ours and the peer's in turn, so that both meet the same noise."""
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    for _ in range(case.runs):
        ours.append(read_answer([sys.executable, "-m", "bench.scenarios", case.name]))
        if case.peer and (answer := ask_peer([str(NS3), *case.peer])):
            theirs.append(answer)
    return ours, theirs


def _median(runs: Sequence[dict[str, Any]], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))


def _figures(case: Case, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[Figure]:
    peer = "ns-3 3.37" if theirs else None
    hops, memory = "packet_hops_per_cpu_s", "peak_rss_mib"
    rate = Figure(
        name=case.name,
        unit="packet-hops/CPU s",
        ours=_median(ours, hops),
        peer=peer,
        theirs=_median(theirs, hops) if theirs else None,
        goal=case.goal_millions * MILLION if case.goal_millions else None,
    )
    whole = case.name == LARGEST
    size = Figure(
        name=f"{case.name}-memory",
        unit="MiB",
        ours=_median(ours, memory),
        peer=peer,
        theirs=_median(theirs, memory) if theirs else None,
        goal=FABRIC_MEMORY_MIB if whole else None,
    )
    if not whole:
        return [rate, size]
    wall = Figure(
        name=f"{case.name}-wall",
        unit="s",
        ours=_median(ours, "wall_s"),
        peer=None,
        theirs=None,
        goal=FABRIC_WALL_S,
    )
    cpu = Figure(
        name=f"{case.name}-cpu",
        unit="CPU s",
        ours=_median(ours, "cpu_s"),
        peer=None,
        theirs=None,
        goal=FABRIC_CPU_S,
    )
    return [rate, size, wall, cpu]


def _row(case: Case, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[str]:
    rates = [run["packet_hops_per_cpu_s"] / MILLION for run in ours]
    mine = statistics.median(rates)
    peer = _median(theirs, "packet_hops_per_cpu_s") / MILLION if theirs else None
    return [
        case.name,
        f"{ours[0]['packet_hops']:,}",
        f"{mine:.2f}",
        f"{min(rates):.2f}–{max(rates):.2f}",
        f"≥ {case.goal_millions:g}" if case.goal_millions else f"< {FABRIC_WALL_S:g} s",
        f"{peer:.2f}" if peer else "",
        f"{mine / peer:.1f}" if peer else "",
        f"{_median(ours, 'peak_rss_mib'):.0f}",
        f"{_median(theirs, 'peak_rss_mib'):.0f}" if theirs else "",
        f"{_median(ours, 'wall_s'):.1f}",
    ]
