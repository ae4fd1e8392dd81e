"""Check a fabric: names, ports, links, connectivity and routes.

`check_fabric` returns the fabric, or raises an `InputError` that names the node and port, the
value, the allowed range and the remedy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import numpy as np

from weft.errors import InputError
from weft.fabric.fabric import MAX_PORTS, MAX_UNICAST_LID, Fabric, Link, Node, Port, Routes
from weft.fabric.links import link_rate

MAX_LANES = 15
MAX_DELAY_PS = 10**12
_GUID = re.compile(r"^0x[0-9a-f]{16}$")


def check_fabric(fabric: Fabric) -> Fabric:
    """The fabric itself if it is sound; else an `InputError`."""
    where = f"fabric {fabric.name}"
    _check_name("fabric", fabric.name)
    if not 1 <= fabric.lanes <= MAX_LANES:
        raise InputError(
            where,
            f"{fabric.lanes} data lanes is outside 1..{MAX_LANES}",
            "set lanes to the data VLs the switches have",
        )
    _check_nodes(where, fabric)
    _check_links(where, fabric)
    _check_hosts_linked_once(where, fabric)
    _check_connected(where, fabric)
    if fabric.routes is not None:
        _check_routes(where, fabric, fabric.routes)
    return fabric


def _check_nodes(where: str, fabric: Fabric) -> None:
    if not fabric.hosts:
        raise InputError(where, "0 hosts, at least 1 is needed", "add hosts")
    for node in fabric.nodes:
        _check_node(where, node)
    kinds = [node.kind for node in fabric.nodes]
    if kinds != sorted(kinds):
        first = fabric.nodes[kinds.index("switch")].name
        raise InputError(where, f"switch {first!r} comes before a host", "list hosts first")
    _check_unique(where, "name", (node.name for node in fabric.nodes))
    _check_unique(where, "LID", (node.lid for node in fabric.nodes))
    _check_unique(where, "GUID", (node.guid for node in fabric.nodes))


def _check_name(where: str, name: str) -> None:
    if not name or name != name.strip() or not name.isprintable() or '"' in name:
        raise InputError(where, f"{name!r} is not a name", "use printable characters, no quotes")


def _check_node(where: str, node: Node) -> None:
    name = node.name
    _check_name(where, name)
    if node.kind not in ("host", "switch"):
        raise InputError(f"{where} node {name}", f"unknown kind {node.kind!r}", "host or switch")
    if not 1 <= node.ports <= MAX_PORTS:
        raise InputError(
            f"{where} node {name}",
            f"{node.ports} ports is outside 1..{MAX_PORTS}",
            "give the number of its physical ports",
        )
    if node.lid is not None and not 1 <= node.lid <= MAX_UNICAST_LID:
        raise InputError(
            f"{where} node {name}",
            f"LID {node.lid} is outside 1..{MAX_UNICAST_LID}",
            "leave out the LID of a node that has none",
        )
    if node.guid is not None and not _GUID.match(node.guid):
        raise InputError(
            f"{where} node {name}",
            f"GUID {node.guid!r} is not 0x and 16 lower-case hexadecimal digits",
            "write it as 0x0002c90300a1b2c0",
        )


def _check_unique(where: str, field: str, values: Iterable[object]) -> None:
    values_so_far: set[object] = set()
    for value in values:
        if value is not None and value in values_so_far:
            raise InputError(
                where, f"two nodes have {field} {value!r}", f"give each its own {field}"
            )
        values_so_far.add(value)


def _check_links(where: str, fabric: Fabric) -> None:
    used: set[Port] = set()
    for link in fabric.links:
        for end in (link.a, link.b):
            _check_end(where, fabric, end)
            if end in used:
                raise InputError(_at(where, fabric, end), "used by two links", "move one of them")
            used.add(end)
        _check_link(_at(where, fabric, link.a), link)


def _at(where: str, fabric: Fabric, end: Port) -> str:
    return f"{where} node {fabric.nodes[end.node].name} port {end.port}"


def _check_end(where: str, fabric: Fabric, end: Port) -> None:
    if not 0 <= end.node < len(fabric.nodes):
        raise InputError(
            where,
            f"a link ends at node {end.node}, outside 0..{len(fabric.nodes) - 1}",
            "use the index of a node",
        )
    ports = fabric.nodes[end.node].ports
    if not 1 <= end.port <= ports:
        raise InputError(
            _at(where, fabric, end), f"outside 1..{ports}", "use a free port or give it more ports"
        )


def _check_link(where: str, link: Link) -> None:
    if link.a.node == link.b.node:
        raise InputError(where, "linked to its own node", "link it to another node")
    if not (math.isfinite(link.rate_bps) and link.rate_bps > 0):
        raise InputError(where, f"link rate {link.rate_bps} b/s is not above 0", "give its rate")
    if link_rate(link.rate_name, where).data_bps != link.rate_bps:
        raise InputError(
            where,
            f"link rate {link.rate_bps} b/s is not what {link.rate_name!r} means",
            "make rate_bps the data rate of rate_name",
        )
    if not 0 <= link.delay_ps <= MAX_DELAY_PS:
        raise InputError(
            where,
            f"link delay {link.delay_ps} ps is outside 0..{MAX_DELAY_PS}",
            "give its length divided by the speed of light in it, about 5 ns per metre",
        )


def _check_hosts_linked_once(where: str, fabric: Fabric) -> None:
    for host in fabric.hosts:
        count = len(fabric.neighbors(host))
        if count != 1:
            raise InputError(
                f"{where} host {fabric.nodes[host].name}",
                f"{count} links, exactly 1 is allowed",
                "give each port of an adapter a host of its own" if count else "link it",
            )


def _check_connected(where: str, fabric: Fabric) -> None:
    start = fabric.hosts[0]
    reached = {start}
    frontier = [start]
    while frontier:
        neighbors = {peer.node for node in frontier for peer in fabric.neighbors(node).values()}
        frontier = list(neighbors - reached)
        reached |= neighbors
    for node in range(len(fabric.nodes)):
        if node not in reached:
            raise InputError(
                f"{where} node {fabric.nodes[node].name}",
                f"no chain of links leads to {fabric.nodes[start].name}",
                "link it or leave it out",
            )


def _check_routes(where: str, fabric: Fabric, routes: Routes) -> None:
    shape = (len(fabric.switches), len(fabric.hosts))
    if routes.next_hop.shape != shape:
        raise InputError(
            f"{where} routes",
            f"shape {routes.next_hop.shape} is not (switches, hosts) = {shape}",
            "route this fabric again",
        )
    low, high = int(routes.next_hop.min(initial=-1)), int(routes.next_hop.max(initial=-1))
    if low < -1 or high >= len(routes.groups):
        raise InputError(
            f"{where} routes",
            f"group {low if low < -1 else high} is outside -1..{len(routes.groups) - 1}",
            "route this fabric again",
        )
    for row, switch in enumerate(fabric.switches):
        for group in np.unique(routes.next_hop[row]):
            if group >= 0:
                _check_group(where, fabric, switch, routes.groups[group])


def _check_group(where: str, fabric: Fabric, switch: int, group: tuple[int, ...]) -> None:
    linked = fabric.neighbors(switch)
    for port in group:
        if port not in linked:
            raise InputError(
                f"{_at(where, fabric, Port(switch, port))}",
                f"a route leaves here, but the linked ports are {_ranges(linked)}",
                "route over linked ports",
            )
    if not group:
        raise InputError(f"{where} routes", "an empty group of ports", "use -1 for unreachable")


def _ranges(ports: Iterable[int]) -> str:
    return ", ".join(map(str, ports)) or "none"
