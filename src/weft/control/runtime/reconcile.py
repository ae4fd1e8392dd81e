"""What ports are to have against what they have, for ever.

Level-triggered: a port is written because it differs from what it should be, whatever made it so.
All ports are read in turn, so that drift is found and repaired. One thread turns: it goes from a
few ports to the next few, new targets first. Nodes with a port that fails are left to another
thread (`mend`), so that they hold up no other; that one also discovers the fabric and says which
ports there are (`weft.control.runtime.explore`). `weft.control.runtime.book` says what is due.
Entry points: `Reconciler.want`, `Reconciler.run` (a thread's body), `Reconciler.turn`,
`Reconciler.report`. Units: seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from weft.control.runtime.book import Book, Drift, Found, Report
from weft.control.runtime.drivers import learn
from weft.errors import WeftError
from weft.switches import Failed, Foreign, PortName, Switches, Tables

SLICE = 64  # ports checked in one go: a new target waits no longer than that takes
WHOLE = 1024  # ports brought to their target in one go: when all of a fabric are, sooner together
_IDLE_S = 0.25

_Answers = Mapping[PortName, Found]
_Ports = TypeVar("_Ports", bound=Collection[PortName])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often all ports are read, and the fabric is discovered."""

    check_s: float = 10.0
    topology_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Coming:
    """The ports of a fabric, the driver that is to be used, and the one that has discovered it."""

    ports: Set[PortName]
    driver: Switches
    scout: Switches


