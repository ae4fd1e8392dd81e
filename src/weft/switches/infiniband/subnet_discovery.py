"""Discovers the fabric: nodes and cables by directed routes, then forwarding tables. Watches it.

The walk starts at this host's port and continues through every linked port of every switch, by
increasing distance. Nodes are named as in a dump of `ibnetdiscover`: by description, with the GUID
where two are equal. Each linked port of an adapter or router is a host of its own. Cables have no
length: a subnet does not report it. A neighbour that does not answer is left out and listed in
`Subnet.unanswered`. A node that answers and then stops is an error, because half of a fabric looks
like another fabric. For a host with several LIDs, routes are the output ports of all of them.

The watch sees links that go or come and routes that change. A look reads one end of every cable,
and in rotation the ports without a link and blocks of the forwarding tables: a small subnet is read
whole each time. Traps would tell sooner, but they go to the subnet manager alone unless one
subscribes with it. A switch that is silent is left to the next discovery. Entry points:
`discover_subnet`, `SubnetWatch`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.fabric import Fabric, Link, Node, Port, Routes, check_fabric, link_rate
from weft.fabric.fabric import MAX_UNICAST_LID
from weft.switches.infiniband.mad import (
    LFT_BLOCK,
    LINEAR_FORWARDING,
    MAX_HOPS,
    NO_ROUTE,
    NODE_DESCRIPTION,
    NODE_INFO,
    PORT_INFO,
    SWITCH_INFO,
    NodeInfo,
    PortInfo,
    Smp,
    SwitchInfo,
    unpack_description,
    unpack_node_info,
    unpack_port_info,
    unpack_switch_info,
)
from weft.switches.infiniband.mad_transport import Refusal, SmpClient
from weft.switches.tables import PortName

End = tuple[int, int]
"""A port of a node: GUID and number."""

_UNKNOWN_SWITCH = SwitchInfo(top=0, maps_all_inputs=False)
IN_ROTATION = 512  # ports without a link, and blocks, in a look


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """How to address the tables of a node; `switch` is None for an adapter."""

    guid: int
    lid: int | None
    ports: int
    switch: SwitchInfo | None
    info: Mapping[int, PortInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """The fabric, the address of each node by name, and ports with a silent neighbour."""

    fabric: Fabric
    nodes: Mapping[str, NodeAddress]
    unanswered: tuple[PortName, ...]


def discover_subnet(client: SmpClient) -> Subnet:
    """Everything that can be reached from this host's port."""
    walk = _Walk(client)
    walk.run()
    nodes = sorted(_name_nodes(walk.nodes), key=lambda named: (named.node.kind, named.visited.key))
    index = {end: i for i, named in enumerate(nodes) for end in named.ends}
    links = [_build_link(walk, index, a, b) for a, b in sorted(walk.cables)]
    drawn = Fabric(
        "infiniband", tuple(named.node for named in nodes), tuple(links), _count_lanes(walk)
    )
    routes = _read_routes(client, drawn, nodes)
    fabric = Fabric(drawn.name, drawn.nodes, drawn.links, drawn.lanes, routes)
    return Subnet(
        fabric=check_fabric(fabric),
        nodes={named.node.name: named.place for named in nodes},
        unanswered=tuple(PortName(nodes[index[end]].node.name, end[1]) for end in walk.unanswered),
    )


# ---- The walk -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _VisitedNode:
    """A node of the walk: its path and its information."""

    path: tuple[int, ...]
    info: NodeInfo
    description: str = ""
    switch: SwitchInfo | None = None
    ports: dict[int, PortInfo] = field(default_factory=dict)

    @property
    def key(self) -> End:
        """Switches are visited once; an adapter once for each port."""
        return self.info.guid, 0 if self.info.is_switch else self.info.local_port


@dataclass(frozen=True, slots=True)
class _Probe:
    """A path to try, and the last port it leaves."""

    path: tuple[int, ...]
    behind: End | None


