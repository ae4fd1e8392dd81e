"""The idempotency key of a request, shared by client and controller. Entry point: `Key`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """A client and the number of its request: CLIENT/SEQUENCE. A connection has it as its id."""

    client: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.client}/{self.sequence}"
