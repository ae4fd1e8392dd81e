"""A store whose commits are a log in etcd: followers have the same rows, stale owners add none."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="gRPC: pip install 'weft[control]'")

from control_parts import KINDS
from etcd_cluster import EtcdCluster, etcd_cluster

from weft.control.cluster import replicated_store
from weft.control.cluster.etcd_client import EtcdClient, Unreachable, put
from weft.control.cluster.member import Member
from weft.control.cluster.ownership import Ownership
from weft.control.cluster.replicated_store import Keys, LostOwnership, ReplicatedStore
from weft.control.state.events import ApplicationRow, CountRow, ModelRow, Row
from weft.control.store.sqlite_store import Store
from weft.errors import InputError

TTL_S = 30.0


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster(nodes=1) as started:
        yield started


@pytest.fixture
def client(etcd: EtcdCluster) -> Iterator[EtcdClient]:
    with closing(EtcdClient(etcd.endpoints)) as opened:
        yield opened


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def keys(request: pytest.FixtureRequest) -> Keys:
    return Keys(f"/test/{request.node.name}")


def open_store(path: Path, stack: ExitStack) -> ReplicatedStore:
    return stack.enter_context(closing(ReplicatedStore.open(path)))


def acquire(client: EtcdClient, keys: Keys, name: str, stack: ExitStack) -> Ownership:
    ownership = Ownership(client, keys.owner, name, ttl_s=TTL_S, write_s=1.0)
    assert ownership.try_acquire()
    stack.callback(ownership.release)
    return ownership


def rows(number: int) -> list[Row]:
    name = sorted(KINDS)[0]
    return [
        ModelRow(name=name, model=KINDS[name]),
        CountRow(last_registration=number),
        ApplicationRow(id=f"{name}#{number}", name=name, ttl_s=0.1 + number),
    ]


def dump(store: ReplicatedStore) -> list[str]:
    return list(store._db.iterdump())


def test_a_follower_has_what_the_owner_has_committed(
    tmp_path: Path, client: EtcdClient, keys: Keys, stack: ExitStack
) -> None:
    owner, follower = (open_store(tmp_path / name, stack) for name in ("owner", "follower"))
    owner.join(client, keys)
    owner.own(acquire(client, keys, "owner", stack))
    for number in range(1, 6):
        owner.commit(rows(number), at_s=float(number))
    follower.join(client, keys)
    assert dump(follower) == dump(owner)
    assert follower.load() == owner.load()
    owner.commit(rows(6), at_s=6.0)
    assert follower.catch_up() == 1
    assert follower.catch_up() == 0
    assert dump(follower) == dump(owner)


def test_one_that_is_far_behind_starts_from_a_snapshot(
    tmp_path: Path,
    client: EtcdClient,
    keys: Keys,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicated_store, "SNAPSHOT_EVERY", 5)
    monkeypatch.setattr(replicated_store, "KEPT_ENTRIES", 2)
    monkeypatch.setattr(replicated_store, "PART_BYTES", 1000)
    owner, late, newcomer = (open_store(tmp_path / name, stack) for name in "abc")
    owner.join(client, keys)
    owner.own(acquire(client, keys, "owner", stack))
    owner.commit(rows(1), at_s=1.0)
    late.join(client, keys)
    for number in range(2, 23):
        owner.commit(rows(number), at_s=1.0)
        if owner._snapshot_thread is not None:
            owner._snapshot_thread.join()
    log = client.read_range(keys.entry(0), keys.end_of_log, keys_only=True)
    assert len(log) == 5  # 18 and on: 2 behind the last snapshot, and 2 after it
    late.catch_up()
    newcomer.join(client, keys)
    assert newcomer.load() == late.load() == owner.load()
    assert newcomer.index == late.index == owner.index == 22


def test_an_owner_that_lost_its_lease_commits_nothing(
    tmp_path: Path, client: EtcdClient, keys: Keys, stack: ExitStack
) -> None:
    stale, successor = (open_store(tmp_path / name, stack) for name in ("stale", "successor"))
    stale.join(client, keys)
    first = acquire(client, keys, "first", stack)
    stale.own(first)
    stale.commit(rows(1), at_s=1.0)
    lost = threading.Event()
    first.lost = lost.set
    client.revoke_lease(first._lease)  # as if it had been stopped beyond its lease
    successor.join(client, keys)
    second = acquire(client, keys, "second", stack)
    assert second.epoch > first.epoch
    successor.own(second)
    before = dump(stale)
    with pytest.raises(LostOwnership, match=r"another owner|lease has"):
        stale.commit(rows(2), at_s=2.0)
    assert lost.wait(10)
    assert not first.may_write()
    assert dump(stale) == before
    successor.commit(rows(3), at_s=3.0)
    stale.ownership = None
    stale.catch_up()
    assert stale.load() == successor.load()


def test_a_lost_answer_is_no_second_entry(
    tmp_path: Path,
    client: EtcdClient,
    keys: Keys,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = open_store(tmp_path / "owner", stack)
    owner.join(client, keys)
    owner.own(acquire(client, keys, "owner", stack))
    calls, transact = [0], client.transact

    def lose_first_answer(*args: object, **more: object) -> object:
        reply = transact(*args, **more)  # type: ignore[arg-type]
        calls[0] += 1
        if calls[0] == 1:
            raise Unreachable("etcd", "the answer was lost")
        return reply

    monkeypatch.setattr(client, "transact", lose_first_answer)
    owner.commit(rows(1), at_s=1.0)
    assert (calls[0], owner.index) == (2, 1)
    assert len(client.read_range(keys.entry(0), keys.end_of_log)) == 1


def test_a_full_disk_after_the_log_ends_the_ownership(
    tmp_path: Path,
    client: EtcdClient,
    keys: Keys,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = open_store(tmp_path / "owner", stack)
    owner.join(client, keys)
    owner.own(acquire(client, keys, "owner", stack))
    execute = owner._db.execute

    def fail_to_commit(sql: str, *values: object) -> sqlite3.Cursor:
        if sql == "COMMIT":
            raise sqlite3.OperationalError("disk full")
        return execute(sql, *values)

    monkeypatch.setattr(owner._db, "execute", fail_to_commit)
    with pytest.raises(LostOwnership, match="disk full"):
        owner.commit(rows(1), at_s=1.0)
    monkeypatch.undo()
    assert owner.index == 0
    owner.catch_up()
    assert owner.load().last_registration == 1


def test_a_store_of_its_own_brings_its_state_or_is_refused(
    tmp_path: Path, client: EtcdClient, keys: Keys, stack: ExitStack
) -> None:
    for name in ("a", "b"):
        with closing(Store.open(tmp_path / name)) as alone:
            alone.commit(rows(1), at_s=1.0)
    first, second, third = (open_store(tmp_path / name, stack) for name in "abc")
    first.join(client, keys)
    first.own(acquire(client, keys, "first", stack))
    with pytest.raises(InputError, match="has a state of its own; move it away"):
        second.join(client, keys)
    third.join(client, keys)
    assert third.load() == first.load()
    with pytest.raises(InputError, match="is not of this group of etcd"):
        third.join(client, Keys(f"{keys.prefix}-other"))


def test_a_member_waits_for_the_group_and_reports_an_etcd_that_does_not_answer(
    tmp_path: Path, client: EtcdClient, keys: Keys, stack: ExitStack
) -> None:
    lines: list[str] = []
    holder = acquire(client, keys, "holder", stack)
    store = open_store(tmp_path / "member", stack)

    def new_ownership() -> Ownership:
        return Ownership(client, keys.owner, "member", ttl_s=TTL_S, write_s=1.0)

    member = Member(client, store, keys, new_ownership, lines.append)
    owned: list[Ownership | None] = []
    ending = threading.Event()
    thread = threading.Thread(target=lambda: owned.append(member.campaign(ending)))
    thread.start()
    try:
        while not lines:
            assert thread.is_alive()
            thread.join(0.01)
        assert lines == [f"standby: holder owns {keys.prefix}"]
        holder.release()
    finally:
        thread.join(20)
        ending.set()
        thread.join()
    assert owned[0] is not None
    stack.callback(owned[0].release)
    assert owned[0].epoch > holder.epoch
    assert holder.left_s == -math.inf


def test_an_etcd_that_does_not_answer_is_named() -> None:
    with (
        closing(EtcdClient(["127.0.0.1:1"])) as client,
        pytest.raises(Unreachable, match=r"etcd 127.0.0.1:1: does not answer: .*majority"),
    ):
        client.transact([], [put("/x", b"")], within_s=0.1)


def test_an_owner_stops_writing_before_its_lease_ends(
    client: EtcdClient, keys: Keys, stack: ExitStack
) -> None:
    now_s = [100.0]
    ownership = Ownership(
        client, keys.owner, "owner", ttl_s=TTL_S, write_s=4.0, clock=lambda: now_s[0]
    )
    assert not ownership.may_write()
    assert ownership.try_acquire()
    stack.callback(ownership.release)
    assert ownership.may_write()
    now_s[0] += TTL_S - 4.0
    assert not ownership.may_write()
    assert ownership.left_s == pytest.approx(4.0)
