"""The controller's memory on disk: SQLite, write-ahead log, every commit synchronised.

A batch of rows is one transaction: what was committed survives a kill and a power cut, what was not
has left no trace. `target` has what ports are to have, `undo` what each revision replaced, so that
any revision whose successors' undo rows are kept can be gone back to. One process at a time has the
file. A file that is damaged, foreign or newer is refused; a write that fails (disk full) raises
`CannotWrite` and changes nothing, and the next may succeed.
Entry points: `Store.open`, `Store.load`, `Store.commit`, `Store.tables_at`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from weft.control.policy.levels import Levels
from weft.control.state.events import Answer, ApplicationModel
from weft.control.state.key import Key
from weft.control.state.rows import ApplicationRow, ConnectionRow, Row
from weft.control.store.store_codec import answer_from, kind_from, levels_from, tables_from
from weft.control.store.store_rows import CREATE, write_rows
from weft.errors import InputError
from weft.records.output import check_directory, explain_file_errors
from weft.records.record_line import report_malformed
from weft.switches import PortName, Tables

SCHEMA = 1
REVISIONS = 10_000
_OURS = 0x77656674  # "weft"
_RESTORE = "restore a copy, or move it away and let applications register again"


class CannotWrite(InputError):
    """A commit that failed and has changed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """What a store holds."""

    applications: tuple[ApplicationRow, ...] = ()
    connections: tuple[ConnectionRow, ...] = ()
    kinds: dict[str, ApplicationModel] = field(default_factory=dict)
    withdrawn: frozenset[str] = frozenset()
    levels: Levels | None = None
    answers: tuple[tuple[Key, Answer], ...] = ()  # the latest last
    target: dict[PortName, Tables] = field(default_factory=dict)
    revision: int = 0
    held: int | None = None
    registered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """When tables changed, why, and at how many ports."""

    revision: int
    at_s: float
    cause: str
    ports: int


