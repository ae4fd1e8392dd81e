"""What to optimise: a quantity of a record, its better direction, and the test that measures it.

`cpu` is processor time of both ends' timed loops for each byte that arrived. Entry points: `GOALS`,
`Goal.value`. Units: B/s, M/s, us, ns/B; loss in %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.errors import InputError
from weft.measure.measurement import Test
from weft.measure.tests.bandwidth import BANDWIDTH
from weft.measure.tests.latency import LATENCY
from weft.measure.tests.rate import RATE
from weft.records import Distribution, Record, Scalar
from weft.tune.rules.read_evidence import read_carried_Bps, read_carried_messages_per_s

MOST_LOSS_PERCENT = 1.0  # settings that lose more are never recommended
_PS_PER_US = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """`read` gives the value of a record of `test`, or None where it has none."""

    name: str
    test: Test
    meaning: str
    unit: str
    more_is_better: bool
    read: Callable[[Record], float | None]

    @property
    def sign(self) -> float:
        """Times the logarithm of a value: greater is better for every goal."""
        return 1.0 if self.more_is_better else -1.0

    def value(self, record: Record) -> float | None:
        """The value above 0, or None: the record is of another test, or nothing arrived."""
        if record.name != self.test.name:
            return None
        value = self.read(record)
        return value if value is not None and value > 0 else None


def read_scalar(record: Record, name: str) -> float | None:
    """A scalar of the record, or None."""
    quantity = record.quantities.get(name)
    return float(quantity.value) if isinstance(quantity, Scalar) else None


def loss_percent(record: Record) -> float:
    """Share of messages lost; 0 where none can be."""
    return read_scalar(record, "loss") or read_scalar(record, "round_trip.loss") or 0.0


def _message_rate(record: Record) -> float | None:
    size = record.settings.get("size_bytes")
    per_s = read_carried_messages_per_s(record, size) if isinstance(size, int) else None
    return None if per_s is None else per_s / 1e6


def _latency(record: Record) -> float | None:
    half_rtt = record.quantities.get("half_rtt")
    return half_rtt.quantile(0.5) / _PS_PER_US if isinstance(half_rtt, Distribution) else None


def _cpu_per_byte(record: Record) -> float | None:
    """ns per byte: shares of a processor at both ends over the bytes that came each second."""
    rate, ours = read_carried_Bps(record), read_scalar(record, "cpu.percent")
    theirs = read_scalar(record, "peer.cpu.percent")
    if theirs is None and record.settings.get("over") == "delay":
        theirs = 0.0  # no peer process
    if not rate or ours is None or theirs is None:
        return None
    return (ours + theirs) / 100 * 1e9 / rate


_ALL = (
    Goal(
        name="throughput",
        test=BANDWIDTH,
        meaning="payload throughput",
        unit="B/s",
        more_is_better=True,
        read=read_carried_Bps,
    ),
    Goal(
        name="latency",
        test=LATENCY,
        meaning="half round trip, median",
        unit="us",
        more_is_better=False,
        read=_latency,
    ),
    Goal(
        name="message-rate",
        test=RATE,
        meaning="message rate",
        unit="M/s",
        more_is_better=True,
        read=_message_rate,
    ),
    Goal(
        name="cpu",
        test=BANDWIDTH,
        meaning="processor time per byte, both ends",
        unit="ns/B",
        more_is_better=False,
        read=_cpu_per_byte,
    ),
)
GOALS = {goal.name: goal for goal in _ALL}


def find_goal(name: str) -> Goal:
    if name not in GOALS:
        raise InputError("--goal", f"{name!r} is not known", f"use one of {', '.join(GOALS)}")
    return GOALS[name]
