"""The service's calls on a controller whose engine runs, and its switches are turned by hand."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="gRPC: pip install 'weft[control]'")

from control_rig import Rig

from weft.control.policy.plan import PortPlan
from weft.control.runtime.config import Limits, Roles, Socket
from weft.control.service import calls as calls_module
from weft.control.service import grpc_server, local_socket
from weft.control.service import weft_pb2 as pb
from weft.control.service.access import Access, Identity, find_user_identity
from weft.control.service.calls import Bridge, Call, Calls
from weft.control.service.limits import RateLimits
from weft.control.service.local_socket import FRAME_BYTES, LocalServer
from weft.control.service.operator_client import Controller, call
from weft.control.service.refusals import Refused
from weft.control.state.policy_settings import Settings
from weft.control.state.programming import find_port_plan
from weft.control.state.state import State
from weft.errors import InputError
from weft.switches import PortName

ROOT = Identity("root", 0)
PLENTY = Limits(rate_per_s=1e6, burst=1e7)
WAIT_S = 30.0


def key(number: int, client: str = "test") -> pb.Key:
    return pb.Key(client=client, sequence=number)


class Service:
    """Calls, and the rig that answers them."""

    def __init__(self, rig: Rig, limits: Limits = PLENTY) -> None:
        self.rig, self.limits = rig, limits
        self.lines: list[str] = []
        self.bridge = Bridge(rig.engine, asyncio.get_running_loop())
        self.rates = RateLimits(limits, rig.clock)
        self.calls = Calls(
            rig.engine,
            rig.reconciler,
            self.bridge,
            self.rates,
            lambda: ["", "the table is old"],
            Access(Roles(readers=("mallory", "alice", "bob")), self.lines.append),
        )

    @property
    def state(self) -> State:
        return self.rig.engine.state

    async def ask(
        self, name: str, request: Any, until_s: float = float("inf"), by: Identity = ROOT
    ) -> Any:
        caller = self.rates.caller("a caller")
        return await self.calls.answer(Call(caller, by, until_s), name, request)

    async def refuse(self, name: str, request: Any, by: Identity = ROOT) -> tuple[str, str]:
        with pytest.raises(Refused) as raised:
            await self.ask(name, request, by=by)
        return raised.value.code, str(raised.value)

    async def start(self, name: str, number: int, source: str = "h0", target: str = "h2") -> str:
        request = pb.RegisterRequest(key=key(number, "r"), application=name, ttl_s=5.0)
        reply = await self.ask("Register", request)
        ends = {"source": source, "destination": target}
        await self.ask("Connect", pb.ConnectRequest(key=key(number), id=reply.id, **ends))
        return str(reply.id)


@contextmanager
def running_engine(path: Path, settings: Settings | None = None) -> Iterator[Rig]:
    rig = Rig(path, settings=settings)
    rig.settle()
    thread = threading.Thread(target=rig.engine.run)
    thread.start()
    try:
        yield rig
    finally:
        rig.engine.stop()
        thread.join()
        rig.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Callable[[Service], Awaitable[None]]], None]]:
    """Runs a test's body beside an engine."""
    with running_engine(tmp_path / "control.db") as rig:

        def run(body: Callable[[Service], Awaitable[None]]) -> None:
            async def run_body() -> None:
                service = Service(rig)
                try:
                    await body(service)
                finally:
                    service.calls.close()

            asyncio.run(run_body())

        yield run


Serve = Callable[[Callable[[Service], Awaitable[None]]], None]


# ---- Access -----------------------------------------------------------------------------------

ALICE, BOB, NOBODY = Identity("alice", 4001), Identity("bob", 4002), Identity("")


