"""The applications of the table, their levels, and the policy that follows.

Levels are clustered from the whole table while nothing is registered. As long as something is, its
packets carry its level: then nobody moves, and a model that is new opens a level that is free or
joins the nearest. Centroids stay where they were clustered, so that a port's queues change only
when a level is opened. Entry points: `Settings`, `clustered`, `joined`, `policy_for`, `fitness`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from weft.control.policy.kmeans import find_nearest, sum_squares
from weft.control.policy.levels import SHARES, Level, Levels, assign_levels, build_hierarchy
from weft.control.policy.plan import Policy
from weft.control.policy.port import (
    ENTRY_UNITS,
    Htb,
    LatencyLane,
    PortPolicy,
    Scheduler,
    VlArbitration,
)
from weft.control.state.events import ApplicationModel
from weft.errors import InputError
from weft.fabric import Port
from weft.host.testbed.wiring import MIN_RATE_BPS
from weft.sensitivity.model import FloatArray, Hinges
from weft.switches import Ability, PortName

_LEAST_KBPS = MIN_RATE_BPS // 1000  # of a class of HTB
_NEVER_USED = PortPolicy(scheduler=VlArbitration(queues=8))  # every port has a policy of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the operator has decided. `take_over`: ports without applications are told theirs too.

    `levels` are those of managed applications, beside level 0 for unmanaged traffic and, with a
    latency lane, one more for it.
    """

    levels: int = 7
    managed_share: float = 1.0
    lane: LatencyLane | None = None
    take_over: bool = False
    longest_ttl_s: float = 3600.0
    usual_ttl_s: float = 10.0
    most_applications: int = 10_000
    most_connections: int = 1_000_000

    @property
    def lane_level(self) -> int | None:
        return None if self.lane is None else self.levels + 1

    @property
    def all_levels(self) -> int:
        """Unmanaged traffic and the lane included."""
        return self.levels + 1 + (self.lane is not None)


# ---- Levels -----------------------------------------------------------------------------------


def cluster_levels(kinds: Mapping[str, ApplicationModel], most: int) -> Levels | None:
    """Levels of all of them, nobody considered; None where there are no models."""
    return assign_levels(_models(kinds), most) if kinds else None


def add_to_levels(levels: Levels | None, name: str, model: Hinges, most: int) -> Levels:
    """The levels with one application more, everyone else where it was."""
    if levels is None:
        return assign_levels({name: model}, most)
    own, used = _coordinates(model), [level.number for level in levels.levels]
    centroids = np.array([level.centroid for level in levels.levels])
    place = int(find_nearest(own[None], centroids)[0])
    away = sum_squares(own, centroids[place])
    free = next((n for n in range(1, most + 1) if n not in used), None)
    if free is not None and away > 0:
        opened = Level(
            number=free,
            applications=(name,),
            centroid=tuple(own.tolist()),
            sensitivity=float(own.mean()),
        )
        return replace(levels, levels=_by_number((*levels.levels, opened)))
    level = levels.levels[place]
    more = replace(level, applications=tuple(sorted((*level.applications, name))))
    others = [other for other in levels.levels if other is not level]
    return replace(levels, levels=_by_number((*others, more)), spread=levels.spread + away)


def _by_number(levels: tuple[Level, ...]) -> tuple[Level, ...]:
    return tuple(sorted(levels, key=lambda level: level.number))


def _coordinates(model: Hinges) -> FloatArray:
    return np.asarray(model.slowdown(np.maximum(SHARES, model.floor)))


def _models(kinds: Mapping[str, ApplicationModel]) -> dict[str, Hinges]:
    return {name: kind.model for name, kind in kinds.items()}


# ---- Ports ------------------------------------------------------------------------------------


def build_policy(
    kinds: Mapping[str, ApplicationModel], levels: Levels | None, ports: Mapping[Port, PortPolicy]
) -> Policy | None:
    """The policy of these applications and ports; None as long as there are no models."""
    if levels is None:
        return None
    hierarchy = build_hierarchy(levels)
    return Policy(
        models=_models(kinds), levels=levels, hierarchy=hierarchy, port=_NEVER_USED, ports=ports
    )


def port_policies(
    abilities: Mapping[PortName, Ability], settings: Settings
) -> tuple[dict[PortName, PortPolicy], dict[PortName, str]]:
    """The policy of every port that can do what the settings ask, and what the others lack."""
    judged = {ability: _port_policy(ability, settings) for ability in set(abilities.values())}
    fit, unfit = {}, {}
    for name, ability in abilities.items():
        own = judged[ability]
        if isinstance(own, PortPolicy):
            fit[name] = own
        else:
            unfit[name] = own
    return fit, unfit


def _port_policy(ability: Ability, settings: Settings) -> PortPolicy | str:
    if settings.all_levels > ability.levels:
        asked = f"{settings.all_levels} are asked for"
        return f"has {ability.levels} levels, and {asked}; lower levels of [policy]"
    try:
        own = PortPolicy(
            scheduler=_scheduler(ability), managed_share=settings.managed_share, lane=settings.lane
        )
    except InputError as error:
        return f"{error.problem}; {error.remedy}"
    vlarb = isinstance(own.scheduler, VlArbitration)
    served = ability.queues if vlarb else min(ability.levels, ability.queues)
    if served * least_units(own) > own.units - own.lane_units:
        return f"has {own.units} units, too few for {served} queues"
    return own


def least_units(own: PortPolicy) -> int:
    """What a queue that is served must have at such a port."""
    return 1 if isinstance(own.scheduler, VlArbitration) else _LEAST_KBPS


def _scheduler(ability: Ability) -> Scheduler:
    if ability.scheduler == "htb":
        return Htb(queues=ability.queues, rate_kbps=ability.units)
    most = ENTRY_UNITS * (ability.entries - ability.queues + 1)
    units = min(ability.units, most)
    return VlArbitration(queues=ability.queues, entries=ability.entries, units=units)
