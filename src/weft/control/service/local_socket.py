"""The calls over a Unix socket: gRPC, or JSON for programs without it (docs/control-protocol.md).

The kernel says which user is behind a connection. One that begins as gRPC does is tunnelled to the
gRPC server under a name of its own, by which that server knows its user. A JSON frame is four bytes
of length, big-endian, and a JSON object: `{"call": "Register", ...}` with the fields of the
request's message, answered by `{"ok": true, ...}` with those of the reply, or by
`{"ok": false, "code": ..., "error": ...}`. Answers come in the order of requests.
A full server makes room for a newcomer: it closes the connection that has been idle for longest, of
the user with the most connections. One that waits to be admitted or refused counts as idle, so that
a user with many calls locks nobody out. Entry point: `start`. Units: bytes, seconds.
"""

from __future__ import annotations

import asyncio
import grp
import json
import os
import resource
import socket
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from google.protobuf import json_format

from weft.control.runtime.config import Limits, Socket
from weft.control.service.access import Identity, find_user_identity
from weft.control.service.calls import Call, Calls
from weft.control.service.limits import RateLimits
from weft.control.service.methods import CALL, QUERIES, UNARY, request_class
from weft.control.service.refusals import Refused, invalid
from weft.errors import InputError
from weft.records.store import explain_file_errors

FRAME_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("iII")
_MAX_CONNECTIONS = 4096
_GRPC = b"P"  # what HTTP/2 begins with (PRI); no frame is that long
_ALL_BYTES = 1 << 20  # more than a reader holds
_REQUESTS = {name: request_class(name) for name in UNARY}


class Tunnel(Protocol):
    """Carries the bytes of a connection to and from the gRPC server, until either side ends it."""

    async def __call__(
        self, transport: asyncio.Transport, connection: Connection, first: bytes
    ) -> None: ...


@dataclass(slots=True)
class Connection:
    """A client's connection: its process and user, and since when no call of it is carried out."""

    pid: int
    user: int
    identity: Identity
    task: asyncio.Task[Any] | None
    idle_since_s: float | None

    @property
    def caller(self) -> str:
        return f"process {self.pid} of user {self.user}"


