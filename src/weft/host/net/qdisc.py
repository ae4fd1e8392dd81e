"""Queueing disciplines of an interface as values: token bucket, HTB with its classes, filters.

Each `pack_…` function packs a request for `Rtnetlink.request`, or its options; `read_qdiscs`,
`read_classes` and `read_filters` read back from the kernel. Rates go to the kernel in bytes per
second, so bits per second come back as a multiple of 8; bursts go as time in ticks of 64 ns. Units:
bits per second, bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from weft.host.net.rtnetlink import (
    CREATE,
    EXCLUSIVE,
    Message,
    Rtnetlink,
    pack_attribute,
    unpack_attributes,
)

NEW_QDISC, DELETE_QDISC, GET_QDISC = 36, 37, 38
NEW_CLASS, DELETE_CLASS, GET_CLASS = 40, 41, 42
NEW_FILTER, DELETE_FILTER, GET_FILTER = 44, 45, 46
ROOT, INGRESS = 0xFFFFFFFF, 0xFFFFFFF1
ADD = CREATE | EXCLUSIVE
CHANGE = 0
TICK_NS = 64  # PSCHED_SHIFT in the kernel; /proc/net/psched

_HEAD = struct.Struct("=BxxxiIII")
_RATE = struct.Struct("=BBHhHI")
_STATS = struct.Struct("=QIIIIIII")
_KIND, _OPTIONS, _STATISTICS, _CHAIN = 1, 2, 3, 11
_TBF_PARAMETERS, _TBF_RATE64, _TBF_BURST = 1, 4, 6
_HTB_PARAMETERS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_U32_CLASS, _U32_SELECTOR, _U32_ACTIONS = 1, 5, 7
_ACTION_KIND, _ACTION_OPTIONS = 1, 2
_MIRRED_PARAMETERS, _STOLEN, _REDIRECT = 2, 4, 1
_INGRESS_HANDLE = 0xFFFF0000
_ETHERNET = 1  # the link layer: needs no table of times per size
_UINT32 = 0xFFFFFFFF
_ANY_PROTOCOL = 0x0003
_PROTOCOLS = {1: 0x0800, 2: 0x86DD, 3: _ANY_PROTOCOL}  # one for each priority of filters
_TERMINAL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBucket:
    """`tbf`: passes at most `burst_bytes` at once, queues `limit_bytes`."""

    rate_bps: int
    burst_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HtbClass:
    """A class of HTB: guaranteed `rate_bps`, up to `ceil_bps` if others leave room.

    After a pause it may send `burst_bytes` at once at its rate, and for the same time at its ceil.
    Classes of lower `priority` are served first.
    """

    classid: int
    parent: int
    rate_bps: int
    ceil_bps: int
    quantum_bytes: int
    burst_bytes: int
    priority: int = 0


class Match(NamedTuple):
    """Matches packets whose first word is `value` under `mask`.

    Filters of lower priority are asked first: 1 is IPv4, 2 IPv6, 3 all protocols.
    """

    priority: int
    mask: int
    value: int


class Filter(NamedTuple):
    """Where a filter leads, and how to change or remove it."""

    classid: int
    handle: int
    removal: bytes


REST = Match(3, 0, 0)
FOREIGN = -1  # as mask: another kind of filter, or a duplicate


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Passed and dropped traffic."""

    bytes: int
    packets: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Qdisc:
    """A discipline in the kernel; `options` are the kernel's bytes, to be restored as they are."""

    kind: str
    handle: int
    parent: int
    options: bytes
    count: Counters

    @property
    def is_default(self) -> bool:
        """Whether the kernel attached it: it comes back when its replacement is deleted."""
        return self.handle == 0


# ---- Requests ---------------------------------------------------------------------------------


def pack_qdisc(
    index: int, kind: str, options: bytes, *, handle: int, flags: int, parent: int = ROOT
) -> Message:
    body = _HEAD.pack(0, index, handle, parent, 0) + pack_attribute(_KIND, kind.encode() + b"\0")
    body += pack_attribute(_OPTIONS, options)
    return Message(NEW_QDISC, flags, body, f"qdisc {kind}")


