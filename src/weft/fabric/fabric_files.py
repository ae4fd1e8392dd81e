"""Fabrics in files: TOML by topology or node by node, and any supported format by its content.

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
`read_fabric` recognizes a TOML file, an `ibnetdiscover` dump, a dump of forwarding tables and the
output of `iblinkinfo` by their content. Entry points: `read_fabric`, `read_toml`, `write_toml`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from os import PathLike
from pathlib import Path

from weft.errors import InputError, locate_errors
from weft.fabric.fabric import (
    MAX_PORTS,
    MAX_UNICAST_LID,
    Fabric,
    Kind,
    Link,
    Node,
    Port,
    Routes,
    format_time,
    link_rate,
)
from weft.fabric.routing import route
from weft.fabric.soundness import MAX_LANES, check_fabric
from weft.fabric.subnet_dumps import HEADING, read_iblinkinfo, read_ibnetdiscover, read_lft
from weft.fabric.topology import TOPOLOGIES
from weft.toml_table import Table, parse_toml, read_text
from weft.units import parse_time


def read_toml(text: str, where: str = "fabric.toml") -> Fabric:
    """The fabric that a TOML text describes."""
    top = Table(parse_toml(text, where), where)
    fabric = top.table("fabric", {})
    if fabric.has("topology"):
        top.done()
        return build_topology(fabric)
    return _ExplicitReader(text, top, fabric).read()


def build_topology(table: Table) -> Fabric:
    """The fabric of a table with `topology`, its counts, and perhaps rate, delay and so on."""
    builder = table.choice("topology", TOPOLOGIES)
    name = table.text("name", None)
    parameters = inspect.signature(builder).parameters
    arguments = {key: _read_argument(table, parameters[key]) for key in parameters}
    table.done()
    is_hashable = all(isinstance(value, Hashable) for value in arguments.values())
    build = _build_once if is_hashable else _build
    with locate_errors(table.location):
        fabric = build(builder, **arguments)
        return fabric if name is None else check_fabric(replace(fabric, name=name))


def _build(builder: Callable[..., Fabric], **arguments: object) -> Fabric:
    return builder(**arguments)


# The points of a sweep mostly share their fabric, and each is read before any runs.
_build_once = lru_cache(maxsize=1, typed=True)(_build)


def _read_argument(table: Table, parameter: inspect.Parameter) -> object:
    """An argument of a builder; the builder itself checks counts."""
    key = parameter.name
    default = () if parameter.default is parameter.empty else (parameter.default,)
    if key == "lanes":
        return table.integer(key, 1, MAX_LANES, *default)
    if parameter.annotation == "ByTier":
        return tuple(table.texts(key, *default))
    return table.text(key, *default) if parameter.annotation == "str" else table.raw(key, *default)


class _ExplicitReader:
    """Reads the explicit form: [[switch]], [[host]], [[link]] and perhaps [[route]]."""

    def __init__(self, text: str, top: Table, fabric: Table) -> None:
        self._text = text
        self._top = top
        self._name = fabric.text("name", "fabric")
        self._lanes = fabric.integer("lanes", 1, MAX_LANES, 1)
        self._routing = fabric.text("routing", None)
        self._link_defaults = {key: fabric.text(key, None) for key in ("rate", "delay")}
        self._routing_place = fabric.place("routing")
        fabric.done()

    def read(self) -> Fabric:
        entries = {kind: self._entries(kind) for kind in ("host", "switch", "link", "route")}
        self._top.done()
        nodes = [_read_node("host", table) for table in entries["host"]]
        nodes += [_read_node("switch", table) for table in entries["switch"]]
        index = {node.name: i for i, node in enumerate(nodes)}
        links = tuple(self._read_link(table, index) for table in entries["link"])
        with locate_errors(self._top.where):
            bare = check_fabric(Fabric(self._name, tuple(nodes), links, self._lanes))
            if not entries["route"]:
                return bare if self._routing is None else route(bare, self._routing)
        return self._read_routes(bare, entries["route"])

    def _entries(self, kind: str) -> list[Table]:
        """The tables of [[kind]], each placed by its line."""
        items = self._top.raw(kind, [])
        if not isinstance(items, list):
            raise InputError(self._top.place(kind), "not a list of tables", f"write [[{kind}]]")
        heading = re.compile(rf"^\s*\[\[\s*{kind}\s*\]\]")
        lines = [i for i, t in enumerate(self._text.splitlines(), start=1) if heading.match(t)]
        places = [f"line {line} [[{kind}]]" for line in lines]
        if len(places) != len(items):
            places = [f"{kind} {number}" for number in range(1, len(items) + 1)]
        tables = []
        for place, item in zip(places, items, strict=True):
            where = f"{self._top.where} {place}"
            if not isinstance(item, Mapping):
                raise InputError(where, f"{item!r} is not a table", f"write [[{kind}]]")
            tables.append(Table(item, where))
        return tables

    def _read_link(self, table: Table, index: Mapping[str, int]) -> Link:
        ends = table.texts("ends")
        if len(ends) != 2:
            raise InputError(
                table.place("ends"), f"{len(ends)} ends, 2 are needed", "name both ports"
            )
        a, b = (_parse_port(table.place("ends"), end, index) for end in ends)
        rate = link_rate(self._link_text(table, "rate"), table.place("rate"))
        delay_ps = parse_time(self._link_text(table, "delay"), table.place("delay"))
        table.done()
        return Link(a, b, rate.data_bps, delay_ps, str(rate))

    def _link_text(self, table: Table, key: str) -> str:
        """The link's own value, or else the one of [fabric]."""
        text = table.text(key, self._link_defaults[key])
        if text is None:
            raise InputError(table.place(key), "is missing", "add it here or to [fabric]")
        return text

    def _read_routes(self, bare: Fabric, entries: list[Table]) -> Fabric:
        if self._routing is not None:
            raise InputError(self._routing_place, "given together with [[route]]", "keep one")
        rows = {table.text("switch"): _read_output_ports(bare, table) for table in entries}
        names = [bare.nodes[switch].name for switch in bare.switches]
        if sorted(rows) != sorted(names) or len(entries) != len(rows):
            raise InputError(f"{self._top.where} [[route]]", "not one per switch", "list each once")
        routes = Routes.from_groups([rows[name] for name in names], len(bare.hosts))
        with locate_errors(self._top.where):
            return check_fabric(replace(bare, routes=routes))


