"""Simulated switches: keep the tables of a fabric's ports as real switches would.

They serve to try a plan (`weft.control.operators.trial` runs the packet simulator with such
tables), and to test what happens when writes fail or the writer is killed: their registers can be
in a file that stays. Entry points: `SimulatedSwitches`, `read_routed_fabric`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TypeVar

from weft.errors import InputError
from weft.fabric import Fabric, add_routes, read_fabric
from weft.switches.edge import EdgeReport, EdgeRules
from weft.switches.simulated.register_tables import find_refusal, plan_steps
from weft.switches.simulated.registers import Registers, WriteFailures
from weft.switches.simulated.shared_claim import SharedClaim
from weft.switches.tables import (
    Ability,
    Claim,
    Failed,
    Fenced,
    Foreign,
    PortName,
    Tables,
    Taken,
    refuse_release,
)

DEFAULT_ABILITY = Ability(scheduler="vlarb", levels=16, queues=8, entries=8, units=255)
_TRIES = 40  # to restore: with 50 % of writes lost, one of 10^9 ports stays in between
_T = TypeVar("_T")


def read_routed_fabric(files: str | Sequence[str]) -> Fabric:
    """The fabric of files, as `weft simulate` reads them."""
    return add_routes(read_fabric(files))


class SimulatedSwitches:
    """The ports of a fabric, all of one ability or each of its own."""

    def __init__(
        self,
        fabric: Fabric,
        abilities: Ability | Mapping[PortName, Ability] = DEFAULT_ABILITY,
        *,
        path: Path | None = None,
        failing: WriteFailures | None = None,
    ) -> None:
        self._fabric = add_routes(fabric)
        ports = _list_ports(self._fabric)
        each = dict.fromkeys(ports, abilities) if isinstance(abilities, Ability) else abilities
        missing = set(ports) - each.keys()
        if missing:
            raise InputError(str(min(missing)), "has no ability", "say what every port can do")
        self._abilities = {port: each[port] for port in ports}
        self._registers = Registers(self._abilities, path, failing)
        self._path = path
        self._claims = None if path is None else SharedClaim(path)
        self._is_second = False

    def discover(self) -> Fabric:
        return self._fabric

    def read_sent(self, ports: Collection[PortName]) -> dict[PortName, tuple[int, ...]]:  # noqa: ARG002
        return {}  # no packet crosses a register

    def abilities(self, ports: Collection[PortName]) -> dict[PortName, Ability | Failed]:
        return {port: self._try_port(port, self._find_ability) for port in ports}

    def read(self, ports: Collection[PortName]) -> dict[PortName, Tables | Foreign | Failed]:
        return {port: self._try_port(port, self._read) for port in ports}

    def write(self, wanted: Mapping[PortName, Tables]) -> dict[PortName, Tables | Failed]:
        return {
            port: self._try_port(port, lambda at: self._write_claimed(at, wanted[at]))
            for port in wanted
        }

    def _write_claimed(self, port: PortName, wanted: Tables) -> Tables:
        if self._claims is None:
            return self._write(port, wanted)
        with self._claims.hold(port.node):
            return self._write(port, wanted)

    def has_changed(self) -> bool:
        return False

    @property
    def addresses(self) -> Mapping[str, str]:
        return {}

    @property
    def unanswered(self) -> tuple[PortName, ...]:
        return ()

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def claim(self, claim: Claim) -> None:
        """With registers in a file, which other controllers may share."""
        if self._path is not None and self._claims is not None:
            self._claims.close()
            self._claims = SharedClaim(self._path, claim.group)
            self._claims.claim(claim)

    def police(self, _: EdgeRules) -> EdgeReport:
        """No packets pass these switches."""
        return EdgeReport()

    def open_second(self) -> SimulatedSwitches:
        second = copy(self)
        second._is_second = True
        return second

    def learn_from(self, second: SimulatedSwitches) -> None:
        """Nothing: both know the fabric from the start."""

    def release(self) -> Mapping[str, list[str]]:
        refuse_release("simulated")

    def close(self) -> None:
        if not self._is_second:
            self._registers.close()
            if self._claims is not None:
                self._claims.close()

    def _try_port(self, port: PortName, do: Callable[[PortName], _T]) -> _T | Failed:
        try:
            return do(port)
        except Taken as error:
            return Fenced(str(error))
        except InputError as error:
            return Failed(error.problem)
        except OSError as error:
            return Failed(str(error))

    def _find_ability(self, port: PortName) -> Ability:
        if port not in self._abilities:
            raise InputError(str(port), "is not of the fabric", "name a port with a cable")
        return self._abilities[port]

    def _read(self, port: PortName) -> Tables:
        self._find_ability(port)
        return self._registers.read(port)

    def _write(self, port: PortName, wanted: Tables) -> Tables:
        why = find_refusal(wanted, self._find_ability(port))
        if why is not None:
            raise InputError(str(port), why)
        old = self._registers.read(port)
        if old == wanted:
            return wanted
        try:
            self._change(port, wanted)
        except InputError as error:
            raise self._restore(port, old, error) from error
        return wanted

    def _change(self, port: PortName, wanted: Tables) -> None:
        old = self._registers.read(port)
        for step in plan_steps(old, wanted, self._find_ability(port)):
            if step.queue_of != old.queue_of:
                self._registers.write_map(port, step)
            else:
                self._registers.write_weights(port, step)
            old = step
        stored = self._registers.read(port)
        if stored != wanted:
            raise InputError(str(port), f"reads back as {stored}")

    def _restore(self, port: PortName, old: Tables, error: InputError) -> InputError:
        for _ in range(_TRIES):
            try:
                self._change(port, old)
            except InputError:
                continue
            return InputError(str(port), f"{error.problem}; it keeps its old tables")
        return InputError(str(port), f"{error.problem}; it could not be restored")


def _list_ports(fabric: Fabric) -> list[PortName]:
    """Every port with a cable, of switches and hosts."""
    return [
        PortName(node.name, port)
        for n, node in enumerate(fabric.nodes)
        for port in fabric.neighbors(n)
    ]
