"""The plan of a fabric: every port's queues and weights, and which application is in which queue.

A plan is a function of the policy (models, levels, hierarchy, ports) and the connections. Each port
is split on its own, in the scheduler's units and by the policy's objective: its applications'
weights minimise their total slowdown (Saba, Eq. 4.2), follow their sizes, or are equal. The levels
present are mapped to its queues; a queue's weight is the sum of its
applications' weights. Adding or removing a connection changes only the ports of its path.
A connection uses the ports of every path between its hosts that routing may choose.
Registrations of one application differ by a number after the name, `LR#3`; each has its own weight.
Entry points: `build_policy`, `build_plan`, `add_connection`, `remove_connection`,
`change_connections`, `resize`, `replan`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain

from immutables import Map

from weft.control.policy.allocate import ModelSet, split_ports
from weft.control.policy.levels import (
    Hierarchy,
    Levels,
    QueueMap,
    assign_levels,
    build_hierarchy,
    map_queues,
    partition_queues,
)
from weft.control.policy.objectives import (
    BOUNDED,
    EQUAL,
    PROFILED,
    SIZE,
    SLOWDOWN,
    STATED,
    UNKNOWN,
    bound_size,
    split_in_proportion,
    weigh_by_size,
)
from weft.control.policy.port_policy import PortPolicy
from weft.errors import InputError
from weft.fabric import Fabric, Port, path
from weft.sensitivity.model import Sensitivity

Present = Mapping[Port, Mapping[str, int]]  # connections of each application at each port
# Names in alphabetical order, their connections, rows of their models in the policy's `model_set`.
Columns = tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]
_NO_COLUMNS: Columns = (), (), ()


@lru_cache(1 << 17)  # ports of a hundred registrations are split thousands of times a second
def application_name(application: str) -> str:
    """The name in a registration's id, NAME#NUMBER."""
    return application.partition("#")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a plan is computed from, besides connections. `ports` has the ports unlike `port`.

    Levels share queues by the hierarchy, or by their best partition (`has_exact_queues`).
    `profiled_bytes`: size of each application's profiled run; `stated_bytes`: what registrations
    say that they are going to move, which goes before it.
    """

    models: Mapping[str, Sensitivity]
    levels: Levels
    hierarchy: Hierarchy
    port: PortPolicy
    ports: Mapping[Port, PortPolicy] = field(default_factory=dict)
    has_exact_queues: bool = False
    objective: str = SLOWDOWN
    profiled_bytes: Mapping[str, float] = field(default_factory=dict)
    stated_bytes: Map[str, int] = field(default_factory=Map)
    model_set: ModelSet = field(init=False, compare=False, repr=False)  # the models, sorted by name
    rows: Mapping[str, int] = field(init=False, compare=False, repr=False)
    level_of: Mapping[str, int] = field(init=False, compare=False, repr=False)
    level_of_row: tuple[int, ...] = field(init=False, compare=False, repr=False)
    _partitions: dict[tuple[frozenset[int], int], QueueMap] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "level_of", self.levels.assignment)
        missing = sorted(self.models.keys() ^ self.level_of.keys())
        if missing:
            problem = "has a model or a level, not both"
            raise InputError(f"application {missing[0]}", problem, "make levels of all models")
        names = sorted(self.models)
        object.__setattr__(self, "model_set", ModelSet([self.models[name] for name in names]))
        object.__setattr__(self, "rows", {name: row for row, name in enumerate(names)})
        object.__setattr__(self, "level_of_row", tuple([self.level_of[name] for name in names]))

    def at(self, port: Port) -> PortPolicy:
        return self.ports.get(port, self.port)

    def map_levels(self, present: frozenset[int], queues: int) -> QueueMap:
        """Queues of the levels present at a port."""
        if not self.has_exact_queues:
            return map_queues(self.hierarchy, present, queues)
        key = present, queues
        if key not in self._partitions:
            self._partitions[key] = partition_queues(self.levels, present, queues)
        return self._partitions[key]

    def split(
        self, columns: Sequence[Columns], at: Sequence[PortPolicy]
    ) -> Sequence[tuple[tuple[int, ...], float | None]]:
        """Units of the applications at each port, and the gap where slowdown is the objective."""
        if self.objective == SLOWDOWN:
            return split_ports(self.model_set, [rows for _, _, rows in columns], at)
        return [
            (split_in_proportion(self._weigh(names), port.managed_units), None)
            for (names, _, _), port in zip(columns, at, strict=True)
        ]

    def _weigh(self, names: Sequence[str]) -> Sequence[float]:
        if self.objective == EQUAL:
            return [1.0] * len(names)
        return weigh_by_size([self.find_size(name)[0] for name in names])

    def find_size(self, name: str) -> tuple[float | None, str]:
        """Bytes of a registration's job, and where they come from."""
        stated = self.stated_bytes.get(name)
        profiled = self.profiled_bytes.get(application_name(name))
        if stated is not None:
            size = bound_size(stated, profiled)
            return size, STATED if size == stated else BOUNDED
        return (None, UNKNOWN) if profiled is None else (profiled, PROFILED)

    def with_size(self, name: str, size_bytes: int) -> Policy:
        """The policy where a registration's job states this size; 0: it states none."""
        sizes = self.stated_bytes
        if size_bytes:
            sizes = sizes.set(name, size_bytes)
        elif name in sizes:
            sizes = sizes.delete(name)
        policy = copy(self)  # its solvers are shared: they know nothing of sizes
        object.__setattr__(policy, "stated_bytes", sizes)
        return policy

    def rows_of(self, names: Iterable[str]) -> tuple[int, ...]:
        """Row of each application's model in `model_set`."""
        return tuple(map(self.rows.__getitem__, map(application_name, names)))

    def levels_of(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Level of each application, by the row of its model."""
        return tuple(map(self.level_of_row.__getitem__, rows))


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
        """The predicted slowdown with this share, or at the floor if the share is below it."""
        return float(self.model.slowdown(max(self.share, self.model.floor)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A managed queue: the levels it serves here, and its weight in the scheduler's units."""

    number: int
    levels: tuple[int, ...]
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPlan:
    """What a port is programmed with, and why.

    Columns of its applications, in alphabetical order; rows are computed on demand. `gap`: the
    total slowdown of the split is at most this fraction above the least; None where that is not the
    objective, or the split is fabric-wide.
    """

    policy: PortPolicy
    mapped: QueueMap
    names: tuple[str, ...]
    counts: tuple[int, ...]  # connections
    rows: tuple[int, ...] = field(repr=False)  # of the models in the policy's `model_set`
    weights: tuple[int, ...]  # in the scheduler's units
    gap: float | None
    fabric_policy: Policy = field(compare=False, repr=False)

    @property
    def step(self) -> int:
        """The first step of the hierarchy that fits the queues; 0: their best partition."""
        return self.mapped.step

    @property
    def queue_of(self) -> dict[int, int]:
        """Queue of each level present."""
        first = self.policy.first_managed_queue
        return {level: n for n, levels in enumerate(self.mapped.queues, first) for level in levels}

    @property
    def queues(self) -> tuple[Queue, ...]:
        units = self.units
        queues = enumerate(self.mapped.queues, self.policy.first_managed_queue)
        return tuple(Queue(number=n, levels=levels, units=units[n]) for n, levels in queues)

    @property
    def applications(self) -> tuple[Assigned, ...]:
        queue_of = self.queue_of
        return tuple(
            Assigned(
                application=name,
                model=self.fabric_policy.models[application_name(name)],
                connections=count,
                level=level,
                queue=queue_of[level],
                units=weight,
                share=weight / self.policy.units,
            )
            for name, count, level, weight in zip(
                self.names, self.counts, self.levels, self.weights, strict=True
            )
        )

    @property
    def levels(self) -> tuple[int, ...]:
        """Level of each application."""
        return self.fabric_policy.levels_of(self.rows)

    @property
    def columns(self) -> Columns:
        return self.names, self.counts, self.rows

    @property
    def connections(self) -> dict[str, int]:
        """How many each application has here."""
        return dict(zip(self.names, self.counts, strict=True))

    @property
    def shares(self) -> dict[str, float]:
        """Share of each application."""
        units = self.policy.units
        return {n: weight / units for n, weight in zip(self.names, self.weights, strict=True)}

    @property
    def slowdown(self) -> float:
        """Predicted, summed over the applications."""
        return sum(assigned.slowdown for assigned in self.applications)

    @property
    def units(self) -> dict[int, int]:
        """Units of every queue, unmanaged traffic and latency lane included."""
        policy, unmanaged = self.policy, self.policy.unmanaged_units
        units = {0: unmanaged} if unmanaged else {}
        units |= enumerate(self._sum_queues(), policy.first_managed_queue)
        if policy.lane is not None:
            units[policy.scheduler.queues - 1] = policy.lane_units
        return units

    def _sum_queues(self) -> list[int]:
        """Units of each managed queue."""
        queues = self.mapped.queues
        place_of = {level: place for place, levels in enumerate(queues) for level in levels}
        sums = [0] * len(queues)
        places = map(place_of.__getitem__, self.levels)
        for place, weight in zip(places, self.weights, strict=True):
            sums[place] += weight
        return sums

    @property
    def least_units(self) -> int:
        """Units that its applications' floors take; at a crowded port more than it has."""
        return self.fabric_policy.model_set.need(self.rows, self.policy.units)

    def of(self, application: str) -> Assigned:
        """The assignment of an application."""
        for assigned in self.applications:
            if assigned.application == application:
                return assigned
        raise InputError(f"application {application}", "is not at this port", "name one that is")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every port that carries a connection."""

    policy: Policy
    ports: Map[Port, PortPlan]

    @property
    def present(self) -> Present:
        """Connections of each application at each port."""
        return {port: port_plan.connections for port, port_plan in self.ports.items()}

    @property
    def shares(self) -> dict[Port, dict[str, float]]:
        """Share of each application at each port."""
        return {port: port_plan.shares for port, port_plan in self.ports.items()}


def build_policy(
    models: Mapping[str, Sensitivity],
    port: PortPolicy,
    levels: int,
    ports: Mapping[Port, PortPolicy] | None = None,
) -> Policy:
    """The policy for these applications, in at most so many levels."""
    level_set = assign_levels(models, levels)
    return Policy(
        models=dict(models),
        levels=level_set,
        hierarchy=build_hierarchy(level_set),
        port=port,
        ports=dict(ports or {}),
    )


def build_plan(policy: Policy, connections: Iterable[ConnectionPath]) -> Plan:
    """The plan of all ports that these connections use."""
    present = _sum_changes(policy, [(connection, 1) for connection in connections])
    columns = {port: _build_columns(policy, counts) for port, counts in present.items()}
    return Plan(policy=policy, ports=Map(_plan_ports(policy, columns, {})))


def add_connection(before: Plan, connection: ConnectionPath) -> Plan:
    """The plan with one more connection; equal to a new plan of all connections."""
    return change_connections(before, [(connection, 1)])


def remove_connection(before: Plan, connection: ConnectionPath) -> Plan:
    """The plan with one connection less; equal to a new plan of the others.

    A plan counts the connections of an application at a port and does not know which they are: the
    caller keeps them, and removes only one that was added.
    """
    return change_connections(before, [(connection, -1)])


def change_connections(before: Plan, changes: Iterable[tuple[ConnectionPath, int]]) -> Plan:
    """The plan with some connections added (1) and others removed (-1)."""
    return shift_counts(before, _sum_changes(before.policy, changes))


def shift_counts(before: Plan, changes: Present) -> Plan:
    """The plan with these counts added to each application's connections at each port.

    Only ports that gain or lose an application are split again; the others keep their weights.
    """
    ports = before.ports.mutate()
    to_split: dict[Port, Columns] = {}
    for port, shifts in changes.items():
        previous = before.ports.get(port)
        columns_before = previous.columns if previous else _NO_COLUMNS
        columns = _shift_columns(before.policy, port, columns_before, shifts)
        if previous and columns[0] is columns_before[0]:
            ports[port] = replace(previous, counts=columns[1])
        elif columns[0]:
            to_split[port] = columns
        elif previous:
            del ports[port]
    ports.update(_plan_ports(before.policy, to_split, before.ports))
    return Plan(policy=before.policy, ports=ports.finish())


def resize(before: Plan, name: str, size_bytes: int) -> Plan:
    """The plan with what a registration's job states as its size; 0: nothing."""
    policy = before.policy.with_size(name, size_bytes)
    if policy.objective != SIZE:
        return Plan(policy=policy, ports=before.ports)
    columns = {
        port: (port_plan.names, port_plan.counts, policy.rows_of(port_plan.names))
        for port, port_plan in before.ports.items()
        if find_name(port_plan.names, name) is not None
    }
    changed = _plan_ports(policy, columns, before.ports)
    return Plan(policy=policy, ports=before.ports.update(changed))


def replan(before: Plan, policy: Policy) -> Plan:
    """The same connections under another policy; weights and queues are computed again."""
    columns = {
        port: (port_plan.names, port_plan.counts, policy.rows_of(port_plan.names))
        for port, port_plan in before.ports.items()
    }
    return Plan(policy=policy, ports=Map(_plan_ports(policy, columns, {})))


def _check_application(policy: Policy, connection: ConnectionPath) -> None:
    if application_name(connection.application) not in policy.models:
        where = f"application {connection.application}"
        raise InputError(where, "is not registered", "register it first")


def _sum_changes(
    policy: Policy, changes: Iterable[tuple[ConnectionPath, int]]
) -> dict[Port, dict[str, int]]:
    """The change of each application's connection count at each port."""
    changed: dict[Port, dict[str, int]] = {}
    for connection, by in changes:
        _check_application(policy, connection)
        for port in connection.ports:
            counts = changed.setdefault(port, {})
            counts[connection.application] = counts.get(connection.application, 0) + by
    return changed


# Ports may have hundreds of applications: work for each of them is left to built-in functions, and
# unchanged parts are reused.


def _shift_columns(
    policy: Policy, port: Port, columns: Columns, moved: Mapping[str, int]
) -> Columns:
    """Adds these counts; keeps the tuple of names if no application came or went."""
    for name, by in moved.items():
        names, counts, rows = columns
        at = find_name(names, name)
        count = by if at is None else counts[at] + by
        if count < 0:
            problem = f"no connection of {name} to take away"
            raise InputError(format_port(port), problem, "name one that was made")
        if at is None and count:
            columns = _insert_name(columns, name, count, policy.rows[application_name(name)])
        elif at is not None and not count:
            columns = _remove_name(columns, at)
        elif at is not None:
            columns = names, (*counts[:at], count, *counts[at + 1 :]), rows
    return columns


def _build_columns(policy: Policy, counts: Mapping[str, int]) -> Columns:
    names = tuple(sorted(counts))
    return names, tuple([counts[name] for name in names]), policy.rows_of(names)


def find_name(names: Sequence[str], name: str) -> int | None:
    """The index of a name in the sorted names; None if it is missing."""
    at = bisect_left(names, name)
    return at if at < len(names) and names[at] == name else None


def _insert_name(columns: Columns, name: str, count: int, row: int) -> Columns:
    names, counts, rows = columns
    at = bisect_left(names, name)
    return (
        (*names[:at], name, *names[at:]),
        (*counts[:at], count, *counts[at:]),
        (*rows[:at], row, *rows[at:]),
    )


def _remove_name(columns: Columns, at: int) -> Columns:
    names, counts, rows = columns
    return (
        names[:at] + names[at + 1 :],
        counts[:at] + counts[at + 1 :],
        rows[:at] + rows[at + 1 :],
    )


def _plan_ports(
    policy: Policy, present: Mapping[Port, Columns], before: Mapping[Port, PortPlan]
) -> dict[Port, PortPlan]:
    """New splits of ports; `before` has their previous plans."""
    if not present:
        return {}
    port_policies = [policy.at(port) for port in present]
    splits = policy.split([*present.values()], port_policies)
    return {
        port: PortPlan(
            policy=port_policy,
            mapped=_map_levels(policy, port_policy, rows, before.get(port)),
            names=names,
            counts=counts,
            rows=rows,
            weights=weights,
            gap=gap,
            fabric_policy=policy,
        )
        for (port, (names, counts, rows)), port_policy, (weights, gap) in zip(
            present.items(), port_policies, splits, strict=True
        )
    }


def _map_levels(
    policy: Policy, port_policy: PortPolicy, rows: Sequence[int], before: PortPlan | None
) -> QueueMap:
    levels = frozenset(policy.levels_of(rows))
    if before and levels == frozenset(chain.from_iterable(before.mapped.queues)):
        return before.mapped
    return policy.map_levels(levels, port_policy.managed_queues)


def format_port(port: Port) -> str:
    """A port in error messages."""
    return f"node {port.node} port {port.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionPath:
    """Traffic of an application from one host to another, by the output ports it may take."""

    application: str
    ports: tuple[Port, ...]

    def __post_init__(self) -> None:
        if not self.ports or len(set(self.ports)) < len(self.ports):
            where = f"connection of {self.application}"
            raise InputError(where, "no port, or one twice", "name each port of its path once")


def find_connection_path(fabric: Fabric, application: str, src: int, dst: int) -> ConnectionPath:
    """The connection from host `src` to host `dst` (indices in the fabric's nodes)."""
    if not path(fabric, src, dst):
        problem = f"from {fabric.nodes[src].name} to itself"
        raise InputError(f"connection of {application}", problem, "leave it out: it uses no port")
    ports = {Port(src, port) for port in fabric.neighbors(src)}
    reached = {end.node for end in fabric.neighbors(src).values()}
    to_visit = list(reached)
    while to_visit:
        node = to_visit.pop()
        for port in _outputs(fabric, node, dst):
            ports.add(Port(node, port))
            following = fabric.neighbors(node)[port].node
            if following not in reached:
                reached.add(following)
                to_visit.append(following)
    return ConnectionPath(application=application, ports=tuple(sorted(ports)))


def _outputs(fabric: Fabric, node: int, dst: int) -> tuple[int, ...]:
    if node == dst or fabric.routes is None:
        return ()
    return fabric.routes.ports(fabric.ordinal[node], fabric.ordinal[dst])
