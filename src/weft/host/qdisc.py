"""Queueing disciplines of an interface as values: token bucket, HTB with its classes, filters.

Each `…_message` packs one request for `Rtnetlink.request`; `qdiscs` and `classes` read back what
the kernel has. Rates go to the kernel in bytes per second, so bits per second come back as a
multiple of 8; bursts go as time in ticks of 64 ns. Units: bits per second, bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from weft.host.rtnetlink import CREATE, EXCLUSIVE, Message, Rtnetlink, attribute, attributes

NEW_QDISC, DELETE_QDISC, GET_QDISC = 36, 37, 38
NEW_CLASS, GET_CLASS = 40, 42
NEW_FILTER, GET_FILTER = 44, 46
ROOT, INGRESS = 0xFFFFFFFF, 0xFFFFFFF1
ADD = CREATE | EXCLUSIVE
CHANGE = 0
TICK_NS = 64  # PSCHED_SHIFT in the kernel; /proc/net/psched

_HEAD = struct.Struct("=BxxxiIII")
_RATE = struct.Struct("=BBHhHI")
_STATS = struct.Struct("=QIIIIIII")
_KIND, _OPTIONS, _STATISTICS = 1, 2, 3
_TBF_PARAMETERS, _TBF_RATE64, _TBF_BURST = 1, 4, 6
_HTB_PARAMETERS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_U32_CLASS, _U32_SELECTOR, _U32_ACTIONS = 1, 5, 7
_ACTION_KIND, _ACTION_OPTIONS = 1, 2
_MIRRED_PARAMETERS, _STOLEN, _REDIRECT = 2, 4, 1
_INGRESS_HANDLE = 0xFFFF0000
_ETHERNET = 1  # the link layer: no table of times per size is needed
_UINT32 = 0xFFFFFFFF
_IPV4, _ANY_PROTOCOL = 0x0800, 0x0003
_TERMINAL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBucket:
    """`tbf`: at most `burst_bytes` at once, `limit_bytes` may wait."""

    rate_bps: int
    burst_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HtbClass:
    """A class of HTB: `rate_bps` is its own, up to `ceil_bps` when others leave room."""

    classid: int
    parent: int
    rate_bps: int
    ceil_bps: int
    quantum_bytes: int
    burst_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What has passed, and what was lost or waits."""

    bytes: int
    packets: int
    dropped: int
    waiting_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Qdisc:
    """A discipline as the kernel shows it; `options` are its own bytes, to be given back."""

    kind: str
    handle: int
    parent: int
    options: bytes
    count: Count

    @property
    def is_default(self) -> bool:
        """Attached by the kernel itself: deleting what covers it brings it back."""
        return self.handle == 0


# ---- Requests ---------------------------------------------------------------------------------


def qdisc_message(
    index: int, kind: str, options: bytes, *, handle: int, flags: int, parent: int = ROOT
) -> Message:
    body = _HEAD.pack(0, index, handle, parent, 0) + attribute(_KIND, kind.encode() + b"\0")
    body += attribute(_OPTIONS, options)
    return Message(NEW_QDISC, flags, body, f"qdisc {kind}")


def delete_message(index: int, parent: int = ROOT) -> Message:
    body = _HEAD.pack(0, index, 0, parent, 0)
    return Message(DELETE_QDISC, 0, body, "delete the qdisc")


def bucket_options(bucket: TokenBucket) -> bytes:
    rate = _bytes_per_s(bucket.rate_bps)
    head = _rate(rate) + _rate(0)
    ticks = min(_ticks(bucket.burst_bytes, rate), _UINT32)
    options = attribute(
        _TBF_PARAMETERS, head + struct.pack("=III", bucket.limit_bytes, ticks, 0)
    ) + attribute(_TBF_BURST, struct.pack("=I", bucket.burst_bytes))
    return options + _rate64(_TBF_RATE64, rate)


def fifo_options(limit_bytes: int) -> bytes:
    """Of `bfifo`."""
    return struct.pack("=I", limit_bytes)


