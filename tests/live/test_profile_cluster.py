"""`weft profile --cluster`: hosts as namespaces with a Dask worker each, all their links capped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from needs import need_dask, need_namespaces
from plan_scripts import script
from restored import is_held
from test_profile import BYTES, FETCH, SINK

from weft.host.net import namespaces
from weft.host.net.link_ends import LinkEnd
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import INTERFACE, Wiring
from weft.sensitivity.application_table import AppTable

RATE_BPS = 50_000_000
HOSTS = ("h1", "h2", "h3")
LIMIT_S = 180
RESTORED_S = 20
# What h1 fetches from h2 and sends to nobody: only caps elsewhere, or on what comes in, slow it.
FETCHES = (sys.executable, "-c", FETCH, str(BYTES))


@dataclass(frozen=True, slots=True)
class Cluster:
    """A testbed whose hosts are Dask workers, the scheduler's address, and how its links look."""

    bed: Testbed
    address: str
    before: list[str]
    table: Path

    def argv(self, *words: str, command: tuple[str, ...] = FETCHES) -> list[str]:
        start = [sys.executable, "-m", "weft.cli", "profile", "--name", "fetch"]
        plan = ["--percent", "25,50,100", "--repeat", "2", "--table", str(self.table)]
        where = ["--cluster", self.address, "--rate", "50M", "--interface", INTERFACE]
        return [*start, *plan, *words, *where, "--", *command]

    def start(self, *words: str, command: tuple[str, ...] = FETCHES) -> subprocess.Popen[bytes]:
        return self.bed.spawn(
            "h1",
            self.argv(*words, command=command),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def wait_restored(self) -> None:
        deadline = time.monotonic() + RESTORED_S
        while looks(self.bed) != self.before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert looks(self.bed) == self.before
        assert not is_held([LinkEnd(None, INTERFACE), LinkEnd(None, INTERFACE, receiving=True)])


def looks(bed: Testbed) -> list[str]:
    """What tc shows of every host."""
    return [namespaces.run_command(["tc", "-n", bed.namespaces[host], "qdisc"]) for host in HOSTS]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Testbed, str]]:
    need_namespaces()
    need_dask()
    dask = script("converged_testbed").cluster
    with (
        testbed(Wiring(hosts=HOSTS, rate_bps=RATE_BPS)) as made,
        dask(made, tmp_path_factory.mktemp("dask")) as address,
        made.spawn("h2", [sys.executable, "-c", SINK], stdout=subprocess.PIPE) as sink,
    ):
        assert sink.stdout is not None
        assert sink.stdout.readline() == b"listening\n"
        yield made, address
        sink.kill()


@pytest.fixture
def cluster(bed: tuple[Testbed, str], tmp_path: Path) -> Cluster:
    return Cluster(*bed, looks(bed[0]), tmp_path / "table")


def wait_for(process: subprocess.Popen[bytes], words: bytes) -> None:
    assert process.stderr is not None
    message = b""
    for line in process.stderr:
        message += line
        if words in line:
            return
    raise AssertionError(f"ended with status {process.wait()}: {message.decode()}")


def worker_of(bed: Testbed, host: str) -> int:
    for pid in namespaces.list_pids(bed.namespaces[host]):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"worker" in words:
            return pid
    raise AssertionError(f"no worker on {host}")


def test_every_host_is_capped_and_has_its_links_back_afterwards(cluster: Cluster) -> None:
    with cluster.start() as process:
        wait_for(process, b"first run")
        during = looks(cluster.bed)
        _, message = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, message.decode()
    assert all("qdisc ingress" in one for one in during)
    assert looks(cluster.bed) == cluster.before
    result = AppTable(cluster.table).load("fetch")
    assert result.profile.machine["place"] == f"cluster {cluster.address}, interfaces eth0"
    assert 3 < float(result.convex.model.slowdown(0.25)) < 4.1


def test_killed_every_host_restores_its_own_links(cluster: Cluster) -> None:
    with cluster.start() as process:
        wait_for(process, b"1 of 6")
        assert looks(cluster.bed) != cluster.before
        process.kill()
        process.communicate()
    cluster.wait_restored()
    with cluster.start() as process:
        _, message = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, message.decode()
    assert message.startswith(b"resumes after ")
    assert looks(cluster.bed) == cluster.before


def test_what_a_host_lacks_is_one_line_that_names_the_host(cluster: Cluster) -> None:
    inside = cluster.bed.namespaces["h1"]
    link = ["ip", "-n", inside, "link"]
    namespaces.run_command([*link, "add", "only", "type", "veth", "peer", "name", "other"])
    for name in ("only", "other"):
        namespaces.run_command([*link, "set", name, "up"])
    try:
        argv = [word if word != INTERFACE else "only" for word in cluster.argv()]
        with cluster.bed.spawn("h1", argv, stderr=subprocess.PIPE) as process:
            _, message = process.communicate(timeout=LIMIT_S)
    finally:
        namespaces.run_command([*link, "del", "only"])
    assert process.returncode == 2
    (line,) = message.decode().splitlines()
    assert "no such interface" in line
    assert line.startswith(("weft: host h2: only", "weft: host h3: only"))
    cluster.wait_restored()


# Last: the cluster is not whole afterwards.
def test_a_lost_host_ends_the_profile_and_its_run_does_not_count(cluster: Cluster) -> None:
    with cluster.start() as process:
        wait_for(process, b"2 of 6")
        os.kill(worker_of(cluster.bed, "h3"), signal.SIGKILL)
        _, message = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    last = message.decode().splitlines()[-1]
    assert last.startswith("weft: host h3: ")
    assert "2 of 6 runs are kept" in last
    cluster.wait_restored()
