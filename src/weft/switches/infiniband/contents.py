"""What ports hold now: arbitration lists, maps of service levels, limit of high priority.

Lists are read every time. An output port has as many maps as its switch has ports. They are read in
turn, at least one of a port each time, and remembered; one that has not had its turn is not known.
When one is not as it was, all of its port are read. The limit is read where a list of high priority
makes it count. Entry point: `Contents`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.switches.infiniband import mad
from weft.switches.infiniband.mad_transport import Wire
from weft.switches.infiniband.ports import PortAt, each, port_tables
from weft.switches.infiniband.vl_tables import Map, PortTables, served
from weft.switches.tables import Failed, PortName

Ports = Mapping[PortName, PortAt]
Key = tuple[int, int]


class Contents:
    """Reads ports, and remembers the maps that it has read."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._maps: dict[Key, list[Map]] = {}
        self._next: dict[Key, int] = {}
        self._doubtful: set[Key] = set()

    def informed(
        self, ports: Ports, tries: int | None = None
    ) -> tuple[dict[PortName, PortAt], dict[PortName, Failed]]:
        """The ports with what they are now: the VLs in use are the subnet manager's to change."""
        asked = {port: [at.information()] for port, at in ports.items()}
        told, failed = each(self._wire, asked, tries)
        return {
            port: ports[port].told(mad.port_info(data)) for port, (data,) in told.items()
        }, failed

    def held(
        self, ports: Ports, maps: int = 0, *, with_limits: bool = True
    ) -> tuple[dict[PortName, PortTables], dict[PortName, Failed]]:
        """What each port holds; some `maps` maps are read in all, at least one of each port.

        Without `with_limits` limits are those that were last read.
        """
        count = max(1, maps // max(1, len(ports)))
        inputs = {port: self._in_turn(at, count) for port, at in ports.items()}
        asked = {port: [*at.lists(), *at.maps(inputs[port])] for port, at in ports.items()}
        told, failed = each(self._wire, asked)
        lists: dict[PortName, list[bytes]] = {}
        changed: dict[PortName, PortAt] = {}
        for port, answers in told.items():
            split = len(answers) - len(inputs[port])
            lists[port] = answers[:split]
            if not self._note(ports[port], inputs[port], answers[split:]):
                changed[port] = ports[port]
        failed |= self.learn(changed)
        going = {port: ports[port] for port in lists if port not in failed}
        unlimited: dict[PortName, Failed] = {}
        if with_limits:
            unlimited = self._limit(going, lists)
        held = {
            port: port_tables(at, lists[port], self.maps(at))
            for port, at in going.items()
            if port not in unlimited
        }
        return held, failed | unlimited

    def maps(self, at: PortAt) -> tuple[Map, ...]:
        """The maps of a port as they are known."""
        return tuple(self._maps.get(at.key) or [None] * len(at.inputs))

    def learn(self, ports: Ports) -> dict[PortName, Failed]:
        """Reads all maps of the ports; answers those that failed."""
        told, failed = each(self._wire, {port: at.maps(at.inputs) for port, at in ports.items()})
        for port, answers in told.items():
            self.remember(ports[port], [mad.vls_of_levels(data) for data in answers])
        for port in failed:
            self.forget(ports[port])
        return failed

    def remember(self, at: PortAt, maps: Sequence[Map]) -> None:
        self._maps[at.key] = list(maps)
        self._doubtful.discard(at.key)

    def forget(self, at: PortAt) -> None:
        """Nobody knows what is in its maps: they are all read the next time."""
        self._maps.pop(at.key, None)
        self._doubtful.add(at.key)

    def _in_turn(self, at: PortAt, count: int) -> list[int]:
        """The inputs whose maps are read now."""
        inputs = at.inputs
        if at.key in self._doubtful:
            return list(inputs)
        first = self._next.get(at.key, at.port)
        found = [(first + n) % len(inputs) for n in range(min(count, len(inputs)))]
        self._next[at.key] = first + len(found)
        return found

    def _note(self, at: PortAt, inputs: Sequence[int], answers: Sequence[bytes]) -> bool:
        """Remembers maps; whether those that were known are as they were."""
        known = self._maps.setdefault(at.key, [None] * len(at.inputs))
        found = {n: mad.vls_of_levels(data) for n, data in zip(inputs, answers, strict=True)}
        is_as_it_was = all(known[n] in (None, vls) for n, vls in found.items())
        for n, vls in found.items():
            known[n] = vls
        self._doubtful.discard(at.key)
        return is_as_it_was

    def _limit(
        self, ports: dict[PortName, PortAt], lists: Mapping[PortName, Sequence[bytes]]
    ) -> dict[PortName, Failed]:
        """Puts in what ports say now whose high list serves a VL; answers those that failed."""
        laned = {
            port: at
            for port, at in ports.items()
            if served(at.high_list(lists[port][len(at.low()) :]))
        }
        informed, failed = self.informed(laned)
        ports |= informed
        return failed
