"""The split of each port that makes the total slowdown of its applications least.

Per port: minimise Σ D_i(w_i) over whole units, Σ w_i = capacity × units, w_i at or above the floor
of the application's model and at least one unit. core/allocate has the mathematics and the search.

A controller must serve all applications of a port even where their floors exceed its capacity.
There, all floors are halved until they fit, with the models extrapolated; the split uses units so
fine that each application has two, folded back to whole units, so that some may have none. Ports
squeezed alike are solved in one call.
Entry points: `allocate`, any number of ports at once; `split_ports` with `ModelSet`, any floors.

Units: a port has `units` of weight (an InfiniBand table entry holds 255, HTB takes kbit/s);
`capacity` is the share of them that these applications may have.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, pairwise
from math import ceil

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft._core import Allocator
from weft.control.policy.port_policy import PortPolicy
from weft.errors import InputError
from weft.sensitivity.model import Hinges, Sensitivity

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_UNITS = 2**40  # of a link


@dataclass(frozen=True, slots=True)
class Models:
    """The applications' models in the core's format; reusable for any number of ports."""

    core: Allocator

    @classmethod
    def of(cls, models: Sequence[Sensitivity]) -> Models:
        numbers = [_list_numbers(model) for model in models]
        core = Allocator(
            np.array([isinstance(model, Hinges) for model in models], dtype=np.uint8),
            np.array([model.floor for model in models], dtype=np.float64),
            _compute_offsets([len(terms) for terms in numbers]),
            np.array([x for terms in numbers for x in terms], dtype=np.float64),
        )
        return cls(core)


def _list_numbers(model: Sensitivity) -> Sequence[float]:
    if isinstance(model, Hinges):
        return [x for term in model.terms for x in term]
    return model.coefficients


def _compute_offsets(lengths: Sequence[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The applications of port p are applications[offsets[p]:offsets[p + 1]]."""

    offsets: Ints
    applications: NDArray[np.int32]

    @classmethod
    def of(cls, ports: Iterable[Sequence[int]]) -> Ports:
        lists = [list(port) for port in ports]
        offsets = _compute_offsets([len(port) for port in lists])
        flat = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(offsets[-1]))
        return cls(offsets=offsets, applications=flat)

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Weights of every application at every port, and what they are worth.

    `objective` is the total slowdown at each port; no split in these units is better by more than
    `gap` × |objective| (0: proved best, up to the rounding of floating point). `multiplier` is what
    one unit more would save there, in slowdown per share, if it went to one application and the
    others kept theirs: with convex models nothing else saves more.
    """

    ports: Ports
    units: Ints
    weights: Ints
    objective: Floats
    gap: Floats
    multiplier: Floats

    def at(self, port: int) -> dict[int, int]:
        """Weight of each application at one port, where each occurs once."""
        applications = slice(int(self.ports.offsets[port]), int(self.ports.offsets[port + 1]))
        names, weights = (
            self.ports.applications[applications].tolist(),
            self.weights[applications].tolist(),
        )
        weight_of = dict(zip(names, weights, strict=True))
        if len(weight_of) < len(names):
            raise InputError(f"port {port}", "an application occurs twice", "see `weights`")
        return weight_of

    @property
    def shares(self) -> Floats:
        """The weights as shares of the link, in the order of `ports.applications`."""
        return self.weights / np.repeat(self.units, np.diff(self.ports.offsets))


def allocate(
    models: Models | Sequence[Sensitivity],
    ports: Ports | Iterable[Sequence[int]],
    *,
    units: int | ArrayLike,
    capacity: float | ArrayLike = 1.0,
    threads: int = 1,
) -> Allocation:
    """The best weights at each port, whose applications are indices into `models`.

    An index that occurs twice has two weights, like two applications of the same model. Many ports
    are solved on up to `threads` threads; the weights are the same for any number.
    """
    models = models if isinstance(models, Models) else Models.of(models)
    ports = ports if isinstance(ports, Ports) else Ports.of(ports)
    count = len(ports)
    all_units = _check_units(_spread_over_ports("units", units, count))
    budget = _compute_budget(all_units, _spread_over_ports("capacity", capacity, count))
    return _solve_ports(models, ports, all_units, budget, threads)


def _solve_ports(
    models: Models, ports: Ports, units: Ints, budget: Ints, threads: int
) -> Allocation:
    """`units` of each link, `budget` of them for these applications."""
    count = len(ports)
    weights = np.empty(len(ports.applications), dtype=np.int64)
    objective, gap, multiplier = np.empty(count), np.empty(count), np.empty(count)
    models.core.solve(
        ports.offsets,
        ports.applications,
        units,
        budget,
        weights,
        objective,
        gap,
        multiplier,
        threads=threads,
    )
    return Allocation(
        ports=ports,
        units=units,
        weights=weights,
        objective=objective,
        gap=gap,
        multiplier=multiplier,
    )


def _spread_over_ports(name: str, value: float | ArrayLike, count: int) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim > 1 or array.size not in (1, count):
        problem = f"{array.size} values for {count} ports"
        raise InputError(name, problem, "give one number, or one per port")
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (count,)))


def _check_units(units: Floats) -> Ints:
    bad = units[~((units >= 1) & (units <= MAX_UNITS) & (units == np.floor(units)))]
    if bad.size:
        problem = f"{bad[0]:.15g} is not a whole number from 1 to 2^40"
        raise InputError("units", problem, "give the units that the whole link is divided into")
    return units.astype(np.int64)


def _compute_budget(units: Ints, capacity: Floats) -> Ints:
    """Whole units within the capacity; a product just below a whole number counts as that."""
    bad = capacity[~((capacity > 0) & (capacity <= 1))]
    if bad.size:
        problem = f"{bad[0]:g} is not above 0 and up to 1"
        raise InputError("capacity", problem, "give a share of the link")
    whole_units = np.floor(units * capacity * (1 + 1e-12)).astype(np.int64)
    return np.asarray(np.minimum(units, whole_units))


Weights = tuple[int, ...]

_ROUNDING = 1e-12  # a floor that was computed from a whole number of units means that number


@dataclass(frozen=True, slots=True)
class Squeeze:
    """How often a port's floors are halved, and how much finer its units are."""

    halvings: int
    finer: int


