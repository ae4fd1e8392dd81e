"""The InfiniBand driver: programs and reads back ports of switches and adapters by SMPs.

Routing and the VLs in use belong to the subnet manager (OpenSM with `qos FALSE`): the driver reads
them and never sets them. It addresses ports by LID, and asks each node for its GUID first: it
notices a LID that has moved to another node before it writes anything. A write reads the ports,
asks those that differ for their abilities, and carries out its steps on all of them in parallel. A
port that fails a step is restored, with more retries, and does not delay the others. An unread map
may stay unread where no level can starve by it (`weft.switches.infiniband.vl_tables`). Entry point:
`InfinibandSwitches`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.errors import InputError
from weft.fabric import Fabric
from weft.switches.infiniband import mad
from weft.switches.infiniband.controller_record import ControllerRecord
from weft.switches.infiniband.mad import PortInfo, Smp
from weft.switches.infiniband.mad_transport import Refusal, SmpClient
from weft.switches.infiniband.port_counters import EdgeCounters
from weft.switches.infiniband.subnet_discovery import Subnet, SubnetWatch, discover_subnet
from weft.switches.infiniband.vl_ports import PortAddress, PortReader, ask_ports
from weft.switches.infiniband.vl_tables import (
    PortTables,
    Step,
    are_maps_sufficient,
    decode_tables,
    encode_tables,
    find_ability,
    find_refusal,
    find_starved_level,
    is_always_served,
    is_equivalent,
    merge_steps,
    plan_steps,
)
from weft.switches.tables import (
    Ability,
    AgentEvent,
    Claim,
    EdgeReport,
    EdgeRules,
    Failed,
    Foreign,
    PortName,
    Tables,
    refuse_release,
)

LEVELS = 8
MAPS_PER_READ = 512  # all maps of a small fabric, one of each port of a large one
RESTORE_TRIES = 20


@dataclass(slots=True)
class _Change:
    """A port's change from `old` to `new` by `steps`; `problem`: what went wrong."""

    port: PortName
    at: PortAddress
    wanted: Tables
    ability: Ability
    old: PortTables
    new: PortTables
    steps: tuple[Step, ...]
    problem: str | None = None

    @property
    def outcome(self) -> Tables | Failed:
        return self.wanted if self.problem is None else Failed(self.problem)


