"""A step of hosts that start together, stop together, and none is missed.

**The coordinator.** Every host of the step joins over TCP. What hosts report is gathered; an order
goes to all at once, so that a start depends on no clock. A host that closes its connection before
it is done, or is silent, is lost; hosts that lose their coordinator stop by themselves.

**A member**, one on each host, joins, reports, waits for orders and stops on request. On joining,
the host's clock is compared with the coordinator's: of many round trips the shortest bounds the
offset by half its length, so starts on different hosts can be compared afterwards. The connection
(`weft.wire`) is the life line. "stop" ends what runs: `stopped` is set and the stop callbacks run;
"end", or a lost connection, also ends the host's part: `ended` is set.
Entry points: `Coordinator`, `HostCalls`; `join`. Units: seconds, ns.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Fleet, HostLost
from weft.wire import (
    BEAT_S,
    SILENCE_S,
    Beat,
    Connection,
    ConnectionLost,
    Decoder,
    Failure,
    Message,
    ProtocolError,
    ServerHandshake,
    connect,
    encode_refusal,
    set_socket_options,
)

# ---- A host -----------------------------------------------------------------------------------

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


# ---- The coordinator --------------------------------------------------------------------------

WAKE_S = 0.2
LOOK_S = 1.0
LEFT = "it has left (its process ended, or its worker was lost)"


@dataclass(eq=False)
class _Guest:
    """A socket: first a handshake, then a connection, then a member."""

    socket: socket.socket
    handshake: ServerHandshake
    connection: Connection[Any] | None = None
    member: str | None = None
    since_s: float = field(default_factory=time.monotonic)
    broken: str = ""  # why nothing can be sent any more; the serving thread drops it


class Coordinator:
    """Listens for the members of one step; a context manager, which stops all that are there."""

    def __init__(self, members: Sequence[str], address: str) -> None:
        self._token = secrets.token_hex(16)
        self._reports: dict[str, dict[str, Any]] = {member: {} for member in members}
        self._guests: dict[str, _Guest] = {}
        self._lost: dict[str, str] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._listener = _listen(address)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="coordinator", daemon=True)
        self._thread.start()

    def invitation(self, member: str) -> Invitation:
        """What a host needs to join, to be sent with its work."""
        host, port = self._listener.getsockname()[:2]
        return Invitation(member=member, host=host, port=port, token=self._token)

    @property
    def all_joined(self) -> bool:
        """Whether every member has connected: from then on its connection shows when it is lost."""
        return len(self._guests) == len(self._reports)

    @property
    def lost_members(self) -> frozenset[str]:
        """Members whose connection has ended."""
        with self._changed:
            return frozenset(self._lost)

    def gather(
        self, name: str, timeout_s: float, check: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """What every member has reported under this name; `check` may raise while we wait."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                self._raise_lost(name)
                missing = [m for m, reports in self._reports.items() if name not in reports]
                if not missing:
                    return {m: reports[name] for m, reports in self._reports.items()}
                check()
                if time.monotonic() > deadline:
                    raise HostLost(missing[0], f"not {name} within {timeout_s:g} s")
                self._changed.wait(WAKE_S)

    def _raise_lost(self, name: str) -> None:
        for member, reason in self._lost.items():
            if name not in self._reports[member]:
                raise HostLost(member, reason)

    def announce(self, name: str, value: object = None) -> None:
        """Sends an order to all members at once."""
        with self._changed:
            guests = list(self._guests.values())
        for guest in guests:
            self._send(guest, Order(name, value))

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._thread.join()
        for guest in self._all_guests():
            self._close(guest)
        self._listener.close()
        self._selector.close()

    # ---- The serving thread -------------------------------------------------------------------

    def _serve(self) -> None:
        next_beat_s = time.monotonic() + BEAT_S
        while not self._closing:
            for key, _ in self._selector.select(WAKE_S):
                if key.data is None:
                    self._welcome()
                else:
                    self._receive(key.data)
            if time.monotonic() >= next_beat_s:
                next_beat_s = time.monotonic() + BEAT_S
                for guest in self._all_guests():
                    self._keep_alive(guest)

    def _all_guests(self) -> list[_Guest]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _welcome(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it has left again, or we have no descriptor: not a reason to end
            return
        with contextlib.suppress(OSError):
            set_socket_options(sock)
        sock.settimeout(BEAT_S)
        guest = _Guest(sock, ServerHandshake(self._token.encode()))
        self._selector.register(sock, selectors.EVENT_READ, guest)

    def _receive(self, guest: _Guest) -> None:
        try:
            if guest.connection is None:
                self._greet(guest)
            else:
                for message in guest.connection.receive():
                    self._take(guest, guest.connection, message)
        except (InputError, ProtocolError) as error:
            with contextlib.suppress(OSError):
                guest.socket.sendall(encode_refusal(error))
            self._drop(guest, f"its connection broke ({error})")
        except ConnectionLost as error:
            self._drop(guest, f"{LEFT}: {error}")
        except OSError as error:
            self._drop(guest, f"its connection broke ({error})")

    def _greet(self, guest: _Guest) -> None:
        data = guest.socket.recv(4096)
        if not data:
            raise ConnectionLost("closed the connection")
        guest.socket.sendall(guest.handshake.feed(data))
        if guest.handshake.keys:
            # A member that takes no data must not hold up the beats of the others.
            guest.connection = Connection(
                guest.socket, guest.handshake.keys, FROM_MEMBER, server=True, send_s=BEAT_S
            )

    def _take(self, guest: _Guest, connection: Connection[Any], message: Message) -> None:
        match message:
            case Clock():  # answered at once: the members' clocks are compared by it
                self._send(guest, Clock(time.monotonic_ns()))
            case Join(member=member) if guest.member is None:
                self._admit(guest, connection, member)
            case Report(name=name, value=value) if guest.member is not None:
                with self._changed:
                    self._reports[guest.member][name] = value
                    self._changed.notify_all()
            case _:
                self._drop(guest, "not a member")

    def _admit(self, guest: _Guest, connection: Connection[Any], member: str) -> None:
        problem = ""
        if member not in self._reports:
            problem = "is not a host of this step"
        elif member in self._guests:
            problem = "has already joined"
        if problem:
            with contextlib.suppress(ConnectionLost):
                connection.send(Failure(f"host {member}", problem, "start one worker per host"))
            self._drop(guest, "refused")
            return
        guest.member = member
        with self._changed:
            self._guests[member] = guest
            self._changed.notify_all()

    def _keep_alive(self, guest: _Guest) -> None:
        if guest.broken:
            self._drop(guest, guest.broken)
        elif guest.member is None or guest.connection is None:
            if time.monotonic() - guest.since_s > SILENCE_S:
                self._drop(guest, "did not join")
        else:
            try:
                guest.connection.check_alive()
                guest.connection.beat()
            except ConnectionLost as error:
                self._drop(guest, f"no sign of life from it ({error})")

    def _send(self, guest: _Guest, message: Message) -> None:
        try:
            if guest.connection is not None and not guest.broken:
                guest.connection.send(message)
        except ConnectionLost as error:
            guest.broken = f"its connection broke ({error})"

    def _drop(self, guest: _Guest, reason: str) -> None:
        if guest in self._all_guests():
            self._selector.unregister(guest.socket)
            self._close(guest)
        if guest.member is not None:
            with self._changed:
                self._lost.setdefault(guest.member, reason)
                self._changed.notify_all()

    def _close(self, guest: _Guest) -> None:
        (guest.connection or guest.socket).close()


def _listen(address: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address, 0), family=family, backlog=128)
    except OSError as error:
        raise InputError(
            f"coordinator address {address}",
            str(error.strerror or error),
            "set `coordinator` in the plan to an address of this machine that the hosts reach",
        ) from error


