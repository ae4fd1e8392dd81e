"""What a port is asked and told, as requests; and requests to many ports at once.

A switch answers for all of its ports under one LID, and has a map for each pair of an input and an
output port; an adapter answers for itself, and has one map for all that it sends. A node that does
not offer maps sends everything by VL 0: its ports have one queue.
Entry points: `PortAt`, `each`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from weft.switches.infiniband import mad
from weft.switches.infiniband.mad import Entry, PortInfo, Smp
from weft.switches.infiniband.mad_transport import Refusal, SmpClient
from weft.switches.infiniband.subnet_discovery import NodeAddress
from weft.switches.infiniband.vl_tables import CACHE_SIZE, Map, PortTables, Step
from weft.switches.tables import Failed, PortName


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAddress:
    """A port, where it is asked, and what is known of it."""

    node: NodeAddress
    lid: int
    port: int
    info: PortInfo

    def with_info(self, info: PortInfo) -> PortAddress:
        """The same port, by what it says of itself now."""
        now = replace(self, info=info)
        if now.has_maps:
            return now
        return replace(self, info=replace(info, data_vls=min(1, info.data_vls)))

    @property
    def key(self) -> tuple[int, int]:
        """The port by the GUID of its node: it outlives names and LIDs."""
        return self.node.guid, self.port

    @property
    def inputs(self) -> range:
        """Ports that packets come in by, the switch's own port 0 among them; none without maps."""
        if not self.has_maps:
            return range(0)
        return range(self.node.ports + 1) if self.node.switch else range(1)

    @property
    def has_maps(self) -> bool:
        """A switch says it at its port 0; one that does not tell is taken to have them."""
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
        """One Set for all inputs where the switch offers that and they are to be alike."""
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
    # Many ports of a fabric hold the same.
    return mad.unpack_arbitration(blocks)[:count]


def decode_port(at: PortAddress, lists: Sequence[bytes], maps: Sequence[Map]) -> PortTables:
    """What a port holds, of the answers to `lists` and its maps."""
    split = len(at.low())
    return PortTables(
        maps=tuple(maps),
        low=at.low_list(lists[:split]),
        high=at.high_list(lists[split:]),
        limit=at.info.high_limit,
    )


def ask_ports(
    wire: SmpClient, requests: Mapping[PortName, Sequence[Smp]], tries: int | None = None
) -> tuple[dict[PortName, list[bytes]], dict[PortName, Failed]]:
    """The answers to each port's requests; a port has failed if one of its requests has."""
    replies = iter(
        wire.ask([smp for port_requests in requests.values() for smp in port_requests], tries)
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
