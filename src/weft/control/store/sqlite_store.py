"""The controller's store: SQLite, write-ahead log, every commit synchronised.

A batch of rows is one transaction: what was committed survives a kill and a power cut; what was not
leaves no trace. `target` has the tables that ports should have, `undo` those that each revision
replaced, so that any revision whose successors' undo rows are kept can be restored. One process at
a time has the file. A damaged, foreign or newer file is refused: rows have checksums, and the text
of the tables is compared with what was created. A write that fails (disk full) raises `CannotWrite`
and changes nothing, and the next may succeed.
Entry points: `Store.open`, `Store.load`, `Store.commit`, `Store.tables_at`, `Store.copy_to`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from weft.control.policy.levels import Levels
from weft.control.state.events import (
    AnswerRow,
    ApplicationModel,
    ApplicationRow,
    Code,
    Connection,
    Row,
)
from weft.control.state.request_key import Key
from weft.control.store.store_rows import (
    COUNT_CHANGES,
    CREATE,
    CURSOR,
    NAMES,
    SCHEMA,
    UPGRADES,
    add_changes,
    check_rows,
    compute_checksum,
    decode_answer,
    decode_levels,
    decode_model,
    decode_tables,
    read_rows,
    write_rows,
)
from weft.errors import InputError
from weft.records.schema import report_malformed
from weft.records.store import check_directory, explain_file_errors, refuse_missing_folder, sync
from weft.switches import PortName, Tables

REVISIONS = 10_000
_COPY_PAGES, _COPY_PAUSE_S = 128, 0.002  # a commit waits for one step of a copy at most
_APPLICATION_ID = 0x77656674  # "weft"
_DISK_ERRORS = ("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_FULL", "SQLITE_PERM", "SQLITE_NOMEM")
_RESTORE = "restore a backup (weft control restore), or move it away: applications register again"


class CannotWrite(InputError):
    """A commit that failed and has changed nothing."""

    code: Code = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """What a store holds."""

    applications: tuple[ApplicationRow, ...] = ()
    connections: tuple[Connection, ...] = ()
    models: dict[str, ApplicationModel] = field(default_factory=dict)
    withdrawn: frozenset[str] = frozenset()
    levels: Levels | None = None
    answers: tuple[AnswerRow, ...] = ()  # the latest last
    target: dict[PortName, Tables] = field(default_factory=dict)
    revision: int = 0
    held_revision: int | None = None
    last_registration: int = 0
    cursors: dict[str, str] = field(default_factory=dict)  # how far other groups are followed


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """When tables changed, why, and at how many ports."""

    revision: int
    at_s: float
    cause: str
    ports: int


class Store:
    """An open store; one thread at a time uses it."""

    connection_class = sqlite3.Connection

    def __init__(self, path: Path, db: sqlite3.Connection, keep: int) -> None:
        self.path, self._db, self.keep = path, db, keep

    @classmethod
    def open(cls, path: str | Path, *, keep: int = REVISIONS) -> Self:
        """Opens the store in a file, or creates it; the last `keep` revisions can be restored."""
        path = Path(path)
        refuse_missing_folder(path)
        check_directory(path.parent)
        with explain_file_errors(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(
            path,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            factory=cls.connection_class,
        )
        try:
            with explain_damage(path):
                _prepare(db, path)
        except InputError:
            db.close()
            raise
        with explain_file_errors(path.parent):
            sync(path.parent)
        return cls(path, db, keep)

    def close(self) -> None:
        self._db.close()

    # ---- Reading ------------------------------------------------------------------------------

    def load(self) -> StoredState:
        """All that is stored."""
        with explain_damage(self.path):
            check_rows(self._db)
            facts = dict(read_rows(self._db, "facts"))
            models = list(read_rows(self._db, "kinds"))
            return StoredState(
                applications=tuple(self._applications()),
                connections=tuple(self._connections()),
                models={name: decode_model(text) for name, text, _ in models},
                withdrawn=frozenset(name for name, _, withdrawn in models if withdrawn),
                levels=decode_levels(facts["levels"]) if "levels" in facts else None,
                answers=tuple(self._answers()),
                target=self._target(),
                revision=int(facts.get("revision", 0)),
                held_revision=int(facts["held"]) if facts.get("held") else None,
                last_registration=int(facts.get("registered", 0)),
                cursors={
                    name.removeprefix(CURSOR): position
                    for name, position in facts.items()
                    if name.startswith(CURSOR)
                },
            )

    def read_fact(self, name: str) -> str | None:
        return dict(read_rows(self._db, "facts")).get(name)

    def _applications(self) -> Iterator[ApplicationRow]:
        for id_, name, ttl_s, owner, job, unit, size in read_rows(self._db, "applications"):
            yield ApplicationRow(
                id=id_,
                name=name,
                ttl_s=ttl_s,
                owner=owner,
                job=job or "",
                unit=unit,
                size_bytes=size or 0,
            )

    def _connections(self) -> Iterator[Connection]:
        for id_, application, source, destination in read_rows(self._db, "connections"):
            yield Connection(
                id=id_, application=application, source=source, destination=destination
            )

    def _answers(self) -> Iterator[AnswerRow]:
        for _, client, sequence, text, owner in read_rows(self._db, "answers", "ORDER BY number"):
            yield AnswerRow(key=Key(client, sequence), answer=decode_answer(text), owner=owner)

    def _target(self) -> dict[PortName, Tables]:
        decode = cache(decode_tables)  # thousands of ports share a few tables
        rows = read_rows(self._db, "target")
        return {PortName(node, port): decode(text) for node, port, text in rows}

    def revisions(self, most: int) -> list[Revision]:
        """The latest ones that can be restored, the latest first."""
        with explain_damage(self.path):
            rows = read_rows(self._db, "revisions", f"ORDER BY revision DESC LIMIT {most:d}")
            return [
                Revision(revision=r, at_s=at_s, cause=cause, ports=ports)
                for r, at_s, cause, ports in rows
            ]

    def tables_at(self, revision: int) -> dict[PortName, Tables]:
        """The target of a revision, without ports that had none by then."""
        with explain_damage(self.path):
            oldest, latest = self._db.execute(
                "SELECT min(revision) - 1, max(revision) FROM revisions"
            ).fetchone()
            later = f"WHERE revision > {revision:d} ORDER BY revision DESC"
            undone = list(read_rows(self._db, "undo", later))
            target = self._target()
        if latest is None and revision == 0:
            return target
        if latest is None or not oldest <= revision <= latest:
            stored = "none yet" if latest is None else f"{oldest} to {latest}"
            raise InputError(
                f"revision {revision}", f"is not stored ({stored})", "name one that is"
            )
        for _, node, port, text in undone:  # the first one after the revision comes last
            if text is None:
                target.pop(PortName(node, port), None)
            else:
                target[PortName(node, port)] = decode_tables(text)
        return target

    # ---- Writing ------------------------------------------------------------------------------

    def commit(self, rows: Iterable[Row], at_s: float) -> None:
        """All of them on disk, or none; `at_s` is the time of day for revisions."""
        with self.transaction() as db:
            write_rows(db, rows, at_s, self.keep)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All changes of the block are on disk, or none."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            add_changes(self._db)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            remedy = "make room on its disk" if _is_full(error) else "check its disk"
            raise CannotWrite(str(self.path), str(error), remedy) from error
        except InputError:
            self._roll_back()
            raise

    def copy_to(self, path: Path) -> None:
        """A copy of what is committed, in any thread: commits go on between its steps."""
        with explain_damage(path), contextlib.closing(sqlite3.connect(path)) as copy:
            self._db.backup(copy, pages=_COPY_PAGES, sleep=_COPY_PAUSE_S)

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # where SQLite has done so itself
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")


# ---- Opening ----------------------------------------------------------------------------------


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA recursive_triggers = ON")  # a row that is replaced counts as deleted
    version = _read_version(db, path)
    (finding,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        raise InputError(str(path), f"damaged: {finding.splitlines()[-1]}", _RESTORE)
    for schema in range(version, SCHEMA):
        _upgrade(db, schema)
    db.executescript(COUNT_CHANGES)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN IMMEDIATE")  # takes the lock, which stays
    db.execute("COMMIT")


def _read_version(db: sqlite3.Connection, path: Path) -> int:
    """The schema of a store, which is created in an empty file."""
    (application_id,), (version,) = (
        db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    texts = dict(db.execute("SELECT name, sql FROM sqlite_schema"))
    if not texts and not application_id:
        _create(db)
        return SCHEMA
    if not set(NAMES) & texts.keys() and application_id != _APPLICATION_ID:
        raise InputError(str(path), "is not a store of weft control", "name another file")
    is_current = texts == _list_texts()
    if application_id != _APPLICATION_ID or is_current != (version == SCHEMA):
        raise InputError(str(path), "damaged: header and tables differ", _RESTORE)
    if not is_current and version not in UPGRADES:
        problem = f"has schema {version}, and this weft reads {SCHEMA}"
        raise InputError(str(path), problem, "use the weft that wrote it")
    return int(version)


@cache
def _list_texts() -> dict[str, str | None]:
    """What a store of this schema consists of."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(CREATE)
        return dict(db.execute("SELECT name, sql FROM sqlite_schema"))


