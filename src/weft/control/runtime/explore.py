"""The thread that discovers the fabric, and tends the nodes that fail.

The fabric is discovered from time to time, and soon where ports fail or somebody names a host that
it has not. A discovery that lacks something that was there may have seen a part alone: it counts
when the next one says the same. Switches that cannot be reached are waited for; where no port
answers either, the driver is opened anew. Discoveries, and nodes that do not answer, may take
seconds: they have a driver of their own, beside the reconciler's. Entry points: `Explorer.run` (a
thread's body), `Explorer.turn`, `Explorer.urge`. Units: seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from weft.control.runtime.book import LONGEST_S, pause_s
from weft.control.runtime.drivers import addresses_of, remarks_of, scout_of, unanswered_of
from weft.control.runtime.reconcile import Pace, Reconciler
from weft.control.state.events import FabricChanged
from weft.errors import WeftError
from weft.fabric import Fabric
from weft.switches import Ability, PortName, Switches

CONFIRM_S = 2.0
_REST_S = 0.1
_SOON_S = 2.0  # to a discovery that is asked for; twice as long each time that it brings nothing
_TRIES = 2  # discoveries that fail before the driver is opened anew


class Explorer:
    """`opened` gives a driver, as soon as it can be had.

    `found` is told of a fabric that differs from the last one; it says whether it was taken.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        opened: Callable[[], Switches],
        *,
        clock: Callable[[], float],
        found: Callable[[FabricChanged], bool],
        tell: Callable[[str], None],
        pace: Pace | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self._reconciler, self._opened, self._clock = reconciler, opened, clock
        self._found, self._tell = found, tell
        self._pace, self._aliases = pace or Pace(), dict(aliases or {})
        self._main: Switches | None = None  # the reconciler's
        self._scout: Switches | None = None
        self._is_handed_over = False
        self._fabric: FabricChanged | None = None
        self._doubted: FabricChanged | None = None
        self._lock = threading.Lock()  # guards what `urge` changes
        self._due_s = self._discovered_s = clock()
        self._is_urged = False
        self._vain = 0  # discoveries in a row that were asked for and brought nothing
        self._failures = 0
        self._failing_s = 0.0
        self._ports_failed = 0
        self._woken = threading.Event()
        self._ending = False

    def run(self) -> None:
        """Until `stop`."""
        while not self._ending:
            if not self.turn():
                self._woken.wait(_REST_S)
                self._woken.clear()

    def stop(self) -> None:
        """From any thread."""
        self._ending = True
        self._woken.set()

    def urge(self) -> None:
        """From any thread: something is missed that a discovery may bring."""
        with self._lock:
            self._is_urged = True
            if not self._failures:
                self._due_s = min(self._due_s, self._soon_s)

    @property
    def _soon_s(self) -> float:
        return self._discovered_s + _SOON_S * 2.0 ** min(self._vain, 30)

    def close(self) -> None:
        """When neither thread runs any more."""
        for driver in (self._scout, None if self._is_handed_over else self._main):
            if driver is not None:
                driver.close()
        self._scout = self._main = None
        self._is_handed_over = False

    def turn(self) -> bool:
        """Discovers if it is time, tends a node that failed; whether there was such a node."""
        if self._reconciler.failed > self._ports_failed:
            self._ports_failed = self._reconciler.failed
            self.urge()
        if self._clock() >= self._due_s:
            self._explore()
        if not self._is_handed_over or self._scout is None:
            return False
        return self._reconciler.mend(self._scout)

    # ---- Discovery ----------------------------------------------------------------------------

    def _explore(self) -> None:
        with self._lock:
            was_urged, self._is_urged = self._is_urged, False
        try:
            event = self._discovered(self._switches())
        except (WeftError, OSError) as error:
            self._failed(error)
            return
        self._failures = 0
        if self._is_handed_over and not self._reconciler.keep():
            self.close()  # it was let go meanwhile: the next turn opens it anew
            return
        self._say("")
        self._plan_next(is_vain=was_urged and event == self._fabric)
        if event == self._fabric:
            self._doubted = None
            self._hand_over(event)
        elif self._is_believed(event):
            self._adopt(event)

    def _switches(self) -> Switches:
        if self._main is None:
            self._main, self._is_handed_over = self._opened(), False
        if self._scout is None:
            self._scout = scout_of(self._main, self._opened)
        return self._scout

    def _discovered(self, switches: Switches) -> FabricChanged:
        fabric = switches.discover()
        names = [
            PortName(node.name, port)
            for number, node in enumerate(fabric.nodes)
            for port in fabric.neighbors(number)
        ]
        told = switches.abilities(names)
        # One that does not answer now can still do what it could.
        able = {} if self._fabric is None else dict(self._fabric.abilities)
        able |= {name: own for name, own in told.items() if isinstance(own, Ability)}
        return FabricChanged(
            fabric=fabric,
            abilities={name: able[name] for name in names if name in able},
            aliases={**addresses_of(switches), **self._aliases},
        )

    def _failed(self, error: Exception) -> None:
        now_s = self._clock()
        if not self._failures:
            self._failing_s = now_s
        self._failures += 1
        self._due_s = now_s + pause_s(self._failures + 3)
        self._say(f"switches cannot be reached, trying again: {error}")
        if self._failures >= _TRIES and self._is_let_go():
            self.close()

    def _is_let_go(self) -> bool:
        """Whether nobody else uses the driver: a reconciler whose ports answer keeps it."""
        return not self._is_handed_over or self._reconciler.let_go(self._failing_s)

    def _plan_next(self, *, is_vain: bool) -> None:
        with self._lock:
            self._vain = self._vain + 1 if is_vain else 0
            self._discovered_s = self._clock()
            next_s = self._discovered_s + self._pace.topology_s
            self._due_s = min(next_s, self._soon_s) if self._is_urged else next_s

    def _is_believed(self, event: FabricChanged) -> bool:
        """Unless it lacks something that was there, and is the first to do so."""
        lacking = self._lacking(event)
        if not lacking or event == self._doubted:
            self._doubted = None
            return True
        self._doubted = event
        self._due_s = self._clock() + CONFIRM_S
        self._tell(f"fabric {event.fabric.name}: {lacking}; looking again")
        return False

    def _lacking(self, event: FabricChanged) -> str:
        before = self._fabric
        known = self._reconciler.known if before is None else before.abilities.keys()
        gone = known - event.abilities.keys()
        if gone:
            return f"{len(gone)} ports are not there any more, {min(gone)} for one"
        if before is not None and _unrouted(event.fabric) > _unrouted(before.fabric):
            return "routes are missing"
        silent = unanswered_of(self._switches())
        return f"{silent} ports lead to nodes that do not answer" if silent else ""

    def _adopt(self, event: FabricChanged) -> None:
        if not self._found(event):
            self._due_s = self._clock() + LONGEST_S / 10
            return
        self._fabric, self._is_handed_over = event, False
        self._hand_over(event)
        fabric, ports = event.fabric, len(event.abilities)
        hosts, switches = len(fabric.hosts), len(fabric.switches)
        self._tell(f"fabric {fabric.name}: {hosts} hosts, {switches} switches, {ports} ports")
        for remark in remarks_of(self._switches()):
            self._tell(remark)

    def _hand_over(self, event: FabricChanged) -> None:
        """The reconciler has the driver, and knows the ports."""
        if not self._is_handed_over:
            scout = self._switches()
            assert self._main is not None, "a scout is of a driver"
            self._reconciler.adopt(event.abilities.keys(), self._main, scout)
            self._is_handed_over = True

    def _say(self, problem: str) -> None:
        """Once for each change."""
        if self._reconciler.problem != problem:
            self._reconciler.problem = problem
            self._tell(problem or "switches are reached")


def _unrouted(fabric: Fabric) -> int:
    """Pairs of a switch and a host that the one has no route to."""
    if fabric.routes is None:
        return len(fabric.switches) * len(fabric.hosts)
    return int((fabric.routes.next_hop < 0).sum())
