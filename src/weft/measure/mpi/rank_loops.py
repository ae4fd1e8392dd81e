"""The loops of the tests over MPI, in Python: one function for each of the two ranks.

**Ping-pong and paced messages.** Blocking Send and Recv on buffers made before. The first byte of a
message tells the responder to go on or to end; the last message is not timed. `ping_pong` and
`run_paced` run on the measuring rank, `echo` on the other. With peer MPI.PROC_NULL nothing is sent,
and `ping_pong` times the calls alone: `Ranks.python_cost_ns`.

**Windows of messages.** Persistent requests are started and waited for half a window at a time, so
Python is paid once per half window. The receiver acknowledges each half before the sender uses it
again: without that an eager send is "complete" as soon as it is copied, and the window would bound
nothing. A window of one is synchronous: message, acknowledgement, message. Counts are rounded up to
whole halves. The first byte of a half's messages says that the half after it is the last one; with
a window of one, that it is itself the last. `stream` and `duplex` run on the measuring rank, `sink`
and `duplex_back` on the other.

**One-sided operations** act on memory that rank 1 offers (an MPI window, `_SharedMemory` here).
`time_operations` and `run_operations` run on the measuring rank, `offer_memory` on the other.
Units: ns from Python's clock, ps in histograms.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft._core import Histogram
from weft.measure.mpi.rank_job import (
    ATOMIC_BYTES,
    CpuTime,
    LatencyResult,
    PacedResult,
    RankJob,
    Samples,
    is_atomic,
)
from weft.measure.observation import Counts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpi4py import MPI

# ---- Ping-pong and paced messages -------------------------------------------------------------

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


# ---- Windows of messages ----------------------------------------------------------------------

ACK_TAG = 1


def stream(comm: MPI.Intracomm, peer: int, job: RankJob) -> Counts:
    """Send with at most `window` messages unacknowledged."""
    halves = [
        _Half(comm, job).add_sends(peer).await_acknowledgements(peer) for _ in range(_halves(job))
    ]
    return _drive(halves, job)


def duplex(comm: MPI.Intracomm, peer: int, job: RankJob) -> tuple[Counts, Counts]:
    """Send and receive at once, rank 0's side: what was sent and what was received."""
    halves = [_Half(comm, job).add_sends(peer).add_receives(peer) for _ in range(_halves(job))]
    sent = _drive(halves, job)
    return sent, _count_received(sent, halves)


def sink(comm: MPI.Intracomm, peer: int, job: RankJob) -> Counts:
    """Receive a stream, acknowledging each half window."""
    halves = [
        _Half(comm, job).add_receives(peer).send_acknowledgements(peer) for _ in range(_halves(job))
    ]
    return _follow(halves, job)


def duplex_back(comm: MPI.Intracomm, peer: int, job: RankJob) -> Counts:
    """The other side of `duplex`."""
    halves = [_Half(comm, job).add_sends(peer).add_receives(peer) for _ in range(_halves(job))]
    return _follow(halves, job)


def _halves(job: RankJob) -> int:
    return 1 if job.window == 1 else 2


