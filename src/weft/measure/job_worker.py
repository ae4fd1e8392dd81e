"""One instance of a job, for real.

A process per instance, forked and inside its host's network namespace. It runs the operations of
one loop again and again: a computation is a sleep, a message goes over one TCP connection of its
pair and flow behind those before it. A send ends when the kernel has taken the last byte, of which
it holds at most UNSENT_BYTES back; a receive ends when the last byte is here. The process ends with
its parent, at its time limit, or when the parent says so.
Entry point: `run_instance`. Units: ns (monotonic clock), bytes.
"""

from __future__ import annotations

import heapq
import selectors
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection

from weft.errors import INTERRUPTS, InputError
from weft.host.net import namespaces
from weft.jobs.job_graph import COMPUTE, SEND, JobGraph

HEADER = struct.Struct("<IQ")  # tag and bytes of a message
GREETING = struct.Struct("<III")  # job, instance and flow of a connection
UNSENT_BYTES = 128 * 1024
CHUNK_BYTES = 256 * 1024
IDLE_NS = 1_000_000_000
CONNECT_S = 20.0
FLUSH_NS = 100_000_000
_ZEROS = memoryview(bytes(CHUNK_BYTES))

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePlan:
    """What one instance does in a loop, as plain lists, and with whom it is connected."""

    job: int
    rank: int
    loops: int | None  # None: until it is stopped
    start_ns: int  # after the common start
    level: int
    flows: int
    kind: Sequence[int]
    peer: Sequence[int]
    tag: Sequence[int]
    amount: Sequence[int]
    cpu: Sequence[int]
    open_count: Sequence[int]  # operations that each waits for
    successors: Sequence[Sequence[int]]
    marks: Mapping[int, tuple[int, int]]  # operation -> (stage, 0: begin or 1: end)
    peers: Sequence[int]


def plan_instance(
    graph: JobGraph, rank: int, *, job: int, loops: int | None, start_ns: int, level: int
) -> InstancePlan:
    """The part of one instance in the graph of one loop."""
    first, last = (int(graph.rank.searchsorted(rank, side)) for side in ("left", "right"))
    starts = graph.dependency_start[first : last + 1].tolist()
    dependency = (graph.dependency - first).tolist()
    successors: list[list[int]] = [[] for _ in range(last - first)]
    for operation in range(last - first):
        for before in dependency[starts[operation] : starts[operation + 1]]:
            successors[before].append(operation)
    marks = {
        int(ids[0, stage, rank]) - first: (stage, side)
        for side, ids in enumerate((graph.begin, graph.end))
        for stage in range(ids.shape[1])
    }
    span = slice(first, last)
    is_message = graph.kind[span] != COMPUTE
    return InstancePlan(
        job=job,
        rank=rank,
        loops=loops,
        start_ns=start_ns,
        level=level,
        flows=graph.flows,
        kind=graph.kind[span].tolist(),
        peer=graph.peer[span].tolist(),
        tag=graph.tag[span].tolist(),
        amount=graph.amount[span].tolist(),
        cpu=graph.cpu[span].tolist(),
        open_count=[after - before for before, after in pairwise(starts)],
        successors=successors,
        marks=marks,
        peers=sorted(set(graph.peer[span][is_message].tolist())),
    )


def run_instance(
    plan: InstancePlan, namespace: str | None, address: str, control: Connection, limit_s: float
) -> None:
    """The process of an instance. It reports its port, that it is connected, marks, its end."""
    signal.setitimer(signal.ITIMER_REAL, limit_s)  # its action is the default: the process ends
    for number in INTERRUPTS:  # the parent decides
        signal.signal(number, signal.SIG_IGN)
    try:
        if namespace is not None:
            namespaces.enter(namespace)
        with socket.create_server((address, 0), backlog=4096) as listener:
            _set_level(listener, plan.level)
            control.send(("port", listener.getsockname()[1]))
            addresses: list[Address] = control.recv()
            links = _connect(plan, addresses, listener)
        control.send(("connected", None))
        go_ns: int = control.recv()
        instance = _Instance(plan, links, control)
        instance.run(go_ns)
        control.send(("done", None))
        control.recv()  # peers may still read what we sent
    except (OSError, EOFError, InputError) as error:
        _report_failure(control, error)


def _report_failure(control: Connection, error: Exception) -> None:
    try:
        control.send(("failed", str(error) or type(error).__name__))
    except OSError:
        return  # the parent is gone


