"""`weft corun` of a small pair on a testbed: marks, queues, slowdowns, interrupts, kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from needs import need_namespaces
from restored import Root, roots, wait_restored
from traffic import watched

from weft.corun.rounds import EQUAL, LEND, ONE, WEFT, application_dscp, build_schemes
from weft.corun.run_rounds import Job, open_testbed_runner
from weft.host.net import marking
from weft.host.net.caps import change_ends
from weft.host.net.htb import Queue, read_queues, set_queues
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.host.testbed.wiring import Wiring
from weft.records import read_records
from weft.sensitivity.application import Profile, Run, fit_application
from weft.sensitivity.application_table import AppTable
from weft.sensitivity.model import Hinges

NAME = "live-corun"
RATE_BPS = 50_000_000
BYTES = 5_000_000
LIMIT_S = 120

# The server is in the command's group, as that of a real application is: what it sends is marked.
SERVE = """
import socket, threading
def send(connection):
    with connection:
        connection.sendall(bytes(int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")))
with socket.create_server(("", PORT)) as server:
    print("listening", flush=True)
    while True:
        threading.Thread(target=send, args=(server.accept()[0],), daemon=True).start()
"""
FETCH = """
import socket, subprocess, sys
size, namespace = int(sys.argv[1]), sys.argv[2]
serve = [sys.executable, "-c", sys.argv[3]]
with subprocess.Popen(["ip", "netns", "exec", namespace, *serve], stdout=subprocess.PIPE) as server:
    server.stdout.readline()
    with socket.create_connection(("h2", PORT)) as connection:
        connection.sendall(size.to_bytes(8, "big"))
        while size and (got := len(connection.recv(1 << 18))):
            size -= got
    server.kill()
assert size == 0
"""


def fetch(bed: Testbed, port: int, size: int) -> tuple[str, ...]:
    text, serve = FETCH.replace("PORT", str(port)), SERVE.replace("PORT", str(port))
    return (sys.executable, "-c", text, str(size), bed.namespace("h2"), serve)


@dataclass(frozen=True, slots=True)
class Bench:
    """A testbed, what its links had, and a table of two applications that fetch."""

    bed: Testbed
    before: list[Root]
    folder: Path

    def argv(self, *words: str) -> list[str]:
        start = [sys.executable, "-m", "weft.cli", "corun", "left", "right", "--testbed", NAME]
        return [*start, "--table", str(self.folder / "table"), *words]

    def corun(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    def save(self, name: str, command: tuple[str, ...]) -> None:
        whole_s = 8 * BYTES / RATE_BPS
        runs = tuple(Run(share=b, completion=0.2 + whole_s / b) for b in (0.1, 0.25, 0.5, 1.0))
        profile = Profile(name=name, runs=runs, command=command, link_bps=RATE_BPS)
        AppTable(self.folder / "table").save(fit_application(profile), replace=True)


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    need_namespaces()
    wiring = Wiring(hosts=("h1", "h2"), rate_bps=RATE_BPS)
    made, _ = persistent.build_testbed(NAME, wiring)
    try:
        yield made
    finally:
        persistent.remove_testbed(NAME)


@pytest.fixture
def bench(bed: Testbed, tmp_path: Path) -> Bench:
    found = Bench(bed, roots(bed.all_ends()), tmp_path)
    found.save("left", fetch(bed, 5001, BYTES))
    found.save("right", fetch(bed, 5002, BYTES))
    return found


def groups() -> list[Path]:
    return [
        path
        for path in marking.find_mount().glob("weft-*")
        if path.name.endswith(("left", "right"))
    ]


def test_both_ends_of_a_groups_connections_bear_its_mark(bed: Testbed) -> None:
    ends = [bed.ends("h1")[0], bed.ends("h2")[0]]
    with change_ends(ends) as held, marking.open_marked_group("try", 7) as group:
        for port in held.saved:
            set_queues(port, [Queue(weight=1, dscps=(0,)), Queue(weight=1, dscps=(7,))])
        process = bed.spawn("h1", fetch(bed, 5003, 500_000), join=group.join)
        assert process.wait(LIMIT_S) == 0
        asked, served = ([queue.count for queue in read_queues(end)] for end in ends)
    assert served[1].bytes > 500_000
    assert served[0].bytes < 5_000  # answers to openings, before the mark
    assert asked[1].bytes > asked[0].bytes


def test_the_end_of_a_group_ends_what_its_commands_left_running() -> None:
    need_namespaces()
    with marking.open_marked_group("try", 1) as group:
        process = subprocess.Popen(["sh", "-c", "setsid sleep 1000 & echo"], preexec_fn=group.join)
        process.wait()
        left = (group.path / "cgroup.procs").read_text().split()
        assert len(left) == 1
    assert not group.path.exists()
    assert not runs(left[0])


def runs(pid: str) -> bool:
    """A process that has ended but whom nobody asked for its status does not."""
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_each_weight_is_at_its_applications_mark_on_every_port(bench: Bench) -> None:
    """Different models, so that weights differ; then one of the two sends."""
    models = [Hinges(terms=((1.0, 0.9),), floor=0.05), Hinges(terms=((0.3, 1.0),), floor=0.05)]
    ways = build_schemes(models, RATE_BPS)
    assert ways[WEFT].weights[0] > 1.5 * ways[WEFT].weights[1]
    sender = bench.bed.ends("h2")[0]
    jobs = [
        Job(name=name, command=fetch(bench.bed, 5001 + n, BYTES))
        for n, name in enumerate(("left", "right"))
    ]
    with open_testbed_runner(NAME, None, jobs) as runner:
        for way in (ways[EQUAL], ways[LEND], ways[WEFT]):
            runner.share(way)
            for end in bench.bed.all_ends():
                found = {queue.dscps: queue.share for queue in read_queues(end)}
                wanted = {(application_dscp(n),): weight for n, weight in enumerate(way.weights)}
                assert found == pytest.approx({(0,): 0.01, **wanted}, rel=1e-3)
        runner.start(1)
        ended = runner.next_end(LIMIT_S)
        assert ended is not None
        assert ended[0] == 1
        passed = {queue.dscps: queue.count.bytes for queue in read_queues(sender)}
        assert passed[application_dscp(1),] > BYTES
        assert passed[application_dscp(0),] == 0
        unmarked = runner.read_unmarked()
        assert unmarked is not None
        assert unmarked < 0.03
        runner.share(ways[ONE])
        assert runner.read_unmarked() is None


def test_what_a_service_sends_that_was_there_before_bears_no_mark(bench: Bench) -> None:
    ways = build_schemes([Hinges(terms=((1.0, 0.9),), floor=0.05)] * 2, RATE_BPS)
    client = FETCH.replace("PORT", "5004").replace("sys.argv[3]", "'print()'")
    size = 200_000  # one hundredth of the link is slow
    command = (sys.executable, "-c", client, str(size), bench.bed.namespace("h2"))
    serve = [sys.executable, "-c", SERVE.replace("PORT", "5004")]
    with bench.bed.spawn("h2", serve, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            with open_testbed_runner(NAME, None, [Job(name="left", command=command)]) as runner:
                runner.share(ways[EQUAL])
                runner.start(0)
                assert runner.next_end(LIMIT_S) is not None
                unmarked = runner.read_unmarked()
        finally:
            server.kill()
    assert unmarked is not None
    assert unmarked > 0.5


def test_equal_applications_in_equal_queues_take_twice_as_long(bench: Bench) -> None:
    file = bench.folder / "records.jsonl"
    words = ("--repeat", "1", "--runs", "2", "-o", str(file), "--json")
    with watched() as machine:
        done = bench.corun(*words)
    assert done.returncode == 0, done.stderr
    assert roots(bench.bed.all_ends()) == bench.before
    assert groups() == []
    assert len(read_records(file).records) == 6
    again = bench.corun(*words)
    assert "resumes after 6 of 6 rounds" in again.stderr
    assert again.stdout == done.stdout
    if machine.trouble:
        pytest.skip(machine.trouble)
    outcome = json.loads(done.stdout)
    for name in ("left", "right"):
        assert 0.8 < outcome["alone_s"][name]["value"] < 2.5
        for way, least, most in (("one", 1.0, 3.0), ("equal", 1.4, 2.3), ("weft", 1.4, 2.3)):
            assert least < outcome["slowdown"][way][name]["value"] < most


def started(bench: Bench, *words: str) -> subprocess.Popen[str]:
    """A measurement whose first round has ended, and whose second one runs."""
    process = subprocess.Popen(
        bench.argv("--repeat", "2", "--runs", "1", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert " s left" in process.stderr.readline()
    deadline = time.monotonic() + 10
    while not read_queues(bench.bed.ends("h1")[0]) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    return process


def test_interrupted_it_keeps_what_was_measured_and_goes_on_later(bench: Bench) -> None:
    file = bench.folder / "records.jsonl"
    process = started(bench, "-o", str(file))
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "interrupted" in told
    assert roots(bench.bed.all_ends()) == bench.before
    assert groups() == []
    kept = len(read_records(file).records)
    assert 1 <= kept < 12
    done = bench.corun("--repeat", "2", "--runs", "1", "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert f"resumes after {kept} of 12 rounds" in done.stderr
    assert len(read_records(file).records) == 12


def test_a_series_of_another_testbed_or_command_is_not_gone_on_with(bench: Bench) -> None:
    file = bench.folder / "records.jsonl"
    words = ("--repeat", "1", "--runs", "1", "-o", str(file))
    assert bench.corun(*words).returncode == 0
    kept = file.read_bytes()
    bench.save("right", fetch(bench.bed, 5002, BYTES // 2))
    done = bench.corun(*words)
    assert done.returncode == 2
    assert "has records of another command of right; give another file" in done.stderr
    bench.save("right", fetch(bench.bed, 5002, BYTES))
    persistent.remove_testbed(NAME)
    try:
        persistent.build_testbed(NAME, replace(bench.bed.wiring, limit_bytes=300_000))
        done = bench.corun(*words)
    finally:
        persistent.remove_testbed(NAME)
        persistent.build_testbed(NAME, bench.bed.wiring)
    assert done.returncode == 2
    assert "limit 400000 B" in done.stderr
    assert "limit 300000 B" in done.stderr
    assert file.read_bytes() == kept
    assert "resumes after 6 of 6 rounds" in bench.corun(*words).stderr


def test_killed_it_leaves_the_links_as_they_were(bench: Bench) -> None:
    process = started(bench)
    process.kill()
    process.communicate()
    wait_restored(bench.bed.all_ends(), bench.before)
    marking.remove_leftovers()
    assert groups() == []


def test_a_command_that_fails_is_one_line(bench: Bench) -> None:
    bench.save("right", ("sh", "-c", "echo broken >&2; exit 3"))
    done = bench.corun()
    assert done.returncode == 2
    *told, error = done.stderr.splitlines()
    assert error == "weft: application right: exit status 3, after 'broken'; fix its command"
    assert all(" left" in line for line in told)
    assert roots(bench.bed.all_ends()) == bench.before
    assert groups() == []
