"""The name of a request, the same for who asks and who carries it out. Entry point: `Key`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """A client and the number of its request, and the connection that it opens: CLIENT/SEQUENCE."""

    client: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.client}/{self.sequence}"
