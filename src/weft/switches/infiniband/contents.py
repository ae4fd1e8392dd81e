"""What ports hold now: arbitration lists, maps of service levels, limit of high priority.

Lists are read every time. An output port has as many maps as its switch has ports. They are read in
turn, at least one of a port each time, and remembered; one that has not had its turn is not known.
When one is not as it was, all of its port are read. The limit is read where a list of high priority
makes it count. Entry point: `Contents`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.switches.infiniband import mad
from weft.switches.infiniband.mad_transport import SmpClient
from weft.switches.infiniband.ports import PortAddress, ask_ports, decode_port
from weft.switches.infiniband.vl_tables import Map, PortTables, sum_weights
from weft.switches.tables import Failed, PortName

Ports = Mapping[PortName, PortAddress]
Key = tuple[int, int]


class PortReader:
    """Reads ports, and remembers the maps that it has read."""

    def __init__(self, wire: SmpClient) -> None:
        self._wire = wire
        self._maps: dict[Key, list[Map]] = {}
        self._next_input: dict[Key, int] = {}
        self._unreliable: set[Key] = set()

    def read_info(
        self, ports: Ports, tries: int | None = None
    ) -> tuple[dict[PortName, PortAddress], dict[PortName, Failed]]:
        """The ports with what they are now: the VLs in use are the subnet manager's to change."""
        requests = {port: [at.read_info_request()] for port, at in ports.items()}
        answers, failed = ask_ports(self._wire, requests, tries)
        return {
            port: ports[port].with_info(mad.unpack_port_info(data))
            for port, (data,) in answers.items()
        }, failed

    def read_tables(
        self, ports: Ports, maps: int = 0, *, with_limits: bool = True
    ) -> tuple[dict[PortName, PortTables], dict[PortName, Failed]]:
        """What each port holds; some `maps` maps are read in all, at least one of each port.

        Without `with_limits` limits are those that were last read.
        """
        count = max(1, maps // max(1, len(ports)))
        inputs = {port: self._choose_inputs(at, count) for port, at in ports.items()}
        requests = {port: [*at.lists(), *at.maps(inputs[port])] for port, at in ports.items()}
        answers, failed = ask_ports(self._wire, requests)
        lists: dict[PortName, list[bytes]] = {}
        changed: dict[PortName, PortAddress] = {}
        for port, row in answers.items():
            split = len(row) - len(inputs[port])
            lists[port] = row[:split]
            if not self._check_maps(ports[port], inputs[port], row[split:]):
                changed[port] = ports[port]
        failed |= self.read_all_maps(changed)
        readable = {port: ports[port] for port in lists if port not in failed}
        unlimited: dict[PortName, Failed] = {}
        if with_limits:
            unlimited = self._read_limits(readable, lists)
        tables = {
            port: decode_port(at, lists[port], self.maps(at))
            for port, at in readable.items()
            if port not in unlimited
        }
        return tables, failed | unlimited

    def maps(self, at: PortAddress) -> tuple[Map, ...]:
        """The maps of a port as they are known."""
        return tuple(self._maps.get(at.key) or [None] * len(at.inputs))

    def read_all_maps(self, ports: Ports) -> dict[PortName, Failed]:
        """Reads all maps of the ports; answers those that failed."""
        answers, failed = ask_ports(
            self._wire, {port: at.maps(at.inputs) for port, at in ports.items()}
        )
        for port, row in answers.items():
            self.remember(ports[port], [mad.unpack_map(data) for data in row])
        for port in failed:
            self.forget(ports[port])
        return failed

    def remember(self, at: PortAddress, maps: Sequence[Map]) -> None:
        self._maps[at.key] = list(maps)
        self._unreliable.discard(at.key)

    def forget(self, at: PortAddress) -> None:
        """Nobody knows what is in its maps: they are all read the next time."""
        self._maps.pop(at.key, None)
        self._unreliable.add(at.key)

    def _choose_inputs(self, at: PortAddress, count: int) -> list[int]:
        """The inputs whose maps are read now."""
        inputs = at.inputs
        if at.key in self._unreliable:
            return list(inputs)
        first = self._next_input.get(at.key, at.port)
        chosen = [(first + n) % len(inputs) for n in range(min(count, len(inputs)))]
        self._next_input[at.key] = first + len(chosen)
        return chosen

    def _check_maps(self, at: PortAddress, inputs: Sequence[int], answers: Sequence[bytes]) -> bool:
        """Remembers maps; whether those that were known are as they were."""
        remembered = self._maps.setdefault(at.key, [None] * len(at.inputs))
        maps = {n: mad.unpack_map(data) for n, data in zip(inputs, answers, strict=True)}
        is_unchanged = all(remembered[n] in (None, vls) for n, vls in maps.items())
        for n, vls in maps.items():
            remembered[n] = vls
        self._unreliable.discard(at.key)
        return is_unchanged

    def _read_limits(
        self, ports: dict[PortName, PortAddress], lists: Mapping[PortName, Sequence[bytes]]
    ) -> dict[PortName, Failed]:
        """Puts in what ports say now whose high list serves a VL; answers those that failed."""
        with_lane = {
            port: at
            for port, at in ports.items()
            if sum_weights(at.high_list(lists[port][len(at.low()) :]))
        }
        informed, failed = self.read_info(with_lane)
        ports |= informed
        return failed
