"""An etcd of a test's own, and who leads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from weft.control.cluster.local_etcd import START_S, LocalEtcd, start_local_etcd

EtcdCluster = LocalEtcd


@contextmanager
def etcd_cluster(nodes: int = 3) -> Iterator[LocalEtcd]:
    if shutil.which("etcd") is None:
        if "etcd" in os.environ.get("WEFT_REQUIRE", "").split(","):
            pytest.fail("etcd: apt-get install etcd-server")
        pytest.skip("etcd: apt-get install etcd-server")
    with start_local_etcd(nodes) as etcd:
        yield etcd


def find_leader(etcd: LocalEtcd) -> int:
    """By etcdctl's endpoint status, which names the leader."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for number, endpoint in enumerate(etcd.endpoints):
            argv = ["etcdctl", "--endpoints", endpoint, "endpoint", "status", "-w", "fields"]
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