class Reconciler:
    """Has no driver, and does nothing, until it is given one with a fabric's ports."""

    def __init__(
        self, *, clock: Callable[[], float], tell: Callable[[str], None], pace: Pace | None = None
    ) -> None:
        self._clock, self._tell, self._pace = clock, tell, pace or Pace()
        self.problem = "the switches have not been read yet"  # with the switches as a whole
        self._changed = threading.Condition()  # guards the book and what is below
        self._book = Book()
        self._driver: Switches | None = None
        self._coming: _Coming | None = None
        self._is_to_let_go = False
        self._asked = 0  # how often something new was asked for
        self._answered_s = clock()
        self._ending = False

    # ---- From other threads -------------------------------------------------------------------

    def want(self, tables: Mapping[PortName, Tables], revision: int) -> None:
        """These ports are to have these tables from now on."""
        with self._changed:
            self._book.want(tables, revision, self._clock())
            self._wake()

    def adopt(self, ports: Set[PortName], driver: Switches, scout: Switches) -> None:
        """The fabric has these ports; the driver is this thread's own from now on."""
        with self._changed:
            self._coming, self._is_to_let_go = _Coming(ports, driver, scout), False
            self._wake()

    def let_go(self, since_s: float) -> bool:
        """Whether the driver is closed: it will be, if no port has answered since."""
        with self._changed:
            self._is_to_let_go = self._answered_s < since_s
            self._wake()
            return self._driver is None

    def keep(self) -> bool:
        """Whether there is a driver, which is not to be let go any more."""
        with self._changed:
            self._is_to_let_go = False
            return self._driver is not None or self._coming is not None

    def stop(self) -> None:
        with self._changed:
            self._ending = True
            self._wake()

    def _wake(self) -> None:
        self._asked += 1
        self._changed.notify_all()

    @property
    def known(self) -> frozenset[PortName]:
        """Ports that were ever told something."""
        with self._changed:
            return frozenset(self._book.ports)

    @property
    def failed(self) -> int:
        """Answers ever that were none."""
        return self._book.failed

    def report(self, *, with_ports: bool = False) -> Report:
        with self._changed:
            return self._book.report(self._clock(), with_ports=with_ports)

    def unprogrammed(self, names: Iterable[PortName]) -> dict[PortName, str]:
        """Those of these ports that do not have what they should, and what is wrong."""
        with self._changed:
            return self._book.unprogrammed(names)

    # ---- The thread ---------------------------------------------------------------------------

    def run(self) -> None:
        """Until `stop`."""
        while not self._ending:
            asked = self._asked
            if not self.turn():
                with self._changed:
                    if asked == self._asked:
                        self._changed.wait(_IDLE_S)

    def close(self) -> None:
        """When neither thread runs any more, and the explorer is closed."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def turn(self) -> bool:
        """Writes some ports that differ, reads some of the others; whether there were any."""
        self._change_drivers()
        if self._driver is None:
            return False
        written = self._program(self._driver)
        return self._check(self._driver) or written

    def _change_drivers(self) -> None:
        with self._changed:
            coming, self._coming = self._coming, None
            let_go, self._is_to_let_go = self._is_to_let_go, False
        if let_go or (coming is not None and coming.driver is not self._driver):
            self.close()
        if coming is not None:
            self._driver = coming.driver
            learn(coming.driver, coming.scout)
            with self._changed:
                self._book.appear(coming.ports)

    def _program(self, driver: Switches) -> bool:
        """The next ports that differ, or may: the driver reads them, and writes those that do."""
        with self._changed:
            names = self._book.take(WHOLE)
        if names:
            self._write(driver, names)
        return bool(names)

    def _check(self, driver: Switches) -> bool:
        """The next ports whose time has come; what differs is written in the next turn."""
        with self._changed:
            names = self._book.take_to_check(self._clock(), self._pace.check_s, SLICE)
        if names:
            self._note(self._answers(names, driver.read), names)
            with self._changed:
                self._book.give_back(names)
        return bool(names)

    def mend(self, driver: Switches) -> bool:
        """In another thread, with a driver of its own: the next node that failed, if it is time."""
        with self._changed:
            names = self._book.take_failing(self._clock(), self._pace.check_s)
        if names:
            self._note(self._answers(names, driver.read), names)
            self._write(driver, names)
            with self._changed:
                self._wake()
        return bool(names)

    def _write(self, driver: Switches, names: Sequence[PortName]) -> None:
        """What is wanted by now of those that answered and differ, or may; gives all back."""
        with self._changed:
            differing = self._book.differing(names)
        if differing:
            told = self._answers(differing, driver.write)
            checked = {name: _as_written(told.get(name), own) for name, own in differing.items()}
            self._note(checked, differing)
        with self._changed:
            self._book.give_back(names)

    def _answers(self, ports: _Ports, call: Callable[[_Ports], _Answers]) -> _Answers:
        """What a driver answers; where it cannot answer at all, every port has failed."""
        try:
            return call(ports)
        except (WeftError, OSError) as error:
            return dict.fromkeys(ports, Failed(str(error)))

    def _note(self, told: _Answers, names: Collection[PortName]) -> None:
        now_s = self._clock()
        with self._changed:
            drifts = self._book.note(told, names, now_s)
            if not all(isinstance(found, Failed) for found in told.values()):
                self._answered_s = now_s
        for line in _drift_lines(drifts):
            self._tell(line)


def _as_written(found: Found | None, wanted: Tables) -> Found:
    if found is None:
        return Failed("the driver did not answer for it")
    if isinstance(found, Failed) or found == wanted:
        return found
    return Failed(f"reads back {_shown(found)} where {_shown(wanted)} was written")


def _drift_lines(drifts: Sequence[Drift]) -> list[str]:
    """A line for all that was found, one for all that is repaired."""
    found = [drift for drift in drifts if drift.took_s is None]
    times = {drift.port: 1e3 * drift.took_s for drift in drifts if drift.took_s is not None}
    lines = [
        f"drift: {one.port} has {_shown(one.found)}, to have {_shown(one.wanted)}{_and_more(found)}"
        for one in found[:1]
    ]
    return lines + [
        f"drift: {port} repaired in {took_ms:.0f} ms{_and_more(times)}"
        for port, took_ms in list(times.items())[:1]
    ]


def _and_more(those: Collection[object]) -> str:
    return f", and {len(those) - 1} ports more" if len(those) > 1 else ""


def _shown(found: Tables | Foreign) -> str:
    if isinstance(found, Foreign):
        return found.what
    return f"weights {' '.join(map(str, found.weights))}"
