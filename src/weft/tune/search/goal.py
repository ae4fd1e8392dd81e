"""What is to be best: a number of a record, which way is better, and the test that gives it.

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
from weft.tune.rules.read_evidence import carried_Bps, carried_messages_per_s

MOST_LOSS_PERCENT = 1.0  # settings that lose more are never recommended
_PS_PER_US = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """`read` gives the value of a record of `test`, or None where it has none."""

    name: str
    test: Test
    what: str
    unit: str
    more_is_better: bool
    read: Callable[[Record], float | None]

    @property
    def sign(self) -> float:
        """Times the logarithm of a value: greater is better for every goal."""
        return 1.0 if self.more_is_better else -1.0

    def value(self, record: Record) -> float | None:
        """Above 0, or None: it is of another test, or nothing arrived."""
        if record.name != self.test.name:
            return None
        found = self.read(record)
        return found if found is not None and found > 0 else None


def scalar(record: Record, name: str) -> float | None:
    """A record's number, if it has it."""
    found = record.quantities.get(name)
    return float(found.value) if isinstance(found, Scalar) else None


def loss_percent(record: Record) -> float:
    """Share of messages lost; 0 where none can be."""
    return scalar(record, "loss") or 0.0


def _throughput(record: Record) -> float | None:
    return carried_Bps(record)


def _message_rate(record: Record) -> float | None:
    size = record.settings.get("size_bytes")
    found = carried_messages_per_s(record, size) if isinstance(size, int) else None
    return None if found is None else found / 1e6


def _latency(record: Record) -> float | None:
    half_rtt = record.quantities.get("half_rtt")
    return half_rtt.quantile(0.5) / _PS_PER_US if isinstance(half_rtt, Distribution) else None


def _cpu_per_byte(record: Record) -> float | None:
    """ns per byte: shares of a processor at both ends over the bytes that came each second."""
    rate, ours = _throughput(record), scalar(record, "cpu.percent")
    theirs = scalar(record, "peer.cpu.percent")
    if theirs is None and record.settings.get("over") == "delay":
        theirs = 0.0  # no peer process
    if not rate or ours is None or theirs is None:
        return None
    return (ours + theirs) / 100 * 1e9 / rate


_ALL = (
    Goal(
        name="throughput",
        test=BANDWIDTH,
        what="payload throughput",
        unit="B/s",
        more_is_better=True,
        read=_throughput,
    ),
    Goal(
        name="latency",
        test=LATENCY,
        what="half round trip, median",
        unit="us",
        more_is_better=False,
        read=_latency,
    ),
    Goal(
        name="message-rate",
        test=RATE,
        what="message rate",
        unit="M/s",
        more_is_better=True,
        read=_message_rate,
    ),
    Goal(
        name="cpu",
        test=BANDWIDTH,
        what="processor time per byte, both ends",
        unit="ns/B",
        more_is_better=False,
        read=_cpu_per_byte,
    ),
)
GOALS = {goal.name: goal for goal in _ALL}


def goal_named(name: str) -> Goal:
    if name not in GOALS:
        raise InputError("--goal", f"{name!r} is not known", f"use one of {', '.join(GOALS)}")
    return GOALS[name]
