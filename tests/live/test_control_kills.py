"""A controller of a Linux testbed, its agents and its clients killed at random points, together.

WEFT_MIXED_KILLS SIGKILLs from one seed; `make test-control` runs 1,000. In each round some victims
die, a moment apart: the controller, agents of nodes, clients. Then clients pause: what they were
told is there, nothing else is but the leases of the dead, every node has an agent, and ports hold
what the controller says. The leases of the dead end; at last all ports are given back.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from control_fabric import FabricControl, listed  # noqa: E402
from control_process import Client, running, slowly  # noqa: E402
from needs import need_namespaces, need_time  # noqa: E402
from restored import roots  # noqa: E402
from serve_process import wait_until  # noqa: E402

from weft.host.net import namespaces  # noqa: E402
from weft.host.testbed import persistent  # noqa: E402
from weft.host.testbed.build import Testbed  # noqa: E402
from weft.host.testbed.wiring import Wiring  # noqa: E402
from weft.switches import Tables  # noqa: E402
from weft.switches.linux import open_persistent_testbed  # noqa: E402

KILLS = int(os.environ.get("WEFT_MIXED_KILLS", "12"))
SEED = 20261118
BED = "mixed-kills"
WIRING = Wiring(hosts=("h1", "h2", "h3", "h4"), rate_bps=10**8, switches="two-hops")
SWITCHES = f'driver = "linux"\ntestbed = "{BED}"\ncheck_s = 1.0'
PARTS = {"calm": 0.1, "keen": 0.9}
CLIENTS = 4
ROUNDS_BETWEEN_EXPIRIES = 50
RECOVERY_S = 90.0
SCRIPT = Path(__file__).parents[1] / "support" / "socket_load.py"


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    need_time("test-control")
    need_namespaces()
    built, _ = persistent.build_testbed(BED, WIRING)
    try:
        yield built
    finally:
        persistent.remove_testbed(BED)


class JobProcess:
    """A client that may be killed; `there` is what it was told when it paused."""

    def __init__(self, path: Path, seed: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(SCRIPT), str(path), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.there: dict[str, list[str]] = {}
        self.answered = 0

    def toggle(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def read_pause(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("= "):
                told = json.loads(line[2:])
                self.there, self.answered = told["there"], told["answered"]
                return
        raise AssertionError("a client was refused something")

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(30)


class Siege:
    """The controller, an agent at each node, and some clients."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed, self.random = bed, random.Random(SEED)
        self.control = FabricControl(folder, SWITCHES, PARTS)
        self.control.start()
        self.nodes = list(bed.namespaces)
        self.jobs = [self.start_job() for _ in range(CLIENTS)]
        self.kills: Counter[str] = Counter()
        self.recovery_s: dict[str, list[float]] = {}
        self.answered = 0

    def start_job(self) -> JobProcess:
        seed = self.random.getrandbits(62)
        return JobProcess(self.control.folder / "control.sock", seed)

    # ---- Kills -----------------------------------------------------------------------------------

    def kill_controller(self) -> None:
        if self.control.process is not None:
            self.control.kill()
            self.control.process = None
            self.kills["controller"] += 1

    def kill_agent(self) -> None:
        node = self.random.choice(self.nodes)
        pids = namespaces.list_pids(self.bed.namespace(node))
        for pid in pids:
            with suppress(ProcessLookupError):  # a command of the agent that has ended
                os.kill(pid, signal.SIGKILL)
        self.kills["agent"] += bool(pids)

    def kill_client(self) -> None:
        number = self.random.randrange(CLIENTS)
        self.jobs[number].kill()
        self.kills["client"] += 1
        self.jobs[number] = self.start_job()

    def round(self) -> None:
        before = self.kills.copy()
        victims = self.random.choices(
            (self.kill_controller, self.kill_agent, self.kill_client), k=self.random.randint(1, 8)
        )
        time.sleep(self.random.uniform(0.05, 0.4))  # the random point
        for kill in victims:
            kill()
            time.sleep(self.random.uniform(0.0, 0.1))
        began = time.monotonic()
        if self.control.process is None:
            self.control.start()
        self.pause()
        self.await_programmed()
        died = (self.kills - before).keys()
        kind = "controller" if "controller" in died else "agent" if "agent" in died else "client"
        self.recovery_s.setdefault(kind, []).append(time.monotonic() - began)
        self.check()
        self.resume()

    def pause(self) -> None:
        for job in self.jobs:
            job.toggle()
        for job in self.jobs:
            before = job.answered
            job.read_pause()
            self.answered += job.answered - before

    def resume(self) -> None:
        for job in self.jobs:
            job.toggle()

    # ---- What is there afterwards ----------------------------------------------------------------

    def await_programmed(self) -> None:
        """Every node has an agent again, and every port its tables."""
        wait_until(
            lambda: all(namespaces.list_pids(self.bed.namespace(node)) for node in self.nodes),
            "every node has an agent",
            RECOVERY_S,
        )
        with Client(self.control.address) as client:
            client.settled(RECOVERY_S)

    def check(self) -> None:
        assert "Traceback" not in self.control.errors.read_text()
        with (
            Client(self.control.address) as client,
            closing(open_persistent_testbed(BED)) as driver,
        ):
            ids = {row.id for row in client.status(applications=True).listed_applications}
            lost = {id_ for job in self.jobs for id_ in job.there} - ids
            assert not lost, lost
            while True:  # until no lease of the dead has ended meanwhile
                revision = client.settled(RECOVERY_S).revision
                told = listed(client)
                held = driver.read(list(told))
                if client.settled(RECOVERY_S).revision == revision:
                    break
        for name, port in told.items():
            tables = held[name]
            assert isinstance(tables, Tables), (name, tables)
            assert list(tables.weights) == list(port.weights), name

    def await_expiries(self) -> float:
        """The dead keep nothing: connections too are exactly those that clients were told."""
        self.pause()
        began = time.monotonic()
        ids = {id_ for job in self.jobs for id_ in job.there}
        links = sum(len(names) for job in self.jobs for names in job.there.values())
        with Client(self.control.address) as client:

            def is_rid_of_the_dead() -> bool:
                status: Any = client.status(applications=True)
                rows = {row.id for row in status.listed_applications}
                return rows == ids and status.connections == links

            slowly(is_rid_of_the_dead, "the leases of the dead end", 60.0, 0.1)
        took_s = time.monotonic() - began
        self.resume()
        return took_s

    def end(self) -> None:
        for job in self.jobs:
            job.kill()
        if self.control.process is not None:
            self.control.kill()


