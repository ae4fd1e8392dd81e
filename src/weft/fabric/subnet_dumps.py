"""Dumps of InfiniBand tools: `ibnetdiscover`, `iblinkinfo`, and linear forwarding tables.

**ibnetdiscover** lists which port is linked to which, at which rate, with LIDs, GUIDs and node
descriptions. It has no cable lengths and no number of lanes; files written here add them in
comments that InfiniBand tools skip. An adapter with several linked ports becomes one host per port.
Of two rates that the ends of a link report, the lower holds. `iblinkinfo` says which links run
below what both ends support.

**Forwarding tables** are as `dump_fts` and `dump_lfts.sh` print them. One section per switch: a
heading with its GUID, then "0xLID port : …" for each LID it can send to, then the count. Only base
LIDs of the fabric's hosts matter; LIDs of switches and the extra LIDs of an LMC are skipped.
`dump_fts` omits the last LID of a table whose top is a multiple of 64: that host then counts as
unreachable.
Entry points: `read_ibnetdiscover`, `write_ibnetdiscover`, `read_iblinkinfo`, `read_lft`,
`write_lft`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError, locate_errors
from weft.fabric.fabric import (
    Fabric,
    Kind,
    Link,
    Node,
    Port,
    Routes,
    format_time,
    lane_speed,
    link_rate,
)
from weft.fabric.soundness import check_fabric, find_slow_links
from weft.units import parse_time

# ---- ibnetdiscover, iblinkinfo ----------------------------------------------------------------

_HEADER = re.compile(
    r'^(?P<type>Switch|Ca|Hca|Rt)\s+(?P<ports>\d+)\s+"(?P<id>[^"]+)"\s*(?P<info>#.*)?$'
)
_DESCRIPTION = re.compile(
    r'^#\s*"(?P<name>.*)"(?:\s+(?:base|enhanced) port 0 lid (?P<lid>\d+) lmc \d+)?'
)
_PORT = re.compile(
    r"^\[(?P<port>\d+)\](?:\[ext \d+\])?\s*(?:\((?P<guid>[0-9a-fA-F]+)\))?\s*"
    r'"(?P<peer>[^"]+)"\[(?P<peer_port>\d+)\](?:\[ext \d+\])?\s*(?:\([0-9a-fA-F]+\))?\s*'
    r'#\s*(?:lid (?P<lid>\d+) lmc \d+\s+)?".*" lid \d+ '
    r"(?P<rate>\d+x\S+|\S+ \S*(?:b/s|B/s|bps|bit/s))(?: delay=(?P<delay>\S+))?(?: .*)?$"
)
_WEFT_COMMENT = re.compile(r'^# weft fabric "(?P<name>.*)" lanes (?P<lanes>\d+)$')
_SKIPPED_LINES = re.compile(
    r"^(#|$|(vendid|devid|sysimgguid|switchguid|caguid)=|Chassis \d|Non-Chassis Nodes|Hostname:)"
)
# GUID and name with -l, LID, port, ==(width speed state), settings with -p, peer, what it could be.
_LINK_INFO = re.compile(
    r'^\s*(?:0x[0-9a-f]{16} (?:".*" )?)?\s*(?P<lid>\d{1,9})\s+(?P<port>\d{1,9})\[.{2}\] '
    r"==\(\s*(?P<width>\d+)X\s+(?P<speed>[\d.]+ Gbps(?: \(FDR10\))?) +\w+/ *\w+\).*==>.*"
    r"\((?:Could be (?P<max_width>\d+)X)? *(?:Could be (?P<max_speed>FDR10|[\d.]+ Gbps))?\)$"
)
_ID = re.compile(r"^[SH]-([0-9a-f]{16})$")


@dataclass(frozen=True, slots=True)
class _End:
    """One line of a node's section: a port and the port it is linked to."""

    line: int
    port: int
    guid: str | None
    peer: tuple[str, int]
    lid: int | None
    rate: str
    delay: str | None


