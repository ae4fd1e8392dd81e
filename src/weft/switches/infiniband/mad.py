"""Management packets of the InfiniBand architecture: bytes and values.

An SMP is a datagram of 256 bytes that reads one attribute of 64 bytes of a port (Get) or replaces
it (Set). It reaches the port by LID (class 0x01) or by a directed route (class 0x81). Numbers are
big-endian; layouts are those of IBA volume 1, 13.4.2, 14.2.1 and 14.2.5. Each request carries an
M_Key: a port with another key does not answer. Counters are read by packets of performance
management (class 0x04, volume 1, 16.1), which have no key. Service records are kept by subnet
administration (class 0x03, volume 1, 15.2), which the subnet manager answers for. Entry points:
`pack_request`, `unpack_answer`; functions for each attribute that is read or written.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

MAD_BYTES, ATTRIBUTE_BYTES = 256, 64
LID_ROUTED, DIRECTED, PERFORMANCE, ADMINISTRATION = 0x01, 0x81, 0x04, 0x03
NO_LID = 0xFFFF
MAX_HOPS = 63
LEVELS = 16  # service levels; VL 15 drops a packet
BLOCK_ENTRIES = 32
LFT_BLOCK = 64
NO_ROUTE = 0xFF

NODE_DESCRIPTION, NODE_INFO, SWITCH_INFO, PORT_INFO = 0x10, 0x11, 0x12, 0x15
PORT_COUNTERS, PORT_COUNTERS_EXTENDED = 0x12, 0x1D  # of performance management
PORT_RCV_DATA_SL = 0x37  # the same; optional
SL_TO_VL, VL_ARBITRATION, LINEAR_FORWARDING = 0x17, 0x18, 0x19

SWITCH = 2  # a node's type; 1 is an adapter, 3 a router
LINK_UP, INITIALIZED = 5, 2  # physical state of a linked port, and its minimum logical state

_GET, _SET, _IS_ANSWER = 0x01, 0x02, 0x80
_DELETE = 0x15
_VERSION, _ADMINISTRATION_VERSION = 1, 2
_DIRECTION = 0x8000
_BUSY, _REDIRECT = 0x1, 0x2
_STATUS = {
    1: "version not supported",
    2: "method not supported",
    3: "attribute not supported",
    7: "a value is invalid",
}
# Base version, class, class version, method; status; hop pointer, hop count; transaction;
# attribute; modifier; M_Key; source and destination of the part routed by LID; attribute's data;
# initial path; return path.
_SMP = struct.Struct(">BBBBHBBQH2xIQHH28x64s64s64x")
# Base version, class, class version, method; transaction; attribute; the port, and which counters.
_COUNTERS = struct.Struct(">BBBB4xQH46xxBH188x")
_ALL_COUNTERS = 0xFFFF
# Base version, class, class version, method; transaction; attribute; mask of components; data.
_RECORD = struct.Struct(">BBBB4xQH30xQ200s")
_RECORD_AT = 56
_ANSWER = struct.Struct(">xBxBH2xQ")
_NODE_INFO = struct.Struct(">xxBB8xQQ8xB")

_WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_SPEEDS = {1: "SDR", 2: "DDR", 4: "QDR"}
_EXTENDED_SPEEDS = {1: "FDR", 2: "EDR", 4: "HDR", 8: "NDR"}
_DATA_VLS = {1: 1, 2: 2, 3: 4, 4: 8, 5: 15}

Address = int | tuple[int, ...]
"""A LID, or the output ports of a directed route from here; () is this host's own port."""


class Smp(NamedTuple):
    """A request: a Get, or a Set to `new`."""

    to: Address
    attribute: int
    modifier: int = 0
    new: bytes | None = None


class CountersGet(NamedTuple):
    """A request for counters of a port: by LID to the performance management agent of a node."""

    to: int
    attribute: int
    port: int


class RecordRequest(NamedTuple):
    """A request to subnet administration, at the LID of the subnet manager."""

    to: int
    method: int
    attribute: int
    mask: int  # which components of the data count
    data: bytes


Request = Smp | CountersGet | RecordRequest


class Answer(NamedTuple):
    """The answer to a transaction; not `is_answer`: our own request, returned unanswered."""

    transaction: int
    is_answer: bool
    status: int
    data: bytes


