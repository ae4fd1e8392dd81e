"""The controller's calls, over gRPC or JSON alike: a request in, a reply out or `Refused`.

Changes go through the engine's thread (`Bridge`), a few events of one caller at a time. Queries are
computed beside it from a snapshot, in one thread (`Queries`): one of each caller at a time, so that
all queries together take only part of Python's time. Simulations run as processes, one at a time,
and end with their call. Calls that concern all groups go through `FabricCalls`.
Entry points: `Calls.answer`, `Calls.answer_group`, `Calls.acks`, `Calls.backup`. Units: seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, TypeVar

import grpc
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from weft.control.cluster.group_link import Question
from weft.control.operators.forecast import ProposalEffects, evaluate_proposal
from weft.control.operators.trial import Rates, TrialInput, build_trial_input, simulate_trials
from weft.control.runtime.engine import Busy, Engine, Request, Ticket
from weft.control.runtime.reconcile import Reconciler
from weft.control.service import read_requests
from weft.control.service import weft_pb2 as pb
from weft.control.service.access import Access, Identity
from weft.control.service.fabric_calls import CARRIED, EXPLAIN, PLAN, STATUS, FabricCalls, Vote
from weft.control.service.group_replies import format_connection
from weft.control.service.limits import EVENT_QUOTA, Caller, RateLimits
from weft.control.service.methods import extra_cost, reply_class
from weft.control.service.refusals import Refused, invalid, raise_refusal
from weft.control.service.replies import (
    Snapshot,
    build_group_plan,
    build_plan_reply,
    build_status,
    explain_application,
    explain_connection,
    explain_port,
    port_problems,
)
from weft.control.state.events import HELD, Answer, Applied, Asker, Proposal, Refusal
from weft.control.state.request_key import Key
from weft.control.state.state import State
from weft.errors import InputError
from weft.switches import PortName

_Answers = Sequence[Answer]


class Bridge:
    """Used from one event loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._loop = engine, loop
        self._answers: deque[tuple[asyncio.Future[_Answers], _Answers]] = deque()
        self._is_scheduled = False

    async def ask(self, events: Sequence[Request]) -> _Answers:
        """Answers to these events, once they are on disk."""
        future: asyncio.Future[_Answers] = self._loop.create_future()
        ticket = Ticket(events, partial(self._receive, future))
        try:
            self._engine.submit(ticket)
        except Busy as error:
            raise Refused("UNAVAILABLE", str(error)) from error
        try:
            return await future
        except asyncio.CancelledError:
            ticket.abandoned = True
            raise

    def _receive(self, future: asyncio.Future[_Answers], answers: _Answers) -> None:
        """In the engine's thread: wakes the loop once for all answers until it delivers them."""
        self._answers.append((future, answers))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        while self._answers:
            future, answers = self._answers.popleft()
            if not future.done():
                future.set_result(answers)


T = TypeVar("T")

MAX_WAITING = 64


class Queries:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weft-read")
        self._waiting = 0
        self._simulating = False

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, caller: Caller, compute: Callable[[], T]) -> T:
        """Computes a reply in the thread of queries; each caller has one query at a time."""
        async with caller.queries.slots():
            if self._waiting >= MAX_WAITING:
                problem = f"{MAX_WAITING} queries are waiting; retry later"
                raise Refused("RESOURCE_EXHAUSTED", problem)
            self._waiting += 1
            try:
                return await asyncio.get_running_loop().run_in_executor(self._thread, compute)
            except InputError as error:
                raise Refused("FAILED_PRECONDITION", str(error)) from error
            finally:
                self._waiting -= 1

    async def simulate(self, *trials: TrialInput | None) -> list[Rates]:
        """The rate of each registration in each trial; one simulation at a time."""
        if self._simulating:
            raise Refused("RESOURCE_EXHAUSTED", "a simulation is already running; retry later")
        self._simulating = True
        try:
            return await simulate_trials(*trials)
        except InputError as error:
            raise Refused("FAILED_PRECONDITION", str(error)) from error
        finally:
            self._simulating = False


