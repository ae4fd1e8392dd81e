"""What a client has to tell its controller, what is on its way, and what was acknowledged.

A session has one registration at a time and any number of open connections. Events go out in
batches; each batch is acknowledged as a whole, in order. What was on its way when the stream broke
goes out again, unchanged and before everything else: its keys make the controller carry it out
once. A connection that was never sent is forgotten when it is closed, so that no queue is longer
than what is open plus what the controller still believes to be open. When a lease is lost, the next
registration and every open connection get keys of their own. No clock, no I/O, no threads.
Entry point: `Session`. Units: seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from weft.control.state.key import Key
from weft.errors import WeftError

MOST_EVENTS = 250  # of a batch
MOST_BATCHES = 4  # unacknowledged: a renewal waits behind a thousand events at most
# Numbers of gRPC's status codes.
OK, NOT_FOUND, FAILED_PRECONDITION = 0, 5, 9
# Resource exhausted, unavailable: it was not carried out.
BUSY = frozenset({8, 14})
# Cancelled, unknown, deadline exceeded, aborted, internal: it may have been.
TRY_AGAIN = BUSY | {1, 2, 4, 10, 13}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a controller has given: the level of packets, and for how long without a renewal."""

    id: str
    level: int
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    registration: str
    number: int  # of the connection, here
    key: Key
    source: str
    destination: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    registration: str
    number: int
    connection: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    registration: str


Event = Connect | Disconnect | Renew


class OutOfStep(WeftError):
    """What came back is no answer to what was sent."""


@dataclass(frozen=True, slots=True)
class Ack:
    """0: carried out; else a gRPC status code and why."""

    code: int
    message: str = ""


@dataclass(slots=True)
class Wanted:
    """A connection that the program has open."""

    source: str
    destination: str
    key: Key | None = None  # None: the controller has not been asked under this registration
    is_told: bool = False
    problem: str = ""  # why the controller will not have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What acknowledgements came to."""

    told: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    has_lapsed: bool = False
    is_busy: bool = False  # the controller has asked to be left alone for a while


