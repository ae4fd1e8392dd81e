"""Tables of a port as values, and the contract of the drivers that program them.

A packet has a level (a service level, a DSCP); the port has a queue for each level and a weight for
each queue, in the units of its scheduler. Level 0 is traffic that nobody manages. A queue of weight
0 is not served: no level may be in one, or its packets would wait for ever. A port gets all of its
levels and queues at once, so that what was written is what is read.

A port of a switch with a host behind it is an edge port. A level may enter there if the host has a
registered connection at that level, to the packet's destination. The latency lane is open to all,
within a budget for each pair of hosts. Drivers prevent the rest where they can, or detect it.

A controller claims switches by an epoch, a number that only grows. It comes with one that others
agreed to (etcd), or asks for the next: it gets that only while no other owner is connected. A
switch keeps its owner and epoch, and refuses whoever has a lower epoch than the highest ever seen.
Entry points: `Tables`, `Ability`; `Switches`, the contract of a driver, and its part
`PortProgrammer`; `EdgeRules`, `EdgeReport`; `Claim`, `grant` (pure), `read_grant`, `write_grant`.
Units: bits per second, bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, Protocol, Self

import msgspec

from weft.errors import InputError
from weft.fabric import Fabric
from weft.units import format_setting

ENTRY_WEIGHT = 255  # at most, of an entry of InfiniBand's VL arbitration
HTB_UNIT_BPS = 1000  # of a weight
HTB_LANE_PRIORITY, HTB_PRIORITY = 0, 1  # the lower one is served first
MAX_LIMIT = 254  # of high priority: 255 means no limit, and the others would starve


class PortName(NamedTuple):
    """An output port by the name of its node, which stays when a fabric is read again."""

    node: str
    port: int

    def __str__(self) -> str:
        return f"{self.node} port {self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The latency lane: its queue goes before the others, within a limit.

    InfiniBand: limit of high priority (4096 bytes each). HTB: burst in bytes.
    """

    queue: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The queue of each level, and the weight of each queue, the lane's among them."""

    queue_of: tuple[int, ...]
    weights: tuple[int, ...]
    lane: Lane | None = None

    def __post_init__(self) -> None:
        # Thousands are made a second: what is wrong is sought only where something is.
        served = [queue for queue, weight in enumerate(self.weights) if weight > 0]
        is_served = set(self.queue_of).issubset(served)
        if self.lane is not None or min(self.weights, default=0) < 0 or not is_served:
            self._check()

    def _check(self) -> None:
        for queue, weight in enumerate(self.weights):
            if weight < 0:
                raise InputError(f"queue {queue}", f"weight {weight}", "use 0 or more")
        for level, queue in enumerate(self.queue_of):
            self._check_served(f"level {level}", queue)
        if self.lane is not None:
            self._check_served("latency lane", self.lane.queue)
            if self.lane.limit < 0:
                raise InputError("latency lane", f"limit {self.lane.limit}", "use 0 or more")

    def _check_served(self, where: str, queue: int) -> None:
        if not 0 <= queue < len(self.weights):
            problem = f"queue {queue}, and there are {len(self.weights)}"
            raise InputError(where, problem, "name an existing queue")
        if self.weights[queue] == 0:
            raise InputError(where, f"queue {queue} has weight 0", "give it one, or it starves")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """What tables a port can have; `units` are those of the whole link (HTB: kbit/s)."""

    scheduler: Literal["vlarb", "htb"]
    levels: int
    queues: int
    entries: int
    units: int


class HtbQueue(NamedTuple):
    """A queue of an HTB port as it was found."""

    rate_bps: int
    priority: int