def _create(db: sqlite3.Connection) -> None:
    """In one transaction: after an interruption the file is empty."""
    db.executescript(
        f"BEGIN; {CREATE} PRAGMA application_id = {_APPLICATION_ID}; "
        f"PRAGMA user_version = {SCHEMA}; COMMIT;"
    )


def _upgrade(db: sqlite3.Connection, schema: int) -> None:
    """In one transaction: after an interruption the file is as it was."""
    db.create_function("row_checksum", -1, compute_checksum, deterministic=True)
    version = f"PRAGMA user_version = {schema + 1}"
    db.executescript(f"BEGIN IMMEDIATE; {UPGRADES[schema]} {version}; COMMIT;")


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Reports an error of SQLite, and a row that cannot be right, as one of the file."""
    try:
        with report_malformed(str(path), "damaged", _RESTORE):
            yield
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith("SQLITE_BUSY"):
            problem = "is in use by another controller"
            raise InputError(str(path), problem, "end it, or name another file") from error
        if name.startswith(_DISK_ERRORS):
            raise InputError(str(path), str(error), "check its disk and its permissions") from error
        problem = ascii(" ".join(str(error).split()))[1:-1]  # may quote what was damaged
        raise InputError(str(path), f"damaged: {problem[:200]}", _RESTORE) from error


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
