"""Interrupts while the main thread is inside a transport that never returns."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

# A mutex locked twice: nothing but the end of the process gets out of it.
HANGING = """
import ctypes, signal
from weft._core import StopFlag
from weft.measure.interrupt import Interrupt
signal.signal(signal.SIGTERM, signal.default_int_handler)
signal.signal(signal.SIGINT, signal.default_int_handler)
mutex = ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
with Interrupt(StopFlag()):
    libc.pthread_mutex_lock(mutex)
    print("hangs", flush=True)
    libc.pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_third_interrupt_ends_a_transport_that_hangs(number: signal.Signals) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", HANGING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout
        assert program.stdout.readline() == "hangs\n"
        for _ in range(2):
            program.send_signal(number)
            time.sleep(0.3)
            assert program.poll() is None
        program.send_signal(number)
        _, errors = program.communicate(timeout=30)
    finally:
        program.kill()
    assert program.returncode == 128 + number
    assert errors == "weft: the transport does not return; its results are lost\n"
