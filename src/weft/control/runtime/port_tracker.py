"""The target of every port, its last known content, and which ports are due next.

A port that was never read may differ, and is written: a driver reads it first, and leaves it alone
if it already has its target. A failing port is due again after a pause that doubles. Until it
answers, all ports of its node are handled apart from the others, so that a hanging node delays no
other node. Ports that are not in the fabric are remembered, but not counted. Whoever takes ports
has them alone until they are given back. Not thread-safe, no I/O: the reconciler owns the tracker.
Entry point: `PortTracker`. Units: seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from weft.switches import Failed, Foreign, PortName, Tables

RETRY_S, LONGEST_RETRY_S = 0.1, 30.0
CONTESTED_DRIFTS = 4  # of one port, within a while: somebody else writes it, too
_SCAN_S = 0.25  # between scans for ports to check, when there were none

Status = Literal["programmed", "pending", "failing"]
Content = Tables | Foreign | Failed  # what a driver says of a port


def retry_delay_s(failures: int) -> float:
    """Twice as long each time."""
    return float(min(RETRY_S * 2.0 ** min(failures - 1, 30), LONGEST_RETRY_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReport:
    """A port's status, for how long it has had it, and what is wrong."""

    status: Status
    problem: str
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounts:
    """Numbers for the service's status message, which has fields of the same names."""

    programmed: int = 0  # the last revision that every port has
    ports: int = 0  # with a target, in the fabric
    ports_pending: int = 0
    ports_failing: int = 0
    drifts: int = 0  # since the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The ports of a fabric, and the failing ones with the reason.

    `by_port` is empty unless requested.
    """

    counts: PortCounts
    failing: Mapping[PortName, str]
    by_port: Mapping[PortName, PortReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A port that held something else, when that was found, and how long its repair took."""

    port: PortName
    content: Tables | Foreign
    target: Tables
    at_s: float
    took_s: float | None = None  # None: not repaired yet


class Transitions(NamedTuple):
    """Ports that began to fail, with the reason, and that recovered, with how long they failed.

    The same of nodes: a lost one has no port with a target that does not fail.
    """

    failed: Mapping[PortName, str]
    recovered: Mapping[PortName, float]
    lost: Mapping[str, str]
    back: Mapping[str, float]


@dataclass(slots=True)
class _Port:
    target: Tables
    revision: int
    since_s: float
    content: Tables | Foreign | None = None
    problem: str = ""
    failures: int = 0
    failed_s: float | None = None  # since when it fails
    retry_s: float = 0.0
    requested_s: float | None = None  # when somebody asked for the target, until it is read back
    checked_s: float = 0.0
    drift: Drift | None = None
    drifts_s: tuple[float, ...] = ()  # when the latest ones were found

    @property
    def status(self) -> Status:
        if self.problem:
            return "failing"
        return "programmed" if self.content == self.target else "pending"