class InfinibandSwitches:
    """The driver. It manages service levels 0 to `levels` - 1; the others keep their VL.

    Each `read` reads some `maps_per_read` maps, at least one of each port.
    """

    def __init__(
        self, client: SmpClient, *, levels: int = LEVELS, maps_per_read: int = MAPS_PER_READ
    ) -> None:
        self._maps_per_read = maps_per_read
        self._client = client
        self._levels = _check_levels(levels)
        self._reader = PortReader(client)
        self._subnet: Subnet | None = None
        self._info: dict[PortName, PortInfo] = {}
        self._watch: SubnetWatch | None = None
        self._edge = EdgeCounters()
        self._record = ControllerRecord(client)
        self._is_second = False

    def discover(self) -> Fabric:
        self._subnet = discover_subnet(self._client)
        self._info = {}
        self._watch = SubnetWatch(self._subnet)
        return self._subnet.fabric

    def has_changed(self) -> bool:
        """Whether a link is up or down since, or a forwarding table differs; some are read.

        `Taken` if another controller has come.
        """
        self._record.renew()
        return self._watch is not None and self._watch.has_changed(self._client)

    def take_agent_events(self) -> tuple[AgentEvent, ...]:
        """None: management packets need no agent of weft's."""
        return ()

    @property
    def unanswered(self) -> tuple[PortName, ...]:
        """Linked ports whose neighbour did not answer when the fabric was last discovered."""
        return () if self._subnet is None else self._subnet.unanswered

    @property
    def addresses(self) -> Mapping[str, str]:
        """None: hosts of a subnet are named by GUID and LID."""
        return {}

    @property
    def notes(self) -> tuple[str, ...]:
        return (self._record.problem,) if self._record.problem else ()

    def claim(self, claim: Claim) -> None:
        """By a record that the subnet manager keeps: the switches refuse nobody."""
        self._record.claim(claim)

    def police(self, rules: EdgeRules) -> EdgeReport:
        """Only detects: a switch cannot rewrite service levels."""
        if self._subnet is None:
            return EdgeReport()
        return self._edge.look(self._client, self._subnet, rules)

    def open_second(self) -> InfinibandSwitches:
        """Both drivers share the adapter: if a process opens it twice, ibsim answers only the
        second."""
        second = InfinibandSwitches(
            self._client, levels=self._levels, maps_per_read=self._maps_per_read
        )
        second._is_second, second._record = True, self._record
        return second

    def learn_from(self, second: InfinibandSwitches) -> None:
        self._subnet, self._info = second._subnet, {}

    def release(self) -> Mapping[str, list[str]]:
        refuse_release("infiniband")

    def read_sent(self, ports: Collection[PortName]) -> dict[PortName, tuple[int, ...]]:  # noqa: ARG002
        """Counters of single lanes are optional in the architecture, and not read yet."""
        return {}

    def abilities(self, ports: Collection[PortName]) -> dict[PortName, Ability | Failed]:
        located, failed = self._locate(ports)
        informed, silent = self._refresh(located)
        abilities = {port: find_ability(at.info, self._levels) for port, at in informed.items()}
        return {**abilities, **failed, **silent}

    def read(self, ports: Collection[PortName]) -> dict[PortName, Tables | Foreign | Failed]:
        located, failed = self._locate(ports)
        held, silent = self._reader.read_tables(located, self._maps_per_read)
        tables = {port: self._decode(located[port], current) for port, current in held.items()}
        return {**tables, **failed, **silent}

    def write(self, wanted: Mapping[PortName, Tables]) -> dict[PortName, Tables | Failed]:
        located, failed = self._locate(wanted)
        held, silent = self._reader.read_tables(located, with_limits=False)
        same = {
            port: wanted[port]
            for port, current in held.items()
            if is_always_served(wanted[port])
            and self._decode(located[port], current) == wanted[port]
        }
        fitting, unfit = self._select_fitting(
            {p: located[p] for p in held if p not in same}, wanted
        )
        held, unread = self._complete_maps(fitting, held, wanted)
        starving = {
            port: Failed(why)
            for port, current in held.items()
            if (why := find_starved_level(wanted[port], current)) is not None
        }
        changes = [
            self._plan_change(port, fitting[port], wanted[port], current)
            for port, current in held.items()
            if port not in starving
        ]
        self._apply(changes)
        self._read_back(changes)
        self._restore([change for change in changes if change.problem is not None])
        done = {change.port: change.outcome for change in changes}
        return {**same, **done, **failed, **silent, **unfit, **unread, **starving}

    def close(self) -> None:
        if not self._is_second:
            self._record.withdraw()
            self._client.close()

    # ---- Where ports are ------------------------------------------------------------------------

    def _locate(
        self, ports: Collection[PortName]
    ) -> tuple[dict[PortName, PortAddress], dict[PortName, Failed]]:
        """Ports that exist and whose node is still the discovered one."""
        if self._subnet is None:
            self.discover()
        placed = {port: self._locate_port(port) for port in ports}
        failed = {port: at for port, at in placed.items() if isinstance(at, Failed)}
        located = {port: at for port, at in placed.items() if isinstance(at, PortAddress)}
        moved = self._find_moved(located.values())
        failed |= {port: moved[at.lid] for port, at in located.items() if at.lid in moved}
        return {port: at for port, at in located.items() if at.lid not in moved}, failed

    def _locate_port(self, port: PortName) -> PortAddress | Failed:
        place = self._subnet.nodes.get(port.node) if self._subnet else None
        info = place.info.get(port.port) if place is not None and port.port else None
        if place is None or info is None:
            return Failed("there is no such port; discover again if it is new")
        if place.lid is None:
            return Failed("its node has no LID; is a subnet manager running?")
        at = PortAddress(node=place, lid=place.lid, port=port.port, info=info)
        return at.with_info(self._info.get(port, info))

    def _find_moved(
        self, ports: Iterable[PortAddress], tries: int | None = None
    ) -> dict[int, Failed]:
        """LIDs that do not answer, or that another node has now."""
        places = {at.lid: at.node for at in ports}
        moved: dict[int, Failed] = {}
        answers = self._client.ask([Smp(lid, mad.NODE_INFO) for lid in places], tries)
        for (lid, place), answer in zip(places.items(), answers, strict=True):
            if isinstance(answer, Refusal):
                moved[lid] = Failed(answer.problem)
            elif (guid := mad.unpack_node_info(answer).guid) != place.guid:
                moved[lid] = Failed(f"LID {lid} is 0x{guid:016x} by now; discover again")
        return moved

    def _refresh(
        self, ports: Mapping[PortName, PortAddress]
    ) -> tuple[dict[PortName, PortAddress], dict[PortName, Failed]]:
        informed, silent = self._reader.read_info(ports)
        self._info |= {port: at.info for port, at in informed.items()}
        return informed, silent

    def _decode(self, at: PortAddress, current: PortTables) -> Tables | Foreign | Failed:
        ability = find_ability(at.info, self._levels)
        return ability if isinstance(ability, Failed) else decode_tables(current, ability)

    # ---- How they are changed -------------------------------------------------------------------

    def _select_fitting(
        self, ports: Mapping[PortName, PortAddress], wanted: Mapping[PortName, Tables]
    ) -> tuple[dict[PortName, PortAddress], dict[PortName, Failed]]:
        """Ports that can take the wanted tables, by their current information."""
        informed, failed = self._refresh(ports)
        problems = {
            port: find_refusal(wanted[port], at.info, self._levels) or _find_resize(ports[port], at)
            for port, at in informed.items()
        }
        failed |= {port: Failed(why) for port, why in problems.items() if why is not None}
        return {port: at for port, at in informed.items() if port not in failed}, failed

    def _complete_maps(
        self,
        ports: Mapping[PortName, PortAddress],
        lists: Mapping[PortName, PortTables],
        wanted: Mapping[PortName, Tables],
    ) -> tuple[dict[PortName, PortTables], dict[PortName, Failed]]:
        """The ports' tables, with all maps read where the known ones are not sufficient."""
        held = {port: replace(lists[port], limit=at.info.high_limit) for port, at in ports.items()}
        unsure = {
            port: ports[port]
            for port, current in held.items()
            if not are_maps_sufficient(wanted[port], current)
        }
        unread = self._reader.read_all_maps(unsure)
        held |= {
            port: replace(held[port], maps=self._reader.maps(at)) for port, at in unsure.items()
        }
        return {port: held[port] for port in held if port not in unread}, unread

    def _plan_change(
        self, port: PortName, at: PortAddress, wanted: Tables, old: PortTables
    ) -> _Change:
        ability = find_ability(at.info, self._levels)
        assert isinstance(ability, Ability)  # refused before otherwise
        new = encode_tables(wanted, old)
        return _Change(port, at, wanted, ability, old, new, plan_steps(old, new, ability.queues))

    def _apply(self, changes: Sequence[_Change], tries: int | None = None) -> None:
        """Carries out the steps of all ports in parallel; a port stops at its first failure."""
        for n in range(max((len(change.steps) for change in changes), default=0)):
            going = _list_active(changes, n)
            self._refresh_changes(
                [c for c in going.values() if c.steps[n].limit is not None], tries
            )
            going = _list_active(changes, n)
            requests = {port: change.at.writes(change.steps[n]) for port, change in going.items()}
            _, failed = ask_ports(self._client, requests, tries)
            _note_failures(going, failed)

    def _refresh_changes(self, changes: Sequence[_Change], tries: int | None) -> None:
        """Reads ports again before their information is set: it is written back with the limit, and
        the rest of it belongs to the subnet manager.
        """
        asking = {change.port: change for change in changes}
        informed, failed = self._reader.read_info({p: c.at for p, c in asking.items()}, tries)
        moved = self._find_moved((change.at for change in changes), tries)
        _note_failures(
            asking, failed | {c.port: moved[c.at.lid] for c in changes if c.at.lid in moved}
        )
        for port, at in informed.items():
            change = asking[port]
            if not mad.is_same_subnet(change.at.info.data, at.info.data):
                change.problem = "the subnet manager is changing its LID or keys; discover again"
            change.at = at

    def _read_back(self, changes: Sequence[_Change], tries: int | None = None) -> None:
        """Compares what was written with what the port holds."""
        going = _list_active(changes)
        answers, failed = ask_ports(
            self._client, {port: _list_reads(c) for port, c in going.items()}, tries
        )
        _note_failures(going, failed)
        for port, row in answers.items():
            change = going[port]
            after = _decode_reads(change, row)
            if is_equivalent(after, change.new):
                self._reader.remember(change.at, after.maps)
            else:
                change.problem = f"it reads back {decode_tables(after, change.ability)}"

    def _restore(self, changes: Sequence[_Change]) -> None:
        """Restores the old tables; a port that cannot be restored says so."""
        moved = self._find_moved((change.at for change in changes), RESTORE_TRIES)
        ways = [_reverse_change(change, moved.get(change.at.lid)) for change in changes]
        self._apply(ways, RESTORE_TRIES)
        self._read_back(ways, RESTORE_TRIES)
        for change, way in zip(changes, ways, strict=True):
            if way.problem is not None:
                change.problem = f"{change.problem}; and it could not be restored: {way.problem}"
                self._reader.forget(change.at)