_ROOMY = Squeeze(0, 1)


class ModelSet:
    """The models of a policy at every halving of their floors, built on first use."""

    def __init__(self, models: Sequence[Sensitivity]) -> None:
        self._lowered = [tuple(models)]
        self._solvers = {0: Models.of(models)}
        self._needs: dict[tuple[int, int], tuple[int, ...]] = {}
        self._max_needs: dict[int, int] = {}

    def solver(self, halvings: int) -> Models:
        if halvings not in self._solvers:
            self._solvers[halvings] = Models.of(self._halve_floors(halvings))
        return self._solvers[halvings]

    def need(self, rows: Sequence[int], units: int, halvings: int = 0) -> int:
        """Units of a link that the floors of these applications take."""
        key = units, halvings
        if key not in self._needs:
            self._needs[key] = tuple([least_units(m, units) for m in self._halve_floors(halvings)])
        return sum(map(self._needs[key].__getitem__, rows))

    def squeeze(self, rows: Sequence[int], port: PortPolicy) -> Squeeze:
        """The squeeze that makes these applications fit the port."""
        managed_units = port.managed_units
        if len(rows) * self._max_need(port.units) <= managed_units:
            return _ROOMY
        if self.need(rows, port.units) <= managed_units:
            return _ROOMY
        finer = next(2**n for n in count() if port.managed_units * 2**n >= 2 * len(rows))
        units, room = port.units * finer, port.managed_units * finer
        return Squeeze(next(n for n in count() if self.need(rows, units, n) <= room), finer)

    def _max_need(self, units: int) -> int:
        """Units that the greatest floor takes."""
        if units not in self._max_needs:
            models = self._lowered[0]
            self._max_needs[units] = max([least_units(m, units) for m in models], default=0)
        return self._max_needs[units]

    def _halve_floors(self, halvings: int) -> tuple[Sensitivity, ...]:
        while len(self._lowered) <= halvings:
            self._lowered.append(
                tuple([replace(model, floor=model.floor / 2) for model in self._lowered[-1]])
            )
        return self._lowered[halvings]


def least_units(model: Sensitivity, units: int) -> int:
    """Units of a link that an application must have."""
    return max(1, ceil(model.floor * units * (1 - _ROUNDING)))


def split_ports(
    models: ModelSet, rows: Sequence[Sequence[int]], at: Sequence[PortPolicy]
) -> list[tuple[Weights, float]]:
    """Units of each application (a row of `models`) at each port, and the gap of that split."""
    by_squeeze: dict[Squeeze, list[int]] = {}
    for place, (port_rows, port) in enumerate(zip(rows, at, strict=True)):
        by_squeeze.setdefault(models.squeeze(port_rows, port), []).append(place)
    answers: dict[int, tuple[Weights, float]] = {}
    for squeeze, places in by_squeeze.items():
        answers |= _solve(models, squeeze, {n: (rows[n], at[n]) for n in places})
    return [answers[place] for place in range(len(rows))]


def _solve(
    models: ModelSet, squeeze: Squeeze, ports: Mapping[int, tuple[Sequence[int], PortPolicy]]
) -> dict[int, tuple[Weights, float]]:
    finer = squeeze.finer
    allocation = _solve_ports(
        models.solver(squeeze.halvings),
        Ports.of([rows for rows, _ in ports.values()]),
        np.array([port.units * finer for _, port in ports.values()], dtype=np.int64),
        np.array([port.managed_units * finer for _, port in ports.values()], dtype=np.int64),
        threads=len(os.sched_getaffinity(0)),
    )
    weights, gaps = tuple(allocation.weights.tolist()), allocation.gap.tolist()
    parts = [weights[start:end] for start, end in pairwise(allocation.ports.offsets.tolist())]
    if finer > 1:
        totals = [port.managed_units for _, port in ports.values()]
        parts = [_fold_units(part, total) for part, total in zip(parts, totals, strict=True)]
    return dict(zip(ports, zip(parts, gaps, strict=True), strict=True))


def _fold_units(weights: Weights, total: int) -> Weights:
    """Rounds to whole units that sum to the total.

    Neighbours together miss their sum by less than one unit; registrations of one application are
    neighbours.
    """
    ends = np.round(np.cumsum(weights) * (total / sum(weights))).astype(np.int64)
    return tuple(np.diff(ends, prepend=0).tolist())
