"""A profiled command's processes do not outlive the process that runs it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROFILER = """
import subprocess, sys
from functools import partial
from weft.host.net import namespaces
from weft.sensitivity.run_command import run_command
argv = ["sh", "-c", "sleep 300 & echo $! > " + sys.argv[1] + "; wait"]
run_command(partial(namespaces.spawn, None, argv), lambda: (0, 0), limit_s=300, where="test")
"""
LIMIT_S = 30


def wait_until(is_true) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_grandchild_of_a_killed_profiler_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", PROFILER, str(file)]) as profiler:
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
        grandchild = int(file.read_text())
        time.sleep(0.2)  # the guard starts after the command
        profiler.kill()
    try:
        wait_until(lambda: not is_running(grandchild))
    finally:
        if is_running(grandchild):
            os.kill(grandchild, signal.SIGKILL)