@dataclass(frozen=True, slots=True)
class Foreign:
    """Content that `Tables` cannot express: somebody else's. A write replaces it.

    `queues`: those of an HTB port that has as many as weft makes.
    """

    description: str
    queues: tuple[HtbQueue, ...] | None = field(default=None, compare=False)

    def list_changes(self, target: Tables) -> list[str]:
        """The queues whose rate or priority is not the target's, in words."""
        lane = None if target.lane is None else target.lane.queue
        changes = []
        pairs = zip(self.queues or (), target.weights, strict=False)
        for number, (queue, weight) in enumerate(pairs):
            words = []
            if queue.rate_bps // HTB_UNIT_BPS != weight:
                rate, wanted = (
                    format_setting("rate_bps", rate_bps)
                    for rate_bps in (queue.rate_bps, weight * HTB_UNIT_BPS)
                )
                words.append(f"rate is {rate}, should be {wanted}")
            priority = HTB_LANE_PRIORITY if number == lane else HTB_PRIORITY
            if queue.priority != priority:
                words.append(f"priority is {queue.priority}, should be {priority}")
            if words:
                changes.append(f"queue {number}: {'; '.join(words)}")
        return changes


@dataclass(frozen=True, slots=True)
class Failed:
    """A port whose operation failed. Unless `problem` says otherwise, its tables are unchanged.

    The problem does not name the port: the caller knows it.
    """

    problem: str


@dataclass(frozen=True, slots=True)
class Fenced(Failed):
    """A port of a switch that another controller has: it was not written."""


class Taken(InputError):
    """A switch that another controller has."""


