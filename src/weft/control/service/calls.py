"""The controller's calls, whichever way they come: a request in, a reply out or `Refused`.

What changes something goes through the engine, few events of one caller at a time; what only asks
is computed beside it, from the state as it is. Entry points: `Calls.answer`, `Calls.acks`.
Units: seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import grpc

from weft.control.operators.proposal import evaluate_proposal
from weft.control.operators.simulated_run import Rates, build_run
from weft.control.runtime.engine import Engine, RollbackTo
from weft.control.runtime.reconcile import Reconciler
from weft.control.service import read_requests as read
from weft.control.service import weft_pb2 as pb
from weft.control.service.bridge import Bridge
from weft.control.service.limits import AT_ONCE, Caller, RateLimits
from weft.control.service.messages import (
    Situation,
    explain_application,
    explain_port,
    plan_reply,
    port_problems,
    status_reply,
)
from weft.control.service.methods import extra_cost
from weft.control.service.questions import Questions
from weft.control.service.refused import Refused, invalid, refusing
from weft.control.state.events import (
    Answer,
    Applied,
    Connected,
    Event,
    Refusal,
    Registered,
    Renewed,
)
from weft.switches import PortName

_POLL_S, _LONGEST_POLL_S = 0.002, 0.1
_FEW_PORTS = 64
_TO_ANSWER_S = 1.0  # before the deadline: what was carried out is told


@dataclass(frozen=True, slots=True)
class Asked:
    """By whom, and until when the answer is waited for."""

    caller: Caller
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
    ) -> None:
        self._engine, self._reconciler, self._bridge = engine, reconciler, bridge
        self._rates, self._problems = rates, problems
        self._began_s = time.monotonic()
        self.questions = Questions()
        self._calls: dict[str, Callable[[Asked, Any], Awaitable[Any]]] = {
            "Register": self._register,
            "Deregister": self._deregister,
            "Connect": self._connect,
            "Disconnect": self._disconnect,
            "Renew": self._renew,
            "Status": self._status,
            "Explain": self._explain,
            "Plan": self._plan,
            "Apply": self._apply,
            "Rollback": self._rollback,
        }

    async def answer(self, asked: Asked, name: str, request: Any) -> Any:
        """The reply to one request, which has paid for a call."""
        extra = extra_cost(name, request)
        if extra:
            await self._rates.admit(asked.caller, extra)
        return await self._calls[name](asked, request)

    def close(self) -> None:
        self.questions.close()

    # ---- Clients ------------------------------------------------------------------------------

    async def _one(self, asked: Asked, event: Event | RollbackTo) -> Answer:
        async with asked.caller.events.places():
            (answer,) = await self._bridge.ask([event])
        return refusing(answer)

    async def _register(self, asked: Asked, request: pb.RegisterRequest) -> pb.RegisterReply:
        usual = self._engine.state.settings.usual_ttl_s
        answer = await self._one(asked, read.register(request, usual, self._engine.now_s))
        assert isinstance(answer, Registered)
        return pb.RegisterReply(id=answer.id, level=answer.level, ttl_s=answer.ttl_s)

    async def _deregister(self, asked: Asked, request: pb.DeregisterRequest) -> pb.DeregisterReply:
        await self._one(asked, read.deregister(request))
        return pb.DeregisterReply()

    async def _connect(self, asked: Asked, request: pb.ConnectRequest) -> pb.ConnectReply:
        answer = await self._one(asked, read.connect(request, self._engine.now_s))
        assert isinstance(answer, Connected)
        return pb.ConnectReply(connection=answer.connection)

    async def _disconnect(self, asked: Asked, request: pb.DisconnectRequest) -> pb.DisconnectReply:
        await self._one(asked, read.disconnect(request))
        return pb.DisconnectReply()

    async def _renew(self, asked: Asked, request: pb.RenewRequest) -> pb.RenewReply:
        answer = await self._one(asked, read.renew(request, self._engine.now_s))
        assert isinstance(answer, Renewed)
        return pb.RenewReply(ttl_s=answer.ttl_s)

    async def acks(self, caller: Caller, batch: pb.EventBatch) -> pb.AckBatch:
        """One acknowledgement for each event, in order; a part is done before the next is read."""
        read.check_batch(batch)
        acks: list[pb.Ack] = []
        count = len(batch.events)
        size = ceil(count / max(1, ceil(count / AT_ONCE)))
        for first in range(0, count, size or 1):
            part = batch.events[first : first + size]
            await self._rates.pace(caller, len(part))
            acks += await self._part(caller, part)
        return pb.AckBatch(acks=acks)

    async def _part(self, caller: Caller, part: Collection[pb.Event]) -> list[pb.Ack]:
        events = [read.event(message, self._engine.now_s) for message in part]
        good = [event for event in events if not isinstance(event, Refusal)]
        answers: Iterator[Answer] = iter(())
        if good:
            async with caller.events.places(len(good)):
                answers = iter(await self._bridge.ask(good))
        return [_ack(own if isinstance(own, Refusal) else next(answers)) for own in events]

    # ---- Operators ----------------------------------------------------------------------------

    async def _status(self, asked: Asked, request: pb.StatusRequest) -> pb.StatusReply:
        return await self.questions.answer(
            asked.caller, lambda: status_reply(self._situation(request), request)
        )

    def _situation(self, request: pb.StatusRequest) -> Situation:
        # The report first: what it names is in the state by then.
        report = self._reconciler.report(with_ports=request.ports)
        problems = [self._engine.problem, self._reconciler.problem, *self._problems()]
        return Situation(
            state=self._engine.state,
            report=report,
            now_s=self._engine.now_s,
            up_s=time.monotonic() - self._began_s,
            problems=tuple(problem for problem in problems if problem),
            revisions=tuple(self._engine.revisions(request.revisions)),
        )

    async def _explain(self, asked: Asked, request: pb.ExplainRequest) -> pb.ExplainReply:
        state = self._engine.state
        match request.WhichOneof("what"):
            case "port":
                name = read.port(request.port)
                return await self.questions.answer(asked.caller, lambda: explain_port(state, name))
            case "id":
                id_ = read.application_or_id(request.id)
                return await self.questions.answer(
                    asked.caller, lambda: explain_application(state, id_)
                )
            case _:
                raise invalid("explain", "nothing is named", "name a port or an application")

    async def _plan(self, asked: Asked, request: pb.PlanRequest) -> pb.PlanReply:
        state, wanted = self._engine.state, read.proposal(request.proposal)
        planned = await self.questions.answer(
            asked.caller, lambda: evaluate_proposal(state, wanted)
        )
        if isinstance(planned, Refusal):
            raise Refused(planned.code, str(planned))
        after, rates = planned.after, list[Rates]()
        if request.simulate:
            runs = await self.questions.answer(
                asked.caller, lambda: (build_run(state), build_run(after))
            )
            rates = await self.questions.simulate_run(*runs)
        return await self.questions.answer(asked.caller, lambda: plan_reply(planned, *rates))

    async def _apply(self, asked: Asked, request: pb.ApplyRequest) -> pb.ApplyReply:
        wait_s = read.wait_s(request)
        answer = await self._one(asked, read.apply(request, self._engine.now_s))
        assert isinstance(answer, Applied)
        late = await self._late(asked, answer.ports, wait_s)
        return pb.ApplyReply(
            ids=answer.ids,
            revision=answer.revision,
            ports=len(answer.ports),
            problems=port_problems(late),
        )

    async def _rollback(self, asked: Asked, request: pb.RollbackRequest) -> pb.RollbackReply:
        wait_s = read.wait_s(request)
        answer = await self._one(asked, read.rollback(request))
        assert isinstance(answer, Applied)
        late = await self._late(asked, answer.ports, wait_s)
        return pb.RollbackReply(
            revision=answer.revision, ports=len(answer.ports), problems=port_problems(late)
        )

    async def _late(
        self, asked: Asked, ports: Collection[PortName], wait_s: float
    ) -> dict[PortName, str]:
        """What is wrong with ports that are not programmed in that time, or in what is left."""
        began_s = time.monotonic()
        until_s = min(began_s + wait_s, asked.until_s - _TO_ANSWER_S)
        late, took_s = await self._look(ports)
        while late and (now_s := time.monotonic()) < until_s:
            # Many ports take a moment to look at, and nobody notices a tenth more.
            pause_s = max(_POLL_S, 0.1 * (now_s - began_s), 4 * took_s)
            await asyncio.sleep(min(pause_s, _LONGEST_POLL_S))
            late, took_s = await self._look(late)
        return late

    async def _look(self, ports: Collection[PortName]) -> tuple[dict[PortName, str], float]:
        """Those that are not programmed, and how long it took to see."""
        began_s = time.monotonic()
        if len(ports) <= _FEW_PORTS:  # sooner looked at than another thread has begun
            late = self._reconciler.unprogrammed(ports)
        else:
            late = await asyncio.to_thread(self._reconciler.unprogrammed, ports)
        return late, time.monotonic() - began_s


def _ack(answer: Answer) -> pb.Ack:
    if not isinstance(answer, Refusal):
        return pb.Ack()
    return pb.Ack(code=grpc.StatusCode[answer.code].value[0], message=str(answer))
