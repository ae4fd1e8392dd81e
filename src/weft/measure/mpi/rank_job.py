"""What the two ranks of an MPI measurement do, and what they observe.

A `RankJob` goes from rank 0 to rank 1 before each run. Results have the fields of the core's
(`weft._core.Counts`, `LatencyResult`, `PacedResult`), so that records are built from either.
Histograms are in picoseconds; Python's clock gives nanoseconds.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft._core import Histogram
from weft.errors import InputError
from weft.measure.observation import Counts
from weft.measure.settings.options import Settings

TWO_SIDED = ("latency", "bandwidth", "bidirectional", "paced")
ONE_SIDED = ("rma", "rma-windowed")
OPERATIONS = ("write", "read", "fetch-add", "compare-swap")
ATOMIC_BYTES = 8
MAX_MEMORY_BYTES = 1 << 30
REFUSED = {
    "rperf": "RPerf times the adapter's completions, which MPI hides; use --over verbs",
    "saturation": "the probe and the load need connections of their own, and a pair of ranks has "
    "one; use --over ofi:PROVIDER",
    "transfer": "MPI has no write with immediate data; weft bandwidth --over mpi also "
    "acknowledges each half window",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """One run. It ends at `count` messages, or after `duration_ns` when count is 0."""

    test: str
    size_bytes: int = 64
    count: int = 0
    duration_ns: int = 0
    warmup: int = 0
    window: int = 1
    operation: str = "write"
    rate: float = 0.0
    poisson: bool = False
    validate: bool = False
    samples: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.test in REFUSED:
            raise InputError(f"{self.test} over mpi", "is not possible", REFUSED[self.test])
        _check(self)


def build_job(test: str, settings: Settings, **fields: Any) -> RankJob:
    """The job that a test's settings ask for; `fields` are those of this test."""
    count, duration_ns = settings.until()
    return RankJob(
        test=test,
        size_bytes=settings.size_bytes,
        count=count,
        duration_ns=duration_ns,
        warmup=settings.warmup_messages,
        validate=settings.validate,
        samples=settings.samples,
        seed=settings.seed,
        **fields,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyResult:
    """Half round trips of a ping-pong, or whole one-sided operations."""

    counts: Counts
    latency: Histogram
    samples: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedResult:
    """Open loop: latency from the intended send time, service from the actual one."""

    counts: Counts
    latency: Histogram
    service: Histogram
    lateness: Histogram
    samples: NDArray[np.int64]
    intended_ns: NDArray[np.int64]


@dataclass(slots=True)
class Samples:
    """A histogram of ps, and the first few values as they came."""

    keep: int = 0
    histogram: Histogram = field(default_factory=Histogram)
    _arrays: list[NDArray[np.int64]] = field(default_factory=list)
    _count: int = 0

    def add_ps(self, values: NDArray[np.int64]) -> None:
        self.histogram.record_many(values)
        if self._count < self.keep:
            self._arrays.append(values[: self.keep - self._count])
            self._count += len(self._arrays[-1])

    def to_array(self) -> NDArray[np.int64]:
        return np.concatenate([np.zeros(0, np.int64), *self._arrays])


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU time of this thread since `start`."""

    user_s: float
    system_s: float

    @staticmethod
    def start() -> CpuTime:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return CpuTime(usage.ru_utime, usage.ru_stime)

    def spent_ns(self) -> tuple[int, int]:
        now = CpuTime.start()
        return round((now.user_s - self.user_s) * 1e9), round((now.system_s - self.system_s) * 1e9)


def _check(job: RankJob) -> None:
    where = f"{job.test} over mpi"
    if job.test not in TWO_SIDED + ONE_SIDED:
        raise InputError(where, "is unknown", f"use one of {', '.join(TWO_SIDED + ONE_SIDED)}")
    if job.size_bytes < 1:
        raise InputError(where, f"size {job.size_bytes} B is below 1 B", "raise --size")
    if job.count < 1 and job.duration_ns < 1:
        raise InputError(where, "neither count nor duration is given", "give one of them")
    if job.window < 1:
        raise InputError(where, f"window {job.window} is below 1", "raise --depth")
    if job.window * job.size_bytes > MAX_MEMORY_BYTES:
        problem = f"{job.window} messages of {job.size_bytes} B need more than {MAX_MEMORY_BYTES} B"
        raise InputError(where, problem, "lower --depth or --size")
    if job.test == "paced" and not job.rate > 0:
        raise InputError(where, f"rate {job.rate} is not above 0", "give --rate, messages per s")
    if job.test in ONE_SIDED:
        _check_operation(job, where)


def _check_operation(job: RankJob, where: str) -> None:
    if job.operation not in OPERATIONS:
        raise InputError(
            where, f"operation {job.operation!r} is unknown", f"use {', '.join(OPERATIONS)}"
        )
    if is_atomic(job) and job.size_bytes != ATOMIC_BYTES:
        raise InputError(
            where,
            f"{job.operation} works on {ATOMIC_BYTES} B, not {job.size_bytes}",
            f"give --size {ATOMIC_BYTES}",
        )


def is_atomic(job: RankJob) -> bool:
    return job.operation in ("fetch-add", "compare-swap")
