"""The flow level's half: CPU time per flow event, ours and SimGrid's in turn, and of many jobs.

S3: the papers' 1,944 servers with links of 7 GB/s, C flows outstanding per server to random others,
exponential sizes of 10 MB on average. An event is a completion with the flow that replaces it. Both
programs read the same trace of flows and paths, and the ends of flows are compared. Then the same
in eight lanes, with other weights at each port, which SimGrid does not have.
S4: twenty jobs of 97 instances shuffle on the same fabric, solved in steps (`bench.flow_jobs`).
Entry point: `flow`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.figure import Figure
from bench.peers.processes import ask_peer, read_answer
from weft.fabric import Fabric
from weft.records.record_text import format_table
from weft.simulate.scenario import scenario_from

SIMGRID = Path(__file__).parent / "peers" / "simgrid" / "run.sh"
RATE, MEAN_BYTES = 7e9, 10e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`per_host` flows outstanding; goal in ms; flows per slot; events of ours and of the peer."""

    per_host: int
    goal_ms: float
    flows: int
    events: int
    peer_events: int


CASES = (
    Case(per_host=1, goal_ms=0.1, flows=48, events=10_000, peer_events=1000),
    Case(per_host=2, goal_ms=0.3, flows=32, events=10_000, peer_events=100),
    Case(per_host=4, goal_ms=0.6, flows=24, events=10_000, peer_events=50),
)
WARM, PEER_WARM, RUNS = 2000, 20, 3
LANES, TOLERANCE, LANE_EVENTS = 8, 1e-3, 1000
JOB_RUNS = ((1, 50.0), (8, 50.0), (8, 25.0))  # queues, step in us
CLOSE = 1e-4  # of an end: SimGrid rounds times and rates to its precision

HEADS = ("flows", "ours ms", "spread", "goal", "ports solved", "SimGrid ms", "ratio", "ends differ")
LEGEND = (
    "ms: CPU time per completion with its replacement, one core, median of the runs and their "
    "spread; ours with\nPython's calls. SimGrid 3.32, CM02, an actor per slot. ends differ: the "
    "largest relative difference of a flow's\nend in both."
)


def flow(quick: bool) -> list[Figure]:
    """Run and print S3; `quick`: ours once, without SimGrid and the largest."""
    rows: list[list[str]] = []
    figures: list[Figure] = []
    walk = _Walk(_build_fabric())
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES[:2] if quick else CASES:
            trace = Path(folder) / f"{case.per_host}.txt"
            trace.write_text(write_trace(case, walk))
            ours, theirs = _interleaved(case, trace, 1 if quick else RUNS, with_peer=not quick)
            difference = compare_ends(ours[0]["ends"], theirs[0]["ends"]) if theirs else None
            rows.append(_row(case, ours, theirs, difference))
            figures.append(_figure(case, ours, theirs))
            lanes = [_run_lanes(trace) for _ in range(1 if quick else RUNS)]
            rows.append(_lane_row(case, lanes))
            figures.append(_lane_figure(case, lanes))
    print(f"{format_table(HEADS, rows)}\n\n{LEGEND}")
    return figures + _run_jobs(JOB_RUNS[1:2] if quick else JOB_RUNS)