def pack_qdisc_deletion(index: int, parent: int = ROOT, *, handle: int = 0) -> Message:
    """With a handle, only the discipline with this handle."""
    body = _HEAD.pack(0, index, handle, parent, 0)
    return Message(DELETE_QDISC, 0, body, "delete the qdisc")


def pack_bucket(bucket: TokenBucket) -> bytes:
    rate = _to_bytes_per_s(bucket.rate_bps)
    head = _pack_rate(rate) + _pack_rate(0)
    ticks = min(_to_ticks(bucket.burst_bytes, rate), _UINT32)
    options = pack_attribute(
        _TBF_PARAMETERS, head + struct.pack("=III", bucket.limit_bytes, ticks, 0)
    ) + pack_attribute(_TBF_BURST, struct.pack("=I", bucket.burst_bytes))
    return options + _pack_rate64(_TBF_RATE64, rate)


def pack_fifo(limit_bytes: int) -> bytes:
    """Options of `bfifo`."""
    return struct.pack("=I", limit_bytes)


def pack_htb(default_minor: int) -> bytes:
    """Options of the root: unmatched packets go to the class `MAJOR:default_minor`."""
    version, rate_to_quantum = 3, 10
    return pack_attribute(
        _HTB_INIT, struct.pack("=5I", version, rate_to_quantum, default_minor, 0, 0)
    )


def pack_class(index: int, htb_class: HtbClass, *, flags: int) -> Message:
    body = _HEAD.pack(0, index, htb_class.classid, htb_class.parent, 0)
    body += pack_attribute(_KIND, b"htb\0") + pack_attribute(
        _OPTIONS, _pack_class_options(htb_class)
    )
    return Message(NEW_CLASS, flags, body, f"class {format_handle(htb_class.classid)}")


def _pack_class_options(htb_class: HtbClass) -> bytes:
    rate, ceil = _to_bytes_per_s(htb_class.rate_bps), _to_bytes_per_s(htb_class.ceil_bps)
    burst = min(_to_ticks(htb_class.burst_bytes, rate), _UINT32)
    rest = struct.pack("=IIIII", burst, burst, htb_class.quantum_bytes, 0, htb_class.priority)
    options = pack_attribute(_HTB_PARAMETERS, _pack_rate(rate) + _pack_rate(ceil) + rest)
    return options + _pack_rate64(_HTB_RATE64, rate) + _pack_rate64(_HTB_CEIL64, ceil)


def pack_class_deletion(index: int, classid: int) -> Message:
    body = _HEAD.pack(0, index, classid, 0, 0)
    return Message(DELETE_CLASS, 0, body, f"delete class {format_handle(classid)}")


def round_class(htb_class: HtbClass) -> HtbClass:
    """The class as the kernel shows it: rates in bytes per second, the burst in ticks, ROOT as
    parent directly under the discipline.
    """
    parent = htb_class.parent if htb_class.parent & 0xFFFF else ROOT
    return _unpack_class(
        htb_class.classid, parent, unpack_attributes(_pack_class_options(htb_class))
    )


def match_dscp(dscp: int) -> tuple[Match, Match]:
    """Matches of a DSCP in IPv4 and IPv6; the two ECN bits are ignored."""
    return Match(1, 0x00FC0000, dscp << 18), Match(2, 0x0FC00000, dscp << 22)


def pack_filter(index: int, match: Match, classid: int, *, handle: int = 0) -> Message:
    """A u32 filter to a class; with a handle, redirects the existing filter in one step."""
    options = pack_attribute(_U32_CLASS, struct.pack("=I", classid))
    options += pack_attribute(_U32_SELECTOR, _pack_selector(match.mask, match.value))
    order = match.priority << 16 | _swap_bytes(_PROTOCOLS[match.priority])
    head = _HEAD.pack(0, index, handle, classid & 0xFFFF0000, order)
    description = f"filter {match.priority} of {match.value:08x} to {format_handle(classid)}"
    return _pack_u32(head, options, description, flags=CHANGE if handle else ADD)


