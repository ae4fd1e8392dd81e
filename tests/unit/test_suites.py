"""What the suites themselves rely on."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=str)
def test_child_processes_have_default_signal_handling_also_under_nohup(
    number: signal.Signals,
) -> None:
    program = f"import os, signal, time; os.kill(os.getpid(), {int(number)}); time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, timeout=30)
    assert done.returncode == -number
