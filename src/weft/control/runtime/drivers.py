"""The drivers of a controller's switches: opened, lent and closed here alone.

There are two drivers of the same switches, one for each thread that uses them. The explorer has the
second one, `scout`. The reconciler borrows the main one for a turn at a time, once a fabric has
been accepted. When switches no longer answer, the explorer recalls it; after the reconciler has
returned it, both are closed and opened again. Entry point: `SwitchDrivers`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Set

from weft.switches import PortName, Switches


class SwitchDrivers:
    """`open_driver` opens the main driver; the main driver opens the second."""

    def __init__(self, open_driver: Callable[[], Switches]) -> None:
        self._open_driver = open_driver
        self._main: Switches | None = None
        self._scout: Switches | None = None
        self._lock = threading.Lock()  # guards what is below
        self._offered: Set[PortName] | None = None  # ports of the fabric to be lent with the driver
        self._is_borrowed = False
        self._is_recalled = False
        self._is_returned = False

    # ---- The explorer's thread ----------------------------------------------------------------

    def open(self) -> None:
        """Opens the main driver, unless it is open."""
        if self._main is None:
            self._main = self._open_driver()

    def scout(self) -> Switches:
        """The explorer's driver, opened if need be."""
        self.open()
        assert self._main is not None, "it is open"
        if self._scout is None:
            self._scout = self._main.open_second()
        return self._scout

    @property
    def is_lent(self) -> bool:
        with self._lock:
            return self._is_borrowed or self._offered is not None

    def lend(self, ports: Set[PortName]) -> None:
        """The reconciler may use the main driver from its next turn on, for these ports."""
        with self._lock:
            self._offered, self._is_recalled = ports, False

    def recall(self) -> bool:
        """Asks the reconciler for the main driver; whether nobody uses it any more."""
        with self._lock:
            self._offered, self._is_recalled = None, self._is_borrowed
            return not self._is_borrowed

    def cancel_recall(self) -> bool:
        """Whether it came in time: a driver that was returned is to be opened again."""
        with self._lock:
            self._is_recalled = False
            return not self._is_returned

    def close(self) -> None:
        """Closes both, when the reconciler uses neither."""
        for driver in (self._scout, self._main):
            if driver is not None:
                driver.close()
        self._scout = self._main = None
        with self._lock:
            self._offered = None
            self._is_borrowed = self._is_recalled = self._is_returned = False

    # ---- The reconciler's thread --------------------------------------------------------------

    def borrow(self) -> tuple[Switches | None, Set[PortName] | None]:
        """The main driver for one turn, if it is lent, and the fabric's ports if they are new."""
        with self._lock:
            if self._is_recalled:
                self._is_borrowed = self._is_recalled = False
                self._is_returned = True
                return None, None
            ports, self._offered = self._offered, None
            if ports is not None:
                assert self._main is not None, "lent when open"
                assert self._scout is not None, "opened with the main driver"
                self._main.learn_from(self._scout)
                self._is_borrowed = True
            return (self._main if self._is_borrowed else None), ports