@dataclass(slots=True)
class Session:
    client: str
    registration: Registration | None = None
    connections: dict[int, Wanted] = field(default_factory=dict)  # open, by number
    _sequence: int = 0
    _numbers: int = 0
    _registering: Key | None = None
    _renewal: bool = False
    _outbox: dict[tuple[type[Event], int], Connect | Disconnect] = field(default_factory=dict)
    _unacknowledged: deque[tuple[Event, ...]] = field(default_factory=deque)
    _doubtful: set[int] = field(default_factory=set)  # connects that may have been carried out

    # ---- The registration ---------------------------------------------------------------------

    def next_key(self) -> Key:
        self._sequence += 1
        return Key(self.client, self._sequence)

    def registering(self) -> Key:
        """The key to register with: the same one until there is a registration."""
        if self._registering is None:
            self._registering = self.next_key()
        return self._registering

    def registered(self, registration: Registration) -> None:
        """All that is open will be told."""
        self.registration = registration
        for number, own in self.connections.items():
            self._ask(number, own)

    def lapse(self) -> None:
        """The registration is over, and its connections with it; those open here are kept."""
        self.registration, self._registering, self._renewal = None, None, False
        self._outbox.clear()
        self._doubtful.clear()
        for own in self.connections.values():
            own.key, own.is_told, own.problem = None, False, ""

    def renew(self) -> None:
        """The next batch begins with a renewal."""
        self._renewal = self.registration is not None

    # ---- Connections --------------------------------------------------------------------------

    def add(self, source: str, destination: str) -> int:
        """A connection was opened; its number here."""
        self._numbers += 1
        own = self.connections[self._numbers] = Wanted(source, destination)
        if self.registration is not None:
            self._ask(self._numbers, own)
        return self._numbers

    def _ask(self, number: int, own: Wanted) -> None:
        assert self.registration is not None, "asked of a controller"
        own.key = self.next_key()
        self._outbox[Connect, number] = Connect(
            registration=self.registration.id,
            number=number,
            key=own.key,
            source=own.source,
            destination=own.destination,
        )

    def remove(self, number: int) -> None:
        """A connection was closed; twice is no mistake."""
        own = self.connections.pop(number, None)
        if own is None or own.key is None or own.problem or self.registration is None:
            return
        if (Connect, number) in self._outbox and number not in self._doubtful:
            del self._outbox[Connect, number]  # the controller has never heard of it
            return
        self._outbox[Disconnect, number] = Disconnect(
            registration=self.registration.id, number=number, connection=str(own.key)
        )

    # ---- Batches ------------------------------------------------------------------------------

    @property
    def has_events(self) -> bool:
        """Whether there is something to send, and room on the way."""
        waiting = self._renewal or bool(self._outbox)
        return waiting and len(self._unacknowledged) < MOST_BATCHES

    @property
    def is_awaiting(self) -> bool:
        """Whether a batch is on its way."""
        return bool(self._unacknowledged)

    def batch(self) -> tuple[Event, ...]:
        """The next events to send, on their way from now on."""
        if self.registration is None or len(self._unacknowledged) >= MOST_BATCHES:
            return ()
        taken: list[Event] = [Renew(registration=self.registration.id)] if self._renewal else []
        self._renewal = False
        for place in tuple(islice(self._outbox, MOST_EVENTS)):
            taken.append(self._outbox.pop(place))
        if taken:
            self._unacknowledged.append(tuple(taken))
        return tuple(taken)

    def broken(self) -> None:
        """The stream is gone: what was on its way goes first when there is another."""
        lost = [
            event
            for batch in self._unacknowledged
            for event in batch
            if not isinstance(event, Renew) and self._is_current(event)
        ]
        self._unacknowledged.clear()
        self._doubtful |= {event.number for event in lost if isinstance(event, Connect)}
        again: dict[tuple[type[Event], int], Connect | Disconnect] = {}
        for event in (*lost, *self._outbox.values()):
            # Of two disconnects the later one counts: a connect may stand between them.
            again.pop((type(event), event.number), None)
            again[type(event), event.number] = event
        self._outbox = again

    def _is_current(self, event: Event) -> bool:
        return self.registration is not None and event.registration == self.registration.id

    def acknowledged(self, acks: Sequence[Ack]) -> Outcome:
        """The oldest batch on its way was carried out, or refused, event by event."""
        if not self._unacknowledged or len(self._unacknowledged[0]) != len(acks):
            raise OutOfStep("the controller's acknowledgements do not fit what was sent")
        batch = self._unacknowledged.popleft()
        pairs = [
            (event, ack) for event, ack in zip(batch, acks, strict=True) if self._is_current(event)
        ]
        if any(self._has_lapsed(event, ack) for event, ack in pairs):
            self.lapse()
            return Outcome(has_lapsed=True)
        for event, ack in pairs:
            self._note(event, ack)
        asked = [event.number for event, _ in pairs if isinstance(event, Connect)]
        there = {number: own for number in asked if (own := self.connections.get(number))}
        return Outcome(
            told=tuple(number for number, own in there.items() if own.is_told),
            refused=tuple(number for number, own in there.items() if own.problem),
            is_busy=any(ack.code in TRY_AGAIN for _, ack in pairs),
        )

    def _has_lapsed(self, event: Event, ack: Ack) -> bool:
        """A connect that was carried out, closed and is sent again is refused alike: no sign."""
        if ack.code != FAILED_PRECONDITION or isinstance(event, Disconnect):
            return False
        return isinstance(event, Renew) or event.number in self.connections

    def _note(self, event: Event, ack: Ack) -> None:
        if isinstance(event, Renew):
            return
        if ack.code in TRY_AGAIN:
            if isinstance(event, Connect) and ack.code not in BUSY:
                self._doubtful.add(event.number)
            self._put_back(event)
            return
        if isinstance(event, Disconnect):
            return
        self._doubtful.discard(event.number)
        own = self.connections.get(event.number)
        if own is not None:
            own.is_told = ack.code == OK
            own.problem = ack.message or f"code {ack.code}" if ack.code else ""

    def _put_back(self, event: Connect | Disconnect) -> None:
        """To be sent again."""
        if isinstance(event, Disconnect) or event.number in self.connections:
            self._outbox[type(event), event.number] = event
        elif event.number in self._doubtful:
            # An earlier one may still be on its way: only what was opened can be closed for good.
            self._outbox = {(Connect, event.number): event, **self._outbox}
            self._outbox.setdefault((Disconnect, event.number), _closing(event))


def _closing(event: Connect) -> Disconnect:
    return Disconnect(
        registration=event.registration, number=event.number, connection=str(event.key)
    )
