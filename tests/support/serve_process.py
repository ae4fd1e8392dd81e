"""A `weft serve` of a test's own, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft import _core
from weft.measure import ChannelSpec, Peer, open_peer
from weft.wire import TOKEN_VARIABLE

DEADLINE_S = 30.0  # to notice, to free, to end
START_S = 180.0  # Python starts slowly where many tests run


def wait_until(condition: Callable[[], Any], what: str, within_s: float = DEADLINE_S) -> Any:
    """The condition's value once it is true."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.005)
    return value


class ServeProcess:
    """`weft serve` on a free port; its log lines in `lines()`."""

    def __init__(self, folder: Path, *options: str, token: str | None = None) -> None:
        environment = {k: v for k, v in os.environ.items() if k != TOKEN_VARIABLE}
        if token is not None:
            environment[TOKEN_VARIABLE] = token
        self._log = folder / f"serve-{time.monotonic_ns()}.log"
        self.stderr = self._log.with_suffix(".err")
        with self._log.open("wb") as log, self.stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "weft.cli",
                    "serve",
                    "--json",
                    "--listen",
                    "127.0.0.1:0",
                    *options,
                ],
                stdout=log,
                stderr=errors,
                env=environment,
            )
        try:
            wait_until(self._has_started, "the server listens", START_S)
            assert self.process.poll() is None, self.stderr.read_text()
        except AssertionError:
            self.process.kill()
            self.process.wait()
            raise
        self.port = json.loads(self._log.read_text().splitlines()[0])["addresses"][0][1]
        self.where = f"127.0.0.1:{self.port}"

    def _has_started(self) -> bool:
        return "\n" in self._log.read_text() or self.process.poll() is not None

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self) -> list[str]:
        """What it has logged."""
        logged = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [line["text"] for line in logged if line["event"] == "log"]

    def logged(self, pattern: str, within_s: float = DEADLINE_S) -> str:
        """The first line that has the pattern, once it is there."""
        found = wait_until(
            lambda: [line for line in self.lines() if re.search(pattern, line)],
            f"a line with {pattern!r} in {self.lines()[-5:]}",
            within_s,
        )
        return str(found[0])

    def children(self) -> list[int]:
        return children_of(self.pid)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory_kib(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]

    def end(self) -> None:
        """Ends it as a user does; it must end well, and leave no child."""
        children = self.children()
        self.process.terminate()
        try:
            status = self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
        assert status == 0, self.stderr.read_text()
        wait_until(lambda: not any(is_alive(pid) for pid in children), "no orphan")


@contextmanager
def serving(folder: Path, *options: str, token: str | None = None) -> Iterator[ServeProcess]:
    server = ServeProcess(folder, *options, token=token)
    try:
        yield server
        server.end()
    finally:
        server.process.kill()
        server.process.wait()


def children_of(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def echo_spec(transport: str = "tcp", size: int = 64, **config: Any) -> ChannelSpec:
    """An echo of checked messages; both sides sleep while they wait, as the machine is shared."""
    name, _, device = transport.partition(":")
    fields = {"transport": name, "device": device, "send_bytes": size, "receive_bytes": size}
    block = device != "shm"  # which can only spin
    loop = {"bytes": size, "validate": True, "block": block}
    return ChannelSpec(config=fields | {"events": block} | config, role="echo", loop=loop)


def loop_of(size: int = 64, **fields: Any) -> _core.LoopSpec:
    loop = _core.LoopSpec()
    for name, value in ({"bytes": size, "validate": True, "block": True} | fields).items():
        setattr(loop, name, value)
    return loop


def ping(peer: Peer, transport: str = "tcp", count: int = 50, size: int = 64) -> None:
    """A real latency test, every message checked on both sides."""
    with peer.open([echo_spec(transport, size)]) as channels:
        channels.start()
        loop = loop_of(size, count=count, block=transport != "ofi:shm")
        result = _core.ping_pong(channels.endpoints[0], loop, channels.stop)
        (counts,) = channels.finish()
    assert (result.counts.sent, result.counts.received, result.counts.error) == (count, count, "")
    assert result.counts.corrupted == 0
    assert result.latency.count == count
    assert counts["received"] == count


def still_serves(server: ServeProcess, transport: str = "tcp", token: bytes | None = None) -> None:
    assert server.process.poll() is None, server.stderr.read_text()
    with open_peer(server.where, token) as peer:
        ping(peer, transport)
