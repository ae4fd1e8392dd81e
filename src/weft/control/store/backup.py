"""Copies of a store: checked before they count, and put back with what they replace kept aside.

A copy is opened as a controller opens its store, so that every row and table is checked, and one of
an older schema is upgraded. A restored file appears at once: after an interruption the store is the
old one or the new one. Entry points: `check_backup`, `receive_backup`, `restore_backup`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path
from typing import IO

from weft.control.store.sqlite_store import Store, StoredState, explain_damage
from weft.errors import InputError
from weft.records.store import check_directory, explain_file_errors, refuse_missing_folder, sync

_NAME_A_BACKUP = "name a file that `weft control backup` made"


def check_backup(path: Path) -> StoredState:
    """What a copy holds; a damaged or foreign one is an InputError."""
    if not path.is_file():
        raise InputError(str(path), "is no file", _NAME_A_BACKUP)
    if path.stat().st_size == 0:
        raise InputError(str(path), "is empty", _NAME_A_BACKUP)
    store = Store.open(path)
    try:
        return store.load()
    finally:
        store.close()


def receive_backup(chunks: Iterable[bytes], path: Path, *, replace: bool) -> StoredState:
    """Writes a copy that arrives in chunks; under its name once it is whole and checked."""
    refuse_missing_folder(path)
    check_directory(path.parent)
    if path.is_dir() or (path.exists() and not replace):
        remedy = "name another file" if path.is_dir() else "name another file, or add --replace"
        raise InputError(str(path), "exists", remedy)
    partial = path.with_name(f"{path.name}.partial")
    try:
        with explain_file_errors(partial), _create_private(partial) as file:
            for chunk in chunks:
                file.write(chunk)
        stored = check_backup(partial)
        _put_in_place(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return stored


def restore_backup(backup: Path, path: Path) -> tuple[StoredState, Path | None]:
    """Puts a copy where a store is to be: what it holds, and where the old store lies now."""
    check_directory(path.parent)
    if not backup.is_file():
        raise InputError(str(backup), "is no file", _NAME_A_BACKUP)
    if path.exists() and backup.samefile(path):
        raise InputError(str(backup), "is the store itself", "name a copy of it")
    copy = path.with_name(f"{path.name}.restoring")
    try:
        with (
            explain_file_errors(backup),
            backup.open("rb") as source,
            explain_file_errors(copy),
            _create_private(copy) as file,
        ):
            shutil.copyfileobj(source, file)
        stored = _check_copy(copy, backup)
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as old:
            _take_lock(old, path)
            aside = _move_aside(path)
            _put_in_place(copy, path)
    finally:
        copy.unlink(missing_ok=True)
    return stored, aside


def _check_copy(copy: Path, backup: Path) -> StoredState:
    """Errors name the file that the user knows."""
    try:
        return check_backup(copy)
    except InputError as error:
        raise InputError(str(backup), error.problem, _NAME_A_BACKUP) from error


def _create_private(path: Path) -> IO[bytes]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb")


def _take_lock(db: sqlite3.Connection, path: Path) -> None:
    """Refuses a store that a controller has open; one that is damaged has no lock to take."""
    try:
        db.execute("BEGIN EXCLUSIVE")
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            with explain_damage(path):
                raise


def _move_aside(path: Path) -> Path | None:
    """The old store with its log under another name; its own name stays until it is replaced."""
    if path.stat().st_size == 0:
        return None
    first = f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}"
    names = chain([first], (f"{first}-{number}" for number in count(2)))
    aside = next(name for name in map(path.with_name, names) if not name.exists())
    with explain_file_errors(aside):
        os.link(path, aside)
        for suffix in ("-wal", "-shm"):  # a log beside another store would be applied to it
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


def _put_in_place(copy: Path, path: Path) -> None:
    with explain_file_errors(path):
        sync(copy)
        copy.replace(path)
        sync(path.parent)
