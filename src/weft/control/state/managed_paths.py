"""The managed ports between two hosts, and the names of hosts and ports.

All equal paths count (Saba, 4.3), as in `weft.control.policy.plan`, which finds the path
of one pair. A controller needs many paths of one fabric, so forwarding tables are kept as lists and
paths are cached. Ports that no driver can program are left out. Entry point: `Paths`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from weft.errors import InputError
from weft.fabric import Fabric, Port
from weft.switches import PortName

_HOST_REMEDY = "name a host of the fabric, or an alias that the controller knows"
_MAX_CACHED = 200_000


class _Exit(NamedTuple):
    """A port of a switch, the port again if it is managed, and the node behind it."""

    number: int
    port: Port | None
    neighbor: int


@dataclass(frozen=True)
class Paths:
    """The paths of a fabric. `managed` are the ports that count, `aliases` further host names."""

    fabric: Fabric
    managed: frozenset[Port]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def between(self, source: str, destination: str) -> tuple[Port, ...]:
        """The managed ports of all equal paths, in order; none where both are one host."""
        start, end = self.host(source), self.host(destination)
        if start == end:
            return ()
        links = self.fabric.neighbors(start)
        if not links:
            raise self._no_route(start, start, end)
        ports = self._host_ports.get(start)
        if ports is None:
            ports = self._host_ports[start] = self._list_host_ports(start)
        if len(links) == 1:
            (first,) = links.values()
            return tuple(sorted(ports + self._ports_from(first.node, start, end)))
        parts = [self._ports_from(first.node, start, end) for first in links.values()]
        return tuple(sorted({*ports, *chain.from_iterable(parts)}))

    def _list_host_ports(self, host: int) -> tuple[Port, ...]:
        """The managed ones."""
        ports = [Port(host, number) for number in self.fabric.neighbors(host)]
        return tuple([self._shared[port] for port in ports if port in self.managed])

    def list_hops(self, source: str, destination: str) -> list[tuple[PortName, ...]]:
        """All ports of all equal paths, managed or not, by hop."""
        start, end = self.host(source), self.host(destination)
        hops: list[tuple[PortName, ...]] = []
        layer, reached = [] if start == end else [start], {start, end}
        while layer:
            outputs = [Port(node, port) for node in layer for port in self._exits(node, start, end)]
            hops.append(tuple(map(self.name, outputs)))
            ends = [self.fabric.neighbors(port.node)[port.port].node for port in outputs]
            layer = [node for node in dict.fromkeys(ends) if node not in reached]
            reached.update(layer)
        return hops

    def _exits(self, node: int, source: int, destination: int) -> Iterable[int]:
        """Ports by which packets leave a node, the source too."""
        if node == source:
            return self.fabric.neighbors(node)
        return [output.number for output in self._outputs(node, source, destination)]

    def _ports_from(self, node: int, source: int, destination: int) -> tuple[Port, ...]:
        """Managed ports from a node on; the part that hosts of a switch share is searched once."""
        ports = self._cache.get((node, destination))
        if ports is None:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            ports = self._cache[node, destination] = self._search(node, source, destination)
        return ports

    def host(self, name: str) -> int:
        """The node of a host by its name, alias, GUID or LID."""
        node = self._hosts.get(self.aliases.get(name, name))
        if node is None:
            raise InputError(f"host {name!r}", f"is not in {self.fabric.name}", _HOST_REMEDY)
        return node

    def find_ports(self, names: tuple[PortName, ...]) -> tuple[Port, ...]:
        """Which of these ports are managed."""
        return tuple([self.ports[name] for name in names if name in self.ports])

    def name(self, port: Port) -> PortName:
        return PortName(self.fabric.nodes[port.node].name, port.port)

    @cached_property
    def names(self) -> dict[Port, PortName]:
        """Name of every managed port."""
        return {port: self.name(port) for port in self.managed}

    @cached_property
    def ports(self) -> dict[PortName, Port]:
        """Every managed port by its name."""
        return {name: port for port, name in self.names.items()}

    @cached_property
    def _hosts(self) -> dict[str, int]:
        nodes = [(number, self.fabric.nodes[number]) for number in self.fabric.hosts]
        numbers = {f"{node.lid}": number for number, node in nodes if node.lid is not None}
        numbers |= {node.guid: number for number, node in nodes if node.guid is not None}
        return numbers | {node.name: number for number, node in nodes}

    @cached_property
    def _cache(self) -> dict[tuple[int, int], tuple[Port, ...]]:
        return {}

    @cached_property
    def _host_ports(self) -> dict[int, tuple[Port, ...]]:
        return {}

    @cached_property
    def _shared(self) -> dict[Port, Port]:
        """One object for each port, shared by all paths."""
        return {port: port for port in self.managed}

    @cached_property
    def _rows(self) -> dict[int, tuple[list[int], dict[int, tuple[_Exit, ...]]]]:
        """Group of ports towards each host, and the exits of groups, of switches visited so far."""
        return {}

    def _search(self, first: int, source: int, destination: int) -> tuple[Port, ...]:
        ports, reached, frontier = list[Port](), {first}, [first]
        while frontier:
            for _, port, neighbor in self._outputs(frontier.pop(), source, destination):
                if port is not None:
                    ports.append(port)
                if neighbor not in reached:
                    reached.add(neighbor)
                    frontier.append(neighbor)
        if destination not in reached:
            raise self._no_route(first, source, destination)
        return tuple(ports)

    def _outputs(self, node: int, source: int, destination: int) -> tuple[_Exit, ...]:
        if node == destination:
            return ()
        groups, exits_of = self._rows.get(node) or self._add_row(node, source, destination)
        group = groups[self.fabric.ordinal[destination]]
        exits = exits_of.get(group)
        if exits is None:
            exits = exits_of[group] = self._list_exits(node, group)
        if not exits:
            raise self._no_route(node, source, destination)
        return exits

    def _add_row(
        self, node: int, source: int, destination: int
    ) -> tuple[list[int], dict[int, tuple[_Exit, ...]]]:
        routes = self.fabric.routes
        if routes is None or self.fabric.nodes[node].kind == "host":
            raise self._no_route(node, source, destination)
        row = self._rows[node] = routes.next_hop[self.fabric.ordinal[node]].tolist(), {}
        return row

    def _list_exits(self, node: int, group: int) -> tuple[_Exit, ...]:
        """Of a group of ports, those that have a link."""
        routes, linked = self.fabric.routes, self.fabric.neighbors(node)
        if routes is None or group < 0:
            return ()
        # Tables that are older than the loss of a link still name its port.
        numbers = [number for number in routes.groups[group] if number in linked]
        return tuple(
            _Exit(number, self._shared.get(Port(node, number)), linked[number].node)
            for number in numbers
        )

    def _no_route(self, node: int, source: int, destination: int) -> InputError:
        names = self.fabric.nodes
        where = f"from {names[source].name} to {names[destination].name}"
        problem = f"{names[node].name} has no route to it"
        return InputError(where, problem, "correct the routes")
