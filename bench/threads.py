"""Threads of one simulation: two beside one, and on paper the speedup on more cores.

The accounts of a run are the events of each window and partition. On paper, a window takes as long
as the thread with most events, and a meeting of all threads. The time of an event is that of the
run on one thread; a meeting of two threads is measured (the fastest of many batches), one of N is
taken to cost log2(N) times as much. Entry point: `threads`.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.figure import Figure
from bench.peers.processes import read_answer
from bench.scenarios import BENCHES, one_run
from weft._core import Status, measure_barrier_ns
from weft.records.record_text import format_table
from weft.simulate import scenario_from
from weft.simulate.run import build_simulation

CASES = {"S2-k16": 5, "S2-k24": 3}  # runs of each number of threads
GOALS = {"S2-k16": 1.2}
CORES = (4, 16, 64)
MEETINGS, BATCHES = 1000, 100  # some batches run without another program between
HEADS = (
    "scenario",
    "partitions",
    "window ns",
    "windows",
    "events a window",
    "ns an event",
    "2 threads",
    "goal",
    *(f"{cores} cores" for cores in CORES),
    "critical path",
)


def threads(quick: bool) -> list[Figure]:
    """Run and print; `quick`: the smaller fabric once."""
    cases = {"S2-k16": 1} if quick else CASES
    meeting_ns = min(measure_barrier_ns(2, MEETINGS) for _ in range(BATCHES))
    figures, rows = [], []
    for name, runs in cases.items():
        rounds = [(_run(name, 1), _run(name, 2)) for _ in range(runs)]
        ratios = [one["wall_s"] / two["wall_s"] for one, two in rounds]
        if any(one["digest"] != two["digest"] for one, two in rounds):
            raise SystemExit(f"{name}: two threads give other results than one")
        account = _account(name)
        event_ns = 1e9 * statistics.median(one["cpu_s"] for one, _ in rounds) / account.sum()
        speedups = [estimate_speedup(account, n, event_ns, meeting_ns) for n in CORES]
        bound = float(account.sum() / account.max(axis=1).sum())
        ratio = statistics.median(ratios)
        rows.append(_row(name, account, event_ns, ratio, [*speedups, bound]))
        figures.append(_figure(f"{name}, 2 threads over 1", ratio, GOALS.get(name), runs))
        for cores, speedup in zip(CORES, speedups, strict=True):
            figures.append(_figure(f"{name}, {cores} cores, on paper", speedup, None, 1))
    print(f"threads of one run, times as fast\n\n{format_table(HEADS, rows)}\n")
    print(f"A meeting of two threads took {meeting_ns:.0f} ns, in the fastest batch.\n")
    return figures


def estimate_speedup(
    account: NDArray[np.uint32], cores: int, event_ns: float, meeting_ns: float
) -> float:
    """Times as fast as one core, by the events of each window and partition."""
    shares = _share_out(account.sum(axis=0), cores)
    loads = np.stack([account[:, share].sum(axis=1) for share in shares], axis=1)
    meetings_ns = len(account) * meeting_ns * math.log2(cores)
    return float(account.sum() * event_ns / (loads.max(axis=1).sum() * event_ns + meetings_ns))


def _share_out(totals: NDArray[np.uint64], cores: int) -> list[list[int]]:
    """Partitions of each core, as the simulator shares them out."""
    shares: list[list[int]] = [[] for _ in range(min(cores, len(totals)))]
    loads = [0] * len(shares)
    for partition in np.argsort(-totals.astype(np.int64), kind="stable").tolist():
        least = loads.index(min(loads))
        shares[least].append(partition)
        loads[least] += int(totals[partition]) + 1
    return shares


def _account(name: str) -> NDArray[np.uint32]:
    """Events of each window and partition."""
    simulation, _ = build_simulation(scenario_from(BENCHES[name].data))
    simulation.keep_accounts()
    while simulation.run(1 << 22) == Status.RUNNING:
        pass
    return np.array(simulation.window_events())


def _run(name: str, count: int) -> dict[str, Any]:
    return read_answer([sys.executable, "-m", "bench.threads", name, str(count)])


def run(name: str, count: int) -> dict[str, Any]:
    """One checked run; the digest is of every flow's and every port's results."""
    simulation, cpu_s, wall_s = one_run(BENCHES[name], count)
    tables = [
        simulation.flow_bytes,
        simulation.flow_last_deliveries_ps,
        simulation.flow_ends_ps,
        simulation.counter_table(),
    ]
    digest = hashlib.sha256(b"".join(np.asarray(table).tobytes() for table in tables)).hexdigest()
    return {"cpu_s": cpu_s, "wall_s": wall_s, "digest": digest}


def _row(
    name: str, account: NDArray[np.uint32], event_ns: float, ratio: float, paper: Sequence[float]
) -> list[str]:
    windows, partitions = account.shape
    simulation, _ = build_simulation(scenario_from(BENCHES[name].data))
    goal = f"≥ {GOALS[name]:g}" if name in GOALS else ""
    return [
        name,
        f"{partitions}",
        f"{simulation.lookahead_ps / 1000:g}",
        f"{windows:,}",
        f"{account.sum() / windows:.0f}",
        f"{event_ns:.0f}",
        f"{ratio:.2f}",
        goal,
        *(f"{speedup:.1f}" for speedup in paper),
    ]


def _figure(name: str, ours: float, goal: float | None, runs: int) -> Figure:
    return Figure(
        name=name,
        unit="times as fast",
        ours=ours,
        peer=None,
        theirs=None,
        goal=goal,
        n=runs,
        half="threads",
    )


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]))))
