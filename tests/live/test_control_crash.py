"""The controller killed at random points under load, its clients killed, clock and disk at fault.

WEFT_CONTROL_KILLS kills of the controller from one seed, WEFT_CLIENT_KILLS of clients, and
WEFT_CLOCK_JUMPS jumps; `make test-control` runs 500, 200 and 40. After each kill of the controller
it is started again on its store and its switches: whatever was acknowledged is there, nothing is
there twice, and the switches come to hold what they should. Times of recovery are told at the end.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from control_load import Load  # noqa: E402
from control_process import Client, ControlProcess, controlling, running, slowly  # noqa: E402
from needs import need_time  # noqa: E402
from wall_clock import WallClock  # noqa: E402

from weft.control.policy.plan import application_name  # noqa: E402
from weft.control.runtime.restore import TableWatch, restore_state  # noqa: E402
from weft.control.service import weft_pb2 as pb  # noqa: E402
from weft.control.state.events import ApplicationRow, Connection, FabricChanged  # noqa: E402
from weft.control.state.policy_settings import Settings, cluster_levels  # noqa: E402
from weft.control.state.step import run_batch  # noqa: E402
from weft.control.store import sqlite_store  # noqa: E402
from weft.switches import PortName, Tables  # noqa: E402
from weft.switches.simulated import DEFAULT_ABILITY, read_routed_fabric  # noqa: E402

KILLS = int(os.environ.get("WEFT_CONTROL_KILLS", "6"))
CLIENT_KILLS = int(os.environ.get("WEFT_CLIENT_KILLS", "4"))
CLOCK_JUMPS = int(os.environ.get("WEFT_CLOCK_JUMPS", "4"))
SEED = 20261115
LOADERS = 3
LONG_S = 3600.0


@pytest.fixture(autouse=True, scope="module")
def asked_for() -> None:
    need_time("test-control")


class Siege:
    """A controller under load, killed again and again."""

    def __init__(self, folder: Path) -> None:
        self.random = random.Random(SEED)
        self.control = ControlProcess(folder)
        self.loads = [Load(SEED + n) for n in range(LOADERS)]
        self.recovery_s: list[float] = []
        self.control.start()

    def kill(self) -> None:
        ending = threading.Event()
        failures: list[BaseException] = []
        threads = [
            threading.Thread(target=self._loaded, args=(load, ending, failures))
            for load in self.loads
        ]
        for thread in threads:
            thread.start()
        time.sleep(self.random.uniform(0.0, 0.4))  # the random point
        self.control.kill()
        ending.set()
        for thread in threads:
            thread.join()
        assert not failures, failures
        self.kept = kept(self.control.folder)
        check_kept(self.kept, self.loads)
        self.recover()

    def _loaded(self, load: Load, ending: threading.Event, failures: list[BaseException]) -> None:
        try:
            load.run(self.control.address, ending)
        except (grpc.RpcError, KeyError) as error:
            failures.append(error)

    def recover(self) -> None:
        began = time.monotonic()
        self.control.start()
        assert "Traceback" not in self.control.errors.read_text()
        with Client(self.control.address) as client:
            client.settled(30.0)
            self.recovery_s.append(time.monotonic() - began)
            self.check(client)

    def check(self, client: Client) -> None:
        """What the store kept is what is there, and what the switches hold is what they should."""
        found = client.status(applications=True, ports=True)
        assert {own.id for own in found.listed_applications} == self.kept.applications
        assert found.connections == len(self.kept.connections)
        held = self.control.held()
        for port in found.listed_ports:
            told = held[PortName(port.port.node, port.port.port)]
            assert list(told.weights) == list(port.weights)
        assert desired(self.control.folder, self.kept).items() <= held.items()


@dataclass(frozen=True)
class Kept:
    """What a store has: registrations, and connections by their ids."""

    applications: set[str]
    connections: dict[str, Connection]


def kept(folder: Path) -> Kept:
    """Read from a copy: the controller is to recover the file by itself."""
    with tempfile.TemporaryDirectory() as name:
        for file in folder.glob("control.db*"):
            shutil.copy(file, name)
        with closing(sqlite3.connect(Path(name) / "control.db")) as db:
            applications = {id_ for (id_,) in db.execute("SELECT id FROM applications")}
            rows = db.execute("SELECT id, application, source, destination FROM connections")
            connections = {
                id_: Connection(
                    id=id_, application=application, source=source, destination=destination
                )
                for id_, application, source, destination in rows
            }
    return Kept(applications, connections)


def desired(folder: Path, found: Kept) -> dict[PortName, Tables]:
    """Tables of every port that a connection passes, from nothing but the connections."""
    watch = TableWatch(folder / "apps")
    watch.changes()
    rows = sqlite_store.StoredState(
        applications=tuple(
            ApplicationRow(id=id_, name=application_name(id_)) for id_ in found.applications
        ),
        connections=tuple(found.connections.values()),
        models=watch.models,
        levels=cluster_levels(watch.models, Settings().levels),
    )
    fabric = read_routed_fabric(str(folder / "fabric.toml"))
    names = [
        PortName(node.name, port)
        for n, node in enumerate(fabric.nodes)
        for port in fabric.neighbors(n)
    ]
    event = FabricChanged(fabric=fabric, abilities=dict.fromkeys(names, DEFAULT_ABILITY))
    state = restore_state(rows, Settings(), watch.models, 0.0).state
    return dict(run_batch(state, [event]).state.target)


def check_kept(found: Kept, loads: list[Load]) -> None:
    """Acknowledged is there; there is acknowledged, or was sent and not answered; none twice."""
    unsure = [load.unsure[1] for load in loads if load.unsure is not None]
    gone = {request.id for request in unsure if isinstance(request, pb.DeregisterRequest)}
    new = sum(isinstance(request, pb.RegisterRequest) for request in unsure)
    wanted = {id_ for load in loads for id_ in load.there}
    assert wanted - found.applications <= gone
    assert len(found.applications - wanted) <= new
    made = {f"{r.key.client}/{r.key.sequence}" for r in unsure if isinstance(r, pb.ConnectRequest)}
    closed = {r.connection for r in unsure if isinstance(r, pb.DisconnectRequest)}
    acknowledged = {one: id_ for load in loads for id_, own in load.there.items() for one in own}
    assert found.connections.keys() - acknowledged.keys() <= made
    for one, id_ in acknowledged.items():
        row = found.connections.get(one)
        assert (row and row.application == id_) or one in closed or id_ in gone, one


def test_killed_at_random_points_it_loses_nothing_that_was_acknowledged(
    tmp_path: Path, record_property: Any
) -> None:
    siege = Siege(tmp_path)
    try:
        for _ in range(KILLS):
            siege.kill()
        siege.control.end()
    finally:
        assert siege.control.process is not None
        siege.control.process.kill()
        siege.control.process.wait()
    assert sum(load.answered for load in siege.loads) > KILLS
    times = sorted(siege.recovery_s)
    p50, p99 = times[len(times) // 2], times[min(len(times) - 1, int(0.99 * len(times)))]
    record_property("recovery_p50_s", p50)
    record_property("recovery_p99_s", p99)
    print(
        f"{KILLS} kills, {sum(load.answered for load in siege.loads)} requests answered; "
        f"start to every port checked: p50 {p50:.2f} s, p99 {p99:.2f} s"
    )


# ---- Clients ----------------------------------------------------------------------------------

_CLIENT = """
import sys, time
from control_process import Client
from weft.control.service import weft_pb2 as pb
client = Client(sys.argv[1])
reply = client.register("keen", ttl_s=float(sys.argv[2]))
client.connect(reply.id, "h0", "h2")
print(reply.id, flush=True)
while True:
    time.sleep(float(sys.argv[2]) / 5)
    try:
        client.call("Renew", pb.RenewRequest(id=reply.id))
    except Exception as error:
        print("refused", error.code().name, flush=True)
