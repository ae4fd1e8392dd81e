"""What a test saw, on its way to a record: quantities with units, counts of both sides, samples.

Names and units of quantities are alike in all tests: `half_rtt` (ps), `throughput` (b/s of
payload that arrived, over the longer of both ends' times), `message_rate` (1/s), `lost`,
`cpu.user` (s) and so on. Entry points: `Observation`, `counted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weft.records import Distribution, Histogram, Plain, Quantity, Row, Scalar

NO_SAMPLES: NDArray[np.int64] = np.zeros(0, np.int64)
FLAWS = ("lost", "reordered", "duplicates", "corrupted")


class Counted(Protocol):
    """What every loop counts: the core's Counts, or those of another transport."""

    @property
    def sent(self) -> int: ...
    @property
    def received(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def reordered(self) -> int: ...
    @property
    def duplicates(self) -> int: ...
    @property
    def corrupted(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def elapsed_ns(self) -> int: ...
    @property
    def user_ns(self) -> int: ...
    @property
    def system_ns(self) -> int: ...
    @property
    def stopped(self) -> bool: ...


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


@dataclass(frozen=True, slots=True)
class Total:
    """Counts of several threads, summed; they ran beside each other."""

    sent: int
    received: int
    lost: int
    reordered: int
    duplicates: int
    corrupted: int
    bytes: int
    elapsed_ns: int
    user_ns: int
    system_ns: int
    bits_per_second: float
    messages_per_second: float


def total(threads: Sequence[Counted], beside: Sequence[Counted] = ()) -> Total:
    """Sums, and rates as the sum of each thread's own: threads do not start in one instant.

    `beside` are the same threads at the other end: a rate is over the longer of both ends' times.
    A receiver whose processor was taken away finds a backlog and empties it faster than it was
    sent: its own time alone would give a rate that no wire carried.
    """
    times_ns = [c.elapsed_ns for c in threads]
    for n, other in enumerate(beside[: len(times_ns)]):
        times_ns[n] = max(times_ns[n], other.elapsed_ns) if times_ns[n] else 0
    timed = [(c, ns) for c, ns in zip(threads, times_ns, strict=True) if ns > 0]
    return Total(
        sent=sum(c.sent for c in threads),
        received=sum(c.received for c in threads),
        lost=sum(c.lost for c in threads),
        reordered=sum(c.reordered for c in threads),
        duplicates=sum(c.duplicates for c in threads),
        corrupted=sum(c.corrupted for c in threads),
        bytes=sum(c.bytes for c in threads),
        elapsed_ns=max(times_ns, default=0),
        user_ns=sum(c.user_ns for c in threads),
        system_ns=sum(c.system_ns for c in threads),
        bits_per_second=sum(c.bytes * 8e9 / ns for c, ns in timed),
        messages_per_second=sum(max(c.sent, c.received) * 1e9 / ns for c, ns in timed),
    )


@dataclass(frozen=True, slots=True)
class PeerCounts:
    """The peer's counts of one thread, from what it sent us; what is missing is 0."""

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


def peer_counts(values: Mapping[str, Any]) -> PeerCounts:
    """From the peer's dictionary."""
    return PeerCounts(**{k: v for k, v in values.items() if k in PeerCounts.__slots__})


def distributions(**histograms: Histogram) -> dict[str, Quantity]:
    """Those that have samples, in picoseconds; `a__b` is the quantity `a.b`."""
    return {
        name.replace("__", "."): Distribution("ps", histogram)
        for name, histogram in histograms.items()
        if histogram.count
    }


def messages(counts: Total | Counted) -> dict[str, Quantity]:
    """How many were timed, and how many a second."""
    timed = max(counts.sent, counts.received)
    found: dict[str, Quantity] = {"messages": Scalar(timed, "")}
    if counts.elapsed_ns:
        found["message_rate"] = Scalar(timed * 1e3 / counts.elapsed_ns, "M/s")
    return found


def throughput(name: str, *parts: Total) -> dict[str, Quantity]:
    """Payload per second, of several parts together; nothing when one has no time."""
    if not all(part.elapsed_ns for part in parts):
        return {}
    return {name: Scalar(sum(part.bits_per_second for part in parts), "b/s")}


def flaws(counts: Total | Counted, lossy: bool, validated: bool) -> dict[str, Quantity]:
    """Loss and reordering where messages may be lost, corruption where it was looked for."""
    found: dict[str, Quantity] = {}
    if lossy:
        found |= {name: Scalar(getattr(counts, name), "") for name in FLAWS[:3]}
        if counts.sent:
            found["loss"] = Scalar(100 * counts.lost / counts.sent, "%")
    if validated:
        found["corrupted"] = Scalar(counts.corrupted, "")
    return found


def cpu(counts: Total | Counted, prefix: str = "cpu") -> dict[str, Quantity]:
    """Processor time of one side's timed loops, and its share of one processor."""
    if not counts.elapsed_ns:
        return {}
    used = counts.user_ns + counts.system_ns
    return {
        f"{prefix}.user": Scalar(counts.user_ns / 1e9, "s"),
        f"{prefix}.system": Scalar(counts.system_ns / 1e9, "s"),
        f"{prefix}.percent": Scalar(100 * used / counts.elapsed_ns, "%"),
    }


def kept(samples: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The one array of samples as it is (no copy), or several after each other."""
    arrays = [array for array in samples if len(array)]
    return arrays[0] if len(arrays) == 1 else np.concatenate([NO_SAMPLES, *arrays])
