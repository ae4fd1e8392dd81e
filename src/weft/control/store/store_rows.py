"""The tables of the store's file: how rows are written to them, and the JSON texts in them.

A row replaces what is stored under the same name, so of several in a batch the last counts. Columns
and keys keep the names that the first version of the file gave them (`kinds`, `told`, `asked`).
A damaged text raises a ValueError, or an InputError where a value is not possible.
Every row ends with a checksum of its other values, and `totals` has the sum of a table's checksums:
`COUNT_CHANGES` makes a connection sum what its transaction changes, `add_changes` adds that.
Entry points: `CREATE`, `UPGRADES`, `COUNT_CHANGES`, `read_rows`, `check_rows`, `write_rows`,
`write_facts`, `add_changes`, `decode_tables`, `decode_model`, `decode_levels`, `decode_answer`.
"""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from weft.control.policy.levels import Levels
from weft.control.state.events import (
    Answer,
    AnswerRow,
    ApplicationModel,
    ApplicationRow,
    Applied,
    ConnectionRow,
    CountRow,
    CursorRow,
    Done,
    LevelsRow,
    ModelRow,
    Registered,
    RevisionRow,
    Row,
)
from weft.control.state.state import REMEMBERED
from weft.sensitivity.model import Hinges, Polynomial, Sensitivity
from weft.switches import Lane, Tables

_APPLICATIONS = """
CREATE TABLE applications(id TEXT PRIMARY KEY, name TEXT NOT NULL, ttl_s REAL NOT NULL,
  owner TEXT, job TEXT, unit TEXT, size_bytes INTEGER, checksum INTEGER NOT NULL) WITHOUT ROWID;
"""
_TABLES = f"""{_APPLICATIONS}
CREATE TABLE connections(id TEXT PRIMARY KEY, application TEXT NOT NULL, source TEXT NOT NULL,
  destination TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE kinds(name TEXT PRIMARY KEY, told TEXT NOT NULL, withdrawn INTEGER NOT NULL,
  checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE answers(number INTEGER PRIMARY KEY, client TEXT NOT NULL, sequence INTEGER NOT NULL,
  told TEXT NOT NULL, owner TEXT, checksum INTEGER NOT NULL, UNIQUE(client, sequence));
CREATE TABLE revisions(revision INTEGER PRIMARY KEY, at_s REAL NOT NULL, cause TEXT NOT NULL,
  ports INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE target(node TEXT NOT NULL, port INTEGER NOT NULL, told TEXT NOT NULL,
  checksum INTEGER NOT NULL, PRIMARY KEY(node, port)) WITHOUT ROWID;
CREATE TABLE undo(revision INTEGER NOT NULL, node TEXT NOT NULL, port INTEGER NOT NULL, told TEXT,
  checksum INTEGER NOT NULL, PRIMARY KEY(revision, node, port)) WITHOUT ROWID;
CREATE TABLE facts(name TEXT PRIMARY KEY, told TEXT NOT NULL, checksum INTEGER NOT NULL)
  WITHOUT ROWID;
"""
NAMES = tuple(re.findall(r"CREATE TABLE (\w+)", _TABLES))
SCHEMA = 6
CURSOR = "cursor "  # before the name of a group: a fact


def _declare_totals(schema: int) -> str:
    """How many rows each table has, and the sum of their checksums: a lost row is noticed.

    The schema's number is part of the text, so that a damaged one in the header is noticed.
    """
    return (
        f"CREATE TABLE totals /* schema {schema} */ (name TEXT PRIMARY KEY, "
        "rows INTEGER NOT NULL, checksums INTEGER NOT NULL) WITHOUT ROWID;"
    )


def _count_changes() -> str:
    """What a connection's transaction adds to the totals.

    Triggers that update `totals` themselves would take twice the time of the rows.
    """
    script = [
        "PRAGMA temp_store = MEMORY; CREATE TEMP TABLE changes(number INTEGER PRIMARY KEY, "
        "name TEXT NOT NULL, rows INTEGER NOT NULL, checksums INTEGER NOT NULL);"
    ]
    for number, name in enumerate(NAMES):
        script += [
            f"INSERT INTO changes VALUES ({number}, '{name}', 0, 0);",
            f"CREATE TEMP TRIGGER {name}_more AFTER INSERT ON main.{name} BEGIN UPDATE changes SET "
            f"rows = rows + 1, checksums = checksums + new.checksum WHERE number = {number}; END;",
            f"CREATE TEMP TRIGGER {name}_less AFTER DELETE ON main.{name} BEGIN UPDATE changes SET "
            f"rows = rows - 1, checksums = checksums - old.checksum WHERE number = {number}; END;",
        ]
    return "\n".join(script)


