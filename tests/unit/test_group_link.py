"""Questions between groups through etcd, and what all hold: decided once, for all or none."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

pytest.importorskip("grpc", reason="gRPC: pip install 'weft[control]'")

from control_parts import running
from etcd_cluster import EtcdCluster, etcd_cluster

from weft.control.cluster.etcd_client import EtcdClient, put
from weft.control.cluster.group_link import Conflict, GroupLink, Held, Question, Reply
from weft.control.cluster.ownership import Ownership
from weft.control.state.events import HELD, Applied, Asker, CursorRow, Hold
from weft.control.state.group_changes import has_carried_out
from weft.control.state.request_key import Key
from weft.control.state.step import run_batch

GROUPS = ("a", "b")


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster(nodes=1) as started:
        yield started


@pytest.fixture
def client(etcd: EtcdCluster) -> Iterator[EtcdClient]:
    with closing(EtcdClient(etcd.endpoints)) as opened:
        yield opened


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/test/{request.node.name}"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def own(client: EtcdClient, prefix: str, group: str, stack: ExitStack) -> Ownership:
    key = f"{prefix}/groups/{group}/owner"
    ownership = Ownership(client, key, f"owner of {group}", ttl_s=60.0, write_s=1.0)
    assert ownership.try_acquire()
    stack.callback(ownership.release)
    return ownership


@contextmanager
def running_link(link: GroupLink) -> Iterator[None]:
    thread = threading.Thread(target=link.run)
    thread.start()
    try:
        yield
    finally:
        link.stop()
        thread.join()


def test_a_group_answers_another_and_nothing_stays_in_etcd(
    client: EtcdClient, prefix: str, stack: ExitStack
) -> None:
    own(client, prefix, "b", stack)
    asker, asked = (GroupLink(client, prefix, group, GROUPS) for group in GROUPS)
    asked.answer = lambda question: Reply(data=question.request + question.home.encode())
    question = Question(method="Status", home="a", request=b"from ")
    with running_link(asked):
        replies = asker.ask(question, asker.others, 30.0)
    assert replies == {"b": Reply(data=b"from a")}
    left = client.read_range(f"{prefix}/", f"{prefix}/~", keys_only=True)
    assert [pair.key.decode() for pair in left] == [f"{prefix}/groups/b/owner"]


def test_a_group_without_an_owner_or_an_answer_is_named_with_the_reason(
    client: EtcdClient, prefix: str, stack: ExitStack
) -> None:
    asker = GroupLink(client, prefix, "a", ("a", "b", "c"))
    own(client, prefix, "b", stack)
    replies = asker.ask(Question(method="Status", home="a"), asker.others, 0.2)
    assert replies["b"].problem == "its owner has not answered within 0.2 s: owner of b"
    assert replies["c"].problem == "no controller owns it; start one of its controllers"


def test_an_unreadable_question_and_a_huge_answer_are_answered_with_the_problem(
    client: EtcdClient, prefix: str, stack: ExitStack
) -> None:
    own(client, prefix, "b", stack)
    asker, asked = (GroupLink(client, prefix, group, GROUPS) for group in GROUPS)
    client.transact([], [put(f"{prefix}/questions/b/odd", b"no question")])
    asked._answer(f"{prefix}/questions/b/odd", b"no question", 0)
    answer = client.read(f"{prefix}/answers/odd/b")
    assert answer is not None
    assert client.read(f"{prefix}/questions/b/odd") is None
    asked.answer = lambda _: Reply(data=os.urandom(2_000_000))
    with running_link(asked):
        replies = asker.ask(Question(method="Status", home="a"), ["b"], 30.0)
    assert "1400000 is the most; ask its controller alone" in replies["b"].problem


def test_a_decision_is_put_once_while_all_groups_have_the_owners_that_agreed(
    client: EtcdClient, prefix: str, stack: ExitStack
) -> None:
    epochs = {group: own(client, prefix, group, stack).epoch for group in GROUPS}
    link = GroupLink(client, prefix, "a", GROUPS)
    assert link.read_held() == Held()
    key, revisions = Key("operator", 1), {"a": 3, "b": 5}
    with pytest.raises(Conflict, match="another owner meanwhile"):
        link.decide(key, "root", revisions, epochs | {"b": epochs["b"] + 1})
    assert link.read_held() == Held()
    held = link.decide(key, "root", revisions, epochs)
    assert held == link.read_held() == Held(number=1, key=key, by="root", revisions=revisions)
    assert link.decide(key, "root", {"a": 1, "b": 1}, epochs) == held  # repeated
    after = link.decide(Key("operator", 2), "root", {}, {})
    assert (after.number, after.revisions) == (2, {})


def test_a_decision_that_another_one_overtakes_is_refused(
    client: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = GroupLink(client, prefix, "a", GROUPS)
    read = client.read

    def read_then_decide(key: str, within_s: float = 5.0) -> object:
        pair = read(key, within_s)
        monkeypatch.undo()
        link.decide(Key("other", 1), "root", {"a": 1, "b": 1}, {})
        return pair

    monkeypatch.setattr(client, "read", read_then_decide)
    with pytest.raises(Conflict, match="came first"):
        link.decide(Key("operator", 1), "root", {}, {})
    assert link.read_held().key == Key("other", 1)


def test_owners_carry_out_what_was_decided_before_they_came(
    client: EtcdClient, prefix: str
) -> None:
    held = GroupLink(client, prefix, "a", GROUPS).decide(Key("x", 1), "root", {"a": 1, "b": 2}, {})
    late, carried = GroupLink(client, prefix, "b", GROUPS), list[Held]()
    seen = threading.Event()

    def carry_out(decision: Held) -> None:
        carried.append(decision)
        seen.set()

    late.carry_out = carry_out
    with running_link(late):
        assert seen.wait(30)
    assert set(map(str, carried)) == {str(held)}


# ---- The state --------------------------------------------------------------------------------


def test_a_decision_of_all_groups_counts_once_also_after_a_restart() -> None:
    state, _ = running("calm", "keen")
    by = Asker(name="admin", is_operator=True)
    event = Hold(number=4, revision=0, tables={}, by=by)
    outcome = run_batch(state, [event])
    (answer,) = outcome.answers
    assert isinstance(answer, Applied)
    assert answer.ports == frozenset(state.target)
    assert outcome.state.held_revision == 0
    assert CursorRow(group=HELD, position="4") in outcome.rows
    assert has_carried_out(outcome.state, 4)
    resumed = run_batch(outcome.state, [Hold(number=5, revision=None, tables={}, by=by)]).state
    assert resumed.held_revision is None
    assert resumed.target == state.target
    # As restored: answers may be forgotten, cursors are not.
    restored = replace(resumed, answers=state.answers)
    for late in (event, Hold(number=5, revision=None, tables={}, by=by)):
        again = run_batch(restored, [late])
        assert (again.state, again.rows, again.ports) == (restored, (), frozenset())
