"""A controller's store whose commits are entries of a log in etcd, so that others can go on.

Each member of a group has an SQLite file. The owner's commit is a transaction of its file and one
key of etcd, put only while it owns the group: first etcd (a majority has it), then the file, then
the answer. Standbys run the same statements in the same order on their files. A file holds the
number of its last entry, so that each entry counts once. Now and then the owner puts a copy of its
file (a snapshot) and removes older entries; a member that is too far behind starts from the copy.
Entry points: `ReplicatedStore.open`, `ReplicatedStore.join`, `ReplicatedStore.catch_up`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from weft.control.cluster.etcd_client import (
    EtcdClient,
    Unreachable,
    delete,
    get,
    has_no_key,
    is_created_at,
    put,
)
from weft.control.cluster.ownership import Ownership
from weft.control.state.events import Code, Row
from weft.control.store.sqlite_store import CannotWrite, Store
from weft.control.store.store_rows import SCHEMA, write_facts, write_rows
from weft.errors import InputError

SNAPSHOT_EVERY = 2000  # entries
KEPT_ENTRIES = 20_000  # behind a snapshot
PART_BYTES = 1 << 20
_MAX_BYTES = 1_400_000  # of an entry: etcd takes 1.5 MiB
READ_ENTRIES = 64
_MOVE_AWAY = "move it away: the controller copies the group's"

Statement = tuple[str, Sequence[Sequence[Any]]]  # SQL, and the values of each time it is run


class Entry(Struct, frozen=True, kw_only=True):
    """A commit: the statements that it ran. `id` tells a repeated put from another owner's."""

    schema: int
    id: str
    statements: Sequence[Statement]
    changes: Sequence[Sequence[Any]] = ()  # rows that other groups follow


class Snapshot(Struct, frozen=True, kw_only=True):
    """A copy of the file after entry `index`, in so many parts."""

    history: str
    index: int
    parts: int
    digest: str


class LostOwnership(CannotWrite):
    """Another controller has the group; what was to be committed may be in the log or not."""

    code: Code = "UNAVAILABLE"


