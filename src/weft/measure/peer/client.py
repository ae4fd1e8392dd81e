"""The client's side of a measurement: open a peer, open channels to it.

    with open_peer("node7") as peer, peer.open([spec]) as channels:
        channels.start()
        result = ping_pong(channels.endpoints[0], loop, channels.stop)
        counts = channels.finish()

A thread keeps the control connection alive and sets `channels.stop` when the peer is lost.
`LocalServer` is a private server on loopback. Entry point: `open_peer`. Units: seconds.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

from weft._core import Endpoint, EndpointConfig, StopFlag
from weft.errors import InputError, WeftError
from weft.measure.interrupt import Interrupt
from weft.measure.peer import negotiation
from weft.measure.peer.channel_spec import (
    ChannelSpec,
    bind_to_host,
    client_fields,
    encode_channel,
    endpoint_config,
    limit_problems,
    read_channels,
)
from weft.measure.peer.negotiation import Limits, find_excess, find_missing_transports
from weft.wire import (
    TOKEN_VARIABLE,
    Connection,
    ConnectionLost,
    Failure,
    ForeignProtocol,
    Keys,
    Message,
    ProtocolError,
    greet,
    is_loopback,
    read_token,
    set_socket_options,
    speaks_tls,
)

CONNECT_S = 5.0
REPLY_S = 20.0
CONNECT_MS = 5000
LOCAL = "local"
CHECK_ADDRESS = "check host and port"
_CONNECTED_S = 10.0
_FINISHED_S = 9.0
_NOTICE_S = 0.3
ReplyType = TypeVar("ReplyType", bound=Message)


class PeerLost(WeftError):
    """The peer died, or cannot be reached any more; what was measured before is good."""


class PeerStopped(WeftError):
    """The peer ended the test: a bound that its owner set, or a failure of its loop."""


def open_peer(where: str = LOCAL, token: bytes | None = None) -> Peer:
    """Connects to `weft serve` at HOST[:PORT], or starts one for us ("local").

    The token is the given one, else that of WEFT_TOKEN.
    """
    if where == LOCAL:
        server = LocalServer()
        try:
            return _connect("127.0.0.1", server.port, server.token, True, server)
        except WeftError:
            server.close()
            raise
    host, port = split_address(where)
    strict = token is not None or not is_loopback(host)
    return _connect(host, port, token if token is not None else read_token(None), strict, None)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT, [V6]:PORT or a bare V6."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = text, str(negotiation.DEFAULT_PORT)
    is_balanced = host.startswith("[") == host.endswith("]")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65535
    if not (host and is_balanced and is_port):
        raise InputError(f"peer {text!r}", "is not HOST[:PORT]", "such as node7 or [::1]:9338")
    return host, int(port)


def _connect(
    host: str, port: int, token: bytes | None, proof_needed: bool, server: LocalServer | None
) -> Peer:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    sock = _dial(host, port, where)
    try:
        keys, limits = _greet(sock, token, where, proof_needed)
    except WeftError as error:
        sock.close()
        if isinstance(error.__cause__, ConnectionLost) and speaks_tls(host, port):
            raise InputError(where, "speaks TLS, not weft", CHECK_ADDRESS) from error
        raise
    connection: Connection[negotiation.Reply] = Connection(
        sock, keys, negotiation.REPLIES, server=False, limit_bytes=negotiation.FRAME_BYTES
    )
    peer = Peer(connection, where, limits)
    try:
        peer.facts = peer.ask(negotiation.Describe(), negotiation.Description).facts
    except WeftError:
        peer.close()
        raise
    peer.server = server
    return peer


def _dial(host: str, port: int, where: str) -> socket.socket:
    try:
        sock = socket.create_connection((host, port), CONNECT_S)
    except ConnectionRefusedError as error:
        loopback = is_loopback(host)
        start = "weft serve" if loopback else f"weft serve --listen {host} --token-file FILE ..."
        raise InputError(where, "no weft serve there", f"start it there: {start}") from error
    except TimeoutError as error:
        raise InputError(
            where, f"no answer within {CONNECT_S:g} s", "check host, port and firewall"
        ) from error
    except OSError as error:
        raise InputError(where, f"{error.strerror or error}", CHECK_ADDRESS) from error
    set_socket_options(sock)
    return sock


def _greet(
    sock: socket.socket, token: bytes | None, where: str, proof_needed: bool
) -> tuple[Keys, Limits]:
    sock.settimeout(CONNECT_S)
    try:
        keys, limits = greet(sock, token, where, proof_needed=proof_needed)
        return keys, Limits.from_wire(limits)
    except ConnectionLost as error:
        raise InputError(
            where, str(error), "check that it is weft serve and has a session free"
        ) from error
    except ForeignProtocol as error:
        raise InputError(where, str(error), CHECK_ADDRESS) from error
    except ProtocolError as error:
        raise InputError(where, f"is not weft serve: {error}", CHECK_ADDRESS) from error


class Peer:
    """A `weft serve` that we talk to; close it, or use it as a context."""

    def __init__(
        self, connection: Connection[negotiation.Reply], where: str, limits: Limits
    ) -> None:
        self.where = where
        self.limits = limits
        self.facts: Mapping[str, str | int | float] = {}
        self.server: LocalServer | None = None  # if it is ours: ended with us
        self._connection = connection
        self._replies: SimpleQueue[negotiation.Reply | None] = SimpleQueue()
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
        return self.ask(negotiation.Survey(), negotiation.Surveyed).availability

    def open(self, channels: Sequence[ChannelSpec]) -> Channels:
        """Both sides check, open, exchange addresses and connect; raises all problems at once.

        A peer has one test at a time: for two tests, open the peer twice.
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
                self._connection.send(negotiation.Bye())
            except ConnectionLost as error:
                self._lose(str(error))
        self._connection.wake()
        self._thread.join()
        self._connection.close()
        if self.server is not None:
            self.server.close()

    # ---- For Channels -------------------------------------------------------------------------

    def watch(self, on_stop: Callable[[InputError | None], None] | None) -> None:
        """Another thread calls `on_stop` when the server stops the test, or is lost (None)."""
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

    def receive_reply(self, kind: type[ReplyType], within_s: float = REPLY_S) -> ReplyType:
        """The next reply, which must be of this kind; a refusal is raised."""
        try:
            message = self._replies.get(timeout=within_s)
        except Empty:
            self._lose(f"no answer within {within_s:g} s")
            message = None
        if isinstance(message, kind):
            return message
        if isinstance(message, negotiation.Refused):
            raise combine_errors(self.where, [problem.to_error() for problem in message.problems])
        if message is not None:
            self._lose(f"answered {message.kind}, not {kind.__name__.lower()}")
        self.check()
        raise PeerLost(f"{self.where}: closed here")

    def ask(self, message: Message, kind: type[ReplyType], within_s: float = REPLY_S) -> ReplyType:
        self.send(message)
        return self.receive_reply(kind, within_s)

    def check(self) -> None:
        """Raises PeerLost once the peer is lost."""
        if self._lost:
            raise PeerLost(self._lost)

    def is_lost_within(self, seconds: float) -> bool:
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
            self._lose(f"sent what no weft of this version sends: {error}")
        self._replies.put(None)

    def _take(self, message: negotiation.Reply) -> None:
        if isinstance(message, negotiation.Stopped):
            if self._on_stop is not None:
                self._on_stop(message.reason.to_error())
        elif isinstance(message, Failure):
            self._lose(str(message.to_error()))
        else:
            self._replies.put(message)

    def _lose(self, why: str) -> None:
        if not self._lost and not self._closing:
            self._lost = f"{self.where}: peer lost: {why}"
            self._connection.wake()
        if self._on_stop is not None:
            self._on_stop(None)


