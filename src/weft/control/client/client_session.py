"""A client's session with its controller: events queued, in flight and acknowledged.

A session has one registration at a time and any number of open connections. Events go out in
batches; each batch is acknowledged as a whole, in order. Batches in flight when the stream breaks
are sent again, unchanged and first: their keys make the controller execute them once. A connection
that was closed before it was sent is dropped, so that the outbox never holds more than the open
connections plus those that the controller still counts. When a lease expires, the next registration
and every open connection get new keys. No clock, no I/O, no threads.
Entry point: `Session`. Units: seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from weft.control.state.request_key import Key
from weft.errors import WeftError

MAX_EVENTS = 250  # of a batch
MAX_BATCHES = 4  # unacknowledged: a renewal waits behind a thousand events at most
# Numbers of gRPC's status codes.
OK, FAILED_PRECONDITION = 0, 9
# Resource exhausted, unavailable: it was not carried out.
BUSY = frozenset({8, 14})
# Cancelled, unknown, deadline exceeded, aborted, internal: it may have been.
TRY_AGAIN = BUSY | {1, 2, 4, 10, 13}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A registration by the controller: the level of packets, and its time without a renewal."""

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
    """Acknowledgements do not match what was sent."""


@dataclass(frozen=True, slots=True)
class Ack:
    """0: carried out; else a gRPC status code and why."""

    code: int
    message: str = ""


@dataclass(slots=True)
class OpenConnection:
    """A connection that the program has open."""

    source: str
    destination: str
    key: Key | None = None  # None: not sent under this registration
    is_counted: bool = False
    problem: str = ""  # why the controller refused it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a batch of acknowledgements."""

    counted: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    has_expired: bool = False
    is_busy: bool = False  # the controller asked us to retry later


