"""Runs test files in a fork of a warm interpreter, with a limit of CPU time. Units: s.

A loaded machine takes longer but no more CPU time, so a fault that makes a test run on and on is
told from a slow machine. A run hangs if for a minute it neither runs nor waits for a processor.
pytest and the large packages are imported once, weft in each fork.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

from mutant import BUILD, ROOT, SITE

from weft.host.machine.processes import TreeTimes

PRELOADED = (
    "pytest",
    "hypothesis",
    "hypothesis.strategies",
    "hypothesis.internal.observability",
    "numpy",
    "scipy.optimize",
    "scipy.stats",
    "matplotlib.figure",
    "msgspec",
    "sitecustomize",
)
IDLE_S = 60
HUNG = 124
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--no-header", "--hypothesis-seed=0")
NO_WARNING = "-Wignore::pytest.PytestAssertRewriteWarning"  # of what is preloaded


class Process(Protocol):
    pid: int

    def wait(self, timeout_s: float) -> int | None:
        """The status, or None if it has not ended by then."""


class _Fork:
    def __init__(self, fork: ForkServerProcess) -> None:
        self._fork, self.pid = fork, fork.pid or 0

    def wait(self, timeout_s: float) -> int | None:
        self._fork.join(timeout_s)
        return self._fork.exitcode


class _Program:
    def __init__(self, program: subprocess.Popen[bytes]) -> None:
        self._program, self.pid = program, program.pid

    def wait(self, timeout_s: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._program.wait(timeout_s)
        return self._program.returncode


@dataclass(frozen=True, slots=True)
class TestRun:
    """How tests ended: pytest's status, a signal's where CPU time was up, or `HUNG`."""

    status: int
    failed: tuple[str, ...] = ()
    passed_count: int = 0
    cpu_s: float = 0


def end_if_hung(process: Process) -> int:
    """The status of a process that leads a session, which ends if it does nothing any more."""
    times, busy_s, since_s = TreeTimes(process.pid), 0.0, time.monotonic()
    while (status := process.wait(1)) is None:
        now = times.read()
        if now.cpu_s + now.run_delay_s > busy_s + 1:
            busy_s, since_s = now.cpu_s + now.run_delay_s, time.monotonic()
        if time.monotonic() - since_s > IDLE_S:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(IDLE_S)
            return HUNG
    return status


def limit_cpu(cpu_s: float) -> None:
    """For the current process and, each on its own, those it starts."""
    limit = int(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))


def start_warm_interpreter() -> None:
    """Call it before the first thread; the environment of now is that of every test."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    sys.path.insert(0, str(SITE))
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(BUILD / "hypothesis")
    _context.set_forkserver_preload(list(PRELOADED))


_context = get_context("forkserver")


def run_tests(tests: Sequence[str], environment: dict[str, str], cpu_limit_s: float) -> TestRun:
    """Runs test files or node ids until the first failure."""
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        process = _context.Process(
            target=_run_pytest, args=(list(tests), environment, cpu_limit_s, folder)
        )
        process.start()
        status = end_if_hung(_Fork(process))
        result = Path(folder, "result.json")
        fields = json.loads(result.read_text("utf-8")) if result.exists() else {}
        return TestRun(status, **{**fields, "failed": tuple(fields.get("failed", ()))})


class _Outcomes:
    """A pytest plugin: which tests failed, and how many passed. Examples are not shrunk."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed_count = 0

    def pytest_collection_modifyitems(self, items: Sequence[object]) -> None:
        """A failure is enough: shrinking its example takes most of the time of a killed mutant."""
        from hypothesis import Phase, settings

        phases = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
        for item in items:
            law = getattr(item, "obj", None)
            law = getattr(law, "__func__", law)
            if chosen := getattr(law, "_hypothesis_internal_use_settings", None):
                law._hypothesis_internal_use_settings = settings(chosen, phases=phases)  # type: ignore[union-attr]

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False):
            self.failed.append(getattr(report, "nodeid", ""))
        elif getattr(report, "passed", False) and getattr(report, "when", "") == "call":
            self.passed_count += 1


def _run_pytest(
    tests: list[str], environment: dict[str, str], cpu_limit_s: float, folder: str
) -> None:
    """In the fork: a session of its own, so that whatever the tests start can be ended."""
    import pytest

    os.setsid()
    os.chdir(ROOT)
    os.environ.update(environment)
    output = os.open(Path(folder, "output"), os.O_WRONLY | os.O_CREAT)
    for number, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), output, output]):
        os.dup2(descriptor, number)
    importlib.reload(sys.modules["sitecustomize"])  # reads the environment
    limit_cpu(cpu_limit_s)
    outcomes = _Outcomes()
    status = pytest.main(
        [*OPTIONS, NO_WARNING, f"--basetemp={folder}/tmp", *tests], plugins=[outcomes]
    )
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    fields = {
        "failed": outcomes.failed,
        "passed_count": outcomes.passed_count,
        "cpu_s": sum(part.ru_utime + part.ru_stime for part in usage),
    }
    Path(folder, "result.json").write_text(json.dumps(fields), "utf-8")
    sys.exit(int(status))


def run_program(argv: Sequence[str], folder: Path, cpu_limit_s: float) -> int:
    program = subprocess.Popen(
        argv,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: limit_cpu(cpu_limit_s),
    )
    return end_if_hung(_Program(program))
