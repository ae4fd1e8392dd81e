"""One-sided operations on an MPI window: Put, Get, Fetch_and_op, Compare_and_swap.

An operation is complete when Flush returns: a Put has then reached the target's memory. One at a
time each is timed whole; windowed, `window` operations share one Flush. The target waits inside
MPI, because most libraries move one-sided data only while the target makes progress.
Entry points: `complete` and `run_window` on rank 0, `serve_window` on rank 1. Units: ns; ps in
histograms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.measure.mpi.job import ATOMIC_BYTES, CpuTime, Job, LatencyResult, Samples, is_atomic
from weft.measure.mpi.two_sided import CHUNK, count_remaining, message
from weft.measure.observation import Counts

if TYPE_CHECKING:
    from mpi4py import MPI

PS_PER_NS = 1000
DONE_TAG = 2


def complete(comm: MPI.Intracomm, peer: int, job: Job) -> LatencyResult:
    """One operation at a time, from the call to the end of its Flush."""
    with _Window(comm, peer, job) as window:
        samples, done = Samples(keep=job.samples), 0
        cpu, start = CpuTime.start(), perf_counter_ns()
        while (remaining := count_remaining(job, done, start)) > 0:
            number = min(remaining, CHUNK)
            times = window.run(number)
            samples.add_ps(np.array(times, np.int64) * PS_PER_NS)
            done += number
        counts = window.counts(done, perf_counter_ns() - start, cpu)
    return LatencyResult(counts=counts, latency=samples.histogram, samples=samples.to_array())


def run_window(comm: MPI.Intracomm, peer: int, job: Job) -> Counts:
    """`window` operations, then one Flush, over and over; rounded up to whole windows."""
    with _Window(comm, peer, job) as window:
        done = 0
        cpu, start = CpuTime.start(), perf_counter_ns()
        while count_remaining(job, done, start) > 0:
            window.run_together(job.window)
            done += job.window
        return window.counts(done, perf_counter_ns() - start, cpu)


def serve_window(comm: MPI.Intracomm, peer: int, job: Job) -> Counts:
    """Offer the memory until the other rank is done; its final bytes are checked there."""
    with _Window(comm, peer, job):
        comm.recv(source=peer, tag=DONE_TAG)
    return Counts()


class _Window:
    """The window of both ranks, and the operations that rank 0 does on rank 1's part of it."""

    def __init__(self, comm: MPI.Intracomm, peer: int, job: Job) -> None:
        from mpi4py import MPI

        self._comm, self._peer, self._job = comm, peer, job
        self._slots = max(2, job.window)
        self._local = [message(job) for _ in range(self._slots)]
        self._window = MPI.Win.Allocate(self._slots * job.size_bytes, 1, comm=comm)
        self._window.tomemory()[:] = bytes(self._slots * job.size_bytes)
        self._posts = [self._operation(slot) for slot in range(self._slots)]
        self._next = cycle(self._posts)

    def __enter__(self) -> _Window:
        self._comm.Barrier()
        self._window.Lock_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._comm.rank == 0:
            self._window.Flush_all()
            self._comm.send(None, dest=self._peer, tag=DONE_TAG)
        self._window.Unlock_all()
        self._comm.Barrier()
        self._window.Free()

    def _operation(self, slot: int) -> Callable[[], None]:
        """A call that posts the slot's operation."""
        from mpi4py import MPI

        window, local, offset = self._window, self._local[slot], slot * self._job.size_bytes
        if self._job.operation == "write":
            return partial(window.Put, (local, MPI.BYTE), self._peer, offset)
        if self._job.operation == "read":
            return partial(window.Get, (local, MPI.BYTE), self._peer, offset)
        result = (local, 1, MPI.INT64_T)
        if self._job.operation == "fetch-add":
            return partial(window.Fetch_and_op, _word(1), result, self._peer, 0, MPI.SUM)
        # 0 becomes 1 and 1 becomes 0: one after another, each of them swaps.
        new, old = _word(1 - slot % 2), _word(slot % 2)
        return partial(window.Compare_and_swap, new, old, result, self._peer, 0)

    def run(self, number: int) -> list[int]:
        """Times in ns of operations one after another."""
        flush, peer, clock = self._window.Flush, self._peer, perf_counter_ns
        times = []
        for post in islice(self._next, number):
            begin = clock()
            post()
            flush(peer)
            times.append(clock() - begin)
        return times

    def run_together(self, number: int) -> None:
        """Operations that are outstanding together."""
        for post in islice(self._next, number):
            post()
        self._window.Flush(self._peer)

    def counts(self, done: int, elapsed_ns: int, cpu: CpuTime) -> Counts:
        user, system = cpu.spent_ns()
        wrong = self._count_wrong_slots(done) if self._job.validate else 0
        return Counts(
            sent=done,
            corrupted=wrong,
            bytes=done * self._job.size_bytes,
            elapsed_ns=elapsed_ns,
            user_ns=user,
            system_ns=system,
        )

    def _count_wrong_slots(self, done: int) -> int:
        """Slots of the target that do not hold what the operations must have left there."""
        return sum(
            self._fetch(slot) != self._expect(slot, done) for slot in range(min(done, self._slots))
        )

    def _fetch(self, slot: int) -> bytes:
        content = bytearray(self._job.size_bytes)
        offset = 0 if is_atomic(self._job) else slot * self._job.size_bytes
        self._window.Get(content, self._peer, offset)
        self._window.Flush(self._peer)
        return bytes(content)

    def _expect(self, slot: int, done: int) -> bytes:
        if self._job.operation == "write":
            return bytes(self._local[slot])
        if self._job.operation == "read":
            return bytes(self._job.size_bytes) if not any(self._local[slot]) else b""
        word = done if self._job.operation == "fetch-add" else done % 2
        return word.to_bytes(ATOMIC_BYTES, sys.byteorder)


def _word(value: int) -> tuple[NDArray[np.int64], int, MPI.Datatype]:
    from mpi4py import MPI

    return np.array([value], np.int64), 1, MPI.INT64_T
