"""How many registrations and connections controllers take, and how long a take-over takes.

Controllers run as processes on this machine, on simulated switches, each with a share of the
leaves; several share a local etcd of three nodes. Each has a client that registers and ends
applications from several threads, then one that opens and closes connections by a stream. A
connection counts when it is acknowledged. Entry points: `measure_rates`, `measure_take_over`.
Units: seconds, requests per second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from weft.control.cluster.local_etcd import LocalEtcd, start_local_etcd
from weft.control.service import weft_pb2 as pb
from weft.control.service.methods import method_path, reply_class
from weft.errors import InputError
from weft.fabric import leaf_spine, write_toml
from weft.sensitivity.application import Profile, Run, fit_application
from weft.sensitivity.application_table import AppTable

LEAVES, SPINES, HOSTS = 8, 4, 8  # hosts of each leaf
BATCH = 200  # connections of a message
THREADS = 8  # that register at once
START_S = 120.0
TTL_S = 2
_LONG_TTL_S = 60  # a busy machine is not to change owners while rates are measured
_PARTS = {"calm": 0.1, "middling": 0.4, "keen": 0.9}
_SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of all controllers together."""

    controllers: int
    registrations_per_s: float
    connections_per_s: float


# ---- Controllers ------------------------------------------------------------------------------


class Server:
    """A `weft control serve` in a folder."""

    def __init__(self, folder: Path, name: str, cluster: str) -> None:
        self.file, self._log = folder / f"{name}.toml", folder / f"{name}.log"
        self.file.write_text(
            f'store = "{name}.db"\napps = "apps"\nsocket = "{name}.sock"\n'
            "[limits]\nrate_per_s = 1000000\n[quotas]\nrate_per_s = 10000000\njobs = 1000000\n"
            f"connections = 10000000\n{cluster}"
            '[switches]\ndriver = "simulated"\nfabric = "fabric.toml"\nregisters = "registers"\n'
        )
        with self._log.open("wb") as log:
            argv = [sys.executable, "-m", "weft.cli", "control", "serve", str(self.file), "--json"]
            self.process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)

    def find_address(self) -> str | None:
        whole = self._log.read_text().rpartition("\n")[0].splitlines()
        if self.process.poll() is not None:
            raise InputError("controller", "has ended", whole[-1] if whole else "without a word")
        lines = [json.loads(line) for line in whole if line.startswith("{")]
        return next((line["text"] for line in lines if line["event"] == "listening"), None)

    def await_address(self) -> str:
        return str(_await(self.find_address, f"{self.file} listens"))

    def is_standby(self) -> bool:
        return "standby" in self._log.read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def _await(condition: Callable[[], Any], goal: str) -> Any:
    deadline = time.monotonic() + START_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise InputError("bench", f"not within {START_S:g} s: {goal}", "try a calmer machine")
        time.sleep(0.01)
    return value


