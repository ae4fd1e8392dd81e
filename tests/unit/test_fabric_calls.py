"""Calls of all groups: two controllers' calls, and between them a link in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="gRPC: pip install 'weft[control]'")


from test_control_calls import Service, key, running_engine

from weft.control.cluster.etcd_client import Unreachable
from weft.control.cluster.group_link import Conflict, Held, Question, Reply
from weft.control.runtime.config import Roles
from weft.control.runtime.engine import HoldRevision, Ticket
from weft.control.service import weft_pb2 as pb
from weft.control.service.access import Access, Identity
from weft.control.service.calls import Calls
from weft.control.service.fabric_calls import FabricCalls
from weft.control.service.refusals import Refused
from weft.control.state.events import Asker
from weft.control.state.policy_settings import Settings
from weft.control.state.request_key import Key

GROUPS = ("a", "b")
EPOCH = 7
SECOND = {"leaf1", "spine1", "h2", "h3"}  # nodes of b


HOME = Settings(group="a")  # of all registrations, also where they are followed


def find_group(node: str) -> str | None:
    return "b" if node in SECOND else "a"


class Shared:
    """What is in etcd, and both controllers."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.loop = asyncio.get_running_loop()
        self.silent: dict[str, str] = {}  # groups that do not answer, and why
        self.held = Held()
        self.conflict: Exception | None = None


class MemoryLink:
    """As `GroupLink`, without etcd; every group carries a decision out at once, unless silent."""

    groups = GROUPS

    def __init__(self, shared: Shared, group: str) -> None:
        self.shared, self.group = shared, group
        self.others = tuple(g for g in GROUPS if g != group)

    def ask(self, question: Question, groups: Collection[str], _: float) -> dict[str, Reply]:
        return {group: self._ask(question, group) for group in groups}

    def _ask(self, question: Question, group: str) -> Reply:
        if group in self.shared.silent:
            return Reply(problem=self.shared.silent[group])
        answer = self.shared.services[group].calls.answer_group(question)
        try:
            data = asyncio.run_coroutine_threadsafe(answer, self.shared.loop).result(30)
        except Refused as error:
            return Reply(code=error.code, problem=str(error))
        return Reply(data=data)

    def read_held(self) -> Held:
        return self.shared.held

    def decide(
        self, key: Key, by: str, revisions: dict[str, int], epochs: Mapping[str, int]
    ) -> Held:
        assert set(epochs.values()) <= {EPOCH}
        if self.shared.conflict is not None:
            raise self.shared.conflict
        number = self.shared.held.number + 1
        self.shared.held = Held(number=number, key=key, by=by, revisions=revisions)
        for group in GROUPS:
            if group not in self.shared.silent:
                self.carry_out(group)
        return self.shared.held

    def carry_out(self, group: str) -> None:
        held = self.shared.held
        event = HoldRevision(
            number=held.number,
            revision=held.revisions.get(group),
            by=Asker(name=held.by, is_operator=True),
        )
        engine = self.shared.services[group].rig.engine
        done = threading.Event()
        engine.submit(Ticket([event], lambda _: done.set()))
        assert done.wait(30)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Callable[[Shared], Awaitable[None]]], None]]:
    with ExitStack() as stack:
        rigs = {g: stack.enter_context(running_engine(tmp_path / f"{g}.db", HOME)) for g in GROUPS}

        def run(body: Callable[[Shared], Awaitable[None]]) -> None:
            async def run_body() -> None:
                shared = Shared()
                for group, rig in rigs.items():
                    service = shared.services[group] = Service(rig)
                    link: Any = MemoryLink(shared, group)
                    service.calls = Calls(
                        rig.engine,
                        rig.reconciler,
                        service.bridge,
                        service.rates,
                        list,
                        Access(Roles(readers=("alice",), applications=()), service.lines.append),
                        FabricCalls(link, find_group),
                        EPOCH,
                    )
                try:
                    await body(shared)
                finally:
                    for service in shared.services.values():
                        service.calls.close()

            asyncio.run(run_body())

        yield run


@contextmanager
def refused(code: str, match: str) -> Iterator[None]:
    with pytest.raises(Refused, match=match) as raised:
        yield
    assert raised.value.code == code


async def start_both(shared: Shared) -> None:
    """The same connection in both, as if followed; ports of both are programmed."""
    for service in shared.services.values():
        await service.start("calm", 1)
        service.rig.settle()


def rollback(number: int, **fields: Any) -> pb.RollbackRequest:
    return pb.RollbackRequest(key=key(number, "operator"), **fields)