def pack_request(request: Request, transaction: int, m_key: int = 0) -> bytes:
    """The datagram of a request; its second byte is its class."""
    if isinstance(request, CountersGet):
        head = (_VERSION, PERFORMANCE, _VERSION, _GET, transaction, request.attribute)
        return _COUNTERS.pack(*head, request.port, _ALL_COUNTERS)
    if isinstance(request, RecordRequest):
        kind = (_VERSION, ADMINISTRATION, _ADMINISTRATION_VERSION, request.method)
        return _RECORD.pack(*kind, transaction, request.attribute, request.mask, request.data)
    directed = isinstance(request.to, tuple)
    hops = request.to if isinstance(request.to, tuple) else ()
    way = bytes((0, *hops)) if directed else b""
    lid = NO_LID if directed else 0
    return _SMP.pack(
        _VERSION,
        DIRECTED if directed else LID_ROUTED,
        _VERSION,
        _GET if request.new is None else _SET,
        0,
        0,
        len(hops),
        transaction,
        request.attribute,
        request.modifier,
        m_key,
        lid,
        lid,
        request.new or b"",
        way,
    )


def unpack_answer(mad: bytes) -> Answer:
    """The answer in a datagram; its transaction is the lower half; the upper is the kernel's."""
    kind, method, status, transaction = _ANSWER.unpack_from(mad)
    return Answer(
        transaction & 0xFFFFFFFF,
        bool(method & _IS_ANSWER),
        status & ~_DIRECTION if kind == DIRECTED else status,
        mad[_RECORD_AT:] if kind == ADMINISTRATION else mad[64:128],
    )


def is_busy(status: int) -> bool:
    """Whether the port wants the request again later."""
    return bool(status & _BUSY)


def describe_status(status: int) -> str:
    words = "asks elsewhere" if status & _REDIRECT else _STATUS.get(status >> 2 & 7, "refuses")
    return f"{words} (status 0x{status:x})"


def describe_address(to: Address) -> str:
    return f"LID {to}" if isinstance(to, int) else f"the path {','.join(map(str, (0, *to)))}"


# ---- What a node is ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """`local_port` is the port by which the request came in."""

    kind: int
    ports: int
    guid: int
    port_guid: int
    local_port: int

    @property
    def is_switch(self) -> bool:
        return self.kind == SWITCH


def unpack_node_info(data: bytes) -> NodeInfo:
    kind, ports, guid, port_guid, local_port = _NODE_INFO.unpack_from(data)
    return NodeInfo(kind=kind, ports=ports, guid=guid, port_guid=port_guid, local_port=local_port)


def unpack_description(data: bytes) -> str:
    """The description in printable characters without quotes; may be empty."""
    text = data.split(b"\0", 1)[0].decode(errors="replace")
    return "".join(c if c.isprintable() and c != '"' else "?" for c in text).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchInfo:
    """`top` is the last LID of the forwarding table; `maps_all_inputs`: one Set for all inputs."""

    top: int
    maps_all_inputs: bool


def unpack_switch_info(data: bytes) -> SwitchInfo:
    # Two bits say whether maps can be set at once; values 2 and 3 are reserved.
    return SwitchInfo(top=int.from_bytes(data[6:8], "big"), maps_all_inputs=data[11] & 0x3 == 1)


# ---- What a port is ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PortInfo:
    """A port's link, its data VLs in use, and the sizes of its tables.

    It answers to 2^`lmc` LIDs from `lid` on. `has_maps`: levels can go to several VLs; port 0 of a
    switch says it for all ports.
    """

    data: bytes
    lid: int
    lmc: int
    has_maps: bool
    is_linked: bool
    rate: str | None
    data_vls: int
    high_limit: int
    high_entries: int
    low_entries: int


def unpack_port_info(data: bytes) -> PortInfo:
    return PortInfo(
        data=data,
        lid=int.from_bytes(data[16:18], "big"),
        lmc=data[34] & 0x7,
        has_maps=bool(data[23] & 0x40),
        is_linked=data[33] >> 4 == LINK_UP and data[32] & 0xF >= INITIALIZED,
        rate=_unpack_rate(data),
        data_vls=_DATA_VLS.get(data[43] >> 4, 0),
        high_limit=data[38],
        high_entries=data[39],
        low_entries=data[40],
    )


def _unpack_rate(data: bytes) -> str | None:
    """Such as 4xEDR; None if width or speed is unknown."""
    width, extended = _WIDTHS.get(data[31]), data[62] >> 4
    speed = _EXTENDED_SPEEDS.get(extended) if extended else _SPEEDS.get(data[35] >> 4)
    return f"{width}x{speed}" if width and speed else None


