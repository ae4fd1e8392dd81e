"""One call to a controller, from a command.

Entry points: `call`, `stream_backup`, `new_key`. Units: seconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from weft.control.client.grpc_link import Tls
from weft.control.client.tls_probe import find_other_names, split_address, wants_tls
from weft.control.service import weft_pb2 as pb
from weft.control.service.methods import REFUSED_MARK, method_path, reply_class
from weft.errors import InputError

_START = "start one with `weft control serve`, or name another with --controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A controller's address, and TLS beyond loopback."""

    address: str
    tls: Tls | None = None

    def channel(self) -> grpc.Channel:
        if self.tls is None:
            return grpc.insecure_channel(self.address)
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(*self.tls.contents()))


def new_key() -> pb.Key:
    """A key for a new request."""
    return pb.Key(client=secrets.token_hex(16), sequence=1)


def call(controller: Controller, name: str, request: Any, timeout_s: float = 30.0) -> Any:
    """The reply; a refusal or a controller that does not answer is an InputError."""
    with controller.channel() as channel:
        method = channel.unary_unary(
            method_path(name),
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply_class(name).FromString,
        )
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _explain_failure(controller, error) from error


def stream_backup(controller: Controller, timeout_s: float = 3600.0) -> Iterator[bytes]:
    """The controller's store, in parts; failures as those of `call`."""
    with controller.channel() as channel:
        method = channel.unary_stream(
            method_path("Backup"),
            request_serializer=pb.BackupRequest.SerializeToString,
            response_deserializer=pb.BackupPart.FromString,
        )
        try:
            for part in method(pb.BackupRequest(), timeout=timeout_s):
                yield part.data
        except grpc.RpcError as error:
            raise _explain_failure(controller, error) from error


def _explain_failure(controller: Controller, error: Any) -> InputError:
    where = f"controller {controller.address}"
    if REFUSED_MARK[0] in [tuple(entry) for entry in error.trailing_metadata() or ()]:
        return InputError(where, error.details())
    if error.code() != grpc.StatusCode.UNAVAILABLE:
        return InputError(where, error.details() or error.code().name, "see its log, or try again")
    if controller.tls is None:
        if wants_tls(controller.address):
            return InputError(where, "wants TLS", "give --authority, --certificate and --key")
        return InputError(where, "does not answer", _START)
    names = find_other_names(controller.address, controller.tls)
    if names is not None:
        return _build_name_error(controller.address, names)
    return InputError(where, f"no TLS with it: {error.details()}", "check address and certificates")


def _build_name_error(address: str, names: tuple[str, ...]) -> InputError:
    host, _ = split_address(address) or (address, 0)
    listed = f" ({', '.join(names)})" if names else ""
    return InputError(
        f"controller {address}",
        f"its certificate is not for {host!r}",
        f"use a name in the certificate{listed}, or make one with "
        f"`weft control certs --host {host}`",
    )
