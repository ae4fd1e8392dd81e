"""The operator's settings, and the levels and port policies that follow from them.

Levels are clustered from all models while nothing is registered. Packets of registered applications
carry their level: as long as there are any, no level changes, and a new model opens a free level or
joins the nearest one. Centroids stay where they were clustered, so that a port's queues change only
when a level is opened. Entry points: `Settings`, `cluster_levels`, `add_to_levels`, `build_policy`,
`build_port_policies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from immutables import Map

from weft.control.policy.levels import (
    COEFFICIENTS,
    SHARES,
    Level,
    Levels,
    assign_levels,
    build_hierarchy,
    find_nearest,
    sum_squares,
)
from weft.control.policy.objectives import SLOWDOWN
from weft.control.policy.plan import Policy
from weft.control.policy.port_policy import Htb, LatencyLane, PortPolicy, Scheduler, VlArbitration
from weft.control.state.events import ApplicationModel
from weft.errors import InputError
from weft.fabric import Port
from weft.host.testbed.wiring import MIN_RATE_BPS
from weft.sensitivity.model import FloatArray, Hinges, Polynomial, Sensitivity
from weft.switches import Ability, PortName
from weft.switches.tables import ENTRY_WEIGHT

_MIN_KBPS = MIN_RATE_BPS // 1000  # of a class of HTB
_UNUSED_POLICY = PortPolicy(scheduler=VlArbitration(queues=8))  # every port has a policy of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the operator has set. `take_over`: ports without applications are programmed too.

    `levels` counts those of managed applications. Level 0 is unmanaged traffic's; a latency lane
    has one more. `has_exact_queues`: levels share queues by their best partition, and not by the
    thesis's hierarchy. `polynomial_degree`: models are the thesis's polynomials of that degree;
    None: convex ones. `objective`: what the weights of a port follow, one of `OBJECTIVES`.
    """

    levels: int = 7
    managed_share: float = 1.0
    lane: LatencyLane | None = None
    has_exact_queues: bool = False
    polynomial_degree: int | None = None
    objective: str = SLOWDOWN
    take_over: bool = False
    longest_ttl_s: float = 3600.0
    usual_ttl_s: float = 10.0
    most_applications: int = 10_000
    most_connections: int = 1_000_000
    most_jobs_of: int = 8  # of one identity that is no operator, as the next two
    most_registrations_of: int = 2_500
    most_connections_of: int = 100_000
    group: str = ""  # of switches, whose controller this is; "": of all

    def uses(self, curve: Sensitivity) -> bool:
        """Whether it is a model of the form that is set."""
        degree = curve.degree if isinstance(curve, Polynomial) else None
        return degree == self.polynomial_degree

    @property
    def lane_level(self) -> int | None:
        return None if self.lane is None else self.levels + 1

    @property
    def all_levels(self) -> int:
        """Unmanaged traffic and the lane included."""
        return self.levels + 1 + (self.lane is not None)


# ---- Levels -----------------------------------------------------------------------------------


def cluster_levels(models: Mapping[str, ApplicationModel], most: int) -> Levels | None:
    """Levels of all models; None where there are none."""
    return assign_levels(_curves(models), most) if models else None


def add_to_levels(levels: Levels | None, name: str, curve: Sensitivity, most: int) -> Levels:
    """The levels with one more application; all others keep theirs."""
    if levels is None:
        return assign_levels({name: curve}, most)
    coordinates = _compute_coordinates(curve, levels)
    centroids = np.array([level.centroid for level in levels.levels])
    nearest = int(find_nearest(coordinates[None], centroids)[0])
    distance = sum_squares(coordinates, centroids[nearest])
    used = {level.number for level in levels.levels}
    free = next((n for n in range(1, most + 1) if n not in used), None)
    if free is not None and distance > 0:
        opened = Level(
            number=free,
            applications=(name,),
            centroid=tuple(coordinates.tolist()),
            sensitivity=float(_compute_slowdowns(curve).mean()),
        )
        return replace(levels, levels=_sort_levels((*levels.levels, opened)))
    level = levels.levels[nearest]
    joined = replace(level, applications=tuple(sorted((*level.applications, name))))
    unchanged = [other for other in levels.levels if other is not level]
    spread = levels.spread + distance
    return replace(levels, levels=_sort_levels((*unchanged, joined)), spread=spread)


