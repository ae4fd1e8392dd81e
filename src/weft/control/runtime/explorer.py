"""The thread that discovers the fabric, retries failing nodes and polices the fabric's edge.

The fabric is discovered at intervals, and sooner when ports fail or a client names an unknown host.
Links and routes are watched in between: when one changes, the fabric is discovered at once, and
each second until it has settled. Agents of switches that end or are back are logged.
A discovery that lacks something may have seen only a part: it counts when the next one confirms it.
Unreachable switches are retried; if no port answers either, the drivers are opened again.
Discoveries and nodes that do not answer can take seconds, so this thread has a driver of its own.
`weft.control.runtime.edge_watch` polices the edge by the same driver.
Entry points: `Explorer.run` (a thread's body), `Explorer.turn`, `Explorer.request_discovery`.
Units: seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from math import inf

from weft.control.runtime.audit import LogLine
from weft.control.runtime.drivers import SwitchDrivers
from weft.control.runtime.edge_watch import EdgeWatch
from weft.control.runtime.port_tracker import LONGEST_RETRY_S, retry_delay_s
from weft.control.runtime.reconcile import Pace, Reconciler
from weft.control.state.events import FabricChanged
from weft.errors import WeftError
from weft.fabric import Fabric
from weft.switches import Ability, PortName, Switches, Taken
from weft.units import format_count

CONFIRM_S = 2.0
CONFIRM_CHANGE_S = 0.5  # where a link or route was seen to change
SETTLE_S = 10.0  # after such a change: the subnet manager is at work
_SETTLE_STEP_S = 1.0
_WATCH_PART = 0.4  # of the time at most, for watching
_IDLE_S = 0.1
# After a turn it rests so many times the turn's processor time, at most so long: of many new
# connections, one turn admits all that come meanwhile, and a single one is admitted at once.
_REST, _LONGEST_REST_S = 50, 0.1
_SOON_S = 2.0  # to a requested discovery; twice as long each time that it finds nothing new
_TABLES_STAY = "its tables stay in the kernel"
_RULES_STAY = "its rules stay in the kernel, violations are not reported until it is back"
_TRIES = 2  # discoveries that fail before the drivers are opened again


class Explorer:
    """`offer` submits a fabric that differs from the last one; it returns whether it was taken."""

    def __init__(
        self,
        reconciler: Reconciler,
        drivers: SwitchDrivers,
        *,
        clock: Callable[[], float],
        offer: Callable[[FabricChanged], bool],
        log: Callable[[str], None],
        pace: Pace | None = None,
        aliases: Mapping[str, str] | None = None,
        report_fenced: Callable[[str], None] = lambda _: None,
        edge: EdgeWatch | None = None,
        manages: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._report_fenced, self._manages = report_fenced, manages
        self._reconciler, self._drivers, self._clock = reconciler, drivers, clock
        self._offer, self._log = offer, log
        self._pace, self._aliases = pace or Pace(), dict(aliases or {})
        self._edge = edge
        self._fabric: FabricChanged | None = None
        self._unconfirmed: FabricChanged | None = None
        self._lock = threading.Lock()  # guards what `request_discovery` changes
        self._due_s = self._discovered_s = clock()
        self._watch_s = clock()
        self._settle_s = -inf  # until when the fabric may go on changing
        self._is_requested = False
        self._fruitless = 0  # requested discoveries in a row that found nothing new
        self._failures = 0  # failed discoveries in a row
        self._failing_since_s = 0.0
        self._port_failures = 0
        self._ended: dict[str, float] = {}  # agents that ended, by node: when
        self._woken = threading.Event()
        self._ending = threading.Event()

    def run(self) -> None:
        """Runs until `stop`."""
        while not self._ending.is_set():
            started_s = time.thread_time()
            has_retried = self.turn()
            took_s = time.thread_time() - started_s
            if not has_retried:
                self._ending.wait(min(_REST * took_s, _LONGEST_REST_S))
                self._woken.wait(_IDLE_S)
                self._woken.clear()

    def stop(self) -> None:
        """From any thread."""
        self._ending.set()
        self._woken.set()

    def wake(self) -> None:
        """From any thread: there are new connections, which the edge is to admit."""
        self._woken.set()

    def request_discovery(self) -> None:
        """From any thread: something is missing that a discovery may find."""
        with self._lock:
            self._is_requested = True
            if not self._failures:
                self._due_s = min(self._due_s, self._soon_s)

    @property
    def _soon_s(self) -> float:
        return self._discovered_s + _SOON_S * 2.0 ** min(self._fruitless, 30)

    def turn(self) -> bool:
        """Discovers if it is due, retries a failing node; whether there was such a node."""
        if self._reconciler.failures > self._port_failures:
            self._port_failures = self._reconciler.failures
            self.request_discovery()
        if self._drivers.is_lent and self._clock() >= self._watch_s:
            self._watch()
        if self._clock() >= self._due_s:
            self._discover()
        if not self._drivers.is_lent:
            return False
        scout = self._drivers.scout()
        self._note_agents(scout)
        if self._edge is not None:
            self._edge.turn(scout)
        return self._reconciler.retry_failing(scout)

    def _note_agents(self, scout: Switches) -> None:
        """Logs agents that have ended or are back."""
        for node, has_ended, at_s in scout.take_agent_events():
            if has_ended and node not in self._ended:
                self._ended[node] = at_s
                stays = _TABLES_STAY if self._edge is None else _RULES_STAY
                self._log(LogLine(f"lost: agent of {node} ended; {stays}", "warning"))
            elif not has_ended and node in self._ended:
                took_s = at_s - self._ended.pop(node)
                self._log(f"back: agent of {node}, after {took_s:.1f} s")

    # ---- Discovery ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Discovers at once if a link or route has changed."""
        started_s = self._clock()
        try:
            has_changed = self._drivers.scout().has_changed()
        except (WeftError, OSError) as error:
            has_changed = False  # the next discovery says why
            if isinstance(error, Taken):
                self._report_fenced(str(error))
        now_s = self._clock()
        rest_s = (now_s - started_s) * (1 - _WATCH_PART) / _WATCH_PART
        self._watch_s = now_s + max(self._pace.watch_s, rest_s)
        if has_changed:
            self._settle_s = now_s + SETTLE_S
            with self._lock:
                self._due_s = now_s

    def _discover(self) -> None:
        with self._lock:
            was_requested, self._is_requested = self._is_requested, False
        try:
            event = self._read_fabric(self._drivers.scout())
        except (WeftError, OSError) as error:
            self._record_failure(error)
            return
        self._failures = 0
        if not self._drivers.cancel_recall():
            self._drivers.close()  # the next turn opens them again
            return
        self._set_problem("")
        self._schedule_next(is_fruitless=was_requested and event == self._fabric)
        if event == self._fabric:
            self._unconfirmed = None
            if not self._drivers.is_lent:
                self._lend(event)
        elif self._is_confirmed(event):
            self._accept(event)

    def _read_fabric(self, switches: Switches) -> FabricChanged:
        try:
            fabric = switches.discover()
        finally:
            self._note_agents(switches)
        names = [
            PortName(node.name, port)
            for number, node in enumerate(fabric.nodes)
            for port in fabric.neighbors(number)
            if self._manages(node.name)
        ]
        answers = switches.abilities(names)
        # A port that does not answer now can still do what it could.
        abilities = {} if self._fabric is None else dict(self._fabric.abilities)
        abilities |= {n: answer for n, answer in answers.items() if isinstance(answer, Ability)}
        return FabricChanged(
            fabric=fabric,
            abilities={name: abilities[name] for name in names if name in abilities},
            aliases={**switches.addresses, **self._aliases},
        )

    def _record_failure(self, error: Exception) -> None:
        if isinstance(error, Taken):
            self._report_fenced(str(error))
        now_s = self._clock()
        if not self._failures:
            self._failing_since_s = now_s
        self._failures += 1
        self._due_s = now_s + retry_delay_s(self._failures + 3)
        self._set_problem(f"switches cannot be reached, trying again: {error}")
        if self._failures >= _TRIES and self._has_drivers_back():
            self._drivers.close()

    def _has_drivers_back(self) -> bool:
        """Whether nobody else uses the drivers. A reconciler whose ports answer keeps its own."""
        if not self._drivers.is_lent:
            return True
        if self._reconciler.answered_s >= self._failing_since_s:
            self._drivers.cancel_recall()
            return False
        is_returned = self._drivers.recall()
        self._reconciler.wake()
        return is_returned

    def _schedule_next(self, *, is_fruitless: bool) -> None:
        with self._lock:
            self._fruitless = self._fruitless + 1 if is_fruitless else 0
            self._discovered_s = self._clock()
            next_s = self._discovered_s + self._pace.topology_s
            if self._discovered_s < self._settle_s:
                next_s = min(next_s, self._discovered_s + _SETTLE_STEP_S)
            self._due_s = min(next_s, self._soon_s) if self._is_requested else next_s

    def _is_confirmed(self, event: FabricChanged) -> bool:
        """Whether it lacks nothing that was there, or a second discovery agrees."""
        losses = self._describe_losses(event)
        if not losses or event == self._unconfirmed:
            self._unconfirmed = None
            return True
        self._unconfirmed = event
        now_s = self._clock()
        self._due_s = now_s + (CONFIRM_CHANGE_S if now_s < self._settle_s else CONFIRM_S)
        self._log(LogLine(f"fabric {event.fabric.name}: {losses}; looking again", "warning"))
        return False

    def _describe_losses(self, event: FabricChanged) -> str:
        last = self._fabric
        expected = self._reconciler.tracked_ports if last is None else last.abilities.keys()
        missing = expected - event.abilities.keys()
        if missing:
            return f"missing: {format_count(len(missing), 'port')}, such as {min(missing)}"
        if last is not None and _count_unrouted(event.fabric) > _count_unrouted(last.fabric):
            return "routes are missing"
        return _describe_unanswered(self._drivers.scout())

    def _accept(self, event: FabricChanged) -> None:
        if not self._offer(event):
            self._due_s = self._clock() + LONGEST_RETRY_S / 10
            return
        self._fabric = event
        self._lend(event)
        fabric = event.fabric
        hosts, switches = (
            format_count(len(fabric.hosts), "host"),
            format_count(len(fabric.switches), "switch"),
        )
        ports = format_count(len(event.abilities), "port")
        self._log(f"fabric {fabric.name}: {hosts}, {switches}, {ports}")
        scout = self._drivers.scout()
        for remark in (*scout.notes, _describe_unanswered(scout)):
            if remark:
                self._log(remark)

    def _lend(self, event: FabricChanged) -> None:
        self._drivers.lend(event.abilities.keys())
        self._reconciler.wake()

    def _set_problem(self, problem: str) -> None:
        """Logs each change once."""
        if self._reconciler.problem != problem:
            self._reconciler.problem = problem
            self._log(LogLine(problem, "error") if problem else "switches are reached")


def _describe_unanswered(switches: Switches) -> str:
    count = len(switches.unanswered)
    return f"behind {format_count(count, 'port')}: nodes that do not answer" if count else ""


def _count_unrouted(fabric: Fabric) -> int:
    """Pairs of a switch and a host to which it has no route."""
    if fabric.routes is None:
        return len(fabric.switches) * len(fabric.hosts)
    return int((fabric.routes.next_hop < 0).sum())
