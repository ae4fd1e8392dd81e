"""Files of libfabric's shm provider: none is left, and those of killed processes are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ofi_pair import config, connected, need

from weft._core import Endpoint
from weft.measure.peer.server import (
    SHARED_MEMORY,
    find_stale_shared_memory,
    remove_stale_shared_memory,
)

HOLDER = """
import sys, time
from weft._core import Endpoint, EndpointConfig
config = EndpointConfig()
config.transport, config.device = "ofi", "shm"
endpoint = Endpoint.open(config)
try:
    print("open", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def files_of(pid: int) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"{pid}:*"))


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """A process with an open shm endpoint, which ends by itself after 30 s."""
    need("shm")
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout
        assert it.stdout.readline() == "open\n"
        yield it
        it.kill()
    remove_stale_shared_memory(it.pid)


def test_no_file_is_left_when_endpoints_are_closed() -> None:
    with connected("shm"):
        assert len(files_of(os.getpid())) == 2
    assert files_of(os.getpid()) == []


def test_no_file_is_left_when_an_endpoint_cannot_be_opened() -> None:
    need("shm")
    with pytest.raises(Exception, match="cannot sleep"):
        Endpoint.open(config("shm", events=True))
    assert files_of(os.getpid()) == []


def test_a_living_process_keeps_its_files(holder: subprocess.Popen[str]) -> None:
    assert len(files_of(holder.pid)) == 1
    assert find_stale_shared_memory(holder.pid) == []
    assert remove_stale_shared_memory(holder.pid) == []
    assert len(files_of(holder.pid)) == 1


@pytest.mark.parametrize("is_reaped", [True, False])
def test_the_files_of_a_killed_process_are_removed(
    holder: subprocess.Popen[str], is_reaped: bool
) -> None:
    left = files_of(holder.pid)
    holder.kill()
    if is_reaped:
        holder.wait()
    else:
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert files_of(holder.pid) == left
    assert remove_stale_shared_memory(holder.pid) == left
    assert files_of(holder.pid) == []


def test_a_terminated_process_leaves_no_file(holder: subprocess.Popen[str]) -> None:
    holder.terminate()
    assert holder.wait(10) == -signal.SIGTERM
    assert files_of(holder.pid) == []


def test_interrupts_still_reach_the_program(holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGINT)
    assert holder.communicate(timeout=10)[0] == "interrupted\n"
    assert holder.returncode == 0
    assert files_of(holder.pid) == []


def test_other_files_stay(tmp_path: Path) -> None:
    uid = os.getuid()
    dead = 2**22 + 1  # beyond the largest process number
    for name in ("sem.mp-abc", f"{dead}:{uid}", f"{dead}:{uid}:0:x", f"0:{uid}:0", "psm2_shm.1"):
        (tmp_path / name).touch()
    (tmp_path / f"{dead}:{uid}:1").mkdir()
    (tmp_path / f"{dead}:{uid + 1}:2").touch()
    (tmp_path / f"{dead}:{uid}:3").touch()
    (tmp_path / f"{os.getpid()}:{uid}:4").touch()
    assert remove_stale_shared_memory(directory=tmp_path) == [tmp_path / f"{dead}:{uid}:3"]
    assert remove_stale_shared_memory(directory=tmp_path / "nothing") == []
