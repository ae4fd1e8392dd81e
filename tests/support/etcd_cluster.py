"""An etcd of three nodes on loopback, for tests: nodes may be killed, stopped and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from serve_process import wait_until

from weft.control.cluster.etcd_client import EtcdClient
from weft.errors import InputError

START_S = 180.0


def need_etcd() -> None:
    if shutil.which("etcd") is None:
        if "etcd" in os.environ.get("WEFT_REQUIRE", "").split(","):
            pytest.fail("etcd: apt-get install etcd-server")
        pytest.skip("etcd: apt-get install etcd-server")


def _find_free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for line in sockets:
            line.bind(("127.0.0.1", 0))
        return [int(line.getsockname()[1]) for line in sockets]
    finally:
        for line in sockets:
            line.close()


class EtcdCluster:
    """Nodes by number. Data is in `folder`."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder = folder
        ports = _find_free_ports(2 * nodes)
        self.endpoints = [f"127.0.0.1:{port}" for port in ports[:nodes]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[nodes:]]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        initial = ",".join(f"n{n}={peer}" for n, peer in enumerate(self._peers))
        client, peer = f"http://{self.endpoints[number]}", self._peers[number]
        argv = ["etcd", "--name", f"n{number}", "--data-dir", str(self.folder / f"n{number}")]
        argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        argv += ["--initial-cluster", initial, "--log-level", "error"]
        argv += ["--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000"]
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"n{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(argv, stdout=log, stderr=log)

    def wait_ready(self) -> None:
        client = EtcdClient(self.endpoints)
        try:
            wait_until(lambda: self._answers(client), "etcd has a leader", START_S)
        finally:
            client.close()

    @staticmethod
    def _answers(client: EtcdClient) -> bool:
        try:
            client.read("x", within_s=1.0)
        except InputError:
            return False
        return True

    def signal(self, number: int, what: signal.Signals) -> None:
        self._processes[number].send_signal(what)

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def find_leader(self) -> int:
        """By etcdctl's endpoint status, which names the leader."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for number, endpoint in enumerate(self.endpoints):
                argv = ["etcdctl", "--endpoints", endpoint, "endpoint", "status", "-w", "fields"]
                environment = {**os.environ, "ETCDCTL_API": "3"}
                done = subprocess.run(
                    argv, capture_output=True, text=True, env=environment, timeout=20, check=False
                )
                pairs = [line.split(" : ") for line in done.stdout.splitlines() if " : " in line]
                fields = {key.strip('" '): value.strip() for key, value in pairs}
                if fields and fields.get("MemberID") == fields.get("Leader"):
                    return number
            time.sleep(0.1)
        raise AssertionError("no leader")

    def stop(self) -> None:
        for number in list(self._processes):
            self.kill(number)


@contextmanager
def etcd_cluster(nodes: int = 3) -> Iterator[EtcdCluster]:
    need_etcd()
    with tempfile.TemporaryDirectory(prefix="weft-etcd-") as folder:
        cluster = EtcdCluster(Path(folder), nodes)
        try:
            for number in range(nodes):
                cluster.start(number)
            cluster.wait_ready()
            yield cluster
        finally:
            cluster.stop()