def _sort_levels(levels: tuple[Level, ...]) -> tuple[Level, ...]:
    return tuple(sorted(levels, key=lambda level: level.number))


def _compute_coordinates(curve: Sensitivity, levels: Levels) -> FloatArray:
    """As those of the levels: a polynomial's coefficients, or slowdowns."""
    if levels.coordinates != COEFFICIENTS:
        return _compute_slowdowns(curve)
    width = len(levels.levels[0].centroid)
    if isinstance(curve, Hinges) or len(curve.coefficients) > width:
        problem = (
            f"levels are clusters of polynomials of degree {width - 1}, and it is another model"
        )
        raise InputError("model", problem, "cluster the levels again")
    return np.array(curve.coefficients + (0.0,) * (width - len(curve.coefficients)))


def _compute_slowdowns(curve: Sensitivity) -> FloatArray:
    return np.asarray(curve.slowdown(np.maximum(SHARES, curve.floor)))


def _curves(models: Mapping[str, ApplicationModel]) -> dict[str, Sensitivity]:
    return {name: model.curve for name, model in models.items()}


# ---- Ports ------------------------------------------------------------------------------------


def build_policy(
    models: Mapping[str, ApplicationModel],
    levels: Levels | None,
    ports: Mapping[Port, PortPolicy],
    settings: Settings,
    stated_bytes: Map[str, int],
) -> Policy | None:
    """The policy of these applications, ports and sizes; None where there are no models."""
    if levels is None:
        return None
    return Policy(
        models=_curves(models),
        levels=levels,
        hierarchy=build_hierarchy(levels),
        port=_UNUSED_POLICY,
        ports=ports,
        has_exact_queues=settings.has_exact_queues,
        objective=settings.objective,
        profiled_bytes={name: m.size_bytes for name, m in models.items() if m.size_bytes},
        stated_bytes=stated_bytes,
    )


def build_port_policies(
    abilities: Mapping[PortName, Ability], settings: Settings
) -> tuple[dict[PortName, PortPolicy], dict[PortName, str]]:
    """The policy of every port that can do what the settings ask, and what the others lack."""
    by_ability = {
        ability: _build_port_policy(ability, settings) for ability in set(abilities.values())
    }
    fit, unfit = {}, {}
    for name, ability in abilities.items():
        policy = by_ability[ability]
        if isinstance(policy, PortPolicy):
            fit[name] = policy
        else:
            unfit[name] = policy
    return fit, unfit


def _build_port_policy(ability: Ability, settings: Settings) -> PortPolicy | str:
    if settings.all_levels > ability.levels:
        required = f"{settings.all_levels} are required"
        return f"has {ability.levels} levels, and {required}; lower levels of [policy]"
    try:
        policy = PortPolicy(
            scheduler=_build_scheduler(ability),
            managed_share=settings.managed_share,
            lane=settings.lane,
        )
    except InputError as error:
        return f"{error.problem}; {error.remedy}"
    is_vlarb = isinstance(policy.scheduler, VlArbitration)
    served = ability.queues if is_vlarb else min(ability.levels, ability.queues)
    if served * min_queue_units(policy) > policy.units - policy.lane_units:
        return f"has {policy.units} units, too few for {served} queues"
    return policy


def min_queue_units(policy: PortPolicy) -> int:
    """The least weight of a served queue at such a port."""
    return 1 if isinstance(policy.scheduler, VlArbitration) else _MIN_KBPS


def _build_scheduler(ability: Ability) -> Scheduler:
    if ability.scheduler == "htb":
        return Htb(queues=ability.queues, rate_kbps=ability.units)
    most = ENTRY_WEIGHT * (ability.entries - ability.queues + 1)
    units = min(ability.units, most)
    return VlArbitration(queues=ability.queues, entries=ability.entries, units=units)