class _Half:
    """Requests that are started together: half the window."""

    def __init__(self, comm: MPI.Intracomm, job: RankJob) -> None:
        self._comm, self._job = comm, job
        self._requests: list[MPI.Prequest] = []
        self._ack: MPI.Prequest | None = None
        self._out = message(job)
        self._expected = message(job)
        self._inbox: list[bytearray] = []
        self.messages = max(1, job.window // 2)
        self.corrupted = 0

    def add_sends(self, peer: int) -> _Half:
        from mpi4py import MPI

        out = (self._out, MPI.BYTE)
        self._requests += [self._comm.Send_init(out, peer) for _ in range(self.messages)]
        return self

    def add_receives(self, peer: int) -> _Half:
        from mpi4py import MPI

        self._inbox = [bytearray(self._job.size_bytes) for _ in range(self.messages)]
        self._requests += [self._comm.Recv_init((slot, MPI.BYTE), peer) for slot in self._inbox]
        return self

    def await_acknowledgements(self, peer: int) -> _Half:
        self._requests.append(self._comm.Recv_init(bytearray(1), peer, ACK_TAG))
        return self

    def send_acknowledgements(self, peer: int) -> _Half:
        self._ack = self._comm.Send_init(bytearray(1), peer, ACK_TAG)
        return self

    def start(self, number: int, flag: int = GO_ON) -> None:
        self._out[0] = flag
        if self._job.validate:
            stamp(self._out, number)
        self._requests[0].Startall(self._requests)

    def wait(self, number: int) -> bool:
        """Whether the messages that came carry the flag."""
        self._requests[0].Waitall(self._requests)
        if self._ack is not None:
            self._ack.Wait()
            self._ack.Start()
        if self._job.validate:
            self._check(number)
        return bool(self._inbox) and self._inbox[-1][0] == LAST

    def _check(self, number: int) -> None:
        stamp(self._expected, number)
        self.corrupted += sum(slot[1:] != self._expected[1:] for slot in self._inbox)

    def free(self) -> None:
        if self._ack is not None:
            self._ack.Wait()
            self._ack.Free()
        for request in self._requests:
            request.Free()


def _drive(halves: list[_Half], job: RankJob) -> Counts:
    """Start half after half until count or duration, then wait for all of it."""
    started = 0
    cpu, begin = CpuTime.start(), perf_counter_ns()
    for number, flag in _numbers(job, halves[0].messages, len(halves)):
        if number >= len(halves):
            halves[number % len(halves)].wait(number - len(halves))
        halves[number % len(halves)].start(number, flag)
        started = number + 1
    for number in range(started - len(halves), started):
        halves[number % len(halves)].wait(number)
    elapsed, (user, system) = perf_counter_ns() - begin, cpu.spent_ns()
    sent = started * halves[0].messages
    for half in halves:
        half.free()
    return Counts(
        sent=sent, bytes=sent * job.size_bytes, elapsed_ns=elapsed, user_ns=user, system_ns=system
    )


def _numbers(job: RankJob, per_half: int, halves: int) -> Iterator[tuple[int, int]]:
    """Numbers of the halves to start; the flag goes to the one before the last ones."""
    until = perf_counter_ns() + job.duration_ns
    total = max(halves, -(-job.count // per_half)) if job.count else None
    number = 0
    while total is None or number < total:
        if total is None and perf_counter_ns() >= until:
            total = number + halves
        yield number, LAST if total is not None and number == total - halves else GO_ON
        number += 1


def _follow(halves: list[_Half], job: RankJob) -> Counts:
    """Keep every half started until the driving side flags the last."""
    cpu, begin = CpuTime.start(), perf_counter_ns()
    for number, half in enumerate(halves):
        half.start(number)
    number = 0
    while not halves[number % len(halves)].wait(number):
        halves[number % len(halves)].start(number + len(halves))
        number += 1
    for rest in range(number + 1, number + len(halves)):
        halves[rest % len(halves)].wait(rest)
    elapsed, (user, system) = perf_counter_ns() - begin, cpu.spent_ns()
    received = (number + len(halves)) * halves[0].messages
    for half in halves:
        half.free()
    return Counts(
        received=received,
        corrupted=sum(half.corrupted for half in halves),
        bytes=received * job.size_bytes,
        elapsed_ns=elapsed,
        user_ns=user,
        system_ns=system,
    )


def _count_received(sent: Counts, halves: list[_Half]) -> Counts:
    """In lockstep as much comes back as was sent, in the same time."""
    return replace(
        sent, sent=0, received=sent.sent, corrupted=sum(half.corrupted for half in halves)
    )


PS_PER_NS = 1000
DONE_TAG = 2


def time_operations(comm: MPI.Intracomm, peer: int, job: RankJob) -> LatencyResult:
    """One operation at a time, from the call to the end of its Flush."""
    with _SharedMemory(comm, peer, job) as memory:
        samples, done = Samples(keep=job.samples), 0
        cpu, start = CpuTime.start(), perf_counter_ns()
        while (remaining := count_remaining(job, done, start)) > 0:
            number = min(remaining, CHUNK)
            times = memory.run(number)
            samples.add_ps(np.array(times, np.int64) * PS_PER_NS)
            done += number
        counts = memory.counts(done, perf_counter_ns() - start, cpu)
    return LatencyResult(counts=counts, latency=samples.histogram, samples=samples.to_array())


def run_operations(comm: MPI.Intracomm, peer: int, job: RankJob) -> Counts:
    """`window` operations, then one Flush, over and over; rounded up to whole windows."""
    with _SharedMemory(comm, peer, job) as memory:
        done = 0
        cpu, start = CpuTime.start(), perf_counter_ns()
        while count_remaining(job, done, start) > 0:
            memory.run_together(job.window)
            done += job.window
        return memory.counts(done, perf_counter_ns() - start, cpu)


def offer_memory(comm: MPI.Intracomm, peer: int, job: RankJob) -> Counts:
    """Offer the memory until the other rank is done; its final bytes are checked there."""
    with _SharedMemory(comm, peer, job):
        comm.recv(source=peer, tag=DONE_TAG)
    return Counts()


class _SharedMemory:
    """An MPI window on both ranks, and the operations of rank 0 on rank 1's part of it."""

    def __init__(self, comm: MPI.Intracomm, peer: int, job: RankJob) -> None:
        from mpi4py import MPI

        self._comm, self._peer, self._job = comm, peer, job
        self._slots = max(2, job.window)
        self._local = [message(job) for _ in range(self._slots)]
        self._window = MPI.Win.Allocate(self._slots * job.size_bytes, 1, comm=comm)
        self._window.tomemory()[:] = bytes(self._slots * job.size_bytes)
        self._posts = [self._operation(slot) for slot in range(self._slots)]
        self._next = cycle(self._posts)

    def __enter__(self) -> _SharedMemory:
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