@dataclass(slots=True)
class _NodeSection:
    """One node's section of the dump."""

    line: int
    kind: Kind
    ports: int
    id: str
    name: str
    lid: int | None
    ends: list[_End] = field(default_factory=list)


def read_ibnetdiscover(
    text: str,
    where: str = "ibnetdiscover",
    *,
    name: str = "ibnetdiscover",
    lanes: int = 1,
    delay: str = "0 ns",
) -> Fabric:
    """The fabric of a dump; name, lanes and delay are defaults for what it lacks."""
    records: list[_NodeSection] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if comment := _WEFT_COMMENT.match(line):
            name, lanes = comment["name"], int(comment["lanes"])
        elif not _SKIPPED_LINES.match(line):
            _read_line(f"{where} line {number}", number, line.rstrip(), records)
    _check_ids(where, records)
    nodes, index = _build_nodes(records)
    warnings: list[str] = []
    links = tuple(_build_links(where, records, index, delay, warnings))
    with locate_errors(where):
        fabric = check_fabric(Fabric(name, nodes, links, lanes, warnings=tuple(warnings)))
    return replace(fabric, findings=find_slow_links(fabric))


def _read_line(where: str, number: int, line: str, records: list[_NodeSection]) -> None:
    if header := _HEADER.match(line):
        records.append(_parse_header(where, number, header))
    elif end := _PORT.match(line):
        if not records:
            raise InputError(where, "a port before any node", "start with a Switch or Ca line")
        records[-1].ends.append(_parse_port(where, number, end))
    else:
        raise InputError(
            where,
            f"{line[:60]!r} is neither a node nor a linked port with its rate",
            "give the whole output of ibnetdiscover, without -p or -l",
        )


def _parse_header(where: str, number: int, header: re.Match[str]) -> _NodeSection:
    if header["type"] == "Rt":
        raise InputError(where, "a router", "dump one subnet; routers are not supported")
    description = _DESCRIPTION.match(header["info"] or "")
    return _NodeSection(
        number,
        "switch" if header["type"] == "Switch" else "host",
        _parse_number(where, header["ports"]),
        header["id"],
        (description["name"].strip() if description else "") or header["id"],
        _parse_lid(where, description["lid"] if description else None),
    )


def _parse_port(where: str, number: int, line: re.Match[str]) -> _End:
    return _End(
        number,
        _parse_number(where, line["port"]),
        line["guid"],
        (line["peer"], _parse_number(where, line["peer_port"])),
        _parse_lid(where, line["lid"]),
        str(link_rate(line["rate"], where)),
        line["delay"],
    )


def _parse_number(where: str, digits: str) -> int:
    if len(digits) > 9:
        raise InputError(where, f"number {digits[:20]} has over 9 digits", "correct the dump")
    return int(digits)


def _parse_lid(where: str, digits: str | None) -> int | None:
    """LID 0 means that none was assigned."""
    return (_parse_number(where, digits) or None) if digits is not None else None


def _check_ids(where: str, records: list[_NodeSection]) -> None:
    lines: dict[str, int] = {}
    for record in records:
        if record.id in lines:
            raise InputError(
                f"{where} line {record.line}",
                f"node {record.id} again, first on line {lines[record.id]}",
                "give one dump at a time",
            )
        lines[record.id] = record.line


def _build_nodes(
    records: list[_NodeSection],
) -> tuple[tuple[Node, ...], dict[tuple[str, int], int]]:
    """Nodes, hosts first, and the index of the node that owns each linked (id, port)."""
    nodes: list[Node] = []
    index: dict[tuple[str, int], int] = {}
    shared = {name for name, n in Counter(record.name for record in records).items() if n > 1}
    for record in sorted(records, key=lambda r: r.kind):
        name = f"{record.name} ({record.id})" if record.name in shared else record.name
        if record.kind == "switch" or not record.ends:
            index |= {(record.id, end.port): len(nodes) for end in record.ends}
            nodes.append(Node(name, record.kind, record.ports, record.lid, _guid_of_id(record.id)))
            continue
        for i, end in enumerate(sorted(record.ends, key=lambda e: e.port)):
            index[record.id, end.port] = len(nodes)
            nodes.append(_build_host(record, name, end, first=i == 0))
    return tuple(nodes), index


