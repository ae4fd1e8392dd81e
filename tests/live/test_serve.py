"""`weft serve` and its clients: negotiation, roles, bounds, several at once, loss of a side."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from serve_process import (
    START_S,
    ServeProcess,
    echo_spec,
    is_alive,
    loop_of,
    ping,
    serving,
    still_serves,
    wait_until,
)

from weft import _core
from weft.cli import main
from weft.errors import InputError
from weft.measure import Channels, ChannelSpec, Peer, PeerLost, PeerStopped, open_peer
from weft.measure.peer.channel_spec import encode_channel
from weft.measure.peer.negotiation import Connect, Connected, Open, Opened
from weft.records import read_records
from weft.wire import PROTOCOL, Decoder, Failure, FrameReader, encode
from weft.wire.protocol import Hello

TOKEN = "correct horse battery staple"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("serve")) as process:
        yield process


@pytest.fixture
def peer(server):
    with open_peer(server.where) as opened:
        yield opened


class LongTest:
    """A ping-pong that only something else can end; `kill` is sent to a process meanwhile."""

    def __init__(self) -> None:
        self.result: _core.LatencyResult | None = None
        self.seconds = 0.0

    def run(self, peer: Peer, transport: str = "tcp", kill: tuple[int, int] | None = None) -> None:
        with peer.open([echo_spec(transport)]) as channels:
            channels.start()
            threads = [threading.Thread(target=_when_busy, args=(channels, *kill))] if kill else []
            for thread in threads:
                thread.start()
            began = time.monotonic()
            try:
                loop = loop_of(duration_ns=60_000_000_000)
                self.result = _core.ping_pong(channels.endpoints[0], loop, channels.stop)
                channels.finish()
            finally:
                self.seconds = time.monotonic() - began
                for thread in threads:
                    thread.join()

    def kept_something(self) -> bool:
        return self.result is not None and self.result.latency.count > 0


def _when_busy(channels: Channels, pid: int, number: int) -> None:
    wait_until(lambda: channels.stop.done > 20, "messages flow")
    os.kill(pid, number)


# ---- Tests over one connection ----------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_one_session_serves_one_test_after_another(peer, transport):
    for size in (8, 64, 1000):
        ping(peer, transport, size=size)


def test_a_peer_says_what_it_is_and_has(peer):
    assert peer.facts["host"] == socket.gethostname()
    assert peer.facts["clock_error_ppm"] >= 0
    assert {a["transport"] for a in peer.availability if a["available"]} >= {"tcp", "udp"}


def test_both_sides_describe_what_they_opened(peer):
    with peer.open([echo_spec()]) as channels:
        ((ours, theirs),) = channels.descriptions
    assert ours["local"] == theirs["local"] == "127.0.0.1"


def test_a_sink_counts_every_message_that_a_stream_sends(peer):
    config = {
        "transport": "tcp",
        "send_bytes": 256,
        "receive_bytes": 0,
        "depth": 8,
        "server": {"receive_depth": 8},
    }
    spec = ChannelSpec(config=config, role="sink", loop={"bytes": 256, "validate": True})
    with peer.open([spec, spec]) as channels:
        channels.start()
        loop = loop_of(256, count=500)
        sent = _core.stream(channels.endpoints, loop, channels.stop, window=8).sent
        (counts,) = channels.finish(sent)
    assert sent == 1000
    assert (counts["received"], counts["corrupted"], counts["lost"]) == (1000, 0, 0)


def test_sinks_of_several_threads_drain_each_their_own(peer):
    config = {"transport": "tcp", "send_bytes": 64, "receive_bytes": 0, "depth": 4}
    specs = [ChannelSpec(config=config, role="sink", thread=n) for n in (3, 1)]
    with peer.open(specs) as channels:
        channels.start()
        for endpoint, count in zip(channels.endpoints, (30, 10), strict=True):
            _core.stream([endpoint], loop_of(count=count, validate=False), channels.stop, window=4)
        counts = channels.finish([10, 30])  # in the order of thread numbers
    assert [c["received"] for c in counts] == [10, 30]


def test_a_duplex_loop_tells_what_it_sent_and_received(peer):
    config = {"transport": "tcp", "depth": 4, "receive_depth": 4}
    spec = ChannelSpec(
        config=config, role="duplex", loop={"count": 200, "bytes": 64}, options={"window": 4}
    )
    with peer.open([spec]) as channels:
        channels.start()
        loop = loop_of(count=200, validate=False)
        sent, received = _core.duplex(channels.endpoints, loop, channels.stop, window=4)
        (counts,) = channels.finish(sent.sent)
    assert (sent.sent, received.received) == (200, 200)
    assert (counts["received"], counts["sender"]["sent"]) == (200, 200)


def test_a_transfer_is_acknowledged(peer):
    config = {
        "transport": "tcp",
        "send_bytes": 4096,
        "receive_bytes": 8,
        "depth": 4,
        "receive_depth": 4,
    }
    spec = ChannelSpec(config=config, role="transfer", loop={"bytes": 4096, "validate": True})
    with peer.open([spec]) as channels:
        channels.start()
        loop = loop_of(4096, count=100)
        endpoint = channels.endpoints[0]
        counts = _core.transfer_send(endpoint, loop, channels.stop, outstanding=4, signal_every=1)
        (theirs,) = channels.finish(100)
    assert (counts.sent, counts.stopped, counts.error) == (100, False, "")
    assert (theirs["received"], theirs["corrupted"]) == (100, 0)


def test_channels_may_be_left_at_any_point(peer):
    peer.open([echo_spec()]).close()
    with peer.open([echo_spec()]) as channels:
        channels.start()
    ping(peer)


def test_a_peer_has_one_test_at_a_time(peer):
    with peer.open([echo_spec()]), pytest.raises(InputError, match="has channels open"):
        peer.open([echo_spec()])
    ping(peer)


def test_a_private_server_lives_as_long_as_its_peer():
    with open_peer("local") as peer:
        pid = peer.facts["pid"]
        ping(peer)
    wait_until(lambda: not is_alive(pid), "the server's process ends")


def test_the_server_itself_has_one_thread_and_no_fabric_library(server):
    still_serves(server)
    assert os.listdir(f"/proc/{server.pid}/task") == [str(server.pid)]
    mapped = Path(f"/proc/{server.pid}/maps").read_text()
    assert "libfabric" not in mapped
    assert "libibverbs" not in mapped


# ---- What does not fit ------------------------------------------------------------------------


def test_both_sides_refuse_what_does_not_fit_and_go_on(server, peer):
    with pytest.raises(InputError, match=r"2 problems: \(1\) channel 1.*\(2\) channel 0"):
        peer.open([echo_spec(depth=1 << 20), echo_spec(node="a")])
    wrong = {"config": {"transport": "tcp", "depth": 0}, "role": "x", "loop": {}, "options": {}}
    peer.send(Open([wrong | {"thread": 0}]))
    with pytest.raises(InputError, match="2 problems"):
        peer.receive_reply(Opened)
    with pytest.raises(InputError, match="ofi:none: not available"):
        peer.open([echo_spec("ofi:none")])
    ping(peer)
    still_serves(server)


def test_many_things_that_do_not_fit_are_told_in_a_bounded_answer(peer):
    wrong = encode_channel(echo_spec(depth=0))
    peer.send(Open([wrong] * 4000))
    with pytest.raises(InputError, match=r"9 problems: .*\(9\) channels: 3993 more"):
        peer.receive_reply(Opened)
    ping(peer)


def test_a_size_over_the_limit_is_refused_by_both_sides(tmp_path):
    with serving(tmp_path, "--max-size", "1 KiB") as server, open_peer(server.where) as peer:
        assert peer.limits.size_bytes == 1024
        with pytest.raises(
            InputError, match=r"message bytes 1025 exceeds .* limit 1024.*--max-size"
        ):
            peer.open([echo_spec(size=1025)])
        peer.send(Open([encode_channel(echo_spec(size=1025))]))
        with pytest.raises(
            InputError, match=r"message bytes 1025 exceeds .* limit 1024.*--max-size"
        ):
            peer.receive_reply(Opened)
        ping(peer, size=1024)


def test_another_version_is_told_both_versions(server):
    with socket.create_connection(("127.0.0.1", server.port), 5) as sock:
        sock.sendall(encode(Hello(99, "9.9", "0" * 64)))
        (refusal,) = FrameReader(Decoder(Failure), 4096).feed(sock.recv(4096))
        assert sock.recv(1) == b""
    assert refusal.problem.startswith(
        f"the client speaks 99 (weft 9.9), the server {PROTOCOL} (weft "
    )
    assert "install the same weft" in refusal.remedy


def test_a_server_on_ipv6_serves_data_on_ipv6(tmp_path):
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    options = ("--listen", "[::1]:0")
    with serving(tmp_path, *options) as server, open_peer(f"[::1]:{server.port}") as peer:
        with peer.open([echo_spec()]) as channels:
            assert channels.descriptions[0][1]["local"] == "::1"
        ping(peer, "udp")


def test_a_wrong_operation_is_told_before_the_test(peer):
    spec = ChannelSpec(config={"transport": "tcp"}, role="echo", loop={"op": "shout"})
    with pytest.raises(InputError, match="shout"):
        peer.open([spec])
    ping(peer)


def test_a_peer_that_connects_to_nothing_is_told_so_in_time(peer):
    peer.send(Open([encode_channel(echo_spec())]))
    peer.receive_reply(Opened)
    began = time.monotonic()
    peer.send(Connect([b""]))
    with pytest.raises(InputError, match="tcp"):
        peer.receive_reply(Connected, 10)
    assert time.monotonic() - began < 10
    ping(peer)


def test_nobody_there_says_how_to_start_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"{where}: no weft serve there; start it.*weft serve"):
            open_peer(where)


def test_something_else_there_is_told():
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(InputError, match="speaks SSH, not weft"):
            open_peer(f"127.0.0.1:{other.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize("where", ["", "host:port", "host:99999", ":1", "[::1"])
def test_what_is_no_address_is_refused(where):
    with pytest.raises(InputError, match=r"is not HOST\[:PORT\]"):
        open_peer(where)


# ---- Who may come -----------------------------------------------------------------------------


def test_a_token_is_needed_and_its_proof_is_not_reusable(tmp_path):
    with serving(tmp_path, token=TOKEN) as server:
        with pytest.raises(InputError, match="needs a token"):
            open_peer(server.where)
        with pytest.raises(InputError, match="not the one of this server"):
            open_peer(server.where, b"x" * 20)
        still_serves(server, token=TOKEN.encode())
        assert server.logged("refused: token: not the one")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--listen", "0.0.0.0"), "a token is needed.*umask 077.*--token-file"),
        (("--listen", "127.0.0.1", "--listen", "0.0.0.0:1"), "a token is needed"),
        (("--listen", "nowhere.invalid"), "--listen nowhere.invalid"),
        (("--max-sessions", "none"), "is not a count"),
        (("--max-size", "8"), "is not a size"),
        (("--token-file", "/nonexistent"), "No such file"),
        (("--listen", "127.0.0.1:99999"), "is not HOST"),
    ],
)
def test_a_server_that_must_not_start_says_why(capsys, monkeypatch, options, problem):
    monkeypatch.delenv("WEFT_TOKEN", raising=False)
    assert main(["serve", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(problem, line)


def test_an_open_server_needs_the_owner_s_bounds(capsys, monkeypatch):
    monkeypatch.setenv("WEFT_TOKEN", TOKEN)
    assert main(["serve", "--listen", "0.0.0.0", "--max-size", "8 MiB"]) == 2
    assert "bounds are needed: --max-duration, --max-rate" in capsys.readouterr().err


def test_a_taken_port_is_told(server, capsys):
    assert main(["serve", "--listen", server.where]) == 2
    assert "Address already in use" in capsys.readouterr().err


# ---- Bounds while a test runs -----------------------------------------------------------------


def test_a_test_that_lasts_too_long_is_ended_and_told(tmp_path):
    test = LongTest()
    with serving(tmp_path, "--max-duration", "3 s") as server, open_peer(server.where) as peer:
        with pytest.raises(PeerStopped, match=r"its limit is 3 s; .*--max-duration"):
            test.run(peer)
        assert test.kept_something()
        ping(peer)


def test_a_test_that_is_too_fast_is_ended_and_told(tmp_path):
    test = LongTest()
    with serving(tmp_path, "--max-rate", "1 kb/s") as server, open_peer(server.where) as peer:
        with pytest.raises(PeerStopped, match=r"its limit is 1000 b/s; .*--max-rate"):
            test.run(peer)
        assert test.kept_something()


def test_more_clients_than_allowed_are_told_and_may_come_later(tmp_path):
    with serving(tmp_path, "--max-sessions", "2") as server:
        with open_peer(server.where) as one, open_peer(server.where):
            with pytest.raises(InputError, match=r"has 2 sessions, its limit; .*--max-sessions"):
                open_peer(server.where)
            ping(one)
        wait_until(lambda: not server.children(), "both sessions have ended")
        still_serves(server)


def test_several_clients_are_served_at_the_same_time(server):
    """Each waits, inside its test, until all are inside theirs."""
    everyone_inside = threading.Barrier(4, timeout=20)
    errors: list[BaseException] = []

    def client() -> None:
        try:
            with open_peer(server.where) as peer, peer.open([echo_spec()]) as channels:
                channels.start()
                everyone_inside.wait()
                loop = loop_of(count=200)
                result = _core.ping_pong(channels.endpoints[0], loop, channels.stop)
                assert result.counts.received == 200
                channels.finish()
        except (AssertionError, InputError, PeerLost, threading.BrokenBarrierError) as error:
            errors.append(error)

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []


# ---- Loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_killed_session_is_told_and_what_was_measured_is_kept(server, transport):
    test = LongTest()
    with open_peer(server.where) as peer:
        kill = (int(peer.facts["pid"]), signal.SIGKILL)
        with pytest.raises(PeerLost, match="peer lost"):
            test.run(peer, transport, kill)
        assert test.seconds < 10
        assert test.kept_something()
        with pytest.raises(PeerLost):
            peer.open([echo_spec()])
    assert server.logged("killed by SIGKILL")
    still_serves(server)


def test_a_session_that_hangs_is_noticed_by_its_silence(server):
    test = LongTest()
    with open_peer(server.where) as peer:
        pid = int(peer.facts["pid"])
        with pytest.raises(PeerLost, match="silent for 6 s"):
            test.run(peer, kill=(pid, signal.SIGSTOP))
        assert test.seconds < 10
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not is_alive(pid), "the session ends once it can")
    still_serves(server)


def test_a_server_that_ends_tells_its_clients(tmp_path):
    server = ServeProcess(tmp_path)
    with open_peer(server.where) as peer, pytest.raises(PeerLost, match="server: is ending"):
        LongTest().run(peer, kill=(server.pid, signal.SIGINT))
    assert server.process.wait(10) == 0


def test_a_killed_server_takes_its_sessions_with_it(tmp_path):
    server = ServeProcess(tmp_path)
    with open_peer(server.where) as peer:
        ping(peer)
        children = server.children()
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in children), "no orphan")
        with pytest.raises(PeerLost):
            ping(peer)


CLIENT = """
import sys, threading
sys.path.insert(0, sys.argv[2])
from serve_process import echo_spec, loop_of, wait_until
from weft import _core
from weft.measure import open_peer
with open_peer(sys.argv[1]) as peer, peer.open([echo_spec()]) as channels:
    def tell():
        wait_until(lambda: channels.stop.done > 20, "messages flow")
        print("running", flush=True)
    channels.start()
    threading.Thread(target=tell).start()
    loop = loop_of(duration_ns=60_000_000_000)
    result = _core.ping_pong(channels.endpoints[0], loop, channels.stop)
    counts = channels.finish()
    print(channels.interrupted, result.latency.count > 0, counts[0]["received"] > 0, flush=True)
