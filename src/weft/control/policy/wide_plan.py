"""A plan whose weights are those of the fabric-wide split, and what it gains over the local rule.

At each port an application has the share that the fabric as a whole gives it, and what the port has
left goes to its applications in proportion. Weights are whole units and no floor is cut: an
application may have less than that share by up to a unit per application at the port. How far the
plan itself can be from the best is therefore said on its own (`promised_gap`). Entry points:
`fabric_wide_plan`, `promised_gap`, `path_slowdowns`, `gain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.control.policy.by_port import ByPort
from weft.control.policy.connection_ports import Connection
from weft.control.policy.crowded import least_units
from weft.control.policy.fabric_wide import FabricWide, fabric_wide
from weft.control.policy.plan import Plan, Policy, PortPlan, kind_of, plan, port_name
from weft.control.policy.port import PortPolicy
from weft.control.policy.rates import promised_rates, working_rates
from weft.errors import InputError
from weft.fabric import Port
from weft.sensitivity.model import Sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSlowdowns:
    """Mean slowdown of a fabric's applications under a plan, whole paths counted.

    `promised`: each has the least of its shares. `working`: what others leave is used too, as ports
    do that serve by weights; None where those rates do not settle.
    """

    promised: float
    working: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Plans of the same connections by the local rule and fabric-wide.

    `gap`: no split could promise a total slowdown below the fabric-wide plan's by more than this
    part of it.
    """

    local: PathSlowdowns
    wide: PathSlowdowns
    gap: float

    @property
    def promised(self) -> float:
        """By what part the promised mean slowdown is lower fabric-wide."""
        return 1 - self.wide.promised / self.local.promised

    @property
    def working(self) -> float | None:
        """The same where ports use what others leave; None where rates do not settle."""
        if self.local.working is None or self.wide.working is None:
            return None
        return 1 - self.wide.working / self.local.working


def fabric_wide_plan(policy: Policy, connections: Iterable[Connection]) -> tuple[Plan, FabricWide]:
    """The plan with fabric-wide weights, and the split that they follow."""
    local = plan(policy, connections)
    _check_room(local)
    paths = paths_of(local)
    models = {name: policy.models[kind_of(name)] for name in paths}
    found = fabric_wide(models, paths, _capacities(local))
    ports = {port: _weighted(told, found) for port, told in local.ports.items()}
    return Plan(policy=policy, ports=ByPort(ports)), found


def promised_gap(told: Plan, found: FabricWide) -> float:
    """What a plan of those connections promises in all is at most this part above the least."""
    rates = promised_rates(told.shares)
    total = _mean_slowdown(told.policy, rates) * len(rates)
    return max(0.0, total - found.bound) / abs(total)


def gain(policy: Policy, connections: Iterable[Connection]) -> Gain:
    """What the fabric-wide weights of these connections bring over the local ones."""
    once = tuple(connections)
    wide, found = fabric_wide_plan(policy, once)
    return Gain(
        local=path_slowdowns(plan(policy, once)),
        wide=path_slowdowns(wide),
        gap=promised_gap(wide, found),
    )


def path_slowdowns(told: Plan) -> PathSlowdowns:
    """Mean slowdowns that a plan gives along whole paths."""
    working = working_rates(told.shares, _capacities(told))
    return PathSlowdowns(
        promised=_mean_slowdown(told.policy, promised_rates(told.shares)),
        working=None if working is None else _mean_slowdown(told.policy, working),
    )


def paths_of(told: Plan) -> dict[str, list[Port]]:
    """Ports of each application that has a connection."""
    paths: dict[str, list[Port]] = {}
    for port, counts in told.present.items():
        for name in counts:
            paths.setdefault(name, []).append(port)
    return paths


def _capacities(told: Plan) -> dict[Port, float]:
    return {port: own.policy.capacity for port, own in told.ports.items()}


def _check_room(told: Plan) -> None:
    """The local rule squeezes a crowded port; what a model says below its floor is no optimum."""
    for port, own in told.ports.items():
        need, room = own.least_units, own.policy.managed_units
        if need > room:
            floors = f"the floors of {len(own.names)} applications take {need} units"
            remedy = "profile at lower shares or admit fewer applications"
            raise InputError(port_name(port), f"{floors}, the capacity is {room}", remedy)


def _mean_slowdown(policy: Policy, rates: Mapping[str, float]) -> float:
    models = policy.models
    return float(np.mean([models[kind_of(name)].slowdown(rate) for name, rate in rates.items()]))


def _weighted(told: PortPlan, found: FabricWide) -> PortPlan:
    wanted = [(a.model, found.shares[a.application]) for a in told.applications]
    return replace(told, weights=tuple(_units(told.policy, wanted)), gap=None)


def _units(own: PortPolicy, applications: Sequence[tuple[Sensitivity, float]]) -> list[int]:
    """Whole units in proportion to the shares, floors kept, the largest remainders rounded up."""
    least = np.array([least_units(model, own.units) for model, _ in applications])
    shares = np.array([share for _, share in applications])
    spare = own.managed_units - int(least.sum())
    wanted = np.maximum(shares * own.managed_units / shares.sum() - least, 1e-12)
    exact = wanted * spare / wanted.sum()
    units = np.floor(exact + 1e-9).astype(int)
    short = spare - int(units.sum())
    units[np.argsort(units - exact, kind="stable")[:short]] += 1
    return [int(unit) for unit in least + units]
