"""Estimators over real transports, beside what a forwarder of known delay, loss and rate did.

Client and peer are in network namespaces of their own; every frame between them passes the
forwarder. The truth of a round trip has two parts. The forwarder observes the first: from the
arrival of a request to the release of its answer, with the injected delay, the forwarder's lateness
and the peer in it. The second is the client's kernel and, over ofi, libfabric, to the forwarder and
back: plain calls of sockets or libfabric on the same path find it, waiting as the test waits.
Both are reported; nothing is subtracted. Entry point: `judge_transport`. Units: ns, b/s.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from fcntl import ioctl
from functools import partial
from statistics import median
from typing import NoReturn

from weft._core import PlainExchange, PlainFabric, exchange_plainly
from weft.errors import InputError
from weft.host.net import namespaces
from weft.measure.accuracy import use_realtime
from weft.measure.forwarder import SPIN_NS, Forwarder, Path, Report, open_interface
from weft.measure.measurement import Measurement, measure
from weft.measure.peer.client import LocalServer, Peer, open_peer
from weft.measure.settings.options import parse_over
from weft.measure.tests import TESTS
from weft.records import Distribution, Scalar

TOLERANCE = 0.03
DELAYS_NS = (100_000, 1_000_000, 10_000_000)
MIN_DELAY_NS = 50_000
# 3 % of a short delay is a few µs, and hosts change by that within a second: the median of rounds.
SHORT_NS, SHORT_ROUNDS = 1_000_000, 5
WAITS = ("block", "spin")
CLIENT, SERVER = "10.77.0.1", "10.77.0.2"
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
MTU_BYTES, IP_BYTES, UDP_BYTES, TCP_BYTES = 1500, 20, 8, 32  # TCP with its timestamps
DATAGRAM_BYTES = 1400
EAGER_BYTES = 16_000  # libfabric's tcp announces messages above 16 KiB first, on the same link
RATE_BPS, LOSE_EVERY = 50e6, 20
STREAM_S, OFFERED = 1.0, 1.5  # of the rate, where datagrams overflow the queue
ECHO_PORT, ECHO_S = 7, 5.0
ECHO_SLEEPS, ECHO_SPINS = 0, 1  # first byte of a message: how the echo waits for the next
ECHO_SPIN_NS = 50_000_000  # after a message
MIN_INTERVAL_NS = 5_000_000  # between messages of the open loop
TRANSPORTS = ("udp", "tcp", "ofi:tcp")  # a message is a frame, and its answer another


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What an estimator found beside the truth, both in `unit`."""

    over: str
    wait: str
    estimator: str
    injected: float
    truth: float
    measured: float
    unit: str
    crossing_ns: float = 0.0  # of the client's kernel and library, in a round trip
    late_ns: tuple[int, int] = (0, 0)  # of the forwarder: median and p99
    missed: int = 0  # frames that never reached the forwarder
    idle: float = 0.0  # share of a stream in which the link had nothing to send

    @property
    def error(self) -> float:
        return self.measured / self.truth - 1

    @property
    def is_accurate(self) -> bool:
        return abs(self.error) <= TOLERANCE and not self.missed

    @property
    def is_forwarder_late(self) -> bool:
        """Whether the path was not what was asked for: the truth has it, the injected has not."""
        return self.unit == "ns" and self.late_ns[0] > TOLERANCE * self.injected

    @property
    def verdict(self) -> str:
        late = ", forwarder late" if self.is_forwarder_late else ""
        missed = f", {self.missed} frames missed" if self.missed else ""
        idle = f", link idle {100 * self.idle:.1f} %" if self.idle > TOLERANCE / 3 else ""
        return f"{'ok' if self.is_accurate else 'off'}{late}{missed}{idle}"


@dataclass(slots=True)
class Bench:
    """Two namespaces, the forwarder between them, and two servers in the second.

    The first has real-time priority where it may. Streams are served by the other: a program that
    spins with such priority keeps the kernel from its work on their frames.
    """

    client: str
    server: str
    forwarder: Forwarder
    timed: LocalServer
    streamed: LocalServer
    fabric_echoes: dict[str, bytes] = field(default_factory=dict)  # names, by way of waiting


def check_over(text: str) -> None:
    """Refuse a transport whose round trips the forwarder cannot see."""
    parse_over(text)
    if text not in TRANSPORTS:
        problem = "the forwarder sees no message and answer of it"
        raise InputError(f"--over {text}", problem, f"use {', '.join(TRANSPORTS)}")