_POLL_S, _LONGEST_POLL_S = 0.002, 0.1
_FEW_PORTS = 64
_PART_BYTES = 256 * 1024  # of a backup
_REPLY_S = 1.0  # before the deadline: time to send the reply


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls, for the limits and for access, and the deadline of the reply."""

    caller: Caller
    identity: Identity
    until_s: float


class Calls:
    """The calls by their names. `problems` has what else an operator should know."""

    def __init__(
        self,
        engine: Engine,
        reconciler: Reconciler,
        bridge: Bridge,
        rates: RateLimits,
        problems: Callable[[], Collection[str]],
        access: Access,
        fabric: FabricCalls | None = None,
        epoch: int = 0,
    ) -> None:
        self._fabric, self._epoch = fabric, epoch  # None: there are no groups
        self._engine, self._reconciler, self._bridge = engine, reconciler, bridge
        self._rates, self._problems, self._access = rates, problems, access
        self._began_s = time.monotonic()
        self._is_copying = False
        self.queries = Queries()

    async def answer(self, call: Call, name: str, request: Any) -> Any:
        """The reply to one request, which has paid for a call."""
        self._access.check(call.identity, name)
        extra = extra_cost(name, request)
        if extra:
            await self._rates.admit(call.caller, extra)
        match name:
            case "Status":
                return await self._status(call, request)
            case "Explain":
                return await self._explain(call, request)
            case "Plan":
                return await self._plan(call, request)
            case "Rollback" if self._fabric is not None:
                return await self._rollback_groups(call, request, self._fabric)
            case "Apply" | "Rollback":
                return await self._change_ports(call, name, request)
            case _:
                return await self._change(call, name, request)

    def close(self) -> None:
        self.queries.close()

    # ---- Clients ------------------------------------------------------------------------------

    async def _change(self, call: Call, name: str, request: Any) -> Any:
        """The reply has the fields of the engine's answer."""
        return reply_class(name)(**asdict(await self._submit(call, name, request)))

    async def _submit(self, call: Call, name: str, request: Any) -> Struct:
        usual_s = self._engine.state.settings.usual_ttl_s
        by = self._describe_asker(call.identity)
        event = read_requests.read_change(request, self._engine.now_s, by, usual_s)
        async with call.caller.events.slots():
            (answer,) = await self._bridge.ask([event])
        self._report_denials(call.identity, name, [answer])
        return raise_refusal(answer)

    def _describe_asker(self, identity: Identity) -> Asker:
        return Asker(name=identity.name, is_operator=self._access.is_operator(identity))

    def _report_denials(self, identity: Identity, name: str, answers: Iterable[Answer]) -> None:
        """Logs attempts on what is another's, or beyond a quota."""
        # A store that cannot be written refuses with the same code, and is logged once.
        codes = {"PERMISSION_DENIED"} | (set() if self._engine.problem else {"RESOURCE_EXHAUSTED"})
        for answer in answers:
            if isinstance(answer, Refusal) and answer.code in codes:
                self._access.report(identity, f"{name}: {answer.where}: {answer.problem}")

    async def acks(self, caller: Caller, identity: Identity, batch: pb.EventBatch) -> pb.AckBatch:
        """One acknowledgement for each event, in order; a chunk is done before the next is read."""
        self._access.check(identity, "Events")
        read_requests.check_batch(batch)
        acks: list[pb.Ack] = []
        count = len(batch.events)
        size = ceil(count / max(1, ceil(count / EVENT_QUOTA)))
        for first in range(0, count, size or 1):
            chunk = batch.events[first : first + size]
            await self._rates.pace(caller, len(chunk))
            acks += await self._submit_chunk(caller, identity, chunk)
        return pb.AckBatch(acks=acks)

    async def _submit_chunk(
        self, caller: Caller, identity: Identity, chunk: Collection[pb.Event]
    ) -> list[pb.Ack]:
        by, now_s = self._describe_asker(identity), self._engine.now_s
        events = [read_requests.read_event(message, now_s, by) for message in chunk]
        valid = [event for event in events if not isinstance(event, Refusal)]
        answered: _Answers = ()
        if valid:
            async with caller.events.slots(len(valid)):
                answered = await self._bridge.ask(valid)
        self._report_denials(identity, "Events", answered)
        answers = iter(answered)
        return [_ack(item if isinstance(item, Refusal) else next(answers)) for item in events]

    # ---- Operators ----------------------------------------------------------------------------

    async def _status(self, call: Call, request: pb.StatusRequest) -> pb.StatusReply:
        local = await self._read_status(call.caller, request)
        if not request.groups or self._fabric is None:
            return local
        return await self._fabric.status(local, request)

    async def _read_status(self, caller: Caller, request: pb.StatusRequest) -> pb.StatusReply:
        return await self.queries.answer(
            caller, lambda: build_status(self._take_snapshot(request), request)
        )

    def _take_snapshot(self, request: pb.StatusRequest) -> Snapshot:
        # The report first: what it names is in the state by then.
        report = self._reconciler.report(with_ports=request.ports)
        problems = [self._engine.problem, self._reconciler.problem, *self._problems()]
        return Snapshot(
            state=self._engine.state,
            report=report,
            now_s=self._engine.now_s,
            up_s=time.monotonic() - self._began_s,
            problems=tuple(problem for problem in problems if problem),
            revisions=tuple(self._engine.revisions(request.revisions)),
        )

    async def backup(self, caller: Caller, identity: Identity) -> AsyncGenerator[bytes, None]:
        """The store as it is now, in parts; one caller at a time."""
        self._access.check(identity, "Backup")
        await self._rates.admit(caller, extra_cost("Backup", None))
        if self._is_copying:
            raise Refused("RESOURCE_EXHAUSTED", "a backup is already running; retry later")
        self._is_copying = True
        self._access.note(identity, "takes a backup of the store")
        try:
            with ExitStack() as stack:
                path = await asyncio.to_thread(stack.enter_context, self._engine.copy_store())
                file = stack.enter_context(path.open("rb"))
                while part := await asyncio.to_thread(file.read, _PART_BYTES):
                    yield part
        except InputError as error:
            raise Refused("FAILED_PRECONDITION", str(error)) from error
        finally:
            self._is_copying = False

    async def _explain(self, call: Call, request: pb.ExplainRequest) -> pb.ExplainReply:
        explain_here = partial(self._explain_here, call.caller, request)
        if not request.groups or self._fabric is None:
            return await explain_here()
        match request.WhichOneof("what"):
            case "connection":
                state, id_ = self._engine.state, read_requests.read_connection(request.connection)
                account, reply = await self.queries.answer(
                    call.caller, lambda: explain_connection(state, id_)
                )
                return await self._fabric.explain_connection(request, account, reply)
            case "port":
                return await self._fabric.explain_port(request, explain_here)
            case _:
                return await self._fabric.explain_application(request, explain_here)

    async def _explain_here(self, caller: Caller, request: pb.ExplainRequest) -> pb.ExplainReply:
        """From this controller's ports alone."""
        state = self._engine.state
        match request.WhichOneof("what"):
            case "port":
                reply = partial(explain_port, state, read_requests.read_port(request.port))
            case "id":
                reply = partial(explain_application, state, read_requests.read_subject(request.id))
            case "connection":
                id_ = read_requests.read_connection(request.connection)
                reply = partial(_explain_path, state, id_)
            case _:
                remedy = "name a port, an application or a connection"
                raise invalid("explain", "nothing is named", remedy)
        return await self.queries.answer(caller, reply)

    async def _plan(self, call: Call, request: pb.PlanRequest) -> pb.PlanReply:
        state, proposal = self._engine.state, read_requests.read_proposal(request.proposal)
        effects = await self._evaluate(call.caller, state, proposal)
        if request.groups and self._fabric is not None:
            return await self._plan_groups(call, request, state, effects, self._fabric)
        after, rates = effects.after, list[Rates]()
        if request.simulate:
            trials = await self.queries.answer(
                call.caller, lambda: (build_trial_input(state), build_trial_input(after))
            )
            rates = await self.queries.simulate(*trials)
        return await self.queries.answer(call.caller, lambda: build_plan_reply(effects, *rates))

    async def _evaluate(self, caller: Caller, state: State, proposal: Proposal) -> ProposalEffects:
        return raise_refusal(
            await self.queries.answer(caller, lambda: evaluate_proposal(state, proposal))
        )

    async def _plan_groups(
        self,
        call: Call,
        request: pb.PlanRequest,
        state: State,
        effects: ProposalEffects,
        fabric: FabricCalls,
    ) -> pb.PlanReply:
        """Other groups evaluate the proposal as if it were applied here."""
        if request.simulate:
            problem = "the ports of other groups cannot be simulated here"
            raise invalid("simulate", problem, "leave it out")
        local = await self.queries.answer(call.caller, lambda: build_group_plan(state, effects))
        changed = set(state.applications) ^ set(effects.after.applications)
        return await fabric.plan(local, request, state.last_registration, changed)

    # ---- Other groups -------------------------------------------------------------------------

    async def answer_group(self, question: Question) -> bytes:
        """Another group asks; it has checked its caller's role."""
        reply = await self._answer_question(question)
        if isinstance(reply, Vote):
            return msgspec.json.encode(reply)
        return bytes(reply.SerializeToString())

    async def _answer_question(self, question: Question) -> Any:
        caller = self._rates.caller(f"group {question.home}")
        match question.method:
            case method if method == STATUS:
                status = pb.StatusRequest.FromString(question.request)
                return await self._read_status(caller, status)
            case method if method == EXPLAIN:
                explain = pb.ExplainRequest.FromString(question.request)
                return await self._explain_here(caller, explain)
            case method if method == PLAN:
                return await self._plan_as(caller, question)
            case method if method == CARRIED:
                carried = self._report_carried(question.number)
                if carried is None:
                    raise Refused("UNAVAILABLE", "has not carried it out yet")
                return carried
            case _:
                rollback = pb.RollbackRequest.FromString(question.request)
                return self._vote(rollback)

    async def _plan_as(self, caller: Caller, question: Question) -> pb.PlanReply:
        """Ids are those that the home would give."""
        state = self._engine.state
        as_home = replace(
            state,
            settings=replace(state.settings, group=question.home),
            last_registration=question.number,
        )
        request = pb.PlanRequest.FromString(question.request)
        effects = await self._evaluate(
            caller, as_home, read_requests.read_proposal(request.proposal)
        )
        return await self.queries.answer(caller, lambda: build_group_plan(as_home, effects))

    def _vote(self, request: pb.RollbackRequest) -> Vote:
        assert self._fabric is not None, "groups ask groups"
        revision = None if request.HasField("at_s") else request.groups[self._fabric.group]
        at_s = request.at_s if request.HasField("at_s") else None
        vote = raise_refusal(self._engine.find_revision(revision, at_s))
        return Vote(revision=vote, epoch=self._epoch)

    def _report_carried(self, number: int) -> pb.RollbackReply | None:
        """What a decision of all groups has changed here, and which ports lack their tables."""
        row = self._engine.state.answers.get(Key(HELD, number))
        if row is None or not isinstance(row.answer, Applied):
            return None
        ports = row.answer.ports
        problems = port_problems(self._reconciler.find_unprogrammed(ports))
        return pb.RollbackReply(revision=row.answer.revision, ports=len(ports), problems=problems)

    async def _rollback_groups(
        self, call: Call, request: pb.RollbackRequest, fabric: FabricCalls
    ) -> pb.RollbackReply:
        """All groups, or none."""
        wait_s, key = read_requests.read_wait_s(request), read_requests.read_key(request.key)
        fabric.check_rollback(request)
        by = self._describe_asker(call.identity).name
        held = await fabric.decide_rollback(request, key, by, partial(self._vote, request))
        until_s = min(time.monotonic() + wait_s, call.until_s - _REPLY_S)
        return await fabric.wait_carried(held, partial(self._report_carried, held.number), until_s)

    # ---- Changes of ports ---------------------------------------------------------------------

    async def _change_ports(self, call: Call, name: str, request: Any) -> Any:
        """A proposal or a rollback, and which of its ports are not programmed in time."""
        wait_s = read_requests.read_wait_s(request)
        request = self._choose_revision(request) if name == "Rollback" else request
        answer = await self._submit(call, name, request)
        assert isinstance(answer, Applied)
        more: dict[str, Any] = {"ids": answer.ids} if name == "Apply" else {}
        if name == "Apply" and self._fabric is not None:
            by = self._describe_asker(call.identity).name
            key = read_requests.read_key(request.key)
            more["resumed"] = await self._fabric.resume_others(key, by)
        unprogrammed = await self._wait_programmed(call, answer.ports, wait_s)
        return reply_class(name)(
            revision=answer.revision,
            ports=len(answer.ports),
            problems=port_problems(unprogrammed),
            **more,
        )

    def _choose_revision(self, request: pb.RollbackRequest) -> pb.RollbackRequest:
        """The revision of a time, where one is given."""
        if request.groups:
            raise invalid("groups", "this controller has no groups", "give a revision")
        if not request.HasField("at_s"):
            return request
        revision = raise_refusal(self._engine.find_revision(None, request.at_s))
        return pb.RollbackRequest(key=request.key, revision=revision, wait_s=request.wait_s)

    async def _wait_programmed(
        self, call: Call, ports: Collection[PortName], wait_s: float
    ) -> dict[PortName, str]:
        """Waits up to `wait_s`, within the deadline; returns unprogrammed ports with the reason."""
        began_s = time.monotonic()
        until_s = min(began_s + wait_s, call.until_s - _REPLY_S)
        unprogrammed, took_s = await self._find_unprogrammed(ports)
        while unprogrammed and (now_s := time.monotonic()) < until_s:
            # Many ports take a moment to look at, and nobody notices a tenth more.
            pause_s = max(_POLL_S, 0.1 * (now_s - began_s), 4 * took_s)
            await asyncio.sleep(min(pause_s, _LONGEST_POLL_S))
            unprogrammed, took_s = await self._find_unprogrammed(unprogrammed)
        return unprogrammed

    async def _find_unprogrammed(
        self, ports: Collection[PortName]
    ) -> tuple[dict[PortName, str], float]:
        """The ports that are not programmed, and how long the check took."""
        began_s = time.monotonic()
        if len(ports) <= _FEW_PORTS:  # sooner looked at than another thread has begun
            unprogrammed = self._reconciler.find_unprogrammed(ports)
        else:
            unprogrammed = await asyncio.to_thread(self._reconciler.find_unprogrammed, ports)
        return unprogrammed, time.monotonic() - began_s


def _explain_path(state: State, id_: str) -> pb.ExplainReply:
    account, reply = explain_connection(state, id_)
    reply.text = format_connection(account, reply.ports, {})
    return reply


def _ack(answer: Answer) -> pb.Ack:
    if not isinstance(answer, Refusal):
        return pb.Ack()
    return pb.Ack(code=grpc.StatusCode[answer.code].value[0], message=str(answer))
