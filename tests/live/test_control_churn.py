"""A controller with many jobs and connections that come and go: its memory and its store stay flat.

WEFT_CHURN_JOBS jobs with WEFT_CHURN_CONNECTIONS connections in all are replaced and rewired for
WEFT_CHURN_S seconds, WEFT_CHURN_RATE events a second (0: as fast as the controller answers);
`make test-churn` runs 1,000 and 10^5 for an hour. At the end the controller has what clients were
told and no more, also after a restart.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

grpc = pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from control_process import PARTS, Client, ControlProcess, running, slowly  # noqa: E402
from needs import need_time  # noqa: E402

from weft.control.service import weft_pb2 as pb  # noqa: E402
from weft.fabric import leaf_spine  # noqa: E402

SECONDS = float(os.environ.get("WEFT_CHURN_S", "8"))
JOBS = int(os.environ.get("WEFT_CHURN_JOBS", "40"))
CONNECTIONS = int(os.environ.get("WEFT_CHURN_CONNECTIONS", "2000"))
RATE_PER_S = float(os.environ.get("WEFT_CHURN_RATE", "0"))
CLIENTS = 4
EACH = CONNECTIONS // JOBS  # connections of a job
LEAVES, SPINES, HOSTS = 8, 4, 8
SEED = 20261117
LEASE_S = 3600.0 + 2 * SECONDS  # nobody renews it
SETTLED_S = 300.0
SAMPLES = 60
# What a controller remembers of ended connections and of answers is bounded, and full by then.
WARM = 1 / 2
GROWTH = 1.05  # in the second half; the allocator's share
SMALL_KIB = 16 * 1024  # of a short run, which is not warm


@pytest.fixture(autouse=True, scope="module")
def asked_for() -> None:
    need_time("test-churn")


@dataclass
class Churn:
    """A client with its part of the jobs, and what the controller acknowledged."""

    client: Client
    random: random.Random
    jobs: dict[str, list[str]] = field(default_factory=dict)  # connections of a registration
    events: int = 0
    failure: BaseException | None = None

    def fill(self, jobs: int) -> None:
        for _ in range(jobs):
            self.begin()

    def begin(self) -> None:
        id_ = self.client.register(self.random.choice(sorted(PARTS)), LEASE_S).id
        self.jobs[id_] = []
        self.events += 1
        self.connect(id_, EACH)

    def end(self, id_: str) -> None:
        request = pb.DeregisterRequest(key=self.client.key(), id=id_)
        self.client.call("Deregister", request, timeout_s=60.0)
        del self.jobs[id_]
        self.events += 1

    def connect(self, id_: str, count: int) -> None:
        requests = []
        for _ in range(count):
            source, destination = self.random.sample(range(LEAVES * HOSTS), 2)
            ends = {"source": f"h{source}", "destination": f"h{destination}"}
            requests.append(pb.ConnectRequest(key=self.client.key(), id=id_, **ends))
        self.send([pb.Event(connect=request) for request in requests])
        self.jobs[id_] += [f"{r.key.client}/{r.key.sequence}" for r in requests]

    def disconnect(self, id_: str, count: int) -> None:
        self.random.shuffle(self.jobs[id_])
        ended, self.jobs[id_] = self.jobs[id_][:count], self.jobs[id_][count:]
        requests = [pb.DisconnectRequest(connection=name) for name in ended]
        self.send([pb.Event(disconnect=request) for request in requests])

    def send(self, events: list[pb.Event]) -> None:
        (batch,) = self.client.stream(iter([pb.EventBatch(events=events)]))
        refused = [ack.message for ack in batch.acks if ack.code]
        assert not refused, refused[:3]
        assert len(batch.acks) == len(events)
        self.events += len(events)

    def run(self, until_s: float) -> None:
        """One job in ten ends and another begins; others are rewired by half."""
        began_s, began = time.monotonic(), self.events
        while time.monotonic() < until_s:
            id_ = self.random.choice(list(self.jobs))
            if self.random.random() < 0.1:
                self.end(id_)
                self.begin()
            else:
                self.disconnect(id_, EACH // 2)
                self.connect(id_, EACH // 2)
            if RATE_PER_S:
                due_s = began_s + (self.events - began) * CLIENTS / RATE_PER_S
                time.sleep(max(0.0, min(due_s, until_s) - time.monotonic()))


@dataclass(frozen=True)
class Sample:
    memory_kib: int
    store_bytes: int
    descriptors: int


def take_sample(control: ControlProcess) -> Sample:
    files = control.folder.glob("control.db*")
    return Sample(
        memory_kib=control.memory_kib,
        store_bytes=sum(file.stat().st_size for file in files),
        descriptors=control.descriptors,
    )


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    fabric = leaf_spine(LEAVES, SPINES, HOSTS)
    with running(ControlProcess(tmp_path, fabric)) as process:
        yield process


def run_clients(clients: list[Churn], work: str, argument: float) -> list[threading.Thread]:
    def run(churn: Churn) -> None:
        try:
            getattr(churn, work)(argument)
        except (grpc.RpcError, AssertionError) as error:
            churn.failure = error

    threads = [threading.Thread(target=run, args=(churn,), daemon=True) for churn in clients]
    for thread in threads:
        thread.start()
    return threads


def check_all_there(client: Client, clients: list[Churn]) -> None:
    """What was acknowledged, and nothing else."""
    assert not any(churn.failure for churn in clients), [churn.failure for churn in clients]
    status = client.settled(SETTLED_S)
    ids = {row.id for row in client.status(applications=True).listed_applications}
    assert ids == {id_ for churn in clients for id_ in churn.jobs}
    assert status.connections == sum(len(c) for churn in clients for c in churn.jobs.values())


def test_memory_and_store_stay_flat_while_jobs_and_connections_come_and_go(
    control: ControlProcess,
) -> None:
    clients = [Churn(Client(control.address), random.Random(SEED + n)) for n in range(CLIENTS)]
    began = time.monotonic()
    for thread in run_clients(clients, "fill", JOBS // CLIENTS):
        thread.join()
    filled_s, filled = time.monotonic() - began, sum(churn.events for churn in clients)
    with Client(control.address) as client:
        check_all_there(client, clients)
        samples = churn_and_watch(control, clients)
        check_all_there(client, clients)
    events = sum(churn.events for churn in clients) - filled
    memory = [sample.memory_kib for sample in samples]
    middle = len(samples) // 2
    parts = (("start", samples[0]), ("middle", samples[middle]), ("end", samples[-1]))
    print(f"{JOBS} jobs, {CONNECTIONS} connections in {filled_s:.0f} s; then {SECONDS:.0f} s")
    print(f"of churn: {events} events, {events / SECONDS:.0f}/s, none refused, none lost")
    for name, sample in parts:
        print(
            f"{name}: {sample.memory_kib / 1024:.1f} MiB, store "
            f"{sample.store_bytes / 2**20:.1f} MiB, {sample.descriptors} descriptors"
        )
    warm = max(memory[int(WARM * len(memory)) - 2 : int(WARM * len(memory)) + 1])
    assert memory[-1] <= max(GROWTH * warm, warm + SMALL_KIB), memory
    assert samples[-1].descriptors <= samples[0].descriptors + 8
    for churn in clients:
        churn.client.channel.close()
    restart_and_check(control, clients)


def churn_and_watch(control: ControlProcess, clients: list[Churn]) -> list[Sample]:
    began = time.monotonic()
    threads = run_clients(clients, "run", began + SECONDS)
    samples = [take_sample(control)]
    while any(thread.is_alive() for thread in threads):
        time.sleep(SECONDS / SAMPLES)
        samples.append(take_sample(control))
        if len(samples) % 10 == 0:
            print(f"{time.monotonic() - began:.0f} s: {samples[-1]}", flush=True)
    return samples


def restart_and_check(control: ControlProcess, clients: list[Churn]) -> None:
    control.kill()
    began = time.monotonic()
    control.start()
    with Client(control.address) as client:
        slowly(lambda: client.status().applications, "the store is read", SETTLED_S)
        check_all_there(client, clients)
    print(f"killed and started again: every port checked after {time.monotonic() - began:.1f} s")
