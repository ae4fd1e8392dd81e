"""The plan of a fabric: for every port its queues, their weights, and who is in which and why.

A plan follows from the policy (models, levels, hierarchy, ports) and the connections alone. Each
port is split on its own (Saba, Eq. 4.2): its applications' weights make their total slowdown least,
in the scheduler's units; the levels present are mapped to its queues; a queue's weight is the sum
of its applications' weights. A connection that comes or goes concerns only the ports of its path.
Entry points: `policy_of`, `plan`, `with_connection`, `without_connection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from weft.control.policy.allocate import Models, allocate
from weft.control.policy.connection import Connection
from weft.control.policy.levels import Levels, levels_of
from weft.control.policy.port import PortPolicy
from weft.control.policy.queues import Hierarchy, QueueMap, hierarchy_of, queues_at
from weft.errors import InputError
from weft.fabric import Port
from weft.sensitivity.model import Sensitivity

Present = Mapping[Port, Mapping[str, int]]  # connections of each application at each port


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What does not change with connections. `ports` names those unlike `port`."""

    models: Mapping[str, Sensitivity]
    levels: Levels
    hierarchy: Hierarchy
    port: PortPolicy
    ports: Mapping[Port, PortPolicy] = field(default_factory=dict)
    solver: Models = field(init=False, compare=False, repr=False)  # the models, sorted by name
    rows: Mapping[str, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        missing = sorted(self.models.keys() ^ self.levels.assignment.keys())
        if missing:
            problem = "has a model or a level, not both"
            raise InputError(f"application {missing[0]}", problem, "make levels of all models")
        names = sorted(self.models)
        object.__setattr__(self, "solver", Models([self.models[name] for name in names]))
        object.__setattr__(self, "rows", {name: row for row, name in enumerate(names)})

    def at(self, port: Port) -> PortPolicy:
        return self.ports.get(port, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """An application at a port: its level, the queue of that level, its part of that weight."""

    application: str
    model: Sensitivity
    connections: int
    level: int
    queue: int
    units: int
    share: float  # of the link

    @property
    def slowdown(self) -> float:
        """What the model predicts with this share."""
        return float(self.model.slowdown(self.share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A managed queue: the levels it serves here, and its weight in the scheduler's units."""

    number: int
    levels: tuple[int, ...]
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPlan:
    """What a port is to be told, and from what it follows.

    `step`: of the hierarchy, the first that fits the queues. `gap`: the split's total slowdown is
    at most this part of itself above the least; None where it was made for the whole fabric.
    """

    policy: PortPolicy
    step: int
    queues: tuple[Queue, ...]
    applications: tuple[Assigned, ...]
    gap: float | None

    @property
    def slowdown(self) -> float:
        """Predicted, summed over the applications."""
        return sum(assigned.slowdown for assigned in self.applications)

    @property
    def units(self) -> dict[int, int]:
        """Units of every queue, unmanaged traffic and latency lane included."""
        policy = self.policy
        told = {0: policy.unmanaged_units} if policy.unmanaged_units else {}
        told |= {queue.number: queue.units for queue in self.queues}
        if policy.lane is not None:
            told[policy.scheduler.queues - 1] = policy.lane_units
        return told

    def of(self, application: str) -> Assigned:
        """Where an application is, and why."""
        for assigned in self.applications:
            if assigned.application == application:
                return assigned
        raise InputError(f"application {application}", "is not at this port", "name one that is")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every port that carries a connection."""

    policy: Policy
    present: Present
    ports: Mapping[Port, PortPlan]

    @property
    def shares(self) -> dict[Port, dict[str, float]]:
        """Share of each application at each port."""
        return {
            port: {assigned.application: assigned.share for assigned in told.applications}
            for port, told in self.ports.items()
        }


def policy_of(
    models: Mapping[str, Sensitivity],
    port: PortPolicy,
    levels: int,
    ports: Mapping[Port, PortPolicy] | None = None,
) -> Policy:
    """The policy for these applications, in at most so many levels."""
    found = levels_of(models, levels)
    return Policy(models=dict(models), levels=found, hierarchy=hierarchy_of(found), port=port,
                  ports=dict(ports or {}))  # fmt: skip


def plan(policy: Policy, connections: Iterable[Connection]) -> Plan:
    """The plan of all ports that these connections use."""
    present: dict[Port, dict[str, int]] = {}
    for connection in connections:
        _check_application(policy, connection)
        for port in connection.ports:
            here = present.setdefault(port, {})
            here[connection.application] = here.get(connection.application, 0) + 1
    return _planned(policy, present)


def with_connection(before: Plan, connection: Connection) -> Plan:
    """The plan with one connection more: the same as that of all connections anew."""
    _check_application(before.policy, connection)
    return _changed(before, connection, 1)


def without_connection(before: Plan, connection: Connection) -> Plan:
    """The plan with one connection less: the same as that of the others anew."""
    for port in connection.ports:
        if not before.present.get(port, {}).get(connection.application):
            where = f"node {port.node} port {port.port}"
            problem = f"no connection of {connection.application} to take away"
            raise InputError(where, problem, "name one that was made")
    return _changed(before, connection, -1)


def _check_application(policy: Policy, connection: Connection) -> None:
    if connection.application not in policy.models:
        where = f"application {connection.application}"
        raise InputError(where, "is not registered", "register it first")


def _changed(before: Plan, connection: Connection, by: int) -> Plan:
    name = connection.application
    present, ports = dict(before.present), dict(before.ports)
    touched = {}
    for port in connection.ports:
        counts = dict(present.pop(port, {}))
        counts[name] = counts.get(name, 0) + by
        touched[port] = {other: count for other, count in counts.items() if count}
        ports.pop(port, None)
    after = _planned(before.policy, {port: counts for port, counts in touched.items() if counts})
    return replace(before, present=present | dict(after.present), ports=ports | dict(after.ports))


def _planned(policy: Policy, present: Present) -> Plan:
    at = [policy.at(port) for port in present]
    found = allocate(
        policy.solver,
        [[policy.rows[name] for name in sorted(counts)] for counts in present.values()],
        units=[own.units for own in at],
        capacity=[own.capacity for own in at],
    )
    ends = found.ports.offsets.tolist()
    weights = [found.weights[start:end].tolist() for start, end in pairwise(ends)]
    return assembled(policy, present, weights, found.gap.tolist())


def assembled(
    policy: Policy,
    present: Present,
    weights: Sequence[Sequence[int]],
    gaps: Sequence[float | None],
) -> Plan:
    """The plan with these units of each port's applications, in alphabetical order."""
    level_of = policy.levels.assignment
    mapped: dict[tuple[frozenset[int], int], QueueMap] = {}
    ports = {}
    for (port, counts), units, gap in zip(present.items(), weights, gaps, strict=True):
        own = policy.at(port)
        key = frozenset(level_of[name] for name in counts), own.managed_queues
        if key not in mapped:
            mapped[key] = queues_at(policy.hierarchy, *key)
        queue_of = _numbered(mapped[key], own.first_managed_queue)
        applications = tuple(
            Assigned(
                application=name,
                model=policy.models[name],
                connections=counts[name],
                level=level_of[name],
                queue=queue_of[level_of[name]],
                units=own_units,
                share=own_units / own.units,
            )
            for name, own_units in zip(sorted(counts), units, strict=True)
        )
        ports[port] = PortPlan(policy=own, step=mapped[key].step, applications=applications,
                               queues=_queues(queue_of, applications), gap=gap)  # fmt: skip
    return Plan(policy=policy, present=present, ports=ports)


def _numbered(mapped: QueueMap, first: int) -> dict[int, int]:
    """Queue number of each level."""
    return {level: n for n, levels in enumerate(mapped.queues, start=first) for level in levels}


def _queues(queue_of: Mapping[int, int], applications: Sequence[Assigned]) -> tuple[Queue, ...]:
    return tuple(
        Queue(
            number=number,
            levels=tuple(level for level, queue in queue_of.items() if queue == number),
            units=sum(assigned.units for assigned in applications if assigned.queue == number),
        )
        for number in dict.fromkeys(queue_of.values())
    )
