"""What the conformance suite needs of a driver: the driver, and a hand on what is behind it.

A driver joins with a module `NAME_rig.py` that has a context manager `rig(directory)`, and its line
in `conftest.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from weft.switches import Failed, PortName, Switches, Tables

EVER = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A port at one moment: the queue of each level (by every way in), and the queues served."""

    queues_of: Collection[tuple[int, ...]]
    served: frozenset[int]


class Rig(Protocol):
    """A driver on a small fabric, with at least three ports to write to."""

    @property
    def switches(self) -> Switches: ...

    @property
    def ports(self) -> tuple[PortName, ...]:
        """Ports that may be written, of more than one switch."""
        ...

    def again(self) -> Switches:
        """A second driver on the same fabric, which has seen nothing of what the first one did.

        Whoever asks for it closes it.
        """
        ...

    def refusing(
        self, port: PortName, first: int = 1, last: int = EVER
    ) -> AbstractContextManager[None]:
        """Within it, what is behind refuses the changes of a port that are `first` to `last`."""
        ...

    def traced(self, port: PortName, wanted: Tables) -> tuple[Tables | Failed, list[State]]:
        """Writes a port; the states it was in, before the first change and after each."""
        ...