class Keys:
    """The keys of a group."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.owner, self.snapshot = f"{prefix}/owner", f"{prefix}/snapshot"

    def entry(self, index: int) -> str:
        return f"{self.prefix}/log/{index:016x}"

    def part(self, history: str, index: int, number: int) -> str:
        return f"{self.prefix}/parts/{index:016x}-{history}/{number:06}"

    @property
    def end_of_log(self) -> str:
        return f"{self.prefix}/log/~"


class _RecordingConnection(sqlite3.Connection):
    """Keeps the statements that it runs, while `statements` is a list."""

    statements: list[Statement] | None = None

    def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
        if self.statements is not None and not sql.startswith("SELECT"):
            self.statements.append((sql, [values]))
        return super().execute(sql, values)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        values = list(rows)
        if self.statements is not None:
            self.statements.append((sql, values))
        return super().executemany(sql, values)


class ReplicatedStore(Store):
    """Used by one thread at a time; snapshots are put by a thread of their own."""

    connection_class = _RecordingConnection
    _client: EtcdClient
    _keys: Keys
    ownership: Ownership | None = None
    encode_changes: Callable[[Iterable[Row]], Sequence[Sequence[Any]]] = staticmethod(lambda _: ())
    history = ""
    index = 0
    _snapshot_thread: threading.Thread | None = None

    def join(self, client: EtcdClient, keys: Keys) -> None:
        """Follows the group from now on. Its file is the group's, or as good as empty."""
        self._client, self._keys = client, keys
        self._read_position()
        snapshot = read_snapshot(self._client, self._keys)
        if self.history and (snapshot is None or snapshot.history != self.history):
            raise InputError(str(self.path), "is not of this group of etcd", _MOVE_AWAY)
        if snapshot is not None and not self.history and not self._is_empty():
            raise InputError(str(self.path), "has a state of its own", _MOVE_AWAY)
        self.catch_up()

    def _is_empty(self) -> bool:
        stored = self.load()
        return not stored.applications and not stored.revision and not stored.last_registration

    def _read_position(self) -> None:
        self.history, _, index = (self.read_fact("log") or ":0").rpartition(":")
        self.index = int(index)

    def catch_up(self) -> int:
        """Runs the entries that are new; their number."""
        count = 0
        while True:
            snapshot = read_snapshot(self._client, self._keys)
            if snapshot is None:
                return count  # nobody has ever owned the group
            entries = self._read_entries()
            if snapshot.history != self.history or (not entries and snapshot.index > self.index):
                self._load_snapshot(snapshot)
                count += 1
            elif not entries:
                return count
            else:
                for entry in entries:
                    self._run(entry)
                count += len(entries)

    def _read_entries(self) -> list[Entry]:
        """The next ones, without a gap."""
        first, end = self._keys.entry(self.index + 1), self._keys.end_of_log
        pairs = self._client.read_range(first, end, limit=READ_ENTRIES)
        keys = [self._keys.entry(self.index + 1 + n).encode() for n in range(len(pairs))]
        return [decode_entry(p.value) for p, key in zip(pairs, keys, strict=True) if p.key == key]

    def _run(self, entry: Entry) -> None:
        if entry.schema != SCHEMA:
            problem = f"an entry of the log has schema {entry.schema}, and this weft has {SCHEMA}"
            raise InputError(self._keys.prefix, problem, "use one weft on all controllers")
        with self.transaction() as db:
            for sql, rows in entry.statements:
                db.executemany(sql, rows)
        self.index += 1

    # ---- The owner ----------------------------------------------------------------------------

    def own(self, ownership: Ownership) -> None:
        """Commits are this owner's from now on. The log has ended: only the owner adds to it."""
        self.catch_up()
        self.ownership = ownership
        if not self.history:
            self.history = secrets.token_hex(8)
            with self.transaction() as db:
                write_facts(db, {"log": f"{self.history}:0"})
            self._put_snapshot(self._db.serialize(), self.index)

    def commit(self, rows: Iterable[Row], at_s: float) -> None:
        index, is_appended = self.index + 1, False
        try:
            with self.transaction() as db:
                rows = list(rows)
                statements = self._record(db, rows, at_s, index)
                self._append(index, statements, self.encode_changes(rows))
                is_appended = True
        except CannotWrite as error:
            if is_appended:  # the log has it: this file must follow before it may go on
                raise self._lose(str(error)) from error
            raise
        self.index = index
        if index % SNAPSHOT_EVERY == 0 and not self._is_copying():
            self._snapshot_thread = threading.Thread(
                target=self._put_snapshot, args=(self._db.serialize(), index), name="weft-snapshot"
            )
            self._snapshot_thread.start()

    def _record(
        self, db: sqlite3.Connection, rows: Iterable[Row], at_s: float, index: int
    ) -> list[Statement]:
        assert isinstance(db, _RecordingConnection)
        statements = db.statements = []
        try:
            write_rows(db, rows, at_s, self.keep)
            write_facts(db, {"log": f"{self.history}:{index}"})
        finally:
            db.statements = None
        return statements

    def _append(
        self, index: int, statements: list[Statement], changes: Sequence[Sequence[Any]]
    ) -> None:
        entry = Entry(
            schema=SCHEMA, id=secrets.token_hex(8), statements=statements, changes=changes
        )
        data = zlib.compress(msgspec.json.encode(entry), 1)
        if len(data) > _MAX_BYTES:
            problem = f"a commit of {len(data)} bytes, {_MAX_BYTES} is the most"
            raise CannotWrite(self._keys.prefix, problem, "apply less at once")
        key = self._keys.entry(index)
        while True:
            owner = self.ownership
            if owner is None or owner.left_s <= 0:
                raise self._lose("its lease has ended")
            try:
                reply = self._client.transact(
                    [is_created_at(self._keys.owner, owner.epoch), has_no_key(key)],
                    [put(key, data)],
                    [get(key)],
                    within_s=owner.left_s,
                )
            except Unreachable:
                continue
            if reply.succeeded:
                return
            stored = reply.responses[0].response_range.kvs
            if stored and stored[0].value == data:
                return  # the call before this one was carried out, and its answer lost
            raise self._lose("etcd has another owner")

    def _lose(self, problem: str) -> LostOwnership:
        if self.ownership is not None:
            self.ownership.lose(problem)
        return LostOwnership(self._keys.prefix, problem, "ask the group's owner")

    # ---- Snapshots ----------------------------------------------------------------------------

    def _is_copying(self) -> bool:
        return self._snapshot_thread is not None and self._snapshot_thread.is_alive()

    def _put_snapshot(self, data: bytes, index: int) -> None:
        """A failure is no loss: the log stays as it is, and the next snapshot removes it."""
        packed = zlib.compress(data, 1)
        parts = list(_split(packed))
        owner, keys = self.ownership, self._keys
        assert owner is not None, "owners put snapshots"
        is_owner = [is_created_at(keys.owner, owner.epoch)]
        snapshot = Snapshot(
            history=self.history,
            index=index,
            parts=len(parts),
            digest=hashlib.sha256(packed).hexdigest(),
        )
        try:
            for number, part in enumerate(parts):
                self._client.transact(is_owner, [put(keys.part(self.history, index, number), part)])
            oldest = keys.entry(max(0, index - KEPT_ENTRIES))
            reply = self._client.transact(
                is_owner,
                [
                    put(keys.snapshot, msgspec.json.encode(snapshot)),
                    delete(keys.entry(0), oldest),
                    delete(f"{keys.prefix}/parts/", keys.part(self.history, index, 0)),
                ],
            )
        except Unreachable:
            if index == 0:
                raise
            return
        if not reply.succeeded:
            self._lose("etcd has another owner")

    def _load_snapshot(self, snapshot: Snapshot) -> None:
        """Replaces the file."""
        data = fetch_snapshot(self._client, self._keys, snapshot)
        if data is None:
            return
        draft = self.path.with_name(f"{self.path.name}.new")
        draft.write_bytes(data)
        draft.chmod(0o600)
        self._db.close()
        for suffix in ("-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        os.replace(draft, self.path)
        self._db = type(self).open(self.path, keep=self.keep)._db
        self._read_position()

    def close(self) -> None:
        if self._snapshot_thread is not None:
            self._snapshot_thread.join()
        super().close()


def _split(data: bytes) -> Iterator[bytes]:
    for first in range(0, len(data), PART_BYTES):
        yield data[first : first + PART_BYTES]


def read_snapshot(client: EtcdClient, keys: Keys) -> Snapshot | None:
    pair = client.read(keys.snapshot)
    return None if pair is None else msgspec.json.decode(pair.value, type=Snapshot)


def fetch_snapshot(client: EtcdClient, keys: Keys, snapshot: Snapshot) -> bytes | None:
    """The copy of the file; None: a later one has replaced it meanwhile."""
    parts = [keys.part(snapshot.history, snapshot.index, n) for n in range(snapshot.parts)]
    pairs = [client.read(key) for key in parts]
    packed = b"".join(pair.value for pair in pairs if pair is not None)
    if hashlib.sha256(packed).hexdigest() != snapshot.digest:
        return None
    return zlib.decompress(packed)


def decode_entry(data: bytes) -> Entry:
    return msgspec.json.decode(zlib.decompress(data), type=Entry)
