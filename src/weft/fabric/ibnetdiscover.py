"""Read and write the output of `ibnetdiscover`, and read that of `iblinkinfo`.

A dump lists which port is linked to which, at which rate, with LIDs, GUIDs and node descriptions.
It has no cable lengths and no number of lanes; files written here add them in comments that
InfiniBand tools skip. An adapter with several linked ports becomes one host per port. Of two rates
that the ends of a link report, the lower holds. `iblinkinfo` says which links run below what both
ends support. Entry points: `read_ibnetdiscover`, `write_ibnetdiscover`, `read_iblinkinfo`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from weft.errors import InputError, locate_errors
from weft.fabric.fabric import Fabric, Kind, Link, Node, Port
from weft.fabric.links import format_time, lane_speed, link_rate
from weft.fabric.soundness import check_fabric, find_slow_links
from weft.units import parse_time

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
_SKIPPED = re.compile(
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
        elif not _SKIPPED.match(line):
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
