"""A connection between two programs that know each other: sealed messages and heartbeats.

Each side that polls sends a beat every second. SILENCE_S without a frame, the end of the stream or
a frame that is not ours mean that the other side is lost. One thread receives; any thread may send.
Entry points: `connect`, `accept`, `Connection`. Units: seconds.
"""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import ssl
import threading
import time
from collections import deque
from typing import Generic

from weft.errors import InputError, WeftError
from weft.wire.protocol import (
    FRAME_BYTES,
    Beat,
    ClientHandshake,
    Decoder,
    FrameReader,
    Keys,
    M,
    Message,
    ProtocolError,
    ServerHandshake,
    encode,
    encode_refusal,
    identify_protocol,
)

BEAT_S = 1.0
# Six beats: a full queue of a slow port and a timeout of TCP hold one up for a second or two.
SILENCE_S = 6.0
_CHUNK = 1 << 16
_GREETING_CHUNK = 4096
_PROVOKED_S = 1.0


class ConnectionLost(WeftError):
    """The other side is gone; the text says how that was noticed."""


def set_socket_options(sock: socket.socket) -> None:
    """TCP options: small frames leave at once, and the kernel notices a host that vanished."""
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(tcp, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, round(SILENCE_S * 1000))


def greet(
    sock: socket.socket, token: bytes | None, where: str, *, proof_needed: bool = True
) -> tuple[Keys, dict[str, int | float | None]]:
    """The client's handshake, within the socket's timeout: the keys, and the server's limits."""
    handshake = ClientHandshake(token, where, proof_needed=proof_needed)
    _send_greeting(sock, handshake.hello)
    while handshake.limits is None:
        _send_greeting(sock, handshake.feed(_receive_greeting(sock)))
    assert handshake.keys is not None
    return handshake.keys, handshake.limits


def _send_greeting(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError as error:
        raise ConnectionLost(f"broke off: {error.strerror or error}") from error


def _receive_greeting(sock: socket.socket) -> bytes:
    try:
        data = sock.recv(_GREETING_CHUNK)
    except TimeoutError:
        data = _provoke(sock)
    except OSError as error:
        raise ConnectionLost(f"broke off: {error.strerror or error}") from error
    if not data:
        raise ConnectionLost("closed the connection")
    return data


def _provoke(sock: socket.socket) -> bytes:
    """What a silent server answers to the end of a line, for which those of HTTP wait."""
    problem = f"says nothing for {sock.gettimeout():g} s: it hangs, or is not weft"
    try:
        sock.settimeout(_PROVOKED_S)
        sock.sendall(b"\r\n\r\n")
        return sock.recv(_GREETING_CHUNK)
    except OSError as error:
        raise ConnectionLost(problem) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def speaks_tls(host: str, port: int) -> bool:
    """Whether the server answers the greeting of TLS; most close a connection that begins else."""
    hello = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    with contextlib.suppress(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    try:
        with socket.create_connection((host, port), _PROVOKED_S) as sock:
            sock.sendall(hello.read())
            return identify_protocol(sock.recv(_GREETING_CHUNK)) == "TLS"
    except OSError:
        return False


def connect(
    sock: socket.socket, token: bytes | None, where: str, decoder: Decoder[M]
) -> Connection[M]:
    """The client's end of a connected socket, once both sides know each other."""
    keys, _ = greet(sock, token, where)
    return Connection(sock, keys, decoder, server=False)


def accept(sock: socket.socket, token: bytes | None, decoder: Decoder[M]) -> Connection[M]:
    """The server's end of a connected socket; a refused client gets the reason."""
    handshake = ServerHandshake(token)
    try:
        while handshake.keys is None:
            data = sock.recv(_GREETING_CHUNK)
            if not data:
                raise ConnectionLost("closed the connection")
            sock.sendall(handshake.feed(data))
    except (InputError, ProtocolError) as error:
        with contextlib.suppress(OSError):
            sock.sendall(encode_refusal(error))
        raise
    return Connection(sock, handshake.keys, decoder, server=True)


class Connection(Generic[M]):
    def __init__(
        self,
        sock: socket.socket,
        keys: Keys,
        decoder: Decoder[M],
        *,
        server: bool,
        limit_bytes: int = FRAME_BYTES,
        send_s: float = SILENCE_S,
    ) -> None:
        sock.settimeout(send_s)  # of sends; receives wait in poll
        self._send_s = send_s
        self._socket = sock
        self._send_seal, receive_seal = keys.seals(server=server)
        self._reader = FrameReader(decoder, limit_bytes, receive_seal)
        self._inbox: deque[M] = deque()
        self._sending = threading.Lock()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        self._heard_s = self._beaten_s = time.monotonic()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def local_host(self) -> str:
        return str(self._socket.getsockname()[0])

    @property
    def is_same_host(self) -> bool:
        """Whether the other end is on this host, as far as addresses tell."""
        return bool(self._socket.getsockname()[0] == self._socket.getpeername()[0])

    def send(self, message: Message) -> None:
        with self._sending:
            try:
                self._socket.sendall(encode(message, self._send_seal))
            except TimeoutError as error:
                raise ConnectionLost(f"takes no data for {self._send_s:g} s") from error
            except OSError as error:
                raise ConnectionLost(f"{error.strerror or error}") from error

    def wake(self) -> None:
        """Makes a poll in another thread return."""
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has ended
            self._wake_write.send(b"x")

    def poll(self, timeout_s: float = BEAT_S) -> list[M]:
        """Waits up to the time; returns what came, beats left out. Sends the beats that are due."""
        self.beat()
        due = min(timeout_s, BEAT_S, self._beaten_s + BEAT_S - time.monotonic())
        messages = self._wait(max(0.0, due))
        self.check_alive()
        return messages

    def beat(self) -> None:
        """Sends a beat if one is due."""
        now = time.monotonic()
        if now - self._beaten_s >= BEAT_S:
            self._beaten_s = now
            self.send(Beat())

    def check_alive(self) -> None:
        """Raises ConnectionLost after a long silence; call it once what has come was received."""
        if time.monotonic() - self._heard_s > SILENCE_S:
            raise ConnectionLost(f"silent for {SILENCE_S:g} s")

    def next(self, timeout_s: float) -> M | None:
        """The next message, or None when the time is over. Sends no beats and expects none."""
        deadline = time.monotonic() + timeout_s
        while not self._inbox:
            rest_s = deadline - time.monotonic()
            if rest_s < 0:
                return None
            self._inbox.extend(self._wait(rest_s))
        return self._inbox.popleft()

    def _wait(self, timeout_s: float) -> list[M]:
        messages: list[M] = []
        for descriptor, _ in self._poll.poll(timeout_s * 1000):
            if descriptor == self._wake_read.fileno():
                self._wake_read.recv(_CHUNK)
            else:
                messages += self.receive()
        return messages

    def receive(self) -> list[M]:
        """What has come on a socket that is readable, beats left out."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise ConnectionLost(f"{error.strerror or error}") from error
        if not data:
            raise ConnectionLost("closed the connection")
        self._heard_s = time.monotonic()
        return [message for message in self._reader.feed(data) if not isinstance(message, Beat)]

    def close(self) -> None:
        for sock in (self._socket, self._wake_read, self._wake_write):
            sock.close()
