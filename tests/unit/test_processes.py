"""Processor time of a process tree, interface counters of a process, and traces recorded here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from weft.errors import INTERRUPTS, InputError
from weft.host.machine.processes import Times, TreeTimes
from weft.sensitivity.run_command import computing_cores, interface_bytes, record_trace


def thread(root: Path, pid: int, tid: int, cpu_ns: int, delay_ns: int, children: str = "") -> Path:
    place = root / "proc" / str(pid) / "task" / str(tid)
    place.mkdir(parents=True, exist_ok=True)
    (place / "schedstat").write_text(f"{cpu_ns} {delay_ns} 7\n")
    (place / "children").write_text(children)
    return place


def remove(root: Path, pid: int) -> None:
    for file in (root / "proc" / str(pid) / "task").glob("*/*"):
        file.unlink()
    for folder in (root / "proc" / str(pid) / "task").glob("*"):
        folder.rmdir()
    (root / "proc" / str(pid) / "task").rmdir()


def test_threads_children_and_grandchildren_count(tmp_path: Path) -> None:
    thread(tmp_path, 10, 10, 1_000_000_000, 1, "20 ")
    thread(tmp_path, 10, 11, 500_000_000, 0)
    thread(tmp_path, 20, 20, 250_000_000, 4, "30")
    thread(tmp_path, 30, 30, 125_000_000, 0)
    thread(tmp_path, 40, 40, 9_000_000_000, 0)  # a stranger
    times = TreeTimes(10, tmp_path).read()
    assert times.cpu_s == pytest.approx(1.875)
    assert times.run_delay_s == pytest.approx(5e-9)


def test_what_an_ended_process_used_stays_and_its_children_are_followed(tmp_path: Path) -> None:
    thread(tmp_path, 10, 10, 1_000_000_000, 0, "20")
    thread(tmp_path, 20, 20, 2_000_000_000, 0, "30")
    thread(tmp_path, 30, 30, 0, 0)
    times = TreeTimes(10, tmp_path)
    assert times.read().cpu_s == 3
    remove(tmp_path, 20)
    thread(tmp_path, 10, 10, 1_500_000_000, 0)
    thread(tmp_path, 30, 30, 4_000_000_000, 0)
    assert times.read().cpu_s == 7.5


def test_a_new_thread_that_has_the_number_of_an_old_one_adds_to_it(tmp_path: Path) -> None:
    thread(tmp_path, 10, 10, 1_000_000_000, 0)
    thread(tmp_path, 10, 11, 5_000_000_000, 3_000_000_000)
    times = TreeTimes(10, tmp_path)
    assert times.read() == Times(6, 3)
    thread(tmp_path, 10, 11, 2_000_000_000, 1_000_000_000)
    assert times.read() == Times(8, 4)
    thread(tmp_path, 10, 11, 3_000_000_000, 1_000_000_000)
    assert times.read() == Times(9, 4)


def test_those_living_are_the_processes_that_were_seen_and_no_others(tmp_path: Path) -> None:
    def starts(pid: int, ticks: int, state: str = "S") -> None:
        fields = " ".join(["0"] * 18)
        (tmp_path / "proc" / str(pid) / "stat").write_text(f"{pid} (a) b) {state} {fields} {ticks}")

    for pid, child in ((10, "20"), (20, "30"), (30, "")):
        thread(tmp_path, pid, pid, 0, 0, child)
        starts(pid, 100 + pid)
    times = TreeTimes(10, tmp_path)
    assert times.living() == [10]
    times.read()
    assert sorted(times.living()) == [10, 20, 30]
    starts(10, 110, "Z")
    starts(30, 999)  # another process has the number
    assert times.living() == [20]
    remove(tmp_path, 20)
    times.read()
    assert times.living() == [20]
    (tmp_path / "proc/20/stat").unlink()
    assert times.living() == []


def test_nothing_is_known_of_a_process_that_is_not_there(tmp_path: Path) -> None:
    assert TreeTimes(10, tmp_path).read().cpu_s == 0


SPIN = "import time\nwhile time.process_time() < 0.3: pass"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}], check=True)"


def test_a_grandchild_of_a_real_process_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT]) as process:
        times, seen = TreeTimes(process.pid), 0.0
        while process.poll() is None:
            seen = times.read().cpu_s
            time.sleep(0.005)
    assert process.returncode == 0
    assert 0.25 < seen < 2  # the interpreters start on top


DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:     111       1    0    0    0     0          0         0      222       1    0    0
  eth0:    3333      10    0    0    0     0          0         0     4444      12    0    0
"""


def test_counters_are_those_of_the_process_s_own_namespace(tmp_path: Path) -> None:
    (tmp_path / "proc/7/net").mkdir(parents=True)
    (tmp_path / "proc/7/net/dev").write_text(DEV)
    assert interface_bytes("eth0", 7, root=tmp_path) == (3333, 4444)
    with pytest.raises(InputError, match="interface eth1: process 7 has lo, eth0"):
        interface_bytes("eth1", 7, root=tmp_path)
    with pytest.raises(InputError, match="process 8 has none"):
        interface_bytes("eth0", 8, root=tmp_path)
    assert interface_bytes("eth0", 8, (1, 2), root=tmp_path) == (1, 2)


def test_a_command_that_computes_is_traced_as_busy() -> None:
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    for _ in range(5):  # it may wait for its interpreter to be read, and we for a processor
        with subprocess.Popen([sys.executable, "-c", spin]) as process:
            trace = record_trace(process, interface="lo", link_bps=1e15, network_pid=os.getpid())
        # on a processor or ready for one, nearly all the time
        busy = trace.cpu_s.sum() / trace.duration_s.sum()
        if busy > 0.6 and 0.5 < trace.cores < 1.5:
            break
    assert busy > 0.6
    assert trace.duration_s.sum() >= 0.45
    assert trace.cores == pytest.approx(1, abs=0.5)


def test_a_worker_leaves_interrupts_to_its_parent() -> None:
    code = """
import os, signal
from weft.errors import INTERRUPTS
from weft.host.machine.processes import end_only_with_parent
end_only_with_parent(os.getppid())
for interrupt in INTERRUPTS:
    os.kill(os.getpid(), interrupt)
    print(interrupt)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [str(int(interrupt)) for interrupt in INTERRUPTS]


def test_sending_alone_is_not_taken_for_computing() -> None:
    tenth = np.full(100, 0.1)
    assert computing_cores(tenth, 0.1 * tenth) == 1
    assert computing_cores(tenth, 4 * tenth) == pytest.approx(4)