_NO_ROWS = "".join(f"INSERT INTO totals VALUES ('{name}', 0, 0);" for name in NAMES)
CREATE = f"{_TABLES}\n{_declare_totals(SCHEMA)}\n{_NO_ROWS}\n"
COUNT_CHANGES = _count_changes()


def _add_checksums() -> str:
    """Rebuilds every table, so that an upgraded file has the very text of a new one."""
    columns = {
        "applications": "id, name, ttl_s, owner, job, unit",
        "connections": "id, application, source, destination",
        "kinds": "name, told, withdrawn",
        "answers": "number, client, sequence, told, owner",
        "revisions": "revision, at_s, cause, ports",
        "target": "node, port, told",
        "undo": "revision, node, port, told",
        "facts": "name, told",
    }
    renames = "".join(f"ALTER TABLE {name} RENAME TO old_{name};" for name in columns)
    copies = "".join(
        f"INSERT INTO {name} SELECT {listed}, row_checksum({listed}) FROM old_{name};"
        f"DROP TABLE old_{name};"
        f"INSERT INTO totals SELECT '{name}', count(*), coalesce(sum(checksum), 0) FROM {name};"
        for name, listed in columns.items()
    )
    without_sizes = _TABLES.replace(" size_bytes INTEGER,", "")
    return renames + without_sizes + _declare_totals(4) + copies


def _replace_totals(schema: int) -> str:
    return (
        f"ALTER TABLE totals RENAME TO old_totals; {_declare_totals(schema)} "
        "INSERT INTO totals SELECT * FROM old_totals; DROP TABLE old_totals;"
    )


def _remove_triggers() -> str:
    """Totals were counted by triggers of the file."""
    removals = "".join(
        f"DROP TRIGGER IF EXISTS {name}_{end};" for name in NAMES for end in ("more", "less")
    )
    return removals + _replace_totals(5)


def _add_sizes() -> str:
    """Jobs state sizes. What fails its checksum still does, and rows that were lost still are."""
    values = "id, name, ttl_s, owner, job, unit"
    checksum = f"row_checksum({values}, NULL) + checksum - row_checksum({values})"
    new, old = (
        f"(SELECT coalesce(sum(checksum), 0) FROM {name})"
        for name in ("applications", "old_applications")
    )
    return (
        f"ALTER TABLE applications RENAME TO old_applications; {_APPLICATIONS} "
        f"INSERT INTO applications SELECT {values}, NULL, {checksum} FROM old_applications; "
        f"UPDATE totals SET checksums = checksums + {new} - {old} WHERE name = 'applications'; "
        f"DROP TABLE old_applications; {_replace_totals(6)}"
    )


UPGRADES = {  # from each schema to the next; `row_checksum` is `compute_checksum`
    1: "ALTER TABLE applications ADD COLUMN owner TEXT; ALTER TABLE answers ADD COLUMN owner TEXT;",
    2: "ALTER TABLE applications ADD COLUMN job TEXT; "
    "ALTER TABLE applications ADD COLUMN unit TEXT;",
    3: _add_checksums(),
    4: _remove_triggers(),
    5: _add_sizes(),
}


_PACK = msgspec.msgpack.Encoder().encode


def compute_checksum(*values: str | int | float | None) -> int:
    """Of a row's values, as SQLite returns them: notices every change of up to 32 bits in a row."""
    return zlib.crc32(_PACK(values))


# ---- JSON texts -------------------------------------------------------------------------------


class _Tables(Struct):
    queue_of: tuple[int, ...]
    weights: tuple[int, ...]
    lane: tuple[int, int] | None


class _Model(Struct, omit_defaults=True):
    """Either `terms` of a convex model or `coefficients` of a polynomial."""

    floor: float
    baseline_s: float | None
    terms: tuple[tuple[float, float], ...] | None = None
    coefficients: tuple[float, ...] | None = None
    size_bytes: float | None = None


