"""From the service's event loop to the engine's thread and back, once per batch of answers.

Entry point: `Bridge.ask`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from weft.control.runtime.engine import Busy, Engine, RollbackTo, Ticket
from weft.control.service.refused import Refused
from weft.control.state.events import Answer, Event

_Answers = Sequence[Answer]


class Bridge:
    """Used from one event loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._loop = engine, loop
        self._answers: deque[tuple[asyncio.Future[_Answers], _Answers]] = deque()
        self._called = False

    async def ask(self, events: Sequence[Event | RollbackTo]) -> _Answers:
        """Answers to these events, once they are on disk."""
        future: asyncio.Future[_Answers] = self._loop.create_future()
        ticket = Ticket(events, partial(self._done, future))
        try:
            self._engine.submit(ticket)
        except Busy as error:
            raise Refused("UNAVAILABLE", str(error)) from error
        try:
            return await future
        except asyncio.CancelledError:
            ticket.abandoned = True
            raise

    def _done(self, future: asyncio.Future[_Answers], answers: _Answers) -> None:
        """In the engine's thread: the loop is woken once for all that comes until it looks."""
        self._answers.append((future, answers))
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False
        while self._answers:
            future, answers = self._answers.popleft()
            if not future.done():
                future.set_result(answers)