def judge_transport(
    over: str, delays_ns: Sequence[int] = DELAYS_NS, waits: Sequence[str] = WAITS
) -> Iterator[Finding]:
    """Latency, open loop, rate and, of datagrams, loss over one transport, one after the other."""
    check_over(over)
    if obstacle := namespaces.find_obstacle():
        raise InputError(f"--over {over}", f"no network namespaces: {obstacle}", "run it as root")
    with ExitStack() as stack:
        bench = stack.enter_context(open_bench())
        if _find_provider(over):
            for wait in waits:
                with use_cpus(_split_cpus()[1]):
                    bench.fabric_echoes[wait] = stack.enter_context(
                        _start_fabric_echo(bench.server, _find_provider(over), wait)
                    )
        inside = partial(namespaces.run_inside, bench.client)
        timed = stack.enter_context(inside(partial(_open, bench.timed)))
        streamed = stack.enter_context(inside(partial(_open, bench.streamed)))
        for wait in waits:
            for delay_ns in delays_ns:
                rounds = SHORT_ROUNDS if delay_ns < SHORT_NS else 1
                for case in _build_cases(over, wait, delay_ns):
                    judge = partial(_judge_latency, bench, timed, case)
                    findings = [inside(judge) for _ in range(rounds)]
                    yield sorted(findings, key=lambda finding: finding.error)[rounds // 2]
            yield inside(partial(_judge_rate, bench, streamed, over, wait))
            if over == "udp":
                yield inside(partial(_judge_loss, bench, streamed, over, wait))


def _open(server: LocalServer) -> Peer:
    return open_peer(f"{SERVER}:{server.port}", server.token)


# ---- The bench --------------------------------------------------------------------------------


@contextmanager
def open_bench() -> Iterator[Bench]:
    """Everything is removed at the end, whatever happens inside."""
    namespaces.remove_leftovers()
    names = {node: namespaces.build_name(node) for node in ("client", "forwarder", "server")}
    with ExitStack() as stack:
        for name in names.values():
            stack.callback(namespaces.remove, name)
            namespaces.create(name)
        for node, address in (("client", CLIENT), ("server", SERVER)):
            _build_cable(names[node], names["forwarder"], node, address)
        ends = namespaces.run_inside(
            names["forwarder"], lambda: [open_interface(node) for node in ("client", "server")]
        )
        for end in ends:
            stack.callback(end.close)
        with use_cpus(_split_cpus()[1]):
            forwarder = stack.enter_context(Forwarder(*ends))
            stack.enter_context(_start_echo(names["server"]))
            servers = namespaces.run_inside(names["server"], _start_servers)
        for end in ends:
            end.close()
        for server in servers:
            stack.callback(server.close)
        yield Bench(names["client"], names["server"], forwarder, *servers)


def _split_cpus() -> tuple[set[int], set[int]]:
    """The client's, and those of forwarder and peer: what they do then never delays the client.

    Else each run has it otherwise, and the plain exchange is no measure of the test beside it.
    """
    *rest, last = sorted(os.sched_getaffinity(0))
    return {last}, set(rest) or {last}


@contextmanager
def use_cpus(cpus: set[int]) -> Iterator[None]:
    """For this thread, and for what it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _build_cable(host: str, forwarder: str, node: str, address: str) -> None:
    """A veth from a host to the forwarder; frames leave with their checksums and one by one."""
    lines = [
        f"link add eth0 mtu {MTU_BYTES} type veth peer name {node} netns {forwarder}",
        "link set eth0 gso_max_segs 1 up",
        f"addr add {address}/24 dev eth0",
    ]
    namespaces.run_command(["ip", "-n", host, "-batch", "-"], "\n".join(lines))
    namespaces.run_command(["ip", "-n", forwarder, "link", "set", node, "up"])
    namespaces.run_inside(host, partial(_write_checksums, "eth0"))


def _write_checksums(interface: str) -> None:
    """Has the kernel write checksums itself: the forwarder's frames are checked like any other."""
    value = array("I", [ETHTOOL_STXCSUM, 0])
    request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        ioctl(sock, SIOCETHTOOL, request)


@contextmanager
def _start_echo(namespace: str, call: str = "echo()") -> Iterator[bytes]:
    """A process that answers messages; gives the first line that it prints."""
    argv = [sys.executable, "-c", f"from weft.measure.path_accuracy import *; {call}"]
    with namespaces.spawn(namespace, argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            if not (line := process.stdout.readline()):
                raise InputError("echo", "the process did not start", "see its message")
            yield line
        finally:
            process.kill()


@contextmanager
def _start_fabric_echo(namespace: str, provider: str, wait: str) -> Iterator[bytes]:
    """Gives the name to which libfabric sends."""
    with _start_echo(namespace, f"echo_fabric({provider!r}, {wait == 'spin'})") as line:
        yield bytes.fromhex(line.decode())


def _start_servers() -> tuple[LocalServer, LocalServer]:
    """Sessions inherit the priority."""
    streamed = LocalServer(SERVER)
    with use_realtime():
        return LocalServer(SERVER), streamed


# ---- The tests --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A test of latency over the forwarder; `interval_ns` is between messages of an open loop."""

    over: str
    wait: str
    delay_ns: int
    messages: int
    interval_ns: int = 0

    @property
    def test(self) -> str:
        return "paced" if self.interval_ns else "latency"


def _build_cases(over: str, wait: str, delay_ns: int) -> list[Case]:
    """A closed loop, and an open one with one message at a time on its way.

    Each lasts half a second: Linux stops real-time threads that take more than 0.95 s of a second.
    """
    interval_ns = max(MIN_INTERVAL_NS, 3 * delay_ns)
    closed, opened = (max(30, min(400, round(5e8 / ns))) for ns in (2 * delay_ns, interval_ns))
    case = Case(over=over, wait=wait, delay_ns=delay_ns, messages=closed)
    return [case, replace(case, messages=opened, interval_ns=interval_ns)]


def _run(peer: Peer, test: str, over: str, wait: str, **settings: object) -> Measurement:
    measured = measure(TESTS[test], peer, {"over": over, "wait": wait, **settings})
    if measured.ended:
        raise InputError(f"{test} --over {over}", measured.ended, "try again")
    return measured


def _judge_latency(bench: Bench, peer: Peer, case: Case) -> Finding:
    """Half a round trip, with plain sockets before and after it: the host may change meanwhile."""
    settings: dict[str, object] = {"count": case.messages, "warmup": 10}
    if case.interval_ns:
        settings["rate"] = 1e9 / case.interval_ns
    with use_cpus(_split_cpus()[0]), use_realtime():
        crossings_ns = _exchange_plainly(bench, case)
        bench.forwarder.set_path(Path(delay_ns=case.delay_ns))
        measured = _run(peer, case.test, case.over, case.wait, **settings)
        report = bench.forwarder.read_report()
        crossing_ns = median([*crossings_ns, *_exchange_plainly(bench, case)])
    bench.forwarder.set_path(Path())
    half_rtt = measured.record.quantities["half_rtt"]
    port = _find_port(report, (bench.timed, bench.streamed))
    round_trips = report.match_round_trips(port, case.messages)
    if len(round_trips) < case.messages // 2 or not isinstance(half_rtt, Distribution):
        problem = f"the forwarder has seen {len(round_trips)} round trips of {case.messages}"
        raise InputError(f"{case.test} --over {case.over}", problem, "try again")
    return Finding(
        over=case.over,
        wait=case.wait,
        estimator=case.test,
        injected=case.delay_ns,
        truth=(median(round_trips) + crossing_ns) / 2,
        measured=half_rtt.quantile(0.5) / 1e3,
        unit="ns",
        crossing_ns=crossing_ns,
        late_ns=_summarise_lateness(report.late_ns),
        missed=report.missed,
    )


def _find_port(report: Report, servers: Sequence[LocalServer]) -> str:
    """Where the test's messages went: the busiest port but those of the control connections."""
    control = [str(server.port) for server in servers]
    counts = {p: len(times) for p, times in report.answers_ns.items() if p not in control}
    return max(counts, key=counts.__getitem__, default="")


def _summarise_lateness(late_ns: Sequence[int]) -> tuple[int, int]:
    ordered = sorted(late_ns)
    return ordered[len(ordered) // 2], ordered[(99 * len(ordered)) // 100]


def _judge_rate(bench: Bench, peer: Peer, over: str, wait: str) -> Finding:
    """Payload per second through a link whose rate counts IP packets."""
    settings: dict[str, object] = {"duration": f"{STREAM_S:g}s", "warmup": 20}
    if over == "udp":
        settings |= {"size": DATAGRAM_BYTES, "rate": OFFERED * RATE_BPS / (8 * DATAGRAM_BYTES)}
        share = DATAGRAM_BYTES / (DATAGRAM_BYTES + UDP_BYTES + IP_BYTES)
    else:
        if _find_provider(over):
            settings["size"] = EAGER_BYTES
        share = (MTU_BYTES - IP_BYTES - TCP_BYTES) / MTU_BYTES
    path = Path(delay_ns=DELAYS_NS[0], rate_bps=RATE_BPS)
    return _judge_stream(bench, peer, path, ("rate", over, wait), settings, RATE_BPS * share)


def _judge_loss(bench: Bench, peer: Peer, over: str, wait: str) -> Finding:
    """The share of datagrams that never arrive."""
    rate = RATE_BPS / (16 * DATAGRAM_BYTES)
    settings = {"size": DATAGRAM_BYTES, "rate": rate, "duration": f"{STREAM_S:g}s", "warmup": 20}
    path = Path(delay_ns=DELAYS_NS[0], lose_every=LOSE_EVERY)
    return _judge_stream(bench, peer, path, ("loss", over, wait), settings, 100 / LOSE_EVERY)


def _judge_stream(
    bench: Bench,
    peer: Peer,
    path: Path,
    case: tuple[str, str, str],
    settings: dict[str, object],
    truth: float,
) -> Finding:
    estimator, over, wait = case
    bench.forwarder.set_path(path)
    record = _run(peer, "bandwidth", over, wait, **settings).record
    report = bench.forwarder.read_report()
    bench.forwarder.set_path(Path())
    quantity = record.quantities["throughput" if estimator == "rate" else "loss"]
    assert isinstance(quantity, Scalar)
    return Finding(
        over=over,
        wait=wait,
        estimator=estimator,
        injected=path.rate_bps if estimator == "rate" else 100 / path.lose_every,
        truth=truth,
        measured=quantity.value,
        unit=quantity.unit,
        late_ns=_summarise_lateness(report.late_ns),
        missed=report.missed,
        idle=report.idle_ns / (report.idle_ns + report.busy_ns or 1),
    )


# ---- The client's kernel and library ----------------------------------------------------------


def _find_provider(over: str) -> str:
    """libfabric's name in `ofi:tcp`; empty over sockets."""
    transport, _, provider = over.partition(":")
    return provider if transport == "ofi" else ""


def _exchange_plainly(bench: Bench, case: Case) -> list[int]:
    """What plain round trips spend in the client's kernel, and in libfabric where that is judged.

    They send as far apart and wait as the test does, and share nothing with the loops that are
    judged. The forwarder knows which part of their round trips is not the client's.
    """
    messages = max(20, case.messages // 2)
    exchange = PlainExchange(
        first=ECHO_SPINS if case.wait == "spin" else ECHO_SLEEPS,
        messages=messages,
        spins=case.wait == "spin",
        idle_ns=case.interval_ns and case.interval_ns - 2 * case.delay_ns,
        awake_ns=SPIN_NS,
        timeout_ns=round(ECHO_S * 1e9),
    )
    bench.forwarder.set_path(Path(delay_ns=case.delay_ns))
    if provider := _find_provider(case.over):
        peer = bench.fabric_echoes[case.wait]
        fabric = PlainFabric(provider, CLIENT, spins=case.wait == "spin")
        round_trips_ns = fabric.exchange(peer, exchange)
        (port,) = struct.unpack_from(">H", peer, 2)  # of a sockaddr
    else:
        round_trips_ns, port = _exchange_by_socket(case, exchange), ECHO_PORT
    report = bench.forwarder.read_report()
    forwarded_ns = report.match_round_trips(str(port), len(round_trips_ns))
    if not len(forwarded_ns) == len(round_trips_ns) == messages:
        counts = f"{len(round_trips_ns)} ended, the forwarder has seen {len(forwarded_ns)}"
        problem = f"of {messages} round trips {counts}"
        raise InputError("path", problem, "try again")
    return [whole - path for whole, path in zip(round_trips_ns, forwarded_ns, strict=True)]


def _exchange_by_socket(case: Case, exchange: PlainExchange) -> list[int]:
    kind = socket.SOCK_DGRAM if case.over == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.connect((SERVER, ECHO_PORT))
        # Not Python's timeout: this socket is used by the core alone.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(ECHO_S), 0))
        sock.setblocking(case.wait == "block")
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return exchange_plainly(sock.fileno(), exchange)


def echo_fabric(provider: str, spins: bool) -> NoReturn:
    """In a process of its own: sends back what comes by libfabric."""
    with use_realtime():
        fabric = PlainFabric(provider, SERVER, spins=spins)
        print(fabric.name().hex(), flush=True)
        fabric.echo()


def echo() -> None:
    """In a process of its own: sends back what comes by UDP, and on one connection of TCP.

    It waits for the next message as the last one asks, and has the priority of the test's peer.
    """
    with (
        use_realtime(),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.create_server((SERVER, ECHO_PORT)) as listener,
    ):
        datagrams.bind((SERVER, ECHO_PORT))
        print(flush=True)
        stream: socket.socket | None = None
        while True:
            ready, _, _ = select.select(
                [datagrams, listener, *([stream] if stream else [])], [], []
            )
            for sock in ready:
                if sock is listener:
                    stream = listener.accept()[0]
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                elif not _send_back(sock):
                    stream = None


def _send_back(sock: socket.socket) -> bool:
    """Answers what is there, and while it is to spin what follows; False at the end of a stream."""
    sock.setblocking(False)
    answered_ns, spins = time.monotonic_ns(), True
    while spins and time.monotonic_ns() - answered_ns < ECHO_SPIN_NS:
        with suppress(BlockingIOError):
            data, sender = sock.recvfrom(1 << 16)
            if not data:
                return False
            sock.sendto(data, sender) if sender else sock.sendall(data)
            answered_ns, spins = time.monotonic_ns(), data[0] == ECHO_SPINS
    return True
