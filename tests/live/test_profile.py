"""`weft profile` of a real transfer on a testbed: measured, interrupted, killed, failing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from needs import need_namespaces
from restored import Root, roots, wait_capped, wait_restored

from weft.errors import InputError
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.host.testbed.wiring import Wiring
from weft.sensitivity.application_table import AppTable
from weft.sensitivity.place import open_testbed_place

NAME = "live-profile"
RATE_BPS = 50_000_000
BYTES = 5_000_000
LIMIT_S = 120

SINK = """
import socket, threading
def source():
    with socket.create_server(("", 5001)) as server:
        while True:
            with server.accept()[0] as connection:
                connection.sendall(bytes(int.from_bytes(connection.recv(8), "big")))
threading.Thread(target=source, daemon=True).start()
with socket.create_server(("", 5000)) as server:
    print("listening", flush=True)
    while True:
        with server.accept()[0] as connection:
            left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
            while left and (size := len(connection.recv(1 << 18))):
                left -= size
            connection.sendall(b"1")
"""
FETCH = """
import socket, sys
size = int(sys.argv[1])
with socket.create_connection(("h2", 5001)) as connection:
    connection.sendall(size.to_bytes(8, "big"))
    while size:
        size -= len(connection.recv(1 << 18))
"""
SEND = """
import socket, sys
size = int(sys.argv[1])
with socket.create_connection(("h2", 5000)) as connection:
    connection.sendall(size.to_bytes(8, "big"))
    connection.sendall(bytes(size))
    assert connection.recv(1) == b"1"
