"""A step's input and output as values: events, answers, and rows for the store.

Time is in the event (`now_s`, on the clock of leases). `key` identifies a request that is carried
out once, however often it is sent (`Key`: a client and its sequence). A row replaces what is stored
under the same name, so the order matters only among rows of one name. Rows must be on disk before
anything is answered or programmed. Entry points: `Event`, `Answer`, `Row`. Units: seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weft.control.policy.levels import Levels
from weft.control.state.managed_paths import Paths
from weft.control.state.request_key import Key
from weft.fabric import Fabric
from weft.sensitivity.model import Hinges
from weft.switches import Ability, PortName, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationModel:
    """An application of the table: slowdown over share, and its run time with the whole link."""

    curve: Hinges
    baseline_s: float | None = None


# ---- Requests ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """An application starts. `ttl_s` 0: no lease, until it is deregistered."""

    key: Key
    name: str
    ttl_s: float
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deregister:
    """An application ends, and its connections with it."""

    key: Key
    application: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """An application opens a connection; its id is the key."""

    key: Key
    application: str
    source: str
    destination: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """A connection is closed."""

    connection: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """An application is alive."""

    application: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApplication:
    """A registration by an operator, for an application without the client library."""

    name: str
    connections: tuple[tuple[str, str], ...] = ()  # hosts, from and to


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What an operator would change: registrations, and all levels."""

    register: tuple[NewApplication, ...] = ()
    deregister: tuple[str, ...] = ()
    recluster: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """A proposal, all of it or nothing. Ends a rollback: ports follow the plan again."""

    key: Key
    proposal: Proposal
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Ports get these tables, those of an earlier revision, until `Apply`."""

    key: Key
    revision: int
    tables: Mapping[PortName, Tables]


# ---- Other events -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Time has passed: the lease of the application may have expired."""

    application: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricChanged:
    """A fabric was discovered, with the abilities of its ports."""

    fabric: Fabric
    abilities: Mapping[PortName, Ability]
    aliases: Mapping[str, str] = field(default_factory=dict)  # of hosts
    paths: Paths | None = field(default=None, compare=False, repr=False)  # if found already


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChanged:
    """The table has this model now, or no longer has it (None)."""

    name: str
    model: ApplicationModel | None


Event = (
    Register
    | Deregister
    | Connect
    | Disconnect
    | Renew
    | Apply
    | Rollback
    | Expire
    | FabricChanged
    | ModelChanged
)


# ---- Answers ----------------------------------------------------------------------------------

Code = Literal[
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "ALREADY_EXISTS",
    "INVALID_ARGUMENT",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    id: str
    level: int
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    connection: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Ids of new registrations, the revision of the tables, and the ports that it changed.

    `digest` identifies the request: another request may not reuse its key.
    """

    ids: tuple[str, ...] = ()
    revision: int = 0
    ports: frozenset[PortName] = frozenset()
    digest: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Carried out; nothing to report."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Not carried out, and nothing has changed."""

    code: Code
    where: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" + (f"; {self.remedy}" if self.remedy else "")


Answer = Registered | Connected | Renewed | Applied | Done | Refusal


# ---- Rows for the store -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationRow:
    """A registration; no name: it has ended."""

    id: str
    name: str | None
    ttl_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRow:
    """A connection; no application: it is closed."""

    id: str
    application: str | None
    source: str = ""
    destination: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A model; None: it is removed."""

    name: str
    model: ApplicationModel | None
    withdrawn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelsRow:
    """The levels of all applications of the table."""

    levels: Levels


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """The answer to a key."""

    key: Key
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRow:
    """A revision: the tables that it changed, and those they replace (None: there were none).

    `held_revision` is the earlier revision that is held from now on, if one is.
    """

    revision: int
    cause: str
    tables: Mapping[PortName, Tables]
    replaced: Mapping[PortName, Tables | None]
    held_revision: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRow:
    """The number of the last registration."""

    last_registration: int


Row = ApplicationRow | ConnectionRow | ModelRow | LevelsRow | AnswerRow | RevisionRow | CountRow
