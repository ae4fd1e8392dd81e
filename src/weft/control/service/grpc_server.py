"""The service over gRPC.

A caller is identified by the name in its certificate, or by its connection. A call ends at its
deadline, or after the longest time allowed if it has none; what has not begun by then is not
carried out. Beyond loopback the server requires mutual TLS.
Entry point: `start`. Units: seconds.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from weft.control.client.grpc_link import read_pem_files
from weft.control.runtime.config import Limits, Tls
from weft.control.service import weft_pb2 as pb
from weft.control.service.calls import Call, Calls
from weft.control.service.limits import RateLimits
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
from weft.records.store import explain_file_errors

_MAX_STREAMS = 32  # calls at once on one connection; more wait on the caller's side


class GrpcServer:
    """Handlers of every method that the service's description has."""

    def __init__(self, calls: Calls, limits: Limits, rates: RateLimits) -> None:
        self._calls, self._limits, self._rates = calls, limits, rates

    def handlers(self) -> grpc.GenericRpcHandler:
        handlers = {name: self._handler(name) for name in METHODS}
        return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)

    def _handler(self, name: str) -> grpc.RpcMethodHandler:
        # Requests come as bytes: what cannot be read is the caller's mistake, not an error here.
        codec = {"response_serializer": reply_class(name).SerializeToString}
        if name not in UNARY:
            return grpc.stream_stream_rpc_method_handler(self._events, **codec)
        return grpc.unary_unary_rpc_method_handler(partial(self._unary, name), **codec)

    async def _unary(self, name: str, data: bytes, context: Any) -> Any:
        longest_s, time_left_s = self._limits.longest_call_s, context.time_remaining()
        time_left_s = longest_s if time_left_s is None else min(longest_s, time_left_s)
        call = Call(self._rates.caller(_caller(context)), time.monotonic() + time_left_s)
        try:
            async with asyncio.timeout(time_left_s):
                await self._rates.admit(call.caller, CALL)
                return await self._calls.answer(call, name, _parse_request(name, data))
        except Refused as error:
            await _abort(context, error)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"{name}: deadline exceeded")

    async def _events(self, batches: Any, context: Any) -> AsyncIterator[pb.AckBatch]:
        """One batch after another: what is not read yet waits on the caller's side."""
        caller = self._rates.caller(_caller(context))
        try:
            async for data in batches:
                await self._rates.pace(caller, CALL)
                yield await self._calls.acks(caller, _parse_request("Events", data))
        except Refused as error:
            await _abort(context, error)


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


async def start(
    server: GrpcServer, host: str, port: int, limits: Limits, tls: Tls | None
) -> tuple[Any, int]:
    """A started server and its port."""
    obstacles = _find_obstacles(host, port)
    grpc_server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", limits.message_bytes),
            ("grpc.max_concurrent_streams", _MAX_STREAMS),
            ("grpc.so_reuseport", 0),  # two controllers must not share a port
        ]
    )
    grpc_server.add_generic_rpc_handlers((server.handlers(),))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = 0 if all(obstacles) else _bind(grpc_server, address, tls)
    except RuntimeError:
        bound = 0
    if not bound:
        problem = next(filter(None, obstacles), "cannot be listened on")
        raise InputError(f"listen {address}", problem, "end who listens there, or change it")
    await grpc_server.start()
    return grpc_server, bound


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
