"""A backup under load, restored: the state that was acknowledged, and its tables on the ports."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from control_process import Client, ControlProcess, running, weft
from needs import need_time

from weft.control.service import weft_pb2 as pb
from weft.control.store.backup import check_backup

BACKUPS = 5


@pytest.fixture(autouse=True, scope="module")
def asked_for() -> None:
    need_time("test-control")


class Load:
    """One stream of connections of an application, one batch after another, until it is ended."""

    def __init__(self, client: Client, registration: str) -> None:
        self._client, self._registration = client, registration
        self.sent = self.acknowledged = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(30)

    def _run(self) -> None:
        for acks in self._client.stream(self._batches()):
            assert not any(ack.code for ack in acks.acks)
            self.acknowledged += len(acks.acks)

    def _batches(self) -> Iterator[pb.EventBatch]:
        hosts = ("h0", "h1", "h2", "h3")
        while not self._ending.wait(0.01):
            batch = pb.EventBatch()
            for _ in range(10):
                self.sent += 1
                request = pb.ConnectRequest(
                    key=self._client.key(),
                    id=self._registration,
                    source=hosts[self.sent % 4],
                    destination=hosts[(self.sent + 1) % 4],
                )
                batch.events.add(connect=request)
            yield batch


def test_backups_under_load_are_restored_and_compared(tmp_path: Path) -> None:
    control = ControlProcess(tmp_path)
    with running(control), Client(control.address) as client:
        client.settled()
        registration = client.register("keen", ttl_s=600).id
        load = Load(client, registration)
        for number in range(BACKUPS):
            acknowledged = load.acknowledged
            status, text = weft(control, "backup", str(tmp_path / f"backup-{number}"), "--json")
            assert status == 0, text
            sent = load.sent
            # Connections of one stream come in order: the backup has the first ones, no others.
            stored = check_backup(tmp_path / f"backup-{number}")
            count = json.loads(text)["connections"]
            assert acknowledged <= count <= sent
            expected = {f"{client.name}/{2 + n}" for n in range(count)}
            assert {connection.id for connection in stored.connections} == expected
        load.end()
        assert load.acknowledged == load.sent > 100
        status, text = weft(control, "restore", str(control.file), str(tmp_path / "backup-0"))
        assert (status, "is in use by another controller" in text) == (2, True)
    last = tmp_path / f"backup-{BACKUPS - 1}"
    before = check_backup(last)
    control.file.with_name("registers").unlink()  # the switches have forgotten their tables too
    status, text = weft(control, "restore", str(control.file), str(last))
    assert (status, "the old one is" in text) == (0, True), text
    with running(control), Client(control.address) as client:
        client.settled()
        reply = client.status(applications=True)
        assert [own.id for own in reply.listed_applications] == [registration]
        assert reply.connections == len(before.connections)
        assert control.held().items() >= before.target.items()
