"""The thread that brings ports to their targets and keeps them there.

Level-triggered: a port is written because it differs from its target, whatever the cause. All ports
are read in turn, so that drift is found and repaired. A turn handles a few ports, new targets
first. Nodes with a failing port are left to the explorer's thread (`retry_failing`), so that they
delay no others. `weft.control.runtime.port_tracker` says which ports are due.
Entry points: `Reconciler.set_targets`, `Reconciler.run` (a thread's body), `Reconciler.turn`,
`Reconciler.report`. Units: seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from weft.control.runtime.audit import LogLine
from weft.control.runtime.drivers import SwitchDrivers
from weft.control.runtime.port_tracker import (
    CONTESTED_DRIFTS,
    Content,
    Drift,
    PortTracker,
    Report,
    Transitions,
)
from weft.errors import WeftError
from weft.switches import Failed, Fenced, Foreign, PortName, PortProgrammer, Tables
from weft.units import format_count

_IDLE_S = 0.25
_REST_S = 0.005  # at most, after a turn
_NODE_LINES = 20  # of the log, for one turn
_QUEUES = 4  # of one port, in a line of the log
_CONTESTED_S, _CONTESTED_CHECKS = 300.0, 10  # the while in which repeated drift counts

_Contents = Mapping[PortName, Content]
_Ports = TypeVar("_Ports", bound=Collection[PortName])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often all ports are read, the fabric is discovered and watched for changes, and ports
    handled at once.

    A new target waits for at most one check. Writes are larger: a whole fabric is done sooner.
    """

    check_s: float = 10.0
    topology_s: float = 60.0
    watch_s: float = 1.0
    ports_per_check: int = 64
    ports_per_write: int = 1024