@dataclass(slots=True)
class HostCalls:
    """The call that runs on each host, and the coordinator that the calls have joined.

    What a call raises, and the loss of a host, come out of `gather`.
    """

    coordinator: Coordinator
    fleet: Fleet
    calls: Mapping[str, Future[None]]
    _looked_s: float = 0.0

    def gather(self, name: str, timeout_s: float) -> dict[str, Any]:
        """What all report; for a host that left because of an error, that error."""
        try:
            return self.coordinator.gather(name, timeout_s, self._check)
        except HostLost as lost:
            wait([self.calls[lost.host]], timeout=LOOK_S)
            self._check()
            raise

    def _check(self) -> None:
        """Raises what a host's call raised, and reports hosts that were lost before they joined.

        Once a host has joined, its connection shows when it is lost.
        """
        for host, future in self.calls.items():
            if future.done():
                _raise_failure(host, future)
        if time.monotonic() - self._looked_s > LOOK_S and not self.coordinator.all_joined:
            self._looked_s = time.monotonic()
            for host, reason in self.fleet.find_lost().items():
                raise HostLost(host, reason)

    def close(self, wait_s: float) -> list[str]:
        """Ends all calls; the hosts whose calls have not ended by then.

        Hosts that are lost already are not waited for.
        """
        lost = self.coordinator.lost_members
        reachable = {host: call for host, call in self.calls.items() if host not in lost}
        self.coordinator.announce("end")
        wait(reachable.values(), timeout=wait_s)
        return [host for host, call in reachable.items() if not call.done()]


def _raise_failure(host: str, future: Future[None]) -> None:
    """Raises why a call ended too early: its own error, or a lost host."""
    if future.cancelled():
        raise HostLost(host, "its worker cancelled the call")
    error = future.exception()
    if error is None:
        return  # it has just been stopped, or has lost us: its connection shows which
    if isinstance(error, BrokenProcessPool):
        raise HostLost(host, "its process has died")
    if isinstance(error, Stopped | OSError):
        raise HostLost(host, f"it does not reach the coordinator ({error})")
    raise error