class Store:
    """An open store; one thread at a time uses it."""

    def __init__(self, path: Path, db: sqlite3.Connection, keep: int) -> None:
        self._path, self._db, self._keep = path, db, keep

    @classmethod
    def open(cls, path: str | Path, *, keep: int = REVISIONS) -> Store:
        """The store of a file, made if it is not there; `keep` revisions can be gone back to."""
        path = Path(path)
        check_directory(path.parent)
        with explain_file_errors(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            with _refusing(path):
                _prepare(db, path)
        except InputError:
            db.close()
            raise
        _sync(path.parent)
        return cls(path, db, keep)

    def close(self) -> None:
        self._db.close()

    # ---- Reading ------------------------------------------------------------------------------

    def load(self) -> StoredState:
        """All of it."""
        where = str(self._path)
        with _refusing(self._path), report_malformed(where, "damaged", _RESTORE):
            facts = dict(self._db.execute("SELECT name, told FROM facts"))
            kinds = self._db.execute("SELECT name, told, withdrawn FROM kinds").fetchall()
            return StoredState(
                applications=tuple(self._applications()),
                connections=tuple(self._connections()),
                kinds={name: kind_from(told) for name, told, _ in kinds},
                withdrawn=frozenset(name for name, _, withdrawn in kinds if withdrawn),
                levels=levels_from(facts["levels"]) if "levels" in facts else None,
                answers=tuple(self._answers()),
                target=self._target(),
                revision=int(facts.get("revision", 0)),
                held=int(facts["held"]) if facts.get("held") else None,
                registered=int(facts.get("registered", 0)),
            )

    def _applications(self) -> Iterator[ApplicationRow]:
        for id_, name, ttl_s in self._db.execute("SELECT id, name, ttl_s FROM applications"):
            yield ApplicationRow(id=id_, name=name, ttl_s=ttl_s)

    def _connections(self) -> Iterator[ConnectionRow]:
        found = self._db.execute("SELECT id, application, source, destination FROM connections")
        for id_, application, source, destination in found:
            yield ConnectionRow(
                id=id_, application=application, source=source, destination=destination
            )

    def _answers(self) -> Iterator[tuple[Key, Answer]]:
        found = self._db.execute("SELECT client, sequence, told FROM answers ORDER BY number")
        for client, sequence, told in found:
            yield Key(client, sequence), answer_from(told)

    def _target(self) -> dict[PortName, Tables]:
        known: dict[str, Tables] = {}  # thousands of ports have a few tables among them
        found = {}
        for node, port, told in self._db.execute("SELECT node, port, told FROM target"):
            if told not in known:
                known[told] = tables_from(told)
            found[PortName(node, port)] = known[told]
        return found

    def revisions(self, most: int) -> list[Revision]:
        """The latest ones that can be gone back to, the latest first."""
        query = "SELECT revision, at_s, cause, ports FROM revisions ORDER BY 1 DESC LIMIT ?"
        with _refusing(self._path):
            found = self._db.execute(query, (most,)).fetchall()
        return [
            Revision(revision=r, at_s=at_s, cause=cause, ports=ports)
            for r, at_s, cause, ports in found
        ]

    def tables_at(self, revision: int) -> dict[PortName, Tables]:
        """What ports were to have at a revision; those never told by then are left out."""
        with _refusing(self._path):
            oldest, latest = self._db.execute(
                "SELECT min(revision) - 1, max(revision) FROM revisions"
            ).fetchone()
            # The first undo row after it has what a port had until then.
            undone = self._db.execute(
                "SELECT node, port, told, min(revision) FROM undo WHERE revision > ? "
                "GROUP BY node, port",
                (revision,),
            ).fetchall()
            target = self._target()
        if latest is None or not oldest <= revision <= latest:
            kept = "none yet" if latest is None else f"{oldest} to {latest}"
            raise InputError(f"revision {revision}", f"is not kept ({kept})", "name one that is")
        for node, port, told, _ in undone:
            if told is None:
                target.pop(PortName(node, port), None)
            else:
                target[PortName(node, port)] = tables_from(told)
        return target

    # ---- Writing ------------------------------------------------------------------------------

    def commit(self, rows: Iterable[Row], at_s: float) -> None:
        """All of them on disk, or none; `at_s` is the time of day for revisions."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            write_rows(self._db, rows, at_s, self._keep)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._abandon()
            remedy = "make room on its disk" if _is_full(error) else "check its disk"
            raise CannotWrite(str(self._path), str(error), remedy) from error

    def _abandon(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # where SQLite has done so itself
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")


# ---- Opening ----------------------------------------------------------------------------------


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    (ours,), (version,) = (
        db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables and not ours:
        _create(db)
    elif ours != _OURS:
        raise InputError(str(path), "is not a store of weft control", "name another file")
    elif version != SCHEMA:
        problem = f"has schema {version}, and this weft reads {SCHEMA}"
        raise InputError(str(path), problem, "use the weft that wrote it")
    (told,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if told != "ok":
        raise InputError(str(path), f"damaged: {told}", _RESTORE)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN IMMEDIATE")  # takes the lock, which stays
    db.execute("COMMIT")


def _create(db: sqlite3.Connection) -> None:
    """In one transaction: a file made half-way is an empty one."""
    db.executescript(
        f"BEGIN; {CREATE} PRAGMA application_id = {_OURS}; PRAGMA user_version = {SCHEMA}; COMMIT;"
    )


def _sync(directory: Path) -> None:
    """The file's name is on disk too: SQLite sees to what is in it."""
    with explain_file_errors(directory):
        opened = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """What SQLite says of the file, as one line."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            problem = "is in use by another controller"
            raise InputError(str(path), problem, "end it, or name another file") from error
        raise InputError(str(path), str(error), "check its disk and its permissions") from error
    except sqlite3.DatabaseError as error:
        raise InputError(str(path), f"damaged: {error}", _RESTORE) from error


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