def test_a_registration_is_used_and_ended_by_its_owner_or_an_operator_alone(serve: Serve) -> None:
    async def body(service: Service) -> None:
        request = pb.RegisterRequest(key=key(1, "r"), application="calm", ttl_s=5.0)
        id_ = (await service.ask("Register", request, by=ALICE)).id
        ends = {"source": "h0", "destination": "h2"}
        connect = pb.ConnectRequest(key=key(1), id=id_, **ends)
        opened = await service.ask("Connect", connect, by=ALICE)
        before = service.state
        attacks = {
            "Register": request,  # a replayed key
            "Connect": pb.ConnectRequest(key=key(2), id=id_, **ends),
            "Disconnect": pb.DisconnectRequest(connection=opened.connection),
            "Renew": pb.RenewRequest(id=id_),
            "Deregister": pb.DeregisterRequest(key=key(3, "r"), id=id_),
        }
        for name, attack in attacks.items():
            code, text = await service.refuse(name, attack, by=BOB)
            whose = f"application {id_}: belongs to alice"
            if name == "Register":
                whose = "key r/1: belongs to another identity"
            assert code == "PERMISSION_DENIED", (name, text)
            assert service.lines[-1] == f"refused: bob: {name}: {whose}"
        assert service.state.applications == before.applications
        assert service.state.connections == before.connections
        batch = pb.EventBatch(events=[pb.Event(renew=attacks["Renew"])])
        acks = await service.calls.acks(service.rates.caller("b"), BOB, batch)
        assert acks.acks[0].message.startswith(f"application {id_}: belongs to alice")
        assert (await service.ask("Renew", attacks["Renew"], by=ALICE)).ttl_s == 5.0
        await service.ask("Deregister", attacks["Deregister"])  # by an operator
        assert not service.state.applications

    serve(body)


def test_only_operators_change_the_fabric_and_strangers_do_nothing(serve: Serve) -> None:
    async def body(service: Service) -> None:
        await service.ask("Apply", pb.ApplyRequest(key=key(1), proposal=propose("calm")))
        before = service.state
        for name, attack in {
            "Apply": pb.ApplyRequest(key=key(2), proposal=propose("keen")),
            "Rollback": pb.RollbackRequest(key=key(3), revision=0),
        }.items():
            code, text = await service.refuse(name, attack, by=ALICE)
            assert code == "PERMISSION_DENIED"
            assert text.startswith(f"{name}: alice is not an operator; ask an operator to list it")
            assert service.lines[-1] == f"refused: {name}: alice is not an operator"
        for name, attack in {
            "Status": pb.StatusRequest(),
            "Register": pb.RegisterRequest(key=key(4), application="calm", ttl_s=5.0),
        }.items():
            code, _ = await service.refuse(name, attack, by=NOBODY)
            assert code == "PERMISSION_DENIED"
            assert "an unknown caller is not" in service.lines[-1]
        assert service.state is before

    serve(body)


# ---- Clients ----------------------------------------------------------------------------------


def test_a_client_registers_connects_renews_and_leaves(serve: Serve) -> None:
    async def body(service: Service) -> None:
        request = pb.RegisterRequest(key=key(1, "r"), application="calm", ttl_s=5.0)
        reply = await service.ask("Register", request)
        assert (reply.id, reply.level, reply.ttl_s) == ("calm#1", 1, 5.0)
        assert await service.ask("Register", request) == reply
        opened = await service.ask(
            "Connect", pb.ConnectRequest(key=key(1), id="calm#1", source="h0", destination="h2")
        )
        assert opened.connection == "test/1"
        assert set(service.state.connections) == {"test/1"}
        renewed = await service.ask("Renew", pb.RenewRequest(id="calm#1"))
        assert renewed.ttl_s == 5.0
        await service.ask("Disconnect", pb.DisconnectRequest(connection="test/1"))
        assert not service.state.connections
        await service.ask("Deregister", pb.DeregisterRequest(key=key(2, "r"), id="calm#1"))
        assert not service.state.applications

    serve(body)


def test_a_registration_without_a_time_has_the_usual_lease(serve: Serve) -> None:
    async def body(service: Service) -> None:
        request = pb.RegisterRequest(key=key(1), application="calm")
        assert (await service.ask("Register", request)).ttl_s == 10.0

    serve(body)


