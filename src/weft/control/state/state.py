"""What a controller knows, as one value: applications, connections, models, levels, fabric, tables.

Immutable, and cheap to change: the large maps share structure, so that one more connection costs
what its path has ports, not what the state has entries. `plan` follows from applications,
connections, models and fabric. `target` has the tables that ports should have: the plan's, or those
of an earlier revision that is held. `pending` has connections that `plan` does not count yet, so
that a burst of them is solved once. `weft.control.state.step` changes it. Entry points: `State`,
`Step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Generic, TypeVar

import msgspec
from immutables import Map
from msgspec import Struct

from weft.control.policy.levels import Levels
from weft.control.policy.plan import ConnectionPath, Plan
from weft.control.policy.port_policy import PortPolicy
from weft.control.state.events import (
    Answer,
    AnswerRow,
    ApplicationModel,
    Asker,
    Connection,
    Done,
    Row,
)
from weft.control.state.managed_paths import Paths
from weft.control.state.policy_settings import Settings
from weft.control.state.request_key import Key
from weft.fabric import Port
from weft.switches import Ability, PortName, Tables

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED = 8192  # answers and closed connections, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent(Generic[K, V]):
    """The latest entries: at least `most` of them, at most twice as many. Immutable."""

    most: int
    new: Map[K, V] = field(default_factory=Map)
    old: Map[K, V] = field(default_factory=Map)

    def get(self, key: K) -> V | None:
        value = self.new.get(key)
        return self.old.get(key) if value is None else value

    def set(self, key: K, value: V) -> Recent[K, V]:
        new = self.new.set(key, value)
        if len(new) < self.most:
            return Recent(most=self.most, new=new, old=self.old)
        return Recent(most=self.most, new=Map(), old=new)


class Application(Struct, frozen=True, kw_only=True):
    """A registration: alive up to `expires_s`, on the clock of events. No owner: anybody's.

    The plan counts it as `unit`: the id of the first registration of its job, which may have ended.
    """

    id: str  # NAME#NUMBER, or NAME#NUMBER@GROUP
    name: str
    unit: str
    job: str = ""
    ttl_s: float = 0.0
    expires_s: float = inf
    connections: Map[str, None] = msgspec.field(default_factory=Map)
    owner: str | None = None
    size_bytes: int = 0  # as stated; 0: not

    @property
    def number(self) -> int:
        return int(self.id.rpartition("#")[2].partition("@")[0])

    def may_be_used(self, by: Asker | None) -> bool:
        """By its owner, an operator, or the controller itself (None)."""
        return by is None or by.is_operator or self.owner in (None, by.name)

    def is_alive(self, now_s: float) -> bool:
        return now_s <= self.expires_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPath:
    """Why a connection has no path, and the ports of its last one.

    These ports still count it: its packets may come, as a discovery may have seen only a part.
    None: the controller has restarted, and does not know its last path.
    """

    reason: str
    last_ports: tuple[PortName, ...] | None = ()

    def __str__(self) -> str:
        return self.reason


# An application's connections at a port: +1 for one that the plan does not count yet, -1 for one
# that it still counts. The latest first, and what came before it: none is copied to add one.
PortChanges = tuple[str, int, "PortChanges | None"]


@dataclass(frozen=True, slots=True)
class PendingPorts:
    """What the plan does not count yet, and its ports in parts, those that waited longest first.

    Thousands of ports may wait while more connections come; so nothing here is copied whole.
    """

    changes: Map[Port, PortChanges] = field(default_factory=Map)
    ports: tuple[tuple[Port, ...], ...] = ()

    def add(self, connections: Iterable[PendingConnection]) -> PendingPorts:
        changes, new_ports = self.changes.mutate(), list[Port]()
        for pending in connections:
            application, change = pending.connection.application, pending.change
            for port in pending.connection.ports:
                earlier = changes.get(port)
                if earlier is None:
                    new_ports.append(port)
                changes[port] = (application, change, earlier)
        ports = (*self.ports, tuple(new_ports)) if new_ports else self.ports
        return PendingPorts(changes.finish(), ports)

    def take(self, most: int | None) -> tuple[dict[Port, dict[str, int]], PendingPorts | None]:
        """The counts of the ports that waited longest, at most so many, and what still waits."""
        changes, counts = self.changes.mutate(), dict[Port, dict[str, int]]()
        room = len(self.changes) if most is None else most
        waiting: list[tuple[Port, ...]] = []
        for part in self.ports:
            counts |= {port: sum_changes(changes.pop(port)) for port in part[:room]}
            if room < len(part):
                waiting.append(part[room:])
            room = max(0, room - len(part))
        return counts, PendingPorts(changes.finish(), tuple(waiting)) if waiting else None


def sum_changes(changes: PortChanges | None) -> dict[str, int]:
    """How many connections more each application has at a port."""
    counts: dict[str, int] = {}
    while changes is not None:
        application, change, changes = changes
        counts[application] = counts.get(application, 0) + change
    return counts


class PendingConnection(Struct, frozen=True):
    """A connection that the plan does not count yet (-1: still counts), and what came before it."""

    connection: ConnectionPath
    change: int
    earlier: Pending | None


Pending = PendingConnection | PendingPorts


@dataclass(frozen=True, kw_only=True)  # without slots: `evolve` copies all fields at once
class State:
    settings: Settings
    models: Mapping[str, ApplicationModel] = field(default_factory=dict)  # by application name
    withdrawn: frozenset[str] = frozenset()  # models that the table no longer has
    levels: Levels | None = None
    applications: Map[str, Application] = field(default_factory=Map)
    connections: Map[str, Connection] = field(default_factory=Map)
    connections_of: Map[str | None, int] = field(default_factory=Map)  # how many, by owner
    last_registration: int = 0  # its number
    paths: Paths | None = None  # None: no fabric is known yet
    abilities: Mapping[PortName, Ability] = field(default_factory=dict)  # of managed ports
    policies: Mapping[PortName, PortPolicy] = field(default_factory=dict)  # of the same ports
    unfit: Mapping[PortName, str] = field(default_factory=dict)  # ports, and what they lack
    missing_paths: Map[str, MissingPath] = field(default_factory=Map)  # by connection
    plan: Plan | None = None  # None: there are no models
    pending: Pending | None = None
    target: Map[PortName, Tables] = field(default_factory=Map)
    revision: int = 0
    held_revision: int | None = None  # the revision that was rolled back to
    cursors: Mapping[str, str] = field(default_factory=dict)  # how far other groups are followed
    answers: Recent[Key, AnswerRow] = field(default_factory=lambda: Recent(most=REMEMBERED))
    closed: Recent[str, bool] = field(default_factory=lambda: Recent(most=REMEMBERED))

    def evolve(self, **changes: Any) -> State:
        """`dataclasses.replace` in a tenth of its time, for changes that come by the thousand."""
        state = object.__new__(State)
        state.__dict__.update(self.__dict__, **changes)
        return state

    def ports_of(self, connection: Connection) -> tuple[Port, ...]:
        """Managed ports that count it: those on its paths, or on the last ones that it had."""
        if self.paths is None:
            return ()
        missing = self.missing_paths.get(connection.id)
        if missing is not None:
            return self.paths.find_ports(missing.last_ports or ())
        return self.paths.between(connection.source, connection.destination)

    @property
    def stated_bytes(self) -> Map[str, int]:
        """The largest size that the registrations of each job state, by unit."""
        sizes: dict[str, int] = {}
        for application in self.applications.values():
            if application.size_bytes > sizes.get(application.unit, 0):
                sizes[application.unit] = application.size_bytes
        return Map(sizes)

    def find_size(self, unit: str) -> tuple[float | None, str]:
        """Bytes of a job, and where they come from."""
        assert self.plan is not None, "an application with a model has a plan"
        return self.plan.policy.find_size(unit)

    def level_of(self, name: str) -> int:
        """The level of an application of the table."""
        assert self.plan is not None, "an application with a model has a plan"
        return self.plan.policy.level_of[name]

    def collect_pending(self) -> PendingPorts:
        """All that is pending, by port."""
        latest_first: list[PendingConnection] = []
        pending = self.pending
        while isinstance(pending, PendingConnection):
            latest_first.append(pending)
            pending = pending.earlier
        return (pending or PendingPorts()).add(reversed(latest_first))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A state after an event, what to store and to answer, and the ports whose target changed."""

    state: State
    rows: tuple[Row, ...] = ()
    answer: Answer = field(default_factory=Done)
    ports: frozenset[PortName] = frozenset()

    def then(self, following: Step) -> Step:
        """Two steps as one; the answer is the second's."""
        rows = (*self.rows, *following.rows)
        return replace(following, rows=rows, ports=self.ports | following.ports)
