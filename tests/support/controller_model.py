"""What a controller does with clients' requests, as weft.proto says it; the oracle of client tests.

Thread-safe. `refusals` are given, one by one, in place of the answer to the next events.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

OK, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, INVALID_ARGUMENT = 0, 5, 6, 9, 3
LATE, EXHAUSTED, UNAVAILABLE = 4, 8, 14
NAMES = {
    LATE: "DEADLINE_EXCEEDED",
    NOT_FOUND: "NOT_FOUND",
    ALREADY_EXISTS: "ALREADY_EXISTS",
    EXHAUSTED: "RESOURCE_EXHAUSTED",
    FAILED_PRECONDITION: "FAILED_PRECONDITION",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    UNAVAILABLE: "UNAVAILABLE",
}


@dataclass
class Registered:
    id: str
    name: str
    level: int
    ttl_s: float
    size_bytes: int = 0
    renewals: int = 0


@dataclass
class ModelController:
    """`levels` are those of the applications that have a model."""

    levels: dict[str, int] = field(default_factory=lambda: {"sort": 3})
    hosts: frozenset[str] | None = None  # None: every name is a host
    registrations: dict[str, Registered] = field(default_factory=dict)
    connections: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    answered: dict[tuple[str, int], Registered | None] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    refusals: deque[int] = field(default_factory=deque)
    number: int = 0
    opened: int = 0  # connections, ever
    lock: threading.RLock = field(default_factory=threading.RLock)

    def register(
        self, key: tuple[str, int], name: str, ttl_s: float, size_bytes: int = 0
    ) -> Registered | int:
        with self.lock:
            if key in self.answered:
                return self.answered[key] or ALREADY_EXISTS
            if name not in self.levels:
                return NOT_FOUND
            self.number += 1
            id_ = f"{name}#{self.number}"
            made = Registered(id_, name, self.levels[name], ttl_s, size_bytes)
            self.registrations[made.id] = self.answered[key] = made
            return made

    def deregister(self, key: tuple[str, int], id_: str) -> int:
        with self.lock:
            if key in self.answered:
                return OK
            if id_ not in self.registrations:
                return FAILED_PRECONDITION
            self.answered[key] = None
            self.expire(id_)
            return OK

    def expire(self, id_: str) -> None:
        """The lease is over: the registration goes, and its connections with it."""
        with self.lock:
            self.registrations.pop(id_, None)
            for name in [n for n, (owner, _, _) in self.connections.items() if owner == id_]:
                del self.connections[name]

    def renew(self, id_: str) -> int:
        with self.lock:
            if self.refusals:
                return self.refusals.popleft()
            if id_ not in self.registrations:
                return FAILED_PRECONDITION
            self.registrations[id_].renewals += 1
            return OK

    def connect(self, key: tuple[str, int], id_: str, source: str, destination: str) -> int:
        with self.lock:
            if self.refusals:
                return self.refusals.popleft()
            name, made = f"{key[0]}/{key[1]}", (id_, source, destination)
            if id_ not in self.registrations or name in self.closed:
                return FAILED_PRECONDITION
            if name in self.connections:
                return OK if self.connections[name] == made else ALREADY_EXISTS
            if self.hosts is not None and not {source, destination} <= self.hosts:
                return INVALID_ARGUMENT
            self.connections[name] = made
            self.opened += 1
            return OK

    def disconnect(self, name: str) -> int:
        with self.lock:
            if self.refusals:
                return self.refusals.popleft()
            if self.connections.pop(name, None) is not None:
                self.closed.add(name)
            return OK

    def pairs(self) -> list[tuple[str, str]]:
        """Of the connections that are counted."""
        with self.lock:
            return sorted((source, there) for _, source, there in self.connections.values())