MALFORMED = [
    ("Register", pb.RegisterRequest(key=key(0), application="calm"), "key: sequence 0; use 1 to"),
    ("Register", pb.RegisterRequest(key=key(2**63), application="calm"), f"sequence {2**63}; "),
    ("Register", pb.RegisterRequest(key=key(1, "a b"), application="calm"), "client 'a b'; use 1"),
    ("Register", pb.RegisterRequest(key=key(1), application="a b"), "'a b' is no name"),
    ("Register", pb.RegisterRequest(key=key(1), application="calm", ttl_s=-1), "ttl_s: -1; give"),
    ("Register", pb.RegisterRequest(key=key(1), application="calm", ttl_s=1e999), "ttl_s: inf"),
    ("Deregister", pb.DeregisterRequest(key=key(1), id="calm"), "id: 'calm'; give that of a"),
    ("Connect", pb.ConnectRequest(key=key(1), id="a#1", source="h0"), "destination: ''; give its"),
    (
        "Connect",
        pb.ConnectRequest(key=key(1), id="a#1", source="h" * 256, destination="h1"),
        f"source: {'h' * 80!r}; give its name in 1 to 255 printable",
    ),
    ("Disconnect", pb.DisconnectRequest(connection="a"), "'a'; name one as CLIENT/SEQUENCE"),
    ("Renew", pb.RenewRequest(id="a#0"), "id: 'a#0'; give that of a registration, NAME#NUMBER"),
    ("Explain", pb.ExplainRequest(), "explain: nothing is named; name a port, an app"),
    ("Apply", pb.ApplyRequest(key=key(1), wait_s=-1), "wait_s: -1; give seconds"),
    ("Rollback", pb.RollbackRequest(key=key(1), wait_s=float("nan")), "wait_s: nan; give seconds"),
    (
        "Plan",
        pb.PlanRequest(proposal=pb.Proposal(deregister=["a#1"] * 1001)),
        "proposal: 0 applications to register, 1001 to deregister, 0 connections; at most 1000",
    ),
]


@pytest.mark.parametrize(("name", "request_", "problem"), MALFORMED)
def test_a_malformed_request_is_refused_with_its_field(
    serve: Serve, name: str, request_: Any, problem: str
) -> None:
    async def body(service: Service) -> None:
        before = service.state
        code, message = await service.refuse(name, request_)
        assert code == "INVALID_ARGUMENT"
        assert problem in message
        assert service.state is before

    serve(body)


def test_limits_of_a_request_are_within_it(serve: Serve) -> None:
    async def body(service: Service) -> None:
        longest = pb.RegisterRequest(key=key(2**63 - 1, "c" * 64), application="calm")
        id_ = (await service.ask("Register", longest)).id
        ends = {"source": "h" * 255, "destination": "h0"}
        await service.ask("Connect", pb.ConnectRequest(key=key(1), id=id_, **ends))
        proposal = pb.Proposal(deregister=["a#1"] * 1000)
        code, _ = await service.refuse("Plan", pb.PlanRequest(proposal=proposal))
        assert code == "NOT_FOUND"

    serve(body)


def test_a_batch_is_acknowledged_event_by_event_in_order(serve: Serve) -> None:
    async def body(service: Service) -> None:
        id_ = await service.start("calm", 1)
        connects = [
            pb.ConnectRequest(key=key(n), id=id_, source="h0", destination="h2")
            for n in range(2, 72)
        ]
        events = [pb.Event(connect=connect) for connect in connects]
        events.insert(1, pb.Event())
        events.insert(3, pb.Event(renew=pb.RenewRequest(id="calm#9")))
        events.append(pb.Event(disconnect=pb.DisconnectRequest(connection="test/1")))
        acks = (
            await service.calls.acks(service.rates.caller("c"), ROOT, pb.EventBatch(events=events))
        ).acks
        assert len(acks) == 73
        assert {n: ack.code for n, ack in enumerate(acks) if ack.code} == {1: 3, 3: 9}
        assert acks[1].message == "event: event: is empty; say what happened"
        assert set(service.state.connections) == {f"test/{n}" for n in range(2, 72)}
        many = pb.EventBatch(events=[pb.Event()] * 1001)
        with pytest.raises(Refused, match="batch: 1001 events; send 1000 at most"):
            await service.calls.acks(service.rates.caller("c"), ROOT, many)
        none = await service.calls.acks(service.rates.caller("c"), ROOT, pb.EventBatch())
        assert len(none.acks) == 0

    serve(body)


