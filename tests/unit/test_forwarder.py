"""The forwarder: what each frame meets, and what it reports of itself."""

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise

import pytest
from needs import need_namespaces

from weft._core import PlainExchange, PlainFabric, exchange_plainly
from weft.cli import main
from weft.errors import InputError
from weft.measure import path_accuracy
from weft.measure.forwarder import TCP, UDP, Flow, Path, Report, _Direction, parse_flow
from weft.measure.path_accuracy import Finding, check_over, judge_transport


def frame(protocol: int, payload: int, ports: tuple[int, int] = (4000, 7), options: int = 0):
    """An Ethernet frame of RFC 894, 791, 768 and 793, with a header of 20 + `options` bytes."""
    transport = struct.pack(">HH", *ports) + (
        bytes(4) if protocol == UDP else bytes(8) + bytes([(5 + 3) << 4]) + bytes(19)
    )
    total = 20 + options + len(transport) + payload
    ip = struct.pack(">BBHIBB", 0x45 + options // 4, 0, total, 0, 64, protocol) + bytes(
        10 + options
    )
    return bytes(12) + b"\x08\x00" + ip + transport + bytes(payload)


@pytest.mark.parametrize("protocol", [UDP, TCP])
@pytest.mark.parametrize("options", [0, 8])
def test_the_flow_of_a_frame_is_the_servers_port_and_its_payload(protocol, options):
    sent = frame(protocol, 64, options=options)
    assert parse_flow(sent, to_server=True) == Flow(7, 64)
    assert parse_flow(sent, to_server=False) == Flow(4000, 64)


def test_padding_is_no_payload_and_other_frames_have_no_flow():
    assert parse_flow(frame(TCP, 0) + bytes(6), to_server=True) == Flow(7, 0)
    assert parse_flow(bytes(12) + b"\x08\x06" + bytes(28), to_server=True) is None
    assert parse_flow(frame(socket.IPPROTO_ICMP, 64), to_server=True) is None


class Cable:
    """A direction between two pairs of sockets, with its report."""

    def __init__(self, path: Path, *, to_server: bool = True) -> None:
        self.near, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        sink, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sockets = self.near, source, sink, self.far
        self.far.setblocking(False)
        self.path, self.report = path, Report()
        self.direction = _Direction(source, sink, to_server=to_server)

    def send(self, *frames: bytes) -> list[int]:
        """Their due times, from now."""
        now_ns = time.time_ns()
        for data in frames:
            self.near.send(data)
            self.direction.take(self.path, self.report)
        return [due_ns - now_ns for due_ns, *_ in self.direction.queue]


@pytest.fixture
def lay() -> Iterator[Callable[..., Cable]]:
    """Lays cables, and closes their sockets after the test."""
    with ExitStack() as stack:

        def lay_cable(path: Path, *, to_server: bool = True) -> Cable:
            cable = Cable(path, to_server=to_server)
            for sock in cable.sockets:
                stack.enter_context(sock)
            return cable

        yield lay_cable


def test_the_nth_datagram_of_each_n_is_lost_and_nothing_else(lay):
    cable = lay(Path(lose_every=3))
    cable.send(*(frame(kind, 10) for kind in (UDP, TCP, UDP, UDP, TCP, UDP, UDP, UDP)))
    assert (cable.report.packets, cable.report.lost) == (6, 2)
    assert len(cable.direction.queue) == 6
    back = lay(Path(lose_every=1), to_server=False)
    back.send(frame(UDP, 10))
    assert (back.report.packets, back.report.lost) == (0, 0)


def test_frames_follow_each_other_at_the_rate_and_then_take_the_delay(lay):
    # An IP packet of 20 + 8 + 972 = 1000 bytes takes 1 ms at 8 Mb/s.
    cable = lay(Path(rate_bps=8e6, delay_ns=5_000_000))
    due_ns = cable.send(*[frame(UDP, 972)] * 3)
    assert [b - a for a, b in pairwise(due_ns)] == [1_000_000] * 2
    assert 6_000_000 <= due_ns[0] < 7_000_000
    assert cable.report.busy_ns == 3_000_000
    assert cable.report.idle_ns == 0
    time.sleep(0.005)
    cable.send(frame(UDP, 972))
    assert 1_000_000 < cable.report.idle_ns < 50_000_000


def test_a_full_queue_loses_datagrams_but_no_segments(lay):
    cable = lay(Path(rate_bps=1e6, limit_bytes=3000))
    cable.send(*[frame(UDP, 972)] * 5)
    assert cable.report.lost == 2  # 1014 bytes each: the third goes beyond the limit
    cable.send(*[frame(TCP, 972)] * 5)
    assert cable.report.lost == 2


def test_frames_leave_in_order_when_due_and_the_report_has_how_late(lay):
    cable = lay(Path(delay_ns=20_000_000))
    cable.send(frame(UDP, 1), frame(UDP, 2))
    cable.direction.release(time.time_ns(), cable.report)
    with pytest.raises(BlockingIOError):
        cable.far.recv(2000)
    time.sleep(0.03)
    cable.direction.release(time.time_ns(), cable.report)
    assert [parse_flow(cable.far.recv(2000), to_server=True) for _ in "12"] == [
        Flow(7, 1),
        Flow(7, 2),
    ]
    assert all(9_000_000 < late_ns < 1e9 for late_ns in cable.report.late_ns)
    assert len(cable.report.requests_ns["7"]) == 2


def test_round_trips_are_matched_from_the_last_message_back():
    report = Report(requests_ns={"7": [1, 100, 200, 300]}, answers_ns={"7": [105, 207, 309]})
    assert report.match_round_trips("7", 3) == [5, 7, 9]
    assert report.match_round_trips("8", 3) == []