def _encode(value: Struct | Levels) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _encode_tables(tables: Tables) -> str:
    lane = None if tables.lane is None else (tables.lane.queue, tables.lane.limit)
    return _encode(_Tables(tables.queue_of, tables.weights, lane))


def decode_tables(text: str) -> Tables:
    row = msgspec.json.decode(text, type=_Tables)
    lane = None if row.lane is None else Lane(queue=row.lane[0], limit=row.lane[1])
    return Tables(queue_of=row.queue_of, weights=row.weights, lane=lane)


def encode_model(model: ApplicationModel) -> str:
    curve, baseline_s, size = model.curve, model.baseline_s, model.size_bytes
    if isinstance(curve, Hinges):
        return _encode(_Model(curve.floor, baseline_s, terms=curve.terms, size_bytes=size))
    row = _Model(curve.floor, baseline_s, coefficients=curve.coefficients, size_bytes=size)
    return _encode(row)


def decode_model(text: str) -> ApplicationModel:
    row = msgspec.json.decode(text, type=_Model)
    return ApplicationModel(
        curve=_build_curve(row), baseline_s=row.baseline_s, size_bytes=row.size_bytes
    )


def _build_curve(row: _Model) -> Sensitivity:
    if row.coefficients is not None:
        return Polynomial(coefficients=row.coefficients, floor=row.floor)
    if row.terms is None:
        raise ValueError("a model without terms or coefficients")
    return Hinges(terms=row.terms, floor=row.floor)


def encode_levels(levels: Levels) -> str:
    return _encode(levels)


def decode_levels(text: str) -> Levels:
    return msgspec.json.decode(text, type=Levels)


def decode_answer(text: str) -> Answer:
    return msgspec.json.decode(text, type=Registered | Applied | Done)


# ---- Reading ----------------------------------------------------------------------------------


def read_rows(db: sqlite3.Connection, table: str, rest: str = "") -> Iterator[list[Any]]:
    """Rows of a table without their checksums; the first that fails its own is a ValueError."""
    for *values, checksum in db.execute(f"SELECT * FROM {table} {rest}"):
        if compute_checksum(*values) != checksum:
            name = " ".join(map(str, values[:3]))[:40]
            raise ValueError(f"a row of {table} fails its checksum ({name!r})")
        yield values


def check_rows(db: sqlite3.Connection) -> None:
    """A ValueError if a row fails its checksum, or a table lacks rows or has others."""
    totals = {name: tuple(counts) for name, *counts in db.execute("SELECT * FROM totals")}
    for name in NAMES:
        checksums = [compute_checksum(*values) for values in read_rows(db, name)]
        if (len(checksums), sum(checksums)) != totals.get(name):
            raise ValueError(f"the rows of {name} are not those that were written")


# ---- Writing ----------------------------------------------------------------------------------


def write_rows(db: sqlite3.Connection, rows: Iterable[Row], at_s: float, keep: int) -> None:
    """Inside a transaction; the last `keep` revisions stay."""
    latest: dict[type, dict[object, Row]] = {}
    revisions: list[RevisionRow] = []
    for row in rows:
        kind = type(row)
        if isinstance(row, RevisionRow):
            revisions.append(row)
        elif kind in _KEYS:
            latest.setdefault(kind, {})[_KEYS[kind](row)] = row
        else:
            latest[kind] = {None: row}
    for kind, named in latest.items():
        _WRITERS[kind](db, list(named.values()))
    for revision in revisions:
        _write_revision(db, revision, at_s)
    if revisions:
        oldest = (revisions[-1].revision - keep,)
        db.execute("DELETE FROM revisions WHERE revision <= ?", oldest)
        db.execute("DELETE FROM undo WHERE revision <= ?", oldest)


def _write_revision(db: sqlite3.Connection, row: RevisionRow, at_s: float) -> None:
    held = "" if row.held_revision is None else str(row.held_revision)
    write_facts(db, {"revision": str(row.revision), "held": held})
    if not row.tables:
        return
    encode = cache(_encode_tables)  # thousands of ports share a few tables
    target = [(name.node, name.port, encode(tables)) for name, tables in row.tables.items()]
    undo = [
        (row.revision, name.node, name.port, None if tables is None else encode(tables))
        for name, tables in row.replaced.items()
    ]
    revision = (row.revision, float(at_s), row.cause, len(target))
    _insert(db, "revisions", [revision], "INSERT")
    _insert(db, "target", target)
    _insert(db, "undo", undo, "INSERT")


