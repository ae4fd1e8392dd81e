"""A kernel that keeps the classes and filters it is told, and shows them as Linux does."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence

from weft.host.net import htb
from weft.host.net.htb import HtbTree, KernelTree
from weft.host.net.qdisc import (
    DELETE_CLASS,
    DELETE_FILTER,
    GET_CLASS,
    GET_FILTER,
    NEW_CLASS,
    NEW_FILTER,
    NEW_QDISC,
    Counters,
    Qdisc,
)
from weft.host.net.rtnetlink import CREATE, Message, pack_attribute, unpack_attributes

INDEX = 7
HEAD = struct.Struct("=BxxxiIII")
ROOT = Qdisc(
    kind="htb",
    handle=htb.MAJOR,
    parent=0xFFFFFFFF,
    options=pack_attribute(2, bytes(20)),
    count=Counters(bytes=0, packets=0, dropped=0),
)


class FakeKernel:
    """One interface, with an HTB root."""

    def __init__(self) -> None:
        self.classes: dict[int, bytes] = {}
        self.filters: dict[int, bytes] = {}
        self._handles = itertools.count(0x80000800)

    def built(self, tree: HtbTree) -> FakeKernel:
        self.request(htb.pack_under_root(INDEX, tree, 400_000), "")
        return self

    def found(self) -> KernelTree:
        return htb.read_tree(self, INDEX, ROOT)  # type: ignore[arg-type]

    def request(self, messages: Sequence[Message], _: str) -> None:
        for message in messages:
            self.take(message)

    def take(self, message: Message) -> None:
        _, index, handle, parent, _ = HEAD.unpack_from(message.body)
        assert index == INDEX
        if message.kind == NEW_QDISC:
            assert parent in self.classes
        elif message.kind == DELETE_CLASS:
            assert handle not in [one.classid for one in self.found().filters.values()]
            del self.classes[handle]
        elif message.kind == DELETE_FILTER:
            assert HEAD.unpack_from(self.filters[handle]) == HEAD.unpack_from(message.body)
            del self.filters[handle]
        elif message.kind == NEW_CLASS:
            assert (handle not in self.classes) == bool(message.flags & CREATE)
            shown = parent if parent & 0xFFFF else 0xFFFFFFFF
            self.classes[handle] = HEAD.pack(0, INDEX, handle, shown, 0) + message.body[HEAD.size :]
        else:
            assert message.kind == NEW_FILTER
            self._take_filter(handle, message)

    def _take_filter(self, handle: int, message: Message) -> None:
        """A filter that is there keeps what it matches, and leads elsewhere."""
        if handle == 0:
            handle = next(self._handles)
        else:
            assert handle in self.filters
            assert not message.flags & CREATE
            assert _selector(self.filters[handle]) == _selector(message.body)
        _, _, _, parent, order = HEAD.unpack_from(message.body)
        head = HEAD.pack(0, INDEX, handle, parent, order)
        self.filters[handle] = head + message.body[HEAD.size :]

    def dump(self, kind: int, _: bytes, __: str) -> Iterator[bytes]:
        yield from {GET_CLASS: self.classes, GET_FILTER: self.filters}[kind].values()


def _selector(body: bytes) -> bytes:
    return unpack_attributes(unpack_attributes(body[HEAD.size :])[2])[5]
