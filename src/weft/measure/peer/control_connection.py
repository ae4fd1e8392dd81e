"""The control connection once both sides know each other: sealed messages and heartbeats.

Each side sends a beat every second; five seconds without a frame, an end of the stream or a frame
that is not ours mean that the other side is lost. One thread polls; any thread may send.
Entry point: `Connection`. Units: seconds.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from weft.errors import WeftError
from weft.measure.peer.auth import Keys, seals
from weft.measure.peer.protocol import FRAME_BYTES, FrameReader, Message, encode

BEAT_S = 1.0
SILENCE_S = 5.0
_CHUNK = 1 << 16


class ConnectionLost(WeftError):
    """The other side is gone; the text says how that was noticed."""


def tune(sock: socket.socket) -> None:
    """Small frames at once; a host that vanished is noticed by the kernel too."""
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(tcp, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, round(SILENCE_S * 1000))


class Connection:
    def __init__(self, sock: socket.socket, keys: Keys, *, server: bool) -> None:
        sock.settimeout(SILENCE_S)  # of sends; receives wait in poll
        self._socket = sock
        self._send_seal, receive_seal = seals(keys, server=server)
        self._reader = FrameReader(FRAME_BYTES, receive_seal)
        self._sending = threading.Lock()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        self._heard = self._beaten = time.monotonic()

    @property
    def local_host(self) -> str:
        return str(self._socket.getsockname()[0])

    @property
    def same_host(self) -> bool:
        """Whether the other end is on this host, as far as addresses tell."""
        return bool(self._socket.getsockname()[0] == self._socket.getpeername()[0])

    def send(self, message: Mapping[str, Any]) -> None:
        with self._sending:
            try:
                self._socket.sendall(encode(message, self._send_seal))
            except TimeoutError as error:
                raise ConnectionLost(f"takes no data for {SILENCE_S:g} s") from error
            except OSError as error:
                raise ConnectionLost(f"{error.strerror or error}") from error

    def wake(self) -> None:
        """Makes a poll in another thread return."""
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has ended
            self._wake_write.send(b"x")

    def poll(self, timeout_s: float = BEAT_S) -> list[Message]:
        """Waits up to the time; returns what came, beats left out. Sends the beats that are due."""
        now = time.monotonic()
        if now - self._beaten >= BEAT_S:
            self._beaten = now
            self.send({"type": "beat"})
        due = min(timeout_s, BEAT_S, self._beaten + BEAT_S - now)
        found: list[Message] = []
        for descriptor, _ in self._poll.poll(max(0.0, due) * 1000):
            if descriptor == self._wake_read.fileno():
                self._wake_read.recv(_CHUNK)
            else:
                found += self._received()
        if time.monotonic() - self._heard > SILENCE_S:
            raise ConnectionLost(f"silent for {SILENCE_S:g} s")
        return found

    def _received(self) -> list[Message]:
        try:
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise ConnectionLost(f"{error.strerror or error}") from error
        if not data:
            raise ConnectionLost("closed the connection")
        self._heard = time.monotonic()
        return [m for m in self._reader.feed(data) if m["type"] != "beat"]

    def close(self) -> None:
        for sock in (self._socket, self._wake_read, self._wake_write):
            sock.close()