def build_taken_error(where: str, owner: str, epoch: int) -> Taken:
    problem = f"belongs to the controller {owner}, epoch {epoch}"
    return Taken(where, problem, "end that controller first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The controller that programs switches, and its epoch.

    No epoch: each switch gives the next one, unless another owner is connected to it. `manages`
    says by a node's name whether it is claimed, `group` how such nodes are called together.
    `place`: where it runs; of all that start there, one runs at a time.
    """

    owner: str
    epoch: int | None = None
    place: str = ""
    group: str = ""
    manages: Callable[[str], bool] = field(default=lambda _: True, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePort:
    """The host behind a port, and what may come from it: destinations (hosts) with their level.

    `lane_bps`: what it may send on the latency lane to one destination.
    """

    host: str
    admitted: frozenset[tuple[str, int]] = frozenset()
    lane_bps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRules:
    """Levels 1 to `levels` need a connection; `lane` is the level of the latency lane, if any."""

    levels: int
    lane: int | None
    ports: Mapping[PortName, EdgePort]
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of each host


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Bytes that entered with a level that was not admitted, or beyond the lane's budget.

    `is_rewritten`: they went on at level 0. No destination: the switch does not tell.
    """

    port: PortName
    host: str
    destination: str
    level: int
    bytes: int
    is_lane: bool = False
    is_rewritten: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeReport:
    """Violations since the last report, and why some ports are not policed.

    `unchecked`: which switches did not answer; they keep the rules that they have.
    """

    violations: tuple[Violation, ...] = ()
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


class AgentEvent(NamedTuple):
    """A node's agent ended, or answers (again); a time of the monotonic clock."""

    node: str
    has_ended: bool
    at_s: float


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Who has the switch; epoch 0: nobody ever had it. `pid`: of the owner's process, if here."""

    owner: str = ""
    epoch: int = 0
    pid: int = 0

    def belongs_to(self, claim: Claim) -> bool:
        return self.owner == claim.owner and claim.epoch in (None, self.epoch)


def grant(last: Grant, claim: Claim, *, is_connected: bool) -> Grant | None:
    """What the claim gives; None: it is refused. `is_connected`: the last owner is."""
    if last.belongs_to(claim):
        return last
    if claim.epoch is None:
        return None if is_connected else Grant(owner=claim.owner, epoch=last.epoch + 1)
    return Grant(owner=claim.owner, epoch=claim.epoch) if claim.epoch > last.epoch else None


def read_grant(path: Path) -> Grant:
    try:
        return decode_grant(path.read_bytes(), str(path))
    except FileNotFoundError:
        return Grant()


def decode_grant(data: bytes, where: str) -> Grant:
    if not data:
        return Grant()
    try:
        return msgspec.json.decode(data, type=Grant)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        remedy = "delete it once no other controller has the switch"
        raise InputError(where, f"damaged: {error}", remedy) from error


def write_grant(path: Path, grant: Grant) -> None:
    """On disk, whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(grant))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class PortProgrammer(Protocol):
    """What programs ports. One thread uses it. A failing port does not delay the others."""

    def abilities(self, ports: Collection[PortName]) -> dict[PortName, Ability | Failed]: ...

    def read(self, ports: Collection[PortName]) -> dict[PortName, Tables | Foreign | Failed]: ...

    def write(self, wanted: Mapping[PortName, Tables]) -> dict[PortName, Tables | Failed]:
        """All or nothing for each port, make before break. Returns what was read back.

        Ports are read first. A port that does not answer is not written; a port that already has
        the wanted tables costs one read.
        """
        ...

    def read_sent(self, ports: Collection[PortName]) -> dict[PortName, tuple[int, ...]]:
        """Bytes that each queue has sent, since it exists; not of ports without such counters."""
        ...

    def close(self) -> None: ...


class Switches(PortProgrammer, Protocol):
    """A driver: programs ports and discovers the fabric. One thread uses it."""

    def discover(self) -> Fabric:
        """The fabric with its routes; node names are unique."""
        ...

    def has_changed(self) -> bool:
        """Whether links or routes may differ from the last discovery; cheaper than another one."""
        ...

    @property
    def addresses(self) -> Mapping[str, str]:
        """Host names by network address, as of the last discovery."""
        ...

    @property
    def unanswered(self) -> tuple[PortName, ...]:
        """Linked ports whose neighbour did not answer the last discovery."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the operator on the last discovery or release."""
        ...

    def claim(self, claim: Claim) -> None:
        """From now on the driver programs ports for this owner.

        Switches with a memory for it refuse the writes of lower epochs from then on (`Fenced`).
        Raises `Taken` if another owner has one of them.
        """
        ...

    def police(self, rules: EdgeRules) -> EdgeReport:
        """Admits marks by these rules at the edge of the fabric; reports what broke them since.

        A driver rewrites other marks if its switches can, or only detects them.
        """
        ...

    def take_agent_events(self) -> tuple[AgentEvent, ...]:
        """Of agents on the switches, since the last call; none if the driver needs no agents."""
        ...

    def open_second(self) -> Self:
        """A second driver of the same switches, for another thread. Close it before this one."""
        ...

    def learn_from(self, second: Self) -> None:
        """Takes over what the second driver has discovered."""
        ...

    def release(self) -> Mapping[str, list[str]]:
        """Restores what ports had before they were taken over. Restored interfaces by node.

        A driver that keeps no record of that raises an InputError.
        """
        ...


def refuse_release(driver: str) -> NoReturn:
    """What `release` does in a driver that keeps no record."""
    problem = "keeps no record of what ports had before"
    remedy = "have the subnet manager write its own (OpenSM: qos TRUE), or restart the switches"
    raise InputError(f"driver {driver}", problem, remedy)


def list_entries(weights: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """A list of VL arbitration: (VL, weight), at most 255 to an entry.

    Further entries of a VL come after a round of the others, so that no turn is longer.
    """
    entries, remaining = [], dict(weights)
    while remaining:
        entries += [(vl, min(ENTRY_WEIGHT, weight)) for vl, weight in remaining.items()]
        remaining = {vl: w - ENTRY_WEIGHT for vl, w in remaining.items() if w > ENTRY_WEIGHT}
    return tuple(entries)


def find_misfit(tables: Tables, ability: Ability) -> str | None:
    """Why no port of this ability can have these tables; None if one may."""
    for noun, wanted, available in (
        ("levels", len(tables.queue_of), ability.levels),
        ("queues", len(tables.weights), ability.queues),
    ):
        if wanted != available:
            return f"tables of {wanted} {noun}, and the port has {available}"
    return None
