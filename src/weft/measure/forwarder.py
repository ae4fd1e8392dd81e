"""A forwarder of Ethernet frames between two interfaces, with known delay, loss and rate.

The kernel stamps each frame when it arrives, so the forwarder knows how late it lets each frame go,
whatever the host does to it. It also keeps, for each flow, the time from a request's arrival to the
release of its answer: what the network and the peer took of a round trip. It runs in a process of
its own (`Forwarder`), with real-time priority where it may, and sleeps until shortly before a frame
is due. Entry points: `Forwarder`, `Path`, `Report`. Units: ns, bytes, b/s.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from weft.errors import InputError

ETH_P_ALL, ETH_HEADER = 3, 14
SOL_PACKET, PACKET_STATISTICS, PACKET_IGNORE_OUTGOING = 263, 6, 23
SO_RCVBUFFORCE, SO_TIMESTAMPNS = 33, 35
BUFFER_BYTES = 1 << 24
TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
# Before a frame is due: a sleep ends this late at worst on a host that is not overloaded.
SPIN_NS = 150_000
LARGE_BYTES = 1000  # frames of a stream, not of the control connection
PRIORITY = 2  # above the loops that it must interrupt
ANSWER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What frames meet on their way. Losses and the queue's limit are of UDP towards the server."""

    delay_ns: int = 0  # each way
    lose_every: int = 0  # the n-th of each n; 0: none
    rate_bps: float = 0.0  # of IP packets, each way; 0: unlimited
    limit_bytes: int = 1 << 16  # of the queue in front of the rate


@dataclass(slots=True, kw_only=True)
class Report:
    """What the forwarder did since its path was set."""

    late_ns: list[int] = field(default_factory=list)  # of each frame
    # By the server's port: when frames with a payload came, and when those of the server left.
    requests_ns: dict[str, list[int]] = field(default_factory=dict)
    answers_ns: dict[str, list[int]] = field(default_factory=dict)
    busy_ns: int = 0  # sending large frames to the server, where the path has a rate
    idle_ns: int = 0  # between these
    packets: int = 0  # UDP packets towards the server
    lost: int = 0  # of these, on purpose: by count or for want of room
    missed: int = 0  # frames that the kernel dropped before us

    def match_round_trips(self, port: str, messages: int) -> list[int]:
        """Of the last messages, which are all answered; connecting may take frames before them."""
        ends = (self.requests_ns.get(port, []), self.answers_ns.get(port, []))
        pairs = zip(*(times[-messages:] for times in ends), strict=False)
        return [answer_ns - request_ns for request_ns, answer_ns in pairs]


class Flow(NamedTuple):
    """The server's port and the payload of an IPv4 packet."""

    port: int
    payload_bytes: int