def htb_options(default_minor: int) -> bytes:
    """Of the root: what no filter takes goes to the class `MAJOR:default_minor`."""
    version, rate_to_quantum = 3, 10
    return attribute(_HTB_INIT, struct.pack("=5I", version, rate_to_quantum, default_minor, 0, 0))


def class_message(index: int, one: HtbClass, *, flags: int) -> Message:
    rate, ceil = _bytes_per_s(one.rate_bps), _bytes_per_s(one.ceil_bps)
    bursts = _ticks(one.burst_bytes, rate), _ticks(one.burst_bytes, ceil)
    rest = struct.pack("=IIIII", *bursts, one.quantum_bytes, 0, 0)
    options = attribute(_HTB_PARAMETERS, _rate(rate) + _rate(ceil) + rest)
    options += _rate64(_HTB_RATE64, rate) + _rate64(_HTB_CEIL64, ceil)
    body = _HEAD.pack(0, index, one.classid, one.parent, 0)
    body += attribute(_KIND, b"htb\0") + attribute(_OPTIONS, options)
    return Message(NEW_CLASS, flags, body, f"class {name(one.classid)}")


def dscp_filter_message(index: int, dscp: int, classid: int, *, priority: int = 1) -> Message:
    """u32: IPv4 packets of a DSCP to a class. The two bits of ECN are not looked at."""
    options = attribute(_U32_CLASS, struct.pack("=I", classid))
    options += attribute(_U32_SELECTOR, _selector(0x00FC0000, dscp << 18))
    head = _HEAD.pack(0, index, 0, classid & 0xFFFF0000, priority << 16 | _swapped16(_IPV4))
    return _u32_message(head, options, f"filter of DSCP {dscp}")


def ingress_message(index: int) -> Message:
    """What an interface receives can have filters."""
    return qdisc_message(index, "ingress", b"", handle=_INGRESS_HANDLE, flags=ADD, parent=INGRESS)


def redirect_message(index: int, to: int) -> Message:
    """All that an interface receives goes out of another one instead."""
    parameters = struct.pack("=IIiiiiI", 0, 0, _STOLEN, 0, 0, _REDIRECT, to)
    mirred = attribute(_ACTION_KIND, b"mirred\0")
    mirred += attribute(_ACTION_OPTIONS, attribute(_MIRRED_PARAMETERS, parameters))
    options = attribute(_U32_SELECTOR, _selector(0, 0))
    options += attribute(_U32_ACTIONS, attribute(1, mirred))
    head = _HEAD.pack(0, index, 0, _INGRESS_HANDLE, 1 << 16 | _swapped16(_ANY_PROTOCOL))
    return _u32_message(head, options, "redirect of all that is received")


def _selector(mask: int, value: int) -> bytes:
    """u32: packets whose first word is `value` under `mask`."""
    head = struct.pack("=BBBxHHhhI", _TERMINAL, 0, 1, 0, 0, 0, 0, 0)
    return head + struct.pack("!II", mask, value) + struct.pack("=ii", 0, 0)


def _u32_message(head: bytes, options: bytes, what: str) -> Message:
    body = head + attribute(_KIND, b"u32\0") + attribute(_OPTIONS, options)
    return Message(NEW_FILTER, ADD, body, what)


def _rate(bytes_per_s: int) -> bytes:
    return _RATE.pack(0, _ETHERNET, 0, 0, 0, min(bytes_per_s, _UINT32))


def _rate64(kind: int, bytes_per_s: int) -> bytes:
    return attribute(kind, struct.pack("=Q", bytes_per_s)) if bytes_per_s > _UINT32 else b""


