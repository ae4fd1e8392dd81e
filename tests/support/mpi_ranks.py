"""Both ranks of tests/unit/test_mpi.py: `mpirun -n 2 python mpi_ranks.py '[{"test": ...}, ...]'`.

Rank 0 prints one JSON line per job.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from weft.measure import mpi
from weft.measure.mpi import Counts, LatencyResult, Outcome, PacedResult, RankJob


def line(outcome: Outcome) -> dict[str, Any]:
    result = outcome.result
    out: dict[str, Any] = {"theirs": asdict(outcome.peer_counts)}
    if isinstance(result, LatencyResult | PacedResult):
        out |= {
            "ours": asdict(result.counts),
            "samples": result.samples.tolist(),
            "recorded": result.latency.count,
            "p50_ps": result.latency.quantile(0.5),
        }
    elif isinstance(result, Counts):
        out["ours"] = asdict(result)
    else:
        out |= {"ours": asdict(result[0]), "back": asdict(result[1])}
    if isinstance(result, PacedResult):
        out["lateness"] = result.lateness.count
        out["most_late_ps"] = result.lateness.max
    return out


def main(jobs: list[dict[str, Any]]) -> None:
    if mpi.this_rank() == 1:
        mpi.respond()
        return
    with mpi.ranks() as ranks:
        print(json.dumps(ranks.describe() | {"python_cost_ns": ranks.python_cost_ns()}))
        for job in jobs:
            print(json.dumps(line(ranks.run(RankJob(**job)))))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