def _reverse_change(change: _Change, moved: Failed | None) -> _Change:
    """The change from new to old; not attempted if another node has the LID now."""
    back = plan_steps(change.new, change.old, change.ability.queues)
    problem = None if moved is None else moved.problem
    return replace(change, old=change.new, new=change.old, steps=back, problem=problem)


def _list_active(changes: Sequence[_Change], step: int = 0) -> dict[PortName, _Change]:
    """Changes that have not failed and have that step."""
    return {c.port: c for c in changes if c.problem is None and step < len(c.steps)}


def _note_failures(changes: Mapping[PortName, _Change], failed: Mapping[PortName, Failed]) -> None:
    for port, why in failed.items():
        changes[port].problem = why.problem


def _find_resize(before: PortAddress, now: PortAddress) -> str | None:
    """Why the reading of a port may be incomplete; None if it is not."""
    sizes = [(at.info.low_entries, at.info.high_entries, at.inputs) for at in (before, now)]
    return None if sizes[0] == sizes[1] else "its tables have changed size; try again"


def _check_levels(levels: int) -> int:
    if not 1 <= levels <= mad.LEVELS:
        raise InputError("levels", f"{levels}", f"use 1 to {mad.LEVELS} service levels")
    return levels


def _list_reads(change: _Change) -> list[Smp]:
    """Requests that read back all that the steps have written."""
    at, written = change.at, merge_steps(change.steps)
    low = at.low() if written.low is not None else []
    high = at.high() if written.high is not None else []
    limit = [at.read_info_request()] if written.limit is not None else []
    return [*low, *high, *limit, *at.maps(written.maps)]


def _decode_reads(change: _Change, answers: Sequence[bytes]) -> PortTables:
    """The port's tables, from the answers to `_list_reads`."""
    at, written, remaining = change.at, merge_steps(change.steps), iter(answers)
    after = change.old
    if written.low is not None:
        after = replace(after, low=at.low_list([next(remaining) for _ in at.low()]))
    if written.high is not None:
        after = replace(after, high=at.high_list([next(remaining) for _ in at.high()]))
    if written.limit is not None:
        after = replace(after, limit=mad.unpack_port_info(next(remaining)).high_limit)
    maps = {
        **dict(enumerate(after.maps)),
        **{n: mad.unpack_map(next(remaining)) for n in written.maps},
    }
    return replace(after, maps=tuple(maps.values()))
