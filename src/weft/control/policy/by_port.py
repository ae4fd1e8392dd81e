"""A mapping from ports that gives a changed one without being copied as a whole.

Its entries lie by node, so that a change copies those of the nodes it concerns and one reference
per other node: on a fabric of 11,000 ports 2,208 references, which the garbage collector visits.
Entry points: `ByPort`, `ByPort.changed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, overload

from weft.fabric import Port

T = TypeVar("T")
D = TypeVar("D")


class ByPort(Mapping[Port, T]):
    """A value per port; immutable."""

    __slots__ = ("_count", "_nodes")

    def __init__(self, entries: Mapping[Port, T]) -> None:
        self._nodes: dict[int, dict[Port, T]] = {}
        self._count = len(entries)
        for port, value in entries.items():
            self._nodes.setdefault(port.node, {})[port] = value

    def __getitem__(self, port: Port) -> T:
        return self._nodes.get(port.node, {})[port]

    @overload
    def get(self, port: Port, /) -> T | None: ...

    @overload
    def get(self, port: Port, /, default: T | D) -> T | D: ...

    def get(self, port: Port, default: Any = None) -> Any:
        own = self._nodes.get(port.node)
        return default if own is None else own.get(port, default)

    def __iter__(self) -> Iterator[Port]:
        return (port for own in self._nodes.values() for port in own)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return repr(dict(self))

    def changed(self, entries: Mapping[Port, T | None]) -> ByPort[T]:
        """With these entries; None takes one away."""
        nodes = dict(self._nodes)
        count = self._count
        for node in {port.node for port in entries}:
            nodes[node] = dict(nodes.get(node, {}))
            count -= len(nodes[node])
        for port, value in entries.items():
            if value is None:
                nodes[port.node].pop(port, None)
            else:
                nodes[port.node][port] = value
        count += sum(len(nodes[node]) for node in {port.node for port in entries})
        found: ByPort[T] = ByPort({})
        found._nodes, found._count = nodes, count
        return found
