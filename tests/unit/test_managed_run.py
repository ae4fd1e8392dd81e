"""`weft run` where nothing is managed: the command's status, output and signals are its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weft.control.client.app import UnmanagedWarning
from weft.control.client.managed_run import LINGER_S, GroupReporter, HostPairs, fork_gated

START = [sys.executable, "-m", "weft.cli", "run", "--app", "sort", "--controller", "127.0.0.1:1"]
SIGNALLED = """
import signal, sys, time
def note(number, _):
    print("got", number, flush=True)
    sys.exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, note)
print("ready", flush=True)
time.sleep(60)
"""


def ran(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*START, "--", *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("status", [0, 1, 77])
def test_the_status_is_the_commands(status: int) -> None:
    assert ran("sh", "-c", f"exit {status}").returncode == status


def test_a_command_that_a_signal_ends_has_128_and_the_signal() -> None:
    assert ran("sh", "-c", "kill -9 $$").returncode == 128 + 9


def test_what_the_command_says_is_unchanged_and_one_line_says_that_it_is_unmanaged() -> None:
    done = ran("sh", "-c", "echo out; echo err >&2")
    assert done.stdout == "out\n"
    lines = done.stderr.splitlines()
    assert lines.count("err") == 1
    assert len([line for line in lines if line.startswith("weft:")]) == 1


def test_a_command_that_is_not_there_has_the_status_of_a_shell() -> None:
    done = ran("/nonexistent/program")
    assert done.returncode == 127
    assert "/nonexistent/program: No such file or directory" in done.stderr


def test_a_command_that_cannot_be_executed_has_the_status_of_a_shell() -> None:
    assert ran("/etc/passwd").returncode == 126


def test_without_a_command_nothing_runs() -> None:
    done = subprocess.run(START, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no command is given" in done.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1], ids=str
)
def test_signals_are_passed_on(number: signal.Signals) -> None:
    argv = [*START, "--", sys.executable, "-c", SIGNALLED]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"got {int(number)}\n".encode()
        assert process.wait(20) == 7


def test_a_command_begins_with_no_signal_blocked() -> None:
    text = "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    assert ran(sys.executable, "-c", text).stdout == "0\n"


def test_what_a_command_leaves_running_goes_on() -> None:
    started = time.monotonic()
    done = ran("sh", "-c", "sleep 30 >/dev/null 2>&1 & echo $!")
    assert time.monotonic() - started < 25
    left = int(done.stdout)
    try:
        assert state(left) == "S", "asleep: neither ended nor waiting to be noticed"
    finally:
        os.kill(left, signal.SIGKILL)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_command_runs_where_warnings_are_errors() -> None:
    done = ran("echo", "out", PYTHONWARNINGS="error::UserWarning")
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert "Traceback" not in done.stderr


def test_a_command_whose_reader_has_ended_gets_the_signal() -> None:
    # SIGPIPE, which Python ignores, is the command's again.
    assert ran("sh", "-c", "kill -PIPE $$; exit 3").returncode == 128 + signal.SIGPIPE


# ---- Held commands ----------------------------------------------------------------------------


def test_a_held_command_runs_when_it_is_let_go(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with fork_gated(["touch", str(mark)], None, set()) as process:
        time.sleep(0.1)
        assert not mark.exists()
        process.release()
        while process.status() is None:
            time.sleep(0.01)
        assert process.status() == 0
    assert mark.exists()


def test_a_held_command_that_is_never_let_go_ends_without_having_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with fork_gated(["touch", str(mark)], None, set()) as process:
        pass
    assert not mark.exists()
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_held_command_that_is_not_there_says_so_when_it_is_let_go() -> None:
    with (
        fork_gated(["/nonexistent/program"], None, set()) as process,
        pytest.raises(FileNotFoundError),
    ):
        process.release()
    assert not Path(f"/proc/{process.pid}").exists()


# ---- Pairs of hosts ---------------------------------------------------------------------------


class LoggedConnection:
    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name
        log.append(f"+{name}")

    def close(self) -> None:
        self._log.append(f"-{self._name}")


def test_a_pair_is_reported_once_and_closed_a_while_after_its_last_connection() -> None:
    log: list[str] = []
    pairs = HostPairs(lambda here, there: LoggedConnection(log, f"{here}{there}"))
    pairs.update([("a", "b"), ("a", "c")], 0.0)
    pairs.update([("a", "b")], 0.1)
    pairs.update([("a", "b")], LINGER_S)
    assert log == ["+ab", "+ac"]
    pairs.update([("a", "b")], LINGER_S + 0.01)
    assert log == ["+ab", "+ac", "-ac"]
    pairs.update([], 2 * LINGER_S + 0.02)
    pairs.update([("a", "c")], 2 * LINGER_S + 0.03)
    assert log == ["+ab", "+ac", "-ac", "-ab", "+ac"]


# ---- Reports ----------------------------------------------------------------------------------


class Recorder:
    """An application, a group and its connections at once: what was done to them."""

    def __init__(self) -> None:
        self.level = 0
        self.marks: list[int] = []
        self.declared: list[tuple[str, str]] = []
        self.closes = 0
        self.addresses = [("10.0.0.1", "10.0.0.2"), ("127.0.0.1", "127.0.0.1")]
        self.is_broken = False

    def mark(self, level: int) -> None:
        self.marks.append(level)

    def read(self) -> list[SimpleNamespace]:
        if self.is_broken:
            raise OSError("the kernel refuses")
        return [SimpleNamespace(local_address=a, remote_address=b) for a, b in self.addresses]

    def declare(self, source: str, destination: str) -> SimpleNamespace:
        self.declared.append((source, destination))
        return SimpleNamespace(close=lambda: None)

    def close(self, wait_s: float) -> None:
        assert wait_s == 0.0
        self.closes += 1


def test_connections_that_leave_the_host_are_reported_once_and_levels_marked_once() -> None:
    recorder: Any = Recorder()
    reporter = GroupReporter(recorder, recorder, recorder)
    reporter.update()
    assert recorder.marks == []  # unmanaged: level 0, as it began
    recorder.level = 3
    reporter.update()
    reporter.update()
    assert recorder.marks == [3]
    assert recorder.declared == [("10.0.0.1", "10.0.0.2")]


def test_a_reporter_that_fails_says_so_once_and_leaves_the_command_alone() -> None:
    recorder: Any = Recorder()
    reporter = GroupReporter(recorder, recorder, recorder)
    recorder.is_broken = True
    with pytest.warns(UnmanagedWarning, match="run: the kernel refuses"):
        reporter.update()
    recorder.is_broken = False
    reporter.update()
    assert (recorder.closes, recorder.declared) == (1, [])
