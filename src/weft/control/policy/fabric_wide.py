"""The split of a whole fabric: an application's rate is the least of its shares along its path.

Saba splits each port on its own, and an application with much at one port may be held back at
another. Here each application has one share b_i, and

    minimise  Σ D_i(b_i)   over   floor_i ≤ b_i ≤ 1,   Σ_{i at p} b_i ≤ C_p  for every port p.

For prices λ_p ≥ 0 of the ports, bound(λ) = Σ_i min_b (D_i(b) + b Σ_{p of i} λ_p) − Σ_p C_p λ_p is
never above the least total. It is concave and, for convex models, differentiable: its slope in λ_p
is Σ_{i at p} b_i(λ) − C_p. L-BFGS-B maximises it; the shares at those prices, brought within every
port and filled up where ports have room, are the answer. `gap` certifies it: no split is better by
more. For convex models the gap goes to 0; for other polynomials one may stay, as the bound is that
of their convex envelopes.

In the plan each application has its fabric-wide share at each port, and the rest of the port is
divided in proportion, in whole units with floors kept. An application may so miss its share by up
to a unit per application at the port; `compute_gap` bounds what that costs.

Given the shares w_ip, an application is promised the least of them. Ports lend idle bandwidth, so
it gets more where others are held back elsewhere:

    r_i = min over its ports of θ_p w_ip,   Σ_i min(r_i, θ_p w_ip) = C_p  wherever θ_p is finite,

found by setting each θ_p in turn until none changes.
Entry points: `split_fabric`, `build_fabric_plan`, `compare_plans`. Shares are of a link, prices
slowdown per whole link.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from immutables import Map
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from weft.control.policy.allocate import least_units
from weft.control.policy.lending import Demands
from weft.control.policy.levels import IntArray
from weft.control.policy.plan import (
    ConnectionPath,
    Plan,
    Policy,
    PortPlan,
    application_name,
    build_plan,
    format_port,
)
from weft.control.policy.port_policy import PortPolicy
from weft.errors import InputError
from weft.fabric import Port
from weft.sensitivity.model import FloatArray, Sensitivity

Paths = Mapping[str, Collection[Port]]  # all ports of each application

_SEARCH = {"maxiter": 3000, "maxfun": 10000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-10}


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSplit:
    """Shares that make the fabric's total slowdown least, and the proof.

    `bound` is what no split goes below. `prices`: by how much the total would fall per link's worth
    of room at each port, 0 where a port holds nobody back.
    """

    shares: Mapping[str, float]
    slowdown: float
    bound: float
    prices: Mapping[Port, float]

    @property
    def gap(self) -> float:
        """How far the total may be above the least, as a fraction of the total."""
        return max(0.0, self.slowdown - self.bound) / abs(self.slowdown)


def split_fabric(
    models: Mapping[str, Sensitivity], paths: Paths, capacity: Mapping[Port, float]
) -> FabricSplit:
    """The least total slowdown of the applications of `paths`, given `capacity` of each port."""
    names = sorted(paths)
    ports = sorted({port for name in names for port in paths[name]})
    problem = _Problem.of(
        [models[name] for name in names],
        _build_incidence(names, ports, paths),
        np.array([capacity[port] for port in ports]),
    )
    _check_floors(problem, ports)
    prices = problem.best_prices()
    shares = problem.fill(problem.fit_ports(problem.shares_at(prices)))
    return FabricSplit(
        shares=dict(zip(names, shares.tolist(), strict=True)),
        slowdown=float(problem.demands.slowdown(shares).sum()),
        bound=problem.bound(prices),
        prices=dict(zip(ports, prices.tolist(), strict=True)),
    )


def _build_incidence(names: list[str], ports: list[Port], paths: Paths) -> csr_matrix:
    row = {port: i for i, port in enumerate(ports)}
    cells = [(row[port], column) for column, name in enumerate(names) for port in set(paths[name])]
    if not cells:
        raise InputError("fabric", "no application uses a port", "give at least one connection")
    rows, columns = zip(*cells, strict=True)
    return csr_matrix((np.ones(len(cells)), (rows, columns)), shape=(len(ports), len(names)))


def _check_floors(problem: _Problem, ports: list[Port]) -> None:
    floors = problem.holds @ problem.demands.floor
    short = np.flatnonzero(floors > problem.capacity * (1 + 1e-12))
    if len(short):
        p = short[0]
        floors_text = (
            f"floors of {problem.holds[[p]].nnz} applications sum to {floors[p]:.3g} of the link"
        )
        where = f"node {ports[p].node} port {ports[p].port}"
        remedy = "profile them at lower shares"
        raise InputError(where, f"{floors_text}, and they have {problem.capacity[p]:.3g}", remedy)


@dataclass(frozen=True, slots=True)
class _Problem:
    """Applications as columns of `holds`, ports as rows."""

    demands: Demands
    holds: csr_matrix
    by_application: csr_matrix
    capacity: FloatArray

    @classmethod
    def of(cls, models: list[Sensitivity], holds: csr_matrix, capacity: FloatArray) -> _Problem:
        return cls(Demands.of(models), holds, holds.T.tocsr(), capacity)

    def shares_at(self, prices: FloatArray) -> FloatArray:
        return self.demands.find_shares(self.by_application @ prices)

    def bound(self, prices: FloatArray) -> float:
        return self._bound(prices, self.shares_at(prices))

    def _bound(self, prices: FloatArray, shares: FloatArray) -> float:
        paid = (self.by_application @ prices) * shares
        return float((self.demands.slowdown(shares) + paid).sum() - self.capacity @ prices)

    def best_prices(self) -> FloatArray:
        def negate_bound(prices: FloatArray) -> tuple[float, FloatArray]:
            shares = self.shares_at(prices)
            return -self._bound(prices, shares), self.capacity - self.holds @ shares

        ports = len(self.capacity)
        optimum = minimize(
            negate_bound,
            np.ones(ports),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * ports,
            options=_SEARCH,
        )
        return np.asarray(optimum.x)

    def fit_ports(self, shares: FloatArray) -> FloatArray:
        """Shares within every port: what exceeds a floor is cut by the worst excess on its path."""
        floor = self.demands.floor
        above, room = self.holds @ (shares - floor), self.capacity - self.holds @ floor
        cut = np.where(above > room, np.maximum(room, 0.0) / np.maximum(above, 1e-300), 1.0)
        least = [cut[self._ports(i)].min(initial=1.0) for i in range(len(shares))]
        return np.asarray(floor + (shares - floor) * np.array(least))

    def fill(self, shares: FloatArray) -> FloatArray:
        """Each application in turn takes what its path has left, where that makes it faster."""
        room = np.maximum(0.0, self.capacity - self.holds @ shares)
        current = self.demands.slowdown(shares)
        shares = shares.copy()
        for i in range(len(shares)):
            ports = self._ports(i)
            filled = min(1.0, float(shares[i] + room[ports].min(initial=1.0)))
            if self._slowdown(i, filled) < current[i]:
                room[ports] = np.maximum(0.0, room[ports] - (filled - shares[i]))
                shares[i] = filled
        return shares

    def _slowdown(self, application: int, share: float) -> float:
        everyone = np.maximum(self.demands.floor, share)
        return float(self.demands.slowdown(everyone)[application])

    def _ports(self, application: int) -> IntArray:
        by = self.by_application
        return np.asarray(by.indices[by.indptr[application] : by.indptr[application + 1]])


Shares = Mapping[Port, Mapping[str, float]]  # of each application at each port

_SWEEPS = 1000
_SETTLED = 1e-10


def find_promised_rates(shares: Shares) -> dict[str, float]:
    """The least share of each application along its path."""
    rates: dict[str, float] = {}
    for port in shares.values():
        for name, share in port.items():
            rates[name] = min(share, rates.get(name, 1.0))
    return rates


def find_working_rates(shares: Shares, capacity: Mapping[Port, float]) -> dict[str, float] | None:
    """Rates if all send as much as they can, at most a whole link; None if they do not settle."""
    names = sorted({name for port in shares.values() for name in port})
    weights = np.array([[port.get(name, np.inf) for name in names] for port in shares.values()])
    offers = weights.copy()
    for _ in range(_SWEEPS):
        before = offers.copy()
        for p, (port, weight) in enumerate(zip(shares, weights, strict=True)):
            present = np.isfinite(weight)
            elsewhere = np.minimum(np.delete(offers, p, axis=0).min(axis=0, initial=np.inf), 1.0)
            level = _find_level(weight[present], elsewhere[present], capacity[port])
            offers[p, present] = weight[present] * level
        if np.allclose(offers, before, rtol=_SETTLED, atol=0.0):
            return dict(zip(names, np.minimum(offers.min(axis=0), 1.0).tolist(), strict=True))
    return None


def _find_level(weights: FloatArray, limits: FloatArray, capacity: float) -> float:
    """θ with Σ min(limit, θ · weight) = capacity; without bound where the limits leave room."""
    if limits.sum() <= capacity:
        return float("inf")
    order = np.argsort(limits / weights)
    limits, weights = limits[order], weights[order]
    used = np.concatenate([[0.0], np.cumsum(limits)[:-1]])
    level = (capacity - used) / np.cumsum(weights[::-1])[::-1]
    return float(level[np.argmax(level * weights <= limits)])


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSlowdowns:
    """Mean slowdown of a fabric's applications under a plan, whole paths counted.

    `promised`: each has the least of its shares. `working`: what others leave is used too, as ports
    do that serve by weights; None where those rates do not settle.
    """

    promised: float
    working: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """Plans of the same connections by the local rule and fabric-wide.

    `gap`: no split could promise a total slowdown below the fabric-wide plan's by more than this
    part of it.
    """

    local: PathSlowdowns
    wide: PathSlowdowns
    gap: float

    @property
    def promised(self) -> float:
        """How much lower the promised mean slowdown is fabric-wide, as a fraction."""
        return 1 - self.wide.promised / self.local.promised

    @property
    def working(self) -> float | None:
        """The same with lending; None where rates do not settle."""
        if self.local.working is None or self.wide.working is None:
            return None
        return 1 - self.wide.working / self.local.working


def build_fabric_plan(
    policy: Policy, connections: Iterable[ConnectionPath]
) -> tuple[Plan, FabricSplit]:
    """The plan with fabric-wide weights, and the split that they follow."""
    local = build_plan(policy, connections)
    _check_room(local)
    paths = collect_paths(local)
    models = {name: policy.models[application_name(name)] for name in paths}
    split = split_fabric(models, paths, _capacities(local))
    ports = {port: _set_weights(port_plan, split) for port, port_plan in local.ports.items()}
    return Plan(policy=policy, ports=Map(ports)), split


def compute_gap(plan: Plan, split: FabricSplit) -> float:
    """How far a plan's promised total slowdown is above the least, at most, as a fraction."""
    rates = find_promised_rates(plan.shares)
    total = _mean_slowdown(plan.policy, rates) * len(rates)
    return max(0.0, total - split.bound) / abs(total)