def _read_node(kind: Kind, table: Table) -> Node:
    node = Node(
        table.text("name"),
        kind,
        table.integer("ports", 1, MAX_PORTS, *([1] if kind == "host" else [])),
        table.integer("lid", 1, MAX_UNICAST_LID, None),
        table.text("guid", None),
    )
    table.done()
    return node


def _parse_port(where: str, end: str, index: Mapping[str, int]) -> Port:
    name, _, digits = end.rpartition(":")
    if name not in index or not re.fullmatch(r"[0-9]{1,9}", digits):
        raise InputError(where, f"{end!r} is not NODE:PORT of a node above", "such as leaf0:1")
    return Port(index[name], int(digits))


def _read_output_ports(bare: Fabric, table: Table) -> list[tuple[int, ...]]:
    """Output ports of one switch, a group for each host."""
    groups = table.raw("out")
    table.done()
    hosts = len(bare.hosts)
    if not isinstance(groups, list) or len(groups) != hosts:
        count = len(groups) if isinstance(groups, list) else 0
        raise InputError(
            table.place("out"), f"{count} lists of ports, {hosts} hosts", "one per host"
        )
    for ports in groups:
        if not isinstance(ports, list) or any(type(port) is not int for port in ports):
            raise InputError(table.place("out"), f"{ports!r} is not a list of ports", "such as [3]")
    return [tuple(ports) for ports in groups]


