"""Hosts as scenarios name them: one by one, in ranges, or all.

Entry point: `host_list`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import InputError
from weft.fabric import Fabric


def host_list(fabric: Fabric, names: Sequence[str], place: str) -> list[int]:
    """Host numbers of names; "h0..h4" is a range in the fabric's order, "all" every host."""
    order = host_order(fabric)
    hosts: list[int] = []
    for name in names:
        if name == "all":
            hosts += order.values()
        elif ".." in name:
            first, last = (host_number(order, n, place) for n in name.split("..", 1))
            if last < first:
                raise InputError(place, f"{name!r} is an empty range", "put the lower host first")
            hosts += range(first, last + 1)
        else:
            hosts.append(host_number(order, name, place))
    if not hosts:
        raise InputError(place, "names no host", "name at least one")
    return hosts


def host_order(fabric: Fabric) -> dict[str, int]:
    """The number of each host, by name."""
    return {fabric.nodes[node].name: i for i, node in enumerate(fabric.hosts)}


def host_number(order: dict[str, int], name: str, place: str) -> int:
    if name not in order:
        some = list(order)
        known = ", ".join(some[:3]) + (f" … {some[-1]}" if len(some) > 3 else "")
        raise InputError(place, f"{name!r} is not a host of the fabric", f"hosts are {known}")
    return order[name]
