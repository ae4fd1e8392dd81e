"""A controller for client tests: the model's answers over gRPC, or as JSON over a Unix socket."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from controller_model import LATE, NAMES, OK, ModelController
from needs import need_grpc

# ---- gRPC -------------------------------------------------------------------------------------


class GrpcController:
    """`lose_acks`: so many batches are carried out and their answers lost, the stream with them.
    While `is_silent`, batches are neither carried out nor answered. `tls`: its key, its certificate
    and who signs those of clients."""

    def __init__(
        self, model: ModelController, tls: tuple[bytes, bytes, bytes] | None = None
    ) -> None:
        self.model, self._tls = model, tls
        self.lose_acks = 0
        self.is_silent = False
        self.batches: list[int] = []
        self.port = 0
        self._server: Any = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """On the same port as before."""
        import grpc

        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self._handlers(),))
        if self._tls is None:
            self.port = self._server.add_insecure_port(self.address)
        else:
            key, certificate, authority = self._tls
            credentials = grpc.ssl_server_credentials(
                [(key, certificate)], authority, require_client_auth=True
            )
            self.port = self._server.add_secure_port(self.address, credentials)
        self._server.start()

    def stop(self) -> None:
        """As if it were killed."""
        self._server.stop(grace=None).wait()

    def _handlers(self) -> Any:
        import grpc

        from weft.control.service import weft_pb2 as pb

        def unary(name: str, call: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                call,
                request_deserializer=getattr(pb, f"{name}Request").FromString,
                response_serializer=getattr(pb, f"{name}Reply").SerializeToString,
            )

        events = grpc.stream_stream_rpc_method_handler(
            self._events,
            request_deserializer=pb.EventBatch.FromString,
            response_serializer=pb.AckBatch.SerializeToString,
        )
        methods = {
            "Register": unary("Register", self._register),
            "Deregister": unary("Deregister", self._deregister),
            "Events": events,
        }
        return grpc.method_handlers_generic_handler("weft.control.v1.Controller", methods)

    def _register(self, request: Any, context: Any) -> Any:
        from weft.control.service import weft_pb2 as pb

        key = (request.key.client, request.key.sequence)
        made = self.model.register(key, request.application, request.ttl_s, request.size_bytes)
        if isinstance(made, int):
            _abort(context, made, f"application {request.application}: has no model")
        return pb.RegisterReply(id=made.id, level=made.level, ttl_s=made.ttl_s)

    def _deregister(self, request: Any, context: Any) -> Any:
        from weft.control.service import weft_pb2 as pb

        code = self.model.deregister((request.key.client, request.key.sequence), request.id)
        if code != OK:
            _abort(context, code, "no such registration")
        return pb.DeregisterReply()

    def _events(self, batches: Any, context: Any) -> Iterator[Any]:
        from weft.control.service import weft_pb2 as pb

        for batch in batches:
            if self.is_silent:
                continue
            self.batches.append(len(batch.events))
            codes = [self._carried_out(event) for event in batch.events]
            if self.lose_acks:
                self.lose_acks -= 1
                _abort(context, 14, "the answer is lost")
            yield pb.AckBatch(acks=[pb.Ack(code=code, message=_words(code)) for code in codes])

    def _carried_out(self, event: Any) -> int:
        if event.HasField("renew"):
            return self.model.renew(event.renew.id)
        if event.HasField("disconnect"):
            return self.model.disconnect(event.disconnect.connection)
        request = event.connect
        key = (request.key.client, request.key.sequence)
        return self.model.connect(key, request.id, request.source, request.destination)


def _words(code: int) -> str:
    return "" if code == OK else f"refused: {NAMES[code]}"


def _abort(context: Any, code: int, message: str) -> None:
    import grpc

    (status,) = (status for status in grpc.StatusCode if status.value[0] == code)
    context.abort(status, message)


@contextmanager
def grpc_controller(
    model: ModelController, tls: tuple[bytes, bytes, bytes] | None = None
) -> Iterator[GrpcController]:
    need_grpc()
    made = GrpcController(model, tls)
    made.start()
    try:
        yield made
    finally:
        made.stop()


# ---- JSON -------------------------------------------------------------------------------------


class JsonController:
    """One thread for each connection; what was asked is in `calls`.

    `lose_answers`: so many requests are carried out and not answered, the connection ends;
    `late_answers`: so many connects are carried out and answered as if they were not. Connects are
    answered after `connect_s`.
    """

    def __init__(self, model: ModelController, path: Path) -> None:
        self.model, self.path = model, path
        self.calls: list[str] = []
        self.lose_answers = self.late_answers = 0
        self.connect_s = 0.0
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """As if it were killed."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection = listener.accept()[0]
                self._open.add(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, EOFError), connection:
            while True:
                (length,) = struct.unpack(">I", _exactly(connection, 4))
                answer = self._answer(json.loads(_exactly(connection, length)))
                if self.lose_answers:
                    self.lose_answers -= 1
                    break
                body = json.dumps(answer).encode()
                connection.sendall(struct.pack(">I", len(body)) + body)
        self._open.discard(connection)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        call = request.pop("call")
        self.calls.append(call)
        named = request.get("key", {"client": "", "sequence": 0})
        key = (named["client"], named["sequence"])
        if call == "Register":
            name, size = request["application"], request.get("size_bytes", 0)
            made = self.model.register(key, name, request["ttl_s"], size)
            if not isinstance(made, int):
                return {"ok": True, "id": made.id, "level": made.level, "ttl_s": made.ttl_s}
            code = made
        elif call == "Deregister":
            code = self.model.deregister(key, request["id"])
        elif call == "Connect":
            code = self.model.connect(key, request["id"], request["source"], request["destination"])
            time.sleep(self.connect_s)
            if self.late_answers:
                self.late_answers -= 1
                code = LATE
        elif call == "Disconnect":
            code = self.model.disconnect(request["connection"])
        else:
            code = self.model.renew(request["id"])
        if code == OK:
            return {"ok": True}
        return {"ok": False, "code": NAMES[code], "error": _words(code)}


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


@contextmanager
def json_controller(model: ModelController, path: Path) -> Iterator[JsonController]:
    made = JsonController(model, path)
    made.start()
    try:
        yield made
    finally:
        made.stop()
