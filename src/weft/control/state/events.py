"""A step's input and output as values: events, answers, and rows for the store.

Time is in the event (`now_s`, on the clock of leases). `key` identifies a request that is carried
out once, however often it is sent (`Key`: a client and its sequence). `by` says who asks; None: the
controller itself. A row replaces what is stored under the same name, so the order matters only
among rows of one name. Rows must be on disk before anything is answered or programmed.
Entry points: `Event`, `Answer`, `Row`. Units: seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from weft.control.policy.levels import Levels
from weft.control.state.managed_paths import Paths
from weft.control.state.request_key import Key
from weft.fabric import Fabric
from weft.sensitivity.model import Sensitivity
from weft.switches import Ability, PortName, Tables


class ApplicationModel(Struct, frozen=True, kw_only=True):
    """An application of the table: slowdown over share, and its run time with the whole link.

    `size_bytes` are those that the profiled run moved over its link, where that is known.
    """

    curve: Sensitivity
    baseline_s: float | None = None
    size_bytes: float | None = None


HELD = "groups:held"  # the cursor of decisions of all groups


class Connection(Struct, frozen=True, kw_only=True):
    """Traffic of a registration between two hosts, by the names that its client gave."""

    id: str
    application: str
    source: str
    destination: str


# ---- Requests ---------------------------------------------------------------------------------


class Asker(Struct, frozen=True, kw_only=True):
    """An identity; an operator may also use registrations of others."""

    name: str
    is_operator: bool = False


class Register(Struct, frozen=True, kw_only=True):
    """An application starts. `ttl_s` 0: no lease, until it is deregistered.

    Registrations of one identity, application and `job` count as one; without a job, each counts.
    `size_bytes`: what the job is going to move over its busiest link; 0: it does not say.
    """

    key: Key
    name: str
    ttl_s: float
    now_s: float
    job: str = ""
    size_bytes: int = 0
    by: Asker | None = None


class Deregister(Struct, frozen=True, kw_only=True):
    """An application ends, and its connections with it."""

    key: Key
    application: str
    by: Asker | None = None


class Connect(Struct, frozen=True, kw_only=True):
    """An application opens a connection; its id is the key."""

    key: Key
    application: str
    source: str
    destination: str
    now_s: float
    by: Asker | None = None


class Disconnect(Struct, frozen=True, kw_only=True):
    """A connection is closed."""

    connection: str
    by: Asker | None = None


class Renew(Struct, frozen=True, kw_only=True):
    """An application is alive."""

    application: str
    now_s: float
    by: Asker | None = None


class NewApplication(Struct, frozen=True, kw_only=True):
    """A registration by an operator, for an application without the client library."""

    name: str
    connections: tuple[tuple[str, str], ...] = ()  # hosts, from and to


class Proposal(Struct, frozen=True, kw_only=True):
    """What an operator would change: registrations, and all levels."""

    register: tuple[NewApplication, ...] = ()
    deregister: tuple[str, ...] = ()
    recluster: bool = False


class Apply(Struct, frozen=True, kw_only=True):
    """A proposal, all of it or nothing. Ends a rollback: ports follow the plan again."""

    key: Key
    proposal: Proposal
    now_s: float
    by: Asker | None = None


class Rollback(Struct, frozen=True, kw_only=True):
    """Ports get these tables, those of an earlier revision, until `Apply`."""

    key: Key
    revision: int
    tables: Mapping[PortName, Tables]
    by: Asker | None = None


# ---- Other events -----------------------------------------------------------------------------


class Expire(Struct, frozen=True, kw_only=True):
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
class Follow:
    """What another group has committed, up to a position of its log.

    `is_whole`: all that it has, instead of what is new.
    """

    group: str
    position: str
    rows: tuple[Row, ...]
    is_whole: bool = False


class Hold(Struct, frozen=True, kw_only=True):
    """All groups have decided: this one gets these tables of a revision, until the next decision.

    No revision: ports follow the plan again. `number` is the decision's; each counts once.
    """

    number: int
    revision: int | None
    tables: Mapping[PortName, Tables]
    by: Asker | None = None

    @property
    def key(self) -> Key:
        """No client's: their names have no colon."""
        return Key(HELD, self.number)


class ModelChanged(Struct, frozen=True, kw_only=True):
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
    | Follow
    | Hold
)


# ---- Answers ----------------------------------------------------------------------------------

Code = Literal[
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "ALREADY_EXISTS",
    "INVALID_ARGUMENT",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "PERMISSION_DENIED",
]


class Registered(Struct, frozen=True, kw_only=True, tag_field="is", tag="registered"):
    id: str
    level: int
    ttl_s: float


class Connected(Struct, frozen=True, kw_only=True):
    connection: str


class Renewed(Struct, frozen=True, kw_only=True):
    ttl_s: float


class Applied(
    Struct,
    frozen=True,
    kw_only=True,
    tag_field="is",
    tag="applied",
    rename={"digest": "asked"},  # in the store
):
    """Ids of new registrations, the revision of the tables, and the ports that it changed.

    `digest` identifies the request: another request may not reuse its key.
    """

    ids: tuple[str, ...] = ()
    revision: int = 0
    ports: frozenset[PortName] = frozenset()
    digest: str = ""


class Done(Struct, frozen=True, kw_only=True, tag_field="is", tag="done"):
    """Carried out; nothing to report."""


class Refusal(Struct, frozen=True):
    """Not carried out, and nothing has changed."""

    code: Code
    where: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" + (f"; {self.remedy}" if self.remedy else "")


Answer = Registered | Connected | Renewed | Applied | Done | Refusal


# ---- Rows for the store -----------------------------------------------------------------------


class ApplicationRow(Struct, frozen=True, kw_only=True):
    """A registration; no name: it has ended. No owner: it is older than owners.

    `unit`: the registration that its job counts under; None: itself. `size_bytes` as stated.
    """

    id: str
    name: str | None
    ttl_s: float = 0.0
    owner: str | None = None
    job: str = ""
    unit: str | None = None
    size_bytes: int = 0


class ConnectionRow(Struct, frozen=True, kw_only=True):
    """A connection; None: it is closed."""

    id: str
    connection: Connection | None


class ModelRow(Struct, frozen=True, kw_only=True):
    """A model; None: it is removed."""

    name: str
    model: ApplicationModel | None
    withdrawn: bool = False


class LevelsRow(Struct, frozen=True, kw_only=True):
    """The levels of all applications of the table."""

    levels: Levels


class AnswerRow(Struct, frozen=True, kw_only=True):
    """The answer to a key, and who used it. No owner: it is older than owners."""

    key: Key
    answer: Answer
    owner: str | None = None


class RevisionRow(Struct, frozen=True, kw_only=True):
    """A revision: the tables that it changed, and those they replace (None: there were none).

    `held_revision` is the earlier revision that is held from now on, if one is.
    """

    revision: int
    cause: str
    tables: Mapping[PortName, Tables]
    replaced: Mapping[PortName, Tables | None]
    held_revision: int | None


class CountRow(Struct, frozen=True, kw_only=True):
    """The number of the last registration."""

    last_registration: int


class CursorRow(Struct, frozen=True, kw_only=True):
    """How far the log of another group was followed."""

    group: str
    position: str


Row = (
    ApplicationRow
    | ConnectionRow
    | ModelRow
    | LevelsRow
    | AnswerRow
    | RevisionRow
    | CountRow
    | CursorRow
)
