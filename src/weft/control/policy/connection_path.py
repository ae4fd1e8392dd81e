"""Which ports a connection uses: those of every path between its hosts that routing may choose.

Saba, 4.3: where several paths are equal, all of them count. Entry point: `connection`.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import InputError
from weft.fabric import Fabric, Port, path


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionPath:
    """Traffic of an application from one host to another, by the output ports it may take."""

    application: str
    ports: tuple[Port, ...]

    def __post_init__(self) -> None:
        if not self.ports or len(set(self.ports)) < len(self.ports):
            where = f"connection of {self.application}"
            raise InputError(where, "no port, or one twice", "name each port of its path once")


def find_connection_path(fabric: Fabric, application: str, src: int, dst: int) -> ConnectionPath:
    """The connection from host `src` to host `dst` (indices in the fabric's nodes)."""
    if not path(fabric, src, dst):
        problem = f"from {fabric.nodes[src].name} to itself"
        raise InputError(f"connection of {application}", problem, "leave it out: it uses no port")
    ports = {Port(src, port) for port in fabric.neighbors(src)}
    reached = {end.node for end in fabric.neighbors(src).values()}
    to_visit = list(reached)
    while to_visit:
        node = to_visit.pop()
        for port in _outputs(fabric, node, dst):
            ports.add(Port(node, port))
            following = fabric.neighbors(node)[port].node
            if following not in reached:
                reached.add(following)
                to_visit.append(following)
    return ConnectionPath(application=application, ports=tuple(sorted(ports)))


def _outputs(fabric: Fabric, node: int, dst: int) -> tuple[int, ...]:
    if node == dst or fabric.routes is None:
        return ()
    return fabric.routes.ports(fabric.ordinal[node], fabric.ordinal[dst])
