"""`weft profile` of real applications: rsync by default, the others with `make test-apps`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import need_namespaces
from restored import roots, wait_capped, wait_restored

from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.host.testbed.wiring import Wiring
from weft.sensitivity.application import Application
from weft.sensitivity.application_table import AppTable

PROJECT = Path(__file__).parents[2]
PLACE = PROJECT / "examples/applications"
NAME = "live-apps"
LIMIT_S = 300
LIMITED = tuple(f"slow{n}" for n in range(1, 5))
NEEDED = dict.fromkeys(("rsync", "rsync-z", *LIMITED), "rsync") | {"pg-dump": "pg_dump"}
# Slowdown at a quarter of the link: what waits for the network, what hides it, what hardly sends.
EXPECTED = {
    "rsync": (3.0, 4.2),
    "rsync-z": (0.9, 2.5),
    "pg-dump": (2.5, 4.2),
    "mpi-sgd": (2.0, 4.2),
    "mpi-sort": (1.2, 3.0),
    "mpi-stencil": (0.9, 1.9),
    "mpi-pi": (0.8, 1.25),
    **dict.fromkeys(LIMITED, (0.8, 1.25)),
}
SPARK = "spark-lr"


def commands() -> dict[str, tuple[str, ...]]:
    lines = (PLACE / "commands").read_text().splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: tuple(command) for name, *command in words}


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    need_namespaces()
    hosts = tuple(f"h{n}" for n in range(1, 5))
    made, _ = persistent.build_testbed(NAME, Wiring(hosts=hosts, rate_bps=100_000_000))
    try:
        yield made
    finally:
        persistent.remove_testbed(NAME)


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """The data of rsync and pg_dump, made once; programs of our interpreter on the path.

    Not in pytest's folder, which is root's alone: PostgreSQL does not run as root.
    """
    which = "all" if "WEFT_APPS" in os.environ else "files"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        result = os.environ | {"WEFT_APPLICATIONS": place, "PATH": path}
        subprocess.run([PLACE / "data", "1", which], env=result, check=True, capture_output=True)
        yield result


def need(name: str) -> None:
    if name != "rsync" and "WEFT_APPS" not in os.environ:
        pytest.skip("a real application: takes a minute; run `make test-apps`")
    program = NEEDED.get(name, "mpiexec")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    if shutil.which(program, path=path) is None:
        pytest.skip(f"no {program}: install it")


def argv(name: str, table: Path, percent: str) -> list[str]:
    start = [sys.executable, "-m", "weft.cli", "profile", "--name", name, "--percent", percent]
    plan = ["--repeat", "1", "--testbed", NAME, "--table", str(table)]
    return [*start, *plan, "--", *commands()[name]]


def profiled(
    name: str, table: Path, environment: dict[str, str], percent: str = "25,100"
) -> tuple[Application, str]:
    """The application, and what was told meanwhile."""
    done = subprocess.run(
        argv(name, table, percent),
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return AppTable(table).load(name), done.stderr


@pytest.mark.parametrize("name", EXPECTED)
def test_an_application_is_as_sensitive_as_its_kind(
    name: str, bed: Testbed, environment: dict[str, str], tmp_path: Path
) -> None:
    need(name)
    before = roots(bed.all_ends())
    result, _ = profiled(name, tmp_path, environment)
    assert roots(bed.all_ends()) == before
    least, most = EXPECTED[name]
    whole = result.profile.baseline
    slow = [run.completion / whole for run in result.profile.runs if run.share == 0.25]
    assert least < min(slow) < most


def test_every_application_that_is_described_is_tested() -> None:
    assert set(commands()) == {*EXPECTED, SPARK, "spark-sort"}


def test_rsyncs_beside_each_other_fetch_their_own_files(
    bed: Testbed, environment: dict[str, str]
) -> None:
    need("rsync")
    place = Path(environment["WEFT_APPLICATIONS"])
    several = ("files-1", "files-1-1", "texts-1")
    running = [bed.spawn("h1", [str(PLACE / "rsync"), name], env=environment) for name in several]
    assert [process.wait(LIMIT_S) for process in running] == [0, 0, 0]
    fetched, own = (
        [{path.name for path in (place / f"{before}{name}").iterdir()} for name in several]
        for before in ("received-", "")
    )
    assert fetched == own
    assert not fetched[0] & fetched[2]


def test_rsync_ends_if_its_daemon_does(bed: Testbed, environment: dict[str, str]) -> None:
    """Another program has the port."""
    need("rsync")
    named = subprocess.run(["cksum"], input=b"files-1-1", capture_output=True, check=True).stdout
    port = 10000 + int(named.split()[0]) % 20000
    taken = (
        f"import socket\nwith socket.create_server(('', {port})) as server:\n"
        "    print('listening', flush=True)\n    while True:\n        server.accept()[0].close()\n"
    )
    with bed.spawn("h2", [sys.executable, "-c", taken], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            process = bed.spawn(
                "h1", [str(PLACE / "rsync"), "files-1-1"], env=environment, stderr=subprocess.PIPE
            )
            _, message = process.communicate(timeout=LIMIT_S)
        finally:
            other.kill()
    assert process.returncode == 1
    assert b"bind" in message


@pytest.fixture
def spark(bed: Testbed, environment: dict[str, str]) -> Iterator[None]:
    """A cluster with a session that is ready for jobs; JVMs take a minute to get there."""
    if "WEFT_APPS" not in os.environ:
        pytest.skip("Spark: takes minutes; run `make test-apps`")
    pytest.importorskip("pyspark", reason="pip install 'weft[spark]'")
    if shutil.which("java") is None:
        pytest.skip("no java: install default-jre-headless")
    serve = [str(PLACE / "spark"), "serve"]
    process = bed.spawn(
        "h1",
        serve,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.mark.usefixtures("spark")
def test_a_spark_job_waits_for_the_network(
    bed: Testbed, environment: dict[str, str], tmp_path: Path
) -> None:
    before = roots(bed.all_ends())
    for warming in ("warm-1", "warm-2"):  # the first jobs are compiled while they run
        run = [sys.executable, "-m", "weft.cli", "testbed", "exec", "--name", NAME, "h1", "--"]
        done = subprocess.run(
            [*run, *commands()[SPARK]], cwd=PROJECT, env=environment, check=False, timeout=LIMIT_S
        )
        assert done.returncode == 0, warming
    result, _ = profiled(SPARK, tmp_path, environment, "10,100")
    assert roots(bed.all_ends()) == before
    slow = max(run.completion for run in result.profile.runs if run.share == 0.1)
    assert slow / result.profile.baseline > 1.8


def test_rsync_interrupted_and_killed_goes_on_with_its_links_restored(
    bed: Testbed, environment: dict[str, str], tmp_path: Path
) -> None:
    need("rsync")
    before = roots(bed.all_ends())
    for end, message in ((signal.SIGINT, "first run"), (signal.SIGKILL, "of 4")):
        process = subprocess.Popen(
            argv("rsync", tmp_path, "10,25,50,100"),
            cwd=PROJECT,
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        while message not in lines[-1]:
            assert process.poll() is None, "".join([*lines, *process.stderr])
            lines.append(process.stderr.readline())
        time.sleep(0.5)  # into the next run
        wait_capped(bed.all_ends(), before)
        process.send_signal(end)
        process.communicate(timeout=LIMIT_S)
        wait_restored(bed.all_ends(), before)
    result, said = profiled("rsync", tmp_path, environment, "10,25,50,100")
    assert said.startswith("resumes after ")
    assert len({run.share for run in result.profile.runs}) == 4
