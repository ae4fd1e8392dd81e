"""Ports of a subnet: requests that read and write their tables, and what they hold now.

A switch answers for all of its ports under one LID and has a map for each pair of an input and an
output port. An adapter answers for itself and has one map for all that it sends. A node without
maps sends everything by VL 0: its ports have one queue.

`PortReader` reads lists every time. An output port has as many maps as its switch has ports: they
are read in turn, at least one of a port each time, and remembered; a map that has not had its turn
is unknown. If one has changed, all maps of that port are read. The limit of high priority is read
only where a high-priority list makes it count. Entry points: `PortAddress`, `ask_ports`,
`PortReader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from weft.switches.infiniband import mad
from weft.switches.infiniband.mad import Entry, PortInfo, Smp
from weft.switches.infiniband.mad_transport import Refusal, SmpClient
from weft.switches.infiniband.subnet_discovery import NodeAddress
from weft.switches.infiniband.vl_tables import CACHE_SIZE, Map, PortTables, Step, sum_weights
from weft.switches.tables import Failed, PortName


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAddress:
    """A port, its address, and what is known of it."""

    node: NodeAddress
    lid: int
    port: int
    info: PortInfo

    def with_info(self, info: PortInfo) -> PortAddress:
        """The same port with new information."""
        now = replace(self, info=info)
        if now.has_maps:
            return now
        return replace(self, info=replace(info, data_vls=min(1, info.data_vls)))

    @property
    def key(self) -> tuple[int, int]:
        """The port by the GUID of its node, which outlives names and LIDs."""
        return self.node.guid, self.port

    @property
    def inputs(self) -> range:
        """Input ports, the switch's own port 0 among them; none without maps."""
        if not self.has_maps:
            return range(0)
        return range(self.node.ports + 1) if self.node.switch else range(1)

    @property
    def has_maps(self) -> bool:
        """Port 0 of a switch says it; a switch that does not is assumed to have maps."""
        info = self.node.info.get(0) if self.node.switch else self.info
        return info is None or info.has_maps

    def read_info_request(self) -> Smp:
        return Smp(self.lid, mad.PORT_INFO, self.port)

    def lists(self) -> list[Smp]:
        """Blocks of the low list, then of the high one."""
        return [*self.low(), *self.high()]

    def low(self) -> list[Smp]:
        return [self._block(mad.LOW, n) for n in range(_count_blocks(self.info.low_entries))]

    def high(self) -> list[Smp]:
        return [self._block(mad.HIGH, n) for n in range(_count_blocks(self.info.high_entries))]

    def maps(self, inputs: Iterable[int]) -> list[Smp]:
        """The maps of a port, as far as known."""
        return [self._map(n) for n in inputs]

    def writes(self, step: Step) -> list[Smp]:
        """The requests that write a step."""
        requests = self._new_maps(step.maps) if step.maps else []
        if step.high is not None:
            requests += self._new_list(mad.HIGH, step.high)
        if step.limit is not None:
            new = mad.replace_high_limit(self.info.data, step.limit)
            requests.append(self.read_info_request()._replace(new=new))
        if step.low is not None:
            requests += self._new_list(mad.LOW, step.low)
        return requests

    def _block(self, table: int, block: int) -> Smp:
        port = self.port if self.node.switch else 0
        return Smp(self.lid, mad.VL_ARBITRATION, mad.pack_arbitration_modifier(table, block, port))

    def _new_list(self, table: int, entries: Sequence[Entry]) -> list[Smp]:
        size = mad.BLOCK_ENTRIES
        rows = [entries[at : at + size] for at in range(0, len(entries), size)]
        return [
            self._block(table, n)._replace(new=mad.pack_arbitration(row))
            for n, row in enumerate(rows)
        ]

    def _map(self, input_port: int) -> Smp:
        modifier = mad.pack_map_modifier(input_port, self.port) if self.node.switch else 0
        return Smp(self.lid, mad.SL_TO_VL, modifier)

    def _new_maps(self, maps: Mapping[int, tuple[int, ...]]) -> list[Smp]:
        """One Set for all inputs if the switch offers that and all maps are alike."""
        are_alike = len(maps) == len(self.inputs) and len(set(maps.values())) == 1
        if are_alike and self.node.switch and self.node.switch.maps_all_inputs:
            new = mad.pack_map(next(iter(maps.values())))
            return [Smp(self.lid, mad.SL_TO_VL, mad.ALL_INPUTS | self.port, new)]
        return [self._map(n)._replace(new=mad.pack_map(vls)) for n, vls in maps.items()]

    def low_list(self, blocks: Sequence[bytes]) -> tuple[Entry, ...]:
        return _unpack_entries(b"".join(blocks), self.info.low_entries)

    def high_list(self, blocks: Sequence[bytes]) -> tuple[Entry, ...]:
        return _unpack_entries(b"".join(blocks), self.info.high_entries)