"""


def client_process(where: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLIENT, where, str(Path(__file__).parents[1] / "support")]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "running\n"
    return client


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_command_whose_peer_dies_writes_what_it_has_and_says_so(server, tmp_path):
    output = tmp_path / "record.jsonl"
    command = ["latency", server.where, "--over", "tcp", "--duration", "60 s", "-o", str(output)]
    client = subprocess.Popen(
        [sys.executable, "-m", "weft.cli", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    (session,) = wait_until(server.children, "a session", START_S)
    before = cpu_seconds(session)
    wait_until(lambda: cpu_seconds(session) > before + 0.2, "its loop spins", START_S)
    os.kill(session, signal.SIGKILL)
    began = time.monotonic()
    _, errors = client.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert client.returncode == 1, errors
    (record,) = read_records(output).records
    assert any("peer lost" in note for note in record.notes), record.notes


def test_a_killed_client_frees_its_session(server):
    client = client_process(server.where)
    (session,) = wait_until(server.children, "a session")
    client.kill()
    client.communicate()
    wait_until(lambda: not is_alive(session), "the session ends")
    assert server.logged("client lost")
    still_serves(server)


@pytest.mark.parametrize("kind", ["persistent", "local"])
def test_ctrl_c_ends_the_loop_and_keeps_what_was_measured(server, kind):
    client = client_process(server.where if kind == "persistent" else "local")
    client.send_signal(signal.SIGINT)
    output, _ = client.communicate(timeout=10)
    assert output == "True True True\n"
    assert client.returncode == 0


def test_a_client_that_says_nothing_is_let_go(server):
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.settimeout(10)
        assert silent.recv(1) == b""
    assert server.logged("said nothing for 5 s")
