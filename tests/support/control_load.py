"""A client that registers, connects, disconnects and deregisters, and knows what was answered."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import grpc
from control_process import PARTS, Client

from weft.control.service import weft_pb2 as pb

HOSTS = ("h0", "h1", "h2", "h3")
LONG_S = 3600.0
_UNANSWERED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


class Load:
    """A client that registers, connects, disconnects and deregisters until the controller dies.

    What was acknowledged is in `there`; what was sent and not answered is in `unsure`, and is sent
    again with the same keys after a restart.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.name = f"load{seed}"
        self.sequence = 0
        self.there: dict[str, set[str]] = {}  # connections of each registration
        self.unsure: tuple[str, Any] | None = None
        self.answered = 0
        self.longest_s = 0.0  # that an answer took
        self.stop_after_one = False
        self.timeout_s = 10.0
        self.hosts = HOSTS

    def run(self, address: str, ending: threading.Event) -> None:
        with Client(address, self.name) as client:
            while not ending.is_set():
                call = self.unsure or self._next()
                self.unsure = call
                began = time.monotonic()
                try:
                    reply = client.call(*call, timeout_s=self.timeout_s)
                except grpc.RpcError as error:
                    if error.code() in _UNANSWERED:
                        return
                    raise
                self.unsure = None
                self.answered += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self._note(call[1], reply)
                if self.stop_after_one:
                    return

    def _key(self) -> pb.Key:
        self.sequence += 1
        return pb.Key(client=self.name, sequence=self.sequence)

    def _next(self) -> tuple[str, Any]:
        busy = [id_ for id_, own in self.there.items() if own]
        draw = self.random.random()
        if not self.there or (draw < 0.1 and len(self.there) < 20):
            name = self.random.choice(sorted(PARTS))
            return "Register", pb.RegisterRequest(key=self._key(), application=name, ttl_s=LONG_S)
        id_ = self.random.choice(sorted(self.there))
        if draw < 0.15:
            return "Deregister", pb.DeregisterRequest(key=self._key(), id=id_)
        if draw < 0.4 and busy:
            own = self.random.choice(sorted(self.there[self.random.choice(busy)]))
            return "Disconnect", pb.DisconnectRequest(connection=own)
        source, destination = self.random.sample(self.hosts, 2)
        return "Connect", pb.ConnectRequest(
            key=self._key(), id=id_, source=source, destination=destination
        )

    def _note(self, request: Any, reply: Any) -> None:
        match request:
            case pb.RegisterRequest():
                self.there[reply.id] = set()
            case pb.DeregisterRequest():
                del self.there[request.id]
            case pb.ConnectRequest():
                self.there[request.id].add(reply.connection)
            case pb.DisconnectRequest():
                for own in self.there.values():
                    own.discard(request.connection)