def test_nothing_acknowledged_is_lost_whoever_is_killed(bed: Testbed, tmp_path: Path) -> None:
    before = roots(bed.all_ends())
    siege = Siege(bed, tmp_path)
    rounds, expiries_s = 0, []
    try:
        while sum(siege.kills.values()) < KILLS:
            siege.round()
            rounds += 1
            if rounds % ROUNDS_BETWEEN_EXPIRIES == 0:
                expiries_s.append(siege.await_expiries())
                print(f"{rounds} rounds, {dict(siege.kills)}", flush=True)
        expiries_s.append(siege.await_expiries())
    finally:
        siege.end()
        siege.control.release()
    assert roots(bed.all_ends()) == before
    counts = ", ".join(f"{count} of {kind}s" for kind, count in sorted(siege.kills.items()))
    print(f"{sum(siege.kills.values())} kills in {rounds} rounds: {counts}")
    print(f"{siege.answered} requests acknowledged, none lost")
    print(f"leases of the dead over after at most {max(expiries_s):.1f} s")
    for kind, times in siege.recovery_s.items():
        times.sort()
        p50, p99 = times[len(times) // 2], times[min(len(times) - 1, int(0.99 * len(times)))]
        print(f"{kind}: {len(times)} rounds, programmed p50 {p50:.2f} s, p99 {p99:.2f} s")


# ---- Nodes that hang or refuse ------------------------------------------------------------------


def test_a_node_that_hangs_or_refuses_is_named_and_holds_up_no_other(
    bed: Testbed, tmp_path: Path
) -> None:
    before = roots(bed.all_ends())
    control = FabricControl(tmp_path, SWITCHES, PARTS)
    try:
        with running(control), Client(control.address) as client:
            client.settled(RECOVERY_S)
            id_ = client.register("keen", 3600.0).id
            client.connect(id_, "h4", "h1")
            client.settled(RECOVERY_S)
            (agent,) = namespaces.list_pids(bed.namespace("h4"))
            os.kill(agent, signal.SIGSTOP)
            try:
                check_only_h4_waits(client, "hangs")
            finally:
                os.kill(agent, signal.SIGCONT)
            await_recovery(client, "answers again")
            tc = ["tc", "-n", bed.namespace("h4"), "qdisc"]
            namespaces.run_command([*tc, "del", "dev", "eth0", "root"])
            namespaces.run_command([*tc, "add", "dev", "eth0", "root", "handle", "5:", "htb"])
            check_only_h4_waits(client, "refuses")
            namespaces.run_command([*tc, "del", "dev", "eth0", "root"])
            await_recovery(client, "can be written again")
    finally:
        control.release()
    after = roots(bed.all_ends())
    assert sum(a != b for a, b in zip(after, before, strict=True)) <= 1  # h4's was deleted by hand


def check_only_h4_waits(client: Client, fault: str) -> None:
    """Two more applications from h4, and between others: their ports are programmed at once."""
    began = time.monotonic()
    id_ = client.register("calm", 3600.0).id
    client.connect(id_, "h4", "h2")
    client.connect(id_, "h1", "h3")

    def only_h4_waits() -> bool:
        ports = listed(client)
        waiting = {name.node for name, port in ports.items() if port.state != "programmed"}
        return waiting == {"h4"} and client.status().ports_failing == 1

    slowly(only_h4_waits, f"h4 {fault}, others are programmed", RECOVERY_S, 0.05)
    print(f"h4 {fault}: others programmed and h4 named after {time.monotonic() - began:.1f} s")


def await_recovery(client: Client, event: str) -> None:
    began = time.monotonic()
    client.settled(RECOVERY_S)
    print(f"h4 {event}: all programmed after {time.monotonic() - began:.1f} s")
