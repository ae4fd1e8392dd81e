"""Messages in a GPU's memory arrive whole over transports that only reach the host's memory.

With a GPU the real driver is used; everywhere else a stand-in for it, compiled here, which shows
that the copies are made, and that what is checked has been through the GPU's memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weft._core import availability

SIZES = (8, 64, 4096, 65536)
STAND_IN = Path(__file__).parents[1] / "support" / "fake_cuda.c"
MEASURE = """
import json, sys
from weft.measure import bandwidth, latency, open_peer
over, memory, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
fields = dict(over=over, memory=memory, size=size, validate=True, warmup=10, count=200)
with open_peer("local") as peer:
    runs = [latency(peer, **fields), bandwidth(peer, depth=8, **fields)]
    rows = [
        {name: run.record.quantities[name].value for name in ("messages", "corrupted")}
        | {"memory": [row["memory"] for row in run.record.tables["endpoints"]]}
        for run in runs
    ]
print(json.dumps(rows))
"""


def why_no_gpu() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    count = ctypes.c_int(0)
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if code == 0 and count.value > 0 else f"the driver finds no GPU (error {code})"


def transports() -> list[str]:
    names = {f"ofi:{a.device}" for a in availability("ofi") if a.available}
    return ["tcp", "udp", *sorted(names & {"ofi:tcp", "ofi:shm"})]


def measure(over: str, size: int, libraries: str = "", **environment: str) -> list[dict[str, Any]]:
    """What a process measures that finds `libraries` before the system's."""
    if libraries:
        path = os.environ.get("LD_LIBRARY_PATH", "")
        environment["LD_LIBRARY_PATH"] = f"{libraries}:{path}" if path else libraries
    command = [sys.executable, "-c", MEASURE, over, "cuda:0", str(size)]
    done = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def check(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["messages"] >= 190
        assert row["corrupted"] == 0
        assert all("staged by copy" in side for side in row["memory"])


@pytest.mark.parametrize("over", transports())
def test_bytes_arrive_whole_in_the_memory_of_a_gpu(over: str) -> None:
    if reason := why_no_gpu():
        if "cuda" in os.environ.get("WEFT_REQUIRE", "").split(","):
            pytest.fail(f"cuda: {reason}")
        pytest.skip(f"cuda: {reason}")
    for size in SIZES:
        if over != "udp" or size < 65508:
            check(measure(over, size))


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a libcuda.so.1 of ours."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc: not installed")
    folder = tmp_path_factory.mktemp("cuda")
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, STAND_IN], check=True)
    return str(folder)


def test_staging_goes_through_the_driver(stand_in: str) -> None:
    for over in ("tcp", "udp"):
        check(measure(over, 4096, stand_in))


def test_what_the_gpu_changes_is_seen(stand_in: str) -> None:
    rows = measure("tcp", 4096, stand_in, FAKE_CUDA_FLIP="1")
    assert all(row["corrupted"] >= row["messages"] for row in rows)


def test_without_a_driver_the_error_says_so() -> None:
    if not why_no_gpu():
        pytest.skip("cuda: this host has a GPU")
    command = [sys.executable, "-m", "weft.cli", "latency", "--over", "tcp", "--memory", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "cuda: the driver" in done.stderr
    assert "leave out --memory" in done.stderr
