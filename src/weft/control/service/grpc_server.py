"""The service over gRPC.

A caller is identified by the name in its certificate, by the user behind the Unix socket (whose
connections arrive by `GrpcServer.tunnel`, each under a name of its own), or, on loopback without
TLS, by the user behind the TCP socket. A call ends at its deadline, or after the longest time
allowed if it has none; what has not begun by then is not carried out. Beyond loopback the server
requires mutual TLS.
Entry point: `start`. Units: seconds.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from weft.control.client.grpc_link import read_pem_files
from weft.control.runtime.config import Limits, Tls
from weft.control.service import weft_pb2 as pb
from weft.control.service.access import Identity, build_certificate_identity, find_user_identity
from weft.control.service.calls import Call, Calls
from weft.control.service.limits import Caller, RateLimits
from weft.control.service.local_socket import Connection
from weft.control.service.methods import (
    CALL,
    METHODS,
    REFUSED_MARK,
    SERVICE,
    UNARY,
    reply_class,
    request_class,
)
from weft.control.service.refusals import Refused, invalid
from weft.errors import InputError
from weft.host.net.marking import find_socket_owner
from weft.records.store import explain_file_errors
from weft.wire import is_loopback

_MAX_STREAMS = 32  # calls at once on one connection; more wait on the caller's side
_HANDSHAKE_S, _IDLE_S = 5.0, 300.0  # until a connection that says nothing, or no more, is closed


class GrpcServer:
    """Handlers of every method that the service's description has."""

    def __init__(self, calls: Calls, limits: Limits, rates: RateLimits) -> None:
        self._calls, self._limits, self._rates = calls, limits, rates
        self.listeners: list[tuple[str, int]] = []  # TCP without TLS, once it listens
        self._inner = -1
        self.inner = ""  # the path of the socket that tunnels lead to
        self._tunnels: dict[str, Connection] = {}  # by the name of their end at `inner`
        self._names = (f"weft-{secrets.token_hex(16)}-{number}" for number in count())

    def open_inner(self, path: str) -> None:
        """Keeps the socket that tunnels lead to: nobody else can, once its path is removed."""
        self._inner = os.open(path, os.O_PATH | os.O_CLOEXEC)
        self.inner = f"/proc/self/fd/{self._inner}"

    def close(self) -> None:
        os.close(self._inner)

    def handlers(self) -> grpc.GenericRpcHandler:
        handlers = {name: self._handler(name) for name in METHODS}
        return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)

    def _handler(self, name: str) -> grpc.RpcMethodHandler:
        # Requests come as bytes: what cannot be read is the caller's mistake, not an error here.
        codec = {"response_serializer": reply_class(name).SerializeToString}
        if name == "Backup":
            return grpc.unary_stream_rpc_method_handler(self._backup, **codec)
        if name not in UNARY:
            return grpc.stream_stream_rpc_method_handler(self._events, **codec)
        return grpc.unary_unary_rpc_method_handler(partial(self._unary, name), **codec)

    async def _unary(self, name: str, data: bytes, context: Any) -> Any:
        longest_s, time_left_s = self._limits.longest_call_s, context.time_remaining()
        time_left_s = longest_s if time_left_s is None else min(longest_s, time_left_s)
        until_s, caller = time.monotonic() + time_left_s, self._find_caller(context)
        try:
            async with asyncio.timeout(time_left_s):
                await self._rates.admit(caller, CALL)
                call = Call(caller, self._find_identity(context), until_s)
                return await self._calls.answer(call, name, _parse_request(name, data))
        except Refused as error:
            await _abort(context, error)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"{name}: deadline exceeded")

    async def tunnel(
        self, transport: asyncio.Transport, connection: Connection, first: bytes
    ) -> None:
        """A connection of the Unix socket; the name of its inner end says whose it is."""
        transport.pause_reading()
        name = next(self._names)
        with socket.socket(socket.AF_UNIX) as end:
            end.setblocking(False)
            end.bind(f"\0{name}")
            self._tunnels[name] = connection
            try:
                await asyncio.get_running_loop().sock_connect(end, self.inner)
                await _carry(transport, end, connection, first)
            finally:
                del self._tunnels[name]

    def _find_tunnel(self, context: Any) -> Connection | None:
        kind, _, name = str(context.peer()).partition(":")
        return self._tunnels.get(name) if kind == "unix-abstract" else None

    def _find_caller(self, context: Any) -> Caller:
        """As the limits know it, before its user is sought: over TCP without TLS that is slow."""
        tunnel = self._find_tunnel(context)
        if tunnel is None:
            return self._rates.caller(_caller(context))
        return self._rates.caller(tunnel.caller, tunnel.identity.name)

    def _find_identity(self, context: Any) -> Identity:
        """The name in the certificate; on this machine without TLS, the socket's user."""
        names = context.auth_context().get("x509_common_name")
        if names:
            return build_certificate_identity(names[0].decode(errors="replace"))
        tunnel = self._find_tunnel(context)
        if tunnel is not None:
            return tunnel.identity
        user = find_loopback_user(str(context.peer()), self.listeners)
        return Identity("") if user is None else find_user_identity(user)

    async def _backup(self, _: bytes, context: Any) -> AsyncIterator[pb.BackupPart]:
        identity, caller = self._find_identity(context), self._find_caller(context)
        try:
            await self._rates.admit(caller, CALL)
            async with aclosing(self._calls.backup(caller, identity)) as parts:
                async for part in parts:
                    yield pb.BackupPart(data=part)
        except Refused as error:
            await _abort(context, error)

    async def _events(self, batches: Any, context: Any) -> AsyncIterator[pb.AckBatch]:
        """One batch after another: what is not read yet waits on the caller's side."""
        identity, caller = self._find_identity(context), self._find_caller(context)
        try:
            async for data in batches:
                await self._rates.pace(caller, CALL)
                yield await self._calls.acks(caller, identity, _parse_request("Events", data))
        except Refused as error:
            await _abort(context, error)