def test_a_call_that_was_cancelled_is_not_carried_out(tmp_path: Path) -> None:
    """Nobody turns the engine until the caller has gone."""
    rig = Rig(tmp_path / "control.db")

    async def body() -> None:
        service = Service(rig)
        request = pb.RegisterRequest(key=key(1), application="calm")
        task = asyncio.create_task(service.ask("Register", request))
        while rig.engine._queue.empty():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rig.engine.turn([rig.engine._queue.get()])  # type: ignore[list-item]
        assert not rig.engine.state.applications
        rig.engine.ended = True
        assert await service.refuse("Register", request) == (
            "UNAVAILABLE",
            "the controller is ending",
        )
        service.calls.close()

    asyncio.run(body())
    rig.close()


# ---- Operators --------------------------------------------------------------------------------


def plan_at(state: State, port: pb.PortId) -> PortPlan:
    plan = find_port_plan(state, PortName(port.node, port.port))
    assert plan is not None
    return plan


def test_status_counts_what_there_is_and_lists_what_is_asked_for(serve: Serve) -> None:
    async def body(service: Service) -> None:
        calm = await service.start("calm", 1)
        keen = await service.start("keen", 2, "h1", "h2")
        await service.start("middling", 3, "h1", "nowhere")
        brief = await service.ask("Status", pb.StatusRequest())
        state = service.state
        ports = len(state.target)
        assert (brief.revision, brief.applications, brief.connections) == (state.revision, 3, 3)
        assert (brief.connections_without_path, brief.levels, brief.models) == (1, 3, 3)
        assert (brief.ports, brief.ports_pending, brief.ports_failing) == (ports, ports, 0)
        assert brief.problems[0] == "the table is old"
        assert "a connection of middling#3: host 'nowhere': is not in leaf_spine" in brief.problems
        assert "test/3" not in str(brief), "a client's name is its own to know"
        assert not brief.HasField("held")
        lists = (brief.listed_applications, brief.listed_ports, brief.listed_revisions)
        assert not any(lists)
        service.rig.settle()
        full = await service.ask(
            "Status", pb.StatusRequest(applications=True, ports=True, revisions=1)
        )
        assert (full.programmed, full.ports_pending) == (state.revision, 0)
        listed = {a.id: a for a in full.listed_applications}
        assert list(listed) == [calm, keen, "middling#3"]
        assert (listed[calm].connections, listed[calm].ttl_s, listed[calm].left_s) == (1, 5.0, 5.0)
        assert listed[keen].level == state.level_of("keen")
        assert listed["middling#3"].ports == 0
        assert not listed["middling#3"].HasField("slowdown")
        assert [r.revision for r in full.listed_revisions] == [state.revision]
        assert full.listed_revisions[0].ports == len(state.target) or state.revision > 1
        assert [(p.port.node, p.port.port) for p in full.listed_ports] == sorted(state.target)
        counted = [plan_at(state, p.port).names for p in full.listed_ports]
        assert [p.applications for p in full.listed_ports] == [*map(len, counted)]
        assert listed[calm].ports == sum(calm in names for names in counted)
        least = min(
            plan.weights[plan.names.index(calm)] / plan.policy.units
            for p in full.listed_ports
            if calm in (plan := plan_at(state, p.port)).names
        )
        assert listed[calm].least_share == least
        assert listed[calm].completion_s == pytest.approx(100.0 * listed[calm].slowdown)
        assert {p.state for p in full.listed_ports} == {"programmed"}
        for port in full.listed_ports:
            tables = state.target[PortName(port.port.node, port.port.port)]
            assert tuple(port.weights) == tables.weights
            assert tuple(port.queue_of) == tables.queue_of[: state.settings.all_levels]

    serve(body)


def test_more_problems_than_are_shown_are_counted(serve: Serve) -> None:
    async def body(service: Service) -> None:
        id_ = await service.start("calm", 1)
        for number in range(2, 25):
            ends = {"source": "h0", "destination": "nowhere"}
            await service.ask("Connect", pb.ConnectRequest(key=key(number), id=id_, **ends))
        problems = (await service.ask("Status", pb.StatusRequest())).problems
        assert (len(problems), problems[-1]) == (21, "and 4 more")

    serve(body)


