"""The fabric of a testbed: its hosts, switches and cables, and the routes of its bridges.

Nodes have the testbed's names; ports have the numbers of their interfaces (`port3` is 3), and a
host's `eth0` is 1. A route is the bridge port behind which the host's MAC address is. If the bridge
does not know it, or its agent does not answer, the route is that of the testbed's wiring, with a
note. Missing parts of a testbed stay in the fabric: their ports fail. Entry points:
`discover_testbed`, `list_interfaces`. Units: bits per second, ps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.errors import InputError
from weft.fabric import Fabric, Link, Node, Port, Routes, check_fabric
from weft.fabric.fabric import Kind
from weft.host.testbed.build import Testbed, find_mac
from weft.host.testbed.wiring import INTERFACE, Cable, Layout, Plug

Forwarding = Mapping[str, Mapping[str, int]]  # by node: MAC address -> port number


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """A fabric, its hosts' addresses, and notes on what the switches did not say."""

    fabric: Fabric
    addresses: Mapping[str, str] = field(default_factory=dict)  # IP address -> host name
    notes: tuple[str, ...] = ()


def discover_testbed(bed: Testbed, name: str, forwarding: Forwarding) -> Discovery:
    plan, hosts = bed.layout, bed.wiring.hosts
    nodes = [*hosts, *plan.switches]
    index = {node: n for n, node in enumerate(nodes)}
    routes, notes = _build_routes(bed, forwarding)
    fabric = Fabric(
        name=name,
        nodes=tuple(_build_node(plan, bed, node) for node in nodes),
        links=tuple(_build_link(cable, index) for cable in plan.cables),
        routes=routes,
    )
    addresses = {bed.addresses[host]: host for host in hosts}
    return Discovery(fabric=check_fabric(fabric), addresses=addresses, notes=tuple(notes))


def _build_routes(bed: Testbed, forwarding: Forwarding) -> tuple[Routes, list[str]]:
    """From the bridges' forwarding tables, with notes on what is missing there."""
    hosts = bed.wiring.hosts
    rows: list[list[tuple[int, ...]]] = []
    notes: list[str] = []
    for switch, ways in bed.layout.routes.items():
        port_of = {host: forwarding.get(switch, {}).get(find_mac(bed, host)) for host in hosts}
        rows.append([(port or _parse_port_number(ways[host]),) for host, port in port_of.items()])
        unknown = ", ".join(host for host, port in port_of.items() if port is None)
        if unknown:
            notes.append(f"{switch}: routes to {unknown} are those of the testbed's wiring")
    return Routes.from_groups(rows, len(hosts)), notes


def list_interfaces(bed: Testbed, node: str) -> dict[int, str]:
    """The ports of a host or switch: number -> interface."""
    plugs = [plug for cable in bed.layout.cables for plug in cable.ends if plug.node == node]
    if not plugs:
        raise InputError("testbed", f"no host or switch {node!r}", "name one of its nodes")
    return {_parse_port_number(plug.interface): plug.interface for plug in plugs}


def _parse_port_number(interface: str) -> int:
    """port3 is 3; a host's only interface is 1."""
    return 1 if interface == INTERFACE else int(interface.removeprefix("port"))


def _build_node(plan: Layout, bed: Testbed, name: str) -> Node:
    kind: Kind = "switch" if name in plan.switches else "host"
    return Node(name, kind, max(list_interfaces(bed, name)))


def _build_link(cable: Cable, index: Mapping[str, int]) -> Link:
    first, second = (_build_port(plug, index) for plug in cable.ends)
    name = f"{cable.rate_bps} b/s"
    return Link(first, second, float(cable.rate_bps), 0, name)


def _build_port(plug: Plug, index: Mapping[str, int]) -> Port:
    return Port(index[plug.node], _parse_port_number(plug.interface))
