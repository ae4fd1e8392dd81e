"""A link to a controller: its calls over gRPC.

gRPC is loaded when a link is opened, so that a program runs, unmanaged, where it is not installed.
Every call has a deadline. Entry point: `Link`. Units: seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.control.client.client_session import TRY_AGAIN, Ack, Connect, Event, Registration, Renew
from weft.control.state.request_key import Key
from weft.errors import InputError, WeftError

MACHINE_SOCKET = Path("/run/weft/control.sock")
VARIABLE = "WEFT_CONTROLLER"
_UNIX = "unix:"
CALL_S = 2.0
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}|unix:.+")
_UNIMPLEMENTED = 12
_SERVICE = "/weft.control.v1.Controller/"
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a new link tries at once, whatever earlier ones met
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]


class Unreachable(WeftError):
    """The controller does not answer, or not for now."""


class Refused(WeftError):
    """The controller answers no; `code` is a gRPC status code."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files: who has signed the controller's certificate, and our own certificate and key."""

    authority: Path
    certificate: Path
    key: Path

    def contents(self) -> tuple[bytes, bytes, bytes]:
        """Contents of the authority, the key and the certificate."""
        try:
            files = Path(self.authority), Path(self.key), Path(self.certificate)
        except TypeError as error:
            raise InputError("TLS", str(error), "name three PEM files") from error
        return read_pem_files(*files)


def read_tls_options(files: Mapping[str, str | None]) -> Tls | None:
    """Files of the authority, the certificate and the key, by option: all of them, or none."""
    paths = [Path(file) for file in files.values() if file]
    if not paths:
        return None
    if len(paths) < len(files):
        raise InputError("TLS", f"only together: {', '.join(files)}", "give all three")
    authority, certificate, key = paths
    return Tls(authority=authority, certificate=certificate, key=key)


def read_pem_files(authority: Path, key: Path, certificate: Path) -> tuple[bytes, bytes, bytes]:
    """Reads and checks PEM files: gRPC does not say what is wrong with them."""
    import ssl  # here, as most programs have no TLS

    contents = _read_file(authority), _read_file(key), _read_file(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise InputError(str(authority), "has no certificate", "name a PEM file") from error
    try:
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        problem = f"is no certificate of the key {key} ({error.reason or error})"
        raise InputError(str(certificate), problem, "name PEM files of one pair") from error
    return contents


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error), "name its file") from error
    except ValueError as error:  # a name with a NUL, or one that is no text
        raise InputError(repr(str(path)), str(error), "name its file") from error


def find_default_socket() -> Path:
    """Where a controller of this user listens: WEFT_CONTROLLER's, the machine's or its own."""
    named = os.environ.get(VARIABLE, "")
    if named.startswith(_UNIX):
        return Path(named.removeprefix(_UNIX))
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if os.geteuid() == 0 or not folder:
        return MACHINE_SOCKET
    return Path(folder) / "weft" / MACHINE_SOCKET.name


def choose_controller(address: str | None) -> str:
    """As address, of WEFT_CONTROLLER, the user's own controller if it has one, or the machine's."""
    if address is not None and not (isinstance(address, str) and not address):
        return address  # whatever it is: `check_address` says so
    named = os.environ.get(VARIABLE)
    if named:
        return named
    default = find_default_socket()
    return f"{_UNIX}{default if default.exists() else MACHINE_SOCKET}"


def check_address(text: str) -> str:
    """HOST:PORT or [IPV6]:PORT, or unix:PATH."""
    is_address = text.isprintable() and _ADDRESS.fullmatch(text)
    if not is_address or not (text.startswith(_UNIX) or int(text.rpartition(":")[2]) <= 65535):
        raise InputError(f"controller {text!r}", "is no address", "give HOST:PORT or unix:PATH")
    return text


