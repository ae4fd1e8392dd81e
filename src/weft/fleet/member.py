"""A host's side of a step: join the coordinator, report, wait for its orders, stop on request.

On joining, the host's clock is compared with the coordinator's: of many round trips the shortest
bounds the offset by half its length, so starts on different hosts can be compared afterwards.
The connection (`weft.wire`) is the life line. "stop" ends what runs: `stopped` is set and the stop
callbacks run; "end", or a lost connection, also ends the host's part: `ended` is set.
Entry point: `join`. Units: ns, seconds.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from weft.errors import InputError, WeftError
from weft.wire import (
    Beat,
    Connection,
    ConnectionLost,
    Decoder,
    Failure,
    Message,
    ProtocolError,
    connect,
    set_socket_options,
)

CLOCK_ROUNDS = 50
CONNECT_S = 10.0


class Join(Message):
    member: str


class Clock(Message):
    """Asks for the coordinator's clock, or answers with it."""

    ns: int


class Report(Message):
    """What a member reports, by name."""

    name: str
    value: Any


class Order(Message):
    """What the coordinator orders all members to do, by name."""

    name: str
    value: Any


FROM_MEMBER: Decoder[Any] = Decoder(Join | Clock | Report | Beat)
FROM_COORDINATOR: Decoder[Any] = Decoder(Clock | Order | Failure | Beat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """How a host finds the coordinator of a step."""

    member: str
    host: str
    port: int
    token: str


class Stopped(WeftError):
    """The coordinator has ended the step, or cannot be reached."""


@contextmanager
def join(invitation: Invitation) -> Iterator[Member]:
    """The step's member of this host, until the context ends."""
    with socket.create_connection((invitation.host, invitation.port), CONNECT_S) as sock:
        set_socket_options(sock)
        with closing(_greet(sock, invitation)) as connection:
            member = Member(connection, invitation.member)
            try:
                yield member
            finally:
                member.close()


def _greet(sock: socket.socket, invitation: Invitation) -> Connection[Any]:
    try:
        return connect(sock, invitation.token.encode(), "coordinator", FROM_COORDINATOR)
    except (InputError, ProtocolError, ConnectionLost) as error:
        raise Stopped(f"the coordinator refused this host: {error}") from error


class Member:
    """One host in one step."""

    def __init__(self, connection: Connection[Any], name: str) -> None:
        self._connection = connection
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._on_stop: Sequence[Callable[[], None]] = ()
        self._closing = False
        self.stopped = threading.Event()
        self.ended = threading.Event()
        self._send(Join(name))
        rounds = [self._time_round_trip() for _ in range(CLOCK_ROUNDS)]
        self.clock_offset_ns, self.clock_error_ns = compare_clocks(rounds)
        self._thread = threading.Thread(target=self._listen, name="member", daemon=True)
        self._thread.start()

    def report(self, name: str, value: object = None) -> None:
        self._send(Report(name, value))

    def wait_for(self, name: str, timeout_s: float | None = None) -> Any:
        """The value of the order of this name; Stopped when the coordinator ends the step."""
        while True:
            try:
                order = self._orders.get(timeout=timeout_s)
            except queue.Empty:
                raise Stopped(f"no {name!r} from the coordinator in {timeout_s:g} s") from None
            if order.name == name:
                return order.value
            if order.name == "stop":
                raise Stopped("the coordinator ended the step")

    def on_stop(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """These run when the step is ended from outside; at once if it already was."""
        self._on_stop = callbacks
        if self.stopped.is_set():
            for callback in callbacks:
                callback()

    def close(self) -> None:
        self._closing = True
        self._connection.wake()
        self._thread.join()

    def _time_round_trip(self) -> tuple[int, int, int]:
        """(our clock, the coordinator's, ours again)."""
        start_ns = time.monotonic_ns()
        self._send(Clock(0))
        return start_ns, self._await_clock(), time.monotonic_ns()

    def _await_clock(self) -> int:
        try:
            while (message := self._connection.next(CONNECT_S)) is not None:
                if isinstance(message, Clock):
                    return message.ns
                self._take(message)
        except (ConnectionLost, ProtocolError) as error:
            raise Stopped(f"the coordinator refused this host, or is lost: {error}") from error
        raise Stopped(f"no answer from the coordinator in {CONNECT_S:g} s")

    def _take(self, message: Clock | Order | Failure) -> None:
        if isinstance(message, Failure):
            raise Stopped(f"the coordinator refused this host: {message.to_error()}")
        if isinstance(message, Order) and message.name == "stop":
            self._stop()
        elif isinstance(message, Order) and message.name == "end":
            self._end()
        elif isinstance(message, Order):
            self._orders.put(message)

    def _listen(self) -> None:
        try:
            while not self._closing:
                for message in self._connection.poll():
                    self._take(message)
        except (ConnectionLost, ProtocolError, Stopped):
            pass  # a lost coordinator ends the step as its order would
        self._end()

    def _stop(self) -> None:
        self._orders.put(Order("stop", None))
        self.stopped.set()
        for callback in self._on_stop:
            callback()

    def _end(self) -> None:
        self._stop()
        self.ended.set()

    def _send(self, message: Message) -> None:
        try:
            self._connection.send(message)
        except ConnectionLost as error:
            raise Stopped(f"the coordinator is lost: {error}") from error


def compare_clocks(rounds: Iterable[tuple[int, int, int]]) -> tuple[int, int]:
    """(coordinator's clock less ours, bound of its error) by the shortest round trip."""
    start_ns, coordinator_ns, end_ns = min(rounds, key=lambda times: times[2] - times[0])
    return coordinator_ns - (start_ns + end_ns) // 2, (end_ns - start_ns) // 2
