"""How long a probe waits in a switch behind inputs that saturate its output.

N senders keep one output busy. A packet takes T = bytes / R on the wire, an input buffer holds P
of them, and a packet that starts to leave makes room for one of the same sender, which can itself
leave τ later at the earliest: the credit loop. The wait by who goes first at the output:

    first come, first served   N P T − τ, and up to T more for a packet under way
    ... windows of W packets   the lesser of that and N W T − τ', τ' the loop of an acknowledgement
    round robin                0 to N T; a probe that waits for its answers comes back every
                               t + k N T, with t its own time and k the least that its loop allows
    a lane of its own          0 to T at high priority; else the rest of the other lane's turn
    two hops, M more senders   M + 1 inputs share the last output, so the one from the first switch
                               gets a packet per (M + 1) T: (M + 1) P T − τ there, and at the first
                               switch as above with (M + 1) T for T; give or take a turn, or with
                               first come, first served a buffer, as packets then leave in bursts
    ... oldest in the fabric   (N + M + 1) P T − 2 τ: what all buffers hold, in order of its arrival
                               at the first switch; up to τ more, as the cable's loop may be hidden
                               while others are served, and a packet either way

    τ  = T + 2 d + c + L       its own time, credit and packet in flight, credit delay, switch
    τ' = T + a + 4 d + 2 L     its own time, the ACK's, both ways through cable and switch

They hold while N P T (or N W T) exceeds the loop: otherwise the senders do not fill the link.
Zero load is the path's own time: flights, switches, and the wire at the slowest link.
Agreement with the packet simulator: tests/agreement/test_switch_wait.py.
Entry points: `fcfs_wait`, `round_robin_wait`, `closed_loop_round_robin_ns`, `own_lane_wait`,
`two_hop_wait`, `zero_load_ns`. Units: ns, bytes, Gb/s; fields may be arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.model.fit import FloatArray

SOURCE = "weft; the (N − 1) B/R law of the switch study (RPerf, 2020) is its case τ = B/R"
CREDIT_BLOCK = 64
TWO_HOP_ORDERS = ("fcfs", "fcfs-age", "round-robin")
_WHERE = "saturated output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hotspot:
    """Senders that saturate one output of a switch; cables of one length, links of one rate."""

    senders: npt.ArrayLike
    buffer_bytes: npt.ArrayLike
    packet_bytes: npt.ArrayLike  # with headers
    rate_gbps: npt.ArrayLike
    switch_ns: npt.ArrayLike = 0.0
    flight_ns: npt.ArrayLike = 0.0
    credit_delay_ns: npt.ArrayLike = 0.0
    credit_interval_ns: npt.ArrayLike = 0.0
    window_packets: npt.ArrayLike = inf
    ack_bytes: npt.ArrayLike = 30

    def __post_init__(self) -> None:
        for name in ("packet_bytes", "rate_gbps"):
            _check_at_least(name, getattr(self, name), np.nextafter(0, 1))
        _check_at_least("senders", self.senders, 2)
        _check_at_least("window_packets", self.window_packets, 1)
        for name in ("switch_ns", "flight_ns", "credit_delay_ns", "credit_interval_ns"):
            _check_at_least(name, getattr(self, name), 0)
        if not np.all(self.packets_held >= 1):
            problem = "the buffer does not hold one packet"
            raise InputError(_WHERE, problem, "use a larger buffer, or smaller packets")

    @property
    def packet_ns(self) -> FloatArray:
        return _wire_ns(self.packet_bytes, self.rate_gbps)

    @property
    def packets_held(self) -> FloatArray:
        """Whole packets by credits of 64 bytes: ⌊⌊B / 64⌋ / ⌈packet / 64⌉⌋."""
        blocks = np.floor(_floats(self.buffer_bytes) / CREDIT_BLOCK)
        return np.asarray(np.floor(blocks / np.ceil(_floats(self.packet_bytes) / CREDIT_BLOCK)))

    @property
    def credit_loop_ns(self) -> FloatArray:
        way = 2 * _floats(self.flight_ns) + _floats(self.credit_delay_ns) + _floats(self.switch_ns)
        return np.asarray(self.packet_ns + way)

    @property
    def window_loop_ns(self) -> FloatArray:
        way = 4 * _floats(self.flight_ns) + 2 * _floats(self.switch_ns)
        return np.asarray(self.packet_ns + _wire_ns(self.ack_bytes, self.rate_gbps) + way)

    @property
    def saturated(self) -> npt.NDArray[np.bool_]:
        """Whether every sender has its next packet there before the others' have left."""
        return np.asarray(_backlog_ns(self, self.packet_ns, late=True) > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The least and the greatest wait, by where between two packets a probe arrives."""

    low_ns: FloatArray
    high_ns: FloatArray


def fcfs_wait(hotspot: Hotspot) -> Wait:
    """First come, first served: behind all that the buffers or windows let stand there."""
    _check_saturated(hotspot)
    return _fcfs(hotspot, hotspot.packet_ns)


def round_robin_wait(hotspot: Hotspot) -> Wait:
    """Inputs in turn: at most one packet of each, whenever the probe arrives."""
    _check_saturated(hotspot)
    return _turns(hotspot, hotspot.packet_ns)


def closed_loop_round_robin_ns(
    hotspot: Hotspot, probe_bytes: npt.ArrayLike, loop_ns: npt.ArrayLike
) -> FloatArray:
    """Round robin and a probe whose next message starts `loop_ns` after the last one left.

    `loop_ns` is its zero-load round trip and think time: t + k N T is the least that covers it.
    """
    _check_saturated(hotspot)
    cycle = _floats(hotspot.senders) * hotspot.packet_ns
    probe_ns = _wire_ns(probe_bytes, hotspot.rate_gbps)
    loop = _floats(loop_ns)
    cycles = np.maximum(np.ceil((loop - probe_ns) / cycle), 1)
    return np.asarray(probe_ns + cycles * cycle - loop)


def own_lane_wait(hotspot: Hotspot, *, load_weight: int = 0) -> Wait:
    """The probe alone on a lane: of high priority, or beside a load lane of `load_weight`.

    The weight counts 64 bytes; a turn ends with the packet that uses it up.
    """
    if not 0 <= load_weight <= 255:
        raise InputError("lane weight", f"{load_weight} is out of range", "use 0 to 255")
    blocks = np.ceil(_floats(hotspot.packet_bytes) / CREDIT_BLOCK)
    turn = np.maximum(np.ceil(load_weight / blocks), 1)
    return Wait(low_ns=np.zeros_like(hotspot.packet_ns * turn), high_ns=turn * hotspot.packet_ns)


def two_hop_wait(hotspot: Hotspot, below: npt.ArrayLike, *, order: str = "fcfs") -> Wait:
    """`hotspot.senders` and the probe share the first switch, `below` senders join at the second.

    At the second switch the probe stands in the one buffer of its cable, behind the others of its
    first switch, whatever the order among inputs: round robin no longer helps there.
    """
    if order not in TWO_HOP_ORDERS:
        remedy = f"use {', '.join(TWO_HOP_ORDERS)}"
        raise InputError("order", f"{order!r} has no closed form over two hops", remedy)
    _check_at_least("senders below", below, 1)
    if order == "fcfs-age":
        return _oldest_first(hotspot, _floats(below))
    slot = (_floats(below) + 1) * hotspot.packet_ns
    buffer = slot * hotspot.packets_held
    early = buffer - hotspot.credit_loop_ns
    late = early - _floats(hotspot.credit_interval_ns)
    if not np.all(late > 0):
        raise InputError(_WHERE, "the second switch is not saturated", "add senders or buffer")
    first = _fcfs(hotspot, slot) if order == "fcfs" else _turns(hotspot, slot)
    # Served by age, the cable's packets leave in bursts of up to a buffer; in turn, one by one.
    uneven = buffer if order == "fcfs" else slot
    low = np.maximum(first.low_ns + late - uneven, 0)
    return Wait(low_ns=low, high_ns=first.high_ns + early + uneven)


def _oldest_first(hotspot: Hotspot, below: FloatArray) -> Wait:
    packet, loop = hotspot.packet_ns, hotspot.credit_loop_ns
    buffer = hotspot.packets_held * packet
    above = _floats(hotspot.senders)
    # The cable carries the share of those above: a buffer for each credit loop must be enough.
    if not np.all(
        (loop <= buffer + packet) & ((loop + packet) * above <= buffer * (above + below))
    ):
        problem = f"a credit loop of {np.max(loop):.4g} ns for buffers of {np.min(buffer):.4g} ns"
        raise InputError(_WHERE, f"{problem}: the cable cannot keep up", "use a larger buffer")
    early = (above + below + 1) * buffer - 2 * loop
    late = early - 2 * _floats(hotspot.credit_interval_ns)
    return Wait(low_ns=np.maximum(late - packet, 0), high_ns=early + loop + packet)


def zero_load_ns(
    packet_bytes: npt.ArrayLike,
    *,
    rates_gbps: Sequence[float],
    flights_ns: Sequence[float],
    switch_ns: float = 0.0,
    ahead_bytes: npt.ArrayLike = 0.0,
) -> FloatArray:
    """First bit sent to last bit received over idle links with cut-through switches between them.

    A faster output starts late enough to end with its input; `ahead_bytes` of the same message
    go first, at the pace of the slowest link.
    """
    if not rates_gbps or len(rates_gbps) != len(flights_ns):
        problem = f"{len(rates_gbps)} rates and {len(flights_ns)} flights"
        raise InputError("path", problem, "give one of each for every link")
    times = [_wire_ns(packet_bytes, rate) for rate in rates_gbps]
    held = sum(
        (np.maximum(before - after, 0) for before, after in pairwise(times)),
        start=np.zeros_like(times[0]),
    )
    fixed = sum(flights_ns) + switch_ns * (len(rates_gbps) - 1)
    ahead = _floats(ahead_bytes) * 8 / min(rates_gbps)
    return np.asarray(fixed + held + times[-1] + ahead)


def _backlog_ns(hotspot: Hotspot, slot_ns: FloatArray, *, late: bool) -> FloatArray:
    """N P T − τ or N W T − τ', whichever is less; one packet leaves every `slot_ns`.

    `late` is with credits that just missed an advertisement.
    """
    turns = _floats(hotspot.senders) * slot_ns
    loop = hotspot.credit_loop_ns + (_floats(hotspot.credit_interval_ns) if late else 0.0)
    by_window = turns * _floats(hotspot.window_packets) - hotspot.window_loop_ns
    return np.asarray(np.minimum(turns * hotspot.packets_held - loop, by_window))


def _fcfs(hotspot: Hotspot, slot_ns: FloatArray) -> Wait:
    low = _backlog_ns(hotspot, slot_ns, late=True)
    high = _backlog_ns(hotspot, slot_ns, late=False) + slot_ns
    return Wait(low_ns=np.maximum(low, 0), high_ns=high)


def _turns(hotspot: Hotspot, slot_ns: FloatArray) -> Wait:
    high = _floats(hotspot.senders) * slot_ns
    return Wait(low_ns=np.zeros_like(high), high_ns=high)


def _check_saturated(hotspot: Hotspot) -> None:
    if not np.all(hotspot.saturated):
        held = _floats(hotspot.senders) * hotspot.packets_held * hotspot.packet_ns
        raise InputError(
            _WHERE,
            f"not saturated: {np.min(held):.4g} ns of packets do not outlast the loop of "
            f"{np.max(hotspot.credit_loop_ns):.4g} ns (or the windows theirs)",
            "add senders, buffer or window",
        )


def _wire_ns(size_bytes: npt.ArrayLike, rate_gbps: npt.ArrayLike) -> FloatArray:
    return np.asarray(_floats(size_bytes) * 8 / _floats(rate_gbps))


def _floats(value: npt.ArrayLike) -> FloatArray:
    return np.asarray(value, dtype=np.float64)


def _check_at_least(name: str, value: npt.ArrayLike, least: float) -> None:
    values = _floats(value)
    bad = values[~(values >= least)]
    if bad.size:
        limit = "more than 0" if 0 < least < 1 else f"{least:g} or more"
        raise InputError(_WHERE, f"{name} is {bad.ravel()[0]:g}", f"use {limit}")
