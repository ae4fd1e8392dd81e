"""Controllers that share a group through etcd, under load, with faults one after the other.

WEFT_GROUP_FAULTS faults of processes and WEFT_PARTITIONS partitions of the network between them,
from one seed; `make test-distributed` runs 200 and 100. After each fault some
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
from cut_network import Network, cut_network  # noqa: E402
from etcd_cluster import EtcdCluster, etcd_cluster, find_leader, network_etcd  # noqa: E402
from ibsim import subnet  # noqa: E402
from needs import need_ibsim, need_namespaces, need_time  # noqa: E402
from serve_process import wait_until  # noqa: E402
from wall_clock import WallClock  # noqa: E402

from weft.control.service import weft_pb2 as pb  # noqa: E402
from weft.fabric import leaf_spine  # noqa: E402
from weft.host.testbed import persistent  # noqa: E402
from weft.host.testbed.wiring import Wiring  # noqa: E402
from weft.switches import Claim, PortName, Taken  # noqa: E402
from weft.switches.linux import open_persistent_testbed  # noqa: E402
from weft.switches.tables import read_grant  # noqa: E402

FAULTS = int(os.environ.get("WEFT_GROUP_FAULTS", "7"))
CUTS = int(os.environ.get("WEFT_PARTITIONS", "4"))
SEED = 20261117
LOADERS = 2
TTL_S = 2.0
RECOVERY_S = 180.0


@pytest.fixture(autouse=True, scope="module")
def asked_for() -> None:
    need_time("test-distributed")


class Siege:
    """Two members of a group and three nodes of etcd, under load."""

    def __init__(self, etcd: EtcdCluster, members: list[MemberProcess]) -> None:
        self.random = random.Random(SEED)
        self.etcd, self.members = etcd, members
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
        leader = find_leader(self.etcd)
        self.etcd.kill(leader)
        return lambda: self.etcd.start(leader)

    def stop_follower_of_etcd(self) -> Callable[[], None]:
        """A minority that is cut off."""
        leader = find_leader(self.etcd)
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
            heal = getattr(self, name)()
            self.await_answers(f"members answer again after {name}")
            self.recovery_s.setdefault(name, []).append(time.monotonic() - began)
            print(f"{name}: answered after {self.recovery_s[name][-1]:.1f} s", flush=True)
            heal()
        finally:
            ending.set()
            for thread in threads:
                thread.join()
        assert not self.failures, self.failures
        self.check()

    def await_answers(self, what: str) -> None:
        """Every client has the answer to a request that it makes now; one may be on its way."""
        enough = [load.answered + 2 for load in self.loads]
        wait_until(
            lambda: (
                self.failures
                or all(load.answered >= n for load, n in zip(self.loads, enough, strict=True))
            ),
            what,
            RECOVERY_S,
        )

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
        """On a busy machine a lease may end at any time: then the next owner is asked."""
        deadline = time.monotonic() + RECOVERY_S
        while True:
            try:
                return self._check(find_owner(self.members))
            except grpc.RpcError:
                assert time.monotonic() < deadline, "no owner answers"
                time.sleep(0.2)

    def _check(self, owner: MemberProcess) -> None:
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
                if load.unsure is not None:
                    self.check()


@pytest.fixture
def siege(tmp_path: Path) -> Iterator[Siege]:
    with etcd_cluster() as etcd:
        started = Siege(etcd, build_members(tmp_path, etcd))
        try:
            yield started
        finally:
            started.end()


def build_members(folder: Path, etcd: EtcdCluster) -> list[MemberProcess]:
    return [MemberProcess(folder, name, etcd, ttl_s=TTL_S) for name in ("a", "b")]


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
    print_times(siege)


def print_times(siege: Siege) -> None:
    answered = sum(load.answered for load in siege.loads)
    faults = sum(len(times) for times in siege.recovery_s.values())
    print(f"{faults} faults, {answered} requests acknowledged, none lost")
    for name, times in siege.recovery_s.items():
        middle, longest = statistics.median(times), max(times)
        print(f"{name}: {len(times)} times, answered after {middle:.1f} s, at most {longest:.1f} s")


# ---- Partitions -------------------------------------------------------------------------------

ETCD_NODES = ("n0", "n1", "n2")


class PartitionSiege(Siege):
    """Members and nodes of etcd have a cable each; clients reach members by sockets, also those
    that are cut off."""

    def __init__(self, network: Network, etcd: EtcdCluster, members: list[MemberProcess]) -> None:
        self.network = network
        for member in members:
            member.inside = network.enter(member.name)
        super().__init__(etcd, members)

    def cut_follower(self) -> Callable[[], None]:
        """A minority."""
        return self._cut(ETCD_NODES[(find_leader(self.etcd) + 1) % 3])

    def cut_leader(self) -> Callable[[], None]:
        return self._cut(ETCD_NODES[find_leader(self.etcd)])

    def cut_majority(self) -> Callable[[], None]:
        """Every node of etcd is alone, longer than the lease: nobody may own the group."""
        owner = find_owner(self.members)
        for node in ETCD_NODES[:2]:
            self.network.cut(node)
        try:
            wait_until(lambda: owner.find_address() is None, "the owner steps down", RECOVERY_S)
        finally:
            for node in ETCD_NODES[:2]:
                self.network.mend(node)
        return lambda: None

    def cut_owner(self) -> Callable[[], None]:
        """Longer than its lease: it must acknowledge and write nothing once another one owns."""
        owner = find_owner(self.members)
        self.network.cut(owner.name)
        try:
            find_owner([member for member in self.members if member is not owner])
            wait_until(
                lambda: owner.find_address() is None, "the stale owner steps down", RECOVERY_S
            )
        except AssertionError:
            self.network.mend(owner.name)
            raise
        return lambda: self.network.mend(owner.name)

    def _cut(self, node: str) -> Callable[[], None]:
        """Longer than the lease, which is renewed meanwhile."""
        self.network.cut(node)

        def mend() -> None:
            time.sleep(2 * TTL_S)
            self.await_answers(f"members answer without {node}")
            self.network.mend(node)

        return mend


PARTITIONS = ("cut_owner", "cut_majority", "cut_leader", "cut_follower")


def test_nothing_acknowledged_is_lost_whoever_is_cut_off_by_the_network(tmp_path: Path) -> None:
    need_namespaces()
    with cut_network((*ETCD_NODES, "a", "b")) as network, network_etcd(network, ETCD_NODES) as etcd:
        siege = PartitionSiege(network, etcd, build_members(tmp_path, etcd))
        try:
            for number in range(CUTS):
                siege.round(PARTITIONS[number % len(PARTITIONS)])
        finally:
            siege.end()
    print_times(siege)


# ---- The clock of the day ---------------------------------------------------------------------


def test_a_jump_of_the_clock_moves_no_ownership(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    with etcd_cluster() as etcd:
        members = build_members(tmp_path, etcd)
        try:
            for member in members:
                member.environment = clock.environment
                member.start_member()
            owner = find_owner(members)
            with Client(owner.address) as client:
                id_ = client.register("calm", 3600.0).id
                for offset_s in (3600, -3600):
                    clock.jump(offset_s)
                    deadline = time.monotonic() + 2 * TTL_S
                    while time.monotonic() < deadline:
                        client.call("Renew", pb.RenewRequest(id=id_))
                        time.sleep(0.1)
            assert [member.find_address() for member in members].count(None) == 1
            assert owner.find_address() == owner.address
        finally:
            for member in members:
                if member.process is not None:
                    member.process.kill()
                    member.process.wait()


# ---- Linux switches ---------------------------------------------------------------------------

BED = "distributed"


def test_agents_refuse_an_owner_that_was_stopped_beyond_its_lease(tmp_path: Path) -> None:
    need_namespaces()
    wiring = Wiring(hosts=("h1", "h2", "h3", "h4"), rate_bps=10**8, switches="two-hops")
    switches = f'driver = "linux"\ntestbed = "{BED}"\n'
    persistent.build_testbed(BED, wiring)
    try:
        with etcd_cluster() as etcd:
            members = [
                MemberProcess(tmp_path, name, etcd, ttl_s=TTL_S, switches=switches)
                for name in ("a", "b")
            ]
            try:
                _replace_stopped_owner(members)
            finally:
                for member in members:
                    if member.process is not None:
                        member.process.kill()
                        member.process.wait()
    finally:
        persistent.remove_testbed(BED)


def _replace_stopped_owner(members: list[MemberProcess]) -> None:
    for member in members:
        member.start_member()
    stale = find_owner(members)
    with Client(stale.address) as client:
        id_ = client.register("calm", 3600.0).id
        client.connect(id_, "h1", "h3")
        client.settled(RECOVERY_S)
    before = read_epochs()
    stale.send(signal.SIGSTOP)
    successor = find_owner([member for member in members if member is not stale])
    with Client(successor.address) as client:
        assert client.settled(RECOVERY_S).connections == 1
    stale.send(signal.SIGCONT)
    wait_until(lambda: stale.find_address() is None, "the stale owner steps down", RECOVERY_S)
    with Client(successor.address) as client:
        other = client.register("keen", 3600.0).id
        client.connect(other, "h2", "h3")
        client.settled(RECOVERY_S)
    after = read_epochs()
    assert after.keys() == before.keys()
    assert all(after[node] > before[node] for node in before), (before, after)
    switches = open_persistent_testbed(BED)
    try:
        with pytest.raises(Taken, match=f"pid {successor.pid}"):
            switches.claim(Claim(owner="stale", epoch=max(before.values())))
    finally:
        switches.close()


def read_epochs() -> dict[str, int]:
    folders = sorted((persistent.AGENTS / BED).iterdir())
    return {folder.name: read_grant(folder / "claim").epoch for folder in folders}


# ---- InfiniBand -------------------------------------------------------------------------------


def test_a_standby_takes_an_infiniband_subnet_over(tmp_path: Path) -> None:
    need_ibsim()
    folder = tmp_path / "subnet"
    folder.mkdir()
    with subnet(leaf_spine(2, 2, 2), folder) as up, etcd_cluster() as etcd:
        driver = 'driver = "infiniband"\n'
        members = [
            MemberProcess(tmp_path, name, etcd, ttl_s=TTL_S, switches=driver) for name in ("a", "b")
        ]
        try:
            for member, host in zip(members, ("h0", "h1"), strict=True):
                member.environment, member.directory = up.environment(host), folder
                member.start_member()
            owner = find_owner(members)
            with Client(owner.address) as client:
                client.connect(client.register("calm", 3600.0).id, "h0", "h2")
                client.settled(RECOVERY_S)
            owner.kill()
            began = time.monotonic()
            successor = find_owner([member for member in members if member is not owner])
            with Client(successor.address) as client:
                status = client.settled(RECOVERY_S)
                assert (status.applications, status.connections) == (1, 1)
                client.connect(client.register("keen", 3600.0).id, "h1", "h2")
                assert client.settled(RECOVERY_S).revision > status.revision
            print(f"ibsim: programmed by the successor after {time.monotonic() - began:.1f} s")
        finally:
            for member in members:
                if member.process is not None:
                    member.process.kill()
                    member.process.wait()
