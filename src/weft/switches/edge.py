"""Marks at the edge of a fabric: which levels a host's packets may carry, and who broke that.

A port of a switch with a host behind it is an edge port. A level may enter there if the host has a
registered connection at that level, to the packet's destination. The latency lane is open to all,
within a budget for each pair of hosts. Drivers prevent the rest where they can, or detect it.
Entry points: `EdgeRules`, `EdgeReport`. Units: bits per second, bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.switches.tables import PortName


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePort:
    """The host behind a port, and what may come from it: destinations (hosts) with their level.

    `lane_bps`: what it may send on the latency lane to one destination.
    """

    host: str
    admitted: frozenset[tuple[str, int]] = frozenset()
    lane_bps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRules:
    """Levels 1 to `levels` need a connection; `lane` is the level of the latency lane, if any."""

    levels: int
    lane: int | None
    ports: Mapping[PortName, EdgePort]
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of each host


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Bytes that entered with a level that was not admitted, or beyond the lane's budget.

    `is_rewritten`: they went on at level 0. No destination: the switch does not tell.
    """

    port: PortName
    host: str
    destination: str
    level: int
    bytes: int
    is_lane: bool = False
    is_rewritten: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeReport:
    """Violations since the last report, and why some ports are not policed."""

    violations: tuple[Violation, ...] = ()
    problems: tuple[str, ...] = ()
