"""Two groups of switches with two controllers each: one fabric, whichever controller fails.

On simulated switches, a Linux testbed and a subnet of ibsim, owners are killed, stopped beyond
their lease, and cut off by the network, while a client of each group registers and connects. After
each fault both groups know all that was acknowledged, and every port has the tables that one
controller of all switches would compute. WEFT_GROUP_FAULTS / 10 faults on each; the times until
both groups answer are printed.
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
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from control_load import HOSTS, Load  # noqa: E402
from control_members import SIMULATED, MemberProcess, find_owner  # noqa: E402
from control_process import Client, weft  # noqa: E402
from cut_network import Network, cut_network  # noqa: E402
from driver_process import RemoteDriver  # noqa: E402
from etcd_cluster import EtcdCluster, etcd_cluster, network_etcd  # noqa: E402
from ibsim import subnet  # noqa: E402
from needs import need_ibsim, need_namespaces, need_time  # noqa: E402
from serve_process import wait_until  # noqa: E402

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
from weft.switches import Ability, PortName  # noqa: E402
from weft.switches.linux import open_persistent_testbed  # noqa: E402
from weft.switches.simulated import SimulatedSwitches, read_routed_fabric  # noqa: E402
from weft.switches.tables import read_grant  # noqa: E402

FAULTS = int(os.environ.get("WEFT_GROUP_FAULTS", "7"))
NETWORK_FAULTS = ("kill_owner", "stop_owner", "cut_owner")
SUBNET_FAULTS, FAULTS_OF_A_SUBNET = ("kill_owner", "stop_owner"), 8
SEED = 20261117
TTL_S = 2.0
RECOVERY_S = 180.0
GROUPS = '[groups]\na = ["leaf0", "spine0", "h0", "h1"]\nb = ["*"]\n'
NAMES = ("a1", "a2", "b1", "b2")
ETCD_NODES = ("n0", "n1", "n2")
BED = "four-controllers"


@pytest.fixture(autouse=True, scope="module")
def asked_for() -> None:
    need_time("test-distributed")


# ---- Four controllers -------------------------------------------------------------------------


@dataclass(frozen=True)
class Ground:
    """Switches of two groups as their controllers open them, and a driver that reads them all."""

    open_driver: Callable[[], Any]
    switches: str = SIMULATED
    groups: str = GROUPS
    hosts: tuple[str, ...] = HOSTS
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    directory: Path | None = None
    read_epochs: Callable[[], dict[str, int]] = dict  # of switches that keep them


class FourControllers:
    """Two groups of two members each; a client of each group."""

    def __init__(
        self, folder: Path, etcd: EtcdCluster, ground: Ground, network: Network | None = None
    ) -> None:
        self.random, self.ground, self.network = random.Random(SEED), ground, network
        self.members: dict[str, list[MemberProcess]] = {"a": [], "b": []}
        self.recovery_s: dict[str, list[float]] = {}
        self.failures: list[BaseException] = []
        for name in NAMES:
            words = {"group": name[0], "more": ground.groups, "switches": ground.switches}
            member = MemberProcess(folder, name, etcd, ttl_s=TTL_S, **words)
            member.environment = ground.environments.get(name)
            member.directory = ground.directory
            if network is not None:
                member.inside = network.enter(name)
            self.members[name[0]].append(member)
        self.loads = {group: Load(SEED + n) for n, group in enumerate(self.members)}
        for load in self.loads.values():
            load.timeout_s, load.hosts = 2.0, ground.hosts

    def start(self) -> None:
        for members in self.members.values():
            for member in members:
                member.start_member()
        for group in self.members:
            self.ask(group, self._register)

    def end(self) -> None:
        for member in [member for members in self.members.values() for member in members]:
            if member.process is not None:
                member.process.kill()
                member.process.wait()

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

    # ---- Faults: each returns what ends it ------------------------------------------------------

    def kill_owner(self, owner: MemberProcess) -> Callable[[], None]:
        owner.kill()
        return owner.start_member

    def stop_owner(self, owner: MemberProcess) -> Callable[[], None]:
        """Until another one owns its group; then it must step down."""
        owner.send(signal.SIGSTOP)
        try:
            self._await_successor(owner)
        except AssertionError:
            owner.send(signal.SIGCONT)
            raise

        def resume() -> None:
            owner.send(signal.SIGCONT)
            self._await_end(owner)

        return resume

    def cut_owner(self, owner: MemberProcess) -> Callable[[], None]:
        """It must step down without hearing of its successor."""
        network = self.network
        assert network is not None
        network.cut(owner.name)
        try:
            self._await_successor(owner)
            self._await_end(owner)
        except AssertionError:
            network.mend(owner.name)
            raise
        return lambda: network.mend(owner.name)

    def _await_successor(self, owner: MemberProcess) -> None:
        find_owner([member for member in self.members[owner.name[0]] if member is not owner])

    def _await_end(self, owner: MemberProcess) -> None:
        wait_until(lambda: owner.find_address() is None, "the stale owner steps down", RECOVERY_S)

    # ---- A round ---------------------------------------------------------------------------------

    def round(self, fault: str, group: str) -> None:
        ending = threading.Event()
        threads = [threading.Thread(target=self._load, args=(g, ending)) for g in self.members]
        epochs = self.ground.read_epochs()
        for thread in threads:
            thread.start()
        try:
            time.sleep(self.random.uniform(0.2, 0.6))
            owner = find_owner(self.members[group])
            began = time.monotonic()
            heal = getattr(self, fault)(owner)
            self._await_answers(f"both groups answer after {fault}")
            took_s = time.monotonic() - began
            self.recovery_s.setdefault(fault, []).append(took_s)
            print(f"{fault} of {owner.name}: answered after {took_s:.1f} s", flush=True)
            heal()
        finally:
            ending.set()
            for thread in threads:
                thread.join()
        assert not self.failures, self.failures
        self.check()
        after = self.ground.read_epochs()
        assert all(after[node] >= epoch for node, epoch in epochs.items()), (epochs, after)
        assert not epochs or after != epochs, "the successor has a higher epoch on its switches"

    def _load(self, group: str, ending: threading.Event) -> None:
        try:
            while not ending.is_set():
                for member in self.members[group]:
                    address = member.find_address()
                    if address is not None:
                        self.loads[group].run(address, ending)
                time.sleep(0.02)
        except (grpc.RpcError, KeyError, AssertionError) as error:
            self.failures.append(error)

    def _await_answers(self, what: str) -> None:
        """Every client has the answer to a request that it makes now; one may be on its way."""
        loads = list(self.loads.values())
        enough = [load.answered + 2 for load in loads]
        wait_until(
            lambda: (
                self.failures
                or all(load.answered >= n for load, n in zip(loads, enough, strict=True))
            ),
            what,
            RECOVERY_S,
        )

    def _finish_unsure(self) -> None:
        """Repeats what was not answered; then nothing changes any more."""
        for group, load in self.loads.items():
            load.stop_after_one = True
            deadline = time.monotonic() + RECOVERY_S
            while load.unsure is not None:
                assert time.monotonic() < deadline
                load.run(find_owner(self.members[group]).address, threading.Event())
            load.stop_after_one = False

    def check(self) -> None:
        self._finish_unsure()
        ids = {id_ for load in self.loads.values() for id_ in load.there}
        links = sum(len(c) for load in self.loads.values() for c in load.there.values())
        for group in self.members:

            def has_all(group: str = group) -> bool:
                status = self.ask(group, lambda client: client.settled(RECOVERY_S))
                return bool((status.applications, status.connections) == (len(ids), links))

            wait_until(has_all, f"group {group} has all connections", RECOVERY_S)
        with closing(self.ground.open_driver()) as driver:
            central = solve_centrally(find_owner(self.members["a"]), driver)
            assert set(central.applications) == ids
            assert driver.read(list(central.target)) == dict(central.target)
        for member in [member for members in self.members.values() for member in members]:
            assert "Traceback" not in member.errors.read_text(), member.errors.read_text()


def solve_centrally(owner: MemberProcess, driver: Any) -> State:
    """One controller of all switches with the registrations and connections of this store."""
    with tempfile.TemporaryDirectory() as folder:
        for file in owner.folder.glob(f"{owner.name}.db*"):
            shutil.copy(file, folder)
        with closing(Store.open(Path(folder) / f"{owner.name}.db")) as store:
            stored = replace(store.load(), target={}, revision=0, held_revision=None)
    fabric = driver.discover()
    names = [
        PortName(node.name, port)
        for number, node in enumerate(fabric.nodes)
        for port in fabric.neighbors(number)
    ]
    answers = driver.abilities(names)
    abilities = {name: a for name, a in answers.items() if isinstance(a, Ability)}
    assert abilities.keys() == set(names)
    settings = Settings(managed_share=1.0)
    state = restore_state(stored, settings, stored.models, 0.0).state
    return run_batch(state, [FabricChanged(fabric=fabric, abilities=abilities)]).state


def list_faults(kinds: tuple[str, ...]) -> range:
    """The numbers of all faults on one kind of switches."""
    return range(max(len(kinds), FAULTS // 10))


def run_faults(
    controllers: FourControllers, kinds: tuple[str, ...], ground: str, numbers: range
) -> None:
    try:
        controllers.start()
        for number in numbers:
            controllers.round(kinds[number % len(kinds)], "ab"[number // len(kinds) % 2])
    finally:
        controllers.end()
    answered = sum(load.answered for load in controllers.loads.values())
    print(f"four controllers, {ground}: {answered} requests acknowledged, none lost")
    for fault, times in controllers.recovery_s.items():
        middle, longest = statistics.median(times), max(times)
        print(f"{fault}: {len(times)} times, answered after {middle:.1f}, at most {longest:.1f} s")


def test_four_controllers_of_simulated_switches_come_to_the_central_tables(tmp_path: Path) -> None:
    need_namespaces()

    def open_driver() -> SimulatedSwitches:
        fabric = read_routed_fabric(str(tmp_path / "fabric.toml"))
        return SimulatedSwitches(fabric, path=tmp_path / "registers")

    with cut_network((*ETCD_NODES, *NAMES)) as network, network_etcd(network, ETCD_NODES) as etcd:
        controllers = FourControllers(tmp_path, etcd, Ground(open_driver), network)
        run_faults(controllers, NETWORK_FAULTS, "simulated switches", list_faults(NETWORK_FAULTS))


def test_four_controllers_of_a_linux_testbed_come_to_the_central_tables(tmp_path: Path) -> None:
    need_namespaces()
    hosts = ("h1", "h2", "h3", "h4")
    ground = Ground(
        open_driver=lambda: open_persistent_testbed(BED),
        switches=f'driver = "linux"\ntestbed = "{BED}"\n',
        groups='[groups]\na = ["switch1", "h1", "h2"]\nb = ["*"]\n',
        hosts=hosts,
        read_epochs=read_epochs,
    )
    persistent.build_testbed(BED, Wiring(hosts=hosts, rate_bps=10**8, switches="two-hops"))
    try:
        with (
            cut_network((*ETCD_NODES, *NAMES)) as network,
            network_etcd(network, ETCD_NODES) as etcd,
        ):
            controllers = FourControllers(tmp_path, etcd, ground, network)
            run_faults(controllers, NETWORK_FAULTS, "Linux testbed", list_faults(NETWORK_FAULTS))
    finally:
        persistent.remove_testbed(BED)


def read_epochs() -> dict[str, int]:
    folders = sorted((persistent.AGENTS / BED).iterdir())
    grants = {folder.name: folder / "claim" for folder in folders}
    return {node: read_grant(path).epoch for node, path in grants.items() if path.exists()}


def test_four_controllers_of_a_subnet_come_to_the_central_tables(tmp_path: Path) -> None:
    """Members are stopped instead of cut off: ibsim is reached in its own network namespace.

    ibsim takes ten clients, and those that were killed count: a few faults on each subnet.
    """
    need_ibsim()
    numbers = list_faults(SUBNET_FAULTS)
    for first in range(0, len(numbers), FAULTS_OF_A_SUBNET):
        folder = tmp_path / f"{first}"
        folder.mkdir()
        with subnet(leaf_spine(2, 2, 2), folder) as up, etcd_cluster() as etcd:
            ground = Ground(
                open_driver=partial(RemoteDriver, up),
                switches='driver = "infiniband"\n',
                environments={name: up.environment(HOSTS[n]) for n, name in enumerate(NAMES)},
                directory=folder,
            )
            controllers = FourControllers(folder, etcd, ground)
            some = numbers[first : first + FAULTS_OF_A_SUBNET]
            run_faults(controllers, SUBNET_FAULTS, "ibsim", some)


# ---- Operators --------------------------------------------------------------------------------


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