def pack_filter_deletion(old: Filter) -> Message:
    return Message(DELETE_FILTER, 0, old.removal, f"delete filter {old.handle:x}")


def pack_ingress(index: int) -> Message:
    """Allows filters on incoming packets."""
    return pack_qdisc(index, "ingress", b"", handle=_INGRESS_HANDLE, flags=ADD, parent=INGRESS)


def pack_redirect(index: int, to: int) -> Message:
    """Redirects all incoming packets of an interface to another one."""
    parameters = struct.pack("=IIiiiiI", 0, 0, _STOLEN, 0, 0, _REDIRECT, to)
    mirred = pack_attribute(_ACTION_KIND, b"mirred\0")
    mirred += pack_attribute(_ACTION_OPTIONS, pack_attribute(_MIRRED_PARAMETERS, parameters))
    options = pack_attribute(_U32_SELECTOR, _pack_selector(0, 0))
    options += pack_attribute(_U32_ACTIONS, pack_attribute(1, mirred))
    head = _HEAD.pack(0, index, 0, _INGRESS_HANDLE, 1 << 16 | _swap_bytes(_ANY_PROTOCOL))
    return _pack_u32(head, options, "redirect of all that is received")


def _pack_selector(mask: int, value: int) -> bytes:
    """u32: packets whose first word is `value` under `mask`."""
    head = struct.pack("=BBBxHHhhI", _TERMINAL, 0, 1, 0, 0, 0, 0, 0)
    return head + struct.pack("!II", mask, value) + struct.pack("=ii", 0, 0)


def _pack_u32(head: bytes, options: bytes, description: str, *, flags: int = ADD) -> Message:
    body = head + pack_attribute(_KIND, b"u32\0") + pack_attribute(_OPTIONS, options)
    return Message(NEW_FILTER, flags, body, description)


def _pack_rate(bytes_per_s: int) -> bytes:
    return _RATE.pack(0, _ETHERNET, 0, 0, 0, min(bytes_per_s, _UINT32))


def _pack_rate64(kind: int, bytes_per_s: int) -> bytes:
    return pack_attribute(kind, struct.pack("=Q", bytes_per_s)) if bytes_per_s > _UINT32 else b""