class Channels:
    """Connected endpoints on both sides; close it, or use it as a context.

    `stop` is for the client's loops: it is set when the peer is lost, when the server ends the
    test, and on Ctrl-C between `start` and `finish` (then `interrupted` is true and `finish` works
    as usual). A loop's error that comes of a lost peer leaves the context as PeerLost.
    """

    def __init__(self, peer: Peer, specs: Sequence[ChannelSpec]) -> None:
        self._peer = peer
        self._is_open_at_peer = False
        self._stopped: InputError | None = None
        self.stop = StopFlag()
        self._interrupt = Interrupt(self.stop)
        self.endpoints: list[Endpoint] = []
        self.descriptions: list[tuple[dict[str, str], dict[str, str]]] = []
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            self._open(specs)
            on_failure.pop_all()

    @property
    def interrupted(self) -> bool:
        return self._interrupt.is_set

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if isinstance(error, InputError):
                self._explain(error)
        finally:
            self.close()

    def _explain(self, error: InputError) -> None:
        """The data connection may break before we know why."""
        try:
            if self._peer.is_lost_within(_NOTICE_S):
                self._peer.check()
            self._check_stopped()
        except (PeerLost, PeerStopped) as reason:
            raise reason from error

    def _check_stopped(self) -> None:
        if self._stopped is not None:
            raise PeerStopped(f"{self._peer.where}: {self._stopped}")

    def start(self) -> None:
        """The server's loops run from here on."""
        self._interrupt.__enter__()
        self._peer.ask(negotiation.Start(), negotiation.Started)

    def finish(self, sent: int | Sequence[int] | None = None) -> list[negotiation.Counts]:
        """Ends the server's loops; their counts, one per thread, in the order of thread numbers.

        `sent` is how many messages went to each thread, so that receivers wait for all of
        them. Counts of a duplex loop are what it received; what it sent is under "sender".
        """
        counts = [sent] if isinstance(sent, int) else sent if sent is None else list(sent)
        try:
            reply = self._peer.ask(negotiation.Finish(counts), negotiation.Finished, _FINISHED_S)
        finally:
            self._is_open_at_peer = False
            self._interrupt.__exit__()
        self._check_stopped()
        return reply.counts

    def close(self) -> None:
        self._interrupt.__exit__()
        self._peer.watch(None)
        for endpoint in self.endpoints:
            endpoint.close()
        self.endpoints = []
        if self._is_open_at_peer:
            self._is_open_at_peer = False
            with suppress(WeftError):  # lost: then nothing is open there
                self._peer.ask(negotiation.Close(), negotiation.Closed, _CONNECTED_S)

    # ---- Opening ------------------------------------------------------------------------------

    def _open(self, specs: Sequence[ChannelSpec]) -> None:
        requests = [encode_channel(spec) for spec in specs]
        self._check(requests)
        for spec in specs:
            self.endpoints.append(Endpoint.open(self._config(spec)))
        reply = self._peer.ask(negotiation.Open(requests), negotiation.Opened)
        self._is_open_at_peer = True
        self._peer.watch(self._on_stop)
        self._connect(reply.addresses)

    def _check(self, requests: Sequence[dict[str, Any]]) -> None:
        """The server checks too; here it costs nothing, and its limits are known."""
        channels, problems = read_channels(requests)
        problems += find_excess(channels, self._peer.limits)
        problems += find_missing_transports(channels) if not problems else []
        if problems:
            raise combine_errors(self._peer.where, limit_problems(problems))

    def _config(self, spec: ChannelSpec) -> EndpointConfig:
        fields = bind_to_host(client_fields(spec), self._peer.local_host)
        return endpoint_config(fields, server=False)

    def _connect(self, peer_addresses: Sequence[bytes]) -> None:
        self._peer.send(negotiation.Connect([endpoint.address() for endpoint in self.endpoints]))
        failure: InputError | None = None
        try:
            for endpoint, address in zip(self.endpoints, peer_addresses, strict=True):
                endpoint.connect(address, CONNECT_MS)
        except InputError as error:
            failure = error
        try:
            reply = self._peer.receive_reply(negotiation.Connected, _CONNECTED_S)
        except InputError as error:
            self._is_open_at_peer = False
            raise _combine_sides(failure, error) from failure
        if failure is not None:
            raise failure
        for endpoint, description in zip(self.endpoints, reply.descriptions, strict=True):
            self.descriptions.append((endpoint.describe(), description))

    def _on_stop(self, reason: InputError | None) -> None:
        self._stopped = self._stopped or reason
        self.stop.set()


