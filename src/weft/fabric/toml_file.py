"""A fabric as a TOML file, by topology or node by node.

    [fabric]                          [fabric]
    topology = "fat_tree"             name = "lab"
    k = 8                             routing = "up_down"
    rate = "4xFDR"                    rate = "4xFDR"
    delay = "50 ns"                   delay = "50 ns"
                                      [[switch]]
                                      name = "leaf0"
                                      ports = 36
                                      [[host]]
                                      name = "h0"
                                      [[link]]
                                      ends = ["leaf0:1", "h0:1"]

Rate and delay of a link come from the link or else from [fabric]. Instead of `routing`, one
[[route]] per switch may list its output ports towards every host, in the order of hosts.
Entry points: `read_toml`, `write_toml`.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.errors import InputError
from weft.fabric.fabric import Fabric, Kind, Link, Node, Port, Routes
from weft.fabric.links import format_time, link_delay, link_rate
from weft.fabric.routing import route
from weft.fabric.soundness import check_fabric, placed
from weft.fabric.topology import TOPOLOGIES

_FABRIC = {"name": str, "lanes": int, "routing": str, "rate": str, "delay": str}
_NODE = {"name": str, "ports": int, "lid": int, "guid": str}
_LINK = {"ends": list, "rate": str, "delay": str}
_ROUTE = {"switch": str, "out": list}
_WORDS = {str: "text in quotes", int: "a whole number", list: "a list"}


def read_toml(text: str, where: str = "fabric.toml") -> Fabric:
    """The fabric that a TOML text describes."""
    tables = _parse(text, where)
    _check_keys(where, tables, ("fabric", "switch", "host", "link", "route"))
    about = _table(f"{where} [fabric]", tables.get("fabric", {}))
    if "topology" in about:
        _check_keys(f"{where} with [fabric] topology", tables, ("fabric",))
        return build_topology(f"{where} [fabric]", about)
    return _Explicit(text, where, tables, about).fabric()


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"at line (\d+)", str(error))
        raise InputError(
            f"{where} line {found[1] if found else max(len(text.splitlines()), 1)}",
            f"not TOML: {error}",
            "correct the syntax",
        ) from None


def _check_keys(where: str, table: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for key in table:
        if key not in allowed:
            raise InputError(where, f"unknown key {key!r}", f"allowed are {', '.join(allowed)}")


def _table(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(where, f"{value!r} is not a table", "write it under a heading in brackets")
    return value


def _fields(where: str, value: object, types: Mapping[str, type]) -> dict[str, Any]:
    """The table, with no unknown key and every value of its type."""
    table = _table(where, value)
    _check_keys(where, table, tuple(types))
    for key, item in table.items():
        if type(item) is not types[key]:
            raise InputError(
                f"{where} {key}", f"{item!r} is not {_WORDS[types[key]]}", "correct it"
            )
    return table


def _required(where: str, table: Mapping[str, Any], key: str) -> Any:
    if key not in table:
        raise InputError(where, f"key {key!r} is missing", f"add {key} = …")
    return table[key]


def build_topology(where: str, about: Mapping[str, Any]) -> Fabric:
    """The fabric of a table with `topology`, its counts, and perhaps rate, delay and so on."""
    topology = _required(where, about, "topology")
    if not isinstance(topology, str) or topology not in TOPOLOGIES:
        raise InputError(
            where, f"topology {topology!r} does not exist", f"choose one of {', '.join(TOPOLOGIES)}"
        )
    parameters = inspect.signature(TOPOLOGIES[topology]).parameters
    _check_keys(where, about, ("topology", "name", *parameters))
    _fields(where, {key: about[key] for key in _FABRIC if key in about}, _FABRIC)
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty:
            _required(where, about, key)
    given = {key: value for key, value in about.items() if key in parameters}
    with placed(where):
        fabric = TOPOLOGIES[topology](**given)
        return check_fabric(replace(fabric, name=about["name"])) if "name" in about else fabric


class _Explicit:
    """The explicit form: [[switch]], [[host]], [[link]] and perhaps [[route]]."""

    def __init__(
        self, text: str, where: str, tables: dict[str, Any], about: dict[str, Any]
    ) -> None:
        self._text = text
        self._file = where
        self._tables = tables
        self._about = _fields(f"{where} [fabric]", about, _FABRIC)
        self._index: dict[str, int] = {}

    def fabric(self) -> Fabric:
        nodes = [*self._nodes("host"), *self._nodes("switch")]
        self._index = {node.name: i for i, node in enumerate(nodes)}
        links = tuple(self._link(where, table) for where, table in self._entries("link"))
        name, lanes = self._about.get("name", "fabric"), self._about.get("lanes", 1)
        with placed(self._file):
            bare = check_fabric(Fabric(name, tuple(nodes), links, lanes))
        return self._routed(bare)

    def _entries(self, kind: str) -> list[tuple[str, object]]:
        """The entries of [[kind]], each with its place in the file."""
        entries = self._tables.get(kind, [])
        if not isinstance(entries, list):
            raise InputError(f"{self._file} {kind}", "not a list of tables", f"write [[{kind}]]")
        heading = re.compile(rf"^\s*\[\[\s*{kind}\s*\]\]")
        lines = [i for i, t in enumerate(self._text.splitlines(), start=1) if heading.match(t)]
        if len(lines) != len(entries):
            return [(f"{self._file} {kind} {i}", e) for i, e in enumerate(entries, start=1)]
        return [
            (f"{self._file} line {line} [[{kind}]]", entry)
            for line, entry in zip(lines, entries, strict=True)
        ]

    def _nodes(self, kind: Kind) -> list[Node]:
        return [self._node(kind, where, entry) for where, entry in self._entries(kind)]

    def _node(self, kind: Kind, where: str, entry: object) -> Node:
        table = _fields(where, entry, _NODE)
        ports = table.get("ports", 1) if kind == "host" else _required(where, table, "ports")
        name = _required(where, table, "name")
        return Node(name, kind, ports, table.get("lid"), table.get("guid"))

    def _link(self, where: str, entry: object) -> Link:
        table = _fields(where, entry, _LINK)
        ends = _required(where, table, "ends")
        if len(ends) != 2:
            raise InputError(f"{where} ends", f"{len(ends)} ends, 2 are needed", "name both ports")
        a, b = (self._port(f"{where} ends", end) for end in ends)
        rate = link_rate(_required(where, self._about | table, "rate"), f"{where} rate")
        delay = _required(where, self._about | table, "delay")
        return Link(a, b, rate.data_bps, link_delay(delay, f"{where} delay"), str(rate))

    def _port(self, where: str, end: object) -> Port:
        name, _, digits = end.rpartition(":") if isinstance(end, str) else ("", "", "")
        if name not in self._index or not re.fullmatch(r"[0-9]{1,9}", digits):
            raise InputError(where, f"{end!r} is not NODE:PORT of a node above", "such as leaf0:1")
        return Port(self._index[name], int(digits))

    def _routed(self, bare: Fabric) -> Fabric:
        entries = self._entries("route")
        if not entries and "routing" in self._about:
            with placed(self._file):
                return route(bare, self._about["routing"])
        if not entries:
            return bare
        if "routing" in self._about:
            raise InputError(
                f"{self._file} [fabric] routing", "given together with [[route]]", "keep one"
            )
        rows: dict[str, list[tuple[int, ...]]] = {}
        for where, entry in entries:
            table = _fields(where, entry, _ROUTE)
            rows[_required(where, table, "switch")] = self._out(where, bare, table)
        names = [bare.nodes[switch].name for switch in bare.switches]
        if sorted(rows) != sorted(names) or len(entries) != len(rows):
            raise InputError(f"{self._file} [[route]]", "not one per switch", "list each once")
        routes = Routes.from_groups([rows[name] for name in names], len(bare.hosts))
        with placed(self._file):
            return check_fabric(replace(bare, routes=routes))

    def _out(self, where: str, bare: Fabric, table: dict[str, Any]) -> list[tuple[int, ...]]:
        out = _required(where, table, "out")
        if len(out) != len(bare.hosts):
            raise InputError(
                f"{where} out",
                f"{len(out)} lists of ports, {len(bare.hosts)} hosts",
                "one per host",
            )
        for ports in out:
            if not isinstance(ports, list) or any(type(p) is not int for p in ports):
                raise InputError(f"{where} out", f"{ports!r} is not a list of ports", "such as [3]")
        return [tuple(ports) for ports in out]


def write_toml(fabric: Fabric) -> str:
    """The explicit form of a fabric with all its routes: `read_toml` gives it back."""
    lines = ["[fabric]", f"name = {_quoted(fabric.name)}", f"lanes = {fabric.lanes}"]
    for node in fabric.nodes:
        lines += ["", f"[[{node.kind}]]", f"name = {_quoted(node.name)}", f"ports = {node.ports}"]
        lines += [f"lid = {node.lid}"] if node.lid is not None else []
        lines += [f"guid = {_quoted(node.guid)}"] if node.guid is not None else []
    for link in fabric.links:
        ends = ", ".join(
            _quoted(f"{fabric.nodes[end.node].name}:{end.port}") for end in (link.a, link.b)
        )
        lines += ["", "[[link]]", f"ends = [{ends}]", f"rate = {_quoted(link.rate_name)}"]
        lines += [f"delay = {_quoted(format_time(link.delay_ps))}"]
    return "\n".join(lines + _route_lines(fabric)) + "\n"


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's."""
    return json.dumps(text, ensure_ascii=False)


def _route_lines(fabric: Fabric) -> list[str]:
    if fabric.routes is None:
        return []
    lines: list[str] = []
    for row, switch in enumerate(fabric.switches):
        out = [list(fabric.routes.ports(row, host)) for host in range(len(fabric.hosts))]
        lines += ["", "[[route]]", f"switch = {_quoted(fabric.nodes[switch].name)}", f"out = {out}"]
    return lines
