"""Message rates of the EFA thesis (C.2 to C.5, C.10), as rows of a throughput model.

Bandwidths become rates by the bytes that were counted for each message. perftest counts the payload
and writes MB for 2^20 bytes. efa-bench reads the adapter's counters and writes MB for 10^6 bytes:
C.5.1 over C.5.2 is 72 bytes for a message of 64 on EFA, and 150 on InfiniBand. The same rows of
C.10.1 give one rate for 4 and for 64 bytes only if send, write and read carry 8, 32 and 24 more.
Entry points: `perftest_rates`, `bench_rates`, `rma_rates`. Units: M/s (messages per us), B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from weft.model.fit import FloatArray
from weft.model.throughput import INPUTS
from weft.studies.published import PublishedTable, published

MIB = 1.048576  # 10^6 bytes in perftest's MB
PERFTEST_SIZES = (16, 512, 4096, 8192)
BENCH_SIZES = (64, 4096)
ASSUMED_DEPTH = 128  # C.4 states none: perftest's own; C.5.1 and C.5.2: Figs. 4.10 and 4.11
RMA_SIZE = 8192  # of C.10.2, Fig. 4.17
COUNTED_BESIDE = {"SEND": 8, "WRITE": 32, "READ": 24}
FEWEST_DIGITS_SIZE = 16  # C.2 prints SRD below it with one digit


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A published rate: where, at what, how much. Rows not `primary` repeat others, rounded."""

    place: str
    primary: bool
    size_bytes: float
    depth: float
    qps: float
    threads: float
    rate_Mps: float


def columns(rows: tuple[Rate, ...]) -> dict[str, FloatArray]:
    """The inputs of the model, row by row."""
    return {
        named.name: np.array([getattr(row, named.name) for row in rows], dtype=np.float64)
        for named in INPUTS
    }


def values(rows: tuple[Rate, ...]) -> FloatArray:
    return np.array([row.rate_Mps for row in rows])


@cache
def perftest_rates(service: str) -> tuple[Rate, ...]:
    """One thread: synchronous (C.2), by depth (C.3, bandwidth and rate), by queue pairs (C.4)."""
    bandwidths, counts, pairs = {
        "RC": ("efa-c3-1", "efa-c3-2", "efa-c4-1"),
        "SRD": ("efa-c3-3", "efa-c3-4", "efa-c4-2"),
    }[service]
    return (
        *_synchronous(service),
        *_by_depth(published(bandwidths), "MiBps", primary=True),
        *_by_depth(published(counts), "Mmsgps", primary=False),
        *_by_pairs(published(pairs)),
    )


@cache
def bench_rates(service: str) -> tuple[Rate, ...]:
    """Threads of efa-bench (C.5); of SRD also by depth, and the synchronous send of C.10.1."""
    rows = (*_by_threads(service, published("efa-c5-1")), *_counted(service, published("efa-c5-2")))
    if service == "RC":
        return rows
    return (*rows, *_by_depth_and_threads(), *_one_at_a_time("SEND"))


@cache
def rma_rates(operation: str) -> tuple[Rate, ...]:
    """Emulated write or read of efa-bench: by size (C.10.1) and by depth (C.10.2)."""
    table = published("efa-c10-2")
    counted = RMA_SIZE + COUNTED_BESIDE[operation]
    by_depth = (
        _rate(table, True, RMA_SIZE, depth, 1, 1, bandwidth / counted)
        for depth, bandwidth in _pairs(table, "depth", f"{operation}_MBps")
    )
    return (*_one_at_a_time(operation), *by_depth)


def bytes_counted(service: str, size_bytes: float) -> float:
    """Of each message of C.5.1 and C.5.3: the payload and what the 64-byte rows show beside it."""
    bandwidth, count = published("efa-c5-1"), published("efa-c5-2")
    both = np.isin(count.column("threads"), bandwidth.column("threads"))
    rate_Mps = count.column(f"{service}_64B_Mmsgps")[both]
    per_message = bandwidth.column(f"{service}_64B_MBps") / rate_Mps
    return size_bytes - 64 + float(np.median(per_message))


def _rate(
    table: PublishedTable,
    primary: bool,
    size_bytes: float,
    depth: float,
    qps: float,
    threads: float,
    rate_Mps: float,
) -> Rate:
    return Rate(
        place=table.place,
        primary=primary,
        size_bytes=float(size_bytes),
        depth=float(depth),
        qps=float(qps),
        threads=float(threads),
        rate_Mps=float(rate_Mps),
    )


def _pairs(table: PublishedTable, x: str, y: str) -> Iterator[tuple[float, float]]:
    yield from zip(table.column(x).tolist(), table.column(y).tolist(), strict=True)


def _synchronous(service: str) -> Iterator[Rate]:
    table = published("efa-c2")
    smallest = FEWEST_DIGITS_SIZE if service == "SRD" else 0
    for size, bandwidth in _pairs(table, "size_bytes", f"{service}_MiBps"):
        if size >= smallest:
            yield _rate(table, True, size, 1, 1, 1, bandwidth * MIB / size)


def _by_depth(table: PublishedTable, unit: str, *, primary: bool) -> Iterator[Rate]:
    for size in PERFTEST_SIZES:
        rate_of_one = MIB / size if unit == "MiBps" else 1.0
        for depth, value in _pairs(table, "depth", f"{size}B_{unit}"):
            yield _rate(table, primary, size, depth, 1, 1, value * rate_of_one)


def _by_pairs(table: PublishedTable) -> Iterator[Rate]:
    for size in PERFTEST_SIZES:
        for pairs, rate in _pairs(table, "queue_pairs", f"{size}B_Mmsgps"):
            yield _rate(table, True, size, ASSUMED_DEPTH, pairs, 1, rate)


def _by_threads(service: str, table: PublishedTable) -> Iterator[Rate]:
    for size in BENCH_SIZES:
        counted = bytes_counted(service, size)
        for threads, bandwidth in _pairs(table, "threads", f"{service}_{size}B_MBps"):
            yield _rate(table, False, size, ASSUMED_DEPTH, 1, threads, bandwidth / counted)


def _counted(service: str, table: PublishedTable) -> Iterator[Rate]:
    for size in BENCH_SIZES:
        for threads, rate in _pairs(table, "threads", f"{service}_{size}B_Mmsgps"):
            yield _rate(table, True, size, ASSUMED_DEPTH, 1, threads, rate)


def _by_depth_and_threads() -> Iterator[Rate]:
    table, size = published("efa-c5-3"), 64
    for column in table.columns[1:]:
        threads = int(column.split("thread")[0])
        for depth, bandwidth in _pairs(table, "depth", column):
            yield _rate(
                table, True, size, depth, 1, threads, bandwidth / bytes_counted("SRD", size)
            )


def _one_at_a_time(operation: str) -> Iterator[Rate]:
    table = published("efa-c10-1")
    for size, bandwidth in _pairs(table, "size_bytes", f"{operation}_MBps"):
        yield _rate(table, True, size, 1, 1, 1, bandwidth / (size + COUNTED_BESIDE[operation]))
