"""The infiniband driver on a subnet of ibsim and OpenSM: two leaves, two spines, six hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from driver_process import RemoteDriver
from ibsim import Subnet, subnet
from needs import need_ibsim
from rigs import EVER, State

from weft.fabric import Fabric, leaf_spine
from weft.switches import Failed, PortName, Switches, Tables
from weft.switches.infiniband.mad import PORT_INFO, SL_TO_VL, VL_ARBITRATION, Smp

LEVELS = 16  # all service levels: what a port had is replaced as a whole
LOW, HIGH = 1 << 16, 3 << 16


class InfinibandRig:
    def __init__(self, made: Subnet) -> None:
        self._subnet = made
        self._driver = RemoteDriver(made, str(LEVELS))
        self._fabric = self._driver.discover()

    @property
    def switches(self) -> Switches:
        return self._driver

    @property
    def ports(self) -> tuple[PortName, ...]:
        """Of switches and of a host."""
        names = [PortName("leaf0", port) for port in (1, 2, 4)]
        return (*names, PortName("spine1", 2), PortName("h3", 1))

    def again(self) -> Switches:
        return RemoteDriver(self._subnet, str(LEVELS))

    @contextmanager
    def refusing(self, port: PortName, first: int = 1, last: int = EVER) -> Iterator[None]:
        lid, number = self._address(port)
        self._driver.call("wire", "refuse", lid, number, first, last)
        try:
            yield
        finally:
            self._driver.call("wire", "refuse_nothing")

    def traced(self, port: PortName, wanted: Tables) -> tuple[Tables | Failed, list[State]]:
        memory = self._memory(port)
        self._driver.call("wire", "taken_changes")
        states = [_state(memory)]
        written = self._driver.write({port: wanted})[port]
        for change in self._driver.call("wire", "taken_changes"):
            memory[change.attribute, change.modifier] = change.new
            states.append(_state(memory))
        return written, states

    def close(self) -> None:
        self._driver.close()

    def _address(self, port: PortName) -> tuple[int, int]:
        node = self._fabric.nodes[self._fabric.index(port.node)]
        assert node.lid is not None
        return node.lid, port.port if node.kind == "switch" else 0

    def _memory(self, port: PortName) -> dict[tuple[int, int], bytes]:
        """What the port holds, by attribute and modifier, asked for directly."""
        lid, number = self._address(port)
        inputs = _inputs(self._fabric, port)
        keys = [(VL_ARBITRATION, LOW | number), (VL_ARBITRATION, HIGH | number)]
        keys += [(SL_TO_VL, n << 8 | number) for n in inputs]
        answers = self._driver.call("wire", "ask", [Smp(lid, *key) for key in keys])
        return dict(zip(keys, answers, strict=True))


def _inputs(fabric: Fabric, port: PortName) -> Sequence[int]:
    node = fabric.nodes[fabric.index(port.node)]
    return range(node.ports + 1) if node.kind == "switch" else range(1)


def _state(memory: dict[tuple[int, int], bytes]) -> State:
    """By the layouts: pairs of VL and weight; two VLs to a byte, the even level's first."""
    served = frozenset(
        data[at] & 0xF
        for (attribute, _), data in memory.items()
        if attribute == VL_ARBITRATION
        for at in range(0, 64, 2)
        if data[at + 1]
    )
    maps = {
        tuple(n for byte in data[: LEVELS // 2] for n in (byte >> 4, byte & 0xF))
        for (attribute, _), data in memory.items()
        if attribute == SL_TO_VL
    }
    assert all(attribute != PORT_INFO for attribute, _ in memory), "no lane has a limit here"
    return State(queues_of=maps, served=served)


@contextmanager
def rig(directory: Path) -> Iterator[InfinibandRig]:
    need_ibsim()
    with subnet(leaf_spine(2, 2, 3, rate="4xEDR"), directory) as made:
        found = InfinibandRig(made)
        try:
            yield found
        finally:
            found.close()
