"""Watches a discovered subnet for links that go or come, and for routes that change.

A look reads one end of every cable, and in rotation the ports without a link and blocks of the
forwarding tables: a small subnet is read whole each time. Traps would tell sooner, but they go to
the subnet manager alone unless one subscribes with it. A switch that is silent is left to the next
discovery. Entry point: `SubnetWatch`.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.switches.infiniband.mad import (
    LFT_BLOCK,
    LINEAR_FORWARDING,
    PORT_INFO,
    Smp,
    unpack_port_info,
)
from weft.switches.infiniband.mad_transport import SmpClient
from weft.switches.infiniband.subnet_discovery import Subnet

IN_ROTATION = 512  # ports without a link, and blocks, in a look


class SubnetWatch:
    """Links as of a discovery; forwarding tables as of the first look at them."""

    def __init__(self, subnet: Subnet) -> None:
        self._cables = list(_list_cables(subnet))
        self._unlinked = list(_list_unlinked(subnet))
        self._block_order = list(_list_blocks(subnet))
        self._blocks: dict[Smp, bytes] = {}

    def has_changed(self, client: SmpClient) -> bool:
        unlinked = _rotate(self._unlinked, IN_ROTATION)
        blocks = _rotate(self._block_order, IN_ROTATION)
        answers = iter(client.ask([*self._cables, *unlinked, *blocks]))
        linked = [_is_linked(next(answers), otherwise=True) for _ in self._cables]
        coming = [_is_linked(next(answers), otherwise=False) for _ in unlinked]
        moved = [self._is_new(block, next(answers)) for block in blocks]
        return not all(linked) or any(coming) or any(moved)

    def _is_new(self, block: Smp, answer: object) -> bool:
        if not isinstance(answer, bytes):
            return False
        before, self._blocks[block] = self._blocks.get(block, answer), answer
        return before != answer


def _is_linked(answer: object, *, otherwise: bool) -> bool:
    return unpack_port_info(answer).is_linked if isinstance(answer, bytes) else otherwise


def _rotate(requests: list[Smp], most: int) -> list[Smp]:
    """The first ones, which then become the last."""
    first = requests[:most]
    requests[:] = [*requests[most:], *first]
    return first


def _list_cables(subnet: Subnet) -> Iterator[Smp]:
    """One end of every cable, at a switch."""
    for link in subnet.fabric.links:
        for end in (link.a, link.b):
            node = subnet.nodes[subnet.fabric.nodes[end.node].name]
            if node.switch is not None and node.lid is not None:
                yield Smp(node.lid, PORT_INFO, end.port)
                break


def _list_unlinked(subnet: Subnet) -> Iterator[Smp]:
    for node in subnet.nodes.values():
        if node.switch is not None and node.lid is not None:
            for port, info in node.info.items():
                if port and not info.is_linked:
                    yield Smp(node.lid, PORT_INFO, port)


def _list_blocks(subnet: Subnet) -> Iterator[Smp]:
    for node in subnet.nodes.values():
        if node.switch is not None and node.lid is not None:
            for block in range(node.switch.top // LFT_BLOCK + 1):
                yield Smp(node.lid, LINEAR_FORWARDING, block)
