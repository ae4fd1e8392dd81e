"""What a port is to be told: the plan's weights as tables of the switch.

Queue n is level n where the port has queues for all levels, so that the map is the same everywhere
and only weights change; elsewhere levels share queues as the plan has it, and those without an
application there go with unmanaged traffic, in queue 0. Every queue that a level is in is served,
in VL arbitration every queue, as levels that are not ours may be in it: one that the plan gives
nothing, or too little to be told, has the least there is, taken from the largest, so that the sum
stays the link. A packet that comes before its tables therefore passes.
Entry points: `tables_at`, `default_tables`. Weights are in the scheduler's units.
"""

from __future__ import annotations

from weft.control.policy.plan import PortPlan
from weft.control.policy.port import PortPolicy, VlArbitration
from weft.control.state.kinds import Settings, least_units
from weft.switches import Ability, Lane, Tables


def has_queue_per_level(ability: Ability, settings: Settings) -> bool:
    """Whether every level has a queue of its own at such a port."""
    return settings.all_levels <= ability.queues


def default_tables(own: PortPolicy, ability: Ability, settings: Settings) -> Tables:
    """Of a port without applications: the link is for unmanaged traffic, and the lane's."""
    weights = _empty(own)
    weights[0] = own.units - own.lane_units
    levels = _themselves(ability, settings) if has_queue_per_level(ability, settings) else {}
    return _tables(_queue_of(levels, own, ability, settings), weights, own)


def plan_tables(told: PortPlan, ability: Ability, settings: Settings) -> Tables:
    """Of a port with applications."""
    if not has_queue_per_level(ability, settings):
        return _shared(told, ability, settings)
    own, weights = told.policy, _empty(told.policy)
    weights[0] = own.unmanaged_units
    for level, units in zip(told.levels, told.weights, strict=True):
        weights[level] += units
    levels = _themselves(ability, settings)
    return _tables(_queue_of(levels, own, ability, settings), weights, own)


def _themselves(ability: Ability, settings: Settings) -> dict[int, int]:
    """Also levels that nobody uses, unless a lane is in the way: switches come with such a map."""
    free = settings.lane is None and ability.levels <= ability.queues
    return {n: n for n in range(ability.levels if free else settings.levels + 1)}


def _shared(told: PortPlan, ability: Ability, settings: Settings) -> Tables:
    own, weights = told.policy, _empty(told.policy)
    for queue, units in told.units.items():
        weights[queue] = units
    return _tables(_queue_of(told.queue_of, own, ability, settings), weights, own)


def _empty(own: PortPolicy) -> list[int]:
    weights = [0] * own.scheduler.queues
    if own.lane is not None:
        weights[-1] = own.lane_units
    return weights


def _queue_of(
    levels: dict[int, int], own: PortPolicy, ability: Ability, settings: Settings
) -> tuple[int, ...]:
    found = [levels.get(level, 0) for level in range(ability.levels)]
    if settings.lane_level is not None:
        found[settings.lane_level] = own.scheduler.queues - 1
    return tuple(found)


def _tables(queue_of: tuple[int, ...], weights: list[int], own: PortPolicy) -> Tables:
    managed = len(weights) - (own.lane is not None)
    least = least_units(own)
    every = isinstance(own.scheduler, VlArbitration)
    for queue in range(managed) if every else sorted({q for q in queue_of if q < managed}):
        short = least - weights[queue]
        if short > 0:
            largest = max(range(managed), key=lambda n: (weights[n], -n))
            weights[largest] -= short
            weights[queue] += short
    return Tables(queue_of=queue_of, weights=tuple(weights), lane=_lane(own))


def _lane(own: PortPolicy) -> Lane | None:
    if own.lane is None:
        return None
    vlarb = isinstance(own.scheduler, VlArbitration)
    limit = own.lane.high_limit if vlarb else own.lane.budget_bytes
    return Lane(queue=own.scheduler.queues - 1, limit=limit)
