"""Questions from one group of controllers to another, and what all groups hold, through etcd.

A question is a key under the name of the group that is asked. The group's owner answers by a key
under the question's id. Both belong to a lease of the asker, so that nothing stays behind. Groups
need no way to each other but etcd, which they trust already: it has their logs. What all groups
hold is one key (`Held`). It is put in one transaction, while every group has the owner that has
agreed to it: from then on each owner, or its successor, carries it out once.
Entry points: `GroupLink.ask`, `GroupLink.decide`, `GroupLink.run` (a thread's body).
Units: seconds, bytes.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct

from weft.control.cluster.etcd_client import (
    EtcdClient,
    Unreachable,
    delete,
    get,
    is_created_at,
    is_modified_at,
    put,
)
from weft.control.cluster.ownership import Holder
from weft.control.state.request_key import Key
from weft.errors import InputError

ANSWER_S = 5.0
POLL_S = 0.1
_WAIT_S = 0.03  # between looks for answers
_LEASE_S = 15.0  # beyond the wait
_MAX_BYTES = 1_400_000  # of an answer: etcd takes 1.5 MiB


class Question(Struct, frozen=True, kw_only=True):
    """`request` as bytes. `home`: the group that asks. `number` is the method's."""

    method: str
    home: str
    request: bytes = b""
    number: int = 0


class Reply(Struct, frozen=True, kw_only=True):
    """`code`: the group has refused, for this problem. A problem without one: it did not answer."""

    data: bytes = b""
    code: str = ""
    problem: str = ""


class Held(Struct, frozen=True, kw_only=True):
    """The revision that each group holds; none: all follow their plans. `number` only grows."""

    number: int = 0
    key: Key = Key("", 0)
    by: str = ""
    revisions: dict[str, int] = {}


class Conflict(InputError):
    """Nothing was decided: something has changed since the groups have agreed."""


