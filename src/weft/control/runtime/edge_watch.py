"""Polices the edge of the fabric: admits the levels of registered connections, reports the rest.

The rules follow from the state: a host may use a level towards another host while a registration
of that level has a connection between them. The driver rewrites other marks or detects them; what
it reports is logged, and stands among the controller's problems while it lasts. Bytes that were
sent just before a connection was admitted, or that drain after its end, are no violation. The
explorer's thread calls `turn`. Connections are counted as they come and go (`Admissions`). Only a
new fabric or new levels count them all again, which takes time, so it is done at most a tenth of
the time.
Entry points: `EdgeWatch`, `Admissions`. Units: seconds, bytes.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from weft.control.runtime.audit import LogLine
from weft.control.state.events import Connection, ConnectionRow, Row
from weft.control.state.managed_paths import Paths
from weft.control.state.state import State
from weft.errors import InputError, WeftError
from weft.switches import EdgePort, EdgeReport, EdgeRules, PortName, Switches, Violation
from weft.units import format_value

LOOK_S = 1.0  # between looks at what was rewritten
LASTS_S = 10.0  # how long a violation stands after the last look that saw it
DRAIN_S = 30.0  # how long sockets may go on sending after the end of their connection
_MOST_PROBLEMS = 20
_PART = 0.1  # of the time at most, for building rules, and for looking


class _Case(NamedTuple):
    """Who violates which rule."""

    host: str
    destination: str
    level: int
    is_lane: bool
    is_rewritten: bool


_Mark = tuple[PortName, str, int]  # where packets enter, their destination and level


class EdgeWatch:
    """Begins with a state; `follow` gives it each later one."""

    def __init__(
        self, state: State, *, clock: Callable[[], float], log: Callable[[str], None]
    ) -> None:
        self._clock, self._log = clock, log
        self._admissions: Admissions | None = None
        self._rules: EdgeRules | None = None
        self._build_s = self._look_s = clock()
        self._problems: tuple[str, ...] = ()
        self._unchecked: tuple[str, ...] = ()
        self._draining: OrderedDict[_Mark, float] = OrderedDict()  # until when, the next first
        self._lock = threading.Lock()  # guards what is below
        self._state = state
        self._changed: set[str] = set()  # connections that differ from what is counted
        self._seen: dict[_Case, tuple[float, int]] = {}  # until when it stands, and bytes so far

    def follow(self, state: State, rows: Iterable[Row]) -> bool:
        """From the engine's thread: a state, and its new rows. Whether connections have changed."""
        changed = [row.id for row in rows if type(row) is ConnectionRow]
        with self._lock:
            self._state = state
            self._changed.update(changed)
        return bool(changed)

    def turn(self, driver: Switches) -> None:
        """Sends new rules, or looks what was rewritten, if that is due."""
        is_new = self._refresh_rules()
        if self._rules is None or not (is_new or self._clock() >= self._look_s):
            return
        started_s = self._clock()
        try:
            report = driver.police(self._rules)
        except (WeftError, OSError) as error:
            report = EdgeReport(problems=(str(error),))
        now_s = self._clock()
        self._look_s = max(started_s + LOOK_S, now_s + (now_s - started_s) * (1 - _PART) / _PART)
        self._note_problems(report)
        self._note_violations(self._drop_transient(report.violations))

    def list_problems(self) -> list[str]:
        """From any thread: violations that last."""
        now_s = self._clock()
        with self._lock:
            lasting = [(case, n) for case, (until_s, n) in self._seen.items() if until_s > now_s]
        return [_describe(case, count) for case, count in lasting[:_MOST_PROBLEMS]]

    def _refresh_rules(self) -> bool:
        """Whether there are new ones."""
        if self._clock() < self._build_s:
            return False
        with self._lock:
            state, changed, self._changed = self._state, self._changed, set()
        started_s = self._clock()
        before = self._admissions
        if before is None or not before.is_of(state):
            self._admissions = None if state.paths is None else Admissions(state, before)
        elif not changed or not before.count_changes(state, changed):
            return False
        self._build_s = self._clock() + (self._clock() - started_s) * (1 - _PART) / _PART
        rules = None if self._admissions is None else self._admissions.build_rules()
        is_new = self._admissions is before or rules != self._rules
        if self._admissions is not None:
            self._note_draining(self._admissions.take_ended())
        self._rules = rules
        return is_new

    def _note_draining(self, marks: Iterable[_Mark]) -> None:
        now_s, draining = self._clock(), self._draining
        for mark in marks:
            draining[mark] = now_s + DRAIN_S
            draining.move_to_end(mark)
        while draining and next(iter(draining.values())) <= now_s:
            draining.popitem(last=False)

    def _drop_transient(self, violations: Collection[Violation]) -> list[Violation]:
        """Without marks that are admitted by now or were until recently; a lane's budget stays."""
        if not violations or self._rules is None:
            return []
        now_s, ports = self._clock(), {violation.port for violation in violations}
        tolerated = {mark for mark, until_s in self._draining.items() if until_s > now_s}
        for port in ports & self._rules.ports.keys():
            tolerated |= {(port, *mark) for mark in self._rules.ports[port].admitted}
        # A driver that cannot tell the destination leaves it empty.
        tolerated |= {(port, "", level) for port, _, level in tolerated}
        return [
            v for v in violations if v.is_lane or (v.port, v.destination, v.level) not in tolerated
        ]

    def _note_problems(self, report: EdgeReport) -> None:
        """Logs each change once."""
        for noun, problems, last in (
            ("are not guarded", report.problems, self._problems),
            ("cannot be checked", report.unchecked, self._unchecked),
        ):
            for problem in problems[:1] if problems != last else ():
                more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
                self._log(LogLine(f"marks {noun}: {problem}{more}", "warning"))
        self._problems, self._unchecked = report.problems, report.unchecked

    def _note_violations(self, violations: Iterable[Violation]) -> None:
        now_s = self._clock()
        fresh: dict[_Case, int] = {}
        with self._lock:
            self._seen = {case: (s, n) for case, (s, n) in self._seen.items() if s > now_s}
            for violation in violations:
                case = _Case(
                    violation.host,
                    violation.destination,
                    violation.level,
                    violation.is_lane,
                    violation.is_rewritten,
                )
                if case not in self._seen:
                    fresh[case] = violation.bytes
                _, count = self._seen.get(case, (0.0, 0))
                self._seen[case] = now_s + LASTS_S, count + violation.bytes
        for case, count in list(fresh.items())[:_MOST_PROBLEMS]:
            self._log(LogLine(_describe(case, count), "warning", case._asdict()))
        if len(fresh) > _MOST_PROBLEMS:
            more = len(fresh) - _MOST_PROBLEMS
            self._log(LogLine(f"marks: {more} more pairs of hosts break the rules", "warning"))


