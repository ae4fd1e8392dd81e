"""Backups: taken while commits go on, checked before they count; a restore keeps the old store."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="gRPC: pip install 'weft[control]'")

from weft.cli import main
from weft.control.state.events import Connection, ConnectionRow, CountRow
from weft.control.store.backup import check_backup, receive_backup, restore_backup
from weft.control.store.sqlite_store import Store
from weft.errors import InputError

DATA = Path(__file__).parents[1] / "data/control"


def connection(number: int) -> ConnectionRow:
    made = Connection(id=f"c/{number}", application="calm#1", source="h0", destination="h1")
    return ConnectionRow(id=made.id, connection=made)


def fill(path: Path, count: int) -> Store:
    store = Store.open(path)
    store.commit([connection(number) for number in range(count)], at_s=0.0)
    return store


def test_a_copy_taken_beside_commits_is_one_of_the_states_that_were_committed(
    tmp_path: Path,
) -> None:
    store = fill(tmp_path / "control.db", 3000)
    copied = threading.Event()
    copies: list[Path] = []

    def copy() -> None:
        while len(copies) < 3 or (number < 3003 and len(copies) < 100):
            copies.append(tmp_path / f"copy-{len(copies)}")
            store.copy_to(copies[-1])
        copied.set()

    number = 3000
    thread = threading.Thread(target=copy)
    thread.start()
    while not copied.is_set():  # each commit says in two tables how many there are
        rows = [connection(number), CountRow(last_registration=number + 1)]
        store.commit(rows, at_s=0.0)
        number += 1
    thread.join()
    store.close()
    assert number >= 3003, "commits went on"
    for path in copies:
        stored = check_backup(path)
        last = stored.last_registration or 3000
        assert {c.id for c in stored.connections} == {f"c/{n}" for n in range(last)}


def test_a_backup_counts_once_it_is_whole_and_replaces_only_when_asked(tmp_path: Path) -> None:
    fill(tmp_path / "control.db", 5).close()
    data, path = (tmp_path / "control.db").read_bytes(), tmp_path / "backup"
    parts = [data[:4096], data[4096:]]
    assert len(receive_backup(parts, path, replace=False).connections) == 5
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="backup: exists; name another file, or add --replace"):
        receive_backup(parts, path, replace=False)
    before = path.read_bytes()
    damaged = data.replace(b"calm#1", b"calm#2", 1)
    for bad in ([data[:-4096]], [damaged], [b""], [b"nothing " * 999]):
        with pytest.raises(InputError, match=r"backup.partial: (damaged|is empty)"):
            receive_backup(bad, path, replace=True)
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["backup", "control.db"]
    receive_backup(parts, path, replace=True)


def test_a_restored_store_is_the_backup_and_the_old_one_is_kept(tmp_path: Path) -> None:
    backup, path = tmp_path / "backup", tmp_path / "control.db"
    fill(backup, 7).close()
    store = fill(path, 2)
    with pytest.raises(InputError, match="is in use by another controller; end it"):
        restore_backup(backup, path)
    store.close()
    stored, aside = restore_backup(backup, path)
    assert aside is not None
    assert len(stored.connections) == len(check_backup(path).connections) == 7
    assert len(check_backup(aside).connections) == 2
    path.write_bytes(b"damaged " * 1000)
    assert len(restore_backup(backup, path)[0].connections) == 7
    assert check_backup(path) == check_backup(backup)
    with pytest.raises(InputError, match="is the store itself; name a copy"):
        restore_backup(path, path)
    path.unlink()
    assert restore_backup(backup, path)[1] is None
    assert check_backup(path) == check_backup(backup)


def test_the_log_of_the_old_store_is_not_applied_to_the_restored_one(tmp_path: Path) -> None:
    """A controller that was killed leaves a write-ahead log beside its store."""
    backup, path = tmp_path / "backup", tmp_path / "control.db"
    fill(backup, 7).close()
    killed = fill(tmp_path / "running.db", 90)
    for suffix in ("", "-wal"):
        (tmp_path / f"control.db{suffix}").write_bytes(
            (tmp_path / f"running.db{suffix}").read_bytes()
        )
    killed.close()
    _, aside = restore_backup(backup, path)
    assert aside is not None
    assert len(check_backup(path).connections) == 7
    assert len(check_backup(aside).connections) == 90


def test_a_backup_of_the_first_schema_is_restored_as_today_s(tmp_path: Path) -> None:
    backup, path = tmp_path / "backup", tmp_path / "control.db"
    with closing(sqlite3.connect(backup)) as db:
        db.executescript((DATA / "store-1.sql").read_text())
    before = backup.read_bytes()
    assert restore_backup(backup, path)[0].revision == 3
    assert backup.read_bytes() == before
    assert check_backup(path).revision == 3


def write_file(folder: Path) -> Path:
    file = folder / "control.toml"
    file.write_text(
        'store = "control.db"\n[switches]\ndriver = "simulated"\nfabric = "fabric.toml"\n'
    )
    return file


def test_the_command_says_what_was_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, backup = write_file(tmp_path), tmp_path / "backup"
    fill(backup, 7).close()
    assert main(["control", "restore", str(file), str(backup)]) == 0
    expected = "control.db: 0 applications, 7 connections, 0 models, 0 ports, revision 0\n"
    assert capsys.readouterr().out.endswith(expected)
    assert main(["control", "restore", str(file), str(backup), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["connections"], Path(answer["old"]).is_file()) == (7, True)


@pytest.mark.parametrize("content", [None, b"", b"text", b"SQLite format 3\0 and then nothing"])
def test_what_is_no_backup_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    file, backup = write_file(tmp_path), tmp_path / "backup"
    if content is not None:
        backup.write_bytes(content)
    assert main(["control", "restore", str(file), str(backup)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"weft: {backup}: ")
    assert line.endswith("; name a file that `weft control backup` made")
    assert sorted({*tmp_path.iterdir()} - {file, backup}) == []


def test_a_folder_that_is_missing_is_refused_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "typo" / "store.db"
    for write in (lambda: Store.open(path), lambda: receive_backup([b"x"], path, replace=False)):
        with pytest.raises(InputError, match=r"its folder .*typo does not exist; create it"):
            write()
    assert not path.parent.exists()