def _build_host(record: _NodeSection, name: str, end: _End, *, first: bool) -> Node:
    if first:
        return Node(name, "host", record.ports, end.lid, _guid_of_id(record.id))
    guid = f"0x{int(end.guid, 16):016x}" if end.guid else None
    return Node(f"{name} port {end.port}", "host", record.ports, end.lid, guid)


def _guid_of_id(node_id: str) -> str | None:
    match = _ID.match(node_id)
    return f"0x{match[1]}" if match else None


def _build_links(
    where: str,
    records: list[_NodeSection],
    index: dict[tuple[str, int], int],
    delay: str,
    warnings: list[str],
) -> Iterator[Link]:
    """One link for each two lines that name each other, at the lower of their rates."""
    ends = {(record.id, end.port): end for record in records for end in record.ends}
    for record in records:
        for end in record.ends:
            port = (record.id, end.port)
            at = f"{where} line {end.line}"
            _check_mirror(at, port, end, ends)
            if port <= end.peer:
                a, b = (Port(index[key], key[1]) for key in (port, end.peer))
                flight = parse_time(end.delay or delay, at)
                mirror = ends[end.peer]
                rate = min((end.rate, mirror.rate), key=lambda name: link_rate(name).data_bps)
                if end.rate != mirror.rate:
                    warnings.append(
                        f"{at}: {record.name} port {end.port} reports {end.rate}, "
                        f"its peer on line {mirror.line} {mirror.rate}; {rate} is taken"
                    )
                yield Link(a, b, link_rate(rate).data_bps, flight, rate)


def _check_mirror(
    at: str, port: tuple[str, int], end: _End, ends: dict[tuple[str, int], _End]
) -> None:
    name, peer_name = (f"{node} port {number}" for node, number in (port, end.peer))
    mirror = ends.get(end.peer)
    if mirror is None:
        raise InputError(
            at, f"{peer_name} is linked to {name} but has no line", "dump the whole fabric"
        )
    if mirror.peer != port or ends[port] is not end:
        raise InputError(
            at, f"{peer_name} is linked elsewhere on line {mirror.line}", "make both ends agree"
        )
    if end.delay != mirror.delay:
        raise InputError(
            at,
            f"delay {end.delay} here, {mirror.delay} on line {mirror.line}",
            "make both ends of the link agree",
        )


