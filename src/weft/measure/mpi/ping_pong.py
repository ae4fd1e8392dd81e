"""Ping-pong and paced messages over MPI, in Python.

Blocking Send and Recv on buffers made before. The first byte of a message tells the responder to
go on or to end; the last message is not timed. Entry points: `ping_pong` and `run_paced` on the
measuring rank, `echo` on the other. With peer MPI.PROC_NULL nothing is sent, and `ping_pong` times
the calls alone: `Ranks.python_cost_ns`. Units: ns from Python's clock, ps in histograms.
"""

from __future__ import annotations

import random
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from weft._core import Histogram
from weft.measure.mpi.rank_job import CpuTime, LatencyResult, PacedResult, RankJob, Samples
from weft.measure.observation import Counts

if TYPE_CHECKING:
    from mpi4py import MPI

GO_ON, LAST = 0, 1
# Times are kept in a list and put into the histogram between messages, this many at once.
CHUNK = 256
HALF_PS_PER_NS = 500
STAMP = slice(1, 9)


def message(job: RankJob) -> bytearray:
    """Bytes to send: the flag, then what the seed gives."""
    content = bytearray(random.Random(job.seed).randbytes(job.size_bytes))
    content[0] = GO_ON
    return content


def stamp(content: bytearray, number: int) -> None:
    """Make one message differ from the one before, as far as it has room."""
    room = content[STAMP]
    content[STAMP] = (number + 1).to_bytes(8, "little")[: len(room)]


def ping_pong(comm: MPI.Intracomm, peer: int, job: RankJob) -> LatencyResult:
    """Half the round trip of each message."""
    exchange = _Exchange(comm, peer, job)
    samples, sent, corrupted = Samples(keep=job.samples), 0, 0
    cpu, start = CpuTime.start(), perf_counter_ns()
    while (remaining := count_remaining(job, sent, start)) > 0:
        number = min(remaining, CHUNK)
        if job.validate:
            times, bad = exchange.run_checked(number)
            corrupted += bad
        else:
            times = exchange.run(number)
        samples.add_ps(np.array(times, np.int64) * HALF_PS_PER_NS)
        sent += number
    elapsed, (user, system) = perf_counter_ns() - start, cpu.spent_ns()
    exchange.end()
    counts = Counts(
        sent=sent,
        received=sent,
        corrupted=corrupted,
        bytes=sent * job.size_bytes,
        elapsed_ns=elapsed,
        user_ns=user,
        system_ns=system,
    )
    return LatencyResult(counts=counts, latency=samples.histogram, samples=samples.to_array())


def count_remaining(job: RankJob, done: int, start_ns: int) -> int:
    """Messages still to send; with a duration, a whole chunk until time is up."""
    if job.count:
        return job.count - done
    return CHUNK if perf_counter_ns() - start_ns < job.duration_ns else 0


class _Exchange:
    """The two buffers of a ping-pong and the loop over them."""

    def __init__(self, comm: MPI.Intracomm, peer: int, job: RankJob) -> None:
        from mpi4py import MPI

        self._comm, self._peer = comm, peer
        self._out, self._back = message(job), bytearray(job.size_bytes)
        self._send_from = (self._out, MPI.BYTE)
        self._receive_into = (self._back, MPI.BYTE)
        self._sent = 0

    def run(self, number: int) -> list[int]:
        """Round trips in ns."""
        send, receive, peer, clock = self._comm.Send, self._comm.Recv, self._peer, perf_counter_ns
        out, back = self._send_from, self._receive_into
        times = []
        for _ in range(number):
            begin = clock()
            send(out, peer)
            receive(back, peer)
            times.append(clock() - begin)
        return times

    def run_checked(self, number: int) -> tuple[list[int], int]:
        """As `run`, each message different and compared with its echo outside the timed part."""
        times, bad = [], 0
        for _ in range(number):
            stamp(self._out, self._sent)
            times += self.run(1)
            bad += self._back != self._out
            self._sent += 1
        return times, bad

    def end(self) -> None:
        self._out[0] = LAST
        self.run(1)