def _count_blocks(entries: int) -> int:
    return -(-entries // mad.BLOCK_ENTRIES)


@lru_cache(maxsize=CACHE_SIZE)
def _unpack_entries(blocks: bytes, count: int) -> tuple[Entry, ...]:
    # Many ports of a fabric hold the same lists.
    return mad.unpack_arbitration(blocks)[:count]


def decode_port(at: PortAddress, lists: Sequence[bytes], maps: Sequence[Map]) -> PortTables:
    """What a port holds, from the answers to `lists` and its maps."""
    split = len(at.low())
    return PortTables(
        maps=tuple(maps),
        low=at.low_list(lists[:split]),
        high=at.high_list(lists[split:]),
        limit=at.info.high_limit,
    )


def ask_ports(
    client: SmpClient, requests: Mapping[PortName, Sequence[Smp]], tries: int | None = None
) -> tuple[dict[PortName, list[bytes]], dict[PortName, Failed]]:
    """The answers to each port's requests; a port has failed if one of its requests has."""
    replies = iter(
        client.ask([smp for port_requests in requests.values() for smp in port_requests], tries)
    )
    answers: dict[PortName, list[bytes]] = {}
    failed: dict[PortName, Failed] = {}
    for port, port_requests in requests.items():
        row = [next(replies) for _ in port_requests]
        refused = [answer for answer in row if isinstance(answer, Refusal)]
        if refused:
            failed[port] = Failed(refused[0].problem)
        else:
            answers[port] = [answer for answer in row if isinstance(answer, bytes)]
    return answers, failed


Ports = Mapping[PortName, PortAddress]
Key = tuple[int, int]


class PortReader:
    """Reads ports, and remembers the maps that it has read."""

    def __init__(self, client: SmpClient) -> None:
        self._client = client
        self._maps: dict[Key, list[Map]] = {}
        self._next_input: dict[Key, int] = {}
        self._unreliable: set[Key] = set()

    def read_info(
        self, ports: Ports, tries: int | None = None
    ) -> tuple[dict[PortName, PortAddress], dict[PortName, Failed]]:
        """Refreshes the ports: the subnet manager may change the VLs in use."""
        requests = {port: [at.read_info_request()] for port, at in ports.items()}
        answers, failed = ask_ports(self._client, requests, tries)
        return {
            port: ports[port].with_info(mad.unpack_port_info(data))
            for port, (data,) in answers.items()
        }, failed

    def read_tables(
        self, ports: Ports, maps: int = 0, *, with_limits: bool = True
    ) -> tuple[dict[PortName, PortTables], dict[PortName, Failed]]:
        """What each port holds. Reads some `maps` maps in all, at least one of each port.

        Without `with_limits` limits are those of the last reading.
        """
        count = max(1, maps // max(1, len(ports)))
        inputs = {port: self._choose_inputs(at, count) for port, at in ports.items()}
        requests = {port: [*at.lists(), *at.maps(inputs[port])] for port, at in ports.items()}
        answers, failed = ask_ports(self._client, requests)
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
        """The maps of a port, as far as known."""
        return tuple(self._maps.get(at.key) or [None] * len(at.inputs))

    def read_all_maps(self, ports: Ports) -> dict[PortName, Failed]:
        """Reads all maps of the ports; returns the failures."""
        answers, failed = ask_ports(
            self._client, {port: at.maps(at.inputs) for port, at in ports.items()}
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
        """The port's maps are unknown now: the next reading reads them all."""
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
        """Remembers maps; returns whether the known ones are unchanged."""
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
        """Refreshes ports whose high list serves a VL; returns the failures."""
        with_lane = {
            port: at
            for port, at in ports.items()
            if sum_weights(at.high_list(lists[port][len(at.low()) :]))
        }
        informed, failed = self.read_info(with_lane)
        ports |= informed
        return failed
