"""The split of a whole fabric: an application's rate is the least of its shares along its path.

Saba splits each port on its own, and an application with much at one port may be held back at
another. Here each application has one share b_i, and

    minimise  Σ D_i(b_i)   over   floor_i ≤ b_i ≤ 1,   Σ_{i at p} b_i ≤ C_p  for every port p.

For prices λ_p ≥ 0 of the ports, bound(λ) = Σ_i min_b (D_i(b) + b Σ_{p of i} λ_p) − Σ_p C_p λ_p is
never above the least total. It is concave and, for convex models, differentiable: its slope in λ_p
is Σ_{i at p} b_i(λ) − C_p. L-BFGS-B raises it to its greatest; the shares at those prices, brought
within every port and filled up where ports have room, are the answer. `gap` is the certificate:
no split of these ports is better by more. For convex models it goes to nought; for polynomials
that are not convex a gap may stay, as the bound is that of their convex envelopes.

Entry point: `fabric_wide`. Shares are of a link, prices slowdown per whole link.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from weft.control.policy.kmeans import IntArray
from weft.control.policy.response import Responses
from weft.errors import InputError
from weft.fabric import Port
from weft.sensitivity.model import FloatArray, Sensitivity

Paths = Mapping[str, Collection[Port]]  # all ports of each application

_SEARCH = {"maxiter": 3000, "maxfun": 10000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-10}


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricWide:
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
        """The total is at most this part of itself above the least."""
        return max(0.0, self.slowdown - self.bound) / abs(self.slowdown)


def fabric_wide(
    models: Mapping[str, Sensitivity], paths: Paths, capacity: Mapping[Port, float]
) -> FabricWide:
    """The least total slowdown of the applications of `paths`, given `capacity` of each port."""
    names = sorted(paths)
    ports = sorted({port for name in names for port in paths[name]})
    problem = _Problem.of(
        [models[name] for name in names],
        _incidence(names, ports, paths),
        np.array([capacity[port] for port in ports]),
    )
    _check(problem, ports)
    prices = problem.best_prices()
    shares = problem.filled(problem.within(problem.shares_at(prices)))
    return FabricWide(
        shares=dict(zip(names, shares.tolist(), strict=True)),
        slowdown=float(problem.responses.slowdown(shares).sum()),
        bound=problem.bound(prices),
        prices=dict(zip(ports, prices.tolist(), strict=True)),
    )


def _incidence(names: list[str], ports: list[Port], paths: Paths) -> csr_matrix:
    row = {port: i for i, port in enumerate(ports)}
    cells = [(row[port], column) for column, name in enumerate(names) for port in set(paths[name])]
    if not cells:
        raise InputError("fabric", "no application uses a port", "give at least one connection")
    rows, columns = zip(*cells, strict=True)
    return csr_matrix((np.ones(len(cells)), (rows, columns)), shape=(len(ports), len(names)))


def _check(problem: _Problem, ports: list[Port]) -> None:
    floors = problem.holds @ problem.responses.floor
    short = np.flatnonzero(floors > problem.capacity * (1 + 1e-12))
    if len(short):
        p = short[0]
        told = f"floors of {problem.holds[[p]].nnz} applications sum to {floors[p]:.3g} of the link"
        where = f"node {ports[p].node} port {ports[p].port}"
        remedy = "profile them at lower shares"
        raise InputError(where, f"{told}, and they have {problem.capacity[p]:.3g}", remedy)


@dataclass(frozen=True, slots=True)
class _Problem:
    """Applications as columns of `holds`, ports as rows."""

    responses: Responses
    holds: csr_matrix
    by_application: csr_matrix
    capacity: FloatArray

    @classmethod
    def of(cls, models: list[Sensitivity], holds: csr_matrix, capacity: FloatArray) -> _Problem:
        return cls(Responses.of(models), holds, holds.T.tocsr(), capacity)

    def shares_at(self, prices: FloatArray) -> FloatArray:
        return self.responses.at_price(self.by_application @ prices)

    def bound(self, prices: FloatArray) -> float:
        return self._bound(prices, self.shares_at(prices))

    def _bound(self, prices: FloatArray, shares: FloatArray) -> float:
        paid = (self.by_application @ prices) * shares
        return float((self.responses.slowdown(shares) + paid).sum() - self.capacity @ prices)

    def best_prices(self) -> FloatArray:
        def falling(prices: FloatArray) -> tuple[float, FloatArray]:
            shares = self.shares_at(prices)
            return -self._bound(prices, shares), self.capacity - self.holds @ shares

        ports = len(self.capacity)
        found = minimize(
            falling,
            np.ones(ports),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * ports,
            options=_SEARCH,
        )
        return np.asarray(found.x)

    def within(self, shares: FloatArray) -> FloatArray:
        """What each application has above its floor, cut by the worst excess on its path."""
        floor = self.responses.floor
        above, room = self.holds @ (shares - floor), self.capacity - self.holds @ floor
        cut = np.where(above > room, np.maximum(room, 0.0) / np.maximum(above, 1e-300), 1.0)
        least = [cut[self._ports(i)].min(initial=1.0) for i in range(len(shares))]
        return np.asarray(floor + (shares - floor) * np.array(least))

    def filled(self, shares: FloatArray) -> FloatArray:
        """Each application in turn takes what its path has left, where that makes it faster."""
        left = np.maximum(0.0, self.capacity - self.holds @ shares)
        now = self.responses.slowdown(shares)
        shares = shares.copy()
        for i in range(len(shares)):
            ports = self._ports(i)
            more = min(1.0, float(shares[i] + left[ports].min(initial=1.0)))
            if self._slowdown(i, more) < now[i]:
                left[ports] = np.maximum(0.0, left[ports] - (more - shares[i]))
                shares[i] = more
        return shares

    def _slowdown(self, application: int, share: float) -> float:
        everyone = np.maximum(self.responses.floor, share)
        return float(self.responses.slowdown(everyone)[application])

    def _ports(self, application: int) -> IntArray:
        by = self.by_application
        return np.asarray(by.indices[by.indptr[application] : by.indptr[application + 1]])
