"""Read and write linear forwarding tables as `dump_fts` and `dump_lfts.sh` print them.

One section per switch: a heading with its GUID, then "0xLID port : …" for each LID it can send
to, then the count. Only base LIDs of the fabric's hosts matter; LIDs of switches and the extra
LIDs of an LMC are skipped. `dump_fts` omits the last LID of a table whose top is a multiple of
64: that host then counts as unreachable. Entry points: `read_lft`, `write_lft`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.fabric.fabric import Fabric, Routes
from weft.fabric.soundness import check_fabric

HEADING = "Unicast lids"

_HEADING = re.compile(
    rf"^{HEADING} \[0x[0-9a-fA-F]+-0x[0-9a-fA-F]+\] of switch .* "
    r"guid 0x(?P<guid>[0-9a-fA-F]{1,16}) \((?P<name>.*)\):\s*$"
)
_ENTRY = re.compile(r"^0x(?P<lid>[0-9a-fA-F]{1,8})\s+(?P<port>[0-9]{1,3})\b")
_COUNT = re.compile(r"^(?P<count>[0-9]{1,9}) (?:valid )?lids dumped\s*$")
_SKIPPED = re.compile(r"^\s*(#.*|Lid\s+Out\s+Destination|Port\s+Info)?\s*$")


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
        elif not _SKIPPED.match(line):
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
