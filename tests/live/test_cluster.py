"""`weft measure --cluster` on a Dask cluster of this machine: choice of workers, loss, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dask_cluster import DaskCluster, dask_cluster
from needs import NO_DASK, need_time

from weft.records import read_records

pytest.importorskip("distributed", reason=NO_DASK)

HOSTS = {"alpha": "127.0.0.11", "beta": "127.0.0.12"}
WAIT_S = 60
PLAN = """
name = "pair"
warmup = "50 ms"
duration = "300 ms"
repetitions = REPETITIONS

[[host]]
name = "alpha"

[[host]]
name = "beta"

[[traffic]]
name = "probe"
generator = "latency"
pattern = "permutation"
wait = "block"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    need_time()
    workers = {name: ["--host", ip] for name, ip in HOSTS.items()}
    with dask_cluster(tmp_path_factory.mktemp("dask"), workers) as made:
        yield made


def _measure(folder: Path, cluster: DaskCluster, repetitions: int, plan: str = PLAN) -> list[str]:
    path = folder / "plan.toml"
    path.write_text(plan.replace("REPETITIONS", str(repetitions)))
    output = str(folder / "out.jsonl")
    command = [sys.executable, "-m", "weft.cli", "measure", str(path)]
    return [*command, "--cluster", cluster.address, "-o", output]


def _wait_for_records(output: Path, number: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if output.exists() and output.read_bytes().count(b'"weft":"record"') >= number:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {number} records within {WAIT_S} s")


def test_hosts_are_workers_by_name_at_their_own_addresses(
    tmp_path: Path, cluster: DaskCluster
) -> None:
    done = subprocess.run(
        _measure(tmp_path, cluster, 2), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    records = read_records(tmp_path / "out.jsonl").records
    assert [record.settings["repetition"] for record in records] == [1, 2]
    addresses = {str(row["host"]): row["address"] for row in records[0].tables["hosts"]}
    assert addresses == HOSTS


def test_a_host_without_a_worker_is_refused_with_those_there_are(
    tmp_path: Path, cluster: DaskCluster
) -> None:
    plan = PLAN + '\n[[host]]\nname = "gamma"\n'
    command = _measure(tmp_path, cluster, 1, plan)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert "no worker for host gamma" in done.stderr
    assert "alpha (on" in done.stderr
    assert "beta (on" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_ctrl_c_keeps_the_records_and_leaves_the_workers_free(
    tmp_path: Path, cluster: DaskCluster
) -> None:
    with subprocess.Popen(
        _measure(tmp_path, cluster, 100),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _wait_for_records(tmp_path / "out.jsonl", 1)
        os.kill(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, told
    assert "interrupted with" in told
    (tmp_path / "out.jsonl").unlink()
    again = subprocess.run(
        _measure(tmp_path, cluster, 1), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert again.returncode == 0, again.stderr


# Last: the cluster is not whole afterwards.
def test_a_lost_worker_is_named_within_seconds_and_records_are_kept(
    tmp_path: Path, cluster: DaskCluster
) -> None:
    with subprocess.Popen(
        _measure(tmp_path, cluster, 100),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _wait_for_records(tmp_path / "out.jsonl", 1)
        cluster.workers["beta"].kill()
        killed = time.monotonic()
        _, told = process.communicate(timeout=WAIT_S)
        assert time.monotonic() - killed < 15
    assert process.returncode == 2
    assert "beta" in told or HOSTS["beta"] in told
    assert read_records(tmp_path / "out.jsonl").records