class LocalServer:
    """One task for each connection; `most_connections` at a time."""

    def __init__(
        self,
        calls: Calls,
        limits: Limits,
        rates: RateLimits,
        tunnel: Tunnel,
        most_connections: int = _MAX_CONNECTIONS,
    ) -> None:
        self._calls, self._limits, self._rates = calls, limits, rates
        self._tunnel = tunnel
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_connections = min(most_connections, open_files // 4)  # a tunnel takes three
        self._connections: list[Connection] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        connection = _describe_connection(writer)
        self._connections.append(connection)
        try:
            if self._make_room():
                await self._serve_protocol(reader, writer, connection)
            else:
                problem = f"{self._most_connections} connections are busy; retry later"
                await _send(writer, _encode_refusal("RESOURCE_EXHAUSTED", problem))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        except asyncio.CancelledError:
            pass  # by `close` or `_make_room`; the event loop would log a cancelled connection
        finally:
            self._connections.remove(connection)
            writer.close()

    def _make_room(self) -> bool:
        """Closes an idle connection if there are too many; false if none is idle."""
        if len(self._connections) <= self._most_connections:
            return True
        count = Counter(connection.user for connection in self._connections)
        idle = [c for c in self._connections if c.idle_since_s is not None and c.task is not None]
        if not idle:
            return False
        longest = max(idle, key=lambda c: (count[c.user], -(c.idle_since_s or 0.0)))
        longest.idle_since_s = None
        assert longest.task is not None
        longest.task.cancel()
        return True

    async def close(self) -> None:
        """Ends all connections."""
        tasks = [c.task for c in self._connections if c.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_protocol(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection
    ) -> None:
        connection.idle_since_s = time.monotonic()
        first = await reader.readexactly(len(_GRPC))
        if first == _GRPC:
            first += await reader.read(_ALL_BYTES)
            await self._tunnel(writer.transport, connection, first)  # type: ignore[arg-type]
        else:
            first += await reader.readexactly(_LENGTH.size - len(first))
            await self._serve_requests(reader, writer, connection, first)

    async def _serve_requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: Connection,
        first: bytes,
    ) -> None:
        head = first
        while True:
            (length,) = _LENGTH.unpack(head)
            if length > FRAME_BYTES:
                problem = f"frame: {length} bytes; send at most {FRAME_BYTES}"
                await _send(writer, _encode_refusal("INVALID_ARGUMENT", problem))
                return
            frame = await reader.readexactly(length)
            await _send(writer, await self._answer(frame, connection))
            connection.idle_since_s = time.monotonic()
            head = await reader.readexactly(_LENGTH.size)

    async def _answer(self, frame: bytes, connection: Connection) -> bytes:
        longest_s = self._limits.longest_call_s
        identity = connection.identity
        caller = self._rates.caller(connection.caller, identity.name)
        call = Call(caller, identity, time.monotonic() + longest_s)
        try:
            async with asyncio.timeout(longest_s):
                await self._rates.admit(call.caller, CALL)
                connection.idle_since_s = None
                return await self._execute(call, *read_frame(frame))
        except Refused as error:
            return _encode_refusal(error.code, str(error))
        except TimeoutError:
            return _encode_refusal("DEADLINE_EXCEEDED", "deadline exceeded")

    async def _execute(self, call: Call, name: str, request: Any) -> bytes:
        reply = await self._calls.answer(call, name, request)
        if name not in QUERIES:
            return _encode_reply(reply)
        return await self._calls.queries.answer(call.caller, lambda: _encode_reply(reply))


def read_frame(frame: bytes) -> tuple[str, Any]:
    """The call that a frame names, and its request."""
    try:
        data = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise invalid("frame", f"is not JSON: {error}", "send a JSON object") from None
    name = data.pop("call", None) if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in _REQUESTS:
        problem = "names no call" if name is None else f"{str(name)[:40]!r} is no call"
        raise invalid("frame", problem, f"call one of {', '.join(_REQUESTS)}")
    request = _REQUESTS[name]()
    try:
        json_format.ParseDict(data, request)
    except (json_format.ParseError, OverflowError, RecursionError) as error:
        raise invalid(name, str(error)[:200], "see docs/control-protocol.md") from None
    return name, request


def _encode_reply(reply: Any) -> bytes:
    fields = json_format.MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps({"ok": True} | fields).encode()


def _encode_refusal(code: str, error: str) -> bytes:
    return json.dumps({"ok": False, "code": code, "error": error}).encode()


async def _send(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(_LENGTH.pack(len(body)) + body)
    await writer.drain()


def _describe_connection(writer: asyncio.StreamWriter) -> Connection:
    connection = writer.get_extra_info("socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    return Connection(pid, user, find_user_identity(user), asyncio.current_task(), None)


async def start(server: LocalServer, settings: Socket) -> asyncio.Server:
    """Listens on a socket with this mode; a deserted one is replaced."""
    path, group = settings.path, _group_id(settings)
    with explain_file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    _check_unused(path)
    with explain_file_errors(path), suppress(FileNotFoundError):
        path.unlink()
    mask = os.umask(0o177)  # nobody else, until it is known who may
    try:
        with explain_file_errors(path):
            listener = await asyncio.start_unix_server(server.serve, path)
    finally:
        os.umask(mask)
    with explain_file_errors(path):
        os.chown(path, -1, group)
        path.chmod(settings.mode)
    return listener


def _group_id(settings: Socket) -> int:
    if not settings.group:
        return -1
    try:
        return grp.getgrnam(settings.group).gr_gid
    except KeyError:
        raise InputError(f"socket_group {settings.group}", "is no group here", "add it") from None


def _check_unused(path: Path) -> None:
    if path.exists() and not path.is_socket():
        raise InputError(str(path), "is not a socket", "name another")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise InputError(
        str(path), "another process listens on it", "stop that process, or name another socket"
    )
