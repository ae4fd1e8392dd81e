"""Polices the edge of the fabric: admits the levels of registered connections, reports the rest.

The rules follow from the state: a host may use a level towards another host while a registration
of that level has a connection between them. The driver rewrites other marks or detects them; what
it reports is logged, and stands among the controller's problems while it lasts. The explorer's
thread calls `turn`. Building the rules of many connections takes time, so it is done at most a
tenth of the time. Entry points: `EdgeWatch`, `build_rules` (pure). Units: seconds, bytes.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from weft.control.runtime.audit import LogLine
from weft.control.state.state import State
from weft.errors import InputError, WeftError
from weft.switches import EdgePort, EdgeReport, EdgeRules, PortName, Switches, Violation
from weft.units import format_value

LOOK_S = 1.0  # between looks at what was rewritten
LASTS_S = 10.0  # how long a violation stands after the last look that saw it
_MOST_PROBLEMS = 20
_PART = 0.1  # of the time at most, for building rules, and for looking


class _Case(NamedTuple):
    """Who violates which rule."""

    host: str
    destination: str
    level: int
    is_lane: bool
    is_rewritten: bool


class EdgeWatch:
    """`read_state` gives the engine's current state."""

    def __init__(
        self,
        read_state: Callable[[], State],
        *,
        clock: Callable[[], float],
        log: Callable[[str], None],
    ) -> None:
        self._read_state, self._clock, self._log = read_state, clock, log
        self._rules: EdgeRules | None = None
        self._basis: tuple[object, ...] = ()  # what the rules follow from
        self._build_s = self._look_s = clock()
        self._problems: tuple[str, ...] = ()
        self._lock = threading.Lock()  # guards what is below
        self._seen: dict[_Case, tuple[float, int]] = {}  # until when it stands, and bytes so far

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
        self._note_problems(report.problems)
        self._note_violations(report.violations)

    def list_problems(self) -> list[str]:
        """From any thread: violations that last."""
        now_s = self._clock()
        with self._lock:
            lasting = [(case, n) for case, (until_s, n) in self._seen.items() if until_s > now_s]
        return [_describe(case, count) for case, count in lasting[:_MOST_PROBLEMS]]

    def _refresh_rules(self) -> bool:
        state = self._read_state()
        basis = (state.connections, state.paths)
        is_same = len(self._basis) == 2 and all(map(_is_identical, basis, self._basis))
        if is_same or self._clock() < self._build_s:
            return False
        started_s = self._clock()
        rules = build_rules(state)
        took_s = self._clock() - started_s
        self._build_s = self._clock() + took_s * (1 - _PART) / _PART
        self._basis, is_new = basis, rules != self._rules
        self._rules = rules
        return is_new

    def _note_problems(self, problems: tuple[str, ...]) -> None:
        """Logs each change once."""
        for problem in problems[:1] if problems != self._problems else ():
            more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
            self._log(LogLine(f"marks are not guarded: {problem}{more}", "warning"))
        self._problems = problems

    def _note_violations(self, violations: tuple[Violation, ...]) -> None:
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


def _is_identical(a: object, b: object) -> bool:
    return a is b


def _describe(case: _Case, count: int) -> str:
    to = f" to {case.destination}" if case.destination else ""
    why = "beyond its budget of the latency lane" if case.is_lane else "without a registration"
    fate = "rewritten to level 0" if case.is_rewritten else "which cannot be prevented here"
    size = format_value(count, "B")
    return f"marks: {case.host} sends level {case.level}{to} {why}: {size}, {fate}"


# ---- Rules --------------------------------------------------------------------------------------


def build_rules(state: State) -> EdgeRules | None:
    """None while no fabric is known."""
    paths, lane = state.paths, state.settings.lane
    if paths is None:
        return None
    fabric = paths.fabric
    admitted = _list_admitted(state)
    rate_of = {end: link.rate_bps for link in fabric.links for end in (link.a, link.b)}
    ports: dict[PortName, EdgePort] = {}
    for host in fabric.hosts:
        for end in fabric.neighbors(host).values():
            is_managed = not state.settings.group or paths.name(end) in state.policies
            if fabric.nodes[end.node].kind == "switch" and is_managed:
                ports[paths.name(end)] = EdgePort(
                    host=fabric.nodes[host].name,
                    admitted=frozenset(admitted.get(host, ())),
                    lane_bps=0 if lane is None else round(lane.flow_share * rate_of[end]),
                )
    return EdgeRules(
        levels=state.settings.levels,
        lane=state.settings.lane_level,
        ports=ports,
        addresses=_list_addresses(paths.aliases),
    )


def _list_admitted(state: State) -> Mapping[int, set[tuple[str, int]]]:
    """Destinations and levels by source: of all connections whose hosts are in the fabric."""
    paths, levels = state.paths, {}
    assert paths is not None, "checked before"
    admitted: dict[int, set[tuple[str, int]]] = {}
    node_of: dict[str, int | None] = {}

    def find_node(name: str) -> int | None:
        if name not in node_of:
            try:
                node_of[name] = paths.host(name)
            except InputError:
                node_of[name] = None
        return node_of[name]

    for connection in state.connections.values():
        name = state.applications[connection.application].name
        if name not in levels:
            levels[name] = state.level_of(name)
        source, destination = find_node(connection.source), find_node(connection.destination)
        if source is not None and destination is not None:
            to = paths.fabric.nodes[destination].name
            admitted.setdefault(source, set()).add((to, levels[name]))
    return admitted


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
