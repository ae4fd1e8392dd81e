"""The engine: batches, leases, deadlines, a disk that is full, a restart."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_parts import after, connect, key, ready
from control_rig import Rig
from msgspec import structs

from weft.control.runtime.engine import (
    GATHER_S,
    LONGEST_GAP_S,
    TICK_S,
    Batching,
    Busy,
    Engine,
    LeaseClock,
    RollbackTo,
    Ticket,
)
from weft.control.state.events import (
    Answer,
    Applied,
    Apply,
    Connected,
    Deregister,
    Disconnect,
    Done,
    NewApplication,
    Proposal,
    Refusal,
    Register,
    Registered,
    Renew,
    Renewed,
)
from weft.control.store.sqlite_store import CannotWrite


def open_rig(tmp_path: Path, batching: Batching | None = None) -> Rig:
    rig = Rig(tmp_path / "control.db", batching=batching)
    rig.turn()
    return rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    opened = open_rig(tmp_path)
    yield opened
    opened.close()


def register(rig: Rig, name: str, number: int, ttl_s: float = 10.0) -> str:
    now_s = rig.engine.now_s
    answer = rig.ask(Register(key=key(number, "r"), name=name, ttl_s=ttl_s, now_s=now_s))
    assert isinstance(answer, Registered)
    return answer.id


def connected(rig: Rig, id_: str, number: int, destination: str = "h2") -> Answer:
    return rig.ask(connect(id_, "h0", destination, number, now_s=rig.engine.now_s))


def full(rig: Rig, is_full: bool) -> None:
    (pages,) = rig.store._db.execute("PRAGMA page_count").fetchone()
    rig.store._db.execute(f"PRAGMA max_page_count = {pages if is_full else 1_000_000}")


def fill(rig: Rig) -> Refusal:
    """Registers until the store is full."""
    for number in range(1000, 3000):
        event = Register(key=key(number), name="calm", ttl_s=1000.0, now_s=rig.engine.now_s)
        answer = rig.ask(event)
        if isinstance(answer, Refusal):
            return answer
    raise AssertionError("the store never filled up")


def test_what_comes_together_is_answered_in_order_and_is_one_revision(rig: Rig) -> None:
    id_ = register(rig, "calm", 1)
    other = register(rig, "keen", 2)
    ends = ((id_, "h0", "h2"), (other, "h1", "h2"), ("calm#9", "h0", "h2"), (id_, "h0", "h3"))
    answers = rig.ask_all([connect(*pair, number) for number, pair in enumerate(ends)])
    assert [type(answer) for answer in answers] == [Connected, Connected, Refusal, Connected]
    assert rig.engine.state.revision == 1
    assert [one.ports for one in rig.engine.revisions(5)] == [len(rig.engine.state.target)]


def test_more_ports_than_can_be_recomputed_at_once_wait_and_are_recomputed_for_all_that_came(
    tmp_path: Path,
) -> None:
    rig = open_rig(tmp_path, Batching(max_ports=3))
    first, second = register(rig, "calm", 1), register(rig, "keen", 2)
    assert isinstance(connected(rig, first, 1), Connected)  # over four ports
    assert len(rig.engine.state.target) == 3
    assert isinstance(connected(rig, second, 2), Connected)
    assert isinstance(rig.ask(Disconnect(connection="c/1")), Done)
    assert {row.id for row in rig.store.load().connections} == {"c/2"}
    for _ in range(3):
        rig.engine.turn([])
    assert rig.engine.state.pending is None
    alone = after(ready(), Register(key=key(1), name="keen", ttl_s=9.0, now_s=0.0))
    expected = after(alone, connect("keen#1", "h0", "h2", 2)).target
    assert rig.engine.state.target == expected


def test_while_many_events_come_ports_are_recomputed_for_some_of_them_at_once_and_in_the_end(
    tmp_path: Path,
) -> None:
    rig = open_rig(tmp_path, Batching(large_batch=2, settle_every=5))
    id_ = register(rig, "calm", 1)
    for number, revision in ((10, 0), (20, 0), (30, 1), (40, 1)):  # 1 + 2, 4, 6, and 2 events
        rig.ask_all([connect(id_, "h0", "h2", number), connect(id_, "h1", "h3", number + 1)])
        assert rig.engine.state.revision == revision
    assert rig.engine.state.pending is not None
    rig.engine.turn([])
    assert rig.engine.state.pending is None
    assert len(rig.store.load().connections) == 8
    rig.close()


def test_each_caller_gets_its_own_answers(rig: Rig) -> None:
    received: list[list[Answer]] = [[], [], []]
    tickets = [
        Ticket([Register(key=key(n, "r"), name=name, ttl_s=1, now_s=0.0)], received[n].extend)
        for n, name in enumerate(("calm", "keen", "calm"))
    ]
    tickets[1].abandoned = True
    rig.engine.turn(tickets)
    assert [[type(answer) for answer in batch] for batch in received] == [
        [Registered],
        [],
        [Registered],
    ]
    assert set(rig.engine.state.applications) == {"calm#1", "calm#2"}


def test_a_dead_application_s_share_returns_within_its_lease_and_a_tick(rig: Rig) -> None:
    id_ = register(rig, "calm", 1, ttl_s=5.0)
    connected(rig, id_, 1)
    rig.pass_time(5.0)
    assert id_ in rig.engine.state.applications
    rig.pass_time(0.5)
    assert id_ not in rig.engine.state.applications
    assert len(rig.store.load().applications) == 0
    again = rig.ask(Renew(application=id_, now_s=rig.engine.now_s))
    assert isinstance(again, Refusal)
    assert again.remedy == "register again"


def test_a_renewal_that_waited_in_line_counts_from_when_it_came(rig: Rig) -> None:
    id_ = register(rig, "calm", 1, ttl_s=5.0)
    rig.pass_time(4.5)
    came_s = rig.engine.now_s
    rig.clock.now_s += 0.9
    assert rig.ask(Renew(application=id_, now_s=came_s)) == Renewed(ttl_s=5.0)
    rig.pass_time(4.0)
    assert id_ in rig.engine.state.applications


def test_leases_stand_still_while_nobody_could_hear_a_renewal() -> None:
    now = [0.0]
    clock = LeaseClock(lambda: now[0])
    assert clock.now_s == 0.0  # restored leases begin then
    now[0] = 0.4
    assert clock.advance() == pytest.approx(0.4)
    now[0] = 3600.0
    assert clock.advance() == pytest.approx(0.4 + LONGEST_GAP_S)


def test_a_full_disk_refuses_writes_serves_reads_and_recovers(rig: Rig) -> None:
    id_ = register(rig, "calm", 1, ttl_s=1000.0)
    connected(rig, id_, 1)
    full(rig, True)
    answer = fill(rig)
    assert (answer.code, answer.remedy) == ("RESOURCE_EXHAUSTED", "make room on its disk")
    before = rig.engine.state
    mixed = rig.ask_all(
        [connect(id_, "h0", "h3", 7, now_s=0.0), Renew(application=id_, now_s=rig.engine.now_s)]
    )
    if isinstance(mixed[0], Refusal):  # a page may have had room for a connection
        assert mixed[1] == Renewed(ttl_s=1000.0)
        assert rig.engine.problem.endswith("make room on its disk")
    assert dict(before.applications).keys() == dict(rig.engine.state.applications).keys()
    full(rig, False)
    assert isinstance(connected(rig, id_, 8, "h3"), Connected)
    assert rig.engine.problem == ""


def test_what_is_pending_is_not_tried_all_the_time_while_nothing_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = open_rig(tmp_path, Batching(max_ports=1))
    connected(rig, register(rig, "calm", 1), 1)
    assert rig.engine.state.pending is not None
    assert rig.engine.idle_s == GATHER_S

    def commit(*_: object) -> None:
        raise CannotWrite("control.db", "database or disk is full", "make room on its disk")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(rig.store, "commit", commit)
        rig.engine.turn([])
    assert rig.engine.state.pending is not None
    assert rig.engine.idle_s == TICK_S
    while rig.engine.state.pending is not None:
        rig.engine.turn([])
    assert (rig.engine.problem, rig.engine.idle_s) == ("", TICK_S)
    rig.close()


def test_a_lease_that_ends_while_nothing_can_be_stored_is_not_reported_as_expired(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = register(rig, "calm", 1, ttl_s=5.0)

    def commit(*_: object) -> None:
        raise CannotWrite("control.db", "database or disk is full", "make room on its disk")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(rig.store, "commit", commit)
        rig.pass_time(6.0)
        renewal = Renew(application=id_, now_s=rig.engine.now_s)
        waiting = rig.ask(renewal)
        assert isinstance(waiting, Refusal)
        assert waiting.code == "RESOURCE_EXHAUSTED"
    over = rig.ask(renewal)
    assert isinstance(over, Refusal)
    assert over.code == "FAILED_PRECONDITION"
    assert rig.store.load().applications == ()


def test_a_short_lease_begins_when_it_is_asked_for_not_when_the_engine_last_looked(
    rig: Rig,
) -> None:
    rig.clock.now_s += 0.2  # nothing came meanwhile
    id_ = register(rig, "calm", 1, ttl_s=0.2)
    rig.clock.now_s += 0.15
    renewal = Renew(application=id_, now_s=rig.engine.now_s)
    assert rig.ask(renewal) == Renewed(ttl_s=0.2)


def test_an_expired_lease_is_stored_before_a_client_hears_of_it(rig: Rig) -> None:
    id_ = register(rig, "calm", 1, ttl_s=5.0)
    rig.pass_time(5.0)
    rig.clock.now_s += 0.1  # less than a tick
    over = rig.ask(Renew(application=id_, now_s=rig.engine.now_s + 0.1))
    assert isinstance(over, Refusal)
    assert over.problem == "lease expired"
    assert rig.store.load().applications == ()


def test_a_restart_has_everything_that_was_acknowledged(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "control.db")
    rig.turn()
    id_ = register(rig, "calm", 1)
    connected(rig, id_, 1)
    rig.turn()
    before = rig.engine.state
    rig.close()  # as a kill does: nothing is written at the end
    again = Rig(tmp_path / "control.db", rig.switches)
    again.turn()
    restored = again.engine.state
    assert dict(restored.connections) == dict(before.connections)
    assert (dict(restored.target), restored.revision) == (dict(before.target), before.revision)
    assert connected(again, id_, 1) == Connected(connection="c/1")
    assert register(again, "keen", 2) == "keen#2"
    again.close()


def test_a_change_that_is_asked_for_again_after_a_kill_is_answered_alike(tmp_path: Path) -> None:
    new = NewApplication(name="calm", connections=(("h0", "h2"),))
    change = Apply(key=key(1), proposal=Proposal(register=(new,)), now_s=0.0)
    back = RollbackTo(key=key(2), revision=0)
    rig = Rig(tmp_path / "control.db")
    rig.turn()
    answers = [rig.ask(change), rig.ask(back)]
    assert all(isinstance(answer, Applied) and answer.ports for answer in answers)
    rig.close()
    again = Rig(tmp_path / "control.db", rig.switches)
    again.turn()
    assert [again.ask(change), again.ask(back)] == answers
    others = (
        RollbackTo(key=key(1), revision=1),
        RollbackTo(key=key(2), revision=1),
        Apply(key=key(2), proposal=Proposal(), now_s=0.0),
        structs.replace(change, proposal=Proposal(register=(new, new))),
    )
    before = again.engine.state
    assert [code_of(again.ask(other)) for other in others] == ["ALREADY_EXISTS"] * 4
    assert again.engine.state is before
    again.close()


def test_a_key_gives_back_one_registration(rig: Rig) -> None:
    first, second = register(rig, "calm", 1), register(rig, "calm", 2)
    for _ in range(2):
        assert isinstance(rig.ask(Deregister(key=key(3), application=first)), Done)
    assert code_of(rig.ask(Deregister(key=key(3), application=second))) == "ALREADY_EXISTS"
    assert set(rig.engine.state.applications) == {second}


def code_of(answer: Answer) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.code


def test_a_rollback_goes_to_any_revision_that_is_kept_and_apply_resumes(rig: Rig) -> None:
    first = register(rig, "calm", 1)
    connected(rig, first, 1)
    one = dict(rig.engine.state.target)
    second = register(rig, "keen", 2)
    rig.ask(connect(second, "h1", "h2", 2))
    two = dict(rig.engine.state.target)
    answer = rig.ask(RollbackTo(key=key(3), revision=1))
    assert isinstance(answer, Applied)
    assert answer.revision == 3
    assert {n: t for n, t in rig.engine.state.target.items() if n in one} == one
    rig.ask(RollbackTo(key=key(4), revision=2))
    assert dict(rig.engine.state.target) == two
    refused = rig.ask(RollbackTo(key=key(5), revision=99))
    assert isinstance(refused, Refusal)
    assert refused.code == "NOT_FOUND"
    rig.ask(Deregister(key=key(6), application=second))
    assert dict(rig.engine.state.target) == two
    rig.ask(Apply(key=key(7), proposal=Proposal(), now_s=0.0))
    assert {n: t for n, t in rig.engine.state.target.items() if n in one} == one


class RecordedQueue(queue.SimpleQueue[Ticket | None]):
    """Never waits, and keeps how long each call would have waited."""

    def __init__(self) -> None:
        self.timeouts: list[float | None] = []

    def get(self, timeout: float | None = None) -> Ticket | None:  # type: ignore[override]
        self.timeouts.append(timeout)
        return self.get_nowait()


def test_a_batch_is_gathered_for_a_time_from_its_first_request_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = RecordedQueue()
    monkeypatch.setattr(rig.engine, "_queue", waiting)
    rig.engine.submit(first := Ticket([], lambda _: None))
    rig.clock.now_s += GATHER_S / 4
    rig.engine.submit(second := Ticket([], lambda _: None))
    idle_s = rig.engine.idle_s
    assert rig.engine._gather() == [first, second]
    rest_s = pytest.approx(GATHER_S * 3 / 4)
    assert waiting.timeouts == [idle_s, rest_s, rest_s]


def test_more_than_can_wait_is_turned_away(tmp_path: Path) -> None:
    rig = open_rig(tmp_path, Batching(max_tickets=2))
    engine: Engine = rig.engine
    for _ in range(2):
        engine.submit(Ticket([], lambda _: None))
    with pytest.raises(Busy, match="2 requests wait"):
        engine.submit(Ticket([], lambda _: None))
    rig.close()


def test_a_time_before_the_first_revision_is_refused(rig: Rig) -> None:
    assert rig.engine.find_revision(None, 0.0) == 0, "nothing was ever changed"
    rig.settle()
    rig.ask(connect(register(rig, "calm", 1), "h0", "h2", 2))
    first = rig.engine.revisions(1000)[-1]
    assert rig.engine.find_revision(None, first.at_s) == first.revision
    answer = rig.engine.find_revision(None, first.at_s - 1)
    assert isinstance(answer, Refusal)
    assert f"is before the first revision that is kept ({first.revision}, of " in str(answer)