"""


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlProcess]:
    with controlling(tmp_path_factory.mktemp("clients")) as made:
        yield made


class ClientProcess:
    def __init__(self, address: str, ttl_s: float) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, address, str(ttl_s)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        self.id = self.process.stdout.readline().strip()

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def ids(client: Client) -> set[str]:
    return {own.id for own in client.status(applications=True).listed_applications}


def test_a_killed_client_s_share_returns_when_its_lease_ends(control: ControlProcess) -> None:
    rng, ttl_s = random.Random(SEED), 1.0
    late = []
    with Client(control.address) as client:
        for _ in range(CLIENT_KILLS):
            victim = ClientProcess(control.address, ttl_s)
            time.sleep(rng.uniform(0, 1.5 * ttl_s))
            assert victim.id in ids(client)
            victim.end()
            began = time.monotonic()
            slowly(lambda own=victim.id: own not in ids(client), "the lease ends", 10.0, 0.12)
            late.append(time.monotonic() - began)
        client.settled()
    print(f"{CLIENT_KILLS} clients killed: lease over after {min(late):.2f} to {max(late):.2f} s")
    assert 0.5 * ttl_s <= statistics.median(late) <= ttl_s + 1.0


def test_a_client_stopped_past_its_lease_has_to_register_again(control: ControlProcess) -> None:
    with Client(control.address) as client:
        stopped = ClientProcess(control.address, 1.0)
        try:
            assert stopped.id in ids(client)
            os.kill(stopped.process.pid, signal.SIGSTOP)
            slowly(lambda: stopped.id not in ids(client), "the lease ends", 10.0, 0.12)
            os.kill(stopped.process.pid, signal.SIGCONT)
            assert stopped.says() == "refused FAILED_PRECONDITION"
            assert stopped.id not in ids(client)
        finally:
            stopped.end()


def test_a_controller_that_was_stopped_takes_nobody_s_lease(control: ControlProcess) -> None:
    with Client(control.address) as client:
        id_ = client.register("calm", ttl_s=2.0).id
        os.kill(control.pid, signal.SIGSTOP)
        time.sleep(4.0)
        os.kill(control.pid, signal.SIGCONT)
        client.call("Renew", pb.RenewRequest(id=id_))
        assert id_ in ids(client)
        client.call("Deregister", pb.DeregisterRequest(key=client.key(), id=id_))


# ---- The clock of the day ---------------------------------------------------------------------

HOUR_S = 3600


def test_jumps_of_the_clock_end_no_lease_and_prolong_none(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    made = ControlProcess(tmp_path)
    made.environment = clock.environment
    rng, ttl_s, lived_s = random.Random(SEED), 2.0, []
    load, ending, failures = Load(SEED), threading.Event(), list[BaseException]()

    def keep_asking() -> None:
        try:
            while not ending.is_set():
                load.run(made.address, ending)
        except (grpc.RpcError, KeyError) as error:
            failures.append(error)

    with running(made), Client(made.address) as client:
        kept = ClientProcess(made.address, ttl_s)
        lasting = client.register("calm", ttl_s=LONG_S).id  # as long as the clock jumps
        thread = threading.Thread(target=keep_asking)
        thread.start()
        try:
            for number in range(CLOCK_JUMPS):
                began = time.monotonic()
                left = client.register("keen", ttl_s=ttl_s).id
                time.sleep(rng.uniform(0.0, 0.3))
                clock.jump((HOUR_S, 0, -HOUR_S, 0)[number % 4])
                assert {lasting, kept.id} <= ids(client)
                assert left in ids(client) or time.monotonic() - began > ttl_s
                slowly(lambda own=left: own not in ids(client), "the lease ends", 10.0, 0.1)
                lived_s.append(time.monotonic() - began)
                assert {lasting, kept.id} <= ids(client)
                assert abs(made.lines()[-1]["time"] - time.time() - clock.offset_s) < 60
        finally:
            ending.set()
            thread.join()
            kept.end()
        assert not failures, failures
        clock.set(-HOUR_S)
        made.kill()
        made.start()
        with Client(made.address) as again:
            assert {lasting, *load.there} <= ids(again)
            again.settled()
    print(
        f"{CLOCK_JUMPS} jumps of an hour: {load.answered} requests answered in at most "
        f"{load.longest_s:.2f} s each, leases of {ttl_s:g} s that nobody "
        f"renewed lived {min(lived_s):.2f} to {max(lived_s):.2f} s"
    )
    assert min(lived_s) >= 0.95 * ttl_s


# ---- Disk -------------------------------------------------------------------------------------


def test_a_full_disk_refuses_changes_serves_questions_and_recovers(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("root: a small file system has to be mounted")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mount: not allowed here")
    try:
        made = ControlProcess(tmp_path)
        text = made.file.read_text().replace('store = "control.db"', 'store = "disk/control.db"')
        made.file.write_text(text)
        made.start()
        try:
            _fill_and_recover(made, disk)
            made.end()
        finally:
            assert made.process is not None
            made.process.kill()
            made.process.wait()
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def _fill_and_recover(made: ControlProcess, disk: Path) -> None:
    with Client(made.address) as client:
        first = client.register("calm", ttl_s=LONG_S).id
        client.connect(first, "h0", "h2")
        client.settled()
        (disk / "ballast").write_bytes(b"x" * (_free(disk) - 8192))
        refused = _until_refused(client, first)
        assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "make room" in refused.details()
        found = client.status(applications=True)
        assert any("make room" in problem for problem in found.problems)
        client.call("Renew", pb.RenewRequest(id=first))
        (disk / "ballast").unlink()
        client.connect(first, "h1", "h3")
        assert not client.settled().problems
        count = client.status().connections
    made.kill()
    made.start()
    with Client(made.address) as client:
        assert client.settled(30.0).connections == count


def _free(folder: Path) -> int:
    told = os.statvfs(folder)
    return told.f_bavail * told.f_frsize


def _until_refused(client: Client, id_: str) -> Any:
    for _ in range(10_000):
        try:
            client.connect(id_, "h0", "h2")
        except grpc.RpcError as error:
            return error
    raise AssertionError("the disk was never full")
