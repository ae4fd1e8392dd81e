"""Simulated switches on two leaves, two spines and six hosts, their registers in a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rigs import EVER, State

from weft.errors import InputError
from weft.fabric import leaf_spine
from weft.switches import Failed, PortName, Switches, Tables
from weft.switches.simulated import Registers, SimulatedSwitches


class _Watched:
    """Registers that refuse some writes of a port, and tell of those that they do."""

    def __init__(self, registers: Registers) -> None:
        self._registers = registers
        self.refused: tuple[PortName, int, int] | None = None
        self.states: list[Tables] = []
        self._writes = 0

    def refuse(self, refused: tuple[PortName, int, int] | None) -> None:
        self.refused, self._writes = refused, 0

    def read(self, port: PortName) -> Tables:
        return self._registers.read(port)

    def write_map(self, port: PortName, tables: Tables) -> None:
        self._count(port)
        self._registers.write_map(port, tables)
        self.states.append(self.read(port))

    def write_weights(self, port: PortName, tables: Tables) -> None:
        self._count(port)
        self._registers.write_weights(port, tables)
        self.states.append(self.read(port))

    def close(self) -> None:
        self._registers.close()

    def _count(self, port: PortName) -> None:
        if self.refused is None or port != self.refused[0]:
            return
        self._writes += 1
        if self.refused[1] <= self._writes <= self.refused[2]:
            raise InputError(str(port), "refused")


class SimulatedRig:
    def __init__(self, directory: Path) -> None:
        self._fabric = leaf_spine(2, 2, 3)
        self._path = directory / "registers"
        self._driver = SimulatedSwitches(self._fabric, path=self._path)
        self._watched = _Watched(self._driver._registers)
        self._driver._registers = self._watched  # type: ignore[assignment]

    @property
    def switches(self) -> Switches:
        return self._driver

    @property
    def ports(self) -> tuple[PortName, ...]:
        names = [PortName("leaf0", port) for port in (1, 2, 4)]
        return (*names, PortName("spine1", 2), PortName("h3", 1))

    def again(self) -> Switches:
        return SimulatedSwitches(self._fabric, path=self._path)

    @contextmanager
    def refusing(self, port: PortName, first: int = 1, last: int = EVER) -> Iterator[None]:
        self._watched.refuse((port, first, last))
        try:
            yield
        finally:
            self._watched.refuse(None)

    def traced(self, port: PortName, wanted: Tables) -> tuple[Tables | Failed, list[State]]:
        self._watched.states = [self._watched.read(port)]
        written = self._driver.write({port: wanted})[port]
        return written, [_state(tables) for tables in self._watched.states]


def _state(tables: Tables) -> State:
    served = frozenset(queue for queue, weight in enumerate(tables.weights) if weight)
    return State(queues_of=[tables.queue_of], served=served)


@contextmanager
def rig(directory: Path) -> Iterator[SimulatedRig]:
    made = SimulatedRig(directory)
    try:
        yield made
    finally:
        made.switches.close()
