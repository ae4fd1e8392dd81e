"""Places that one caller can have at a time; whoever comes first is let in first.

Entry point: `Room`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """Used from one event loop. Nobody may ask for more places than there are."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._ahead: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def places(self, count: int = 1) -> AsyncIterator[None]:
        await self._enter(count)
        try:
            yield
        finally:
            self._leave(count)

    async def _enter(self, count: int) -> None:
        if not self._ahead and count <= self._free:
            self._free -= count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ahead.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # let in at the same moment
                self._leave(count)
            raise

    def _leave(self, count: int) -> None:
        self._free += count
        while self._ahead:
            wanted, turn = self._ahead[0]
            if not turn.done() and wanted > self._free:
                return
            self._ahead.popleft()
            if not turn.done():
                self._free -= wanted
                turn.set_result(None)