class Reconciler:
    """Does nothing until the explorer lends it a driver and the ports of a fabric.

    `report_fenced` is called when a switch refuses writes: another controller has it. `may_write`
    is asked before each write.
    `observe_programming` gets how long each port took from a request to what was read back.
    `counts_sent`: what queues have sent is read with each check.
    """

    def __init__(
        self,
        drivers: SwitchDrivers,
        *,
        clock: Callable[[], float],
        log: Callable[[str], None],
        pace: Pace | None = None,
        report_fenced: Callable[[str], None] = lambda _: None,
        may_write: Callable[[], bool] = lambda: True,
        observe_programming: Callable[[float], None] = lambda _: None,
        counts_sent: bool = False,
    ) -> None:
        self._observe_programming, self._counts_sent = observe_programming, counts_sent
        self.sent: Mapping[PortName, tuple[int, ...]] = {}  # bytes of each queue, as last read
        self._drivers, self._clock, self._log, self._pace = drivers, clock, log, pace or Pace()
        self._report_fenced, self._may_write = report_fenced, may_write
        self.problem = "the switches have not been read yet"  # with the switches as a whole
        self._changed = threading.Condition()  # guards the tracker and what is below
        self._tracker = PortTracker()
        self._requests = 0  # how often there was something new to do
        self._answered_s = clock()
        self._contested = ""  # as last logged
        self._end = threading.Event()

    # ---- From other threads -------------------------------------------------------------------

    def set_targets(
        self, tables: Mapping[PortName, Tables], revision: int, requested_s: float | None = None
    ) -> None:
        """These ports are to have these tables from now on; they were requested then."""
        with self._changed:
            self._tracker.set_targets(tables, revision, self._clock(), requested_s)
            self._wake()

    def wake(self) -> None:
        """There is something new to do: the driver was lent or recalled."""
        with self._changed:
            self._wake()

    def stop(self) -> None:
        with self._changed:
            self._end.set()
            self._wake()

    def _wake(self) -> None:
        self._requests += 1
        self._changed.notify_all()

    @property
    def answered_s(self) -> float:
        """When a port last answered."""
        with self._changed:
            return self._answered_s

    @property
    def tracked_ports(self) -> frozenset[PortName]:
        """Ports that ever had a target."""
        with self._changed:
            return frozenset(self._tracker.ports)

    @property
    def fabric_ports(self) -> Set[PortName]:
        """The ports of the fabric."""
        return self._tracker.fabric_ports

    @property
    def failures(self) -> int:
        """Failed reads and writes since the start."""
        return self._tracker.failures

    def report(self, *, with_ports: bool = False) -> Report:
        with self._changed:
            return self._tracker.report(self._clock(), with_ports=with_ports)

    def find_unprogrammed(self, names: Iterable[PortName]) -> dict[PortName, str]:
        """Which of these ports are not programmed, with the reason."""
        with self._changed:
            return self._tracker.find_unprogrammed(names)

    def describe_contested(self) -> str:
        """Which ports somebody else writes, too; "" where nobody does."""
        within_s = max(_CONTESTED_S, _CONTESTED_CHECKS * self._pace.check_s)
        with self._changed:
            ports = self._tracker.find_contested(self._clock() - within_s)
        if not ports:
            return ""
        return (
            f"{ports[0]}{_format_more(ports)}: changed by somebody else {CONTESTED_DRIFTS} times "
            f"within {within_s:g} s; end the other controller, script or subnet manager with qos"
        )

    # ---- The thread ---------------------------------------------------------------------------

    def run(self) -> None:
        """Runs until `stop`.

        It rests after each turn, as long as the turn took: requests that come meanwhile often
        change the same ports, which are then written once.
        """
        rest_s = 0.0
        while not self._end.wait(rest_s):
            requests, began_s = self._requests, self._clock()
            if self.turn():
                rest_s = min(self._clock() - began_s, _REST_S)
            else:
                rest_s = 0.0
                with self._changed:
                    if requests == self._requests:
                        self._changed.wait(_IDLE_S)

    def turn(self) -> bool:
        """Writes some ports that differ, checks some others; whether there were any."""
        driver, ports = self._drivers.borrow()
        if ports is not None:
            with self._changed:
                self._tracker.set_fabric_ports(ports)
        if driver is None or not self._may_write():
            return False
        has_written = self._program(driver)
        return self._check(driver) or has_written

    def _program(self, driver: PortProgrammer) -> bool:
        """The next ports that differ or may: the driver reads them and writes those that do."""
        with self._changed:
            names = self._tracker.take_changed(self._pace.ports_per_write)
        if names:
            self._write(driver, names)
        return bool(names)

    def _check(self, driver: PortProgrammer) -> bool:
        """Reads the next ports that are due. The next turn writes what differs."""
        with self._changed:
            most = self._pace.ports_per_check
            names = self._tracker.take_to_check(self._clock(), self._pace.check_s, most)
        if names:
            self._record(_call(names, driver.read), names)
            if self._counts_sent:
                self._count_sent(driver, names)
            with self._changed:
                self._tracker.give_back(names)
        return bool(names)

    def _count_sent(self, driver: PortProgrammer, names: Sequence[PortName]) -> None:
        """Replaces what is known of these ports: a scrape in another thread reads the whole."""
        with suppress(WeftError, OSError):
            sent = driver.read_sent(names)
            stale = set(names) - sent.keys()
            current = {name: counts for name, counts in self.sent.items() if name not in stale}
            self.sent = current | sent

    def retry_failing(self, driver: PortProgrammer) -> bool:
        """In another thread, with its driver: the next failing node, if it is due."""
        with self._changed:
            names = self._tracker.take_failing(self._clock(), self._pace.check_s)
        if names:
            self._record(_call(names, driver.read), names)
            self._write(driver, names)
            with self._changed:
                self._wake()
        return bool(names)

    def _write(self, driver: PortProgrammer, names: Sequence[PortName]) -> None:
        """Writes the targets of those that answered and differ, or may; gives all back."""
        with self._changed:
            targets = self._tracker.begin_write(names)
        if targets and self._may_write():
            contents = _call(targets, driver.write)
            checked = {n: _compare(contents.get(n), target) for n, target in targets.items()}
            self._record(checked, targets)
        with self._changed:
            self._tracker.give_back(names)

    def _record(self, contents: _Contents, names: Collection[PortName]) -> None:
        now_s = self._clock()
        with self._changed:
            drifts = self._tracker.record(contents, names, now_s)
            transitions = self._tracker.take_transitions()
            durations = self._tracker.take_programming_s()
            if not all(isinstance(content, Failed) for content in contents.values()):
                self._answered_s = now_s
        for content in contents.values():
            if isinstance(content, Fenced):
                self._report_fenced(content.problem)
                break
        for duration_s in durations:
            self._observe_programming(duration_s)
        for line in [*_format_drifts(drifts), *_format_transitions(transitions)]:
            self._log(line)
        was_contested, self._contested = self._contested, self.describe_contested()
        if self._contested and not was_contested:
            self._log(LogLine(f"contested: {self._contested}", "error"))


