"""What a controller knows, as one value: applications, connections, models, levels, fabric, tables.

Immutable, and cheap to change: maps of many entries are persistent, so that a connection more costs
what its path has ports, not what the state has entries. `plan` follows from applications,
connections, models and fabric; `target` is what ports are to be told: the plan's tables, or those
of an earlier revision that is held. Connections that `plan` does not count yet are in `pending`,
so that a burst of them is solved once. `weft.control.state.step` changes it. Entry point: `State`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from weft.control.policy.connection_path import ConnectionPath as Uses
from weft.control.policy.levels import Levels
from weft.control.policy.plan import Plan
from weft.control.policy.port import PortPolicy
from weft.control.state.desired_tables import default_tables, plan_tables
from weft.control.state.events import Answer, ApplicationModel, Done
from weft.control.state.key import Key
from weft.control.state.kinds import Settings
from weft.control.state.paths import Paths
from weft.control.state.persistent_map import PersistentMap, Recent
from weft.control.state.rows import Row
from weft.fabric import Port
from weft.switches import Ability, PortName, Tables

REMEMBERED = 8192  # answers and closed connections, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A registration: alive up to `expires_s`, on the clock of events."""

    id: str  # NAME#NUMBER
    name: str
    ttl_s: float = 0.0
    expires_s: float = inf
    connections: PersistentMap[str, None] = field(default_factory=PersistentMap)

    def is_alive(self, now_s: float) -> bool:
        return now_s <= self.expires_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Traffic of a registration between two hosts, called as they were by whoever made it."""

    id: str
    application: str
    source: str
    destination: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPath:
    """Why a connection has no path, and the ports of the last one.

    They go on counting it: its packets may still come, as a fabric may have been seen in part.
    None: it may have had a path before the controller started, and nobody knows which.
    """

    why: str
    ports: tuple[PortName, ...] | None = ()

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True)
class PendingCounts:
    """By how many connections each application has more at each port than the plan counts."""

    moved: Mapping[Port, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class PendingConnection:
    """A connection more or less that the plan does not count yet, and those before it."""

    uses: Uses
    by: int
    before: PendingConnection | PendingCounts | None


@dataclass(frozen=True, kw_only=True)  # without slots: `having` copies all fields at once
class State:
    settings: Settings
    kinds: Mapping[str, ApplicationModel] = field(default_factory=dict)
    withdrawn: frozenset[str] = frozenset()  # kinds that the table no longer has
    levels: Levels | None = None
    applications: PersistentMap[str, Application] = field(default_factory=PersistentMap)
    connections: PersistentMap[str, Connection] = field(default_factory=PersistentMap)
    registered: int = 0  # ever: the last number of a registration
    paths: Paths | None = None  # as long as no fabric is known
    abilities: Mapping[PortName, Ability] = field(default_factory=dict)  # of managed ports
    policies: Mapping[PortName, PortPolicy] = field(default_factory=dict)  # of the same ports
    unfit: Mapping[PortName, str] = field(default_factory=dict)  # ports, and what they lack
    lost: PersistentMap[str, MissingPath] = field(default_factory=PersistentMap)  # by connection
    plan: Plan | None = None  # as long as there are no models
    pending: PendingConnection | PendingCounts | None = None
    target: PersistentMap[PortName, Tables] = field(default_factory=PersistentMap)
    revision: int = 0
    held: int | None = None  # the revision that was rolled back to
    answered: Recent[Key, Answer] = field(default_factory=lambda: Recent(most=REMEMBERED))
    closed: Recent[str, bool] = field(default_factory=lambda: Recent(most=REMEMBERED))

    def having(self, **changes: Any) -> State:
        """As `dataclasses.replace`, at a tenth of its cost: for what happens thousands of times."""
        found = object.__new__(State)
        found.__dict__.update(self.__dict__, **changes)
        return found

    def ports_of(self, connection: Connection) -> tuple[Port, ...]:
        """Managed ports that count it: those on its paths, or those of the last ones it had."""
        if self.paths is None:
            return ()
        lost = self.lost.get(connection.id)
        if lost is not None:
            return self.paths.still_there(lost.ports or ())
        return self.paths.between(connection.source, connection.destination)

    def level_of(self, name: str) -> int:
        """The level of an application of the table."""
        assert self.plan is not None, "an application with a model has a plan"
        return self.plan.policy.level_of[name]

    def tables_of(self, name: PortName) -> Tables:
        """What the plan has for a managed port."""
        assert self.paths is not None, "a managed port is in a fabric"
        own, ability = self.policies[name], self.abilities[name]
        told = None if self.plan is None else self.plan.ports.get(self.paths.ports[name])
        if told is None:
            return default_tables(own, ability, self.settings)
        return plan_tables(told, ability, self.settings)

    def owed(self) -> dict[Port, Mapping[str, int]]:
        """All that is pending, as `Owed`; ports that have waited longest first."""
        latest_first: list[PendingConnection] = []
        ahead = self.pending
        while isinstance(ahead, PendingConnection):
            latest_first.append(ahead)
            ahead = ahead.before
        found = {} if ahead is None else dict(ahead.moved)
        anew: dict[Port, dict[str, int]] = {}
        for one in reversed(latest_first):
            application = one.uses.application
            for port in one.uses.ports:
                if port not in anew:
                    found[port] = anew[port] = dict(found.get(port, {}))
                anew[port][application] = anew[port].get(application, 0) + one.by
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A state after an event, what to keep and to answer, and the ports whose target changed."""

    state: State
    rows: tuple[Row, ...] = ()
    answer: Answer = field(default_factory=Done)
    ports: frozenset[PortName] = frozenset()


def then(before: Step, after: Step) -> Step:
    """Two steps as one; the answer is the second's."""
    return replace(after, rows=(*before.rows, *after.rows), ports=before.ports | after.ports)
