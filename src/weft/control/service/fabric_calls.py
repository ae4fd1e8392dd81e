"""Calls that concern all groups of controllers: the one that is asked asks the others.

A caller's role is checked where it asks. Status, plans and explanations are of all groups; one
that does not answer is named, with the reason. A rollback is of all groups or of none: each owner
says whether its group has the revision, and then one transaction of etcd decides for all, while all
groups have the same owners. Each carries the decision out once; a group whose controllers are down
does so when one is back. Entry points: `FabricCalls`, `Vote`. Units: seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import msgspec

from weft.control.cluster.etcd_client import Unreachable
from weft.control.cluster.group_link import ANSWER_S, Conflict, GroupLink, Held, Question, Reply
from weft.control.operators.explain import ConnectionAccount
from weft.control.service import weft_pb2 as pb
from weft.control.service.group_replies import (
    format_connection,
    mark_group,
    merge_explanations,
    merge_plans,
    merge_statuses,
)
from weft.control.service.refusals import Refused, invalid
from weft.control.state.request_key import Key
from weft.switches import PortName

STATUS, PLAN, EXPLAIN, VOTE, CARRIED = "Status", "Plan", "Explain", "Vote", "Carried"
_POLL_S = 0.1


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """A group's word for a rollback: the revision that it would hold, and its owner's epoch."""

    revision: int
    epoch: int


class FabricCalls:
    """`find_group` gives the group of a node."""

    def __init__(self, link: GroupLink, find_group: Callable[[str], str | None]) -> None:
        self._link, self._find_group = link, find_group

    @property
    def group(self) -> str:
        return self._link.group

    async def _ask(
        self,
        method: str,
        request: Any = None,
        number: int = 0,
        groups: Collection[str] | None = None,
        within_s: float = ANSWER_S,
    ) -> dict[str, Reply]:
        data = b"" if request is None else request.SerializeToString()
        question = Question(method=method, home=self.group, request=data, number=number)
        targets = self._link.others if groups is None else groups
        return await asyncio.to_thread(self._link.ask, question, targets, within_s)

    def _order(self, local: Any, remote: Mapping[str, Any]) -> dict[str, Any]:
        """By group, as the file lists them."""
        return {g: local if g == self.group else remote[g] for g in self._link.groups}

    # ---- Questions ----------------------------------------------------------------------------

    async def status(self, local: pb.StatusReply, request: pb.StatusRequest) -> pb.StatusReply:
        replies = await self._ask(STATUS, request)
        statuses = {g: _parse(reply, pb.StatusReply) for g, reply in replies.items()}
        return merge_statuses(local, self._order(local, statuses))

    async def plan(
        self,
        local: pb.PlanReply,
        request: pb.PlanRequest,
        last_registration: int,
        new_or_ended: Collection[str],
    ) -> pb.PlanReply:
        replies = await self._ask(PLAN, request, last_registration)
        plans = {g: _parse(reply, pb.PlanReply) for g, reply in replies.items()}
        return merge_plans(self._order(local, plans), new_or_ended)

    async def explain_port(
        self, request: pb.ExplainRequest, explain_here: Callable[[], Awaitable[pb.ExplainReply]]
    ) -> pb.ExplainReply:
        """Asks the group that the port is of."""
        group = self._find_group(request.port.node)
        if group is None or group == self.group:
            return mark_group(await explain_here(), self.group)
        reply = (await self._ask(EXPLAIN, request, groups=[group]))[group]
        if reply.problem:
            raise Refused(reply.code or "UNAVAILABLE", f"group {group}: {reply.problem}")
        explained = mark_group(pb.ExplainReply.FromString(reply.data), group)
        explained.text = f"Group {group}\n\n{explained.text}"
        return explained

    async def explain_application(
        self, request: pb.ExplainRequest, explain_here: Callable[[], Awaitable[pb.ExplainReply]]
    ) -> pb.ExplainReply:
        refusal, answer = None, None
        try:
            answer = await explain_here()
        except Refused as error:  # another group may know it already
            refusal = error
        replies = await self._ask(EXPLAIN, request)
        if refusal is not None and not any(reply.data for reply in replies.values()):
            raise refusal
        remote = {g: _parse(reply, pb.ExplainReply) for g, reply in replies.items()}
        return merge_explanations(self._order(str(refusal) if answer is None else answer, remote))

    async def explain_connection(
        self, request: pb.ExplainRequest, account: ConnectionAccount, local: pb.ExplainReply
    ) -> pb.ExplainReply:
        """The groups on its path are asked."""
        nodes = {port.node for hop in account.hops for port in hop}
        on_path = {self._find_group(node) for node in nodes}
        replies = await self._ask(
            EXPLAIN, request, groups=[g for g in self._link.others if g in on_path]
        )
        reply, unanswered = mark_group(local, self.group), dict[str, str]()
        for group, part in replies.items():
            if part.problem:
                unanswered[group] = part.problem
                reply.unanswered.add(group=group, problem=part.problem)
            else:
                reply.ports.extend(mark_group(pb.ExplainReply.FromString(part.data), group).ports)
        order = {port: n for n, hop in enumerate(account.hops) for port in hop}
        last = len(order)
        ports = sorted(
            reply.ports, key=lambda port: order.get(PortName(port.port.node, port.port.port), last)
        )
        del reply.ports[:]
        reply.ports.extend(ports)
        reply.text = format_connection(account, ports, unanswered)
        return reply

    # ---- Rollbacks ----------------------------------------------------------------------------

    def check_rollback(self, request: pb.RollbackRequest) -> None:
        if request.HasField("at_s"):
            return
        groups = ", ".join(self._link.groups)
        if not request.groups:
            problem = f"{request.revision}: each group counts its own ({groups})"
            raise invalid("revision", problem, "give a time (--at), or REVISION@GROUP of each")
        if set(request.groups) != set(self._link.groups):
            problem = f"given for {', '.join(sorted(request.groups))}; the groups are {groups}"
            raise invalid(
                "revisions", problem, "name each group once: all are rolled back, or none"
            )

    async def decide_rollback(
        self, request: pb.RollbackRequest, key: Key, by: str, vote_here: Callable[[], Vote]
    ) -> Held:
        """All groups agree and it is decided, or nothing has changed anywhere."""
        last = await self._read_held()
        if last.key == key:
            if last.by != by:
                problem = "belongs to another identity"
                raise Refused("PERMISSION_DENIED", f"key {key}: {problem}")
            return last
        replies = await self._ask(VOTE, request)
        try:
            replies[self.group] = Reply(data=msgspec.json.encode(vote_here()))
        except Refused as error:
            replies[self.group] = Reply(code=error.code, problem=str(error))
        problems = [f"group {g}: {r.problem}" for g, r in replies.items() if r.problem]
        if problems:
            problem = f"rollback: nothing has changed in any group: {'; '.join(problems)}"
            codes = {reply.code for reply in replies.values() if reply.problem}
            raise Refused("NOT_FOUND" if codes == {"NOT_FOUND"} else "UNAVAILABLE", problem)
        votes = {g: msgspec.json.decode(replies[g].data, type=Vote) for g in self._link.groups}
        revisions = {group: vote.revision for group, vote in votes.items()}
        epochs = {group: vote.epoch for group, vote in votes.items()}
        return await self._decide(key, by, revisions, epochs)

    async def resume_others(self, key: Key, by: str) -> list[str]:
        """Ends a rollback of all groups; names the others. Nobody can refuse: no votes."""
        last = await self._read_held()
        if last.key != key:
            if not last.revisions:
                return []
            await self._decide(key, by, {}, {})
        return list(self._link.others)

    async def _read_held(self) -> Held:
        try:
            return await asyncio.to_thread(self._link.read_held)
        except Unreachable as error:
            raise Refused("UNAVAILABLE", f"nothing has changed in any group: {error}") from error

    async def _decide(
        self, key: Key, by: str, revisions: dict[str, int], epochs: Mapping[str, int]
    ) -> Held:
        try:
            return await asyncio.to_thread(self._link.decide, key, by, revisions, epochs)
        except Conflict as error:
            raise Refused("UNAVAILABLE", f"nothing has changed in any group: {error}") from error
        except Unreachable as error:
            problem = "it is not known whether all groups are to change, or none"
            remedy = "see weft control status when etcd answers, and repeat the call"
            raise Refused("UNAVAILABLE", f"{problem}: {error}; {remedy}") from error

    async def wait_carried(
        self, held: Held, read_here: Callable[[], pb.RollbackReply | None], until_s: float
    ) -> pb.RollbackReply:
        """What each group has done, once all ports have their tables or the time is over."""
        while True:
            left_s = max(0.5, min(ANSWER_S, until_s - time.monotonic()))
            answers = await self._ask(CARRIED, number=held.number, within_s=left_s)
            remote = {g: _parse(reply, pb.RollbackReply) for g, reply in answers.items()}
            replies: dict[str, pb.RollbackReply | str] = self._order(
                read_here() or _PENDING, remote
            )
            is_done = all(_is_programmed(reply) for reply in replies.values())
            if is_done or time.monotonic() + _POLL_S > until_s:
                return self._merge_rollback(held, replies)
            await asyncio.sleep(_POLL_S)

    def _merge_rollback(
        self, held: Held, replies: Mapping[str, pb.RollbackReply | str]
    ) -> pb.RollbackReply:
        local = replies[self.group]
        merged = pb.RollbackReply()
        if not isinstance(local, str):
            merged.CopyFrom(local)
        for group, reply in replies.items():
            entry = merged.groups.add(group=group, to=held.revisions[group])
            if isinstance(reply, str):
                entry.problem = reply
            else:
                entry.reply.CopyFrom(reply)
        return merged


_PENDING = "has not carried it out yet"


def _parse(reply: Reply, message: Any) -> Any:
    """The message, or why there is none."""
    return reply.problem or message.FromString(reply.data)


def _is_programmed(reply: pb.RollbackReply | str) -> bool:
    return not isinstance(reply, str) and not reply.problems
