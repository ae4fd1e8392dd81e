"""What a test observed, on its way to a record: quantities, counts of both sides, samples.

Names and units of quantities are alike in all tests: `half_rtt` (ps), `throughput` (b/s of
payload that arrived, over the longer of both ends' times), `message_rate` (1/s), `lost`,
`cpu.user` (s) and so on. Entry points: `Observation`, `Counts`,
`sum_counts`, and a `…_quantities` function for each kind of quantity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weft import _core
from weft.records import Distribution, Histogram, Plain, Quantity, Row, Scalar

NO_SAMPLES: NDArray[np.int64] = np.zeros(0, np.int64)
ROUND_TRIP_LOSS = "round_trip.loss"
LOSSES = ("lost", "reordered", "duplicates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a loop counts, under the names of the core's Counts; what is missing is 0."""

    sent: int = 0
    received: int = 0
    lost: int = 0
    reordered: int = 0
    duplicates: int = 0
    corrupted: int = 0
    bytes: int = 0
    elapsed_ns: int = 0
    user_ns: int = 0
    system_ns: int = 0
    stopped: bool = False


COUNTS = tuple(entry.name for entry in fields(Counts))
SUMMED = tuple(name for name in COUNTS if name not in ("elapsed_ns", "stopped"))
Counted = _core.Counts | Counts


class Timed(Protocol):
    """What loops that time every message return."""

    @property
    def counts(self) -> Counted: ...
    @property
    def latency(self) -> Histogram: ...
    @property
    def samples(self) -> NDArray[np.int64]: ...


class PacedTimes(Timed, Protocol):
    """What open loops return: latency from the intended send time, and what it consists of."""

    @property
    def service(self) -> Histogram: ...
    @property
    def lateness(self) -> Histogram: ...
    @property
    def intended_ns(self) -> NDArray[np.int64]: ...


@dataclass(slots=True, kw_only=True)
class Observation:
    """One point's result. `steps` are points within it, such as the loads of a saturation."""

    quantities: dict[str, Quantity] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tables: dict[str, Sequence[Row]] = field(default_factory=dict)
    samples: NDArray[np.int64] = field(default_factory=lambda: NO_SAMPLES)
    settings: Mapping[str, Plain] = field(default_factory=dict)  # what tells a step apart
    steps: list[Observation] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Total(Counts):
    """Counts of several threads, summed; they ran beside each other."""

    bits_per_second: float
    messages_per_second: float


def sum_counts(threads: Sequence[Counted], beside: Sequence[Counted] = ()) -> Total:
    """Sums, and rates as the sum of each thread's own: threads do not start in one instant.

    `beside` are the same threads at the other end: a rate is over the longer of both ends' times.
    A receiver whose processor was taken away finds a backlog and empties it faster than it was
    sent: its own time alone would give a rate that no wire carried.
    """
    times_ns = [c.elapsed_ns for c in threads]
    for n, far_end in enumerate(beside[: len(times_ns)]):
        times_ns[n] = max(times_ns[n], far_end.elapsed_ns) if times_ns[n] else 0
    timed = [(c, ns) for c, ns in zip(threads, times_ns, strict=True) if ns > 0]
    sums = {name: sum(getattr(c, name) for c in threads) for name in SUMMED}
    return Total(
        **sums,
        elapsed_ns=max(times_ns, default=0),
        bits_per_second=sum(c.bytes * 8e9 / ns for c, ns in timed),
        messages_per_second=sum(max(c.sent, c.received) * 1e9 / ns for c, ns in timed),
    )


def read_counts(values: Mapping[str, Any]) -> Counts:
    """The counts of a peer's thread, from its message."""
    return Counts(**{name: value for name, value in values.items() if name in COUNTS})


def distribution_quantities(**histograms: Histogram) -> dict[str, Quantity]:
    """Those that have samples, in picoseconds; `a__b` is the quantity `a.b`."""
    return {
        name.replace("__", "."): Distribution("ps", histogram)
        for name, histogram in histograms.items()
        if histogram.count
    }


def message_quantities(counts: Counted) -> dict[str, Quantity]:
    """How many were timed, and how many a second."""
    timed = max(counts.sent, counts.received)
    quantities: dict[str, Quantity] = {"messages": Scalar(timed, "")}
    if counts.elapsed_ns:
        quantities["message_rate"] = Scalar(timed * 1e3 / counts.elapsed_ns, "M/s")
    return quantities


def throughput_quantities(name: str, *parts: Total) -> dict[str, Quantity]:
    """Payload per second, of several parts together; nothing when one has no time."""
    if not all(part.elapsed_ns for part in parts):
        return {}
    return {name: Scalar(sum(part.bits_per_second for part in parts), "b/s")}


def loss_quantities(
    counts: Counted, lossy: bool, validated: bool, name: str = "loss"
) -> dict[str, Quantity]:
    """Loss and reordering where messages may be lost, corruption where it was looked for.

    The loss of a test whose messages are answered is `ROUND_TRIP_LOSS`: of either direction.
    """
    quantities: dict[str, Quantity] = {}
    if lossy:
        quantities |= {name: Scalar(getattr(counts, name), "") for name in LOSSES}
        if counts.sent:
            quantities[name] = Scalar(100 * counts.lost / counts.sent, "%")
    if validated:
        quantities["corrupted"] = Scalar(counts.corrupted, "")
    return quantities


def cpu_quantities(counts: Counted, prefix: str = "cpu") -> dict[str, Quantity]:
    """Processor time of one side's timed loops, and its share of one processor."""
    if not counts.elapsed_ns:
        return {}
    used = counts.user_ns + counts.system_ns
    return {
        f"{prefix}.user": Scalar(counts.user_ns / 1e9, "s"),
        f"{prefix}.system": Scalar(counts.system_ns / 1e9, "s"),
        f"{prefix}.percent": Scalar(100 * used / counts.elapsed_ns, "%"),
    }
