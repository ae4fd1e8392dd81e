"""What every port is to have, what it has as far as is known, and what to do about it next.

A port that was never read may differ, and is written: a driver reads it first, and leaves it as it
is if it has what it should. One that fails is due again after a pause that doubles, and until it
answers all ports of its node are tended apart from the others, so that a node that hangs holds up
no other. Ports that are not in the fabric are kept for when they come back, and not counted.
Whoever takes ports has them alone until they are given back. Not thread-safe, no I/O: the
reconciler keeps the book. Entry point: `Book`. Units: seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from weft.switches import Failed, Foreign, PortName, Tables

AGAIN_S, LONGEST_S = 0.1, 30.0
_LOOK_S = 0.25  # between looks for ports that are due to be checked, when none was

Standing = Literal["programmed", "pending", "failing"]
Found = Tables | Foreign | Failed  # what a driver says of a port


def pause_s(failures: int) -> float:
    """Twice as long each time."""
    return float(min(AGAIN_S * 2.0 ** min(failures - 1, 30), LONGEST_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReport:
    """How a port stands, for how long it has been programmed or not, and what is wrong."""

    standing: Standing
    problem: str
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How ports stand: how many there are, how many wait, which fail and why.

    `programmed` is the last revision that every port has. `ports` are listed where asked for.
    """

    programmed: int = 0
    drifts: int = 0
    count: int = 0
    pending: int = 0
    failing: Mapping[PortName, str] = field(default_factory=dict)
    ports: Mapping[PortName, PortReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A port that held something else, when that was found, and how long its repair took."""

    port: PortName
    found: Tables | Foreign
    wanted: Tables
    at_s: float
    took_s: float | None = None  # None: not repaired yet


@dataclass(slots=True)
class _Port:
    wanted: Tables
    revision: int
    since_s: float
    found: Tables | Foreign | None = None
    problem: str = ""
    failures: int = 0
    retry_s: float = 0.0
    checked_s: float = 0.0
    drift: Drift | None = None

    @property
    def standing(self) -> Standing:
        if self.problem:
            return "failing"
        return "programmed" if self.found == self.wanted else "pending"


@dataclass(slots=True)
class Book:
    """Ports in the order in which they came."""

    ports: dict[PortName, _Port] = field(default_factory=dict)
    present: Set[PortName] = frozenset()
    revision: int = 0
    drifts: int = 0
    failed: int = 0  # answers ever that were none
    _here: set[PortName] = field(default_factory=set)  # ports that are present
    _late: set[PortName] = field(default_factory=set)  # of these, those that are not programmed
    _fresh: dict[PortName, None] = field(default_factory=dict)  # those that differ or may
    _of_node: dict[str, list[PortName]] = field(default_factory=dict)
    _failing: dict[str, set[PortName]] = field(default_factory=dict)  # by node, in turn
    _taken: set[PortName] = field(default_factory=set)
    _ahead: list[PortName] = field(default_factory=list)  # to be read in this round of checks
    _look_s: float = 0.0

    def want(self, tables: Mapping[PortName, Tables], revision: int, now_s: float) -> None:
        """These ports are to have these tables from now on."""
        self.revision = revision
        for name, wanted in tables.items():
            port = self.ports.get(name)
            if port is None:
                port = self.ports[name] = _Port(wanted, revision, now_s, checked_s=now_s)
                self._of_node.setdefault(name.node, []).append(name)
            else:
                port.wanted, port.revision, port.since_s = wanted, revision, now_s
            if name in self.present:
                self._here.add(name)
                self._fresh[name] = None
                self._judge(name, port)

    def appear(self, names: Set[PortName]) -> None:
        """The fabric has these ports now; what is away is unknown, and due when it is back."""
        for name in self._here - names:
            port = self.ports[name]
            port.found, port.problem, port.failures, port.retry_s = None, "", 0, 0.0
            self._mended(name)
        self.present = names
        self._here = self.ports.keys() & names
        self._fresh = {name: None for name in self.ports if name in names}
        self._late = {name for name in self._here if self.ports[name].standing != "programmed"}

    def _judge(self, name: PortName, port: _Port) -> None:
        if port.standing == "programmed":
            self._late.discard(name)
        else:
            self._late.add(name)

    # ---- What to do ---------------------------------------------------------------------------

    def take(self, most: int) -> list[PortName]:
        """The next ports that differ or may, of nodes none of whose ports fails."""
        chosen: list[PortName] = []
        seen: list[PortName] = []
        for name in self._fresh:
            if name in self._taken:
                continue
            seen.append(name)
            if name in self._late and name.node not in self._failing:
                chosen.append(name)
                if len(chosen) == most:
                    break
        for name in seen:
            del self._fresh[name]
        self._taken.update(chosen)
        return chosen

    def take_failing(self, now_s: float, every_s: float) -> list[PortName]:
        """Of the next node with a port that fails, the ports whose time has come."""
        for node in self._failing:
            chosen = [name for name in self._of_node[node] if self._is_due(name, now_s, every_s)]
            if chosen:
                self._failing[node] = self._failing.pop(node)
                self._taken.update(chosen)
                return chosen
        return []

    def _is_due(self, name: PortName, now_s: float, every_s: float) -> bool:
        if name not in self._here or name in self._taken:
            return False
        port = self.ports[name]
        if name in self._late:
            return port.retry_s <= now_s
        return port.checked_s <= now_s - every_s

    def take_to_check(self, now_s: float, every_s: float, most: int) -> list[PortName]:
        """The next programmed ports that were not read for so long."""
        if not self._ahead and now_s >= self._look_s:
            self._ahead = [n for n, p in self.ports.items() if p.checked_s <= now_s - every_s][::-1]
            self._look_s = now_s + _LOOK_S
        chosen: list[PortName] = []
        while self._ahead and len(chosen) < most:
            name = self._ahead.pop()
            if name in self._here and not self._is_taken_or_late(name):
                chosen.append(name)
        self._taken.update(chosen)
        return chosen

    def _is_taken_or_late(self, name: PortName) -> bool:
        return name in self._taken or name in self._late or name.node in self._failing

    def give_back(self, names: Iterable[PortName]) -> None:
        """Whoever took them has done what could be done."""
        self._taken.difference_update(names)

    def differing(self, names: Iterable[PortName]) -> dict[PortName, Tables]:
        """Those that hold something else, or were never read, with what they want by now."""
        ports = {name: self.ports[name] for name in names if name in self._here}
        return {name: port.wanted for name, port in ports.items() if port.standing == "pending"}

    # ---- What came of it ----------------------------------------------------------------------

    def note(
        self, told: Mapping[PortName, Found], names: Collection[PortName], now_s: float
    ) -> list[Drift]:
        """What was read of ports, or why it was not; drift that was found or is repaired."""
        drifts = []
        for name in names:
            found = told.get(name, Failed("the driver did not answer for it"))
            if name not in self._here:
                continue
            if isinstance(found, Failed):
                self._failed(name, found.problem, now_s)
            else:
                drifts += self._read(name, found, now_s)
        return drifts

    def _read(self, name: PortName, found: Tables | Foreign, now_s: float) -> list[Drift]:
        port = self.ports[name]
        was = port.standing == "programmed"
        port.found, port.checked_s, port.problem = found, now_s, ""
        self._judge(name, port)
        if name in self._late:
            self._fresh[name] = None
        self._mended(name)
        if (name not in self._late) == was:
            return []
        port.since_s = now_s
        if was:
            return [self._drifted(name, port, now_s)]
        # Only now: a port that can be read and not written is tried ever later as well.
        port.failures, port.retry_s = 0, 0.0
        drift, port.drift = port.drift, None
        return [] if drift is None else [replace(drift, took_s=now_s - drift.at_s)]

    def _drifted(self, name: PortName, port: _Port, now_s: float) -> Drift:
        assert port.found is not None, "it was read"
        self.drifts += 1
        port.drift = Drift(port=name, found=port.found, wanted=port.wanted, at_s=now_s)
        return port.drift

    def _failed(self, name: PortName, problem: str, now_s: float) -> None:
        port = self.ports[name]
        if port.standing == "programmed":
            port.since_s = now_s
        self.failed += 1
        port.failures += 1
        port.problem, port.found = problem, None
        port.retry_s = now_s + pause_s(port.failures)
        self._late.add(name)
        self._failing.setdefault(name.node, set()).add(name)

    def _mended(self, name: PortName) -> None:
        """The port answers; with its node's last one, all of them are as others are again."""
        failing = self._failing.get(name.node)
        if failing is None or name not in failing:
            return
        failing.discard(name)
        if not failing:
            del self._failing[name.node]
            late = [other for other in self._of_node[name.node] if other in self._late]
            self._fresh.update(dict.fromkeys(late))

    # ---- How it stands ------------------------------------------------------------------------

    def unprogrammed(self, names: Iterable[PortName]) -> dict[PortName, str]:
        """Those of these ports that do not have what they should, and what is wrong."""
        ports = {name: self.ports[name] for name in names if name in self.ports}
        return {
            name: port.problem or "not yet programmed"
            for name, port in ports.items()
            if port.standing != "programmed"
        }

    def report(self, now_s: float, *, with_ports: bool) -> Report:
        """How all ports of the fabric stand."""
        failing = {name: self.ports[name].problem for own in self._failing.values() for name in own}
        here = (name for name in self.ports if name in self._here) if with_ports else ()
        return Report(
            programmed=min([self.revision, *(self.ports[n].revision - 1 for n in self._late)]),
            drifts=self.drifts,
            count=len(self._here),
            pending=len(self._late) - len(failing),
            failing=failing,
            ports={name: _told(self.ports[name], now_s) for name in here},
        )


def _told(port: _Port, now_s: float) -> PortReport:
    return PortReport(standing=port.standing, problem=port.problem, for_s=now_s - port.since_s)