def _describe(case: _Case, count: int) -> str:
    to = f" to {case.destination}" if case.destination else ""
    why = "beyond its budget of the latency lane" if case.is_lane else "without a registration"
    fate = "rewritten to level 0" if case.is_rewritten else "which cannot be prevented here"
    size = format_value(count, "B")
    return f"marks: {case.host} sends level {case.level}{to} {why}: {size}, {fate}"


# ---- Rules --------------------------------------------------------------------------------------


class Admissions:
    """How many connections of a state admit each level from one host to another."""

    def __init__(self, state: State, before: Admissions | None = None) -> None:
        assert state.paths is not None, "the edge belongs to a fabric"
        self._state, self._paths = state, state.paths
        self._node_of: dict[str, int | None] = {}  # by the names that connections use
        self._counts: dict[int, dict[tuple[str, int], int]] = {}  # by source
        for connection in state.connections.values():
            self._shift(state, connection, 1)
        self._addresses = _list_addresses(self._paths.aliases)
        self._lane_bps = _list_edge_ports(state, self._paths)
        self._ports: dict[PortName, EdgePort] = {} if before is None else before._ports
        self._ended: list[_Mark] = []
        self._admit(self._lane_bps)
        present = {port for ports in self._lane_bps.values() for port in ports}
        self._ports = {port: edge for port, edge in self._ports.items() if port in present}

    def is_of(self, state: State) -> bool:
        """Whether the state has the same fabric and levels, so that only connections differ."""
        return state.paths is self._paths and state.levels is self._state.levels

    def count_changes(self, state: State, connections: Iterable[str]) -> bool:
        """Counts these connections as the state has them; whether that admits more or less."""
        changed: set[int | None] = set()
        before, after = self._state.connections, state.connections
        for id_ in connections:
            old, new = before.get(id_), after.get(id_)
            if old is not new:
                changed.add(self._shift(self._state, old, -1))
                changed.add(self._shift(state, new, 1))
        changed.discard(None)
        self._state = state
        self._admit(self._lane_bps.keys() & changed)
        return bool(changed)

    def build_rules(self) -> EdgeRules:
        settings = self._state.settings
        return EdgeRules(
            levels=settings.levels,
            lane=settings.lane_level,
            ports=dict(self._ports),
            addresses=self._addresses,
        )

    def take_ended(self) -> list[_Mark]:
        """Marks that are no longer admitted, since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _shift(self, state: State, connection: Connection | None, by: int) -> int | None:
        """Counts a connection (-1: no more); its source, if that may send other marks now."""
        if connection is None:
            return None
        source = self._find_node(connection.source)
        destination = self._find_node(connection.destination)
        if source is None or destination is None:
            return None
        level = state.level_of(state.applications[connection.application].name)
        counts = self._counts.setdefault(source, {})
        mark = self._paths.fabric.nodes[destination].name, level
        before = counts.get(mark, 0)
        if before + by:
            counts[mark] = before + by
        else:
            del counts[mark]
        return None if before and before + by else source

    def _find_node(self, name: str) -> int | None:
        """None for a host that is not in the fabric."""
        if name not in self._node_of:
            try:
                self._node_of[name] = self._paths.host(name)
            except InputError:
                self._node_of[name] = None
        return self._node_of[name]

    def _admit(self, hosts: Iterable[int]) -> None:
        """Makes the ports of these hosts admit what is counted."""
        for host in hosts:
            admitted = frozenset(self._counts.get(host, ()))
            name = self._paths.fabric.nodes[host].name
            for port, lane_bps in self._lane_bps[host].items():
                if port in self._ports:
                    ended = self._ports[port].admitted - admitted
                    self._ended += [(port, destination, level) for destination, level in ended]
                self._ports[port] = EdgePort(host=name, admitted=admitted, lane_bps=lane_bps)


def _list_edge_ports(state: State, paths: Paths) -> dict[int, dict[PortName, int]]:
    """The managed ports of switches that lead to each host, with a flow's budget of the lane."""
    fabric, lane = paths.fabric, state.settings.lane
    rate_of = {end: link.rate_bps for link in fabric.links for end in (link.a, link.b)}
    ports: dict[int, dict[PortName, int]] = {host: {} for host in fabric.hosts}
    for host in fabric.hosts:
        for end in fabric.neighbors(host).values():
            is_managed = not state.settings.group or paths.name(end) in state.policies
            if fabric.nodes[end.node].kind == "switch" and is_managed:
                share = 0 if lane is None else lane.flow_share
                ports[host][paths.name(end)] = round(share * rate_of[end])
    return ports


def _list_addresses(aliases: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The aliases of hosts that are network addresses."""
    addresses: dict[str, tuple[str, ...]] = {}
    for alias, host in aliases.items():
        try:
            address = str(ipaddress.ip_address(alias))
        except ValueError:
            continue  # a name
        addresses[host] = (*addresses.get(host, ()), address)
    return addresses