def _call(ports: _Ports, operation: Callable[[_Ports], _Contents]) -> _Contents:
    """Calls a driver. If it raises, every port has failed."""
    try:
        return operation(ports)
    except (WeftError, OSError) as error:
        return dict.fromkeys(ports, Failed(str(error)))


def _compare(content: Content | None, target: Tables) -> Content:
    if content is None:
        return Failed("the driver did not answer for it")
    if isinstance(content, Failed) or content == target:
        return content
    return Failed(f"reads back {_format(content)} where {_format(target)} was written")


def _format_drifts(drifts: Sequence[Drift]) -> list[LogLine]:
    """One line for all drift found, one for all drift repaired."""
    new = [drift for drift in drifts if drift.took_s is None]
    times = {drift.port: 1e3 * drift.took_s for drift in drifts if drift.took_s is not None}
    lines = [
        LogLine(f"drift: {_describe_drift(drift)}{_format_more(new)}", "warning")
        for drift in new[:1]
    ]
    return lines + [
        LogLine(f"drift: {port} repaired in {took_ms:.0f} ms{_format_more(times)}")
        for port, took_ms in list(times.items())[:1]
    ]


def _format_transitions(transitions: Transitions) -> Iterator[LogLine]:
    """A line for each node that was lost or is back, and for all other ports one line each way."""
    failed, recovered, lost, back = transitions
    for node, problem in islice(lost.items(), _NODE_LINES):
        yield LogLine(f"lost: {node}: all its ports fail: {problem}", "error")
    if len(lost) > _NODE_LINES:
        yield LogLine(f"lost: {len(lost) - _NODE_LINES} more nodes", "error")
    for node, took_s in islice(back.items(), _NODE_LINES):
        yield LogLine(f"back: {node} answers after {took_s:.1f} s")
    failed = {port: problem for port, problem in failed.items() if port.node not in lost}
    for port, problem in islice(failed.items(), 1):
        yield LogLine(f"failing: {port}: {problem}{_format_more(failed)}", "warning")
    for port, took_s in islice(recovered.items(), 1):
        text = f"recovered: {port} is programmed after {took_s:.1f} s{_format_more(recovered)}"
        yield LogLine(text)


def _describe_drift(drift: Drift) -> str:
    """The queues that were changed where the driver can name them, or all of the content."""
    content, target = drift.content, drift.target
    changes = content.list_changes(target) if isinstance(content, Foreign) else []
    if changes:
        more = f"; and {len(changes) - _QUEUES} more" if len(changes) > _QUEUES else ""
        return f"{drift.port}, {'; '.join(changes[:_QUEUES])}{more}"
    return f"{drift.port} has {_format(content)}, should have {_format(target)}"


def _format_more(items: Collection[object]) -> str:
    return f", and {format_count(len(items) - 1, 'more port')}" if len(items) > 1 else ""


def _format(content: Tables | Foreign) -> str:
    if isinstance(content, Foreign):
        return content.description
    return f"weights {' '.join(map(str, content.weights))}"
