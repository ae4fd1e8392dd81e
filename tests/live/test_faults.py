"""Either side killed at random points: no hang, no orphan, nothing leaked, the server serves on.

WEFT_FAULT_KILLS kills from one seed; `make test-faults` runs 200. The victim is in turn the client,
its session's process, or the server itself, while tests over tcp, udp and (where libfabric is
installed) ofi:shm and ofi:tcp run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import fault_client
import pytest
from serve_process import START_S, ServeProcess, is_alive, still_serves, wait_until

from weft import _core
from weft.measure.peer.server import find_stale_shared_memory

KILLS = int(os.environ.get("WEFT_FAULT_KILLS", "12"))
SEED = 20260316
LONGEST_S = 10.0
VICTIMS = ("client", "session", "server")


@pytest.fixture(scope="module")
def transports() -> list[str]:
    offered = {f"{a.transport}:{a.device}" for a in _core.availability() if a.available}
    return ["tcp", "udp", *sorted({"ofi:shm", "ofi:tcp"} & offered)]


class Range:
    """A server, restarted when it is the victim, and one client at a time."""

    def __init__(self, folder: Path, transports: list[str]) -> None:
        self.folder = folder
        self.transports = transports
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["fault_client"])
        self.error_file, self.trace_file = folder / "error", folder / "trace"
        self.server = ServeProcess(folder)
        still_serves(self.server)
        self.descriptors = self.server.descriptors()

    def start_client(self, seed: int) -> ForkServerProcess:
        self.error_file.unlink(missing_ok=True)
        self.trace_file.write_text("")
        files = (str(self.error_file), str(self.trace_file))
        arguments = (self.server.where, seed, self.transports, *files)
        client = self.context.Process(target=fault_client.main, args=arguments)
        client.start()
        return client

    def kill(self, victim: str, rng: random.Random) -> None:
        client = self.start_client(rng.randrange(1 << 30))
        assert client.pid is not None
        try:
            if victim == "session":
                wait_until(self.server.children, "a session", START_S)
            time.sleep(rng.uniform(0, 0.5))  # the random point
            sessions = self.server.children()
            began = time.monotonic()
            if victim == "session":
                self.kill_session(client)
            else:
                os.kill({"client": client.pid, "server": self.server.pid}[victim], signal.SIGKILL)
            self.check_client(client, victim)
            wait_until(lambda: not any(map(is_alive, sessions)), "no orphan", LONGEST_S)
            wait_until(
                lambda: not find_stale_shared_memory(), "no shared memory is left", LONGEST_S
            )
            assert time.monotonic() - began < LONGEST_S
            self.check_server(victim)
        finally:
            client.kill()
            client.join()
            client.close()

    def kill_session(self, client: ForkServerProcess) -> None:
        """Until the client has noticed: one that was about to end is not missed."""
        deadline = time.monotonic() + LONGEST_S
        while client.is_alive() and time.monotonic() < deadline:
            for pid in self.server.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            client.join(0.005)

    def check_client(self, client: ForkServerProcess, victim: str) -> None:
        client.join(LONGEST_S)
        if victim == "client":
            assert client.exitcode == -signal.SIGKILL
        else:
            assert client.exitcode == fault_client.TOLD, (victim, self.trace_file.read_text())
            assert self.server.where in self.error_file.read_text()

    def check_server(self, victim: str) -> None:
        if victim == "server":
            assert self.server.process.wait(LONGEST_S) == -signal.SIGKILL
            self.server = ServeProcess(self.folder)
            still_serves(self.server)
        wait_until(lambda: not self.server.children(), "its sessions have ended", LONGEST_S)
        wait_until(lambda: self.server.descriptors() <= self.descriptors, "no descriptor is leaked")


def test_a_side_killed_at_a_random_point_leaves_nothing_behind(tmp_path, transports):
    rng = random.Random(SEED)
    field = Range(tmp_path, transports)
    try:
        for number in range(KILLS):
            field.kill(VICTIMS[number % len(VICTIMS)], rng)
            assert "Traceback" not in field.server.stderr.read_text()
        for transport in transports:
            still_serves(field.server, transport)
        field.server.end()
    finally:
        field.server.process.kill()
        field.server.process.wait()
