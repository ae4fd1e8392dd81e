"""How much a caller may ask for: a token bucket, and a quota of concurrent events and queries.

Tokens arrive at a rate, up to a burst. A call that needs tokens due within a moment waits for them;
beyond that it is refused, after a pause. Refusals of one identity are paced, so that it costs
little, however many connections it has. Streams are slowed down and never refused: unread batches
wait on the caller's side. Only a few events of one caller are in the engine at a time, so that
others wait for those and no longer. New callers share their first tokens, so that reconnecting
brings no more than staying. All callers of one identity share a second bucket, so that many
processes of one user are bounded too.
Entry point: `RateLimits`. Units: seconds, tokens.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from weft.control.runtime.config import Limits
from weft.control.service.refusals import Refused


class FairSemaphore:
    """First come, first served, several slots at a time; used from one event loop.

    Nobody may ask for more slots than there are.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def slots(self, count: int = 1) -> AsyncIterator[None]:
        await self._acquire(count)
        try:
            yield
        finally:
            self._release(count)

    async def _acquire(self, count: int) -> None:
        if not self._waiting and count <= self._free:
            self._free -= count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # let in at the same moment
                self._release(count)
            raise

    def _release(self, count: int) -> None:
        self._free += count
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done() and wanted > self._free:
                return
            self._waiting.popleft()
            if not turn.done():
                self._free -= wanted
                turn.set_result(None)


EVENT_QUOTA = 32  # events of one caller in the engine
_MAX_CALLERS = 4096
_FIRST = 0.125  # of a burst: what a newcomer begins with
_NEWCOMERS = 64  # callers that may arrive at once with full first tokens
_PATIENCE_S = 0.5
_REFUSALS_PER_S = 500.0  # of one identity: a refusal takes 0.15 ms of the event loop
_LONGEST_PAUSE_S = 10.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    capacity: float
    filled_s: float

    def fill(self, rate_per_s: float, now_s: float) -> None:
        arrived = (now_s - self.filled_s) * rate_per_s
        self.tokens, self.filled_s = min(self.capacity, self.tokens + arrived), now_s


@dataclass(slots=True)
class _SharedBucket(_Bucket):
    """Of one identity; the last refusal in its queue is due at `last_refusal_s`."""

    last_refusal_s: float = 0.0

    def queue_refusal(self, now_s: float) -> float:
        """How long another refusal waits for those before it."""
        due_s = max(self.last_refusal_s, now_s) + 1 / _REFUSALS_PER_S
        self.last_refusal_s = min(due_s, now_s + _LONGEST_PAUSE_S)
        return self.last_refusal_s - now_s


@dataclass(slots=True)
class Caller:
    """A caller, identified by certificate, connection or process; `shared` is its identity's."""

    name: str
    bucket: _Bucket
    shared: _SharedBucket
    events: FairSemaphore = field(default_factory=lambda: FairSemaphore(EVENT_QUOTA))
    queries: FairSemaphore = field(default_factory=lambda: FairSemaphore(1))


class RateLimits:
    """All callers; those that were not seen for long are forgotten."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        capacity = _NEWCOMERS * _FIRST * limits.burst
        self._newcomers = _Bucket(capacity, capacity, clock())
        self._callers: OrderedDict[str, Caller] = OrderedDict()
        self._identities: OrderedDict[str, _SharedBucket] = OrderedDict()

    def caller(self, name: str, identity: str | None = None) -> Caller:
        """A caller of this identity; None: it has one of its own."""
        caller = self._callers.get(name)
        if caller is None:
            shared = self._find_shared(name if identity is None else identity)
            caller = self._callers[name] = Caller(name, self._first_bucket(), shared)
            if len(self._callers) > _MAX_CALLERS:
                self._callers.popitem(last=False)
        self._callers.move_to_end(name)
        return caller

    def _find_shared(self, identity: str) -> _SharedBucket:
        bucket = self._identities.get(identity)
        if bucket is None:
            burst = max(self._limits.burst, 2 * self._limits.identity_rate_per_s)
            bucket = self._identities[identity] = _SharedBucket(burst, burst, self._clock())
            if len(self._identities) > _MAX_CALLERS:
                self._identities.popitem(last=False)
        self._identities.move_to_end(identity)
        return bucket

    def _first_bucket(self) -> _Bucket:
        now_s, shared = self._clock(), self._newcomers
        shared.fill(self._limits.rate_per_s, now_s)
        tokens = min(_FIRST * self._limits.burst, shared.tokens)
        shared.tokens -= tokens
        return _Bucket(tokens, self._limits.burst, now_s)

    async def admit(self, caller: Caller, cost: float) -> None:
        """Waits for a moment if need be; refuses what would have to wait longer."""
        cost = min(cost, self._limits.burst / 2)
        wait_s = self._wait_s(caller, cost)
        if wait_s > _PATIENCE_S:
            caller.bucket.tokens += cost
            caller.shared.tokens += cost
            rate_per_s = self._limits.rate_per_s
            if caller.shared.tokens < min(0.0, caller.bucket.tokens):
                rate_per_s = self._limits.identity_rate_per_s
            # Not all at once: callers that were refused together would come back together.
            pause_s = _PATIENCE_S * random.uniform(1.0, 2.0)
            await asyncio.sleep(max(pause_s, caller.shared.queue_refusal(self._clock())))
            problem = f"caller {caller.name}: more than {rate_per_s:g} events per second"
            raise Refused("RESOURCE_EXHAUSTED", f"{problem}; slow down")
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def pace(self, caller: Caller, cost: float) -> None:
        """Waits as long as it takes."""
        wait_s = self._wait_s(caller, cost)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def _wait_s(self, caller: Caller, cost: float) -> float:
        """Takes the tokens and returns how long until they have arrived."""
        now_s, wait_s = self._clock(), 0.0
        for bucket, rate_per_s in (
            (caller.bucket, self._limits.rate_per_s),
            (caller.shared, self._limits.identity_rate_per_s),
        ):
            bucket.fill(rate_per_s, now_s)
            bucket.tokens -= cost
            wait_s = max(wait_s, -bucket.tokens / rate_per_s)
        return wait_s
