"""What weights of the whole fabric bring over those of single ports: docs/allocation.md's table.

16 hosts under 4 leaves and 2 spines, HTB at 100 Mbit/s; random convex models
(weft.studies.saba.calculation_time); instances of each application on different hosts drawn at
random, each sending to the next. Gains are in mean slowdown, whole paths counted: over the least
share along the path, and over ports that use what others leave. Entry point: `wide`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.figure import Figure
from weft.control.policy.fabric_wide import PlanComparison, compare_plans
from weft.control.policy.plan import ConnectionPath, build_policy, find_connection_path
from weft.control.policy.port_policy import Htb, PortPolicy
from weft.fabric import Fabric
from weft.fabric.topology import leaf_spine
from weft.records.record_text import format_table
from weft.studies.saba.calculation_time import draw_models

LEAVES, SPINES, HOSTS_PER_LEAF = 4, 2, 4
PORT = PortPolicy(scheduler=Htb(queues=8, rate_kbps=100_000))
LEVELS = 8
HEADS = (
    "applications × instances",
    "fabrics",
    "over the least share",
    "over ports that use all",
    "not settled",
    "greatest gap",
)


@dataclass(frozen=True, slots=True)
class Case:
    applications: int
    instances: int
    fabrics: int

    def __str__(self) -> str:
        return f"{self.applications} × {self.instances}"


CASES = (Case(8, 2, 6), Case(16, 4, 4))


def wide(quick: bool) -> list[Figure]:
    """Run and print; `quick`: the first fabric of each case."""
    fabric = leaf_spine(LEAVES, SPINES, HOSTS_PER_LEAF)
    found = {
        case: [_gain(fabric, case, seed) for seed in range(1 if quick else case.fabrics)]
        for case in CASES
    }
    rows = [_row(case, gains) for case, gains in found.items()]
    print(f"fabric-wide weights, lower mean slowdown\n\n{format_table(HEADS, rows)}\n")
    return [figure for case, gains in found.items() for figure in _figures(case, gains)]


def _gain(fabric: Fabric, case: Case, seed: int) -> PlanComparison:
    rng = np.random.default_rng(seed)
    convex = draw_models(rng, case.applications)["convex"].to_models()
    named = {f"app{n}": model for n, model in enumerate(convex)}
    ring = [one for name in named for one in _ring(rng, fabric, name, case.instances)]
    return compare_plans(build_policy(named, PORT, LEVELS), ring)


def _ring(
    rng: np.random.Generator, fabric: Fabric, name: str, instances: int
) -> list[ConnectionPath]:
    hosts = rng.choice(np.array(fabric.hosts), instances, replace=False)
    pairs = zip(hosts.tolist(), np.roll(hosts, -1).tolist(), strict=True)
    return [find_connection_path(fabric, name, source, target) for source, target in pairs]


def _settled(gains: Sequence[PlanComparison]) -> list[float]:
    return [one.working for one in gains if one.working is not None]


def _row(case: Case, gains: Sequence[PlanComparison]) -> list[str]:
    working = _settled(gains)
    return [
        f"{case}",
        f"{len(gains)}",
        _range([one.promised for one in gains]),
        _range(working),
        f"{len(gains) - len(working)}",
        f"{max(one.gap for one in gains):.1e}",
    ]


def _range(parts: Sequence[float]) -> str:
    return f"{100 * min(parts):.1f} to {100 * max(parts):.1f} %" if parts else ""


def _figures(case: Case, gains: Sequence[PlanComparison]) -> list[Figure]:
    ways = {
        "the least share": [one.promised for one in gains],
        "ports that use all": _settled(gains),
    }
    return [
        Figure(
            name=f"fabric-wide {case}, gain over {way}, median",
            unit="relative",
            ours=statistics.median(parts),
            peer=None,
            theirs=None,
            goal=None,
            n=len(parts),
            half="wide",
        )
        for way, parts in ways.items()
        if parts
    ]
