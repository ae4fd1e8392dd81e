"""Which controller has a subnet: a service record that the subnet manager keeps, with a lease.

InfiniBand switches keep no owner, but subnet administration has a place that all hosts can see:
service records. A controller looks for a record of another one before it writes anything, and is
refused if there is one. Otherwise it puts its own, and renews it. After a crash the record stays
for its lease; the next controller of the same place (file and host) has the same record. A subnet
manager that restarts forgets all records: the next renewal puts it again. If two are found, each
takes its own away and looks again: whoever then finds the other stops. Controllers that agree by
etcd put none; they only look. Entry point: `ControllerRecord`. Units: seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256

from weft.switches.infiniband import mad
from weft.switches.infiniband.mad import RecordRequest, ServiceRecord, Smp
from weft.switches.infiniband.mad_transport import Refusal, SmpClient
from weft.switches.tables import Claim, Taken

LEASE_S, RENEW_S = 60, 10.0
NAME = b"weft-control"
_IDS = 0x77656674 << 32  # of our records: what the architecture leaves to the local administrator
_OWNER_BYTES = 48


class ControllerRecord:
    """Used by one thread at a time."""

    def __init__(self, client: SmpClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._claim: Claim | None = None
        self._record: ServiceRecord | None = None
        self._manager = 0  # its LID
        self._due_s = 0.0
        self.problem = ""  # why others cannot be noticed

    def claim(self, claim: Claim) -> None:
        """`Taken` if another controller has the subnet."""
        self._claim = claim
        self._look()

    def renew(self) -> None:
        """Now and then: looks whether another one came, and renews the lease."""
        if self._claim is not None and self._clock() >= self._due_s:
            self._look()

    def withdraw(self) -> None:
        """Another controller may have the subnet from now on."""
        if self._record is not None:
            self._client.ask([self._record.delete_at(self._manager)], tries=1)
        self._claim = self._record = None

    def _look(self) -> None:
        self._due_s = self._clock() + RENEW_S
        problem = self._update()
        self.problem = problem and f"another controller would not be noticed: {problem}"

    def _update(self) -> str:
        """Why there is no record; "" if all is well."""
        assert self._claim is not None, "claimed"
        gid = self._find_gid()
        if not self._manager:
            return "no subnet manager is known"
        place = self._claim.place or self._claim.owner
        number = int.from_bytes(sha256(place.encode()).digest()[:4], "big")
        owner = self._claim.owner.partition(", since")[0].encode()[-_OWNER_BYTES:]
        record = ServiceRecord(_IDS | number, gid, LEASE_S, NAME, owner)
        present = self._find(record)
        if isinstance(present, Refusal):
            return present.problem
        if self._claim.epoch is not None:  # etcd says who has it
            return ""
        answer = self._ask(record.set_at(self._manager))
        if isinstance(answer, Refusal):
            return answer.problem
        self._record = record
        return self._confirm(record)

    def _find_gid(self) -> bytes:
        """Of this host's port; finds the subnet manager too."""
        answers = self._client.ask([Smp((), mad.PORT_INFO), Smp((), mad.NODE_INFO)])
        port, node = answers
        if isinstance(port, Refusal) or isinstance(node, Refusal):
            self._manager = 0
            return b""
        prefix, self._manager = mad.unpack_manager(port)
        return prefix + mad.unpack_node_info(node).port_guid.to_bytes(8, "big")

    def _find(self, ours: ServiceRecord) -> ServiceRecord | Refusal | None:
        """The record that is there; `Taken` if it is another's."""
        answer = self._ask(mad.find_service(self._manager, NAME))
        if isinstance(answer, Refusal):
            if answer.status == mad.NO_RECORDS:
                return None
            if answer.status == mad.TOO_MANY_RECORDS:
                return self._resolve(ours)
            return answer
        present = mad.unpack_service(answer)
        if (present.id, present.gid) != (ours.id, ours.gid):
            raise _build_taken(present)
        return present

    def _resolve(self, ours: ServiceRecord) -> ServiceRecord | Refusal | None:
        """Two or more: without its own, it sees the other."""
        self._ask(ours.delete_at(self._manager))
        self._record = None
        answer = self._ask(mad.find_service(self._manager, NAME))
        if isinstance(answer, bytes):
            raise _build_taken(mad.unpack_service(answer))
        if answer.status == mad.TOO_MANY_RECORDS:
            raise _build_taken(None)
        return None if answer.status == mad.NO_RECORDS else answer

    def _confirm(self, ours: ServiceRecord) -> str:
        """Another one may have put its record at the same moment."""
        present = self._find(ours)
        return present.problem if isinstance(present, Refusal) else ""

    def _ask(self, request: RecordRequest) -> bytes | Refusal:
        (answer,) = self._client.ask([request])
        return answer


def _build_taken(record: ServiceRecord | None) -> Taken:
    remedy = f"end that controller first; one that was killed is forgotten within {LEASE_S} s"
    if record is None:
        return Taken("infiniband", "several controllers have this subnet", remedy)
    text = record.data[:_OWNER_BYTES].split(b"\0", 1)[0].decode(errors="replace")
    owner = "".join(c if c.isprintable() else "?" for c in text)
    port = record.gid[8:].hex()
    problem = f"this subnet belongs to the controller {owner}, at port 0x{port}"
    return Taken("infiniband", problem, remedy)