"""
TRANSFER = (sys.executable, "-c", SEND, str(BYTES))


@dataclass(frozen=True, slots=True)
class Bench:
    """A testbed with a sink on h2, what its links had, and an empty table."""

    bed: Testbed
    before: list[Root]
    table: Path

    def argv(
        self,
        *words: str,
        place: tuple[str, ...] = ("--testbed", NAME),
        command: tuple[str, ...] = TRANSFER,
    ) -> list[str]:
        start = [sys.executable, "-m", "weft.cli", "profile", "--name", "transfer"]
        plan = ["--percent", "25,50,100", "--repeat", "2", "--table", str(self.table)]
        return [*start, *plan, *words, *place, "--", *command]

    def profile(
        self, *words: str, command: tuple[str, ...] = TRANSFER
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words, command=command),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def is_restored(self) -> bool:
        return roots(self.bed.all_ends()) == self.before


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    need_namespaces()
    made, _ = persistent.build_testbed(NAME, Wiring(hosts=("h1", "h2"), rate_bps=RATE_BPS))
    try:
        with made.spawn("h2", [sys.executable, "-c", SINK], stdout=subprocess.PIPE) as sink:
            assert sink.stdout is not None
            assert sink.stdout.readline() == b"listening\n"
            yield made
            sink.kill()
    finally:
        persistent.remove_testbed(NAME)


@pytest.fixture
def bench(bed: Testbed, tmp_path: Path) -> Bench:
    return Bench(bed, roots(bed.all_ends()), tmp_path / "table")


def started(bench: Bench, until: str) -> subprocess.Popen[str]:
    """A profile that has come so far that a line with these words was told."""
    process = subprocess.Popen(
        bench.argv(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if until in line:
            return process
    raise AssertionError(f"the profile ended with status {process.wait()}")


def test_a_transfer_takes_as_much_longer_as_its_link_is_slower(bench: Bench) -> None:
    done = bench.profile("--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "transfer"
    assert bench.is_restored()
    result = AppTable(bench.table).load("transfer")
    assert [path.name for path in bench.table.iterdir()] == ["transfer.json"]
    assert sorted({run.share for run in result.profile.runs}) == [0.25, 0.5, 1.0]
    for run in result.profile.runs:
        assert run.bytes is not None
        assert BYTES < run.bytes < 1.2 * BYTES
        assert run.sent_bytes is not None
        assert run.received_bytes is not None
        assert run.sent_bytes > BYTES
        assert run.received_bytes < 0.1 * BYTES
        assert run.completion > 8 * BYTES / (RATE_BPS * run.share) * 0.95
        assert run.cpu_s is not None
        assert run.cpu_s > 0
    # 0.8 s of sending, and what starting an interpreter takes beside it.
    assert 2.5 < float(result.convex.model.slowdown(0.25)) < 4.1
    assert result.traced is not None
    assert float(result.traced.model.slowdown(0.25)) == pytest.approx(
        float(result.convex.model.slowdown(0.25)), rel=0.2
    )


def test_interrupted_it_restores_and_goes_on_later(bench: Bench) -> None:
    process = started(bench, until="2 of 6")
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "2 of 6 runs are kept: repeat the command to continue" in message
    assert bench.is_restored()
    assert AppTable(bench.table).names() == ()
    done = bench.profile()
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("resumes after 2 of 6 runs\n")
    assert "first run" not in done.stderr
    assert len(AppTable(bench.table).load("transfer").profile.runs) >= 6


def test_killed_it_leaves_the_links_as_they_were_and_goes_on_later(bench: Bench) -> None:
    process = started(bench, until="1 of 6")
    wait_capped(bench.bed.all_ends(), bench.before)
    process.kill()
    process.communicate()
    wait_restored(bench.bed.all_ends(), bench.before)
    message = bench.profile().stderr
    assert message.startswith("resumes after ")
    assert AppTable(bench.table).names() == ("transfer",)


def test_what_cannot_be_profiled_is_one_line_and_leaves_nothing(bench: Bench) -> None:
    cases = {
        ("sh", "-c", "echo broken >&2; exit 3"): "sh, first run: exit status 3, after 'broken'",
        ("sleep", "60"): "sleep, first run: not finished after 1 s; raise --timeout",
        ("true",): "true: took 0.",
    }
    for command, message in cases.items():
        done = bench.profile("--timeout", "1", command=command)
        assert done.returncode == 2
        assert done.stderr.startswith(f"weft: {message}")
        assert done.stderr.count("\n") == 1
        assert bench.is_restored()
        assert not bench.table.exists()


def test_on_an_interface_what_cannot_be_started_is_one_line(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo no interpreter is named\n")
    script.chmod(0o755)
    place = ("--rate", "50M", "--interface", "eth0")
    argv = bench.argv(place=place, command=(str(script),))
    with bench.bed.spawn("h1", argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        _, message = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert message.decode().startswith(f"weft: {script}, first run: cannot be started: Exec format")
    assert message.count(b"\n") == 1
    assert bench.is_restored()
    assert not bench.table.exists()


def test_a_failure_half_way_keeps_the_runs_so_far_and_says_so(bench: Bench, tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    script = f"echo >> {mark}; test $(wc -l < {mark}) -lt 3 || exit 7; sleep 0.6"
    done = bench.profile(command=("sh", "-c", script))
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("weft: ")]
    assert "exit status 7; fix the command; 1 of 6 runs are kept" in error
    assert bench.is_restored()
    assert AppTable(bench.table).names() == ()


def test_a_share_of_a_slow_uplink_below_the_least_cap_is_refused() -> None:
    name = f"{NAME}-slow"
    need_namespaces()
    hosts = ("h1", "h2")
    persistent.build_testbed(
        name, Wiring(hosts=hosts, rate_bps=RATE_BPS, switches="two-hops", uplink_bps=100_000)
    )
    try:
        with open_testbed_place(name, None) as place:
            place.check_share(0.08)
            with pytest.raises(InputError, match="7 % of a link of 100 kb/s is below 8 kb/s"):
                place.check_share(0.07)
    finally:
        persistent.remove_testbed(name)


def test_a_dry_run_says_how_long_it_takes_and_changes_nothing(bench: Bench) -> None:
    done = bench.profile("--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    ahead = json.loads(done.stdout)
    assert ahead["runs"] == 6
    # 2 (0.8 + 1.6 + 3.2) s of sending and the first run
    assert 10 < ahead["least_s"] <= ahead["expected_s"] <= ahead["most_s"] < 30
    assert bench.is_restored()
    assert not bench.table.exists()


@pytest.mark.parametrize("only", [(), ("--sending-only",)], ids=["both", "sending"])
def test_of_a_named_interface_what_it_sends_is_capped(bench: Bench, only: tuple[str, ...]) -> None:
    argv = bench.argv(place=("--rate", "50M", *only, "--interface", "eth0"))
    with bench.bed.spawn("h1", argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        _, message = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, message.decode()
    assert bench.is_restored()
    result = AppTable(bench.table).load("transfer")
    place = "interfaces eth0, sending only" if only else "interfaces eth0"
    assert result.profile.machine["place"] == place
    assert result.profile.link_bps == RATE_BPS
    assert 2.5 < float(result.convex.model.slowdown(0.25)) < 4.1


def test_of_a_named_interface_what_it_receives_is_capped_too(bench: Bench) -> None:
    command = (sys.executable, "-c", FETCH, str(BYTES))
    argv = bench.argv(place=("--rate", "50M", "--interface", "eth0"), command=command)
    with bench.bed.spawn("h1", argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        _, message = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, message.decode()
    assert bench.is_restored()
    result = AppTable(bench.table).load("transfer")
    assert 2.5 < float(result.convex.model.slowdown(0.25)) < 4.1
