"""A `weft control serve` of the controller's benchmark, and calls to it.

`serve_controller` runs one in a folder, on the switches of a `Rig`: `open_simulated` is the papers'
fabric (1,944 servers, 264 switches, 9,288 ports) on simulated switches whose registers outlive the
controller; `open_linux` and `open_ibsim` are small real fabrics, or say why they cannot run here.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc

from weft.control.service import weft_pb2 as pb
from weft.control.service.methods import method_path, reply_class
from weft.errors import InputError
from weft.fabric import leaf_spine, papers_1944, write_toml
from weft.host.testbed import persistent
from weft.host.testbed.wiring import Wiring
from weft.sensitivity.application import Profile, Run, fit_application
from weft.sensitivity.application_table import AppTable

SEED = 6
APPS = 20
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
HOSTS = 1944
START_S = 120.0
SIMULATED = (
    'driver = "simulated"\nfabric = "fabric.toml"\nregisters = "registers"\n'
    "queues = 8\nentries = 16\nunits = 2040\n"
)
_BED = "bench-control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """Switches that a controller can be started on: their keys, its environment, the hosts.

    ibsim's library keeps files in the working directory.
    """

    switches: str
    hosts: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    directory: Path | None = None


def prepare(folder: Path) -> None:
    """Fabric and models."""
    (folder / "fabric.toml").write_text(write_toml(papers_1944()))
    rng = random.Random(SEED)
    for n in range(APPS):
        part = rng.uniform(0.05, 1.0)
        runs = [Run(share=share, completion=60 * (1 + part * (1 / share - 1))) for share in SHARES]
        AppTable(folder / "apps").save(fit_application(Profile(name=f"app{n}", runs=tuple(runs))))


def open_simulated(*, take_over: bool) -> Rig:
    keys = f"{SIMULATED}take_over = {str(take_over).lower()}\n"
    return Rig(switches=keys, hosts=tuple(f"h{n}" for n in range(HOSTS)))


# ---- Real parts -------------------------------------------------------------------------------


@contextmanager
def open_linux() -> Iterator[Rig | str]:
    """A testbed of eight hosts behind two switches; or why there is none."""
    names = tuple(f"h{n}" for n in range(1, 9))
    try:
        persistent.build_testbed(_BED, Wiring(hosts=names, rate_bps=10**9, switches="two-hops"))
    except InputError as error:
        yield str(error)
        return
    try:
        yield Rig(switches=f'driver = "linux"\ntestbed = "{_BED}"\n', hosts=names)
    finally:
        persistent.remove_testbed(_BED)


@contextmanager
def open_ibsim(folder: Path) -> Iterator[Rig | str]:
    """Four leaves and two spines of ibsim under OpenSM; or why there are none."""
    harness = import_module("tests.support.ibsim")
    why_not = harness.why_not()
    if why_not:
        yield str(why_not)
        return
    folder.mkdir()
    fabric = leaf_spine(4, 2, 4)
    with harness.subnet(fabric, folder) as subnet:
        hosts = tuple(fabric.nodes[n].name for n in fabric.hosts)
        yield Rig(
            switches='driver = "infiniband"\n',
            hosts=hosts,
            environment=subnet.environment(),
            directory=folder,
        )


# ---- A controller -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A controller that listens."""

    address: str
    channel: grpc.Channel
    pid: int


@contextmanager
def serve_controller(folder: Path, rig: Rig, python: str = sys.executable) -> Iterator[Controller]:
    """A controller on these switches, with the folder's store, and a channel to it."""
    file, log = folder / "control.toml", folder / "control.log"
    file.write_text(
        'socket = "control.sock"\nstore = "control.db"\napps = "apps"\n'
        f"[limits]\nrate_per_s = 100000\n[switches]\n{rig.switches}"
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, "-m", "weft.cli", "control", "serve", str(file), "--json"],
            stdout=output,
            env=rig.environment,
            cwd=rig.directory or folder,
        )
    try:
        address = _read_address(log, process)
        with grpc.insecure_channel(address) as channel:
            yield Controller(address=address, channel=channel, pid=process.pid)
    finally:
        process.terminate()
        process.wait()


def _read_address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Once it listens; lines of ibsim's library are skipped."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, f"the controller ended with {process.returncode}"
        lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
        messages = [json.loads(line) for line in lines if line.endswith("}")]
        addresses = [message["text"] for message in messages if message["event"] == "listening"]
        if addresses:
            return str(addresses[0])
        time.sleep(0.005)
    raise AssertionError(f"the controller does not listen after {START_S:g} s")


def call_controller(channel: grpc.Channel, name: str, request: Any) -> Any:
    method = channel.unary_unary(
        method_path(name),
        request_serializer=type(request).SerializeToString,
        response_deserializer=reply_class(name).FromString,
    )
    return method(request, timeout=120)


def wait_programmed(channel: grpc.Channel, ports: int = 0) -> Any:
    """The status, once all ports are programmed and there are at least `ports`."""
    while True:
        status = call_controller(channel, "Status", pb.StatusRequest())
        is_done = (
            status.programmed == status.revision and not status.ports_pending + status.ports_failing
        )
        if is_done and not status.problems and status.ports >= ports:
            return status
        time.sleep(0.02)
