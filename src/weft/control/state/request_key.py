"""The key of a request. A module of its own: the client library imports it, and no numpy with it.

Entry point: `Key`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """A client and the number of its request: CLIENT/SEQUENCE. A connection has it as its id."""

    client: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.client}/{self.sequence}"