def _run_lanes(trace: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.flow_events", str(trace), "200", str(LANE_EVENTS)]
    return read_answer([*command, str(LANES), str(TOLERANCE)])


def _lane_row(case: Case, runs: list[dict[str, Any]]) -> list[str]:
    times = _times(runs)
    return [
        f"{1944 * case.per_host:,} in {LANES} lanes",
        f"{statistics.median(times):.4f}",
        f"{min(times):.4f}–{max(times):.4f}",
        "",
        f"{runs[0]['solutions_per_event']:.0f}",
        *[""] * 3,
    ]


def _lane_figure(case: Case, runs: list[dict[str, Any]]) -> Figure:
    return Figure(
        name=f"S3-{1944 * case.per_host}-lanes",
        unit="CPU ms/flow event",
        ours=statistics.median(_times(runs)),
        peer=None,
        theirs=None,
        goal=None,
        n=len(runs),
        half="flow",
    )


def _run_jobs(cases: Sequence[tuple[int, float]]) -> list[Figure]:
    """S4: one stage of all jobs."""
    runs = {}
    for queues, step_us in cases:
        command = [sys.executable, "-m", "bench.flow_jobs", str(queues), str(step_us)]
        runs[queues, step_us] = read_answer(command)
    rows = [
        [str(queues), f"{step_us:g}", f"{run['cpu_s']:.1f}", f"{run['ms_per_message']:.4f}"]
        for (queues, step_us), run in runs.items()
    ]
    print(f"\n{format_table(('queues', 'step us', 'CPU s', 'CPU ms per message'), rows)}")
    return [
        Figure(
            name=f"S4-{queues}-queues-{step_us:g}-us",
            unit="CPU s/20 jobs of 97",
            ours=run["cpu_s"],
            peer=None,
            theirs=None,
            goal=None,
            half="flow",
        )
        for (queues, step_us), run in runs.items()
    ]


def _build_fabric() -> Fabric:
    link = {"rate": "56 Gb/s", "delay": "0 ns"}
    incast = {"name": "one", "kind": "incast", "from": "h0", "to": "h1", "size": "1 B"}
    fabric = {"topology": "papers_1944", "routing": "ecmp", **link}
    return scenario_from({"duration": "1 s", "fabric": fabric, "traffic": [incast]}).fabric


def write_trace(case: Case, walk: _Walk) -> str:
    """Per slot its flows, each with source, destination, bytes and the links of its path."""
    rng = np.random.default_rng(case.per_host)
    hosts = len(walk.fabric.hosts)
    slots = hosts * case.per_host
    lines = [f"{hosts} {2 * len(walk.fabric.links)} {RATE:.0f} {slots}"]
    for slot in range(slots):
        source = slot % hosts
        lines.append(str(case.flows))
        targets = (source + rng.integers(1, hosts, case.flows)) % hosts
        sizes = np.maximum(1, rng.exponential(MEAN_BYTES, case.flows)).astype(int)
        for target, size in zip(targets.tolist(), sizes.tolist(), strict=True):
            path = walk.find(source, target)
            lines.append(f"{source} {target} {size} {len(path)} {' '.join(map(str, path))}")
    return "\n".join(lines) + "\n"


class _Walk:
    """Paths of a fabric; a switch chooses among its ports by both ends of the flow."""

    def __init__(self, fabric: Fabric) -> None:
        assert fabric.routes
        self.fabric, self.routes = fabric, fabric.routes
        self.links: dict[tuple[int, int], tuple[int, int]] = {}  # of node and port: link, next node
        for number, link in enumerate(fabric.links):
            self.links[link.a.node, link.a.port] = 2 * number, link.b.node
            self.links[link.b.node, link.b.port] = 2 * number + 1, link.a.node
        self.number = {node: i for i, node in enumerate(fabric.switches)}
        self.host_port = {
            node: port for node, port in sorted(self.links) if fabric.nodes[node].kind == "host"
        }

    def find(self, source: int, target: int) -> list[int]:
        node, end = self.fabric.hosts[source], self.fabric.hosts[target]
        port = self.host_port[node]
        path = []
        while True:
            link, node = self.links[node, port]
            path.append(link)
            if node == end:
                return path
            group = self.routes.groups[self.routes.next_hop[self.number[node], target]]
            port = group[(source * 7919 + target * 104729 + node * 31) % 65537 % len(group)]


def compare_ends(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The largest relative difference; flows that only one run has ended yet are left out."""
    mine = {(slot, number): end for slot, number, end in ours}
    pairs = [(mine[slot, n], end) for slot, n, end in theirs if (slot, n) in mine]
    if len(pairs) < 0.9 * len(theirs):
        raise SystemExit(f"S3: only {len(pairs)} of {len(theirs)} flows end in both programs")
    worst = max(abs(float(a) - float(b)) / float(b) for a, b in pairs)
    if worst > CLOSE:
        raise SystemExit(f"S3: a flow's end differs by {worst:.2g} between weft and SimGrid")
    return worst


def _interleaved(
    case: Case, trace: Path, runs: int, *, with_peer: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Ours and the peer's in turn, so that both meet the same noise."""
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    for _ in range(runs):
        command = [sys.executable, "-m", "bench.flow_events"]
        ours.append(read_answer([*command, str(trace), str(WARM), str(case.events)]))
        arguments = [str(trace), str(PEER_WARM), str(case.peer_events)]
        if with_peer and (answer := ask_peer([str(SIMGRID), *arguments])):
            theirs.append(answer)
    return ours, theirs


def _times(runs: Sequence[dict[str, Any]]) -> list[float]:
    return [run["ms_per_event"] for run in runs]


def _figure(case: Case, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Figure:
    return Figure(
        name=f"S3-{1944 * case.per_host}",
        unit="CPU ms/flow event",
        ours=statistics.median(_times(ours)),
        peer="SimGrid 3.32" if theirs else None,
        theirs=statistics.median(_times(theirs)) if theirs else None,
        goal=case.goal_ms,
        n=len(ours),
        half="flow",
    )


def _row(
    case: Case, ours: list[dict[str, Any]], theirs: list[dict[str, Any]], difference: float | None
) -> list[str]:
    times = _times(ours)
    mine = statistics.median(times)
    peer = statistics.median(_times(theirs)) if theirs else None
    return [
        f"{1944 * case.per_host:,}",
        f"{mine:.4f}",
        f"{min(times):.4f}–{max(times):.4f}",
        f"≤ {case.goal_ms:g}",
        f"{ours[0]['solutions_per_event']:.0f}",
        f"{peer:.2f}" if peer else "",
        f"{peer / mine:.0f}" if peer else "",
        f"{difference:.1e}" if difference is not None else "",
    ]
