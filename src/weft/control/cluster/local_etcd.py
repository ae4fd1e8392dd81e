"""An etcd of some nodes on this machine's loopback, for benchmarks and tests.

Its data is in a temporary folder. Nodes may be killed, stopped and started again.
Entry points: `start_local_etcd`, `LocalEtcd`. Units: seconds.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from weft.control.cluster.etcd_client import EtcdClient, Unreachable
from weft.errors import InputError

START_S = 180.0  # on a machine that others keep busy


class LocalEtcd:
    """Nodes by number, from 0. `inside`: words before each node's command, such as `ip netns exec`.

    `endpoints` and `peers`: where nodes answer clients and each other.
    """

    def __init__(
        self,
        folder: Path,
        endpoints: Sequence[str],
        peers: Sequence[str],
        inside: Sequence[Sequence[str]] = (),
    ) -> None:
        self.endpoints = list(endpoints)
        self.inside = list(inside) or [() for _ in endpoints]
        self._folder, self._processes = folder, dict[int, subprocess.Popen[bytes]]()
        self._peers = [f"http://{peer}" for peer in peers]

    def start(self, number: int) -> None:
        initial = ",".join(f"n{n}={peer}" for n, peer in enumerate(self._peers))
        client, peer = f"http://{self.endpoints[number]}", self._peers[number]
        options = {
            "name": f"n{number}",
            "data-dir": str(self._folder / f"n{number}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": initial,
            "log-level": "error",
            "auto-compaction-mode": "revision",
            "auto-compaction-retention": "1000",
        }
        words = [word for key, value in options.items() for word in (f"--{key}", value)]
        argv = [*self.inside[number], "etcd", *words]
        with (self._folder / f"n{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(argv, stdout=log, stderr=log)

    def wait_ready(self) -> None:
        with closing(EtcdClient(self.endpoints)) as client:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    client.read("x", within_s=1.0)
                    return
                except Unreachable:
                    if time.monotonic() > deadline:
                        raise

    def signal(self, number: int, kind: signal.Signals) -> None:
        self._processes[number].send_signal(kind)

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for number in list(self._processes):
            self.kill(number)


@contextmanager
def start_local_etcd(nodes: int = 3) -> Iterator[LocalEtcd]:
    if shutil.which("etcd") is None:
        raise InputError("etcd", "is not installed", "apt-get install etcd-server")
    with tempfile.TemporaryDirectory(prefix="weft-etcd-") as folder:
        places = [f"127.0.0.1:{port}" for port in _find_free_ports(2 * nodes)]
        etcd = LocalEtcd(Path(folder), places[:nodes], places[nodes:])
        try:
            for number in range(nodes):
                etcd.start(number)
            etcd.wait_ready()
            yield etcd
        finally:
            etcd.stop()


def _find_free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for line in sockets:
            line.bind(("127.0.0.1", 0))
        return [int(line.getsockname()[1]) for line in sockets]
    finally:
        for line in sockets:
            line.close()
