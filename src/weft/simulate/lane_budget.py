"""A budget on a lane: flows that send more than latency-sensitive ones do are demoted.

A pretender sends bulk data as small messages on the level of probes. With a budget, each flow of
that level has a token bucket, as a policer at the fabric's edge would keep. A flow that overdraws
it posts no more on its level; what it has outstanding ends there, and it goes on at another level.
The run up to the first demotion shows when it comes; the whole run then has both flows. Equal seeds
give equal runs, so what comes before a demotion is what the policer saw. Entry points:
`read_budget`, `demote_flows`. Units: ps, bytes, bits per second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft._core import FlowList, FlowSpec, Pattern, Simulation, Status
from weft.errors import InputError
from weft.simulate.traffic import Part, Traffic
from weft.toml_table import Table

if TYPE_CHECKING:
    from weft.simulate.scenario import Scenario

SUFFIX = "-demoted"
_EVENTS = 1000  # between looks, of each partition
_POLICED = (Pattern.STREAM, Pattern.PROBE, Pattern.PACED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBudget:
    """Of level `sl`, for each flow: `rate_bps`, and what that gives in `period_ps` at once."""

    sl: int
    rate_bps: float
    period_ps: int
    demote_to: int

    @property
    def burst_bytes(self) -> float:
        return self.rate_bps * self.period_ps / 8e12


class Demotion(NamedTuple):
    """Flow `flow` of a part, demoted at `at_ps`."""

    part: str
    flow: str
    at_ps: int


def read_budget(table: Table | None) -> LaneBudget | None:
    """`[lanes.budget]`."""
    if table is None:
        return None
    budget = LaneBudget(
        sl=table.integer("sl", 0, 15),
        rate_bps=table.rate_bps("rate"),
        period_ps=table.time_ps("period", 100_000_000, low=1),
        demote_to=table.integer("demote_to", 0, 15, 0),
    )
    table.done()
    if budget.sl == budget.demote_to:
        raise InputError(table.place("demote_to"), f"is {budget.sl} itself", "name another level")
    return budget


def demote_flows(
    scenario: Scenario, build: Callable[[Scenario], Simulation]
) -> tuple[Scenario, list[Demotion]]:
    """The scenario with every flow demoted that overdraws its budget, and which those are."""
    budget = scenario.lanes.budget
    demotions: list[Demotion] = []
    while budget is not None and (numbers := _list_policed(scenario, budget.sl)):
        at_ps, deliveries = _find_excess(build(scenario), scenario, budget, numbers)
        if not deliveries:
            break
        for number, delivered in deliveries.items():
            scenario, demotion = _demote(scenario, number, at_ps, delivered, budget.demote_to)
            demotions.append(demotion)
    return scenario, demotions


def _list_flows(scenario: Scenario) -> list[FlowSpec]:
    return [flow for traffic in scenario.traffic for part in traffic.parts for flow in part.flows]


def _list_policed(scenario: Scenario, sl: int) -> list[int]:
    """Numbers of the flows on that level that have not been demoted."""
    return [
        number
        for number, flow in enumerate(_list_flows(scenario))
        if flow.sl == sl and flow.pattern in _POLICED and flow.stop_ps > scenario.duration_ps
    ]


def _find_excess(
    simulation: Simulation, scenario: Scenario, budget: LaneBudget, numbers: Sequence[int]
) -> tuple[int, dict[int, int]]:
    """When a flow first overdraws its budget, and all that do so then, with their deliveries."""
    flows = _list_flows(scenario)
    sizes = np.array([flows[number].size_bytes for number in numbers], dtype=np.float64)
    level = np.zeros(len(numbers))
    before, then_ps = np.zeros(len(numbers), np.int64), 0
    status = Status.RUNNING
    while status == Status.RUNNING:
        status = simulation.run(_EVENTS * simulation.partitions)
        delivered: NDArray[np.int64] = np.asarray(simulation.flow_deliveries)[list(numbers)]
        leaked = budget.rate_bps * (simulation.now_ps - then_ps) / 8e12
        level = np.maximum(0.0, level + (delivered - before) * sizes - leaked)
        before, then_ps = delivered, simulation.now_ps
        over = level > budget.burst_bytes
        if over.any():
            counts = zip(numbers, delivered.tolist(), over.tolist(), strict=True)
            return then_ps, {number: count for number, count, is_over in counts if is_over}
    return then_ps, {}


def _demote(
    scenario: Scenario, number: int, at_ps: int, delivered: int, sl: int
) -> tuple[Scenario, Demotion]:
    """Ends a flow on its level and begins it at another, in traffic of its own at the end."""
    names = [scenario.fabric.nodes[node].name for node in scenario.fabric.hosts]
    changed: list[Traffic] = []
    first = 0
    for traffic in scenario.traffic:
        parts = []
        for part in traffic.parts:
            at = number - first
            first += len(part.flows)
            if not 0 <= at < len(part.flows):
                parts.append(part)
                continue
            ended, demoted = FlowSpec(part.flows[at]), FlowSpec(part.flows[at])
            ended.stop_ps = at_ps
            flows = FlowList([ended if n == at else flow for n, flow in enumerate(part.flows)])
            demoted.sl, demoted.start_ps = sl, at_ps
            if demoted.messages >= 0:
                demoted.messages = max(0, demoted.messages - delivered - demoted.window)
            parts.append(replace(part, flows=flows))
            flow = f"{names[demoted.src]}-{names[demoted.dst]}"
            demotion = Demotion(part.name, flow, at_ps)
        changed.append(replace(traffic, parts=tuple(parts)))
    return replace(scenario, traffic=_add_flow(changed, demotion.part, demoted)), demotion


def _add_flow(traffic: Sequence[Traffic], part: str, flow: FlowSpec) -> tuple[Traffic, ...]:
    """The traffic with one more demoted flow of a part; the numbers of others stay."""
    name = f"{part}{SUFFIX}"
    if traffic[-1].name == name:
        flows = FlowList(traffic[-1].parts[0].flows)
        flows.append(flow)
        return (*traffic[:-1], Traffic(name=name, parts=(Part(name=name, flows=flows),)))
    return (*traffic, Traffic(name=name, parts=(Part(name=name, flows=FlowList([flow])),)))
