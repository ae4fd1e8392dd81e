"""The fabric of simulated switches: read from files, with routes added if it has none.

Entry points: `read_routed_fabric`, `list_ports`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.fabric import Fabric, check_fabric, read_fabric, route
from weft.switches.tables import PortName


def read_routed_fabric(files: str | Sequence[str]) -> Fabric:
    """The fabric of files, as `weft simulate` reads them."""
    return add_routes(read_fabric(files if isinstance(files, str) else list(files)))


def add_routes(fabric: Fabric) -> Fabric:
    bare = fabric.routes is None and fabric.switches
    return check_fabric(route(fabric, "up_down") if bare else fabric)


def list_ports(fabric: Fabric) -> list[PortName]:
    """Every port with a cable, of switches and hosts."""
    return [
        PortName(node.name, port)
        for n, node in enumerate(fabric.nodes)
        for port in fabric.neighbors(n)
    ]
