"""Controllers that share a group through etcd, under load, with faults one after the other.

WEFT_GROUP_FAULTS faults of processes and WEFT_PARTITIONS partitions of the network between them,
from one seed; `make test-distributed` runs 200 and 100. After each fault some
member owns the group: whatever was acknowledged is there, nothing is there twice, and the switches
hold what its owner says. Times until a member answers again are printed at the end, by fault.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from control_load import Load  # noqa: E402
from control_members import MemberProcess, find_owner  # noqa: E402
from control_process import Client, weft  # noqa: E402
from cut_network import Network, cut_network  # noqa: E402
from etcd_cluster import EtcdCluster, etcd_cluster, find_leader, network_etcd  # noqa: E402
from ibsim import subnet  # noqa: E402
from needs import need_ibsim, need_namespaces, need_time  # noqa: E402
from serve_process import wait_until  # noqa: E402
from wall_clock import WallClock  # noqa: E402

from weft.control.cluster.etcd_client import EtcdClient  # noqa: E402
from weft.control.cluster.group_link import GroupLink  # noqa: E402
from weft.control.runtime.restore import restore_state  # noqa: E402
from weft.control.service import weft_pb2 as pb  # noqa: E402
from weft.control.state.events import FabricChanged  # noqa: E402
from weft.control.state.policy_settings import Settings  # noqa: E402
from weft.control.state.request_key import Key  # noqa: E402
from weft.control.state.state import State  # noqa: E402
from weft.control.state.step import run_batch  # noqa: E402
from weft.control.store.sqlite_store import Store  # noqa: E402
from weft.fabric import leaf_spine  # noqa: E402
from weft.host.testbed import persistent  # noqa: E402
from weft.host.testbed.wiring import Wiring  # noqa: E402
from weft.switches import Claim, PortName, Taken  # noqa: E402
from weft.switches.linux import open_persistent_testbed  # noqa: E402
from weft.switches.simulated import DEFAULT_ABILITY, read_routed_fabric  # noqa: E402
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


# ---- Groups -----------------------------------------------------------------------------------

GROUPS = '[groups]\na = ["leaf0", "spine0", "h0", "h1"]\nb = ["*"]\n'


class GroupSiege:
    """Two groups of two members each; a client of each group; owners are killed and stopped."""

    def __init__(self, folder: Path, etcd: EtcdCluster) -> None:
        self.random = random.Random(SEED)
        self.members = {
            group: [
                MemberProcess(folder, f"{group}{n}", etcd, ttl_s=TTL_S, group=group, more=GROUPS)
                for n in (1, 2)
            ]
            for group in ("a", "b")
        }
        self.loads = {group: Load(SEED + n) for n, group in enumerate(self.members)}
        for group, members in self.members.items():
            self.loads[group].timeout_s = 2.0
            for member in members:
                member.start_member()
        for group in self.members:
            self.ask(group, self._register)

    def ask(self, group: str, call: Callable[[Client], Any]) -> Any:
        """Asks the owner, whoever that is, until it answers."""
        deadline = time.monotonic() + RECOVERY_S
        while True:
            try:
                with Client(find_owner(self.members[group]).address) as client:
                    return call(client)
            except grpc.RpcError as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"group {group} does not answer") from error
                time.sleep(0.2)

    @staticmethod
    def _register(client: Client) -> None:
        """Until the group has the models of the one that publishes them."""
        id_ = client.register("calm", 3600.0).id
        client.call("Deregister", pb.DeregisterRequest(key=client.key(), id=id_))

    def round(self) -> None:
        ending, failures = threading.Event(), list[BaseException]()

        def load(group: str) -> None:
            try:
                while not ending.is_set():
                    for member in self.members[group]:
                        address = member.find_address()
                        if address is not None:
                            self.loads[group].run(address, ending)
                    time.sleep(0.02)
            except (grpc.RpcError, KeyError, AssertionError) as error:
                failures.append(error)

        threads = [threading.Thread(target=load, args=(group,)) for group in self.members]
        for thread in threads:
            thread.start()
        try:
            time.sleep(self.random.uniform(0.2, 0.6))
            victim = find_owner(self.members[self.random.choice("ab")])
            victim.kill()
            victim.start_member()
            for group, members in self.members.items():
                answered = self.loads[group].answered
                wait_until(
                    lambda g=group, n=answered: failures or self.loads[g].answered > n,
                    f"group {group} answers, by {[m.name for m in members]}",
                    RECOVERY_S,
                )
        finally:
            ending.set()
            for thread in threads:
                thread.join()
        assert not failures, failures

    def finish(self) -> None:
        """Repeats what was not answered; then nothing changes any more."""
        for group, load in self.loads.items():
            load.stop_after_one = True
            deadline = time.monotonic() + RECOVERY_S
            while load.unsure is not None:
                assert time.monotonic() < deadline
                load.run(find_owner(self.members[group]).address, threading.Event())
            load.stop_after_one = False

    def check(self) -> None:
        self.finish()
        ids = {id_ for load in self.loads.values() for id_ in load.there}
        links = sum(len(c) for load in self.loads.values() for c in load.there.values())
        for group in self.members:

            def has_all(group: str = group) -> bool:
                status = self.ask(group, lambda client: client.settled(RECOVERY_S))
                return bool((status.applications, status.connections) == (len(ids), links))

            wait_until(has_all, f"group {group} has all connections", RECOVERY_S)
        owner = find_owner(self.members["a"])
        central = solve_centrally(owner)
        assert set(central.applications) == ids
        held = owner.held()
        assert {port: held[port] for port in central.target} == dict(central.target)


def test_an_operator_asks_any_group_and_gets_the_whole_fabric(tmp_path: Path) -> None:
    with etcd_cluster(nodes=1) as etcd:
        members = {
            group: MemberProcess(tmp_path, group, etcd, ttl_s=TTL_S, group=group, more=GROUPS)
            for group in ("a", "b")
        }
        try:
            for member in members.values():
                member.start_member()
            for member in members.values():
                find_owner([member])
            _ask_whole_fabric(members["a"], members["b"], etcd)
            for member in members.values():
                assert "Traceback" not in member.errors.read_text(), member.errors.read_text()
        finally:
            for member in members.values():
                if member.process is not None:
                    member.process.kill()
                    member.process.wait()


def _ask_whole_fabric(a: MemberProcess, b: MemberProcess, etcd: EtcdCluster) -> None:
    _ask_until(b, "3 models", "status")  # it has those of the group that publishes them
    _ask_until(a, "group b: 1 port would change", "plan", "--app", "calm", "h0:h2")
    with Client(a.address) as client:
        connection = client.connect(client.register("calm", 3600.0).id, "h0", "h2")
    for asked in (a, b):
        path = _ask_until(asked, "leaf1 port 1", "explain", connection)
        hops = [line.split()[:5] for line in path.splitlines() if line[:1].isdigit()]
        assert [(hop[1], hop[4]) for hop in hops] == [
            ("h0", "a"),
            ("leaf0", "a"),
            ("spine0", "a"),
            ("leaf1", "b"),
        ]
        _ask_until(asked, "group b\n  revision 1: programmed on all ports", "status")
    before = a.held()
    with Client(a.address) as client:
        client.connect(client.register("keen", 3600.0).id, "h0", "h2")
    _ask_until(b, "group b\n  revision 2: programmed on all ports", "status")
    status, text = weft(b, "rollback", "1@a", "9@b")
    assert status == 2
    assert "nothing has changed in any group: group b: revision 9" in text
    status, text = weft(b, "rollback", "1@a", "1@b", "--wait", "60")
    assert (status, text.count("rolled back to 1: revision 3")) == (0, 2), text
    assert a.held() == before
    assert "the rollback ends in a too" in weft(b, "apply")[1]
    _ask_until(a, "group a\n  revision 4: programmed on all ports", "status")
    _lose_a_group(a, b, etcd)


def _lose_a_group(a: MemberProcess, b: MemberProcess, etcd: EtcdCluster) -> None:
    """What was decided for all is carried out by a group whose controller comes later."""
    b.kill()
    missing = "no controller owns it; start one of its controllers"
    text = _ask_until(a, missing, "status", status=1)
    assert "group a\n  revision 4: programmed on all ports" in text
    status, text = weft(a, "rollback", "1@a", "1@b")
    assert status == 2
    assert f"nothing has changed in any group: group b: {missing}" in text
    with closing(EtcdClient(etcd.endpoints)) as client:
        link = GroupLink(client, "/weft/weft", "a", ("a", "b"))
        link.decide(Key("test", 1), "root", {"a": 1, "b": 1}, {})
    _ask_until(a, "(rolled back to 1; `weft control apply` resumes)", "status", status=1)
    b.start_member()
    find_owner([b])
    held = "(rolled back to 1; `weft control apply` resumes): programmed on all ports"
    wait_until(
        lambda: weft(a, "status")[1].count(held) == 2, "both groups hold revision 1", RECOVERY_S
    )


def _ask_until(member: MemberProcess, expected: str, *words: str, status: int = 0) -> str:
    """The output of a command, once it has this and ends so."""

    def ask() -> str | None:
        code, text = weft(member, *words)
        return text if code == status and expected in text else None

    return str(wait_until(ask, f"{' '.join(words)}: {expected!r}", RECOVERY_S))


def solve_centrally(owner: MemberProcess) -> State:
    """One controller of all switches with the registrations and connections of this store."""
    with tempfile.TemporaryDirectory() as folder:
        for file in owner.folder.glob(f"{owner.name}.db*"):
            shutil.copy(file, folder)
        with closing(Store.open(Path(folder) / f"{owner.name}.db")) as store:
            stored = replace(store.load(), target={}, revision=0, held_revision=None)
    fabric = read_routed_fabric(str(owner.folder / "fabric.toml"))
    names = [
        PortName(node.name, port)
        for number, node in enumerate(fabric.nodes)
        for port in fabric.neighbors(number)
    ]
    abilities = dict.fromkeys(names, DEFAULT_ABILITY)
    settings = Settings(managed_share=1.0)
    state = restore_state(stored, settings, stored.models, 0.0).state
    return run_batch(state, [FabricChanged(fabric=fabric, abilities=abilities)]).state


def test_groups_come_to_the_central_tables_whichever_owner_is_killed(tmp_path: Path) -> None:
    rounds = max(1, FAULTS // 10)
    with etcd_cluster() as etcd:
        siege = GroupSiege(tmp_path, etcd)
        try:
            for _ in range(rounds):
                siege.round()
                siege.check()
        finally:
            for member in [m for members in siege.members.values() for m in members]:
                if member.process is not None:
                    member.process.kill()
                    member.process.wait()
    answered = sum(load.answered for load in siege.loads.values())
    print(f"two groups: {rounds} owners killed, {answered} requests acknowledged, none lost")


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
