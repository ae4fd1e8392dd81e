"""Controllers that share a group through etcd, under load, with faults one after the other.

WEFT_GROUP_FAULTS faults from one seed; `make test-distributed` runs 200. After each fault some
member owns the group: whatever was acknowledged is there, nothing is there twice, and the switches
hold what its owner says. Times until a member answers again are printed at the end, by fault.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

grpc = pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from control_load import Load  # noqa: E402
from control_members import MemberProcess, find_owner  # noqa: E402
from control_process import Client  # noqa: E402
from etcd_cluster import EtcdCluster, etcd_cluster  # noqa: E402
from needs import need_time  # noqa: E402
from serve_process import wait_until  # noqa: E402

from weft.switches import PortName  # noqa: E402

FAULTS = int(os.environ.get("WEFT_GROUP_FAULTS", "7"))
SEED = 20261117
LOADERS = 2
TTL_S = 2.0
RECOVERY_S = 60.0


@pytest.fixture(autouse=True, scope="module")
def asked_for() -> None:
    need_time("test-distributed")


class Siege:
    """Two members of a group and three nodes of etcd, under load."""

    def __init__(self, folder: Path, etcd: EtcdCluster) -> None:
        self.random = random.Random(SEED)
        self.etcd = etcd
        self.members = [MemberProcess(folder, name, etcd, ttl_s=TTL_S) for name in ("a", "b")]
        self.loads = [Load(SEED + n) for n in range(LOADERS)]
        for load in self.loads:
            load.timeout_s = 2.0
        self.recovery_s: dict[str, list[float]] = {}
        self.failures: list[BaseException] = []
        for member in self.members:
            member.start_member()
        find_owner(self.members)

    def end(self) -> None:
        for member in self.members:
            if member.process is not None:
                member.process.kill()
                member.process.wait()

    # ---- Faults: each returns what ends it ------------------------------------------------------

    def kill_owner(self) -> Callable[[], None]:
        owner = find_owner(self.members)
        owner.kill()
        return owner.start_member

    def kill_standby(self) -> Callable[[], None]:
        owner = find_owner(self.members)
        (standby,) = [member for member in self.members if member is not owner]
        standby.kill()
        return standby.start_member

    def stop_owner_beyond_its_lease(self) -> Callable[[], None]:
        """It goes on when another one owns the group, and must not write any more."""
        owner = find_owner(self.members)
        owner.send(signal.SIGSTOP)
        others = [member for member in self.members if member is not owner]

        def resume() -> None:
            owner.send(signal.SIGCONT)
            wait_until(
                lambda: owner.find_address() is None, "the stale owner steps down", RECOVERY_S
            )

        try:
            find_owner(others)
        except AssertionError:
            owner.send(signal.SIGCONT)
            raise
        return resume

    def kill_leader_of_etcd(self) -> Callable[[], None]:
        leader = self.etcd.find_leader()
        self.etcd.kill(leader)
        return lambda: self.etcd.start(leader)

    def stop_follower_of_etcd(self) -> Callable[[], None]:
        """A minority that is cut off."""
        leader = self.etcd.find_leader()
        follower = (leader + 1) % 3
        self.etcd.signal(follower, signal.SIGSTOP)
        return lambda: self.etcd.signal(follower, signal.SIGCONT)

    def stop_majority_of_etcd(self) -> Callable[[], None]:
        """Longer than the lease: nobody may own the group meanwhile."""
        owner = find_owner(self.members)
        for node in (0, 1):
            self.etcd.signal(node, signal.SIGSTOP)
        try:
            wait_until(lambda: owner.find_address() is None, "the owner steps down", RECOVERY_S)
        finally:
            for node in (0, 1):
                self.etcd.signal(node, signal.SIGCONT)
        return lambda: None

    # ---- A round ---------------------------------------------------------------------------------

    def round(self, name: str) -> None:
        ending = threading.Event()
        threads = [threading.Thread(target=self._load, args=(load, ending)) for load in self.loads]
        for thread in threads:
            thread.start()
        try:
            time.sleep(self.random.uniform(0.1, 0.5))  # the random point
            began = time.monotonic()
            answered = [load.answered for load in self.loads]
            heal = getattr(self, name)()
            wait_until(
                lambda: (
                    self.failures
                    or all(load.answered > n for load, n in zip(self.loads, answered, strict=True))
                ),
                f"members answer again after {name}",
                RECOVERY_S,
            )
            self.recovery_s.setdefault(name, []).append(time.monotonic() - began)
            heal()
        finally:
            ending.set()
            for thread in threads:
                thread.join()
        assert not self.failures, self.failures
        self.check()

    def _load(self, load: Load, ending: threading.Event) -> None:
        """Goes to whoever owns the group, and repeats what was not answered."""
        try:
            while not ending.is_set():
                addresses = [m.find_address() for m in self.members]
                for address in filter(None, addresses):
                    load.run(address, ending)
                time.sleep(0.02)
        except (grpc.RpcError, KeyError, AssertionError) as error:
            self.failures.append(error)

    def check(self) -> None:
        owner = find_owner(self.members)
        with Client(owner.address) as client:
            client.settled(RECOVERY_S)
            self._finish_unsure(owner)
            status = client.settled(RECOVERY_S)
            listed = client.status(applications=True, ports=True)
        ids = {application.id for application in listed.listed_applications}
        assert ids == {id_ for load in self.loads for id_ in load.there}
        assert status.connections == sum(len(c) for load in self.loads for c in load.there.values())
        held = owner.held()
        for port in listed.listed_ports:
            tables = held[PortName(port.port.node, port.port.port)]
            assert list(tables.weights) == list(port.weights), port
        for member in self.members:
            assert "Traceback" not in member.errors.read_text(), member.errors.read_text()

    def _finish_unsure(self, owner: MemberProcess) -> None:
        for load in self.loads:
            if load.unsure is not None:
                ending = threading.Event()
                load.stop_after_one = True
                load.run(owner.address, ending)
                load.stop_after_one = False
                assert load.unsure is None


@pytest.fixture
def siege(tmp_path: Path) -> Iterator[Siege]:
    with etcd_cluster() as etcd:
        started = Siege(tmp_path, etcd)
        try:
            yield started
        finally:
            started.end()


NAMES = (
    "kill_owner",
    "stop_owner_beyond_its_lease",
    "kill_owner",
    "kill_leader_of_etcd",
    "stop_majority_of_etcd",
    "kill_standby",
    "stop_follower_of_etcd",
)


def test_nothing_acknowledged_is_lost_whichever_member_or_node_fails(siege: Siege) -> None:
    for number in range(FAULTS):
        siege.round(NAMES[number % len(NAMES)])
    answered = sum(load.answered for load in siege.loads)
    print(f"{FAULTS} faults, {answered} requests acknowledged, none lost")
    for name, times in siege.recovery_s.items():
        middle, longest = statistics.median(times), max(times)
        print(f"{name}: {len(times)} times, answered after {middle:.1f} s, at most {longest:.1f} s")
