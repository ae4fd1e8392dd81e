"""Who owns a group of switches: the controller whose lease holds the group's key in etcd.

The revision of etcd at which the key was created is the owner's epoch: a later owner has a higher
one, and switches refuse the lower. The owner counts its lease from before each renewal was sent,
so it ends here before it ends in etcd; it stops programming `write_s` sooner still, the longest
that a write takes. Time is counted through a suspend, and no clock of the day is involved.
Entry point: `Ownership`. Units: seconds.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from weft.control.cluster.etcd_client import EtcdClient, Unreachable, get, has_no_key, put
from weft.errors import InputError

_RENEWALS = 4  # within a lease


def read_clock() -> float:
    """Seconds since the boot, a suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The owner as others see it."""

    owner: str


class Ownership:
    """`lost` is called once, from any thread, when the lease cannot be counted on any more."""

    def __init__(
        self,
        client: EtcdClient,
        key: str,
        owner: str,
        *,
        ttl_s: float,
        write_s: float,
        clock: Callable[[], float] = read_clock,
    ) -> None:
        self._client, self.key, self._owner = client, key, owner
        self._ttl_s, self._write_s, self._clock = ttl_s, write_s, clock
        self.epoch = 0
        self.holder: Holder | None = None  # another one, when last asked
        self.problem = ""  # why it is lost
        self.lost: Callable[[], object] = lambda: None
        self._lease = 0
        self._until_s = -math.inf
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def try_acquire(self) -> bool:
        """Asks once; keeps the lease alive from then on."""
        if self._describe_holder():
            return False
        began_s = self._clock()
        lease = self._client.grant_lease(math.ceil(self._ttl_s))
        value = msgspec.json.encode(Holder(owner=self._owner))
        reply = self._client.transact(
            [has_no_key(self.key)], [put(self.key, value, lease.ID), get(self.key)], [get(self.key)]
        )
        current = reply.responses[-1].response_range.kvs
        if not current or current[0].lease != lease.ID:  # a repeated call may find its own
            self._describe_holder()
            return False
        self._lease, self.epoch, self.problem = lease.ID, current[0].create_revision, ""
        self._until_s = began_s + lease.TTL
        self._ending.clear()
        self._thread = threading.Thread(target=self._keep, args=(lease.TTL,), name="weft-lease")
        self._thread.start()
        return True

    def _describe_holder(self) -> bool:
        current = self._client.read(self.key)
        self.holder = None if current is None else msgspec.json.decode(current.value, type=Holder)
        return current is not None

    # ---- From any thread ----------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        """For how long the lease can still be counted on."""
        return self._until_s - self._clock()

    def may_write(self) -> bool:
        """Whether a write that begins now ends within the lease."""
        return self.left_s > self._write_s

    def lose(self, problem: str) -> None:
        """It is over: the lease has ended, or etcd has another owner."""
        self._until_s = -math.inf
        if not self.problem:
            self.problem = problem
            self.lost()

    def release(self) -> None:
        """Gives the group up, so that another may have it at once."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._lease:
            self._until_s = -math.inf
            with suppress(InputError):  # it has expired, or will
                self._client.revoke_lease(self._lease)
            self._lease = 0

    # ---- The thread that renews ---------------------------------------------------------------

    def _keep(self, ttl_s: float) -> None:
        while not self._ending.wait(ttl_s / _RENEWALS / 2) and not self.problem:
            began_s = self._clock()
            if self.left_s <= 0:
                self.lose("its lease has ended")
                break
            try:
                granted_s = self._client.keep_lease(self._lease, max(0.1, ttl_s / _RENEWALS))
            except Unreachable:
                continue
            except InputError as error:
                self.lose(str(error))
                break
            if granted_s <= 0:
                self.lose("its lease has expired in etcd")
            elif not self.problem:
                self._until_s = began_s + granted_s