def _bytes_per_s(rate_bps: int) -> int:
    return max(1, rate_bps // 8)


def _ticks(burst_bytes: int, bytes_per_s: int) -> int:
    return -(-burst_bytes * 10**9 // (bytes_per_s * TICK_NS))


def _swapped16(number: int) -> int:
    return int(struct.unpack("=H", struct.pack("!H", number))[0])


# ---- Read back --------------------------------------------------------------------------------


def qdiscs(link: Rtnetlink, index: int) -> list[Qdisc]:
    """Every discipline of an interface, in the kernel's order."""
    found = []
    for body in link.dump(GET_QDISC, _HEAD.pack(0, index, 0, 0, 0), "list qdiscs"):
        _, at, handle, parent, _ = _HEAD.unpack_from(body)
        if at != index:
            continue
        parts = attributes(body[_HEAD.size :])
        found.append(
            Qdisc(
                kind=parts[_KIND].rstrip(b"\0").decode(),
                handle=handle,
                parent=parent,
                options=parts.get(_OPTIONS, b""),
                count=_count(parts.get(_STATISTICS, b"")),
            )
        )
    return found


def classes(link: Rtnetlink, index: int) -> dict[int, tuple[HtbClass, Count]]:
    """HTB's classes by their id."""
    found = {}
    for body in link.dump(GET_CLASS, _HEAD.pack(0, index, 0, 0, 0), "list classes"):
        _, _, classid, parent, _ = _HEAD.unpack_from(body)
        parts = attributes(body[_HEAD.size :])
        if parts[_KIND] == b"htb\0":
            one = _class(classid, parent, attributes(parts[_OPTIONS]))
            found[classid] = one, _count(parts.get(_STATISTICS, b""))
    return found


def dscp_filters(link: Rtnetlink, index: int, parent: int) -> dict[int, int]:
    """DSCP -> class, of the filters that `dscp_filter_message` makes."""
    found = {}
    for body in link.dump(GET_FILTER, _HEAD.pack(0, index, 0, parent, 0), "list filters"):
        parts = attributes(attributes(body[_HEAD.size :]).get(_OPTIONS, b""))
        if _U32_SELECTOR in parts and _U32_CLASS in parts:
            mask, value = struct.unpack_from("!II", parts[_U32_SELECTOR], 16)
            if mask == 0x00FC0000:
                found[value >> 18] = int(struct.unpack("=I", parts[_U32_CLASS])[0])
    return found


def htb_default(options: bytes) -> int:
    """The minor number of the class that takes what no filter takes."""
    return int(struct.unpack_from("=3I", attributes(options)[_HTB_INIT])[2])


def bucket(options: bytes) -> TokenBucket:
    """The token bucket of a dumped `tbf`."""
    parts = attributes(options)
    head = parts[_TBF_PARAMETERS]
    limit, ticks, _ = struct.unpack_from("=III", head, 24)
    rate = _rate_of(head, 0, parts.get(_TBF_RATE64))
    return TokenBucket(
        rate_bps=8 * rate, burst_bytes=_burst_bytes(ticks, rate), limit_bytes=int(limit)
    )


def _class(classid: int, parent: int, options: dict[int, bytes]) -> HtbClass:
    head = options[_HTB_PARAMETERS]
    burst, _, quantum, _, _ = struct.unpack_from("=IIIII", head, 24)
    rate = _rate_of(head, 0, options.get(_HTB_RATE64))
    return HtbClass(
        classid=classid,
        parent=parent,
        rate_bps=8 * rate,
        ceil_bps=8 * _rate_of(head, 12, options.get(_HTB_CEIL64)),
        quantum_bytes=int(quantum),
        burst_bytes=_burst_bytes(burst, rate),
    )


def _rate_of(head: bytes, at: int, wide: bytes | None) -> int:
    if wide is not None:
        return int(struct.unpack("=Q", wide)[0])
    return int(_RATE.unpack_from(head, at)[5])


def _burst_bytes(ticks: int, bytes_per_s: int) -> int:
    return ticks * TICK_NS * bytes_per_s // 10**9


def _count(statistics: bytes) -> Count:
    if len(statistics) < _STATS.size:
        return Count(bytes=0, packets=0, dropped=0, waiting_bytes=0)
    passed, packets, dropped, _, _, _, _, waiting = _STATS.unpack_from(statistics)
    return Count(bytes=passed, packets=packets, dropped=dropped, waiting_bytes=waiting)


def name(handle: int) -> str:
    """As tc writes it: 1:, 8001:, 1:10 (hexadecimal)."""
    minor = handle & 0xFFFF
    return f"{handle >> 16:x}:{minor:x}" if minor else f"{handle >> 16:x}:"