def test_a_port_and_an_application_are_explained_as_messages(serve: Serve) -> None:
    async def body(service: Service) -> None:
        calm = await service.start("calm", 1)
        await service.start("keen", 2)
        port = pb.PortId(node="h0", port=1)
        reply = await service.ask("Explain", pb.ExplainRequest(port=port))
        (account,) = reply.ports
        plan = plan_at(service.state, port)
        assert account.port == port
        assert (account.units, account.step, account.gap) == (255, plan.step, plan.gap)
        assert [a.id for a in account.applications] == [*plan.names]
        assert [a.units for a in account.applications] == [*plan.weights]
        assert sum(queue.weight for queue in account.queues) == 255
        assert {queue.what for queue in account.queues} >= {"managed", "waiting"}
        assert reply.text.startswith("h0 port 1: 2 applications, 255 units")
        named = await service.ask("Explain", pb.ExplainRequest(id=calm))
        assert {(a.port.node, a.port.port) for a in named.ports} == set(service.state.target)
        assert all([a.id for a in p.applications] == [calm] for p in named.ports)
        code, _ = await service.refuse("Explain", pb.ExplainRequest(id="middling"))
        assert code == "NOT_FOUND"
        code, _ = await service.refuse(
            "Explain", pb.ExplainRequest(port=pb.PortId(node="x", port=1))
        )
        assert code == "NOT_FOUND"

    serve(body)


def propose(*names: str) -> pb.Proposal:
    proposal = pb.Proposal()
    for name in names:
        pair = pb.Pair(source="h0", destination="h2")
        proposal.register.add(application=name, connections=[pair])
    return proposal


def test_shares_below_the_least_one_profiled_give_lower_bounds(serve: Serve) -> None:
    async def body(service: Service) -> None:
        crowd = propose(*["keen"] * 150)  # their floors are 0.05
        plan = await service.ask("Plan", pb.PlanRequest(proposal=crowd))
        assert {change.at_least_after for change in plan.applications} == {True}
        assert {change.at_least_before for change in plan.applications} == {False}
        assert (plan.at_least_before, plan.at_least_after) == (False, True)
        await service.ask("Apply", pb.ApplyRequest(key=key(9), proposal=crowd))
        status = await service.ask("Status", pb.StatusRequest(applications=True))
        assert {application.at_least for application in status.listed_applications} == {True}

    serve(body)


def test_a_plan_says_what_apply_then_does(serve: Serve) -> None:
    async def body(service: Service) -> None:
        calm = await service.start("calm", 1)
        before = service.state
        plan = await service.ask("Plan", pb.PlanRequest(proposal=propose("keen")))
        assert service.state is before
        changes = {change.id: change for change in plan.applications}
        assert list(changes) == [calm, "keen#2"]
        assert changes[calm].share_before > changes[calm].share_after > 0
        assert changes[calm].application == "calm"
        for when in ("before", "after"):
            share = getattr(changes[calm], f"share_{when}")
            slowdown = getattr(changes[calm], f"slowdown_{when}")
            assert slowdown == pytest.approx(1 + 0.1 * (1 / share - 1))
            seconds = getattr(changes[calm], f"completion_{when}_s")
            assert seconds == pytest.approx(100 * slowdown)
        assert changes["keen#2"].slowdown_after > 1
        assert not changes["keen#2"].HasField("slowdown_before")
        assert not changes["keen#2"].HasField("completion_after_s")  # its profile has no time
        assert not changes["keen#2"].HasField("share_before")
        assert not changes[calm].HasField("simulated_after_bps")
        assert plan.slowdown_before < plan.slowdown_after
        applied = await service.ask("Apply", pb.ApplyRequest(key=key(9), proposal=propose("keen")))
        assert [*applied.ids] == ["keen#2"]
        assert (applied.revision, applied.ports) == (service.state.revision, len(plan.ports))
        assert {problem.problem for problem in applied.problems} == {"not yet programmed"}
        for change in plan.ports:
            name = PortName(change.port.node, change.port.port)
            assert tuple(change.weights_before) == before.target[name].weights
            assert tuple(change.weights_after) == service.state.target[name].weights
        code, _ = await service.refuse("Plan", pb.PlanRequest(proposal=propose("nobody")))
        assert code == "NOT_FOUND"

    serve(body)