# ---- Connections ------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Outgoing:
    """A message of which some bytes have not been written."""

    operation: int
    header: memoryview
    bytes_left: int


@dataclass(slots=True, eq=False)
class _Link:
    """A connection: messages that wait to be sent, and the one that arrives."""

    socket: socket.socket
    peer: int
    sending: deque[_Outgoing] = field(default_factory=deque)
    arriving: bytearray = field(default_factory=bytearray)
    tag: int = 0
    bytes_left: int = 0
    is_watched: bool = False  # for room to write


def _set_level(sock: socket.socket, level: int) -> None:
    """A DSCP, unless it is 0: then marks set from outside, as by `weft run`, stay."""
    if level:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, level << 2)


def _connect(
    plan: InstancePlan, addresses: Sequence[Address], listener: socket.socket
) -> dict[tuple[int, int], _Link]:
    """A link for each peer and flow: the instance with the larger number connects."""
    links: dict[tuple[int, int], _Link] = {}
    smaller = [peer for peer in plan.peers if peer < plan.rank]
    for peer in smaller:
        for flow in range(plan.flows):
            sock = socket.create_connection(addresses[peer], CONNECT_S)
            _set_level(sock, plan.level)
            sock.sendall(GREETING.pack(plan.job, plan.rank, flow))
            links[peer, flow] = _Link(sock, peer)
    listener.settimeout(CONNECT_S)
    for _ in range((len(plan.peers) - len(smaller)) * plan.flows):
        sock, _ = listener.accept()
        sock.settimeout(CONNECT_S)
        job, peer, flow = GREETING.unpack(_read_exactly(sock, GREETING.size))
        if job != plan.job or peer not in plan.peers:
            raise InputError(f"instance {plan.rank}", f"a stranger connected: {sock.getpeername()}")
        links[peer, flow] = _Link(sock, peer)
    for link in links.values():
        link.socket.setblocking(False)
        link.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return links


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("a peer closed its connection")
        data += part
    return data


# ---- The loop ---------------------------------------------------------------------------------