class _TunnelEnd(asyncio.Protocol):
    """Writes what one end of a tunnel receives to the other, no faster than that takes it."""

    def __init__(self, connection: Connection, other: asyncio.Transport | None = None) -> None:
        self._connection, self.other = connection, other
        self.ended = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None, "set before the transport reads"
        self._connection.idle_since_s = time.monotonic()
        self.other.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def _carry(
    transport: asyncio.Transport, end: socket.socket, connection: Connection, first: bytes
) -> None:
    """Bytes both ways, until one side ends."""
    loop = asyncio.get_running_loop()
    outer = _TunnelEnd(connection)
    inner, inner_end = await loop.create_unix_connection(
        lambda: _TunnelEnd(connection, transport), sock=end
    )
    try:
        outer.other = inner
        inner.write(first)
        transport.set_protocol(outer)
        transport.resume_reading()
        await asyncio.wait([outer.ended, inner_end.ended], return_when=asyncio.FIRST_COMPLETED)
    finally:
        inner.close()
        transport.close()


def _parse_request(name: str, data: bytes) -> Any:
    try:
        return request_class(name).FromString(data)
    except DecodeError as error:
        raise invalid(name, "the message cannot be read", "send one of weft.proto") from error


async def _abort(context: Any, error: Refused) -> None:
    """Marks the refusal as the controller's: gRPC itself uses some of the same codes."""
    await context.abort(grpc.StatusCode[error.code], str(error), REFUSED_MARK)


def _caller(context: Any) -> str:
    names = context.auth_context().get("x509_common_name")
    return names[0].decode(errors="replace") if names else str(context.peer())


def find_loopback_user(peer: str, listeners: Iterable[tuple[str, int]]) -> int | None:
    """The owner of a TCP socket that is connected to one of these over loopback."""
    address, _, port = peer.partition(":")[2].rpartition(":")
    host = unquote(address).strip("[]")
    if not host or not port.isdigit() or not is_loopback(host):
        return None
    version = ipaddress.ip_address(host).version
    owners = [
        find_socket_owner((host, int(port)), listener)
        for listener in listeners
        if ipaddress.ip_address(listener[0]).version == version
    ]
    return next((owner for owner in owners if owner is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where TCP is served, if anywhere."""

    host: str = ""
    port: int = 0
    tls: Tls | None = None


def _resolve(host: str) -> list[str]:
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for _, _, _, _, address in addresses]


async def start(
    server: GrpcServer,
    listen: Listen,
    limits: Limits,
    add_services: Callable[[Any], None] = lambda _: None,
) -> tuple[Any, int]:
    """A started server and its port of TCP; `add_services` adds others to it."""
    grpc_server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", limits.message_bytes),
            ("grpc.max_concurrent_streams", _MAX_STREAMS),
            ("grpc.so_reuseport", 0),  # two controllers must not share a port
            ("grpc.server_handshake_timeout_ms", round(1000 * _HANDSHAKE_S)),
            ("grpc.max_connection_idle_ms", round(1000 * _IDLE_S)),
        ]
    )
    grpc_server.add_generic_rpc_handlers((server.handlers(),))
    add_services(grpc_server)
    port = _listen_on_tcp(grpc_server, listen) if listen.host else 0
    if port and listen.tls is None:
        server.listeners = [(address, port) for address in _resolve(listen.host)]
    with TemporaryDirectory(prefix="weft-") as folder:
        path = f"{folder}/grpc.sock"
        grpc_server.add_insecure_port(f"unix:{path}")
        await grpc_server.start()
        server.open_inner(path)
    return grpc_server, port


def _listen_on_tcp(grpc_server: Any, listen: Listen) -> int:
    host, port = listen.host, listen.port
    obstacles = _find_obstacles(host, port)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = 0 if all(obstacles) else _bind(grpc_server, address, listen.tls)
    except RuntimeError:
        bound = 0
    if not bound:
        problem = next(filter(None, obstacles), "cannot be listened on")
        raise InputError(f"listen {address}", problem, "end who listens there, or change it")
    return bound


def _find_obstacles(host: str, port: int) -> list[str]:
    """Why each address cannot be listened on: gRPC would tell standard error, and not us."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return [error.strerror or str(error)]
    return [_find_obstacle(family, address) for family, _, _, _, address in addresses]


def _find_obstacle(family: int, address: Any) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _bind(grpc_server: Any, address: str, tls: Tls | None) -> int:
    if tls is None:
        return int(grpc_server.add_insecure_port(address))
    return int(grpc_server.add_secure_port(address, _credentials(tls)))


def _credentials(tls: Tls) -> Any:
    with explain_file_errors(tls.key):
        if stat.S_IMODE(os.stat(tls.key).st_mode) & 0o077:
            raise InputError(str(tls.key), "others can read it", "chmod 600 it")
    clients, key, certificate = read_pem_files(tls.clients, tls.key, tls.certificate)
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=clients, require_client_auth=True
    )
