"""What happens to a controller, and what it answers.

Whatever time means is in the event (`now_s`, on the clock of leases); `key` names a request that is
carried out once, however often it comes. Entry points: `Event`, `Answer`. Units: seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weft.control.state.key import Key
from weft.control.state.paths import Paths
from weft.fabric import Fabric
from weft.sensitivity.model import Hinges
from weft.switches import Ability, PortName, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationModel:
    """An application of the table: its model, and how long it runs with the whole link."""

    model: Hinges
    baseline_s: float | None = None


# ---- Requests ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """An application starts. `ttl_s` 0: without lease, until it is given back."""

    key: Key
    name: str
    ttl_s: float
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deregister:
    """An application ends; its connections with it."""

    key: Key
    application: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """An application has a connection more; it is called as the key."""

    key: Key
    application: str
    source: str
    destination: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """A connection less."""

    connection: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """An application is alive."""

    application: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApplication:
    """What an operator registers for an application that does not speak to the controller."""

    name: str
    connections: tuple[tuple[str, str], ...] = ()  # hosts, from and to


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What an operator would change: applications to come and to go, levels anew."""

    register: tuple[NewApplication, ...] = ()
    deregister: tuple[str, ...] = ()
    recluster: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """A proposal, all of it or nothing; ports follow the applications again after a rollback."""

    key: Key
    proposal: Proposal
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Ports are to have these tables, those of an earlier revision, until `Apply`."""

    key: Key
    revision: int
    tables: Mapping[PortName, Tables]


# ---- What else happens ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Time has passed: the application's lease may have ended."""

    application: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricChanged:
    """The fabric is this one, and its ports can be told so much."""

    fabric: Fabric
    abilities: Mapping[PortName, Ability]
    aliases: Mapping[str, str] = field(default_factory=dict)  # of hosts
    paths: Paths | None = field(default=None, compare=False, repr=False)  # if they are known


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChanged:
    """The table has this application now, or has it no longer (None)."""

    name: str
    kind: ApplicationModel | None


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
    """Ids of what was registered, the revision of the tables, and the ports that it changed.

    `asked` tells the request from others: they may not have its key.
    """

    ids: tuple[str, ...] = ()
    revision: int = 0
    ports: frozenset[PortName] = frozenset()
    asked: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Carried out, and there is nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Not carried out, and nothing has changed."""

    code: Code
    where: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" + (f"; {self.remedy}" if self.remedy else "")


Answer = Registered | Connected | Renewed | Applied | Done | Refusal