@dataclass(slots=True)
class PortTracker:
    """Ports in the order in which they got their first target."""

    ports: dict[PortName, _Port] = field(default_factory=dict)
    fabric_ports: Set[PortName] = frozenset()
    revision: int = 0
    drifts: int = 0
    failures: int = 0  # failed reads and writes since the start
    _failed: dict[PortName, str] = field(default_factory=dict)  # not taken yet, with the reason
    _recovered: dict[PortName, float] = field(default_factory=dict)  # with how long they failed
    _lost: dict[str, str] = field(default_factory=dict)  # nodes, not taken yet
    _back: dict[str, float] = field(default_factory=dict)
    _lost_s: dict[str, float] = field(default_factory=dict)  # nodes whose ports all fail, and since
    _drifters: set[PortName] = field(default_factory=set)  # ports that may be contested
    _programming_s: list[float] = field(default_factory=list)  # not taken yet
    _present: set[PortName] = field(default_factory=set)  # ports with a target, in the fabric
    _unprogrammed: set[PortName] = field(default_factory=set)  # of those present
    _changed: dict[PortName, None] = field(default_factory=dict)  # those that differ or may
    _by_node: dict[str, list[PortName]] = field(default_factory=dict)
    _failing: dict[str, set[PortName]] = field(default_factory=dict)  # by node, in turn
    _taken: set[PortName] = field(default_factory=set)
    _to_check: list[PortName] = field(default_factory=list)  # in this round, the last one first
    _next_scan_s: float = 0.0

    def set_targets(
        self,
        tables: Mapping[PortName, Tables],
        revision: int,
        now_s: float,
        requested_s: float | None = None,
    ) -> None:
        """These ports are to have these tables from now on; they were requested then."""
        self.revision = revision
        for name, target in tables.items():
            port = self.ports.get(name)
            if port is None:
                port = self.ports[name] = _Port(target, revision, now_s, checked_s=now_s)
                self._by_node.setdefault(name.node, []).append(name)
            else:
                port.target, port.revision, port.since_s = target, revision, now_s
            if port.status == "programmed":
                port.requested_s = None
            elif port.requested_s is None:  # else: it is still busy with an earlier request
                port.requested_s = requested_s
            if name in self.fabric_ports:
                self._present.add(name)
                self._changed[name] = None
                self._update_status(name, port)

    def set_fabric_ports(self, names: Set[PortName]) -> None:
        """The fabric has these ports now. The content of missing ports becomes unknown."""
        for name in self._present - names:
            port = self.ports[name]
            port.content, port.problem, port.failures, port.retry_s = None, "", 0, 0.0
            port.failed_s = None
            self._mark_answering(name)
        self._lost_s = {n: since for n, since in self._lost_s.items() if n in self._failing}
        self.fabric_ports = names
        self._present = self.ports.keys() & names
        self._changed = {name: None for name in self.ports if name in names}
        self._unprogrammed = {n for n in self._present if self.ports[n].status != "programmed"}

    def _update_status(self, name: PortName, port: _Port) -> None:
        if port.status == "programmed":
            self._unprogrammed.discard(name)
        else:
            self._unprogrammed.add(name)

    # ---- Which ports are due ------------------------------------------------------------------

    def take_changed(self, most: int) -> list[PortName]:
        """The next ports that differ or may, of nodes without a failing port."""
        chosen: list[PortName] = []
        visited: list[PortName] = []
        for name in self._changed:
            if name in self._taken:
                continue
            visited.append(name)
            if name in self._unprogrammed and name.node not in self._failing:
                chosen.append(name)
                if len(chosen) == most:
                    break
        for name in visited:
            del self._changed[name]
        self._taken.update(chosen)
        return chosen

    def take_failing(self, now_s: float, every_s: float) -> list[PortName]:
        """The due ports of the next node with a failing port."""
        for node in self._failing:
            chosen = [name for name in self._by_node[node] if self._is_due(name, now_s, every_s)]
            if chosen:
                self._failing[node] = self._failing.pop(node)
                self._taken.update(chosen)
                return chosen
        return []

    def _is_due(self, name: PortName, now_s: float, every_s: float) -> bool:
        if name not in self._present or name in self._taken:
            return False
        port = self.ports[name]
        if name in self._unprogrammed:
            return port.retry_s <= now_s
        return port.checked_s <= now_s - every_s

    def take_to_check(self, now_s: float, every_s: float, most: int) -> list[PortName]:
        """The next programmed ports that were not read for `every_s`."""
        if not self._to_check and now_s >= self._next_scan_s:
            due = [n for n, p in self.ports.items() if p.checked_s <= now_s - every_s]
            self._to_check, self._next_scan_s = due[::-1], now_s + _SCAN_S
        chosen: list[PortName] = []
        while self._to_check and len(chosen) < most:
            name = self._to_check.pop()
            if self._is_checkable(name):
                chosen.append(name)
        self._taken.update(chosen)
        return chosen

    def _is_checkable(self, name: PortName) -> bool:
        is_programmed = name in self._present and name not in self._unprogrammed
        return is_programmed and name not in self._taken and name.node not in self._failing

    def give_back(self, names: Iterable[PortName]) -> None:
        """Ends what `take_...` began."""
        self._taken.difference_update(names)

    def begin_write(self, names: Iterable[PortName]) -> dict[PortName, Tables]:
        """Targets of those that hold something else or were never read.

        Their content is unknown until it is recorded: what they had may become the target again
        while they are written.
        """
        targets = {}
        for name in names:
            port = self.ports[name]
            if name in self._present and port.status == "pending":
                targets[name] = port.target
                port.content = None
        return targets

    # ---- What drivers answered ----------------------------------------------------------------

    def record(
        self, contents: Mapping[PortName, Content], names: Collection[PortName], now_s: float
    ) -> list[Drift]:
        """Records what was read of ports, or why not. Returns drift found or repaired."""
        drifts = []
        for name in names:
            content = contents.get(name, Failed("the driver did not answer for it"))
            if name not in self._present:
                continue
            if isinstance(content, Failed):
                self._record_failure(name, content.problem, now_s)
            else:
                drifts += self._record_content(name, content, now_s)
        return drifts

    def _record_content(
        self, name: PortName, content: Tables | Foreign, now_s: float
    ) -> list[Drift]:
        port = self.ports[name]
        was_programmed = port.status == "programmed"
        port.content, port.checked_s, port.problem = content, now_s, ""
        self._update_status(name, port)
        if name in self._unprogrammed:
            self._changed[name] = None
        self._mark_answering(name)
        if name.node in self._lost_s:
            self._back[name.node] = now_s - self._lost_s.pop(name.node)
        if (name not in self._unprogrammed) == was_programmed:
            return []
        port.since_s = now_s
        if was_programmed:
            self.drifts += 1
            port.drifts_s = (*port.drifts_s, now_s)[-CONTESTED_DRIFTS:]
            if len(port.drifts_s) == CONTESTED_DRIFTS:
                self._drifters.add(name)
            port.drift = Drift(port=name, content=content, target=port.target, at_s=now_s)
            return [port.drift]
        # Only now: a port that can be read but not written is retried ever later as well.
        port.failures, port.retry_s = 0, 0.0
        if port.failed_s is not None:
            self._recovered[name] = now_s - port.failed_s
            port.failed_s = None
        if port.requested_s is not None:
            self._programming_s.append(now_s - port.requested_s)
            port.requested_s = None
        drift, port.drift = port.drift, None
        return [] if drift is None else [replace(drift, took_s=now_s - drift.at_s)]

    def _record_failure(self, name: PortName, problem: str, now_s: float) -> None:
        port = self.ports[name]
        if port.status == "programmed":
            port.since_s = now_s
        if port.failed_s is None:
            port.failed_s = now_s
            self._failed[name] = problem
        self.failures += 1
        port.failures += 1
        port.problem, port.content = problem, None
        port.retry_s = now_s + retry_delay_s(port.failures)
        self._unprogrammed.add(name)
        failing = self._failing.setdefault(name.node, set())
        failing.add(name)
        is_lost = all(n in failing for n in self._by_node[name.node] if n in self._present)
        if is_lost and name.node not in self._lost_s:
            self._lost_s[name.node] = now_s
            self._lost[name.node] = problem

    def _mark_answering(self, name: PortName) -> None:
        """The port answers. With its node's last failing port, the node is handled as usual."""
        failing = self._failing.get(name.node)
        if failing is None or name not in failing:
            return
        failing.discard(name)
        if not failing:
            del self._failing[name.node]
            ports = [port for port in self._by_node[name.node] if port in self._unprogrammed]
            self._changed.update(dict.fromkeys(ports))

    # ---- Reports ------------------------------------------------------------------------------

    def take_transitions(self) -> Transitions:
        """What changed since this was last called."""
        transitions = Transitions(self._failed, self._recovered, self._lost, self._back)
        self._failed, self._recovered, self._lost, self._back = {}, {}, {}, {}
        return transitions

    def take_programming_s(self) -> list[float]:
        """How long ports took from a request to what was read back."""
        durations, self._programming_s = self._programming_s, []
        return durations

    def find_unprogrammed(self, names: Iterable[PortName]) -> dict[PortName, str]:
        """Which of these ports are not programmed, with the reason."""
        ports = {name: self.ports[name] for name in names if name in self.ports}
        return {
            name: port.problem or "not yet programmed"
            for name, port in ports.items()
            if port.status != "programmed"
        }

    def find_contested(self, since_s: float) -> list[PortName]:
        """Ports that somebody else has changed again and again since then."""
        return [name for name in sorted(self._drifters) if self.ports[name].drifts_s[0] >= since_s]

    def report(self, now_s: float, *, with_ports: bool) -> Report:
        """All ports of the fabric."""
        failing = {n: self.ports[n].problem for ports in self._failing.values() for n in ports}
        listed = (name for name in self.ports if name in self._present) if with_ports else ()
        revisions = (self.ports[name].revision - 1 for name in self._unprogrammed)
        counts = PortCounts(
            programmed=min([self.revision, *revisions]),
            ports=len(self._present),
            ports_pending=len(self._unprogrammed) - len(failing),
            ports_failing=len(failing),
            drifts=self.drifts,
        )
        by_port = {name: _report_port(self.ports[name], now_s) for name in listed}
        return Report(counts=counts, failing=failing, by_port=by_port)


def _report_port(port: _Port, now_s: float) -> PortReport:
    return PortReport(status=port.status, problem=port.problem, for_s=now_s - port.since_s)