def _combine_sides(client_error: InputError | None, peer_error: InputError) -> InputError:
    if client_error is None:
        return peer_error
    problem = f"{client_error.problem}; the peer says: {peer_error}"
    return InputError(client_error.where, problem, client_error.remedy)


def combine_errors(where: str, errors: Sequence[InputError]) -> InputError:
    """One error that lists all."""
    if len(errors) == 1:
        return InputError(f"{where}: {errors[0].where}", errors[0].problem, errors[0].remedy)
    listed = "; ".join(f"({n}) {error}" for n, error in enumerate(errors, 1))
    return InputError(where, f"{len(errors)} problems: {listed}")


_START_S = 60.0
_END_S = 8.0


class LocalServer:
    def __init__(self, address: str = "127.0.0.1", token: bytes | None = None) -> None:
        self.token = token or secrets.token_hex(32).encode()
        # Only its starter knows the token: limits would protect nobody.
        bounds = [f"--max-{name}=unlimited" for name in ("size", "duration", "rate", "sessions")]
        listen = f"[{address}]:0" if ":" in address else f"{address}:0"
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "weft.cli",
                "serve",
                "--listen",
                listen,
                *bounds,
                "--json",
                "--until-stdin-closes",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {TOKEN_VARIABLE: self.token.decode()},
            start_new_session=True,  # Ctrl-C is for the client: the counts are still to come
        )
        try:
            self.port = self._read_port()
        except InputError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read_port(self) -> int:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise InputError("local peer", "the server process did not start", "see its message")
        port: int = json.loads(line)["addresses"][0][1]
        return port

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