class _Walk:
    """Nodes by key; cables by their two ends, the lower one first."""

    def __init__(self, client: SmpClient) -> None:
        self._client = client
        self.nodes: dict[End, _VisitedNode] = {}
        self.cables: set[tuple[End, End]] = set()
        self.unanswered: list[End] = []
        self._cabled: set[End] = set()

    def run(self) -> None:
        probes = [_Probe((), None)]
        while probes:
            new_nodes = self._visit(probes)
            self._read_details(new_nodes)
            probes = [probe for node in new_nodes for probe in self._list_probes(node)]

    def _visit(self, probes: Sequence[_Probe]) -> list[_VisitedNode]:
        """The nodes at the end of each path that were not known."""
        new: list[_VisitedNode] = []
        answers = _ask_twice(self._client, [Smp(probe.path, NODE_INFO) for probe in probes])
        for probe, answer in zip(probes, answers, strict=True):
            if isinstance(answer, Refusal):
                self._note_silence(probe, answer)
                continue
            node = _VisitedNode(probe.path, unpack_node_info(answer))
            if probe.behind is not None:
                self._add_cable(probe.behind, (node.info.guid, node.info.local_port))
            if node.key not in self.nodes:
                self.nodes[node.key] = node
                new.append(node)
        return new

    def _add_cable(self, near: End, far: End) -> None:
        if near[0] != far[0]:  # a cable back to the same switch carries nothing
            self.cables.add((min(near, far), max(near, far)))
        self._cabled |= {near, far}

    def _note_silence(self, probe: _Probe, why: Refusal) -> None:
        if probe.behind is None:
            raise InputError("infiniband", f"this host's port: {why.problem}", "see `ibstat`")
        self.unanswered.append(probe.behind)

    def _read_details(self, new_nodes: Sequence[_VisitedNode]) -> None:
        """Description, switch information and ports of each node; what it does not offer stays
        empty.
        """
        requests = [(node, smp) for node in new_nodes for smp in _list_requests(node)]
        answers = _ask_twice(self._client, [smp for _, smp in requests])
        for (node, smp), answer in zip(requests, answers, strict=True):
            if isinstance(answer, Refusal):
                _check_not_silent(node, answer)
                continue
            if smp.attribute == NODE_DESCRIPTION:
                node.description = unpack_description(answer)
            elif smp.attribute == SWITCH_INFO:
                node.switch = unpack_switch_info(answer)
            else:
                node.ports[smp.modifier] = unpack_port_info(answer)

    def _list_probes(self, node: _VisitedNode) -> Iterator[_Probe]:
        """Paths through a node: all linked ports of a switch, or this host's own port."""
        if len(node.path) == MAX_HOPS or (node.path and not node.info.is_switch):
            return
        for port, info in sorted(node.ports.items()):
            end = (node.info.guid, port)
            if port and info.is_linked and end not in self._cabled:
                yield _Probe((*node.path, port), end)


def _ask_twice(
    client: SmpClient, requests: Sequence[Smp], otherwise: Sequence[Smp] = ()
) -> list[bytes | Refusal]:
    """The answers; silent addresses are asked again, by another path if there is one."""
    answers = client.ask(requests)
    silent = [n for n, answer in enumerate(answers) if _is_silence(answer)]
    second = client.ask([(otherwise or requests)[n] for n in silent])
    for n, answer in zip(silent, second, strict=True):
        answers[n] = answer
    return answers


def _is_silence(answer: bytes | Refusal) -> bool:
    return isinstance(answer, Refusal) and answer.is_silence


def _check_not_silent(node: _VisitedNode, refusal: Refusal) -> None:
    if refusal.is_silence:
        where = f"infiniband {node.description or _format_id(node.info)}"
        raise InputError(where, f"answered, and then not: {refusal.problem}", "discover again")


def _list_requests(node: _VisitedNode) -> Iterator[Smp]:
    yield Smp(node.path, NODE_DESCRIPTION)
    if not node.info.is_switch:
        yield Smp(node.path, PORT_INFO, node.info.local_port)
        return
    yield Smp(node.path, SWITCH_INFO)
    yield from (Smp(node.path, PORT_INFO, port) for port in range(node.info.ports + 1))


# ---- The fabric ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedNode:
    """A node of the fabric, its ends, and how it was visited."""

    node: Node
    ends: tuple[End, ...]
    visited: _VisitedNode

    @property
    def lids(self) -> range:
        """All LIDs of the node."""
        base = self.node.lid
        info = self.visited.ports.get(self.ends[0][1])
        if base is None or info is None:
            return range(0)
        return range(base, min(base + 2**info.lmc, MAX_UNICAST_LID + 1))

    @property
    def place(self) -> NodeAddress:
        return NodeAddress(
            guid=self.visited.info.guid,
            lid=self.node.lid,
            ports=self.visited.info.ports,
            switch=(self.visited.switch or _UNKNOWN_SWITCH)
            if self.visited.info.is_switch
            else None,
            info=self.visited.ports,
        )