def compare_plans(policy: Policy, connections: Iterable[ConnectionPath]) -> PlanComparison:
    """Compares the fabric-wide plan of these connections with the local one."""
    paths = tuple(connections)
    wide, split = build_fabric_plan(policy, paths)
    return PlanComparison(
        local=predict_path_slowdowns(build_plan(policy, paths)),
        wide=predict_path_slowdowns(wide),
        gap=compute_gap(wide, split),
    )


def predict_path_slowdowns(plan: Plan) -> PathSlowdowns:
    """Mean slowdowns that a plan gives along whole paths."""
    working = find_working_rates(plan.shares, _capacities(plan))
    return PathSlowdowns(
        promised=_mean_slowdown(plan.policy, find_promised_rates(plan.shares)),
        working=None if working is None else _mean_slowdown(plan.policy, working),
    )


def collect_paths(plan: Plan) -> dict[str, list[Port]]:
    """Ports of each application that has a connection."""
    paths: dict[str, list[Port]] = {}
    for port, counts in plan.present.items():
        for name in counts:
            paths.setdefault(name, []).append(port)
    return paths


def _capacities(plan: Plan) -> dict[Port, float]:
    return {port: port_plan.policy.capacity for port, port_plan in plan.ports.items()}


def _check_room(plan: Plan) -> None:
    """The local rule squeezes a crowded port; what a model says below its floor is no optimum."""
    for port, port_plan in plan.ports.items():
        need, room = port_plan.least_units, port_plan.policy.managed_units
        if need > room:
            floors = f"the floors of {len(port_plan.names)} applications take {need} units"
            remedy = "profile at lower shares or admit fewer applications"
            raise InputError(format_port(port), f"{floors}, the capacity is {room}", remedy)


def _mean_slowdown(policy: Policy, rates: Mapping[str, float]) -> float:
    models = policy.models
    return float(
        np.mean([models[application_name(name)].slowdown(rate) for name, rate in rates.items()])
    )


def _set_weights(port_plan: PortPlan, split: FabricSplit) -> PortPlan:
    wanted = [(a.model, split.shares[a.application]) for a in port_plan.applications]
    return replace(port_plan, weights=tuple(_round_units(port_plan.policy, wanted)), gap=None)


def _round_units(port: PortPolicy, applications: Sequence[tuple[Sensitivity, float]]) -> list[int]:
    """Whole units in proportion to the shares, floors kept, the largest remainders rounded up."""
    least = np.array([least_units(model, port.units) for model, _ in applications])
    shares = np.array([share for _, share in applications])
    spare = port.managed_units - int(least.sum())
    wanted = np.maximum(shares * port.managed_units / shares.sum() - least, 1e-12)
    exact = wanted * spare / wanted.sum()
    units = np.floor(exact + 1e-9).astype(int)
    short = spare - int(units.sum())
    units[np.argsort(units - exact, kind="stable")[:short]] += 1
    return [int(unit) for unit in least + units]
