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
from weft.control.service.calls import Asked, Calls
from weft.control.service.limits import RateLimits
from weft.control.service.methods import CALL, QUESTIONS, UNARY, request_class
from weft.control.service.refusals import Refused, invalid
from weft.errors import InputError
from weft.records.output import explain_file_errors

FRAME_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("iII")
_MOST_CONNECTIONS = 1024
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
            if self._open <= _MOST_CONNECTIONS:
                await self._conversation(reader, writer, _caller(writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            self._open -= 1
            writer.close()

    async def _conversation(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: str
    ) -> None:
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            if length > FRAME_BYTES:
                await _send(writer, _refusal("INVALID_ARGUMENT", f"frame: {length} bytes"))
                return
            await _send(writer, await self._answered(await reader.readexactly(length), caller))

    async def _answered(self, frame: bytes, name: str) -> bytes:
        longest_s = self._limits.longest_call_s
        asked = Asked(self._rates.caller(name), time.monotonic() + longest_s)
        try:
            async with asyncio.timeout(longest_s):
                await self._rates.admit(asked.caller, CALL)
                return await self._carried_out(asked, *read_frame(frame))
        except Refused as error:
            return _refusal(error.code, str(error))
        except TimeoutError:
            return _refusal("DEADLINE_EXCEEDED", "not in time")

    async def _carried_out(self, asked: Asked, name: str, request: Any) -> bytes:
        reply = await self._calls.answer(asked, name, request)
        if name not in QUESTIONS:
            return _done(reply)
        return await self._calls.questions.answer(asked.caller, lambda: _done(reply))


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


def _done(reply: Any) -> bytes:
    fields = json_format.MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps({"ok": True} | fields).encode()


def _refusal(code: str, error: str) -> bytes:
    return json.dumps({"ok": False, "code": code, "error": error}).encode()


async def _send(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(_LENGTH.pack(len(body)) + body)
    await writer.drain()


def _caller(writer: asyncio.StreamWriter) -> str:
    own = writer.get_extra_info("socket")
    told = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(told)
    return f"process {pid} of user {uid}"


async def start(server: JsonServer, own: Socket) -> asyncio.Server:
    """Listens on a socket that its owner, or a group, can open; a deserted one is replaced."""
    path, group = own.path, _group_id(own)
    with explain_file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    _check_unused(path)
    with explain_file_errors(path), suppress(FileNotFoundError):
        path.unlink()
    mask = os.umask(0o177)  # nobody else, until it is known who may
    try:
        with explain_file_errors(path):
            made = await asyncio.start_unix_server(server.serve, path)
    finally:
        os.umask(mask)
    with explain_file_errors(path):
        os.chown(path, -1, group)
        path.chmod(own.mode)
    return made


def _group_id(own: Socket) -> int:
    if not own.group:
        return -1
    try:
        return grp.getgrnam(own.group).gr_gid
    except KeyError:
        raise InputError(f"socket_group {own.group}", "is no group here", "add it") from None


def _check_unused(path: Path) -> None:
    if path.exists() and not path.is_socket():
        raise InputError(str(path), "is not a socket", "name another")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise InputError(str(path), "somebody listens on it", "end who does, or name another")