def finding(**changes: object) -> Finding:
    fields = {
        "over": "udp",
        "wait": "spin",
        "estimator": "latency",
        "injected": 1e6,
        "truth": 1.02e6,
        "measured": 1.03e6,
        "unit": "ns",
        "late_ns": (2000, 9000),
    }
    return Finding(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "verdict", "is_accurate"),
    [
        ({}, "ok", True),
        ({"measured": 1.02e6 * 1.029}, "ok", True),
        ({"measured": 1.02e6 * 1.031}, "off", False),
        ({"measured": 1.02e6 * 0.969}, "off", False),
        ({"late_ns": (31_000, 50_000)}, "ok, forwarder late", True),
        ({"missed": 2}, "off, 2 frames missed", False),
        ({"unit": "b/s", "injected": 1, "idle": 0.02}, "ok, link idle 2.0 %", True),
    ],
)
def test_a_verdict_is_within_3_percent_and_names_what_the_path_did(changes, verdict, is_accurate):
    judged = finding(**changes)
    assert (judged.verdict, judged.is_accurate) == (verdict, is_accurate)


@pytest.mark.parametrize("over", ["ofi:shm", "ofi:udp", "verbs", "delay", "mpi", "nonsense"])
def test_transports_without_frames_to_forward_are_refused(over):
    with pytest.raises(InputError):
        check_over(over)


def test_the_command_ends_with_status_1_unless_all_is_accurate(monkeypatch, capsys):
    findings = [finding(), finding(measured=2e6)]
    monkeypatch.setattr("weft.cli.measure.judge_transport", lambda *_: iter(findings[:1]))
    assert main(["accuracy", "--over", "udp"]) == 0
    monkeypatch.setattr("weft.cli.measure.judge_transport", lambda *_: iter(findings))
    assert main(["accuracy", "--over", "udp", "--json"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "1.02 ms" in line and "+0.98 %" in line]
    shown = json.loads(lines[-1])
    assert shown["verdict"] == "off"
    assert shown["error"] == pytest.approx(2 / 1.02 - 1)
    assert {name: shown[name] for name in ("unit", "over")} == {"unit": "ns", "over": "udp"}
    assert json.loads(json.dumps(asdict(findings[1]))).items() <= shown.items()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--delay", "1ms"], "--delay: is of real transports"),
        (["--wait", "spin"], "--wait: is of real transports"),
        (["--over", "udp", "--delay", "1us"], "--delay: 1000 ns is as short as"),
        (["--over", "ofi:shm"], "ofi:shm: the forwarder sees no message and answer of it"),
    ],
)
def test_what_cannot_be_judged_is_one_line_with_status_2(words, message, capsys):
    assert main(["accuracy", *words]) == 2
    assert message in capsys.readouterr().err


def test_real_datagrams_have_the_injected_delay_and_loss():
    need_namespaces(short=True)
    findings = {f.estimator: f for f in judge_transport("udp", [2_000_000], ["block"])}
    assert set(findings) == {"latency", "paced", "rate", "loss"}
    for name in ("latency", "paced"):
        # The way to the forwarder and back adds to the 2 ms, and is in the truth.
        assert 2e6 < findings[name].truth < 2.4e6
        assert findings[name].is_accurate, findings[name]
    assert findings["loss"].is_accurate, findings["loss"]
    assert findings["rate"].measured <= 1.03 * findings["rate"].truth
    assert path_accuracy.TOLERANCE == 0.03


@pytest.mark.parametrize("spins", [False, True])
def test_plain_round_trips_take_at_least_what_the_peer_takes_and_end_at_its_silence(spins):
    pause_s, answered = 0.02, 3
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def answer() -> None:
        for _ in range(answered):
            message = far.recv(100)
            time.sleep(pause_s)
            far.send(message)

    with near, far:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
        near.setblocking(not spins)
        peer = threading.Thread(target=answer)
        peer.start()
        exchange = PlainExchange(
            first=7,
            messages=answered + 2,
            spins=spins,
            idle_ns=1000,
            awake_ns=0,
            timeout_ns=1_000_000_000,
        )
        times_ns = exchange_plainly(near.fileno(), exchange)
        peer.join()
        assert far.recv(100) == bytes([7, *bytes(63)])  # the one without an answer
    assert len(times_ns) == answered
    assert min(times_ns) >= pause_s * 1e9


@pytest.mark.parametrize("spins", [False, True])
def test_plain_round_trips_of_libfabric_are_one_time_each_after_that_of_the_connection(spins):
    program = "import sys, weft._core as c; f = c.PlainFabric('tcp', '127.0.0.1', spins=SPINS); "
    program = program.replace("SPINS", str(spins)) + "print(f.name().hex(), flush=True); f.echo()"
    try:
        fabric = PlainFabric("tcp", "127.0.0.1", spins=spins)
    except InputError as error:
        pytest.skip(f"ofi:tcp: {error}")
    exchange = PlainExchange(
        first=0, messages=5, spins=spins, idle_ns=1000, awake_ns=0, timeout_ns=10_000_000_000
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as echo:
        try:
            times_ns = fabric.exchange(bytes.fromhex(echo.stdout.readline().decode()), exchange)
        finally:
            echo.kill()
    assert len(times_ns) == 5
    assert all(0 < time_ns < 10e9 for time_ns in times_ns)


def test_the_client_has_a_processor_to_itself_where_there_are_two(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 1, 2})
    assert path_accuracy._split_cpus() == ({3}, {1, 2})
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    assert path_accuracy._split_cpus() == ({3}, {3})
