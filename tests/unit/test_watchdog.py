"""The watchdog of changed links: what ends its wait, and how it ends itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from restored import save_loopback

LIMIT_S = 60
START = [sys.executable, "-P", "-m", "weft.host.net.caps"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the lock of caps is root's")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Of loopback, which has what it had: to restore it is to remove its journal."""
    path = tmp_path / "journal.json"
    path.write_text(json.dumps([save_loopback().as_json()]))
    return path


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def watch(pid: int, journal: Path) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    argv = [*START, str(pid), str(journal)]
    # With PYTHONUNBUFFERED a flush that is missing would not show.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=environment
    )


def test_it_restores_when_its_pipe_is_closed(
    journal: Path, parent: subprocess.Popen[bytes]
) -> None:
    with watch(parent.pid, journal) as watchdog:
        assert watchdog.stdout is not None
        assert watchdog.stdout.readline() == b"watching\n"
        assert journal.exists()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            watchdog.send_signal(number)
        assert watchdog.communicate(timeout=LIMIT_S) == (b"", b"")
    assert watchdog.returncode == 0
    assert not journal.exists()


def test_it_restores_when_the_process_dies_though_its_pipe_is_held(
    journal: Path, parent: subprocess.Popen[bytes]
) -> None:
    with watch(parent.pid, journal) as watchdog:
        assert watchdog.stdout is not None
        watchdog.stdout.readline()
        parent.kill()
        assert watchdog.wait(LIMIT_S) == 0
        assert not journal.exists()


def test_it_restores_at_once_where_the_process_is_gone(journal: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    with watch(gone.pid, journal) as watchdog:
        assert watchdog.communicate(timeout=LIMIT_S) == (b"", b"")
    assert watchdog.returncode == 0
    assert not journal.exists()


def test_what_it_cannot_restore_is_one_line_and_status_1(journal: Path) -> None:
    (data,) = json.loads(journal.read_text())
    journal.write_text(json.dumps([data | {"kind": "tbf", "handle": 1 << 16}]))
    with watch(os.getpid(), journal) as watchdog:
        _, error = watchdog.communicate(timeout=LIMIT_S)
    assert watchdog.returncode == 1
    assert error.startswith(b"weft: lo")
    assert error.count(b"\n") == 1
    assert journal.exists()