class _Instance:
    """Runs the operations; one thread, one selector."""

    def __init__(
        self, plan: InstancePlan, links: Mapping[tuple[int, int], _Link], control: Connection
    ) -> None:
        self._plan = plan
        self._links = links
        self._control = control
        self._selector = selectors.DefaultSelector()
        for link in links.values():
            self._selector.register(link.socket, selectors.EVENT_READ, link)
        self._selector.register(control, selectors.EVENT_READ, None)
        self._timers: list[tuple[int, int]] = []  # when, operation
        self._free_ns: dict[int, int] = {}  # when each processor is free
        self._here: dict[tuple[int, int], int] = {}  # messages by peer and tag, not yet awaited
        self._awaited: dict[tuple[int, int], deque[int]] = {}
        self._marks: list[tuple[int, int, int, int]] = []  # loop, stage, side, ns after go
        self._flushed_ns = 0
        self._is_stopped = False
        self._buffer = bytearray(CHUNK_BYTES)

    def run(self, go_ns: int) -> None:
        self._go_ns = go_ns
        loop = 0
        self._sleep_until(go_ns + self._plan.start_ns)
        while not self._is_stopped and (self._plan.loops is None or loop < self._plan.loops):
            self._run_loop(loop)
            loop += 1
        self._flush()

    def _run_loop(self, loop: int) -> None:
        self._loop = loop
        self._open = list(self._plan.open_count)
        self._left = len(self._open)
        self._end_all([], [n for n, count in enumerate(self._open) if count == 0])
        while self._left and not self._is_stopped:
            self._wait()
            if time.monotonic_ns() - self._flushed_ns > FLUSH_NS:
                self._flush()

    def _sleep_until(self, when_ns: int) -> None:
        while not self._is_stopped and (wait_ns := when_ns - time.monotonic_ns()) > 0:
            self._select(wait_ns)

    def _wait(self) -> None:
        """Serves connections until one is ready or the next computation ends."""
        wait_ns = max(0, self._timers[0][0] - time.monotonic_ns()) if self._timers else IDLE_NS
        self._select(wait_ns)
        now = time.monotonic_ns()
        ended = []
        while self._timers and self._timers[0][0] <= now:
            ended.append(heapq.heappop(self._timers)[1])
        self._end_all(ended, [])

    def _select(self, wait_ns: int) -> None:
        """At most this long. epoll counts whole milliseconds; the rest is a plain sleep."""
        whole_ms = wait_ns // 1_000_000
        events = self._selector.select(whole_ms / 1000)
        if not events and whole_ms == 0 and wait_ns:
            time.sleep(wait_ns / 1e9)
        for key, mask in events:
            if key.data is None:
                self._control.recv()
                self._is_stopped = True
                continue
            if mask & selectors.EVENT_WRITE:
                self._end_all(self._write(key.data), [])
            if mask & selectors.EVENT_READ:
                self._end_all(self._read(key.data), [])

    # ---- Operations ---------------------------------------------------------------------------

    def _end_all(self, ended: list[int], ready: list[int]) -> None:
        """Operations have ended, or may start: starts what becomes possible, first come first."""
        while ended or ready:
            for operation in ended:
                ready += self._release(operation)
            ended = [other for operation in ready for other in self._start(operation)]
            ready = []

    def _release(self, operation: int) -> list[int]:
        """An operation has ended; those that waited for it last."""
        self._left -= 1
        if operation in self._plan.marks:
            stage, side = self._plan.marks[operation]
            self._marks.append((self._loop, stage, side, time.monotonic_ns() - self._go_ns))
        ready = []
        for successor in self._plan.successors[operation]:
            self._open[successor] -= 1
            if self._open[successor] == 0:
                ready.append(successor)
        return ready

    def _start(self, operation: int) -> list[int]:
        """Starts an operation; those that have ended by it."""
        plan = self._plan
        amount = plan.amount[operation]
        if plan.kind[operation] == COMPUTE:
            return self._compute(operation, amount // 1000)
        peer, tag = plan.peer[operation], plan.tag[operation]
        if plan.kind[operation] == SEND:
            link = self._links[peer, tag % plan.flows]
            header = memoryview(HEADER.pack(tag, amount))
            link.sending.append(_Outgoing(operation, header, amount))
            return self._write(link) if len(link.sending) == 1 else []
        if self._here.get((peer, tag), 0):
            self._here[peer, tag] -= 1
            return [operation]
        self._awaited.setdefault((peer, tag), deque()).append(operation)
        return []

    def _compute(self, operation: int, duration_ns: int) -> list[int]:
        if duration_ns == 0:
            return [operation]
        cpu = self._plan.cpu[operation]
        end_ns = max(time.monotonic_ns(), self._free_ns.get(cpu, 0)) + duration_ns
        self._free_ns[cpu] = end_ns
        heapq.heappush(self._timers, (end_ns, operation))
        return []

    def _write(self, link: _Link) -> list[int]:
        """Writes as much as the kernel takes; the sends that have ended."""
        ended = []
        try:
            while link.sending:
                message = link.sending[0]
                while message.header:
                    message.header = message.header[link.socket.send(message.header) :]
                while message.bytes_left:
                    chunk = _ZEROS[: min(message.bytes_left, CHUNK_BYTES)]
                    message.bytes_left -= link.socket.send(chunk)
                link.sending.popleft()
                ended.append(message.operation)
        except BlockingIOError:
            pass
        self._watch(link)
        return ended

    def _watch(self, link: _Link) -> None:
        if bool(link.sending) != link.is_watched:
            link.is_watched = bool(link.sending)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.is_watched else 0)
            self._selector.modify(link.socket, events, link)

    def _read(self, link: _Link) -> list[int]:
        """Reads once; the receives that have ended."""
        try:
            size = link.socket.recv_into(self._buffer)
        except BlockingIOError:
            return []
        if size == 0:
            raise ConnectionError(f"instance {link.peer} has ended")
        ended: list[int] = []
        at = 0
        while at < size:
            if link.bytes_left == 0:
                wanted = HEADER.size - len(link.arriving)
                link.arriving += self._buffer[at : min(size, at + wanted)]
                at += wanted
                if len(link.arriving) < HEADER.size:
                    break
                link.tag, link.bytes_left = HEADER.unpack(link.arriving)
                link.arriving.clear()
            part = min(link.bytes_left, size - at)
            link.bytes_left -= part
            at += part
            if link.bytes_left == 0:
                ended += self._arrive(link.peer, link.tag)
        return ended

    def _arrive(self, peer: int, tag: int) -> list[int]:
        if waiting := self._awaited.get((peer, tag)):
            return [waiting.popleft()]
        self._here[peer, tag] = self._here.get((peer, tag), 0) + 1
        return []

    def _flush(self) -> None:
        self._flushed_ns = time.monotonic_ns()
        if self._marks:
            self._control.send(("marks", self._marks))
            self._marks = []
