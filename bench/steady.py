"""Skipping what repeats: CPU time of whole runs with and without, and whether records are equal.

Entry point: `steady`. One process; simulation and record are timed, reading the scenario is not.
"""

from __future__ import annotations

import time
from typing import Any

from bench.figure import Figure
from bench.scenarios import LINK, converged
from weft.records import to_line
from weft.records.record_text import format_table
from weft.simulate import Outcome, scenario_from, simulate
from weft.simulate.scenario import Scenario

GOAL = 50.0
HEADS = ("scenario", "simulated", "skipped", "full CPU s", "skipping CPU s", "ratio", "record")


def _permutation(fabric: dict[str, Any], **traffic: Any) -> dict[str, Any]:
    flows = {"name": "flows", "kind": "permutation", **traffic}
    return {"duration": "10 s", "fabric": {**fabric, **LINK}, "traffic": [flows]}


SWITCH, TREE = {"topology": "one_switch", "hosts": 16}, {"topology": "fat_tree", "k": 4}
CASES = {
    "S1 for 1 s": converged() | {"duration": "1 s"},
    "permutation of 16 hosts, 20,000 × 64 KiB": _permutation(
        SWITCH, size="64 KiB", messages=20_000
    ),
    "fat tree k=4, uc, 400,000 × 4 KiB": _permutation(
        TREE, size="4 KiB", messages=400_000, transport="uc"
    ),
    "fat tree k=4, rc, 30,000 × 4 KiB": _permutation(TREE, size="4 KiB", messages=30_000),
}


def steady(quick: bool) -> list[Figure]:
    """Run and print all cases; `quick`: the first."""
    rows, figures = [], []
    for name, data in list(CASES.items())[: 1 if quick else None]:
        scenario = scenario_from(data)
        full, full_s = _run(scenario, skip_steady=False)
        skipping, skipping_s = _run(scenario, skip_steady=True)
        equal = to_line(full.record) == to_line(skipping.record)
        if not equal:
            raise SystemExit(f"steady: the records of {name} differ")
        ratio = full_s / skipping_s
        rows.append(
            [
                name,
                _find_end(full),
                f"{skipping.skipped_ps / 1e9:.4g} ms",
                f"{full_s:.2f}",
                f"{skipping_s:.4f}",
                f"{ratio:.0f}",
                "equal",
            ]
        )
        figures.append(
            Figure(
                name=f"skip-steady {name}",
                unit="ratio",
                ours=ratio,
                peer=None,
                theirs=None,
                goal=GOAL,
                half="steady",
            )
        )
    print(f"skipping what repeats\n\n{format_table(HEADS, rows)}")
    return figures


def _run(scenario: Scenario, *, skip_steady: bool) -> tuple[Outcome, float]:
    before = time.process_time()
    outcome = simulate(scenario, skip_steady=skip_steady)
    return outcome, time.process_time() - before


def _find_end(outcome: Outcome) -> str:
    """The simulated time, as the record's ending has it."""
    return " ".join(outcome.record.ending.split(" of ")[0].split()[-2:])