def _name_nodes(visited: Mapping[End, _VisitedNode]) -> Iterator[_NamedNode]:
    """Nodes with unique names; the first linked port of an adapter has the adapter's."""
    descriptions = {
        node.info.guid: node.description or _format_id(node.info) for node in visited.values()
    }
    shared = {name for name, n in Counter(descriptions.values()).items() if n > 1}
    first: dict[int, int] = {}
    for guid, port in sorted(visited):
        first.setdefault(guid, port)
    for node in visited.values():
        name = descriptions[node.info.guid]
        unique = f"{name} ({_format_id(node.info)})" if name in shared else name
        is_first = node.key[1] == first[node.info.guid]
        yield _switch(unique, node) if node.info.is_switch else _host(unique, node, is_first)


def _switch(name: str, visited: _VisitedNode) -> _NamedNode:
    guid, ports = visited.info.guid, visited.info.ports
    node = Node(name, "switch", ports, _find_lid(visited, 0), _format_guid(guid))
    return _NamedNode(
        node=node, ends=tuple((guid, port) for port in range(1, ports + 1)), visited=visited
    )


def _host(name: str, visited: _VisitedNode, is_first: bool) -> _NamedNode:
    port = visited.info.local_port
    guid = visited.info.guid if is_first else visited.info.port_guid
    whole = name if is_first else f"{name} port {port}"
    node = Node(whole, "host", visited.info.ports, _find_lid(visited, port), _format_guid(guid))
    return _NamedNode(node=node, ends=((visited.info.guid, port),), visited=visited)


def _find_lid(visited: _VisitedNode, port: int) -> int | None:
    """LID 0 means that none was assigned."""
    return visited.ports[port].lid or None if port in visited.ports else None


def _format_id(info: NodeInfo) -> str:
    """The id that `ibnetdiscover` prints."""
    return f"{'S' if info.is_switch else 'H'}-{info.guid:016x}"


def _format_guid(guid: int) -> str:
    return f"0x{guid:016x}"


def _build_link(walk: _Walk, index: Mapping[End, int], a: End, b: End) -> Link:
    rate = next((info.rate for info in _list_infos(walk, (a, b)) if info.rate), None)
    if rate is None:
        where = f"infiniband {_format_guid(a[0])} port {a[1]}"
        raise InputError(where, "width or speed of its link is none that is known", "report it")
    ends = Port(index[a], a[1]), Port(index[b], b[1])
    return Link(*ends, link_rate(rate).data_bps, 0, rate)


def _list_infos(walk: _Walk, cable: tuple[End, End]) -> Iterator[PortInfo]:
    """The known information of the two ends of a cable."""
    for guid, port in cable:
        node = walk.nodes.get((guid, 0)) or walk.nodes[guid, port]
        if port in node.ports:
            yield node.ports[port]


def _count_lanes(walk: _Walk) -> int:
    """Data VLs in use on every linked port."""
    counts = [info.data_vls for cable in walk.cables for info in _list_infos(walk, cable)]
    return max(1, min(counts, default=1))


# ---- Routes -------------------------------------------------------------------------------------


def _read_routes(client: SmpClient, fabric: Fabric, nodes: Sequence[_NamedNode]) -> Routes:
    """Output ports of each switch towards each host; none if the table has no linked port."""
    visited = [named.visited for named in nodes if named.node.kind == "switch"]
    lids = _tabulate_lids([named.lids for named in nodes if named.node.kind == "host"])
    ports = np.zeros((len(visited), *lids.shape), dtype=np.int32)
    for row, table in enumerate(_read_forwarding(client, fabric, visited)):
        is_linked = np.zeros(NO_ROUTE + 1, dtype=bool)
        is_linked[list(fabric.neighbors(fabric.switches[row]))] = True
        output = np.zeros(MAX_UNICAST_LID + 1, dtype=np.int32)
        output[: len(table)] = np.frombuffer(table, dtype=np.uint8)
        output[0] = 0  # a host without a LID
        ports[row] = np.where(is_linked[output[lids]], output[lids], 0)
    if lids.shape[0] == 1:
        return Routes.from_ports(ports[:, 0])
    groups = [[tuple(sorted({*column} - {0})) for column in of.T.tolist()] for of in ports]
    return Routes.from_groups(groups, lids.shape[1])


