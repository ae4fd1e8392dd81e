"""Set-up and memory by fabric size: a permutation on k-ary fat trees to 27,648 hosts.

    python -m bench.setup 24 "$(date +%s.%N)"

prints one JSON object: CPU seconds from the scenario's text to the first event, wall seconds from
the given start of the program to it, and the peak of memory. Entry point: `setup`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.figure import Figure
from bench.peers.processes import read_answer
from bench.scenarios import peak_rss_mib
from weft.records.record_text import format_table
from weft.simulate import load_scenario
from weft.simulate.run import build_simulation

SIZES = (8, 16, 24, 32, 48)
GOAL_S = {24: 0.2, 32: 1.0, 48: 5.0}
GOAL_MIB = 1024.0
RUNS = 3
HEADS = ("k", "hosts", "switches", "set-up CPU s", "goal", "first event after s", "peak MiB")
SCENARIO = """\
name = "permutation"
duration = "1 s"
fabric = {{ topology = "fat_tree", k = {k}, rate = "56 Gb/s", delay = "50 ns" }}
[[traffic]]
name = "flows"
kind = "permutation"
size = "1 MiB"
"""


def setup(quick: bool) -> list[Figure]:
    """Run and print all sizes; `quick`: the two smallest, once."""
    sizes = SIZES[:2] if quick else SIZES
    runs = {k: [_start(k) for _ in range(1 if quick else RUNS)] for k in sizes}
    print(
        f"set-up by size of a fat tree\n\n{format_table(HEADS, [_row(k, runs[k]) for k in sizes])}"
    )
    return [figure for k in sizes for figure in _figures(k, runs[k])]


def _start(k: int) -> dict[str, Any]:
    return read_answer([sys.executable, "-m", "bench.setup", str(k), repr(time.time())])


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))


def _row(k: int, runs: list[dict[str, Any]]) -> list[str]:
    return [
        str(k),
        f"{k**3 // 4:,}",
        f"{5 * k * k // 4:,}",
        f"{_median(runs, 'setup_s'):.2f}",
        f"≤ {GOAL_S[k]:g}" if k in GOAL_S else "",
        f"{_median(runs, 'first_event_s'):.2f}",
        f"{_median(runs, 'peak_rss_mib'):.0f}",
    ]


def _figures(k: int, runs: list[dict[str, Any]]) -> list[Figure]:
    name = f"set-up fat tree k={k}"
    seconds, mib = _median(runs, "setup_s"), _median(runs, "peak_rss_mib")
    goals = GOAL_S.get(k), GOAL_MIB if k in GOAL_S else None
    return [
        Figure(
            name=name,
            unit=unit,
            ours=ours,
            peer=None,
            theirs=None,
            goal=goal,
            n=len(runs),
            half="setup",
        )
        for unit, ours, goal in (("CPU s", seconds, goals[0]), ("MiB", mib, goals[1]))
    ]


def run(k: int, started: float) -> dict[str, Any]:
    """Set up one fabric in this process, and handle its first event."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "permutation.toml"
        path.write_text(SCENARIO.format(k=k), encoding="utf-8")
        before = time.process_time()
        simulation, _ = build_simulation(load_scenario(path))
        simulation.run(1)
    return {
        "setup_s": time.process_time() - before,
        "first_event_s": time.time() - started,
        "peak_rss_mib": peak_rss_mib(),
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), float(sys.argv[2]))))