class Stream:
    """Acknowledgements of the batches that are sent, in their order."""

    def __init__(self, call: Any, errors: type[BaseException]) -> None:
        self._call, self._errors = call, errors
        self._is_cancelled = False

    def cancel(self) -> None:
        """Ends the iteration; call it from any thread."""
        self._is_cancelled = True
        self._call.cancel()

    def __iter__(self) -> Iterator[list[Ack]]:
        try:
            for batch in self._call:
                yield [Ack(ack.code, ack.message) for ack in batch.acks]
        except self._errors as error:
            if not self._is_cancelled:
                raise _failure(error) from None
        if not self._is_cancelled:
            raise Unreachable("the controller has ended the stream")


class Link:
    """One channel to a controller; close it."""

    def __init__(self, controller: str, tls: tuple[bytes, bytes, bytes] | None) -> None:
        self._grpc, self._messages = _load_or_refuse()
        if tls is None:
            self._channel = self._grpc.insecure_channel(controller, options=_OPTIONS)
        else:
            credentials = self._grpc.ssl_channel_credentials(*tls)
            self._channel = self._grpc.secure_channel(controller, credentials, options=_OPTIONS)

    def close(self) -> None:
        self._channel.close()

    def register(
        self, key: Key, application: str, ttl_s: float, job: str, size_bytes: int
    ) -> Registration:
        request = self._messages.RegisterRequest(
            key=self._key(key), application=application, ttl_s=ttl_s, job=job, size_bytes=size_bytes
        )
        reply = self._call("Register", request)
        return Registration(id=reply.id, level=reply.level, ttl_s=reply.ttl_s)

    def deregister(self, key: Key, registration: str) -> None:
        request = self._messages.DeregisterRequest(key=self._key(key), id=registration)
        self._call("Deregister", request)

    def stream(self, batches: Iterable[Sequence[Event]]) -> Stream:
        """Sends batches as they come, from a thread of gRPC's."""
        messages = self._messages
        method = self._channel.stream_stream(
            f"{_SERVICE}Events",
            request_serializer=messages.EventBatch.SerializeToString,
            response_deserializer=messages.AckBatch.FromString,
        )
        return Stream(method(self._batch(events) for events in batches), self._grpc.RpcError)

    def _call(self, name: str, request: Any) -> Any:
        method = self._channel.unary_unary(
            _SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(self._messages, f"{name}Reply").FromString,
        )
        try:
            return method(request, timeout=CALL_S)
        except self._grpc.RpcError as error:
            raise _failure(error) from None

    def _key(self, key: Key) -> Any:
        return self._messages.Key(client=key.client, sequence=key.sequence)

    def _batch(self, events: Sequence[Event]) -> Any:
        return self._messages.EventBatch(events=[self._event(event) for event in events])

    def _event(self, event: Event) -> Any:
        messages = self._messages
        if isinstance(event, Renew):
            return messages.Event(renew=messages.RenewRequest(id=event.registration))
        if isinstance(event, Connect):
            request = messages.ConnectRequest(
                key=self._key(event.key),
                id=event.registration,
                source=event.source,
                destination=event.destination,
            )
            return messages.Event(connect=request)
        request = messages.DisconnectRequest(connection=event.connection)
        return messages.Event(disconnect=request)


def _load_or_refuse() -> tuple[Any, Any]:
    try:
        return load_service()
    except ImportError as error:
        remedy = "pip install 'weft[control]'"
        raise Refused(_UNIMPLEMENTED, f"gRPC cannot be loaded ({error}); {remedy}") from error


def load_service() -> tuple[Any, Any]:
    """gRPC and the messages of the service; ImportError where either is missing or too old."""
    import grpc
    from google.protobuf.runtime_version import VersionError

    try:
        from weft.control.service import weft_pb2
    except VersionError as error:
        raise ImportError(str(error)) from error
    return grpc, weft_pb2


def _failure(error: Any) -> Unreachable | Refused:
    """An RpcError as `Unreachable` (retry later) or `Refused`."""
    code, details = error.code(), error.details() or ""
    if details.startswith("failed to connect to all addresses"):  # gRPC's own, the reason last
        return Unreachable(f"does not answer ({details.rpartition(': ')[2]})")
    if code.value[0] in TRY_AGAIN:
        return Unreachable(f"{code.name}: {details}" if details else code.name)
    return Refused(code.value[0], details or code.name)