def write_facts(db: sqlite3.Connection, facts: dict[str, str]) -> None:
    _insert(db, "facts", list(facts.items()))


def add_changes(db: sqlite3.Connection) -> None:
    """Brings the totals up to date, at the end of a transaction."""
    changes = db.execute("SELECT rows, checksums, name FROM changes WHERE rows OR checksums")
    db.executemany(
        "UPDATE totals SET rows = rows + ?, checksums = checksums + ? WHERE name = ?",
        changes.fetchall(),
    )
    db.execute("UPDATE changes SET rows = 0, checksums = 0")


def _insert(
    db: sqlite3.Connection, table: str, rows: list[Any], verb: str = "INSERT OR REPLACE"
) -> None:
    """Rows with the types of their columns, as the checksum is of what SQLite returns later."""
    if not rows:
        return
    marks = ", ".join("?" * (len(rows[0]) + 1))
    checked = [(*row, compute_checksum(*row)) for row in rows]
    db.executemany(f"{verb} INTO {table} VALUES ({marks})", checked)


_KEYS: dict[type, Callable[[Any], object]] = {  # of other rows a batch keeps the last
    ApplicationRow: attrgetter("id"),
    ConnectionRow: attrgetter("id"),
    ModelRow: attrgetter("name"),
    AnswerRow: attrgetter("key"),
    CursorRow: attrgetter("group"),
}


def _write_applications(db: sqlite3.Connection, rows: list[ApplicationRow]) -> None:
    ended = [(row.id,) for row in rows if row.name is None]
    present = [
        (row.id, row.name, float(row.ttl_s), row.owner, row.job, row.unit, row.size_bytes)
        for row in rows
        if row.name is not None
    ]
    db.executemany("DELETE FROM applications WHERE id = ?", ended)
    _insert(db, "applications", present)


def _write_connections(db: sqlite3.Connection, rows: list[ConnectionRow]) -> None:
    closed = [(row.id,) for row in rows if row.connection is None]
    opened = [row.connection for row in rows if row.connection is not None]
    present = [(c.id, c.application, c.source, c.destination) for c in opened]
    db.executemany("DELETE FROM connections WHERE id = ?", closed)
    _insert(db, "connections", present)


def _write_models(db: sqlite3.Connection, rows: list[ModelRow]) -> None:
    removed = [(row.name,) for row in rows if row.model is None]
    present = [
        (row.name, encode_model(row.model), int(row.withdrawn))
        for row in rows
        if row.model is not None
    ]
    db.executemany("DELETE FROM kinds WHERE name = ?", removed)
    _insert(db, "kinds", present)


def _write_answers(db: sqlite3.Connection, rows: list[AnswerRow]) -> None:
    (latest,) = db.execute("SELECT coalesce(max(number), 0) FROM answers").fetchone()
    answers = [
        (number, row.key.client, row.key.sequence, _encode(row.answer), row.owner)
        for number, row in enumerate(rows, start=latest + 1)
    ]
    _insert(db, "answers", answers)
    db.execute("DELETE FROM answers WHERE number <= ?", (latest + len(rows) - 2 * REMEMBERED,))


def _write_levels(db: sqlite3.Connection, rows: list[LevelsRow]) -> None:
    write_facts(db, {"levels": _encode(rows[-1].levels)})


def _write_count(db: sqlite3.Connection, rows: list[CountRow]) -> None:
    write_facts(db, {"registered": str(rows[-1].last_registration)})


def _write_cursors(db: sqlite3.Connection, rows: list[CursorRow]) -> None:
    write_facts(db, {f"{CURSOR}{row.group}": row.position for row in rows})


_WRITERS: dict[type, Callable[[sqlite3.Connection, list[Any]], None]] = {
    ApplicationRow: _write_applications,
    ConnectionRow: _write_connections,
    ModelRow: _write_models,
    AnswerRow: _write_answers,
    LevelsRow: _write_levels,
    CountRow: _write_count,
    CursorRow: _write_cursors,
}