def _to_bytes_per_s(rate_bps: int) -> int:
    return max(1, rate_bps // 8)


def _to_ticks(burst_bytes: int, bytes_per_s: int) -> int:
    return -(-burst_bytes * 10**9 // (bytes_per_s * TICK_NS))


def _swap_bytes(number: int) -> int:
    return int(struct.unpack("=H", struct.pack("!H", number))[0])


# ---- Read back --------------------------------------------------------------------------------


def read_qdiscs(link: Rtnetlink, index: int) -> list[Qdisc]:
    """Every discipline of an interface, in the kernel's order."""
    return read_all_qdiscs(link).get(index, [])


def read_all_qdiscs(link: Rtnetlink) -> dict[int, list[Qdisc]]:
    """The disciplines of every interface, by index: the kernel always lists them all."""
    by_interface: dict[int, list[Qdisc]] = {}
    for body in link.dump(GET_QDISC, _HEAD.pack(0, 0, 0, 0, 0), "list qdiscs"):
        _, index, handle, parent, _ = _HEAD.unpack_from(body)
        parts = unpack_attributes(body[_HEAD.size :])
        by_interface.setdefault(index, []).append(
            Qdisc(
                kind=parts[_KIND].rstrip(b"\0").decode(),
                handle=handle,
                parent=parent,
                options=parts.get(_OPTIONS, b""),
                count=_unpack_counters(parts.get(_STATISTICS, b"")),
            )
        )
    return by_interface


def read_classes(link: Rtnetlink, index: int) -> dict[int, tuple[HtbClass, Counters]]:
    """HTB classes by id."""
    by_id = {}
    for body in link.dump(GET_CLASS, _HEAD.pack(0, index, 0, 0, 0), "list classes"):
        _, _, classid, parent, _ = _HEAD.unpack_from(body)
        parts = unpack_attributes(body[_HEAD.size :])
        if parts[_KIND] == b"htb\0":
            htb_class = _unpack_class(classid, parent, unpack_attributes(parts[_OPTIONS]))
            by_id[classid] = htb_class, _unpack_counters(parts.get(_STATISTICS, b""))
    return by_id


def read_filters(link: Rtnetlink, index: int, parent: int) -> dict[Match, Filter]:
    """The filters of a discipline; those that `pack_filter` does not make are `FOREIGN`.

    Of two filters with the same match the first wins, as in the kernel.
    """
    by_match: dict[Match, Filter] = {}
    for body in link.dump(GET_FILTER, _HEAD.pack(0, index, 0, parent, 0), "list filters"):
        _, _, handle, _, order = _HEAD.unpack_from(body)
        parts = unpack_attributes(body[_HEAD.size :])
        options = unpack_attributes(parts.get(_OPTIONS, b""))
        if not handle or (parts[_KIND] == b"u32\0" and _U32_SELECTOR not in options):
            continue  # a whole priority, or u32's hash table
        classid = int(struct.unpack("=I", options.get(_U32_CLASS, bytes(4)))[0])
        match = _unpack_match(order >> 16, options.get(_U32_SELECTOR, b""))
        if match is None or match in by_match or any(parts.get(_CHAIN, b"")):
            match = Match(order >> 16, FOREIGN, handle)
        removal = _HEAD.pack(0, index, handle, parent, order)
        removal += b"".join(pack_attribute(n, parts[n]) for n in (_KIND, _CHAIN) if n in parts)
        by_match[match] = Filter(classid, handle, removal)
    return by_match


def _unpack_match(priority: int, selector: bytes) -> Match | None:
    is_one_word = len(selector) == 32 and selector[2] == 1 and not any(selector[24:])
    return Match(priority, *struct.unpack_from("!II", selector, 16)) if is_one_word else None


def unpack_htb_default(options: bytes) -> int:
    """The minor number of the class for unmatched packets."""
    return int(struct.unpack_from("=3I", unpack_attributes(options)[_HTB_INIT])[2])


def unpack_bucket(options: bytes) -> TokenBucket:
    """The token bucket of a dumped `tbf`."""
    parts = unpack_attributes(options)
    head = parts[_TBF_PARAMETERS]
    limit, ticks, _ = struct.unpack_from("=III", head, 24)
    rate = _unpack_rate(head, 0, parts.get(_TBF_RATE64))
    return TokenBucket(
        rate_bps=8 * rate, burst_bytes=_to_burst_bytes(ticks, rate), limit_bytes=int(limit)
    )


def _unpack_class(classid: int, parent: int, options: dict[int, bytes]) -> HtbClass:
    head = options[_HTB_PARAMETERS]
    burst, _, quantum, _, priority = struct.unpack_from("=IIIII", head, 24)
    rate = _unpack_rate(head, 0, options.get(_HTB_RATE64))
    return HtbClass(
        classid=classid,
        parent=parent,
        rate_bps=8 * rate,
        ceil_bps=8 * _unpack_rate(head, 12, options.get(_HTB_CEIL64)),
        quantum_bytes=int(quantum),
        burst_bytes=_to_burst_bytes(burst, rate),
        priority=int(priority),
    )


def _unpack_rate(head: bytes, offset: int, wide: bytes | None) -> int:
    if wide is not None:
        return int(struct.unpack("=Q", wide)[0])
    return int(_RATE.unpack_from(head, offset)[5])


def _to_burst_bytes(ticks: int, bytes_per_s: int) -> int:
    return ticks * TICK_NS * bytes_per_s // 10**9


def _unpack_counters(statistics: bytes) -> Counters:
    if len(statistics) < _STATS.size:
        return Counters(bytes=0, packets=0, dropped=0)
    passed, packets, dropped, *_ = _STATS.unpack_from(statistics)
    return Counters(bytes=passed, packets=packets, dropped=dropped)


def format_handle(handle: int) -> str:
    """As tc writes it: 1:, 8001:, 1:10 (hexadecimal)."""
    minor = handle & 0xFFFF
    return f"{handle >> 16:x}:{minor:x}" if minor else f"{handle >> 16:x}:"
