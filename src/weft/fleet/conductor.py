"""The coordinator's side of a step: all hosts start together, stop together, and none is missed.

Every host of the step joins over TCP (`member.py`). What a host reports is gathered; what the
coordinator tells goes to all in one go, so that a start depends on no clock. A host that closes
its connection before it is done, or is silent for SILENT_S, is lost; hosts whose coordinator is
gone stop by themselves. Entry point: `Conductor`. Units: seconds, ns.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from types import TracebackType
from typing import Any

from weft.errors import InputError
from weft.fleet.fleet import HostLost
from weft.fleet.member import Invitation
from weft.fleet.messages import (
    BEAT_S,
    LONGEST_GREETING,
    LONGEST_LINE,
    SILENT_S,
    Lines,
    Message,
    packed,
    proof,
)

WAKE_S = 0.2


@dataclass(eq=False)
class _Guest:
    """A connection, of a member once its proof is right."""

    socket: socket.socket
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    lines: Lines = field(default_factory=lambda: Lines(LONGEST_GREETING))
    member: str | None = None
    heard_s: float = field(default_factory=time.monotonic)
    sending: threading.Lock = field(default_factory=threading.Lock)


class Conductor:
    """Listens for the members of one step; a context manager, which stops whoever is left."""

    def __init__(self, members: Sequence[str], address: str) -> None:
        self._token = secrets.token_hex(16)
        self._reports: dict[str, dict[str, Any]] = {member: {} for member in members}
        self._guests: dict[str, _Guest] = {}
        self._gone: dict[str, str] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._listener = _listen(address)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="conductor", daemon=True)
        self._thread.start()

    def invitation(self, member: str) -> Invitation:
        """What a host needs to join, to be sent with its work."""
        host, port = self._listener.getsockname()[:2]
        return Invitation(member=member, host=host, port=port, token=self._token)

    @property
    def all_joined(self) -> bool:
        """From then on a lost host is known by its connection."""
        return len(self._guests) == len(self._reports)

    @property
    def gone(self) -> frozenset[str]:
        """Members whose connection has ended."""
        with self._changed:
            return frozenset(self._gone)

    def gather(
        self, kind: str, timeout_s: float, check: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """What every member has reported under this name; `check` may raise while we wait."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                self._raise_lost(kind)
                missing = [m for m, reports in self._reports.items() if kind not in reports]
                if not missing:
                    return {m: reports[kind] for m, reports in self._reports.items()}
                check()
                if time.monotonic() > deadline:
                    raise HostLost(missing[0], f"not {kind} within {timeout_s:g} s")
                self._changed.wait(WAKE_S)

    def _raise_lost(self, kind: str) -> None:
        for member, why in self._gone.items():
            if kind not in self._reports[member]:
                raise HostLost(member, why)

    def tell(self, kind: str, value: object = None) -> None:
        """To all members at once."""
        data = packed(kind, value)
        with self._changed:
            guests = list(self._guests.values())
        for guest in guests:
            self._send(guest, data)

    def __enter__(self) -> Conductor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _serve(self) -> None:
        next_beat = time.monotonic() + BEAT_S
        while not self._closing:
            for key, _ in self._selector.select(WAKE_S):
                if key.data is None:
                    self._welcome()
                else:
                    self._hear(key.data)
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_S
                self._beat()

    def _welcome(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has left again, or we have no descriptor: not a reason to end
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(BEAT_S)
        guest = _Guest(socket=connection)
        self._selector.register(connection, selectors.EVENT_READ, guest)
        self._send(guest, packed("nonce", guest.nonce))

    def _hear(self, guest: _Guest) -> None:
        try:
            data = guest.socket.recv(65536)
            messages = guest.lines.feed(data)
        except (OSError, ValueError) as error:
            self._drop(guest, f"its connection broke ({error})")
            return
        if not data:
            self._drop(guest, "it has left (its process ended, or its worker was lost)")
        guest.heard_s = time.monotonic()
        for message in messages:
            self._take(guest, message)

    def _take(self, guest: _Guest, message: Message) -> None:
        match message["kind"]:
            case "clock":  # answered at once: the members' clocks are compared by it
                self._send(guest, packed("clock", time.monotonic_ns()))
            case "beat":
                pass
            case "join" if guest.member is None:
                self._admit(guest, message.get("value"))
            case kind if guest.member is not None:
                with self._changed:
                    self._reports[guest.member][kind] = message.get("value")
                    self._changed.notify_all()
            case _:
                self._drop(guest, "not a member")

    def _admit(self, guest: _Guest, value: Any) -> None:
        told = value if isinstance(value, dict) else {}
        member, given = str(told.get("member")), str(told.get("proof"))
        right = proof(self._token, guest.nonce)
        known = member in self._reports and member not in self._guests
        if not known or not compare_digest(given.encode(), right.encode()):
            self._drop(guest, "refused")
            return
        guest.member = member
        guest.lines.longest = LONGEST_LINE
        with self._changed:
            self._guests[member] = guest
            self._changed.notify_all()

    def _beat(self) -> None:
        now = time.monotonic()
        for key in list(self._selector.get_map().values()):
            if key.data is not None and now - key.data.heard_s > SILENT_S:
                self._drop(key.data, f"no word from it for {SILENT_S:g} s")
            elif key.data is not None and key.data.member is not None:
                self._send(key.data, packed("beat"))

    def _send(self, guest: _Guest, data: bytes) -> None:
        try:
            with guest.sending:
                guest.socket.sendall(data)
        except OSError:  # the next beat drops it
            guest.heard_s = float("-inf")

    def _drop(self, guest: _Guest, why: str) -> None:
        if guest.socket in [key.fileobj for key in self._selector.get_map().values()]:
            self._selector.unregister(guest.socket)
            guest.socket.close()
        if guest.member is not None:
            with self._changed:
                self._gone.setdefault(guest.member, why)
                self._changed.notify_all()


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
