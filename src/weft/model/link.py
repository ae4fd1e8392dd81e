"""What a message costs on the wire, and what a link can carry at most.

    goodput ≤ R · size / max(D, A)           one way:  D bytes of data, A of answers per message
    goodput ≤ R · size / (D + A)             both ways: each direction has both
    message rate ≤ min(goodput / size, engines · rate of one)

R is the data rate after line coding (`weft.fabric`). These are bounds, not predictions: hosts,
buffers and arbitration are left out.

An RDMA packet has the wire's own header, then BTH and what transport, opcode and the packet's place
in its message add: DETH on every datagram, RETH where memory is addressed, ImmDt on the last
packet, AETH on acknowledgements and on the first and last READ responses. Payload is padded to four
bytes. UDP is sent in IP fragments, TCP in segments.
Sizes: InfiniBand Architecture Specification, volume 1, chapters 5 and 9 (annex A17 for RoCEv2);
RFC 768, 791, 9293, 4391 and 4755; IEEE 802.3. Not counted: link-level flow control packets and the
physical layer's delimiters. Entry points: `header_bytes`, `on_wire`, `data_rate_gbps`,
`goodput_gbps`, `message_rate_mps`. Units: bytes, Gb/s, M/s.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.fabric import LinkRate
from weft.model.fit import FloatArray

SOURCE = (
    "InfiniBand Architecture Specification, volumes 1 and 2; IEEE 802.3; RFC 768, 791, 9293, 4391"
)
BTH, DETH, RETH, AETH, IMMDT = 12, 8, 16, 4, 4
LRH, GRH, ICRC, VCRC = 8, 40, 4, 2
ETHERNET, FCS, PREAMBLE_AND_GAP, LEAST_FRAME = 14, 4, 8 + 12, 64
IPV4, UDP, TCP, TCP_TIMESTAMPS = 20, 8, 20, 12
IPOIB = 4
LARGEST_DATAGRAM = 65_507
FRAGMENT_UNIT = 8

OPERATIONS = ("send", "send-with-imm", "write", "write-with-imm", "read")
PLACES = ("first", "middle", "last", "only")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What every packet has around its transport headers and payload."""

    name: str
    overhead_bytes: int
    mtus: tuple[int, ...] | range
    default_mtu: int
    meaning: str
    least_bytes: int = 0
    below: str = ""  # the RDMA transport that carries an IP packet

    def packet_bytes(self, inside: npt.ArrayLike) -> FloatArray:
        """On the wire, of a packet with `inside` bytes of transport headers and payload."""
        size = np.asarray(inside, dtype=np.float64)
        return np.asarray(np.maximum(size + self.overhead_bytes, self.least_bytes))


