"""An etcd of a test's own, on loopback or in namespaces, and who leads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from cut_network import Network

from weft.control.cluster.local_etcd import START_S, LocalEtcd, start_local_etcd

EtcdCluster = LocalEtcd


@contextmanager
def etcd_cluster(nodes: int = 3) -> Iterator[LocalEtcd]:
    need_etcd()
    with start_local_etcd(nodes) as etcd:
        yield etcd


def need_etcd() -> None:
    if shutil.which("etcd") is None:
        if "etcd" in os.environ.get("WEFT_REQUIRE", "").split(","):
            pytest.fail("etcd: apt-get install etcd-server")
        pytest.skip("etcd: apt-get install etcd-server")


@contextmanager
def network_etcd(network: Network, nodes: Sequence[str]) -> Iterator[LocalEtcd]:
    """A node of etcd on each of these nodes of a network."""
    need_etcd()
    addresses = [network.addresses[node] for node in nodes]
    with tempfile.TemporaryDirectory(prefix="weft-etcd-") as folder:
        etcd = LocalEtcd(
            Path(folder),
            [f"{address}:2379" for address in addresses],
            [f"{address}:2380" for address in addresses],
            [network.enter(node) for node in nodes],
        )
        try:
            for number in range(len(nodes)):
                etcd.start(number)
            find_leader(etcd)
            yield etcd
        finally:
            etcd.stop()


def find_leader(etcd: LocalEtcd) -> int:
    """By etcdctl's endpoint status, which names the leader."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for number, endpoint in enumerate(etcd.endpoints):
            argv = [*etcd.inside[number], "etcdctl", "--endpoints", endpoint]
            argv += ["endpoint", "status", "-w", "fields"]
            environment = {**os.environ, "ETCDCTL_API": "3"}
            done = subprocess.run(
                argv, capture_output=True, text=True, env=environment, timeout=60, check=False
            )
            pairs = [line.split(" : ") for line in done.stdout.splitlines() if " : " in line]
            fields = {key.strip('" '): value.strip() for key, value in pairs}
            if fields and fields.get("MemberID") == fields.get("Leader"):
                return number
        time.sleep(0.1)
    raise AssertionError("no leader")