def is_same_subnet(before: bytes, now: bytes) -> bool:
    """Whether a port's keys, LIDs and subnet manager are unchanged."""
    return before[:20] == now[:20] and (before[26:28], before[34]) == (now[26:28], now[34])


def replace_high_limit(data: bytes, limit: int) -> bytes:
    """The port's information with another limit, ready to be set.

    States, width and speeds become 0, which means "no change": some values, written back as read,
    would be commands.
    """
    new = bytearray(data)
    new[29] = 0  # LinkWidthEnabled
    new[32] &= 0xF0  # PortState
    new[33] = 0  # PortPhysicalState, LinkDownDefaultState
    new[35] &= 0xF0  # LinkSpeedEnabled
    new[38] = limit
    new[51] &= 0x7F  # ClientReregister
    new[63] &= 0xE0  # LinkSpeedExtEnabled
    return bytes(new)


# ---- Service records ----------------------------------------------------------------------------

_SERVICE_RECORD = 0x31
TOO_MANY_RECORDS, NO_RECORDS = 0x0400, 0x0300  # status of an answer
_SERVICE = struct.Struct(">Q16s2x2xI16x64s48s")
_BY_NAME = 1 << 6
_KEY_FIELDS = 0b11  # id and GID
_DATA_FIELDS = (1 << 35) - (1 << 7)  # bytes, words and double words: 48 bytes
_ALL_FIELDS = _KEY_FIELDS | 1 << 4 | _BY_NAME | _DATA_FIELDS


class ServiceRecord(NamedTuple):
    """What a service tells the subnet, for `lease_s` seconds; `data`: up to 48 bytes."""

    id: int
    gid: bytes
    lease_s: int
    name: bytes
    data: bytes

    def _pack(self) -> bytes:
        return _SERVICE.pack(*self)

    def set_at(self, lid: int) -> RecordRequest:
        return RecordRequest(lid, _SET, _SERVICE_RECORD, _ALL_FIELDS, self._pack())

    def delete_at(self, lid: int) -> RecordRequest:
        return RecordRequest(lid, _DELETE, _SERVICE_RECORD, _KEY_FIELDS, self._pack())


def find_service(lid: int, name: bytes) -> RecordRequest:
    """The record of that name, if there is exactly one."""
    data = ServiceRecord(0, b"", 0, name, b"")._pack()
    return RecordRequest(lid, _GET, _SERVICE_RECORD, _BY_NAME, data)


def unpack_service(data: bytes) -> ServiceRecord:
    return ServiceRecord._make(_SERVICE.unpack_from(data))


def unpack_manager(port_info: bytes) -> tuple[bytes, int]:
    """The subnet's prefix, and the LID of its manager, as a port knows them."""
    return port_info[8:16], int.from_bytes(port_info[18:20], "big")


# ---- Tables of a port ---------------------------------------------------------------------------

Entry = tuple[int, int]
"""Of VL arbitration: a virtual lane, and its weight in units of 64 bytes."""

LOW, HIGH = 1, 3  # the first of two blocks of each table


def pack_arbitration_modifier(table: int, block: int, port: int) -> int:
    return (table + block) << 16 | port


def pack_arbitration(entries: Sequence[Entry]) -> bytes:
    """At most 32 entries; the rest have weight 0 and are skipped."""
    data = bytes(byte for vl, weight in entries for byte in (vl & 0xF, weight))
    return data.ljust(ATTRIBUTE_BYTES, b"\0")


def unpack_arbitration(blocks: bytes) -> tuple[Entry, ...]:
    """The entries of one or several blocks."""
    return tuple((vl & 0xF, weight) for vl, weight in zip(blocks[::2], blocks[1::2], strict=True))


ALL_INPUTS = 0x20000


def pack_map_modifier(input_port: int, output_port: int) -> int:
    return input_port << 8 | output_port


def pack_map(vls: Sequence[int]) -> bytes:
    """The map of a pair of ports: the VL of each of the 16 service levels."""
    pairs = zip(vls[0::2], vls[1::2], strict=True)
    return bytes(a << 4 | b for a, b in pairs).ljust(ATTRIBUTE_BYTES, b"\0")


def unpack_map(data: bytes) -> tuple[int, ...]:
    return _unpack_nibbles(data[: LEVELS // 2])


@cache
def _unpack_nibbles(nibbles: bytes) -> tuple[int, ...]:
    # A large fabric has a map for each pair of ports, but few different ones: share them.
    return tuple(vl for byte in nibbles for vl in (byte >> 4, byte & 0xF))