def _tabulate_lids(lids: Sequence[range]) -> NDArray[np.int32]:
    """[n, host]: each host's LIDs; a host with fewer repeats them, and 0 is none."""
    most = max((len(of) for of in lids), default=1) or 1
    rows = [[of[n % len(of)] if of else 0 for of in lids] for n in range(most)]
    return np.array(rows, dtype=np.int32)


def _read_forwarding(
    client: SmpClient, fabric: Fabric, switches: Sequence[_VisitedNode]
) -> Iterator[bytes]:
    """The output port of each LID, by switch; a switch without a LID is asked by its path."""
    lids = [fabric.nodes[n].lid for n in fabric.switches]
    blocks = [
        (i, visited.path, n) for i, visited in enumerate(switches) for n in _list_blocks(visited)
    ]
    by_lid = [Smp(lids[i] or path, LINEAR_FORWARDING, n) for i, path, n in blocks]
    by_path = [Smp(path, LINEAR_FORWARDING, n) for _, path, n in blocks]
    answers = iter(_ask_twice(client, by_lid, by_path))
    for visited in switches:
        table = b"".join(_check_block(visited, next(answers)) for _ in _list_blocks(visited))
        # Entries above the top are not in use.
        yield table[: visited.switch.top + 1] if visited.switch else b""


def _check_block(visited: _VisitedNode, answer: bytes | Refusal) -> bytes:
    """A block of a table; no routes if the switch does not offer it."""
    if isinstance(answer, Refusal):
        _check_not_silent(visited, answer)
        return bytes([NO_ROUTE]) * LFT_BLOCK
    return answer


def _list_blocks(visited: _VisitedNode) -> range:
    top = min(visited.switch.top, MAX_UNICAST_LID) if visited.switch else -1
    return range(top // LFT_BLOCK + 1)


class SubnetWatch:
    """Links as of a discovery; forwarding tables as of the first look at them."""

    def __init__(self, subnet: Subnet) -> None:
        self._cables = list(_list_cables(subnet))
        self._unlinked = list(_list_unlinked(subnet))
        self._block_order = list(_list_watched_blocks(subnet))
        self._blocks: dict[Smp, bytes] = {}

    def has_changed(self, client: SmpClient) -> bool:
        unlinked = _rotate(self._unlinked, IN_ROTATION)
        blocks = _rotate(self._block_order, IN_ROTATION)
        answers = iter(client.ask([*self._cables, *unlinked, *blocks]))
        linked = [_is_linked(next(answers), otherwise=True) for _ in self._cables]
        coming = [_is_linked(next(answers), otherwise=False) for _ in unlinked]
        moved = [self._is_new(block, next(answers)) for block in blocks]
        return not all(linked) or any(coming) or any(moved)

    def _is_new(self, block: Smp, answer: object) -> bool:
        if not isinstance(answer, bytes):
            return False
        before, self._blocks[block] = self._blocks.get(block, answer), answer
        return before != answer


def _is_linked(answer: object, *, otherwise: bool) -> bool:
    return unpack_port_info(answer).is_linked if isinstance(answer, bytes) else otherwise


def _rotate(requests: list[Smp], most: int) -> list[Smp]:
    """The first ones, which then become the last."""
    first = requests[:most]
    requests[:] = [*requests[most:], *first]
    return first


def _list_cables(subnet: Subnet) -> Iterator[Smp]:
    """One end of every cable, at a switch."""
    for link in subnet.fabric.links:
        for end in (link.a, link.b):
            node = subnet.nodes[subnet.fabric.nodes[end.node].name]
            if node.switch is not None and node.lid is not None:
                yield Smp(node.lid, PORT_INFO, end.port)
                break


def _list_unlinked(subnet: Subnet) -> Iterator[Smp]:
    for node in subnet.nodes.values():
        if node.switch is not None and node.lid is not None:
            for port, info in node.info.items():
                if port and not info.is_linked:
                    yield Smp(node.lid, PORT_INFO, port)


def _list_watched_blocks(subnet: Subnet) -> Iterator[Smp]:
    for node in subnet.nodes.values():
        if node.switch is not None and node.lid is not None:
            for block in range(node.switch.top // LFT_BLOCK + 1):
                yield Smp(node.lid, LINEAR_FORWARDING, block)