def open_interface(name: str) -> socket.socket:
    """All frames that arrive at an interface, with the time of their arrival."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sock.bind((name, 0))
    sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sock.setblocking(False)
    return sock


def parse_flow(frame: bytes, *, to_server: bool) -> Flow | None:
    """The flow of a frame; None if it is not TCP or UDP over IPv4."""
    if frame[12:14] != b"\x08\x00" or frame[23] not in (TCP, UDP):
        return None
    header = ETH_HEADER + 4 * (frame[14] & 15)
    source, target = struct.unpack_from(">HH", frame, header)
    transport = 8 if frame[23] == UDP else 4 * (frame[header + 12] >> 4)
    total = struct.unpack_from(">H", frame, ETH_HEADER + 2)[0]
    payload = total + ETH_HEADER - header - transport
    return Flow(target if to_server else source, payload)


class _Direction:
    """Frames from one interface to the other, in order."""

    def __init__(self, source: socket.socket, sink: socket.socket, *, to_server: bool) -> None:
        self.source = source
        self.sink = sink
        self.to_server = to_server
        self.queue: deque[tuple[int, int, bytes, Flow | None]] = deque()  # due, arrival first
        self.queued_bytes = 0
        self.free_ns = 0  # when the link has sent what it has

    def take(self, path: Path, report: Report) -> None:
        """The next frame into the queue, with the time at which it is due."""
        frame, control, _, _ = self.source.recvmsg(1 << 16, 64)
        arrival_ns = _read_stamp(control)
        if self._is_lost(frame, path, report):
            return
        due_ns = self._serialise(frame, arrival_ns, path, report) if path.rate_bps else arrival_ns
        self.queued_bytes += len(frame)
        flow = parse_flow(frame, to_server=self.to_server)
        self.queue.append((due_ns + path.delay_ns, arrival_ns, frame, flow))

    def _serialise(self, frame: bytes, arrival_ns: int, path: Path, report: Report) -> int:
        """When the link has sent a frame, after those before it."""
        taken_ns = round((len(frame) - ETH_HEADER) * 8e9 / path.rate_bps)
        if self.to_server and len(frame) > LARGE_BYTES:
            if report.busy_ns:
                report.idle_ns += max(0, arrival_ns - self.free_ns)
            report.busy_ns += taken_ns
        self.free_ns = max(self.free_ns, arrival_ns) + taken_ns
        return self.free_ns

    def _is_lost(self, frame: bytes, path: Path, report: Report) -> bool:
        if not self.to_server or frame[12:14] != b"\x08\x00" or frame[23] != UDP:
            return False
        report.packets += 1
        is_lost = bool(path.lose_every) and report.packets % path.lose_every == 0
        is_lost |= bool(path.rate_bps) and self.queued_bytes > path.limit_bytes
        report.lost += is_lost
        return is_lost

    def release(self, now_ns: int, report: Report) -> None:
        """Sends the frames that are due."""
        while self.queue and self.queue[0][0] <= now_ns:
            due_ns, arrival_ns, frame, flow = self.queue.popleft()
            self.queued_bytes -= len(frame)
            now_ns = time.time_ns()
            with suppress(OSError):  # the interface is gone: so is the test
                self.sink.send(frame)
            report.late_ns.append(now_ns - due_ns)
            if flow is not None and flow.payload_bytes:
                times = report.requests_ns if self.to_server else report.answers_ns
                times.setdefault(str(flow.port), []).append(
                    arrival_ns if self.to_server else now_ns
                )
            now_ns = time.time_ns()


def _read_stamp(control: Sequence[tuple[int, int, bytes]]) -> int:
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("ll", data[:16])
            return int(seconds * 1_000_000_000 + nanoseconds)
    return time.time_ns()


def forward(client: socket.socket, server: socket.socket, orders: int) -> None:
    """Forwards until the file of orders closes; each order is a line, and so is each answer."""
    directions = (
        _Direction(client, server, to_server=True),
        _Direction(server, client, to_server=False),
    )
    by_source = {direction.source.fileno(): direction for direction in directions}
    path, report = Path(), Report()
    while True:
        for direction in directions:
            direction.release(time.time_ns(), report)
        due_ns = min((d.queue[0][0] for d in directions if d.queue), default=None)
        wait_s = None if due_ns is None else max(0, due_ns - time.time_ns() - SPIN_NS) / 1e9
        ready, _, _ = select.select([*by_source, orders], [], [], wait_s)
        for source in ready:
            if source != orders:
                by_source[source].take(path, report)
                continue
            if not (text := os.read(orders, 1 << 12)):
                return
            if (order := json.loads(text)) is None:
                report.missed = sum(_read_drops(direction.source) for direction in directions)
                print(json.dumps(asdict(report)), flush=True)
            else:
                path, report = Path(**order), Report()
                print("{}", flush=True)


def _read_drops(source: socket.socket) -> int:
    """Frames that the kernel has dropped for want of room, since the last call."""
    packed = source.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
    return int(struct.unpack("II", packed)[1])


class Forwarder:
    """The forwarder between two interfaces, each a socket of `open_interface`; close it after."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        numbers = [client.fileno(), server.fileno()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weft.measure.forwarder", *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=numbers,
            start_new_session=True,  # Ctrl-C is for us: it forwards until we close it
        )

    def set_path(self, path: Path) -> None:
        """From here on frames meet this path; the report starts anew."""
        self._order(asdict(path))

    def read_report(self) -> Report:
        return Report(**self._order(None))

    def _order(self, order: dict[str, Any] | None) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise InputError("forwarder", "does not answer", "see its message")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    """The process: the numbers of both sockets are its arguments."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    client, server = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    forward(client, server, sys.stdin.fileno())


if __name__ == "__main__":
    main()