def write_toml(fabric: Fabric) -> str:
    """The explicit form of a fabric with all its routes: `read_toml` gives it back."""
    lines = ["[fabric]", f"name = {_quote(fabric.name)}", f"lanes = {fabric.lanes}"]
    for node in fabric.nodes:
        lines += ["", f"[[{node.kind}]]", f"name = {_quote(node.name)}", f"ports = {node.ports}"]
        lines += [f"lid = {node.lid}"] if node.lid is not None else []
        lines += [f"guid = {_quote(node.guid)}"] if node.guid is not None else []
    for link in fabric.links:
        ends = ", ".join(
            _quote(f"{fabric.nodes[end.node].name}:{end.port}") for end in (link.a, link.b)
        )
        lines += ["", "[[link]]", f"ends = [{ends}]", f"rate = {_quote(link.rate_name)}"]
        lines += [f"delay = {_quote(format_time(link.delay_ps))}"]
    return "\n".join(lines + _route_lines(fabric)) + "\n"


def _quote(text: str) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's."""
    return json.dumps(text, ensure_ascii=False)


def _route_lines(fabric: Fabric) -> list[str]:
    if fabric.routes is None:
        return []
    lines: list[str] = []
    for row, switch in enumerate(fabric.switches):
        out = [list(fabric.routes.ports(row, host)) for host in range(len(fabric.hosts))]
        lines += ["", "[[route]]", f"switch = {_quote(fabric.nodes[switch].name)}", f"out = {out}"]
    return lines


_RECORD = re.compile(r'^(Switch|Ca|Hca|Rt)\s+\d+\s+"', re.MULTILINE)
_TABLE = re.compile(rf"^{HEADING} \[", re.MULTILINE)
_LINKS = re.compile(r" ==\(.*==> ")

AnyPath = str | PathLike[str]


def read_fabric(
    paths: AnyPath | Sequence[AnyPath], *, lanes: int | None = None, delay: str | None = None
) -> Fabric:
    """The fabric of one TOML file, or of a topology dump and perhaps dumps of tables and links.

    InfiniBand dumps do not say how many data lanes are used (1 if not given) and how long
    the cables are (no delay if not given).
    """
    files = [Path(p) for p in ([paths] if isinstance(paths, str | PathLike) else paths)]
    texts = {str(file): read_text(file) for file in files}
    tables = {where: text for where, text in texts.items() if _TABLE.search(text)}
    links = {where: text for where, text in texts.items() if _LINKS.search(text)}
    shapes = {where: text for where, text in texts.items() if where not in {*tables, *links}}
    if len(shapes) != 1 or len(tables) > 1 or len(links) > 1:
        raise InputError(
            ", ".join(texts) or "fabric files",
            f"{len(shapes)} topologies, {len(tables)} dumps of tables and {len(links)} of links",
            "give exactly 1 topology and at most 1 dump of forwarding tables and 1 of iblinkinfo",
        )
    ((where, text),) = shapes.items()
    fabric = _read_topology(where, text, lanes, delay)
    for at, table in tables.items():
        routes = read_lft(table, fabric, at)
        with locate_errors(at):
            fabric = check_fabric(replace(fabric, routes=routes))
    for at, info in links.items():
        below = read_iblinkinfo(info, fabric, at)
        fabric = replace(fabric, findings=(*fabric.findings, *below))
    return fabric


def add_routes(fabric: Fabric, routing: str = "") -> Fabric:
    """The fabric, checked, with routes: its own unless a routing is named, else up*/down*."""
    if routing or (fabric.routes is None and fabric.switches):
        fabric = route(fabric, routing or "up_down")
    return check_fabric(fabric)


def _read_topology(where: str, text: str, lanes: int | None, delay: str | None) -> Fabric:
    if _RECORD.search(text):
        return read_ibnetdiscover(
            text,
            where,
            name=Path(where).stem,
            lanes=1 if lanes is None else lanes,
            delay="0 ns" if delay is None else delay,
        )
    if lanes is not None or delay is not None:
        raise InputError(where, "lanes or delay given from outside", "write them into this file")
    return read_toml(text, where)
