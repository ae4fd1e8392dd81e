"""The tables of the store's file, and how rows are written to them.

Rows replace what was kept under the same name, so that of several in a batch the last counts.
Entry points: `CREATE`, `write_rows`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

from weft.control.state.rows import (
    AnswerRow,
    ApplicationRow,
    ConnectionRow,
    CountRow,
    LevelsRow,
    ModelRow,
    RevisionRow,
    Row,
)
from weft.control.state.state import REMEMBERED
from weft.control.store.store_codec import answer_json, kind_json, levels_json, tables_json
from weft.switches import Tables

CREATE = """
CREATE TABLE applications(id TEXT PRIMARY KEY, name TEXT NOT NULL, ttl_s REAL NOT NULL)
  WITHOUT ROWID;
CREATE TABLE connections(id TEXT PRIMARY KEY, application TEXT NOT NULL, source TEXT NOT NULL,
  destination TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE kinds(name TEXT PRIMARY KEY, told TEXT NOT NULL, withdrawn INTEGER NOT NULL)
  WITHOUT ROWID;
CREATE TABLE answers(number INTEGER PRIMARY KEY, client TEXT NOT NULL, sequence INTEGER NOT NULL,
  told TEXT NOT NULL, UNIQUE(client, sequence));
CREATE TABLE revisions(revision INTEGER PRIMARY KEY, at_s REAL NOT NULL, cause TEXT NOT NULL,
  ports INTEGER NOT NULL);
CREATE TABLE target(node TEXT NOT NULL, port INTEGER NOT NULL, told TEXT NOT NULL,
  PRIMARY KEY(node, port)) WITHOUT ROWID;
CREATE TABLE undo(revision INTEGER NOT NULL, node TEXT NOT NULL, port INTEGER NOT NULL, told TEXT,
  PRIMARY KEY(revision, node, port)) WITHOUT ROWID;
CREATE TABLE facts(name TEXT PRIMARY KEY, told TEXT NOT NULL) WITHOUT ROWID;
"""


def write_rows(db: sqlite3.Connection, rows: Iterable[Row], at_s: float, keep: int) -> None:
    """Inside a transaction; the last `keep` revisions stay."""
    last: dict[type, dict[object, Row]] = {}
    revisions: list[RevisionRow] = []
    for row in rows:
        if isinstance(row, RevisionRow):
            revisions.append(row)
        else:
            last.setdefault(type(row), {})[_name(row)] = row
    for kind, named in last.items():
        _WRITERS[kind](db, list(named.values()))
    for revision in revisions:
        _write_revision(db, revision, at_s)
    if revisions:
        gone = (revisions[-1].revision - keep,)
        db.execute("DELETE FROM revisions WHERE revision <= ?", gone)
        db.execute("DELETE FROM undo WHERE revision <= ?", gone)


def _write_revision(db: sqlite3.Connection, row: RevisionRow, at_s: float) -> None:
    facts = [("revision", str(row.revision)), ("held", "" if row.held is None else str(row.held))]
    db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts)
    if not row.tables:
        return
    known: dict[Tables, str] = {}  # thousands of ports have a few tables among them
    target = [(name.node, name.port, _text(told, known)) for name, told in row.tables.items()]
    undo = [
        (row.revision, name.node, name.port, None if told is None else _text(told, known))
        for name, told in row.before.items()
    ]
    new = (row.revision, at_s, row.cause, len(target))
    db.execute("INSERT INTO revisions VALUES (?, ?, ?, ?)", new)
    db.executemany("INSERT OR REPLACE INTO target VALUES (?, ?, ?)", target)
    db.executemany("INSERT INTO undo VALUES (?, ?, ?, ?)", undo)


def _text(told: Tables, known: dict[Tables, str]) -> str:
    if told not in known:
        known[told] = tables_json(told)
    return known[told]


def _name(row: Row) -> object:
    match row:
        case ApplicationRow() | ConnectionRow():
            return row.id
        case ModelRow():
            return row.name
        case AnswerRow():
            return row.key
        case _:
            return None


def _write_applications(db: sqlite3.Connection, rows: list[ApplicationRow]) -> None:
    gone = [(row.id,) for row in rows if row.name is None]
    here = [(row.id, row.name, row.ttl_s) for row in rows if row.name is not None]
    db.executemany("DELETE FROM applications WHERE id = ?", gone)
    db.executemany("INSERT OR REPLACE INTO applications VALUES (?, ?, ?)", here)


def _write_connections(db: sqlite3.Connection, rows: list[ConnectionRow]) -> None:
    gone = [(row.id,) for row in rows if row.application is None]
    here = [
        (row.id, row.application, row.source, row.destination)
        for row in rows
        if row.application is not None
    ]
    db.executemany("DELETE FROM connections WHERE id = ?", gone)
    db.executemany("INSERT OR REPLACE INTO connections VALUES (?, ?, ?, ?)", here)


def _write_kinds(db: sqlite3.Connection, rows: list[ModelRow]) -> None:
    gone = [(row.name,) for row in rows if row.kind is None]
    here = [(row.name, kind_json(row.kind), row.withdrawn) for row in rows if row.kind is not None]
    db.executemany("DELETE FROM kinds WHERE name = ?", gone)
    db.executemany("INSERT OR REPLACE INTO kinds VALUES (?, ?, ?)", here)


def _write_answers(db: sqlite3.Connection, rows: list[AnswerRow]) -> None:
    told = [(row.key.client, row.key.sequence, answer_json(row.answer)) for row in rows]
    db.executemany("INSERT OR REPLACE INTO answers(client, sequence, told) VALUES (?, ?, ?)", told)
    older = "DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?"
    db.execute(older, (2 * REMEMBERED,))


def _write_levels(db: sqlite3.Connection, rows: list[LevelsRow]) -> None:
    told = ("levels", levels_json(rows[-1].levels))
    db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", told)


def _write_count(db: sqlite3.Connection, rows: list[CountRow]) -> None:
    told = ("registered", str(rows[-1].registered))
    db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", told)


_WRITERS: dict[type, Callable[[sqlite3.Connection, list[Any]], None]] = {
    ApplicationRow: _write_applications,
    ConnectionRow: _write_connections,
    ModelRow: _write_kinds,
    AnswerRow: _write_answers,
    LevelsRow: _write_levels,
    CountRow: _write_count,
}
