"""The same calls as JSON over a Unix socket, for programs without gRPC (docs/control-protocol.md).

A frame is four bytes of length, big-endian, and a JSON object: `{"call": "Register", ...}` with the
fields of the request's message, answered by `{"ok": true, ...}` with those of the reply, or by
`{"ok": false, "code": ..., "error": ...}`. Answers come in the order of requests.
Entry point: `start`. Units: bytes, seconds.
"""

from __future__ import annotations

import asyncio
import grp
import json
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from weft.control.runtime.config import Limits, Socket
from weft.control.service.calls import Call, Calls
from weft.control.service.limits import RateLimits
from weft.control.service.methods import CALL, QUERIES, UNARY, request_class
from weft.control.service.refusals import Refused, invalid
from weft.errors import InputError
from weft.records.store import explain_file_errors

FRAME_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("iII")
_MAX_CONNECTIONS = 1024
_REQUESTS = {name: request_class(name) for name in UNARY}


class JsonServer:
    """One task for each connection."""

    def __init__(self, calls: Calls, limits: Limits, rates: RateLimits) -> None:
        self._calls, self._limits, self._rates = calls, limits, rates
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        self._open += 1
        try:
            if self._open <= _MAX_CONNECTIONS:
                await self._serve_requests(reader, writer, _caller(writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            self._open -= 1
            writer.close()

    async def _serve_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: str
    ) -> None:
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            if length > FRAME_BYTES:
                await _send(writer, _encode_refusal("INVALID_ARGUMENT", f"frame: {length} bytes"))
                return
            await _send(writer, await self._answer(await reader.readexactly(length), caller))

    async def _answer(self, frame: bytes, name: str) -> bytes:
        longest_s = self._limits.longest_call_s
        call = Call(self._rates.caller(name), time.monotonic() + longest_s)
        try:
            async with asyncio.timeout(longest_s):
                await self._rates.admit(call.caller, CALL)
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
        raise invalid("frame", "names no call", f"call one of {', '.join(_REQUESTS)}")
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


def _caller(writer: asyncio.StreamWriter) -> str:
    connection = writer.get_extra_info("socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return f"process {pid} of user {uid}"


async def start(server: JsonServer, settings: Socket) -> asyncio.Server:
    """Listens on a socket that its owner, or a group, can open; a deserted one is replaced."""
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