def read_iblinkinfo(text: str, fabric: Fabric, where: str = "iblinkinfo") -> tuple[str, ...]:
    """Findings: the links that run below what both of their ends support."""
    links = {
        (node.lid, port): fabric.link_of[Port(index, port)]
        for index, node in enumerate(fabric.nodes)
        for port in fabric.neighbors(index)
    }
    findings: dict[Link, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if "Could be" not in line:
            continue
        at = f"{where} line {number}"
        match = _LINK_INFO.match(line)
        if match is None:
            raise InputError(at, f"{line[:60]!r} is not a port", "give the output of iblinkinfo")
        link = links.get((int(match["lid"]), int(match["port"])))
        if link is None:
            problem = f"LID {match['lid']} port {match['port']} is not a link of the topology"
            raise InputError(at, problem, "dump links and topology at the same time")
        active, possible = (
            f"{match[f'{kind}width'] or match['width']}x"
            f"{lane_speed(match[f'{kind}speed'] or match['speed'])}"
            for kind in ("", "max_")
        )
        findings[link] = (
            f"{fabric.describe_link(link)} runs at {active}, but both ends support {possible}"
        )
    return tuple(findings.values())


def write_ibnetdiscover(fabric: Fabric) -> str:
    """The dump of a fabric, without its routes; nodes without GUID are identified by name."""
    lines = ["#", "# Topology file", f'# weft fabric "{fabric.name}" lanes {fabric.lanes}', "#"]
    for index, node in enumerate(fabric.nodes):
        lines += ["", *_header_lines(node)]
        lines += [_port_line(fabric, Port(index, port)) for port in fabric.neighbors(index)]
    return "\n".join(lines) + "\n"


def _header_lines(node: Node) -> list[str]:
    word = "Switch" if node.kind == "switch" else "Ca"
    port0 = f" base port 0 lid {node.lid or 0} lmc 0" if node.kind == "switch" else ""
    guid = [f"{word.lower()}guid={hex(int(node.guid, 16))}"] if node.guid else []
    return [*guid, f'{word}\t{node.ports} "{_node_id(node)}"\t\t# "{node.name}"{port0}']


def _node_id(node: Node) -> str:
    return f"{'S' if node.kind == 'switch' else 'H'}-{node.guid[2:]}" if node.guid else node.name


def _port_line(fabric: Fabric, port: Port) -> str:
    peer = fabric.neighbors(port.node)[port.port]
    link = fabric.link_of[port]
    node, other = fabric.nodes[port.node], fabric.nodes[peer.node]
    lid = f"lid {node.lid or 0} lmc 0 " if node.kind == "host" else ""
    delay = format_time(link.delay_ps).replace(" ", "")
    return (
        f'[{port.port}]\t"{_node_id(other)}"[{peer.port}]\t\t'
        f'# {lid}"{other.name}" lid {other.lid or 0} {link.rate_name} delay={delay}'
    )


# ---- Forwarding tables ------------------------------------------------------------------------

HEADING = "Unicast lids"

_HEADING = re.compile(
    rf"^{HEADING} \[0x[0-9a-fA-F]+-0x[0-9a-fA-F]+\] of switch .* "
    r"guid 0x(?P<guid>[0-9a-fA-F]{1,16}) \((?P<name>.*)\):\s*$"
)
_ENTRY = re.compile(r"^0x(?P<lid>[0-9a-fA-F]{1,8})\s+(?P<port>[0-9]{1,3})\b")
_COUNT = re.compile(r"^(?P<count>[0-9]{1,9}) (?:valid )?lids dumped\s*$")
_SKIPPED_ROWS = re.compile(r"^\s*(#.*|Lid\s+Out\s+Destination|Port\s+Info)?\s*$")


@dataclass(slots=True)
class _Section:
    """The table being read: the row of its switch, and its entries so far."""

    line: int
    row: int
    entries: int = 0


def read_lft(text: str, fabric: Fabric, where: str = "lft") -> Routes:
    """Routes of the fabric's switches towards its hosts."""
    reader = _Reader(fabric, where)
    for number, line in enumerate(text.splitlines(), start=1):
        reader.read(number, line)
    return reader.routes()


class _Reader:
    """Reads line by line into the matrix [switch, host] of output ports; 0 is unreachable."""

    def __init__(self, fabric: Fabric, where: str) -> None:
        self._fabric = fabric
        self._where = where
        self._host_of = {
            fabric.nodes[h].lid: i for i, h in enumerate(fabric.hosts) if fabric.nodes[h].lid
        }
        self._ports: NDArray[np.int32] = np.zeros(
            (len(fabric.switches), len(fabric.hosts)), dtype=np.int32
        )
        self._section: _Section | None = None
        self._lines: dict[int, int] = {}  # switch -> line of its section

    def read(self, number: int, line: str) -> None:
        where = f"{self._where} line {number}"
        if heading := _HEADING.match(line):
            self._open(where, number, heading)
        elif entry := _ENTRY.match(line):
            self._enter(where, int(entry["lid"], 16), int(entry["port"]))
        elif count := _COUNT.match(line):
            self._close(where, int(count["count"]))
        elif not _SKIPPED_ROWS.match(line):
            raise InputError(
                where,
                f"{line[:60]!r} is not part of a unicast forwarding table",
                "give the output of dump_fts, without -M",
            )

    def _open(self, where: str, number: int, heading: re.Match[str]) -> None:
        self._check_closed()
        row = self._row(where, f"0x{int(heading['guid'], 16):016x}", heading["name"])
        if row in self._lines:
            raise InputError(
                where, f"a second table, the first is on line {self._lines[row]}", "keep one"
            )
        self._lines[row] = number
        self._section = _Section(number, row)

    def _row(self, where: str, guid: str, name: str) -> int:
        for row, switch in enumerate(self._fabric.switches):
            node = self._fabric.nodes[switch]
            if node.guid == guid or (node.guid is None and node.name == name):
                return row
        raise InputError(
            where,
            f"switch {guid} ({name}) is not in fabric {self._fabric.name}",
            "dump topology and tables at the same time",
        )

    def _enter(self, where: str, lid: int, port: int) -> None:
        if self._section is None:
            raise InputError(where, "an entry outside a table", f'start with "{HEADING} …"')
        self._section.entries += 1
        switch = self._fabric.switches[self._section.row]
        host = self._host_of.get(lid)
        if host is None or port > self._fabric.nodes[switch].ports:
            return
        linked = self._fabric.neighbors(switch)
        if port not in linked:
            raise InputError(
                where,
                f"{self._fabric.nodes[switch].name} sends LID {lid} to port {port}, "
                f"but its linked ports are {', '.join(map(str, linked))}",
                "dump topology and tables at the same time",
            )
        self._ports[self._section.row, host] = port

    def _close(self, where: str, count: int) -> None:
        if self._section is None:
            raise InputError(where, "a count outside a table", f'start with "{HEADING} …"')
        if self._section.entries != count:
            raise InputError(
                where,
                f"{self._section.entries} entries since line {self._section.line}, "
                f"the dump counts {count}",
                "dump the whole table",
            )
        self._section = None

    def _check_closed(self) -> None:
        if self._section is not None:
            raise InputError(
                f"{self._where} line {self._section.line}",
                "this table has no count at its end",
                "dump the whole table",
            )

    def routes(self) -> Routes:
        self._check_closed()
        for row, switch in enumerate(self._fabric.switches):
            if row not in self._lines:
                raise InputError(
                    self._where,
                    f"no table for switch {self._fabric.nodes[switch].name}",
                    "dump the tables of all switches",
                )
        return Routes.from_ports(self._ports)


def write_lft(fabric: Fabric) -> str:
    """The tables of a fabric with single-path routes and LIDs and GUIDs for all."""
    check_fabric(fabric)
    if fabric.routes is None:
        raise InputError(f"fabric {fabric.name}", "has no routes", "route it first")
    top = max((_lid(fabric, host) for host in fabric.hosts), default=0)
    lines: list[str] = []
    for row, switch in enumerate(fabric.switches):
        node = fabric.nodes[switch]
        lines += [
            f"{HEADING} [0x0-0x{top:x}] of switch Lid {_lid(fabric, switch)} "
            f"guid {node.guid} ({node.name}):",
            "  Lid  Out   Destination",
            "       Port     Info ",
        ]
        entries = sorted(_entries(fabric, fabric.routes, row))
        lines += [text for _, text in entries]
        lines += [f"{len(entries)} valid lids dumped "]
    return "\n".join(lines) + "\n"


def _lid(fabric: Fabric, index: int) -> int:
    node = fabric.nodes[index]
    if node.lid is None or node.guid is None:
        raise InputError(
            f"fabric {fabric.name} node {node.name}",
            "has no LID or no GUID, both are needed",
            "use with_addresses",
        )
    return node.lid


def _entries(fabric: Fabric, routes: Routes, row: int) -> list[tuple[int, str]]:
    entries = []
    for column, host in enumerate(fabric.hosts):
        ports = routes.ports(row, column)
        node = fabric.nodes[host]
        if len(ports) > 1:
            raise InputError(
                f"fabric {fabric.name} node {fabric.nodes[fabric.switches[row]].name}",
                f"{len(ports)} equal ports towards {node.name}, a table holds 1",
                "route over single paths, such as destination_modulo",
            )
        if ports:
            destination = f"(Channel Adapter portguid {node.guid}: '{node.name}')"
            lid = _lid(fabric, host)
            entries.append((lid, f"0x{lid:04x} {ports[0]:03d} : {destination}"))
    return entries
