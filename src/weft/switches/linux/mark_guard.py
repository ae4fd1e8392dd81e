"""Which marks may enter a switch from its hosts: nftables rules at the edge ports.

A packet with a managed DSCP passes unchanged if its port and destination are in a set; otherwise
its DSCP becomes 0 and it is counted. The latency lane's DSCP is metered for each port and
destination: whoever exceeds its rate for more than a second is demoted to DSCP 0, until it has not
used the lane for a minute. The kernel does both without the agent. The rules are one table of the
`netdev` family; a new set of rules replaces it in one transaction. Needs the program `nft`. Entry
points: `MarkGuard`, `remove_guard`, `build_ruleset` (pure). Units: bits per second, bytes.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from weft.errors import InputError
from weft.host.net import namespaces
from weft.wire import Message

BURST_S = 1.0  # of the lane's rate, that a pair may send at once
_DEMOTED_S = 60
_LOOK_S = 0.5  # between looks at what was rewritten, while rules change: each takes four processes
_MOST_ELEMENTS = 65_536
_MOST_BURST_BYTES = 2**32 - 1
_FILE = "edge"  # in the agent's folder: the namespace and the table
_FAMILIES = {4: ("ip", "ipv4_addr"), 6: ("ip6", "ipv6_addr")}


class GuardedPort(Message):
    """Destination addresses with their level; bits per second on the lane to one destination."""

    number: int
    admitted: list[tuple[str, int]]
    lane_bps: int


class MarkRules(Message):
    levels: int
    lane: int | None
    ports: list[GuardedPort]


class MarkCount(Message):
    """Bytes that entered a port with a level, and were rewritten."""

    number: int
    destination: str
    level: int
    bytes: int
    is_lane: bool


class _Key(NamedTuple):
    set_name: str
    interface: str
    destination: str
    level: int


class MarkGuard:
    """The rules of a node's edge ports, and what they have rewritten since the last look."""

    def __init__(self, node: str, interfaces: Mapping[int, str], folder: Path) -> None:
        self._interfaces = dict(interfaces)
        self._table = f"weft_{re.sub('[^A-Za-z0-9]', '_', node)}"
        self._folder = folder
        self._frame = ""  # the rules in the kernel, less the admitted marks
        self._lane: int | None = None
        self._seen: dict[_Key, int] = {}
        self._looked_s = -inf

    def set_rules(self, rules: MarkRules) -> None:
        """In one transaction. If only admitted marks change, demotions and counts stay."""
        ports = {self._find_interface(port.number): port for port in rules.ports}
        frame = build_ruleset(self._table, rules.levels, rules.lane, ports)
        admission = build_admission(self._table, ports)
        is_same, self._frame = frame == self._frame, ""  # until the kernel has it
        if not is_same:
            where = {"netns": namespaces.read_identity(None), "table": self._table}
            (self._folder / _FILE).write_text(json.dumps(where))
            self._seen.clear()
        _run_nft(["-f", "-"], admission if is_same else frame + admission)
        self._frame, self._lane = frame, rules.lane

    def read_new_counts(self) -> list[MarkCount]:
        """As `read_counts`, but nothing if the last look was just now: the kernel counts on."""
        return self.read_counts() if time.monotonic() - self._looked_s >= _LOOK_S else []

    def read_counts(self) -> list[MarkCount]:
        """Rewritten bytes since the last look; raises an InputError if the rules are gone."""
        self._looked_s = time.monotonic()
        numbers = {interface: number for number, interface in self._interfaces.items()}
        try:
            counts = dict(self._read_counters())
        except InputError:
            self._frame = ""  # all of it is to be set again
            raise
        changes = {key: _find_increase(self._seen.get(key, 0), n) for key, n in counts.items()}
        self._seen = counts
        return [
            MarkCount(
                number=numbers[key.interface],
                destination=key.destination,
                level=key.level,
                bytes=change,
                is_lane=key.set_name.startswith("demoted"),
            )
            for key, change in changes.items()
            if change and key.interface in numbers
        ]

    def _read_counters(self) -> Iterable[tuple[_Key, int]]:
        for version in _FAMILIES:
            for name in (f"strays{version}", f"demoted{version}"):
                text = _run_nft(["-n", "-j", "list", "set", "netdev", self._table, name])
                yield from _parse_elements(name, text, self._lane or 0)

    def _find_interface(self, number: int) -> str:
        if number not in self._interfaces:
            raise InputError(f"port {number}", "is not of this switch")
        return self._interfaces[number]