def test_a_status_lists_all_groups_and_names_one_that_does_not_answer(serve: Any) -> None:
    async def body(shared: Shared) -> None:
        await start_both(shared)
        service = shared.services["b"]
        reply = await service.ask("Status", pb.StatusRequest(groups=True, ports=True))
        assert [group.group for group in reply.groups] == ["a", "b"]
        assert all(group.status.revision == 1 for group in reply.groups)
        assert len(reply.listed_ports) == 2 * reply.ports
        shared.silent["a"] = "no controller owns it"
        reply = await service.ask("Status", pb.StatusRequest(groups=True))
        assert reply.groups[0].problem == "no controller owns it"
        assert reply.groups[1].status.revision == 1
        plain = await service.ask("Status", pb.StatusRequest())
        assert not plain.groups

    serve(body)


def test_a_plan_has_the_ports_of_all_groups_and_one_id_for_a_registration(serve: Any) -> None:
    async def body(shared: Shared) -> None:
        service = shared.services["a"]
        proposal = pb.Proposal()
        proposal.register.add(
            application="calm", connections=[pb.Pair(source="h0", destination="h2")]
        )
        request = pb.PlanRequest(proposal=proposal, groups=True)
        reply = await service.ask("Plan", request)
        assert [(g.group, g.ports) for g in reply.groups] == [("a", 4), ("b", 4)]
        (forecast,) = reply.applications  # b's is of the same registration
        assert forecast.share_after == 1.0
        shared.silent["b"] = "has not answered"
        reply = await service.ask("Plan", request)
        assert [(g.group, g.problem) for g in reply.groups] == [
            ("a", ""),
            ("b", "has not answered"),
        ]
        request.simulate = True
        with refused("INVALID_ARGUMENT", "simulate"):
            await service.ask("Plan", request)

    serve(body)


def test_an_explanation_follows_the_groups(serve: Any) -> None:
    async def body(shared: Shared) -> None:
        await start_both(shared)
        service = shared.services["a"]
        request = pb.ExplainRequest(connection="test/1", groups=True)
        reply = await service.ask("Explain", request)
        assert {port.group for port in reply.ports} == {"a", "b"}
        assert "test/1 of calm#1@a: h0 to h2" in reply.text
        named = [line.split()[1] for line in reply.text.splitlines() if line[:1].isdigit()]
        assert (named[0], named[-1]) == ("h0", "leaf1")
        reply = await service.ask("Explain", pb.ExplainRequest(id="calm", groups=True))
        assert "Group a" in reply.text
        assert "Group b" in reply.text
        port = pb.PortId(node="leaf1", port=1)
        reply = await service.ask("Explain", pb.ExplainRequest(port=port, groups=True))
        assert reply.ports[0].group == "b"
        shared.silent["b"] = "no controller owns it"
        reply = await service.ask("Explain", request)
        assert [(u.group, u.problem) for u in reply.unanswered] == [("b", "no controller owns it")]
        assert "Group b has not answered, its ports are missing" in reply.text
        with refused("UNAVAILABLE", "group b: no controller owns it"):
            await service.ask("Explain", pb.ExplainRequest(port=port, groups=True))
        with refused("NOT_FOUND", "is not open"):
            await service.ask("Explain", pb.ExplainRequest(connection="test/9", groups=True))

    serve(body)


def test_one_controller_explains_a_connection_too(serve: Any) -> None:
    async def body(shared: Shared) -> None:
        await start_both(shared)
        reply = await shared.services["a"].ask("Explain", pb.ExplainRequest(connection="test/1"))
        assert [port.port.node for port in reply.ports] == ["h0", "leaf0", "spine0", "leaf1"]
        assert "group" not in reply.text

    serve(body)


def test_a_rollback_is_of_all_groups(serve: Any) -> None:
    async def body(shared: Shared) -> None:
        await start_both(shared)
        service = shared.services["a"]
        reply = await service.ask("Rollback", rollback(1, groups={"a": 0, "b": 0}))
        assert [(g.group, g.to, g.problem) for g in reply.groups] == [("a", 0, ""), ("b", 0, "")]
        assert all(g.reply.ports == 4 for g in reply.groups)
        for each in shared.services.values():
            assert each.state.held_revision == 0
        assert (shared.held.by, shared.held.number) == ("root", 1)
        await service.ask("Rollback", rollback(1, groups={"a": 0, "b": 0}))  # repeated
        assert shared.held.number == 1
        with refused("PERMISSION_DENIED", "another identity"):
            bob = Identity("bob", 0)
            await service.ask("Rollback", rollback(1, groups={"a": 0, "b": 0}), by=bob)
        request = pb.ApplyRequest(key=key(2, "operator"), proposal=pb.Proposal())
        reply = await service.ask("Apply", request)
        assert list(reply.resumed) == ["b"]
        for each in shared.services.values():
            await each.ask("Renew", pb.RenewRequest(id="calm#1@a"))  # after what was submitted
            assert each.state.held_revision is None

    serve(body)


