"""A connection of a registered application: what it sends with, what the controller knows of it.

Entry point: `Connection`, as `App.connect` and its like give it. Units: seconds.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from weft._core import Endpoint
    from weft.control.client.app import App


class Connection:
    """Close it, or use it as a context; its socket or endpoint is closed with it.

    Both are None where the program has opened something else and only declared its ends. `number`
    is None where there is nothing to tell: packets that stay on the host, a socket without another
    end, a process that was forked.
    """

    def __init__(self, app: App, made: socket.socket | Endpoint | None, number: int | None) -> None:
        self.app, self._number = app, number
        self.socket = made if isinstance(made, socket.socket) else None
        self.endpoint = None if isinstance(made, socket.socket) else made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """So that `select` and its like take it."""
        return -1 if self.socket is None else self.socket.fileno()

    @property
    def is_told(self) -> bool:
        """Whether the controller counts it."""
        own = self.app.wanted(self._number)
        return own is not None and own.is_told

    @property
    def id(self) -> str | None:
        """The controller's name for it."""
        own = self.app.wanted(self._number)
        return None if own is None or own.key is None else str(own.key)

    @property
    def problem(self) -> str:
        """Why the controller does not have it; empty while it may."""
        own = self.app.wanted(self._number)
        return "" if own is None else own.problem

    def wait_told(self, timeout_s: float) -> bool:
        """Waits until the controller counts it, or will not, or is gone; whether it does."""
        if self._number is not None:
            self.app.await_told(self._number, timeout_s)
        return self.is_told

    def close(self) -> None:
        """Closes the socket or endpoint; the controller is told in the background."""
        for made in (self.socket, self.endpoint):
            if made is not None:
                made.close()
        if self._number is not None:
            self.app.forget(self._number)
        self._number = None