def remove_guard(folder: Path) -> None:
    """Removes the rules of a node's agent, from any namespace."""
    path = folder / _FILE
    try:
        where = json.loads(path.read_text())
    except FileNotFoundError:
        return
    except ValueError as error:
        remedy = "delete it, and see `nft list tables`"
        raise InputError(str(path), "does not name a table", remedy) from error
    is_present = where["netns"] == namespaces.read_identity(None)
    namespace = None if is_present else namespaces.find_by_identity(where["netns"])
    if is_present or namespace is not None:
        # Adding a table that exists does nothing; deleting one that does not is an error.
        text = f"add table netdev {where['table']}\ndelete table netdev {where['table']}\n"
        namespaces.run_inside(namespace, lambda: _run_nft(["-f", "-"], text))
    path.unlink(missing_ok=True)


def _find_increase(before: int, now: int) -> int:
    """Of a counter that starts again from 0 when its element has expired."""
    return now - before if now >= before else now


def _run_nft(arguments: list[str], text: str | None = None) -> str:
    program = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None:
        problem = "cannot be guarded: there is no program nft"
        raise InputError("marks at the edge", problem, "install nftables on the switch")
    return namespaces.run_command([program, *arguments], text)


def _parse_elements(name: str, text: str, lane: int) -> Iterable[tuple[_Key, int]]:
    for part in json.loads(text)["nftables"]:
        elements: list[dict[str, Any]] = part.get("set", {}).get("elem", [])
        for element in elements:
            value = element["elem"]
            interface, destination, *level = value["val"]["concat"]
            key = _Key(name, interface, destination, level[0] if level else lane)
            yield key, value["counter"]["bytes"]


# ---- Rules --------------------------------------------------------------------------------------


def build_ruleset(
    table: str, levels: int, lane: int | None, ports: Mapping[str, GuardedPort]
) -> str:
    """What `nft -f` reads to replace the table, without admitted marks; ports by interface."""
    name = f"netdev {table}"
    lines = [f"add table {name}", f"delete table {name}", f"table {name} {{"]
    rules: list[str] = []
    for version, (protocol, kind) in _FAMILIES.items():
        lines += _build_sets(version, kind)
        rules += _build_lane_rules(version, protocol, lane, ports)
        rules += _build_rules(version, protocol, levels)
    if ports:
        devices = ", ".join(f'"{interface}"' for interface in ports)
        hook = f"type filter hook ingress devices = {{ {devices} }} priority 0;"
        lines += ["chain edge {", hook, *rules, "}"]
    return "\n".join([*lines, "}", ""])


def build_admission(table: str, ports: Mapping[str, GuardedPort]) -> str:
    """What `nft -f` reads to replace the admitted marks."""
    lines = []
    for version in _FAMILIES:
        name = f"netdev {table} admitted{version}"
        marks = [
            f'"{interface}" . {address} . {level}'
            for interface, port in ports.items()
            for address, level in port.admitted
            if ipaddress.ip_address(address).version == version
        ]
        lines.append(f"flush set {name}")
        if marks:
            lines.append(f"add element {name} {{ {', '.join(marks)} }}")
    return "\n".join([*lines, ""])


def _build_sets(version: int, kind: str) -> list[str]:
    """Sets of a protocol: admitted marks, rewritten ones, and the lane's meters."""
    dynamic = f"flags dynamic,timeout; timeout {_DEMOTED_S}s; size {_MOST_ELEMENTS};"
    return [
        f"set admitted{version} {{ type ifname . {kind} . dscp; }}",
        f"set strays{version} {{ type ifname . {kind} . dscp; {dynamic} counter; }}",
        f"set lane{version} {{ type ifname . {kind}; {dynamic} }}",
        f"set demoted{version} {{ type ifname . {kind}; {dynamic} counter; }}",
    ]


def _build_rules(version: int, protocol: str, levels: int) -> list[str]:
    marked = f"{protocol} dscp 1-{levels}"
    key = f"iifname . {protocol} daddr . {protocol} dscp"
    return [
        f"{marked} {key} @admitted{version} accept",
        # Apart from the rewriting: a full set must not let the packet pass.
        f"{marked} update @strays{version} {{ {key} }}",
        f"{marked} {protocol} dscp set 0",
    ]


def _build_lane_rules(
    version: int, protocol: str, lane: int | None, ports: Mapping[str, GuardedPort]
) -> list[str]:
    if lane is None:
        return []
    marked, key = f"{protocol} dscp {lane}", f"iifname . {protocol} daddr"
    meters = []
    for interface, port in ports.items():
        rate = max(1, port.lane_bps // 8)
        burst = min(max(1, round(rate * BURST_S)), _MOST_BURST_BYTES)
        limit = f"limit rate over {rate} bytes/second burst {burst} bytes"
        meters.append(
            f'{marked} iifname "{interface}" update @lane{version} {{ {key} {limit} }} '
            f"add @demoted{version} {{ {key} }}"
        )
    return [
        *meters,
        f"{marked} {key} @demoted{version} update @demoted{version} {{ {key} }} "
        f"{protocol} dscp set 0 accept",
        f"{marked} accept",
    ]