def test_a_change_waits_until_its_ports_are_programmed(serve: Serve) -> None:
    async def ask(service: Service, name: str, request: Any) -> Any:
        task = asyncio.create_task(service.ask(name, request))
        while not task.done():
            service.rig.settle()
            await asyncio.sleep(0.001)
        return task.result()

    async def body(service: Service) -> None:
        first = await ask(
            service, "Apply", pb.ApplyRequest(key=key(1), proposal=propose("calm"), wait_s=WAIT_S)
        )
        assert (first.revision, [*first.problems]) == (1, [])
        held = dict(service.rig.switches.held)
        await ask(
            service, "Apply", pb.ApplyRequest(key=key(2), proposal=propose("keen"), wait_s=WAIT_S)
        )
        assert service.rig.switches.held != held
        back = await ask(
            service, "Rollback", pb.RollbackRequest(key=key(3), revision=1, wait_s=WAIT_S)
        )
        assert (back.revision, back.ports, [*back.problems]) == (3, first.ports, [])
        assert service.rig.switches.held == held
        status = await service.ask("Status", pb.StatusRequest())
        assert status.held == 1

    serve(body)


def test_a_change_does_not_wait_beyond_the_deadline_of_its_reply(serve: Serve) -> None:
    async def body(service: Service) -> None:
        request = pb.ApplyRequest(key=key(1), proposal=propose("calm"), wait_s=3600.0)
        reply = await service.ask("Apply", request, until_s=0.0)
        assert len(reply.problems) == reply.ports > 0

    serve(body)


def test_one_simulation_runs_at_a_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(service: Service) -> None:
        calm = await service.start("calm", 1)
        began, goes_on = asyncio.Event(), asyncio.Event()

        async def simulate(*trials: Any) -> list[dict[str, float]]:
            assert [len(trial.flows) for trial in trials] == [1, 2]
            began.set()
            await goes_on.wait()
            return [{calm: 4e9}, {calm: 1e9, "keen#2": 3e9}]

        monkeypatch.setattr(calls_module, "simulate_trials", simulate)
        request = pb.PlanRequest(proposal=propose("keen"), simulate=True)
        task = asyncio.create_task(service.ask("Plan", request))
        await began.wait()
        code, message = await service.refuse("Plan", request)
        assert (code, message) == (
            "RESOURCE_EXHAUSTED",
            "a simulation is already running; retry later",
        )
        goes_on.set()
        changes = {change.id: change for change in (await task).applications}
        assert changes[calm].simulated_before_bps == 4e9
        assert changes["keen#2"].simulated_after_bps == 3e9
        assert not changes["keen#2"].HasField("simulated_before_bps")
        await service.ask("Plan", request)

    serve(body)


# ---- JSON over a Unix socket ------------------------------------------------------------------


async def exchange(path: Path, *frames: bytes) -> list[dict[str, Any]]:
    reader, writer = await asyncio.open_unix_connection(path)
    replies = []
    try:
        for frame in frames:
            writer.write(struct.pack(">I", len(frame)) + frame)
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            replies.append(json.loads(await reader.readexactly(length)))
    finally:
        writer.close()
    return replies