@contextmanager
def _folder() -> Iterator[Path]:
    """With a fabric and models."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        folder = Path(name)
        (folder / "fabric.toml").write_text(write_toml(leaf_spine(LEAVES, SPINES, HOSTS)))
        for application, part in _PARTS.items():
            runs = [Run(share=s, completion=10 * (1 + part * (1 / s - 1))) for s in _SHARES]
            profile = Profile(name=application, runs=tuple(runs))
            AppTable(folder / "apps").save(fit_application(profile))
        yield folder


def _describe_cluster(
    etcd: LocalEtcd, group: str, groups: Mapping[str, Sequence[str]], ttl_s: float
) -> str:
    lines = ["[etcd]", f"endpoints = {json.dumps(etcd.endpoints)}", f'group = "{group}"']
    lines += [f"ttl_s = {ttl_s}", "write_s = 0.5"]
    if groups:
        lines += ["[groups]", *(f"{name} = {json.dumps(p)}" for name, p in groups.items())]
    return "\n".join([*lines, ""])


def _share_nodes(count: int) -> dict[str, list[str]]:
    """Leaves with their hosts, and spines, dealt out."""
    groups: dict[str, list[str]] = {f"g{n}": [] for n in range(count)}
    names = list(groups)
    for leaf in range(LEAVES):
        hosts = [f"h{leaf * HOSTS + n}" for n in range(HOSTS)]
        groups[names[leaf % count]] += [f"leaf{leaf}", *hosts]
    for spine in range(SPINES):
        groups[names[spine % count]].append(f"spine{spine}")
    return groups


# ---- Clients ----------------------------------------------------------------------------------


class _Client:
    def __init__(self, address: str) -> None:
        self.name, self._sequence = os.urandom(8).hex(), 0
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )

    def key(self) -> pb.Key:
        self._sequence += 1
        return pb.Key(client=self.name, sequence=self._sequence)

    def call(self, name: str, request: Any) -> Any:
        return self.channel.unary_unary(
            method_path(name),
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply_class(name).FromString,
        )(request, timeout=60.0)

    def register(self) -> str:
        request = pb.RegisterRequest(key=self.key(), application="calm", ttl_s=3600.0)
        return str(self.call("Register", request).id)

    def count_registrations(self, until_s: float) -> int:
        """Registrations and their ends, until a time."""
        count = 0
        while time.monotonic() < until_s:
            id_ = self.register()
            self.call("Deregister", pb.DeregisterRequest(key=self.key(), id=id_))
            count += 2
        return count

    def count_connections(self, until_s: float) -> int:
        """Connections opened and closed by a stream, two messages under way at a time."""
        id_, acknowledged = self.register(), [0]
        permits = threading.Semaphore(2)
        stream = self.channel.stream_stream(
            method_path("Events"),
            request_serializer=pb.EventBatch.SerializeToString,
            response_deserializer=pb.AckBatch.FromString,
        )
        for batch in stream(self._list_batches(id_, until_s, permits)):
            refused = [ack.message for ack in batch.acks if ack.code]
            if refused:
                raise InputError("bench", refused[0])
            acknowledged[0] += len(batch.acks)
            permits.release()
        return acknowledged[0]

    def _list_batches(
        self, id_: str, until_s: float, permits: threading.Semaphore
    ) -> Iterator[pb.EventBatch]:
        hosts = LEAVES * HOSTS
        while time.monotonic() < until_s:
            keys = [self.key() for _ in range(BATCH)]
            permits.acquire()
            yield pb.EventBatch(
                events=[
                    pb.Event(
                        connect=pb.ConnectRequest(
                            key=key,
                            id=id_,
                            source=f"h{key.sequence % hosts}",
                            destination=f"h{(7 * key.sequence + 1) % hosts}",
                        )
                    )
                    for key in keys
                ]
            )
            permits.acquire()
            names = [f"{key.client}/{key.sequence}" for key in keys]
            closing = [pb.DisconnectRequest(connection=name) for name in names]
            yield pb.EventBatch(events=[pb.Event(disconnect=request) for request in closing])


def _run_clients(
    addresses: Sequence[str], each: int, seconds: float, count: Callable[[_Client, float], int]
) -> float:
    """How many per second, of all clients."""
    clients = [_Client(address) for address in addresses for _ in range(each)]
    try:
        with ThreadPoolExecutor(len(clients)) as threads:
            began_s = time.monotonic()
            until_s = began_s + seconds
            total = sum(threads.map(lambda client: count(client, until_s), clients))
            return total / (time.monotonic() - began_s)
    except grpc.RpcError as error:
        raise InputError("bench", f"a controller does not answer: {error}") from error
    finally:
        for client in clients:
            client.channel.close()


# ---- Measurements -----------------------------------------------------------------------------


def measure_rates(controllers: int, seconds: float) -> Rates:
    """One controller with SQLite alone, or so many with etcd, a group each."""
    with ExitStack() as stack:
        folder = stack.enter_context(_folder())
        if controllers == 1:
            clusters = {"central": ""}
        else:
            etcd, groups = stack.enter_context(start_local_etcd()), _share_nodes(controllers)
            clusters = {name: _describe_cluster(etcd, name, groups, _LONG_TTL_S) for name in groups}
        servers = [Server(folder, name, cluster) for name, cluster in clusters.items()]
        for server in servers:
            stack.callback(server.end)
        addresses = [server.await_address() for server in servers]
        for address in addresses:
            _await(partial(_has_models, address), "models are known")
        return Rates(
            controllers=controllers,
            registrations_per_s=_run_clients(
                addresses, THREADS, seconds, _Client.count_registrations
            ),
            connections_per_s=_run_clients(addresses, 1, seconds, _Client.count_connections),
        )


def _has_models(address: str) -> bool:
    client = _Client(address)
    try:
        return bool(client.call("Status", pb.StatusRequest()).models == len(_PARTS))
    except grpc.RpcError:
        return False
    finally:
        client.channel.close()


def measure_take_over(times: int) -> list[float]:
    """From SIGKILL of the owner to an answer of its standby, with a lease of `TTL_S`."""
    with ExitStack() as stack:
        folder = stack.enter_context(_folder())
        cluster = _describe_cluster(stack.enter_context(start_local_etcd()), "g0", {}, TTL_S)
        owner = Server(folder, "m0", cluster)
        stack.callback(owner.end)
        owner.await_address()
        taken_s: list[float] = []
        for number in range(1, times + 1):
            standby = Server(folder, f"m{number}", cluster)
            stack.callback(standby.end)
            _await(standby.is_standby, "a standby follows")
            began_s = time.monotonic()
            owner.process.send_signal(signal.SIGKILL)
            address = standby.await_address()
            _await(partial(_has_models, address), "the standby answers")
            taken_s.append(time.monotonic() - began_s)
            owner = standby
        return taken_s