@pytest.mark.parametrize(
    ("fields", "code", "match"),
    [
        ({"groups": {"a": 0, "b": 9}}, "NOT_FOUND", "in any group: group b: revision 9: is not"),
        ({"groups": {"a": 9, "b": 0}}, "NOT_FOUND", "in any group: group a: revision 9: is not"),
        ({"groups": {"a": 0}}, "INVALID_ARGUMENT", "the groups are a, b"),
        ({"revision": 1}, "INVALID_ARGUMENT", "each group counts its own"),
    ],
)
def test_a_rollback_that_one_group_cannot_make_changes_none(
    serve: Any, fields: dict[str, Any], code: str, match: str
) -> None:
    async def body(shared: Shared) -> None:
        await start_both(shared)
        with refused(code, match):
            await shared.services["a"].ask("Rollback", rollback(1, **fields))
        assert shared.held == Held()

    serve(body)


def test_a_rollback_needs_all_groups_and_an_operator(serve: Any) -> None:
    async def body(shared: Shared) -> None:
        await start_both(shared)
        service, request = shared.services["a"], rollback(1, groups={"a": 0, "b": 0})
        with refused("PERMISSION_DENIED", "alice is not an operator"):
            await service.ask("Rollback", request, by=Identity("alice", 1234))
        shared.silent["b"] = "no controller owns it"
        with refused("UNAVAILABLE", "nothing has changed in any group: group b: no controller"):
            await service.ask("Rollback", request)
        shared.silent.clear()
        shared.conflict = Conflict("/held", "a group has got another owner meanwhile", "try again")
        with refused("UNAVAILABLE", "nothing has changed in any group.*another owner"):
            await service.ask("Rollback", request)
        shared.conflict = Unreachable("etcd", "does not answer")
        with refused("UNAVAILABLE", "not known whether all groups are to change, or none"):
            await service.ask("Rollback", request)
        assert shared.held == Held()
        for each in shared.services.values():
            assert each.state.held_revision is None

    serve(body)


def test_a_rollback_to_a_time_takes_each_group_s_revision_of_then(serve: Any) -> None:
    async def body(shared: Shared) -> None:
        await start_both(shared)
        for service in shared.services.values():
            service.rig.clock.now_s = 200.0
        await shared.services["a"].start("keen", 2)
        reply = await shared.services["b"].ask("Rollback", rollback(1, at_s=150.0))
        assert {g.group: g.to for g in reply.groups} == {"a": 1, "b": 1}
        reply = await shared.services["b"].ask("Rollback", rollback(2, at_s=300.0))
        # b has changed nothing since.
        assert {g.group: g.to for g in reply.groups} == {"a": 3, "b": 1}

    serve(body)


def test_a_group_that_is_lost_after_the_decision_is_reported(serve: Any) -> None:
    async def body(shared: Shared) -> None:
        await start_both(shared)
        service = shared.services["a"]
        link: Any = MemoryLink(shared, "a")
        decide = link.decide

        def decide_and_lose(*arguments: Any) -> Held:
            shared.silent["b"] = "no controller owns it"
            return decide(*arguments)

        link.decide = decide_and_lose
        service.calls._fabric = FabricCalls(link, find_group)
        reply = await service.ask("Rollback", rollback(1, groups={"a": 0, "b": 0}))
        assert [(g.group, g.problem) for g in reply.groups] == [
            ("a", ""),
            ("b", "no controller owns it"),
        ]
        shared.silent.clear()
        link.carry_out("b")  # its next owner does
        again = await service.ask("Rollback", rollback(1, groups={"a": 0, "b": 0}))
        assert [(g.group, g.problem) for g in again.groups] == [("a", ""), ("b", "")]

    serve(body)


def test_one_controller_alone_rolls_back_to_a_time_and_has_no_groups(tmp_path: Path) -> None:
    with running_engine(tmp_path / "control.db") as rig:

        async def body() -> None:
            service = Service(rig)
            try:
                await service.start("calm", 1)
                with refused("NOT_FOUND", "is before the first revision that is kept"):
                    await service.ask("Rollback", rollback(1, at_s=50.0))
                await service.ask("Rollback", rollback(1, at_s=150.0))
                assert service.state.held_revision == 1
                with refused("INVALID_ARGUMENT", "has no groups"):
                    await service.ask("Rollback", rollback(2, groups={"a": 1}))
                assert not (await service.ask("Status", pb.StatusRequest(groups=True))).groups
            finally:
                service.calls.close()

        asyncio.run(body())