_IB_MTUS = (256, 512, 1024, 2048, 4096)
_IP_MTUS = range(576, 65_521)
_FRAME = ETHERNET + FCS + PREAMBLE_AND_GAP
WIRES = {
    wire.name: wire
    for wire in (
        Wire(
            name="ib",
            overhead_bytes=LRH + ICRC + VCRC,
            mtus=_IB_MTUS,
            default_mtu=4096,
            meaning="InfiniBand within a subnet: LRH, ICRC, VCRC",
        ),
        Wire(
            name="ib-routed",
            overhead_bytes=LRH + GRH + ICRC + VCRC,
            mtus=_IB_MTUS,
            default_mtu=4096,
            meaning="InfiniBand between subnets: LRH, GRH, ICRC, VCRC",
        ),
        Wire(
            name="rocev2",
            overhead_bytes=_FRAME + IPV4 + UDP + ICRC,
            mtus=_IB_MTUS,
            default_mtu=1024,
            least_bytes=LEAST_FRAME + PREAMBLE_AND_GAP,
            meaning="RoCEv2: Ethernet with FCS, preamble and gap, IPv4, UDP, ICRC",
        ),
        Wire(
            name="ethernet",
            overhead_bytes=_FRAME,
            mtus=_IP_MTUS,
            default_mtu=1500,
            least_bytes=LEAST_FRAME + PREAMBLE_AND_GAP,
            meaning="Ethernet with FCS, preamble and gap",
        ),
        Wire(
            name="efa",
            overhead_bytes=_FRAME + IPV4 + UDP,
            mtus=range(576, 8929),
            default_mtu=8760,
            least_bytes=LEAST_FRAME + PREAMBLE_AND_GAP,
            meaning="EFA, unverified: Ethernet with FCS, preamble and gap, IPv4, UDP",
        ),
        Wire(
            name="ipoib",
            overhead_bytes=LRH + BTH + DETH + ICRC + VCRC + IPOIB,
            mtus=range(576, 4093),
            default_mtu=2044,
            meaning="IP over InfiniBand, datagram mode: one UD packet each",
        ),
        Wire(
            name="ipoib-connected",
            overhead_bytes=IPOIB,
            mtus=_IP_MTUS,
            below="rc",
            default_mtu=65_520,
            meaning="IP over InfiniBand, connected mode: one RC message each, in packets of 2048 B",
        ),
    )
}
_CONNECTED_MTU = 2048
_RDMA_WIRES = ("ib", "ib-routed", "rocev2")
_IP_WIRES = ("ethernet", "ipoib", "ipoib-connected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """What a transport can carry, and over which wires."""

    name: str
    operations: tuple[str, ...]
    wires: tuple[str, ...]
    acknowledged: bool
    datagram: bool = False
    status: str = ""


TRANSPORTS = {
    transport.name: transport
    for transport in (
        Transport(name="rc", operations=OPERATIONS, wires=_RDMA_WIRES, acknowledged=True),
        Transport(name="uc", operations=OPERATIONS[:4], wires=_RDMA_WIRES, acknowledged=False),
        Transport(
            name="ud",
            operations=OPERATIONS[:2],
            wires=_RDMA_WIRES,
            acknowledged=False,
            datagram=True,
        ),
        Transport(
            name="srd",
            operations=OPERATIONS[:2],
            wires=("efa",),
            acknowledged=True,
            datagram=True,
            status="unverified: SRD's packet format is not published; counted as UD in IPv4 and "
            "UDP, each message acknowledged",
        ),
        Transport(
            name="udp", operations=("send",), wires=_IP_WIRES, acknowledged=False, datagram=True
        ),
        Transport(name="tcp", operations=("send",), wires=_IP_WIRES, acknowledged=True),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """How messages become packets; MTU 0 is the wire's usual one, `packets_per_ack` 0 is one ACK
    for each message (for tcp, one for every second segment)."""

    transport: str = "rc"
    operation: str = "send"
    wire: str = "ib"
    mtu_bytes: int = 0
    packets_per_ack: int = 0

    def __post_init__(self) -> None:
        _, wire = _find_service(self.transport, self.operation, self.wire)
        if self.mtu_bytes == 0:
            object.__setattr__(self, "mtu_bytes", wire.default_mtu)
        _check_mtu(wire, self.mtu_bytes)
        if self.packets_per_ack < 0:
            problem = f"{self.packets_per_ack} packets per ACK"
            raise InputError("packets per ACK", problem, "use 1 or more, or 0 for the usual")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnWire:
    """One message: its data packets, their bytes, and the bytes it causes the other way."""

    packets: FloatArray
    data_bytes: FloatArray
    answer_bytes: FloatArray

    def busiest_bytes(self, *, both_ways: bool) -> FloatArray:
        """What a message costs the fuller direction, when the peer sends as much or nothing."""
        if both_ways:
            return self.data_bytes + self.answer_bytes
        return np.maximum(self.data_bytes, self.answer_bytes)


def header_bytes(
    transport: str, operation: str = "send", place: str = "only", wire: str = "ib"
) -> int:
    """All that a data packet has besides payload; of a READ, a response packet."""
    service, around = _find_service(transport, operation, wire)
    _check_name("packet place", place, PLACES)
    if service.name == "udp":
        return around.overhead_bytes + IPV4 + (UDP if place in ("first", "only") else 0)
    if service.name == "tcp":
        return around.overhead_bytes + IPV4 + TCP + TCP_TIMESTAMPS
    inside = BTH
    if service.datagram:
        inside += DETH
    if operation == "read":
        return around.overhead_bytes + inside + (0 if place == "middle" else AETH)
    if operation.startswith("write") and place in ("first", "only"):
        inside += RETH
    if operation.endswith("with-imm") and place in ("last", "only"):
        inside += IMMDT
    return around.overhead_bytes + inside


def answer_packet_bytes(transport: str, operation: str = "send", wire: str = "ib") -> int:
    """The packet that goes the other way: an ACK, or the request of a READ."""
    service, around = _find_service(transport, operation, wire)
    if not service.acknowledged:
        return 0
    if service.name == "tcp":
        segment = np.float64(IPV4 + TCP + TCP_TIMESTAMPS)
        return int(_carry_packet(segment, around)[1])
    inside = BTH + (RETH if operation == "read" else AETH)
    return int(around.packet_bytes(inside))


def on_wire(size_bytes: npt.ArrayLike, framing: Framing) -> OnWire:
    """What messages of `size_bytes` cost.

    TCP is a stream: messages share full segments, so a message's packets may be a fraction.
    """
    size = _sizes(size_bytes)
    service, around = TRANSPORTS[framing.transport], WIRES[framing.wire]
    _check_datagram(service, size, framing.mtu_bytes)
    if service.name == "udp":
        return _udp(size, around, framing.mtu_bytes)
    if service.name == "tcp":
        return _tcp(size, around, framing)
    packets = np.maximum(1.0, np.ceil(size / framing.mtu_bytes))
    answers = packets / framing.packets_per_ack if framing.packets_per_ack else 1.0
    if framing.operation == "read":
        answers = 1.0
    answer = answer_packet_bytes(framing.transport, framing.operation, framing.wire)
    return OnWire(
        packets=packets,
        data_bytes=_rdma_bytes(size, packets, framing),
        answer_bytes=np.ones_like(packets) * answers * answer,
    )


def _rdma_bytes(size: FloatArray, packets: FloatArray, framing: Framing) -> FloatArray:
    first, middle, last, only = (
        header_bytes(framing.transport, framing.operation, place, framing.wire) for place in PLACES
    )
    headers = np.where(packets > 1, first + last + (packets - 2) * middle, only)
    words = np.ceil(size / 4) * 4
    # Only a last packet can be too short for a frame: its payload is what the others leave over.
    ends = words - (packets - 1) * framing.mtu_bytes + np.where(packets > 1, last, only)
    padding = np.maximum(WIRES[framing.wire].least_bytes - ends, 0)
    return np.asarray(words + headers + padding)


def count_fragments(size: FloatArray, mtu_bytes: int) -> FloatArray:
    """IPv4 packets of a UDP datagram: all but the last carry a multiple of eight bytes."""
    last = mtu_bytes - IPV4
    full = last // FRAGMENT_UNIT * FRAGMENT_UNIT
    return np.asarray(1.0 + np.maximum(0.0, np.ceil((size + UDP - last) / full)))


def _udp(size: FloatArray, around: Wire, mtu_bytes: int) -> OnWire:
    """The datagram and its UDP header go out in fragments of whole units of eight bytes."""
    room = (mtu_bytes - IPV4) // FRAGMENT_UNIT * FRAGMENT_UNIT
    datagram = size + UDP
    fragments = count_fragments(size, mtu_bytes)
    per_full, full = _carry_packet(np.float64(IPV4 + room), around)
    per_rest, rest = _carry_packet(IPV4 + datagram - (fragments - 1) * room, around)
    packets = (fragments - 1) * per_full + per_rest
    data = (fragments - 1) * full + rest
    return OnWire(packets=packets, data_bytes=data, answer_bytes=np.zeros_like(data))


def _tcp(size: FloatArray, around: Wire, framing: Framing) -> OnWire:
    """Full segments; an ACK for every second one, as RFC 1122 asks, or as the framing says."""
    segments = size / (framing.mtu_bytes - IPV4 - TCP - TCP_TIMESTAMPS)
    per_segment, cost = _carry_packet(np.float64(framing.mtu_bytes), around)
    ack = answer_packet_bytes(framing.transport, wire=framing.wire)
    return OnWire(
        packets=segments * per_segment,
        data_bytes=segments * cost,
        answer_bytes=segments / (framing.packets_per_ack or 2) * ack,
    )


def _carry_packet(
    ip_packet: FloatArray | np.float64, around: Wire
) -> tuple[FloatArray, FloatArray]:
    """Packets and bytes on the wire of one IP packet."""
    if around.below:
        carried = on_wire(
            ip_packet + around.overhead_bytes,
            Framing(transport=around.below, mtu_bytes=_CONNECTED_MTU),
        )
        return carried.packets, carried.data_bytes
    size = np.asarray(ip_packet, dtype=np.float64)
    return np.ones_like(size), around.packet_bytes(size)


def _find_service(transport: str, operation: str, wire: str) -> tuple[Transport, Wire]:
    _check_name("transport", transport, tuple(TRANSPORTS))
    _check_name("operation", operation, OPERATIONS)
    _check_name("wire", wire, tuple(WIRES))
    service = TRANSPORTS[transport]
    if operation not in service.operations:
        offered = ", ".join(service.operations)
        raise InputError("operation", f"{transport} has no {operation}", f"use {offered}")
    if wire not in service.wires:
        offered = ", ".join(service.wires)
        raise InputError("wire", f"{transport} does not run over {wire}", f"use {offered}")
    return service, WIRES[wire]


def _check_name(where: str, value: str, names: tuple[str, ...]) -> None:
    if value not in names:
        raise InputError(where, f"{value!r} is not known", f"use one of {', '.join(names)}")


def _sizes(size_bytes: npt.ArrayLike) -> FloatArray:
    size = np.asarray(size_bytes, dtype=np.float64)
    bad = size[~(np.isfinite(size) & (size >= 0))]
    if bad.size:
        raise InputError("message size", f"{bad.ravel()[0]:g} B is not a size", "use 0 or more")
    return size


def _check_mtu(around: Wire, mtu_bytes: int) -> None:
    if mtu_bytes in around.mtus:
        return
    if isinstance(around.mtus, range):
        remedy = f"use {around.mtus[0]} to {around.mtus[-1]}"
    else:
        remedy = f"use one of {', '.join(map(str, around.mtus))}"
    raise InputError("MTU", f"{around.name} has no MTU of {mtu_bytes} B", remedy)


def _check_datagram(service: Transport, size: FloatArray, mtu_bytes: int) -> None:
    if not service.datagram or not size.size:
        return
    most = LARGEST_DATAGRAM if service.name == "udp" else mtu_bytes
    if size.max() > most:
        problem = f"a {service.name} message of {size.max():.0f} B exceeds {most} B"
        raise InputError("message size", problem, "send smaller messages, or use rc or tcp")


def data_rate_gbps(speed: str, width: int = 4) -> float:
    """What `width` lanes of a speed such as "FDR" carry once the line code is paid."""
    return LinkRate(speed.upper(), width).data_bps / 1e9


def goodput_gbps(
    size_bytes: npt.ArrayLike,
    rate_gbps: npt.ArrayLike,
    framing: Framing,
    *,
    both_ways: bool = False,
) -> FloatArray:
    """The most payload per direction that messages of `size_bytes` can move."""
    size = np.asarray(size_bytes, dtype=np.float64)
    busiest = on_wire(size, framing).busiest_bytes(both_ways=both_ways)
    share = np.divide(size, busiest, out=np.zeros_like(busiest), where=busiest > 0)
    return np.asarray(_rates(rate_gbps) * share)


def message_rate_mps(
    size_bytes: npt.ArrayLike,
    rate_gbps: npt.ArrayLike,
    framing: Framing,
    *,
    both_ways: bool = False,
    engine_mps: float = inf,
    engines: int = 1,
) -> FloatArray:
    """The most messages per direction, by the link or by `engines` that each do `engine_mps`."""
    if not engine_mps > 0 or engines < 1:
        problem = f"{engines} engines of {engine_mps:g} M/s"
        raise InputError("message rate", problem, "use one engine or more, faster than 0")
    busiest = on_wire(size_bytes, framing).busiest_bytes(both_ways=both_ways)
    with np.errstate(divide="ignore"):
        by_link = _rates(rate_gbps) * 1e3 / (8.0 * busiest)
    return np.asarray(np.minimum(by_link, engines * engine_mps))


def _rates(rate_gbps: npt.ArrayLike) -> FloatArray:
    rate = np.asarray(rate_gbps, dtype=np.float64)
    bad = rate[~(np.isfinite(rate) & (rate > 0))]
    if bad.size:
        raise InputError("data rate", f"{bad.ravel()[0]:g} Gb/s is not a rate", "use more than 0")
    return rate