class GroupLink:
    """`answer` and `carry_out` are called in the thread of `run`; set them before it starts."""

    def __init__(
        self, client: EtcdClient, prefix: str, group: str, groups: Collection[str]
    ) -> None:
        self._client, self._prefix = client, prefix
        self.group, self.groups = group, tuple(groups)
        self.answer: Callable[[Question], Reply] = _refuse_all
        self.carry_out: Callable[[Held], None] = lambda _: None
        self._ending = threading.Event()

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(group for group in self.groups if group != self.group)

    # ---- Asking, from any thread --------------------------------------------------------------

    def ask(
        self, question: Question, groups: Collection[str], within_s: float = ANSWER_S
    ) -> dict[str, Reply]:
        """The reply of each group; a problem where there is none in time."""
        try:
            return self._ask(question, groups, within_s)
        except InputError as error:
            return {group: Reply(problem=str(error)) for group in groups}

    def _ask(
        self, question: Question, groups: Collection[str], within_s: float
    ) -> dict[str, Reply]:
        owners = {group: self.find_owner(group) for group in groups}
        replies = {
            group: Reply(problem="no controller owns it; start one of its controllers")
            for group, owner in owners.items()
            if owner is None
        }
        pending = [group for group in groups if group not in replies]
        if not pending:
            return replies
        id_, data = secrets.token_hex(8), zlib.compress(msgspec.msgpack.encode(question), 1)
        lease = self._client.grant_lease(math.ceil(within_s + _LEASE_S)).ID
        try:
            puts = [
                put(f"{self._prefix}/questions/{group}/{id_}", data, lease) for group in pending
            ]
            self._client.transact([], puts)
            replies |= self._wait(id_, pending, within_s)
        finally:
            with suppress(InputError):  # it expires
                self._client.revoke_lease(lease)
        for group in pending:
            if group not in replies:
                owner = owners[group]
                problem = f"its owner has not answered within {within_s:g} s"
                replies[group] = Reply(problem=f"{problem}: {owner.owner if owner else ''}")
        return replies

    def _wait(self, id_: str, pending: Collection[str], within_s: float) -> dict[str, Reply]:
        folder, replies = f"{self._prefix}/answers/{id_}/", dict[str, Reply]()
        deadline = time.monotonic() + within_s
        while len(replies) < len(pending) and time.monotonic() < deadline:
            time.sleep(_WAIT_S)
            for pair in self._client.read_range(folder, f"{folder}~"):
                group = pair.key.decode().removeprefix(folder)
                replies[group] = msgspec.msgpack.decode(zlib.decompress(pair.value), type=Reply)
        return replies

    def find_owner(self, group: str) -> Holder | None:
        pair = self._client.read(self._owner_key(group))
        return None if pair is None else msgspec.json.decode(pair.value, type=Holder)

    def _owner_key(self, group: str) -> str:
        return f"{self._prefix}/groups/{group}/owner"

    # ---- What all hold ------------------------------------------------------------------------

    def read_held(self) -> Held:
        pair = self._client.read(f"{self._prefix}/held")
        return Held() if pair is None else msgspec.msgpack.decode(pair.value, type=Held)

    def decide(
        self, key: Key, by: str, revisions: dict[str, int], epochs: Mapping[str, int]
    ) -> Held:
        """Decides for all groups, while each has the owner of the epoch that has agreed.

        `Conflict`: nothing was decided. `Unreachable`: perhaps; the same key asks again.
        """
        where = f"{self._prefix}/held"
        pair = self._client.read(where)
        last = Held() if pair is None else msgspec.msgpack.decode(pair.value, type=Held)
        if last.key == key:
            return last
        held = Held(number=last.number + 1, key=key, by=by, revisions=revisions)
        data, at = msgspec.msgpack.encode(held), 0 if pair is None else pair.mod_revision
        owners = [is_created_at(self._owner_key(g), epoch) for g, epoch in epochs.items()]
        reply = self._client.transact(
            [is_modified_at(where, at), *owners], [put(where, data)], [get(where)]
        )
        if reply.succeeded:
            return held
        stored = reply.responses[0].response_range.kvs
        if stored and stored[0].value == data:
            return held  # the call before this one was carried out, and its answer lost
        if stored and stored[0].mod_revision != at:
            raise Conflict(where, "another change of all groups came first", "try again")
        raise Conflict(where, "a group has got another owner meanwhile", "try again")

    # ---- The thread ---------------------------------------------------------------------------

    def stop(self) -> None:
        self._ending.set()

    def run(self) -> None:
        """Answers, and carries out what was decided, until `stop`."""
        folder = f"{self._prefix}/questions/{self.group}/"
        while not self._ending.is_set():
            with suppress(Unreachable):  # the lease tells
                for pair in self._client.read_range(folder, f"{folder}~"):
                    self._answer(pair.key.decode(), pair.value, pair.lease)
                held = self.read_held()
                if held.number:
                    self.carry_out(held)
            self._ending.wait(POLL_S)

    def _answer(self, key: str, value: bytes, lease: int) -> None:
        try:
            question = msgspec.msgpack.decode(zlib.decompress(value), type=Question)
        except (msgspec.MsgspecError, zlib.error):
            reply = Reply(problem="cannot read the question: use one weft on all controllers")
        else:
            reply = self.answer(question)
        data = _pack(reply)
        if len(data) > _MAX_BYTES:
            problem = f"its answer takes {len(data)} bytes, {_MAX_BYTES} is the most"
            data = _pack(Reply(problem=f"{problem}; ask its controller alone"))
        answer = f"{self._prefix}/answers/{key.rpartition('/')[2]}/{self.group}"
        try:
            self._client.transact([], [put(answer, data, lease), delete(key, f"{key}\0")])
        except Unreachable:
            raise
        except InputError:
            return  # its lease has ended: nobody waits


def _pack(reply: Reply) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(reply), 1)


def _refuse_all(_: Question) -> Reply:
    return Reply(problem="is starting; try again")
