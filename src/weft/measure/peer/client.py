"""The client's side of a control connection: open a peer, open channels to it.

    with open_peer("node7") as peer, peer.open([spec]) as channels:
        channels.start()
        result = ping_pong(channels.endpoints[0], loop, channels.stop)
        counts = channels.finish()

A thread answers heartbeats and sets `channels.stop` when the peer is lost.
Entry point: `open_peer`. Units: seconds.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any, Self

from weft.errors import InputError, WeftError
from weft.measure.peer.auth import ClientHandshake, Keys, read_token
from weft.measure.peer.channel import ChannelSpec
from weft.measure.peer.channels import Channels, all_of
from weft.measure.peer.control_connection import Connection, ConnectionLost, tune
from weft.measure.peer.limits import Limits
from weft.measure.peer.local_server import LocalServer
from weft.measure.peer.loss import PeerLost
from weft.measure.peer.protocol import DEFAULT_PORT, Message, ProtocolError, error_of

CONNECT_S = 5.0
REPLY_S = 20.0
_CHUNK = 4096
LOCAL = "local"


def open_peer(where: str = LOCAL, token: bytes | None = None) -> Peer:
    """Connects to `weft serve` at HOST[:PORT], or starts one for us ("local").

    The token is the given one, else that of WEFT_TOKEN.
    """
    if where == LOCAL:
        server = LocalServer()
        try:
            return _connected("127.0.0.1", server.port, server.token, True, server)
        except WeftError:
            server.close()
            raise
    host, port = split_address(where)
    strict = token is not None or not _is_loopback(host)
    return _connected(host, port, token if token is not None else read_token(None), strict, None)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT, [V6]:PORT or a bare V6."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(f"peer {text!r}", "is not HOST[:PORT]", "such as node7 or [::1]:9338")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _connected(
    host: str, port: int, token: bytes | None, proof_needed: bool, server: LocalServer | None
) -> Peer:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    sock = _dial(host, port, where)
    try:
        handshake = ClientHandshake(token, where, proof_needed=proof_needed)
        keys, limits = _greet(sock, handshake, where)
    except WeftError:
        sock.close()
        raise
    peer = Peer(Connection(sock, keys, server=False), where, limits)
    try:
        peer.facts = peer.ask({"type": "describe"}, "description")["facts"]
    except WeftError:
        peer.close()
        raise
    peer.server = server
    return peer


def _dial(host: str, port: int, where: str) -> socket.socket:
    try:
        sock = socket.create_connection((host, port), CONNECT_S)
    except ConnectionRefusedError as error:
        loopback = _is_loopback(host)
        start = "weft serve" if loopback else f"weft serve --listen {host} --token-file FILE ..."
        raise InputError(where, "no weft serve there", f"start it there: {start}") from error
    except TimeoutError as error:
        raise InputError(
            where, f"no answer within {CONNECT_S:g} s", "check host, port and firewall"
        ) from error
    except OSError as error:
        raise InputError(where, f"{error.strerror or error}", "check host and port") from error
    tune(sock)
    return sock


def _greet(sock: socket.socket, handshake: ClientHandshake, where: str) -> tuple[Keys, Limits]:
    sock.settimeout(CONNECT_S)
    try:
        sock.sendall(handshake.hello)
        while handshake.keys is None or handshake.limits is None:
            data = sock.recv(_CHUNK)
            if not data:
                raise InputError(where, "closed the connection", "is it weft serve, not full?")
            sock.sendall(handshake.feed(data))
        return handshake.keys, Limits.from_wire(handshake.limits)
    except ProtocolError as error:
        raise InputError(where, f"is not weft serve: {error}", "check host and port") from error
    except OSError as error:
        raise InputError(where, f"{error.strerror or error}", "check host and port") from error


class Peer:
    """A `weft serve` that we talk to; close it, or use it as a context."""

    def __init__(self, connection: Connection, where: str, limits: Limits) -> None:
        self.where = where
        self.limits = limits
        self.facts: Mapping[str, str | int | float] = {}
        self.server: LocalServer | None = None  # if it is ours: ended with us
        self._connection = connection
        self._replies: SimpleQueue[Message | None] = SimpleQueue()
        self._lost = ""
        self._closing = False
        self._on_stop: Callable[[InputError | None], None] | None = None
        self._thread = threading.Thread(target=self._listen, name=f"peer {where}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def availability(self) -> list[dict[str, Any]]:
        """The peer's transports, devices and providers, and why others cannot be used."""
        found: list[dict[str, Any]] = self.ask({"type": "survey"}, "surveyed")["availability"]
        return found

    def open(self, channels: Sequence[ChannelSpec]) -> Channels:
        """Both sides check, open, exchange addresses and connect; says all that does not fit.

        A peer has one test at a time; who needs two opens it twice.
        """
        if self._on_stop is not None:
            raise InputError(self.where, "has channels open", "close them, or open another peer")
        return Channels(self, channels)

    @property
    def local_host(self) -> str:
        return self._connection.local_host

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._lost:
            try:
                self._connection.send({"type": "bye"})
            except ConnectionLost as error:
                self._lose(str(error))
        self._connection.wake()
        self._thread.join()
        self._connection.close()
        if self.server is not None:
            self.server.close()

    # ---- For Channels -------------------------------------------------------------------------

    def watch(self, on_stop: Callable[[InputError | None], None] | None) -> None:
        """Called, in another thread, when the server stops the test, or (None) is lost."""
        self._on_stop = on_stop
        if on_stop is not None and self._lost:
            on_stop(None)

    def send(self, message: Message) -> None:
        self.check()
        try:
            self._connection.send(message)
        except ConnectionLost as error:
            self._lose(str(error))
            self.check()

    def reply(self, kind: str, within_s: float = REPLY_S) -> Message:
        """The next reply, which must be of this kind; a refusal is raised."""
        try:
            message = self._replies.get(timeout=within_s)
        except Empty:
            self._lose(f"no answer within {within_s:g} s")
            message = None
        if message is None:
            self.check()
            raise PeerLost(f"{self.where}: closed here")
        if message["type"] == "refused":
            raise all_of(self.where, [error_of(p) for p in message["problems"]])
        if message["type"] != kind:
            self._lose(f"answered {message['type']}, not {kind}")
            self.check()
        return message

    def ask(self, message: Message, kind: str, within_s: float = REPLY_S) -> Message:
        self.send(message)
        return self.reply(kind, within_s)

    def check(self) -> None:
        """Raises PeerLost once the peer is lost."""
        if self._lost:
            raise PeerLost(self._lost)

    def lost_within(self, seconds: float) -> bool:
        """Whether the peer turns out to be lost: a data connection may break first."""
        deadline = time.monotonic() + seconds
        while not self._lost and time.monotonic() < deadline:
            time.sleep(0.01)
        return bool(self._lost)

    # ---- The listening thread -----------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while not self._closing and not self._lost:
                for message in self._connection.poll():
                    self._take(message)
        except ConnectionLost as error:
            self._lose(str(error))
        except ProtocolError as error:
            self._lose(f"is not to be understood: {error}")
        self._replies.put(None)

    def _take(self, message: Message) -> None:
        if message["type"] == "stopped":
            if self._on_stop is not None:
                self._on_stop(error_of(message))
        elif message["type"] == "error":
            self._lose(str(error_of(message)))
        else:
            self._replies.put(message)

    def _lose(self, why: str) -> None:
        if not self._lost and not self._closing:
            self._lost = f"{self.where}: peer lost: {why}"
            self._connection.wake()
        if self._on_stop is not None:
            self._on_stop(None)