@dataclass(slots=True)
class Session:
    """A registration, its open connections, and the events that are queued or in flight."""

    client: str
    registration: Registration | None = None
    connections: dict[int, OpenConnection] = field(default_factory=dict)  # open, by number
    _sequence: int = 0
    _last_number: int = 0
    _registration_key: Key | None = None
    _renewal: bool = False
    _outbox: dict[tuple[type[Event], int], Connect | Disconnect] = field(default_factory=dict)
    _unacknowledged: deque[tuple[Event, ...]] = field(default_factory=deque)
    _maybe_executed: set[int] = field(default_factory=set)  # sent connects without an answer

    # ---- The registration ---------------------------------------------------------------------

    def next_key(self) -> Key:
        self._sequence += 1
        return Key(self.client, self._sequence)

    def registration_key(self) -> Key:
        """The key to register with: the same one until there is a registration."""
        if self._registration_key is None:
            self._registration_key = self.next_key()
        return self._registration_key

    def accept_registration(self, registration: Registration) -> None:
        """Queues every open connection."""
        self.registration = registration
        for number, connection in self.connections.items():
            self._queue_connect(number, connection)

    def expire(self) -> None:
        """The registration has expired with its connections; those open here stay."""
        self.registration, self._registration_key, self._renewal = None, None, False
        self._outbox.clear()
        self._maybe_executed.clear()
        for connection in self.connections.values():
            connection.key, connection.is_counted, connection.problem = None, False, ""

    def renew(self) -> None:
        """The next batch begins with a renewal."""
        self._renewal = self.registration is not None

    # ---- Connections --------------------------------------------------------------------------

    def add(self, source: str, destination: str) -> int:
        """A connection was opened; its number here."""
        self._last_number += 1
        connection = self.connections[self._last_number] = OpenConnection(source, destination)
        if self.registration is not None:
            self._queue_connect(self._last_number, connection)
        return self._last_number

    def _queue_connect(self, number: int, connection: OpenConnection) -> None:
        assert self.registration is not None, "registered"
        connection.key = self.next_key()
        self._outbox[Connect, number] = Connect(
            registration=self.registration.id,
            number=number,
            key=connection.key,
            source=connection.source,
            destination=connection.destination,
        )

    def remove(self, number: int) -> None:
        """A connection was closed; idempotent."""
        connection = self.connections.pop(number, None)
        if (
            connection is None
            or connection.key is None
            or connection.problem
            or self.registration is None
        ):
            return
        if (Connect, number) in self._outbox and number not in self._maybe_executed:
            del self._outbox[Connect, number]  # never sent
            return
        self._outbox[Disconnect, number] = Disconnect(
            registration=self.registration.id, number=number, connection=str(connection.key)
        )

    # ---- Batches ------------------------------------------------------------------------------

    @property
    def has_events(self) -> bool:
        """Whether there is something to send, and room in flight."""
        waiting = self._renewal or bool(self._outbox)
        return waiting and len(self._unacknowledged) < MAX_BATCHES

    @property
    def has_unacknowledged(self) -> bool:
        """Whether a batch is in flight."""
        return bool(self._unacknowledged)

    def take_batch(self) -> tuple[Event, ...]:
        """The next events to send, in flight from now on."""
        if self.registration is None or len(self._unacknowledged) >= MAX_BATCHES:
            return ()
        events: list[Event] = [Renew(registration=self.registration.id)] if self._renewal else []
        self._renewal = False
        for place in tuple(islice(self._outbox, MAX_EVENTS)):
            events.append(self._outbox.pop(place))
        if events:
            self._unacknowledged.append(tuple(events))
        return tuple(events)

    def requeue_unacknowledged(self) -> None:
        """The stream broke: events in flight go first on the next one."""
        unacknowledged = [
            event
            for batch in self._unacknowledged
            for event in batch
            if not isinstance(event, Renew) and self._is_current(event)
        ]
        self._unacknowledged.clear()
        self._maybe_executed |= {
            event.number for event in unacknowledged if isinstance(event, Connect)
        }
        outbox: dict[tuple[type[Event], int], Connect | Disconnect] = {}
        for event in (*unacknowledged, *self._outbox.values()):
            # Of two disconnects the later one counts: a connect may stand between them.
            outbox.pop((type(event), event.number), None)
            outbox[type(event), event.number] = event
        self._outbox = outbox

    def _is_current(self, event: Event) -> bool:
        return self.registration is not None and event.registration == self.registration.id

    def accept_acks(self, acks: Sequence[Ack]) -> Outcome:
        """The oldest batch in flight was executed or refused, event by event."""
        if not self._unacknowledged or len(self._unacknowledged[0]) != len(acks):
            raise OutOfStep("the controller's acknowledgements do not fit what was sent")
        batch = self._unacknowledged.popleft()
        pairs = [
            (event, ack) for event, ack in zip(batch, acks, strict=True) if self._is_current(event)
        ]
        if any(self._shows_expiry(event, ack) for event, ack in pairs):
            self.expire()
            return Outcome(has_expired=True)
        for event, ack in pairs:
            self._record_ack(event, ack)
        numbers = [event.number for event, _ in pairs if isinstance(event, Connect)]
        opened = {
            number: connection for number in numbers if (connection := self.connections.get(number))
        }
        return Outcome(
            counted=tuple(number for number, connection in opened.items() if connection.is_counted),
            refused=tuple(number for number, connection in opened.items() if connection.problem),
            is_busy=any(ack.code in TRY_AGAIN for _, ack in pairs),
        )

    def _shows_expiry(self, event: Event, ack: Ack) -> bool:
        """Whether a refusal means that the lease has expired.

        A connect that was closed meanwhile is refused with the same code.
        """
        if ack.code != FAILED_PRECONDITION or isinstance(event, Disconnect):
            return False
        return isinstance(event, Renew) or event.number in self.connections

    def _record_ack(self, event: Event, ack: Ack) -> None:
        if isinstance(event, Renew):
            return
        if ack.code in TRY_AGAIN:
            if isinstance(event, Connect) and ack.code not in BUSY:
                self._maybe_executed.add(event.number)
            self._requeue(event)
            return
        if isinstance(event, Disconnect):
            return
        self._maybe_executed.discard(event.number)
        connection = self.connections.get(event.number)
        if connection is not None:
            connection.is_counted = ack.code == OK
            connection.problem = ack.message or f"code {ack.code}" if ack.code else ""

    def _requeue(self, event: Connect | Disconnect) -> None:
        """Queues an event again that the controller could not execute."""
        if isinstance(event, Disconnect) or event.number in self.connections:
            self._outbox[type(event), event.number] = event
        elif event.number in self._maybe_executed:
            # An earlier one may still be on its way: only what was opened can be closed for good.
            self._outbox = {(Connect, event.number): event, **self._outbox}
            self._outbox.setdefault((Disconnect, event.number), _disconnect_event(event))


def _disconnect_event(event: Connect) -> Disconnect:
    return Disconnect(
        registration=event.registration, number=event.number, connection=str(event.key)
    )
