"""A controller as a member of its group: a standby that follows the log, until it is the owner.

Entry point: `Member`. Units: seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from weft.control.cluster.etcd_client import EtcdClient, Unreachable
from weft.control.cluster.ownership import Ownership
from weft.control.cluster.replicated_store import Keys, LostOwnership, ReplicatedStore

POLL_S = 0.1


class Member:
    """`new_ownership` makes the claim for one turn as the owner."""

    def __init__(
        self,
        client: EtcdClient,
        store: ReplicatedStore,
        keys: Keys,
        new_ownership: Callable[[], Ownership],
        log: Callable[[str], None],
    ) -> None:
        self.client, self.store, self._keys = client, store, keys
        self._new_ownership, self._log = new_ownership, log
        self._report = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.store.close()
        self.client.close()

    def campaign(self, ending: threading.Event) -> Ownership | None:
        """Follows the log until this controller owns the group; None: `ending` was set."""
        self.store.ownership = None
        has_joined = False
        while not ending.is_set():
            ownership = self._new_ownership()
            try:
                if not has_joined:
                    self.store.join(self.client, self._keys)
                    has_joined = True
                self.store.catch_up()
                if ownership.try_acquire():
                    self.store.own(ownership)
                    self._log(f"owner of {self._keys.prefix}, epoch {ownership.epoch}")
                    return ownership
                holder = ownership.holder
                self._tell(f"standby: {holder.owner} owns {self._keys.prefix}" if holder else "")
            except (Unreachable, LostOwnership) as error:
                ownership.release()
                self._tell(f"standby, trying again: {error}")
            except BaseException:
                ownership.release()
                raise
            ending.wait(POLL_S)
        return None

    def _tell(self, report: str) -> None:
        """Logs each change once."""
        if report and report != self._report:
            self._log(report)
        self._report = report or self._report
