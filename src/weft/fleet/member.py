"""A host's side of a step: join the coordinator, report, wait for its word, stop when told.

On joining, the host's clock is compared with the coordinator's: of many round trips the shortest
bounds the offset by half its length, so starts on different hosts can be compared afterwards.
The connection is the life line. "stop" ends what runs: `stopped` is set and the stop callbacks
run; "end", or the end of the connection, is also the end of the host's part: `ended` is set.
Entry point: `join`. Units: ns, seconds.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from weft.errors import WeftError
from weft.fleet.messages import SILENT_S, Lines, Message, packed, proof

CLOCK_ROUNDS = 50
CONNECT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """How a host finds the coordinator of a step."""

    member: str
    host: str
    port: int
    token: str


class Stopped(WeftError):
    """The coordinator has ended the step."""


@contextmanager
def join(invitation: Invitation) -> Iterator[Member]:
    """The step's member of this host, until the context ends."""
    where = (invitation.host, invitation.port)
    with socket.create_connection(where, timeout=CONNECT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        member = Member(connection, invitation)
        try:
            yield member
        finally:
            member.close()


class Member:
    """One host in one step."""

    def __init__(self, connection: socket.socket, invitation: Invitation) -> None:
        self._socket = connection
        self._lines = Lines()
        self._heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._on_stop: Sequence[Callable[[], None]] = ()
        self.stopped = threading.Event()
        self.ended = threading.Event()
        nonce = self._next()["value"]
        answer = {"member": invitation.member, "proof": proof(invitation.token, nonce)}
        self._send(packed("join", answer))
        self.clock_offset_ns, self.clock_error_ns = self._compare_clocks()
        connection.settimeout(SILENT_S)
        threading.Thread(target=self._listen, name="member", daemon=True).start()

    def report(self, kind: str, value: object = None) -> None:
        self._send(packed(kind, value))

    def wait_for(self, kind: str, timeout_s: float | None = None) -> Any:
        """The value that the coordinator tells under this name; Stopped when it ends the step."""
        while True:
            try:
                message = self._heard.get(timeout=timeout_s)
            except queue.Empty:
                raise Stopped(f"no {kind!r} from the coordinator in {timeout_s:g} s") from None
            if message["kind"] == kind:
                return message["value"]
            if message["kind"] == "stop":
                raise Stopped("the coordinator ended the step")

    def on_stop(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """These run when the step is ended from outside; at once if it has been."""
        self._on_stop = callbacks
        if self.stopped.is_set():
            for callback in callbacks:
                callback()

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the coordinator was faster
            return

    def _compare_clocks(self) -> tuple[int, int]:
        """(coordinator's clock less ours, bound of its error)."""
        rounds = [self._clock_round() for _ in range(CLOCK_ROUNDS)]
        length, offset = min(rounds)
        return offset, length // 2

    def _clock_round(self) -> tuple[int, int]:
        start = time.monotonic_ns()
        self._send(packed("clock"))
        theirs = self._next()["value"]
        end = time.monotonic_ns()
        return end - start, theirs - (start + end) // 2

    def _next(self) -> Message:
        while self._heard.empty():
            if not self._receive():
                raise Stopped("the coordinator refused this host, or is gone")
        return self._heard.get()

    def _receive(self) -> bool:
        data = self._socket.recv(65536)
        for message in self._lines.feed(data):
            match message["kind"]:
                case "beat":
                    self._send(packed("beat"))
                case "stop":
                    self._stop()
                case "end":
                    self._end()
                case _:
                    self._heard.put(message)
        return bool(data)

    def _listen(self) -> None:
        try:
            while self._receive():
                pass
        except (OSError, ValueError):
            pass  # a lost coordinator ends the step as its word would
        self._end()

    def _stop(self) -> None:
        self._heard.put({"kind": "stop", "value": None})
        self.stopped.set()
        for callback in self._on_stop:
            callback()

    def _end(self) -> None:
        self._stop()
        self.ended.set()

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._socket.sendall(data)
