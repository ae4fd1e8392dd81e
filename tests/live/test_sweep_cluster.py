"""Sweeps and studies on a Dask cluster of this machine: lost workers and scheduler, Ctrl-C.

The oracle of every run is the same command without a cluster: its records, byte for byte.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from dask_cluster import DaskCluster, dask_cluster, start_worker
from needs import NO_DASK, need_time

from weft.host.machine.processes import end_with_parent

pytest.importorskip("distributed", reason=NO_DASK)

WORKERS = ("w1", "w2", "w3", "w4")
LIMIT_S = 120
# Twelve points, each of about a second.
SWEEP = ("--sweep", "traffic.load.window=1..12+1")
SCENARIO = """
name = "star"
duration = "1200 ms"

[fabric]
topology = "one_switch"
hosts = 8
rate = "56 Gb/s"

[[traffic]]
name = "load"
kind = "bandwidth"
from = "h1..h7"
to = "h0"
size = "4 KiB"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    need_time()
    with dask_cluster(tmp_path, dict.fromkeys(WORKERS, ())) as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenario, and what it gives without a cluster."""
    need_time()
    made = tmp_path_factory.mktemp("sweep")
    (made / "star.toml").write_text(SCENARIO)
    run(made, "-j", "1", "-o", "here.jsonl")
    assert len(records(made / "here.jsonl")) == 12
    return made


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    return start_weft(folder, "simulate", "star.toml", *SWEEP, *options)


def start_weft(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "weft.cli", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(end_with_parent, os.getpid()),
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """The command's status, and its lines on stderr."""
    try:
        _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, errors.splitlines()


def run(folder: Path, *options: str) -> tuple[int, list[str]]:
    return finish(start(folder, *options))


