"""What ports of a subnet hold, by `smpquery`, beside what a controller says that it told them.

Which ports are on a path is said by `ibtracert`. Entry point: `Witness`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from control_fabric import listed
from control_parts import ports_of
from control_process import Client
from ibsim import Subnet, service_levels, vl_arbitration

from weft.fabric import Fabric, read_ibnetdiscover
from weft.switches import PortName

CONVERGED_S = 60.0
LEVELS = 8
_HOP = re.compile(r"^(?:From \S+|\[(\d+)\] -> \S+ port) \{(0x[0-9a-f]{16})\}", re.MULTILINE)

Pairs = Mapping[str, Sequence[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Held:
    """Weight of each VL in the low and the high list, and the VLs of our levels at each input."""

    low: dict[int, int]
    high: dict[int, int]
    maps: dict[int, tuple[int, ...]]


def held(made: Subnet, fabric: Fabric, port: PortName) -> Held:
    """What smpquery reads."""
    lid = lid_of(fabric, port.node)
    lists = vl_arbitration(made, lid, port.port)
    maps = service_levels(made, lid, port.port)
    assert maps
    return Held(
        low=served(lists["Low"]),
        high=served(lists["High"]),
        maps={n: tuple(vls[:LEVELS]) for n, vls in maps.items()},
    )


def served(entries: Sequence[tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for vl, weight in entries:
        if weight:
            found[vl] = found.get(vl, 0) + weight
    return found


def lid_of(fabric: Fabric, node: str) -> int:
    found = fabric.nodes[fabric.index(node)].lid
    assert found
    return found


def dumped(made: Subnet) -> Fabric:
    return read_ibnetdiscover(made.run("ibnetdiscover"))


def port_towards(fabric: Fabric, node: str, other: str) -> PortName:
    linked = fabric.neighbors(fabric.index(node))
    (port,) = [n for n, end in linked.items() if fabric.nodes[end.node].name == other]
    return PortName(node, port)


def traced(made: Subnet, fabric: Fabric, source: str, destination: str) -> set[PortName]:
    """The ports that ibtracert goes out by."""
    ends = [str(lid_of(fabric, name)) for name in (source, destination)]
    hops = _HOP.findall(made.run("ibtracert", *ends))
    names = {node.guid: node.name for node in fabric.nodes}
    outputs = [int(port) for port, _ in hops[1:]]
    assert outputs, "no route"
    return {PortName(names[guid], port) for (_, guid), port in zip(hops, outputs, strict=False)}


def on_paths(made: Subnet, fabric: Fabric, pairs: Pairs) -> set[PortName]:
    every = {pair for own in pairs.values() for pair in own}
    return {port for pair in every for port in traced(made, fabric, *pair)}


class Witness:
    """What all ports held before, and what is wrong with what they hold now."""

    def __init__(self, made: Subnet, client: Client, ports: Collection[PortName] = ()) -> None:
        self.made, self.client = made, client
        fabric = dumped(made)
        self.ports = [*(ports or ports_of(fabric))]
        self.before = {port: held(made, fabric, port) for port in self.ports}

    def differences(self, pairs: Pairs) -> list[str]:
        """Ports on paths hold what the controller says, all others what they held.

        A port that was on a path before has the tables of one without applications; one without a
        link is nobody's.
        """
        fabric, told = dumped(self.made), listed(self.client)
        expected = on_paths(self.made, fabric, pairs)
        managed = {port for port, own in told.items() if own.applications}
        wrong = [f"{port}: by the controller not as traced" for port in managed ^ expected]
        for port in {*self.ports, *expected} & {*ports_of(fabric)}:
            found = held(self.made, fabric, port)
            if port in expected or found != self.before[port]:
                wrong += [] if port in told and is_told(found, told[port]) else [f"{port}: {found}"]
        return wrong

    def untouched(self, pairs: Pairs) -> set[PortName]:
        """Ports beside the paths that hold what they held."""
        fabric = dumped(self.made)
        beside = set(self.ports) - on_paths(self.made, fabric, pairs)
        return {port for port in beside if held(self.made, fabric, port) == self.before[port]}

    def converged(self, pairs: Pairs) -> float:
        """Seconds until nothing is wrong; OpenSM may be at it, so that tools fail meanwhile."""
        began, wrong = time.monotonic(), ["nothing was read"]
        while wrong:
            assert time.monotonic() - began < CONVERGED_S, wrong
            with suppress(AssertionError):
                wrong = self.differences(pairs)
        return time.monotonic() - began


def is_told(found: Held, told: Any) -> bool:
    """A port holds the tables that the controller says it should, maps at every input."""
    weights = {queue: weight for queue, weight in enumerate(told.weights) if weight}
    wanted = tuple(told.queue_of[:LEVELS])
    return (found.low, found.high) == (weights, {}) and set(found.maps.values()) == {wanted}
