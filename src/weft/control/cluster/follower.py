"""The thread that follows the logs of other groups, and hands their rows to the engine.

An entry carries, beside its statements, the rows of registrations and connections whose home is
that group, and the publisher's models and levels: this is how a connection is handed along its
path, with the same id. The log keeps them until all have them; a group that is too far behind gets
the whole state from a snapshot. Entry points: `Follower`, `encode_rows`, `decode_rows`.
Units: seconds.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from weft.control.cluster.etcd_client import EtcdClient, Unreachable
from weft.control.cluster.replicated_store import (
    READ_ENTRIES,
    Keys,
    decode_entry,
    fetch_snapshot,
    read_snapshot,
)
from weft.control.state.events import (
    ApplicationRow,
    Connection,
    ConnectionRow,
    Follow,
    LevelsRow,
    ModelRow,
    Row,
)
from weft.control.state.requests import find_home
from weft.control.store.sqlite_store import Store, StoredState
from weft.control.store.store_rows import decode_levels, decode_model, encode_levels, encode_model

POLL_S = 0.05


# ---- Rows in entries --------------------------------------------------------------------------


def encode_rows(rows: Iterable[Row], group: str, *, publishes: bool) -> list[Sequence[Any]]:
    """Those that other groups follow."""
    changes: list[Sequence[Any]] = []
    for row in rows:
        match row:
            case ApplicationRow() if find_home(row.id) == group:
                size = (row.size_bytes,) if row.size_bytes else ()
                common = (row.id, row.name, row.ttl_s, row.owner, row.job, row.unit)
                changes.append(("a", *common, *size))
            case ConnectionRow(connection=None):
                changes.append(("c", row.id))
            case ConnectionRow(connection=c) if c and find_home(c.application) == group:
                changes.append(("c", c.id, c.application, c.source, c.destination))
            case ModelRow() if publishes:
                text = None if row.model is None else encode_model(row.model)
                changes.append(("m", row.name, text, row.withdrawn))
            case LevelsRow() if publishes:
                changes.append(("l", encode_levels(row.levels)))
    return changes


def decode_rows(changes: Iterable[Sequence[Any]]) -> tuple[Row, ...]:
    return tuple(_decode_row(*change) for change in changes)


def _decode_row(kind: str, *values: Any) -> Row:
    if kind == "a":
        id_, name, ttl_s, owner, job, unit, *size = values
        return ApplicationRow(
            id=id_,
            name=name,
            ttl_s=ttl_s,
            owner=owner,
            job=job,
            unit=unit,
            size_bytes=size[0] if size else 0,
        )
    if kind == "m":
        name, text, withdrawn = values
        model = None if text is None else decode_model(text)
        return ModelRow(name=name, model=model, withdrawn=withdrawn)
    if kind == "l":
        return LevelsRow(levels=decode_levels(values[0]))
    if len(values) == 1:
        return ConnectionRow(id=values[0], connection=None)
    id_, application, source, destination = values
    connection = Connection(id=id_, application=application, source=source, destination=destination)
    return ConnectionRow(id=id_, connection=connection)


def _list_rows(stored: StoredState, group: str, *, publishes: bool) -> tuple[Row, ...]:
    """All that a group has and others follow."""
    rows: list[Row] = []
    if publishes:
        rows += [
            ModelRow(name=name, model=model, withdrawn=name in stored.withdrawn)
            for name, model in stored.models.items()
        ]
        rows += [] if stored.levels is None else [LevelsRow(levels=stored.levels)]
    rows += [row for row in stored.applications if find_home(row.id) == group]
    rows += [
        ConnectionRow(id=c.id, connection=c)
        for c in stored.connections
        if find_home(c.application) == group
    ]
    return tuple(rows)


# ---- The thread -------------------------------------------------------------------------------


class Follower:
    """`submit` hands an event to the engine and returns whether it was carried out.

    `cursors` gives how far each group was followed, as the engine has it.
    """

    def __init__(
        self,
        client: EtcdClient,
        keys: Callable[[str], Keys],
        groups: Collection[str],
        publisher: str,
        *,
        cursors: Callable[[], Any],
        submit: Callable[[Follow], bool],
    ) -> None:
        self._client, self._keys, self._groups = client, keys, groups
        self._publisher, self._cursors, self._submit = publisher, cursors, submit
        self.problems: dict[str, str] = {}  # by group
        self._ending = threading.Event()

    def stop(self) -> None:
        self._ending.set()

    def run(self) -> None:
        """Until `stop`."""
        while not self._ending.is_set():
            followed = [self._follow(group) for group in self._groups]
            if True not in followed:
                self._ending.wait(POLL_S)

    def _follow(self, group: str) -> bool:
        """The next entries of a group; whether there were any."""
        try:
            event = self._read_next(group)
        except Unreachable as error:
            self.problems[group] = f"group {group} cannot be followed, trying again: {error}"
            return False
        if event is None:
            self.problems.pop(group, None)
            return False
        is_done = self._submit(event)
        if not is_done:
            self._ending.wait(POLL_S)
        return is_done

    def _read_next(self, group: str) -> Follow | None:
        keys = self._keys(group)
        history, _, number = self._cursors().get(group, ":0").rpartition(":")
        index = int(number)
        first = keys.entry(index + 1)
        pairs = self._client.read_range(first, keys.end_of_log, limit=READ_ENTRIES)
        if history and pairs and pairs[0].key.decode() == first:
            entries = [decode_entry(pair.value) for pair in pairs]
            rows = [row for entry in entries for row in decode_rows(entry.changes)]
            position = f"{history}:{index + len(entries)}"
            return Follow(group=group, position=position, rows=tuple(rows))
        snapshot = read_snapshot(self._client, keys)
        if snapshot is None or (snapshot.history == history and snapshot.index <= index):
            return None
        data = fetch_snapshot(self._client, keys, snapshot)
        if data is None:
            return None
        stored = _load(data)
        rows_of_all = _list_rows(stored, group, publishes=group == self._publisher)
        position = f"{snapshot.history}:{snapshot.index}"
        return Follow(group=group, position=position, rows=rows_of_all, is_whole=True)


def _load(data: bytes) -> StoredState:
    with tempfile.TemporaryDirectory(prefix="weft-follow-") as folder:
        path = Path(folder) / "copy.db"
        path.write_bytes(data)
        with closing(Store.open(path)) as store:
            return store.load()