def records(path: Path) -> list[bytes]:
    """The file without headers."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if b'"weft":"record"' in line]


def wait_for_records(process: subprocess.Popen[str], path: Path, number: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while len(records(path)) < number:
        assert process.poll() is None, f"ended before {number} points were done"
        assert time.monotonic() < deadline, f"no {number} points within {LIMIT_S} s"
        time.sleep(0.02)


def wait_for_file(path: Path) -> None:
    """The file is begun when the cluster has been checked."""
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"no file within {LIMIT_S} s"
        time.sleep(0.02)


def test_one_of_four_workers_killed_in_mid_run_leaves_the_same_bytes(
    folder: Path, tmp_path: Path, cluster: DaskCluster
) -> None:
    output = tmp_path / "out.jsonl"
    process = start(folder, "--cluster", cluster.address, "-o", str(output))
    wait_for_records(process, output, 1)
    cluster.workers["w2"].kill()
    assert len(records(output)) < 8, "so late that the worker may have had nothing left to do"
    status, errors = finish(process)
    assert status == 0, errors
    assert len(errors) == 1
    assert errors[0].startswith("weft: Dask worker w2 (tcp://127.0.0.1:")
    assert records(output) == records(folder / "here.jsonl")


def test_a_study_survives_the_loss_of_a_worker_with_the_same_bytes(
    tmp_path: Path, cluster: DaskCluster
) -> None:
    study, here, there = ("study", "run", "rperf-fig4", "rperf-fig10"), "here.jsonl", "there.jsonl"
    status, expected = finish(start_weft(tmp_path, *study, "-j", "1", "-o", here))
    assert status == 0
    process = start_weft(tmp_path, *study, "--cluster", cluster.address, "-o", there)
    wait_for_records(process, tmp_path / there, 1)
    cluster.workers["w3"].kill()
    status, errors = finish(process)
    assert status == 0, errors
    # Studies this short may end before the next look at the workers.
    lost = [line for line in errors if line.startswith("weft: Dask worker w3 (tcp://127.0.0.1:")]
    assert len(lost) <= 1
    assert [line for line in errors if line not in lost] == expected
    assert records(tmp_path / there) == records(tmp_path / here)


def test_one_worker_gives_the_same_bytes_as_four(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with dask_cluster(tmp_path, {"alone": ()}) as single:
        assert run(folder, "--cluster", single.address, "-o", str(output)) == (0, [])
    assert records(output) == records(folder / "here.jsonl")


def test_ctrl_c_keeps_what_is_done_and_the_same_command_resumes(
    folder: Path, tmp_path: Path, cluster: DaskCluster
) -> None:
    output = tmp_path / "out.jsonl"
    options = ("--cluster", cluster.address, "-o", str(output))
    process = start(folder, *options)
    wait_for_records(process, output, 2)
    process.send_signal(signal.SIGINT)
    status, errors = finish(process)
    assert status == 130
    kept = records(output)
    assert errors == [f"weft: interrupted with {len(kept)} of 12 points done"]
    assert 2 <= len(kept) < 12
    assert run(folder, *options) == (0, [f"resuming: {len(kept)} of 12 points are stored"])
    here = records(folder / "here.jsonl")
    assert records(output)[: len(kept)] == kept
    assert records(output)[len(kept) :] == [line for line in here if line not in kept]


def test_a_lost_scheduler_is_one_line_and_what_is_done_is_kept(
    folder: Path, tmp_path: Path, cluster: DaskCluster
) -> None:
    output = tmp_path / "out.jsonl"
    process = start(folder, "--cluster", cluster.address, "-o", str(output))
    wait_for_records(process, output, 2)
    cluster.scheduler.kill()
    status, errors = finish(process)
    kept = records(output)
    assert status == 2
    assert errors == [
        f"weft: --cluster {cluster.address}: the scheduler was lost with {len(kept)} of 12 points "
        "done; start it, and repeat the command: what -o has stored is not run again"
    ]
    assert set(kept) <= set(records(folder / "here.jsonl"))


def test_a_point_that_fails_on_a_worker_is_named_by_its_settings(
    folder: Path, tmp_path: Path
) -> None:
    """Here because its digest differs, as if the worker had other files."""
    preload = tmp_path / "other_digest.py"
    preload.write_text("import weft.simulate.scenario as s\ns.__version__ = 'other'\n")
    with dask_cluster(tmp_path, {"w1": ("--preload", str(preload))}) as made:
        status, (line,) = run(folder, "--cluster", made.address)
    assert status == 2
    assert re.fullmatch(
        r"weft: traffic\.load\.window=\d+: Dask worker w1: star\.toml: "
        "a file that it names differs here; give all workers the same files",
        line,
    )


def test_a_point_that_kills_its_workers_is_named_by_its_settings(
    folder: Path, tmp_path: Path
) -> None:
    preload = tmp_path / "deadly.py"
    preload.write_text(
        "import os, signal, weft.simulate.sweep as s\n"
        "read = s._read_scenario\n"
        "def deadly(source, point):\n"
        "    if point['traffic.load.window'] == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return read(source, point)\n"
        "s._read_scenario = deadly\n"
    )
    with dask_cluster(tmp_path, dict.fromkeys(WORKERS, ("--preload", str(preload)))) as made:
        status, lines = run(folder, "--cluster", made.address)
    assert status == 2
    assert lines[-1].startswith(
        "weft: star.toml: traffic.load.window=3: several Dask workers died while they ran it"
    )


def test_workers_of_another_weft_are_refused_also_when_they_join_late(
    folder: Path, tmp_path: Path
) -> None:
    need_time()
    preload = tmp_path / "other_version.py"
    preload.write_text(
        "import weft, importlib.metadata\n"
        "weft.__version__ = '0.0.7'\n"
        "importlib.metadata.version = lambda _: '0.0.7'\n"
    )
    other = ("--preload", str(preload))
    expected = "Dask worker old: has weft 0.0.7, and here is "
    with dask_cluster(tmp_path, {"old": other}) as cluster:
        status, (line,) = run(folder, "--cluster", cluster.address, "-o", str(tmp_path / "o"))
        assert status == 2
        assert line.startswith(f"weft: {expected}")
        assert not (tmp_path / "o").exists()
    with dask_cluster(tmp_path, {"w1": ()}) as cluster, ExitStack() as stack:
        slow = ("--set", "duration=1 s", "-o", str(tmp_path / "o"))
        process = start(folder, "--cluster", cluster.address, *slow)
        wait_for_file(tmp_path / "o")
        start_worker(stack, tmp_path, cluster.address, "old", *other)
        status, (line,) = finish(process)
        assert status == 2
        assert re.match(r"weft: duration=1 s, traffic\.load\.window=\d+: ", line)
        assert expected in line
