"""From connections to the plan, and from the plan to the tables that ports should have.

Where a port has a queue for every level, queue n is level n: the map is the same everywhere and
only weights change. Elsewhere levels share queues as the plan says, and levels without an
application there go to queue 0, with unmanaged traffic. Every queue with a level in it is served.
In VL arbitration every queue is, as levels that are not ours may be in it. A queue that the plan
gives nothing, or too little to express, gets the least weight there is, taken from the largest
queue, so that the sum stays the link. A packet that arrives before its tables therefore passes.
Entry points: `settle`, after connections changed; `reprogram`, after anything else; `retarget`;
`build_plan_tables`, `build_default_tables`. Weights are in the scheduler's units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from weft.control.policy.plan import Plan, PortPlan, shift_counts
from weft.control.policy.port_policy import PortPolicy, VlArbitration
from weft.control.state.events import RevisionRow
from weft.control.state.policy_settings import Settings, min_queue_units
from weft.control.state.state import State, Step
from weft.fabric import Port
from weft.switches import Ability, Lane, PortName, Tables


def settle(state: State, cause: str = "", max_ports: int | None = None) -> Step:
    """Makes the plan count every connection: each port is solved once.

    At most `max_ports` of them; the others stay pending.
    """
    if state.pending is None:
        return Step(state=state)
    assert state.plan is not None, "a connection belongs to an application with a model"
    assert state.paths is not None, "a connection with ports has a path"
    counts, waiting = state.collect_pending().take(max_ports)
    plan = shift_counts(state.plan, counts)
    names = [state.paths.names[port] for port in counts if _is_solved_again(state.plan, plan, port)]
    settled = replace(state, plan=plan, pending=waiting)
    return reprogram(settled, names, cause or _describe_cause(counts))


def _describe_cause(counts: Mapping[Port, Mapping[str, int]]) -> str:
    applications = {application for by_name in counts.values() for application in by_name}
    count = len(applications)
    return f"connections of {applications.pop() if count == 1 else f'{count} applications'}"


def _is_solved_again(old_plan: Plan, new_plan: Plan, port: Port) -> bool:
    """Whether a port was solved again; a port where only counts change keeps its weights."""
    old, new = old_plan.ports.get(port), new_plan.ports.get(port)
    return old is None or new is None or old.weights is not new.weights


def reprogram(state: State, names: Iterable[PortName], cause: str) -> Step:
    """Makes the plan's tables the target of these ports, unless a revision is held."""
    if state.held_revision is not None:
        return Step(state=state)
    return retarget(state, {name: find_tables(state, name) for name in names}, cause)


def retarget(state: State, tables: dict[PortName, Tables], cause: str) -> Step:
    """A new revision with these tables, if they differ from the target."""
    changed = {name: new for name, new in tables.items() if state.target.get(name) != new}
    if not changed:
        return Step(state=state)
    revised = replace(state, revision=state.revision + 1, target=state.target.update(changed))
    row = RevisionRow(
        revision=revised.revision,
        cause=cause,
        tables=changed,
        held_revision=state.held_revision,
        replaced={name: state.target.get(name) for name in changed},
    )
    return Step(state=revised, rows=(row,), ports=frozenset(changed))


# ---- Tables of a port -------------------------------------------------------------------------


def find_tables(state: State, name: PortName) -> Tables:
    """The plan's tables for a managed port."""
    ability, plan = state.abilities[name], find_port_plan(state, name)
    if plan is None:
        return build_default_tables(state.policies[name], ability, state.settings)
    return build_plan_tables(plan, ability, state.settings)


def find_port_plan(state: State, name: PortName) -> PortPlan | None:
    """None for a managed port without applications."""
    assert state.paths is not None, "a managed port is in a fabric"
    return None if state.plan is None else state.plan.ports.get(state.paths.ports[name])


def has_queue_per_level(ability: Ability, settings: Settings) -> bool:
    return settings.all_levels <= ability.queues


def build_default_tables(policy: PortPolicy, ability: Ability, settings: Settings) -> Tables:
    """Tables of a port without applications: unmanaged traffic and the lane have the link."""
    weights = _build_empty_weights(policy)
    weights[0] = policy.units - policy.lane_units
    is_direct = has_queue_per_level(ability, settings)
    levels = _direct_queues(ability, settings) if is_direct else {}
    return _build_tables(_map_levels(levels, policy, ability, settings), weights, policy)


def build_plan_tables(plan: PortPlan, ability: Ability, settings: Settings) -> Tables:
    """Tables of a port with applications."""
    policy, weights = plan.policy, _build_empty_weights(plan.policy)
    if has_queue_per_level(ability, settings):
        queues: Mapping[int, int] = _direct_queues(ability, settings)
        weights[0] = policy.unmanaged_units
        for level, units in zip(plan.levels, plan.weights, strict=True):
            weights[level] += units
    else:
        queues = plan.queue_of
        for queue, units in plan.units.items():
            weights[queue] = units
    return _build_tables(_map_levels(queues, policy, ability, settings), weights, policy)


def _direct_queues(ability: Ability, settings: Settings) -> dict[int, int]:
    """Also for unused levels, unless a lane needs a queue: switches come with such a map."""
    has_all = settings.lane is None and ability.levels <= ability.queues
    return {n: n for n in range(ability.levels if has_all else settings.levels + 1)}


def _build_empty_weights(policy: PortPolicy) -> list[int]:
    weights = [0] * policy.scheduler.queues
    if policy.lane is not None:
        weights[-1] = policy.lane_units
    return weights


def _map_levels(
    queues: Mapping[int, int], policy: PortPolicy, ability: Ability, settings: Settings
) -> tuple[int, ...]:
    queue_of = [queues.get(level, 0) for level in range(ability.levels)]
    if settings.lane_level is not None:
        queue_of[settings.lane_level] = policy.scheduler.queues - 1
    return tuple(queue_of)


def _build_tables(queue_of: tuple[int, ...], weights: list[int], policy: PortPolicy) -> Tables:
    managed = len(weights) - (policy.lane is not None)
    least = min_queue_units(policy)
    is_vlarb = isinstance(policy.scheduler, VlArbitration)
    for queue in range(managed) if is_vlarb else sorted({q for q in queue_of if q < managed}):
        shortfall = least - weights[queue]
        if shortfall > 0:
            largest = max(range(managed), key=weights.__getitem__)
            weights[largest] -= shortfall
            weights[queue] += shortfall
    return Tables(queue_of=queue_of, weights=tuple(weights), lane=_build_lane(policy))


def _build_lane(policy: PortPolicy) -> Lane | None:
    if policy.lane is None:
        return None
    is_vlarb = isinstance(policy.scheduler, VlArbitration)
    limit = policy.lane.high_limit if is_vlarb else policy.lane.budget_bytes
    return Lane(queue=policy.scheduler.queues - 1, limit=limit)
