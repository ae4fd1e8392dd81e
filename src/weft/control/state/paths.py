"""Which managed ports lie between two hosts, and what hosts and ports are called.

All equal paths count (Saba, 4.3), as in `weft.control.policy.connection_path`, which says what is
found here for one pair; a controller asks for many of one fabric, so forwarding tables are kept as
lists and answers are remembered. Ports that no driver can program are left out. Entry point:
`Paths`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from weft.errors import InputError
from weft.fabric import Fabric, Port
from weft.switches import PortName

_AS_LISTED = "name a host of the fabric, or an alias that the controller knows"
_MOST_KNOWN = 200_000


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
        found = {Port(start, port) for port in links} & self.managed
        for first in links.values():
            found.update(self._beyond(first.node, start, end))
        return tuple(sorted(found))

    def _beyond(self, node: int, source: int, destination: int) -> tuple[Port, ...]:
        """From a node on: what all hosts at a switch have in common is searched for once."""
        found = self._known.get((node, destination))
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[node, destination] = self._searched(node, source, destination)
        return found

    def host(self, name: str) -> int:
        """The node of a host by its name, alias, GUID or LID."""
        node = self._hosts.get(self.aliases.get(name, name))
        if node is None:
            raise InputError(f"host {name!r}", f"is not in {self.fabric.name}", _AS_LISTED)
        return node

    def still_there(self, names: tuple[PortName, ...]) -> tuple[Port, ...]:
        """Those of these ports that are managed."""
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
        found = {f"{node.lid}": number for number, node in nodes if node.lid is not None}
        found |= {node.guid: number for number, node in nodes if node.guid is not None}
        return found | {node.name: number for number, node in nodes}

    @cached_property
    def _known(self) -> dict[tuple[int, int], tuple[Port, ...]]:
        return {}

    @cached_property
    def _own(self) -> dict[Port, Port]:
        """One object for each port, however many paths have it."""
        return {port: port for port in self.managed}

    @cached_property
    def _rows(self) -> dict[int, list[int]]:
        """Group of ports towards each host, of the switches asked for so far."""
        return {}

    def _searched(self, first: int, source: int, destination: int) -> tuple[Port, ...]:
        found, reached, ahead = set[Port](), {first}, [first]
        while ahead:
            node = ahead.pop()
            for port in self._outputs(node, source, destination):
                found.add(Port(node, port))
                following = self.fabric.neighbors(node)[port].node
                if following not in reached:
                    reached.add(following)
                    ahead.append(following)
        if destination not in reached:
            raise self._no_route(first, source, destination)
        return tuple(self._own[port] for port in found if port in self.managed)

    def _outputs(self, node: int, source: int, destination: int) -> tuple[int, ...]:
        if node == destination:
            return ()
        routes = self.fabric.routes
        if routes is None or self.fabric.nodes[node].kind == "host":
            raise self._no_route(node, source, destination)
        row = self._rows.get(node)
        if row is None:
            row = self._rows[node] = routes.next_hop[self.fabric.ordinal[node]].tolist()
        group = row[self.fabric.ordinal[destination]]
        linked = self.fabric.neighbors(node)
        # Tables that are older than a link's loss still name its port.
        found = tuple(port for port in routes.groups[group] if port in linked) if group >= 0 else ()
        if not found:
            raise self._no_route(node, source, destination)
        return found

    def _no_route(self, node: int, source: int, destination: int) -> InputError:
        names = self.fabric.nodes
        where = f"from {names[source].name} to {names[destination].name}"
        problem = f"{names[node].name} has no route to it"
        return InputError(where, problem, "correct the routes")
