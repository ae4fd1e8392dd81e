"""A `weft control serve` of a test's own, on simulated switches whose registers outlive it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
from serve_process import START_S, wait_until

from weft.control.service import weft_pb2 as pb
from weft.control.service.methods import method_path, reply_class
from weft.fabric import Fabric, leaf_spine, write_toml
from weft.sensitivity.application import Profile, Run, fit_application
from weft.sensitivity.application_table import AppTable
from weft.switches import PortName, Tables
from weft.switches.simulated import SimulatedSwitches, read_routed_fabric

PARTS = {"calm": 0.1, "middling": 0.4, "keen": 0.9}
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
_RUNNING = itertools.count()


def save_applications(folder: Path, parts: Mapping[str, float] = PARTS) -> None:
    """Profiles of applications that communicate for this part of their time."""
    for name, part in parts.items():
        runs = [Run(share=share, completion=10 * (1 + part * (1 / share - 1))) for share in SHARES]
        AppTable(folder).save(fit_application(Profile(name=name, runs=tuple(runs))))


def slowly(condition: Callable[[], Any], what: str, within_s: float, pause_s: float = 0.02) -> Any:
    """The condition's value once it is true; a caller may not ask for a status all the time."""

    def looked() -> Any:
        time.sleep(pause_s)
        return condition()

    return wait_until(looked, what, within_s)


class ControlProcess:
    """A controller in a folder: its store, its table, its switches. May be killed and restarted."""

    environment: Mapping[str, str] | None = None
    directory: Path | None = None  # where it runs

    def __init__(self, folder: Path, fabric: Fabric | None = None, more: str = "") -> None:
        self.folder = folder
        self.file = folder / "control.toml"
        (folder / "fabric.toml").write_text(write_toml(fabric or leaf_spine(2, 2, 2)))
        save_applications(folder / "apps")
        policy = (
            "" if "[policy]" in more else '[policy]\nmanaged_share = 1.0\nobjective = "slowdown"\n'
        )
        self.file.write_text(
            'listen = "127.0.0.1:0"\nlisten_without_tls = true\n'
            'store = "control.db"\napps = "apps"\n'
            f'socket = "control.sock"\n{more}\n{policy}[switches]\ndriver = "simulated"\n'
            'fabric = "fabric.toml"\nregisters = "registers"\ncheck_s = 1.0\n'
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> float:
        """Starts it; seconds until it answers."""
        began = time.monotonic()
        self.log = self.folder / f"control-{next(_RUNNING)}.log"
        self.errors = self.log.with_suffix(".err")
        with self.log.open("wb") as log, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "weft.cli", "control", "serve", str(self.file), "--json"],
                stdout=log,
                stderr=errors,
                env=self.environment,
                cwd=self.directory,
            )
        wait_until(self._has_started, "the controller listens", START_S)
        assert self.process.poll() is None, self.errors.read_text()
        (self.address,) = [line["text"] for line in self.lines() if line["event"] == "listening"]
        return time.monotonic() - began

    def _has_started(self) -> bool:
        assert self.process is not None
        listening = any(line["event"] == "listening" for line in self.lines())
        return listening or self.process.poll() is not None

    def lines(self) -> list[dict[str, Any]]:
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def memory_kib(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    @property
    def cpu_s(self) -> float:
        """Processor time that it has had."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """As a user does."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(30)
        assert status == 0, (status, self.errors.read_text(), self.log.read_text()[-2000:])

    def held(self) -> dict[PortName, Tables]:
        """What the switches hold, read past the controller."""
        fabric = read_routed_fabric(str(self.folder / "fabric.toml"))
        switches = SimulatedSwitches(fabric, path=self.folder / "registers")
        try:
            names = [
                PortName(node.name, port)
                for n, node in enumerate(fabric.nodes)
                for port in fabric.neighbors(n)
            ]
            found = switches.read(names)
            return {name: told for name, told in found.items() if isinstance(told, Tables)}
        finally:
            switches.close()


@contextmanager
def controlling(
    folder: Path, fabric: Fabric | None = None, more: str = ""
) -> Iterator[ControlProcess]:
    with running(ControlProcess(folder, fabric, more)) as made:
        yield made


Controller = TypeVar("Controller", bound=ControlProcess)


@contextmanager
def running(made: Controller) -> Iterator[Controller]:
    """Started; afterwards it must end well and have complained of nothing."""
    try:
        made.start()
        yield made
        made.end()
        assert "Traceback" not in made.errors.read_text()
    finally:
        if made.process is not None:
            made.process.kill()
            made.process.wait()


def weft(control: ControlProcess, *words: str) -> tuple[int, str]:
    """A command to it: its status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "weft.cli", "control", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "WEFT_CONTROLLER": control.address},
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


class Client:
    """Calls over a connection of its own, with keys of its own."""

    def __init__(self, address: str, name: str | None = None) -> None:
        self.name = name or os.urandom(8).hex()
        # Channels of one process share a connection otherwise, and would be one caller.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(address, options=options)
        self.sequence = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def key(self) -> pb.Key:
        self.sequence += 1
        return pb.Key(client=self.name, sequence=self.sequence)

    def call(self, method: str, request: Any, timeout_s: float = 20.0) -> Any:
        made = self.channel.unary_unary(
            method_path(method),
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply_class(method).FromString,
        )
        return made(request, timeout=timeout_s)

    def register(self, name: str, ttl_s: float = 60.0) -> Any:
        request = pb.RegisterRequest(key=self.key(), application=name, ttl_s=ttl_s)
        return self.call("Register", request)

    def connect(self, id_: str, source: str, destination: str) -> str:
        request = pb.ConnectRequest(key=self.key(), id=id_, source=source, destination=destination)
        return str(self.call("Connect", request).connection)

    def status(self, **what: Any) -> Any:
        return self.call("Status", pb.StatusRequest(**what))

    def settled(self, within_s: float = 30.0) -> Any:
        """The status once every port has what it should."""
        return slowly(self._programmed, "every port is programmed", within_s)

    def _programmed(self) -> Any:
        found = self.status()
        done = found.programmed == found.revision and not found.ports_pending + found.ports_failing
        # Before the first discovery, connections have no path and no port is pending.
        located = not found.connections_without_path
        return found if done and located and not found.problems else None

    def stream(self, batches: Any) -> Any:
        made = self.channel.stream_stream(
            method_path("Events"),
            request_serializer=pb.EventBatch.SerializeToString,
            response_deserializer=pb.AckBatch.FromString,
        )
        return made(batches)
