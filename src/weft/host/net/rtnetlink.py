"""The kernel's network configuration over netlink: packs requests, explains refusals.

One `Rtnetlink` is one socket in one network namespace. `request` sends many messages at once and
asks for one acknowledgement per batch (the kernel always reports refusals), so tens of thousands of
changes per second are possible; `dump` reads objects. `weft.host.net.qdisc` packs what a message
configures. Numbers are in the machine's byte order, as the kernel expects (docs/decisions/0008).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from weft.errors import InputError
from weft.host.net import namespaces

NETLINK_ROUTE = 0
REQUEST, ACKNOWLEDGE = 0x1, 0x4
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
DUMP = 0x300
NEW_LINK, DELETE_LINK, GET_LINK, GET_ROUTE, GET_NEIGHBOUR = 16, 17, 18, 26, 30

_ERROR, _DONE = 2, 3
_CAPPED, _HAS_WORDS = 0x100, 0x200  # flags of an acknowledgement
_WORDS = 1
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_BATCH = 128
_RECEIVE_BYTES = 1 << 17
_ANSWER_S = 10.0
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_LINK = struct.Struct("=BxHiII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_LINK_NAME, _LINK_MTU, _LINK_PORT, _LINK_STATE, _LINK_INFO = 3, 4, 12, 16, 18
_LINK_BELOW, _LINK_MASTER, _LINK_ELSEWHERE = 5, 10, 37
_INFO_KIND = 1
_IS_UP = 1
_UP = b"\x06"
_PORT_STATE, _FORWARDING = 1, b"\x03"
_ROUTE_INTERFACE, _ROUTE_MULTIPATH = 4, 9
_UNICAST = 1
_STATION, _OF_BRIDGE, _LOCAL = 2, 9, 0x80


class Message(NamedTuple):
    """One request; `description` is for errors."""

    kind: int
    flags: int
    body: bytes
    description: str


class KernelRefusal(InputError):
    """The kernel refused a request; `number` is its errno."""

    def __init__(self, where: str, number: int, words: str) -> None:
        self.number = number
        name = errno.errorcode.get(number, str(number))
        reason = words.rstrip(".") or os.strerror(number)
        super().__init__(where, f"the kernel refuses: {reason} ({name})", _choose_remedy(number))

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        return InputError, (self.where, self.problem, self.remedy)


def _choose_remedy(number: int) -> str:
    return "run it as root" if number == errno.EPERM else ""


def pack_attribute(kind: int, data: bytes) -> bytes:
    """A netlink attribute, padded to 4 bytes."""
    return _ATTRIBUTE.pack(4 + len(data), kind) + data + bytes(-len(data) % 4)


def unpack_attributes(data: bytes) -> dict[int, bytes]:
    """Attributes by kind; the last one of equal kinds."""
    by_kind: dict[int, bytes] = {}
    offset = 0
    while offset + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4:
            break
        by_kind[kind & 0x3FFF] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return by_kind


def pack_new_link(name: str, kind: str) -> Message:
    """A new interface of a kind, up at once."""
    body = _LINK.pack(0, 0, 0, _IS_UP, _IS_UP) + pack_attribute(_LINK_NAME, name.encode() + b"\0")
    body += pack_attribute(_LINK_INFO, pack_attribute(_INFO_KIND, kind.encode()))
    return Message(NEW_LINK, CREATE | EXCLUSIVE, body, f"new {kind} {name}")


def pack_link_deletion(index: int) -> Message:
    return Message(DELETE_LINK, 0, _LINK.pack(0, 0, index, 0, 0), "delete the interface")


class Rtnetlink:
    """A netlink socket inside a namespace (None: ours). Interfaces are addressed by name.

    `protocol` is network configuration, or another netlink protocol with the same requests.
    """

    def __init__(self, namespace: str | None = None, *, protocol: int = NETLINK_ROUTE) -> None:
        self.namespace = namespace
        self._socket = namespaces.run_inside(namespace, partial(_open_socket, protocol))
        self._sequence = 0

    def __enter__(self) -> Rtnetlink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def request(self, messages: Sequence[Message], where: str) -> None:
        """Sends all in order; raises the first refusal after its batch has been tried."""
        for start in range(0, len(messages), _BATCH):
            self._batch(messages[start : start + _BATCH], where)

    def dump(self, kind: int, body: bytes, purpose: str) -> Iterator[bytes]:
        """The body of each object of a kind."""
        first = self._sequence + 1
        self._send([Message(kind, DUMP, body, purpose)])
        while True:
            for reply, flags, sequence, payload in _split_messages(self._receive(purpose)):
                if sequence != first:
                    continue
                if reply == _DONE:
                    return
                if reply == _ERROR:
                    _raise_refusal(purpose, payload, flags)
                yield payload

    def read_interfaces(self) -> Mapping[str, int]:
        """Name -> index."""
        return {name: index for name, index, _ in self._links(0)}

    def read_ready_interfaces(self) -> set[str]:
        """Interfaces that pass packets: up with their peer, and forwarding if on a bridge."""
        up = {name for name, _, parts in self._links(0) if parts.get(_LINK_STATE) == _UP}
        for name, _, parts in self._links(socket.AF_BRIDGE):
            port = unpack_attributes(parts.get(_LINK_PORT, b""))
            if _PORT_STATE in port and port[_PORT_STATE] != _FORWARDING:
                up.discard(name)
        return up

    def _links(self, family: int) -> Iterator[tuple[str, int, dict[int, bytes]]]:
        for body in self.dump(GET_LINK, _LINK.pack(family, 0, 0, 0, 0), "list interfaces"):
            parts = unpack_attributes(body[_LINK.size :])
            (index,) = struct.unpack_from("=i", body, 4)
            yield parts[_LINK_NAME].rstrip(b"\0").decode(), index, parts

    def find_index(self, interface: str) -> int:
        indexes = self.read_interfaces()
        if interface not in indexes:
            where = interface if self.namespace is None else f"{self.namespace} {interface}"
            raise InputError(where, "no such interface", f"there are {', '.join(indexes)}")
        return indexes[interface]

    def read_mtu_bytes(self, index: int) -> int:
        """The MTU of an interface, without the link header; 0 if it is gone."""
        sizes = {number: parts.get(_LINK_MTU, bytes(4)) for _, number, parts in self._links(0)}
        return int(struct.unpack("=I", sizes.get(index, bytes(4)))[0])

    def read_default_routes(self) -> set[int]:
        """Indexes of interfaces that carry a default route, IPv4 or IPv6, directly or for another.

        Bridge ports and bond members carry what their master does; the interface under a VLAN, or
        behind a veth, carries what the upper one does.
        """
        carriers: set[int] = set()
        for family in (socket.AF_INET, socket.AF_INET6):
            for body in self.dump(GET_ROUTE, _ROUTE.pack(family, *[0] * 8), "list routes"):
                head = _ROUTE.unpack_from(body)
                if head[1] == 0 and head[7] == _UNICAST:
                    carriers.update(_list_outputs(unpack_attributes(body[_ROUTE.size :])))
        below = [
            pair for _, index, parts in self._links(0) for pair in _list_carriers(index, parts)
        ]
        while lower_carriers := {lower for upper, lower in below if upper in carriers} - carriers:
            carriers |= lower_carriers
        return carriers

    def read_forwarding(self) -> dict[str, int]:
        """MAC address (02:00:00:00:00:01) -> index of the bridge port behind which it is."""
        port_of = {}
        request = _NEIGHBOUR.pack(socket.AF_BRIDGE, 0, 0, 0, 0)
        for body in self.dump(GET_NEIGHBOUR, request, "list stations of bridges"):
            _, index, state, _, _ = _NEIGHBOUR.unpack_from(body)
            parts = unpack_attributes(body[_NEIGHBOUR.size :])
            if _OF_BRIDGE in parts and not state & _LOCAL:
                port_of[parts[_STATION].hex(":")] = index
        return port_of

    def _batch(self, messages: Sequence[Message], where: str) -> None:
        first = self._sequence + 1
        self._send(messages)
        refusal: tuple[int, bytes, int] | None = None
        while True:
            for kind, flags, sequence, payload in _split_messages(
                self._receive(messages[-1].description)
            ):
                if kind != _ERROR or sequence < first:
                    continue
                if refusal is None and payload[:4] != bytes(4):
                    refusal = sequence - first, payload, flags
                if sequence == self._sequence:  # the last request, done or refused
                    if refusal is not None:
                        refused = f"{where}: {messages[refusal[0]].description}"
                        _raise_refusal(refused, *refusal[1:])
                    return

    def _send(self, messages: Sequence[Message]) -> None:
        last = len(messages) - 1
        parts = []
        for n, (kind, flags, body, _) in enumerate(messages):
            self._sequence += 1
            wanted = flags | REQUEST | (ACKNOWLEDGE if n == last and flags != DUMP else 0)
            parts.append(_HEADER.pack(16 + len(body), kind, wanted, self._sequence, 0) + body)
        self._socket.send(b"".join(parts))

    def _receive(self, purpose: str) -> bytes:
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError as error:
            raise InputError(purpose, f"the kernel does not answer for {_ANSWER_S:g} s") from error


def _open_socket(protocol: int) -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    for option in (_CAP_ACK, _EXT_ACK):
        opened.setsockopt(_SOL_NETLINK, option, 1)
    opened.settimeout(_ANSWER_S)
    opened.bind((0, 0))
    return opened


def _split_messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, sequence number and payload of each message."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        yield kind, flags, sequence, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3


def _raise_refusal(where: str, payload: bytes, flags: int) -> None:
    """An error's payload: errno, the header of the request, then the kernel's words."""
    (code,) = struct.unpack_from("=i", payload)
    words = b""
    if flags & _HAS_WORDS:
        (length,) = struct.unpack_from("=I", payload, 4)
        offset = 4 + (16 if flags & _CAPPED else length)
        words = unpack_attributes(payload[offset:]).get(_WORDS, b"")
    raise KernelRefusal(where, -code, words.rstrip(b"\0").decode(errors="replace"))


def _list_carriers(index: int, link: Mapping[int, bytes]) -> Iterator[tuple[int, int]]:
    """Pairs of an interface and one in the same namespace that carries its packets."""
    if _LINK_MASTER in link:
        yield struct.unpack("=i", link[_LINK_MASTER])[0], index
    if _LINK_BELOW in link and _LINK_ELSEWHERE not in link:
        yield index, struct.unpack("=i", link[_LINK_BELOW])[0]


def _list_outputs(route: Mapping[int, bytes]) -> Iterator[int]:
    if _ROUTE_INTERFACE in route:
        yield struct.unpack("=i", route[_ROUTE_INTERFACE])[0]
    hops, offset = route.get(_ROUTE_MULTIPATH, b""), 0
    while offset + 8 <= len(hops):
        length, _, _, interface = struct.unpack_from("=HBBi", hops, offset)
        yield interface
        offset += max(8, (length + 3) & ~3)
