"""The data model of a fabric: nodes, ports, links and their rates, lanes and routes.

Values are immutable. Ports are numbered from 1, as in InfiniBand. Hosts come before switches in
`nodes`; routes count switches and hosts in that order. The values do not check themselves:
`weft.fabric.soundness` does.

A lane signals at `signal` Gb/s; its line code spends part of that, so data moves at
`signal · payload / coded`. SDR to QDR use 8b/10b, FDR to EDR 64b/66b. HDR and NDR send
64b/66b blocks transcoded to 256b/257b under RS-FEC(544,514): 256/257 · 514/544 = 16/17.
Entry points: `Fabric`, `link_rate`. Units: picoseconds, bits per second of data.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, count
from operator import attrgetter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.units import TIME_PS, parse_rate

# ---- Rates of links ---------------------------------------------------------------------------

WIDTHS = (1, 2, 4, 8, 12)


@dataclass(frozen=True, slots=True)
class _LineCode:
    name: str
    payload: int
    coded: int


_8B10B = _LineCode("8b/10b", 8, 10)
_64B66B = _LineCode("64b/66b", 64, 66)
_RS_FEC = _LineCode("64b/66b+RS-FEC(544,514)", 16, 17)

_LANES: dict[str, tuple[float, _LineCode]] = {
    "SDR": (2.5e9, _8B10B),
    "DDR": (5.0e9, _8B10B),
    "QDR": (10.0e9, _8B10B),
    "FDR10": (10.3125e9, _64B66B),
    "FDR": (14.0625e9, _64B66B),
    "EDR": (25.78125e9, _64B66B),
    "HDR": (53.125e9, _RS_FEC),
    "NDR": (106.25e9, _RS_FEC),
}
SPEEDS = tuple(_LANES)


def lane_speed(text: str) -> str:
    """The speed of a lane as InfiniBand tools print it: "14.0625 Gbps" is FDR."""
    if "FDR10" in text:
        return "FDR10"
    signal_bps = float(text.split()[0]) * 1e9
    return next((name for name, (bps, _) in _LANES.items() if bps == signal_bps), text)


_NAME = re.compile(r"^\s*([0-9]+)[xX]\s*([A-Za-z]+[0-9]*)\s*$")
_PLAIN = re.compile(r"^\s*(.*?[0-9])\s*([A-Za-z/]+)\s*$")
_REMEDY = (
    f"write WIDTHxSPEED with width {', '.join(map(str, WIDTHS))} and speed {', '.join(SPEEDS)}"
)


@dataclass(frozen=True, slots=True)
class LinkRate:
    """An InfiniBand rate: `width` lanes of one `speed`, such as 4xFDR."""

    speed: str
    width: int

    def __post_init__(self) -> None:
        if self.speed not in _LANES or self.width not in WIDTHS:
            raise InputError("link rate", f"{self.width}x{self.speed} does not exist", _REMEDY)

    @classmethod
    def parse(cls, text: str, where: str = "link rate") -> LinkRate:
        """The rate written as "4xFDR" (case and space do not matter)."""
        match = _NAME.match(text)
        if match is None or match[2].upper() not in _LANES or int(match[1]) not in WIDTHS:
            raise InputError(where, f"{text!r} is not a known link rate", _REMEDY)
        return cls(match[2].upper(), int(match[1]))

    @property
    def encoding(self) -> str:
        return _LANES[self.speed][1].name

    @property
    def signal_bps(self) -> float:
        return _LANES[self.speed][0] * self.width

    @property
    def data_bps(self) -> float:
        code = _LANES[self.speed][1]
        return self.signal_bps * code.payload / code.coded

    def __str__(self) -> str:
        return f"{self.width}x{self.speed}"


SLOWEST_BPS, FASTEST_BPS = 1e6, 1e14


@dataclass(frozen=True, slots=True)
class PlainRate:
    """A rate given as a number: all of it carries data."""

    text: str
    data_bps: float

    @property
    def encoding(self) -> str:
        return "none"

    @property
    def signal_bps(self) -> float:
        return self.data_bps

    def __str__(self) -> str:
        return self.text


def link_rate(text: str, where: str = "link rate") -> LinkRate | PlainRate:
    """The rate written as "4xFDR" or as "56 Gb/s"; the latter is a data rate."""
    if isinstance(text, str) and _NAME.match(text):
        return LinkRate.parse(text, where)
    data_bps = parse_rate(text, where)
    if not SLOWEST_BPS <= data_bps <= FASTEST_BPS:
        raise InputError(where, f"{text!r} is out of range", "use 1 Mb/s to 100 Tb/s")
    return PlainRate(_PLAIN.sub(r"\1 \2", text), data_bps)


def format_time(ps: int) -> str:
    """The duration in the largest unit that needs no fraction: 1500000 ps is "1500 ns"."""
    factor, unit = max((f, u) for u, f in TIME_PS.items() if ps % f == 0 and u.isascii())
    return f"{ps // factor} {unit}"


# ---- Fabrics ----------------------------------------------------------------------------------

MAX_PORTS = 254
MAX_UNICAST_LID = 0xBFFF
MAX_GROUPS = 65534  # that the simulator can tell apart

Kind = Literal["host", "switch"]
GroupNumbers = NDArray[np.signedinteger]


class Port(NamedTuple):
    """One port: the index of its node in `Fabric.nodes`, and its number there."""

    node: int
    port: int


@dataclass(frozen=True, slots=True)
class Node:
    """A host or a switch with `ports` ports; LID and GUID where known."""

    name: str
    kind: Kind
    ports: int
    lid: int | None = None
    guid: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A cable: `rate_bps` of data and `delay_ps` of flight in each direction."""

    a: Port
    b: Port
    rate_bps: float
    delay_ps: int
    rate_name: str

    def canonical(self) -> Link:
        """The same cable with its lower end first."""
        return self if self.a <= self.b else replace(self, a=self.b, b=self.a)


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Output ports of every switch towards every host.

    `next_hop[switch, host]` is an index into `groups`, or -1 where the host cannot be
    reached; a group is the tuple of output ports a packet may take alike.
    """

    next_hop: GroupNumbers
    groups: tuple[tuple[int, ...], ...]

    @staticmethod
    def index_type(groups: int) -> np.dtype[np.signedinteger]:
        """The narrowest type of `next_hop` that holds so many groups."""
        return np.dtype(np.int16 if groups <= np.iinfo(np.int16).max else np.int32)

    @classmethod
    def from_ports(cls, ports: NDArray[np.integer]) -> Routes:
        """Single-path routes of the matrix [switch, host] of output ports; 0 is unreachable."""
        used = np.unique(ports[ports > 0])
        index = np.full(int(ports.max(initial=0)) + 1, -1, dtype=np.int16)
        index[used] = np.arange(len(used), dtype=np.int16)
        return cls(index[np.maximum(ports, 0)], tuple((int(p),) for p in used))

    @classmethod
    def from_groups(cls, rows: Sequence[Sequence[tuple[int, ...]]], hosts: int) -> Routes:
        """Routes of one row of port tuples per switch; the empty tuple is unreachable."""
        index: dict[tuple[int, ...], int] = {(): -1}
        cells = [[index.setdefault(g, len(index) - 1) for g in row] for row in rows]
        index_type = cls.index_type(len(index))
        next_hop = np.array(cells, dtype=index_type).reshape(len(rows), hosts)
        return cls(next_hop, tuple(g for g in index if g))

    def ports(self, switch: int, host: int) -> tuple[int, ...]:
        """Output ports of the switch towards the host, counted among switches and hosts."""
        group = int(self.next_hop[switch, host])
        return self.groups[group] if group >= 0 else ()

    @property
    def table(self) -> NDArray[np.uint16]:
        """`next_hop` as the core takes it: 65535 where the host cannot be reached."""
        if len(self.groups) > MAX_GROUPS:
            raise InputError(
                "routes",
                f"{len(self.groups)} distinct groups of ports, above {MAX_GROUPS}",
                "keep one path to each host, such as routing = destination_modulo",
            )
        narrow = np.ascontiguousarray(self.next_hop.astype(np.int16, copy=False))
        return narrow.view(np.uint16)

    @property
    def group_table(self) -> tuple[list[int], list[int]]:
        """Where each group starts, and one more, in the ports of all groups; and these ports."""
        starts = [0, *accumulate(len(group) for group in self.groups)]
        return starts, [port for group in self.groups for port in group]

    def __eq__(self, other: object) -> bool:
        """Routes are equal if they send every packet alike; the order of groups does not matter."""
        if not isinstance(other, Routes) or self.next_hop.shape != other.next_hop.shape:
            return False
        number = {g: i for i, g in enumerate(sorted({*self.groups, *other.groups}))}
        cells, other_cells = (
            np.array([number[g] for g in r.groups] + [-1], dtype=np.int32)[r.next_hop]
            for r in (self, other)
        )
        return bool(np.array_equal(cells, other_cells))

    def __hash__(self) -> int:
        return hash(self.next_hop.shape)


@dataclass(frozen=True)
class Fabric:
    """Nodes, the links between them, data virtual lanes, and routes where known.

    Links are sorted by their lower ends, so equal fabrics compare equal. `warnings` name what a
    reader decided, `findings` what is wrong with the fabric that a dump shows.
    """

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    lanes: int = 1
    routes: Routes | None = None
    warnings: tuple[str, ...] = field(default=(), compare=False)
    findings: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        ordered = sorted((link.canonical() for link in self.links), key=attrgetter("a", "b"))
        object.__setattr__(self, "links", tuple(ordered))

    def with_routes(self, routes: Routes) -> Fabric:
        """The same fabric with these routes. What follows from its links is not computed again."""
        routed = copy.copy(self)
        object.__setattr__(routed, "routes", routes)
        return routed

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        return tuple(i for i, node in enumerate(self.nodes) if node.kind == "host")

    @cached_property
    def switches(self) -> tuple[int, ...]:
        return tuple(i for i, node in enumerate(self.nodes) if node.kind == "switch")

    @cached_property
    def ordinal(self) -> tuple[int, ...]:
        """Place of each node among the nodes of its kind: the row or column in `Routes`."""
        places = {n: i for group in (self.hosts, self.switches) for i, n in enumerate(group)}
        return tuple(places[n] for n in range(len(self.nodes)))

    @cached_property
    def link_of(self) -> dict[Port, Link]:
        return {end: link for link in self.links for end in (link.a, link.b)}

    @cached_property
    def _neighbors(self) -> tuple[dict[int, Port], ...]:
        table: tuple[dict[int, Port], ...] = tuple({} for _ in self.nodes)
        for link in self.links:
            table[link.a.node][link.a.port] = link.b
            table[link.b.node][link.b.port] = link.a
        return tuple(dict(sorted(ports.items())) for ports in table)

    def neighbors(self, node: int) -> dict[int, Port]:
        """For each linked port of the node, the port at the other end."""
        return self._neighbors[node]

    @cached_property
    def ends(self) -> NDArray[np.int32]:
        """[link, (node, port, node, port)]: both ends of every link."""
        numbers = (number for link in self.links for number in (*link.a, *link.b))
        return np.fromiter(numbers, np.int32, 4 * len(self.links)).reshape(-1, 4)

    @cached_property
    def wiring(self) -> NDArray[np.int32]:
        """Node at the far end of each port, [node, port - 1]; -1 where nothing is linked."""
        ports = max((node.ports for node in self.nodes), default=0)
        table = np.full((len(self.nodes), ports), -1, dtype=np.int32)
        a, a_port, b, b_port = self.ends.T
        table[a, a_port - 1], table[b, b_port - 1] = b, a
        return table

    @cached_property
    def host_ends(self) -> NDArray[np.int32]:
        """[host, (node, port)] at the far end of every host's link."""
        forth, back = self.ends, self.ends[:, [2, 3, 0, 1]]
        far = np.full((len(self.nodes), 2), -1, dtype=np.int32)
        far[back[:, 0]], far[forth[:, 0]] = back[:, 2:], forth[:, 2:]
        return far[list(self.hosts)]

    def describe_link(self, link: Link) -> str:
        """Both ports of a link by name."""
        a, b = (f"{self.nodes[end.node].name} port {end.port}" for end in (link.a, link.b))
        return f"{a} to {b}"

    def index(self, name: str) -> int:
        """Index of the node with this name."""
        for i, node in enumerate(self.nodes):
            if node.name == name:
                return i
        raise InputError(f"fabric {self.name}", f"no node is called {name!r}", "use a node's name")


def _free_numbers(used: Iterable[int], numbers: Iterable[int]) -> Iterator[int]:
    busy = set(used)
    return (number for number in numbers if number not in busy)


def with_addresses(fabric: Fabric) -> Fabric:
    """The fabric with a LID and a GUID for every node that lacks one."""
    lids = _free_numbers((n.lid for n in fabric.nodes if n.lid is not None), count(1))
    # Sixteen apart: InfiniBand tools number the ports of a node from its GUID on.
    used_guids = (int(n.guid, 16) for n in fabric.nodes if n.guid is not None)
    guids = _free_numbers(used_guids, count(0x100000, 16))
    nodes = tuple(
        replace(
            node,
            lid=next(lids) if node.lid is None else node.lid,
            guid=f"0x{next(guids):016x}" if node.guid is None else node.guid,
        )
        for node in fabric.nodes
    )
    return replace(fabric, nodes=nodes)