def test_calls_as_json_are_answered_in_order(serve: Serve, tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        path = tmp_path / "folder" / "control.sock"
        server = LocalServer(service.calls, service.limits, service.rates, no_tunnel)
        listener = await local_socket.start(server, Socket(path=path, mode=0o640))
        assert path.stat().st_mode & 0o777 == 0o640
        key_ = {"client": "c", "sequence": 1}
        register = {"call": "Register", "key": key_, "application": "calm", "ttl_s": 5}
        replies = await exchange(
            path,
            json.dumps(register).encode(),
            b"[1]",
            b"{",
            json.dumps({"call": "Renew", "id": "calm#7"}).encode(),
            json.dumps({"call": "Status", "applications": True}).encode(),
        )
        assert replies[0] == {"ok": True, "id": "calm#1", "level": 1, "ttl_s": 5.0}
        assert [reply["ok"] for reply in replies] == [True, False, False, False, True]
        assert replies[1]["error"].startswith("frame: names no call; call one of Register, ")
        assert replies[2]["error"].startswith("frame: is not JSON")
        assert replies[3]["code"] == "FAILED_PRECONDITION"
        assert [a["id"] for a in replies[4]["listed_applications"]] == ["calm#1"]
        with pytest.raises(InputError, match="another process listens on it"):
            await local_socket.start(server, Socket(path=path))
        listener.close()
        again = await local_socket.start(server, Socket(path=path))
        assert path.stat().st_mode & 0o777 == 0o666
        again.close()

    serve(body)


def test_a_frame_that_is_too_long_ends_its_connection(serve: Serve, tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        path = tmp_path / "control.sock"
        server = LocalServer(service.calls, service.limits, service.rates, no_tunnel)
        listener = await local_socket.start(server, Socket(path=path))
        at_limit = b'{"call": "Renew", "id": "a#1"'.ljust(FRAME_BYTES - 1) + b"}"
        (reply,) = await exchange(path, at_limit)
        assert reply["code"] == "FAILED_PRECONDITION"
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(struct.pack(">I", FRAME_BYTES + 1))
        text = await reader.read()
        assert json.loads(text[4:]) == {
            "ok": False,
            "code": "INVALID_ARGUMENT",
            "error": f"frame: {FRAME_BYTES + 1} bytes; send at most {FRAME_BYTES}",
        }
        writer.close()
        listener.close()

    serve(body)


def test_idle_connections_make_room_for_new_ones(serve: Serve, tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        path = tmp_path / "control.sock"
        server = LocalServer(
            service.calls, service.limits, service.rates, no_tunnel, most_connections=3
        )
        listener = await local_socket.start(server, Socket(path=path))
        opened = [await asyncio.open_unix_connection(path) for _ in range(3)]
        renewal = json.dumps({"call": "Renew", "id": "a#1"}).encode()
        (first_reader, first), *others = opened
        first.write(struct.pack(">I", len(renewal)) + renewal)
        assert await first_reader.readexactly(4)  # it has sent a request: the others idle longer
        for _ in range(8):  # as many as would lock others out
            (reply,) = await exchange(path, renewal)
            assert reply["code"] == "FAILED_PRECONDITION"
        assert not first_reader.at_eof()
        assert await others[0][0].read() == b""
        for _, writer in opened:
            writer.close()
        listener.close()
        await server.close()

    serve(body)


def test_connections_that_wait_for_a_refusal_lock_nobody_out(serve: Serve, tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        path = tmp_path / "control.sock"
        rates = RateLimits(Limits(rate_per_s=1.0, burst=8.0), time.monotonic)
        server = LocalServer(service.calls, service.limits, rates, no_tunnel, most_connections=3)
        listener = await local_socket.start(server, Socket(path=path))
        renewal = json.dumps({"call": "Renew", "id": "a#1"}).encode()
        opened = [await asyncio.open_unix_connection(path) for _ in range(3)]
        for _, writer in opened:
            writer.write(4 * (struct.pack(">I", len(renewal)) + renewal))
        await asyncio.sleep(0.1)
        (reply,) = await exchange(path, renewal)
        assert "slow down" in reply["error"], "it was heard, and not told that all are busy"
        for _, writer in opened:
            writer.close()
        listener.close()
        await server.close()

    serve(body)


def test_a_server_that_closes_ends_idle_connections_without_a_traceback(
    serve: Serve, tmp_path: Path
) -> None:
    problems: list[dict[str, Any]] = []

    async def body(service: Service) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, problem: problems.append(problem))
        path = tmp_path / "control.sock"
        server = LocalServer(service.calls, service.limits, service.rates, no_tunnel)
        listener = await local_socket.start(server, Socket(path=path))
        reader, writer = await asyncio.open_unix_connection(path)
        await exchange(path, b"[1]")  # by then the server has the first connection
        listener.close()
        await server.close()
        assert await reader.read() == b""
        writer.close()

    serve(body)
    assert problems == []


def test_a_socket_needs_a_free_path_and_an_existing_group(serve: Serve, tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        server = LocalServer(service.calls, service.limits, service.rates, no_tunnel)
        path = tmp_path / "file"
        path.write_text("mine")
        with pytest.raises(InputError, match="file: is not a socket; name another"):
            await local_socket.start(server, Socket(path=path))
        assert path.read_text() == "mine"
        with pytest.raises(InputError, match="socket_group no-such-group: is no group here"):
            await local_socket.start(
                server, Socket(path=tmp_path / "control.sock", group="no-such-group")
            )

    serve(body)


# ---- gRPC -------------------------------------------------------------------------------------


def listen_on(port: int) -> grpc_server.Listen:
    return grpc_server.Listen(host="127.0.0.1", port=port)


async def no_tunnel(*_: object) -> None:
    raise AssertionError("a JSON client begins as gRPC does")


@contextmanager
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_calls_over_grpc_are_answered_or_refused_with_a_mark(serve: Serve) -> None:
    async def body(service: Service) -> None:
        grpc = grpc_server.GrpcServer(service.calls, service.limits, service.rates)
        server, port = await grpc_server.start(grpc, listen_on(0), service.limits)
        controller = Controller(address=f"127.0.0.1:{port}")

        async def ask(name: str, request: Any) -> Any:
            return await asyncio.to_thread(call, controller, name, request, WAIT_S)

        try:
            reply = await ask("Register", pb.RegisterRequest(key=key(1), application="calm"))
            assert reply.id == "calm#1"
            assert (await ask("Status", pb.StatusRequest())).applications == 1
            unknown = pb.RegisterRequest(key=key(2), application="stranger")
            where = f"controller 127.0.0.1:{port}"
            with pytest.raises(InputError, match=f"^{where}: application stranger: has no model"):
                await ask("Register", unknown)
        finally:
            await server.stop(None)
        with pytest.raises(InputError, match=f"{where}: does not answer; start one with"):
            await ask("Status", pb.StatusRequest())

    serve(body)


def test_grpc_over_the_unix_socket_is_known_by_its_user(serve: Serve, tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        grpc = grpc_server.GrpcServer(service.calls, service.limits, service.rates)
        server, _ = await grpc_server.start(grpc, grpc_server.Listen(), service.limits)
        sockets = LocalServer(service.calls, service.limits, service.rates, grpc.tunnel)
        listener = await local_socket.start(sockets, Socket(path=tmp_path / "control.sock"))

        async def ask(name: str, request: Any, path: str = "") -> Any:
            controller = Controller(address=f"unix:{path or tmp_path / 'control.sock'}")
            return await asyncio.to_thread(call, controller, name, request, WAIT_S)

        try:
            register = pb.RegisterRequest(key=key(1), application="calm")
            assert (await ask("Register", register)).id == "calm#1"
            owner = service.state.applications["calm#1"].owner
            assert owner == find_user_identity(os.geteuid()).name
            renewal = json.dumps({"call": "Renew", "id": "calm#1"}).encode()
            (reply,) = await exchange(tmp_path / "control.sock", renewal)  # the same user, as JSON
            assert reply["ok"]
            # Past the tunnel nobody knows who calls.
            with pytest.raises(InputError, match="Status: an unknown caller is not a reader"):
                await ask("Status", pb.StatusRequest(), grpc.inner)
        finally:
            listener.close()
            await sockets.close()
            await server.stop(None)
            grpc.close()

    serve(body)


def test_a_port_in_use_is_named_with_the_reason(serve: Serve) -> None:
    async def body(service: Service) -> None:
        grpc = grpc_server.GrpcServer(service.calls, service.limits, service.rates)
        with busy_port() as port:
            problem = f"listen 127.0.0.1:{port}: Address already in use; end who listens there"
            with pytest.raises(InputError, match=problem):
                await grpc_server.start(grpc, listen_on(port), service.limits)

    serve(body)
