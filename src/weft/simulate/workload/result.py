"""What a run of a workload gives: completion by rank, bus bandwidth, ranks that wait for ever.

Entry points: `workload_quantities`, `rank_rows`, `explain_waiting`. Units: ps, bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft._core import FlowSimulation, Histogram, Simulation
from weft.records import Distribution, Quantity, Scalar
from weft.records.schema import Row
from weft.simulate.workload.operations import Operations
from weft.simulate.workload.placement import PlacedWorkload, Volume

if TYPE_CHECKING:
    from weft.fabric import Fabric
    from weft.simulate.scenario import Scenario

AnySimulation = Simulation | FlowSimulation
NEVER_PS = 2**63 - 1
SHOWN_RANKS = 4096  # a record lists no more


def workload_quantities(scenario: Scenario, sim: AnySimulation) -> Iterator[tuple[str, Quantity]]:
    """Quantities of every workload of a scenario at the packet level."""
    for name, first, workload in _workloads(scenario):
        finished = _read_ends_ps(sim, first, workload.operations.ranks)
        rate = _slowest_link_bps(scenario.fabric, workload)
        yield from completion_quantities(name, finished - workload.begin_ps, workload.volume, rate)


def completion_quantities(
    name: str, spans_ps: NDArray[np.int64], volume: Volume | None, rate_bps: float | None
) -> Iterator[tuple[str, Quantity]]:
    """Completion of ranks and of all; of a collective also bus bandwidth and its bound."""
    if len(spans_ps) == 0 or spans_ps.max() > 2**62:
        return
    histogram = Histogram()
    histogram.record_many(spans_ps)
    whole_ps = int(spans_ps.max())
    yield f"{name}.rank_completion", Distribution("ps", histogram)
    yield f"{name}.completion", Scalar(whole_ps / 1e6, "us")
    if volume is None or whole_ps == 0:
        return
    bits = 8 * volume.size_bytes * volume.repetitions * volume.bus_factor
    bus = bits * 1e3 / whole_ps
    yield f"{name}.bus_bandwidth", Scalar(bus, "Gb/s")
    if rate_bps is not None:
        yield f"{name}.bus_bound", Scalar(rate_bps / 1e9, "Gb/s")
        yield f"{name}.bus_share", Scalar(bus * 1e9 / rate_bps, "")


def rank_rows(scenario: Scenario, sim: AnySimulation) -> Iterator[Row]:
    """A row for each rank: where it ran and when it was done."""
    hosts = [scenario.fabric.nodes[node].name for node in scenario.fabric.hosts]
    for name, first, workload in _workloads(scenario):
        for rank in range(min(workload.operations.ranks, SHOWN_RANKS)):
            finished = sim.rank_finished_ps(first + rank)
            yield {
                "workload": name,
                "rank": rank,
                "host": hosts[int(workload.host[rank])],
                "completion_us": None
                if finished == NEVER_PS
                else (finished - workload.begin_ps) / 1e6,
            }


def explain_waiting(scenario: Scenario, sim: AnySimulation, ended: str) -> Iterator[str]:
    """Why a workload did not end: ranks that wait for each other, or too little time."""
    begun = 0
    for name, _, workload in _workloads(scenario):
        operations = workload.operations
        ended_ps = sim.operations_ended_ps()[begun : begun + len(operations)]
        begun += len(operations)
        is_endless = workload.job is not None and workload.job.job.loops is None
        if (ended_ps == NEVER_PS).any() and not is_endless:
            cause = "deadlock: " if ended == "deadlock" else ""
            yield f"{cause}{name}: {describe_waiting(operations, ended_ps)}"


def describe_waiting(operations: Operations, ended_ps: NDArray[np.int64]) -> str:
    """How many operations never ended, and the first that waits for no other of its rank."""
    open_ = ended_ps == NEVER_PS
    counts = np.diff(operations.dependency_start)
    waiting = np.repeat(np.arange(len(operations)), counts)
    blocked = np.zeros(len(operations), dtype=bool)
    blocked[waiting[open_[operations.dependency]]] = True
    first = int(np.flatnonzero(open_ & ~blocked)[0])
    number = int(open_.sum())
    return (
        f"{number} of {len(operations)} operations did not end, first {operations.describe(first)}"
    )


def _workloads(scenario: Scenario) -> Iterator[tuple[str, int, PlacedWorkload]]:
    """Each workload with its name and the core's number of its first rank."""
    first = 0
    for traffic in scenario.traffic:
        for part in traffic.parts:
            if part.workload is not None:
                yield part.name, first, part.workload
                first += part.workload.operations.ranks


def _read_ends_ps(sim: AnySimulation, first: int, ranks: int) -> NDArray[np.int64]:
    return np.array([sim.rank_finished_ps(first + rank) for rank in range(ranks)], dtype=np.int64)


def _slowest_link_bps(fabric: Fabric, workload: PlacedWorkload) -> float | None:
    """The rate of the slowest host's link; None where hosts have several ranks."""
    if len(np.unique(workload.host)) < len(workload.host):
        return None
    nodes = {fabric.hosts[host] for host in workload.host.tolist()}
    ends = ((end.node, link.rate_bps) for link in fabric.links for end in (link.a, link.b))
    return min(rate for node, rate in ends if node in nodes)