def echo(comm: MPI.Intracomm, peer: int, job: RankJob) -> Counts:
    """Send everything back, until the message flagged as the last."""
    from mpi4py import MPI

    buffer = bytearray(job.size_bytes)
    content = (buffer, MPI.BYTE)
    send, receive = comm.Send, comm.Recv
    received = 0
    while True:
        receive(content, peer)
        send(content, peer)
        if buffer[0] == LAST:
            return Counts(received=received, sent=received, bytes=received * job.size_bytes)
        received += 1


# ---- Open loop --------------------------------------------------------------------------------


def run_paced(comm: MPI.Intracomm, peer: int, job: RankJob) -> PacedResult:
    """Messages leave at intended times, whatever became of those before them."""
    flight = _Flight(comm, peer, job)
    cpu, start = CpuTime.start(), perf_counter_ns()
    flight.run(start)
    elapsed, (user, system) = perf_counter_ns() - start, cpu.spent_ns()
    flight.free()
    _Exchange(comm, peer, job).end()
    rows = np.array(flight.rows, np.int64).reshape(-1, 3)
    intended, departed, back = rows[:, 0], rows[:, 1], rows[:, 2]
    lateness, service = (departed - intended) * 1000, (back - departed) * HALF_PS_PER_NS
    latency = lateness + service
    counts = Counts(
        sent=flight.sent,
        received=len(rows),
        bytes=len(rows) * job.size_bytes,
        elapsed_ns=elapsed,
        user_ns=user,
        system_ns=system,
    )
    return PacedResult(
        counts=counts,
        latency=_histogram(latency),
        service=_histogram(service),
        lateness=_histogram(lateness),
        samples=latency[: job.samples],
        intended_ns=intended[: job.samples] - start,
    )


def _histogram(values_ps: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Histogram:
    histogram = Histogram()
    histogram.record_many(np.ascontiguousarray(values_ps))
    return histogram


class _Flight:
    """A ring of sends and receives; (intended, sent, received) of each message, in ns."""

    def __init__(self, comm: MPI.Intracomm, peer: int, job: RankJob) -> None:
        from mpi4py import MPI

        out = (message(job), MPI.BYTE)
        slots = range(job.window)
        self._sends = [comm.Send_init(out, peer) for _ in slots]
        self._receives = [
            comm.Recv_init((bytearray(job.size_bytes), MPI.BYTE), peer) for _ in slots
        ]
        self._job = job
        self._gap = _Gaps(job)
        self._waiting: deque[tuple[int, int]] = deque()
        self.sent = 0
        self.rows: list[tuple[int, int, int]] = []

    def run(self, start_ns: int) -> None:
        """Send what is due and take what has come, until all is sent and answered."""
        clock, due = perf_counter_ns, float(start_ns)
        while self._has_more(due - start_ns) or self._waiting:
            now = clock()
            if (
                len(self._waiting) < self._job.window
                and self._has_more(due - start_ns)
                and now >= due
            ):
                self._send(round(due))
                due += self._gap()
            elif self._waiting:
                self._take()

    def _has_more(self, due_ns: float) -> bool:
        if self._job.count:
            return self.sent < self._job.count
        return due_ns < self._job.duration_ns

    def _send(self, due_ns: int) -> None:
        slot = self.sent % self._job.window
        if self.sent >= self._job.window:
            self._sends[slot].Wait()
        self._receives[slot].Start()
        departed = perf_counter_ns()
        self._sends[slot].Start()
        self._waiting.append((due_ns, departed))
        self.sent += 1

    def _take(self) -> None:
        if self._receives[len(self.rows) % self._job.window].Test():
            self.rows.append((*self._waiting.popleft(), perf_counter_ns()))

    def free(self) -> None:
        for request in (*self._sends, *self._receives):
            request.Wait()
            request.Free()


class _Gaps:
    """Nanoseconds from one intended send to the next."""

    def __init__(self, job: RankJob) -> None:
        self._mean_ns, self._poisson = 1e9 / job.rate, job.poisson
        self._random = random.Random(job.seed)

    def __call__(self) -> float:
        return self._random.expovariate(1 / self._mean_ns) if self._poisson else self._mean_ns
