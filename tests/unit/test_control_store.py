"""The store: what was committed is there, a commit that failed is not, damage is refused."""

from __future__ import annotations

import random
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from control_parts import KINDS, after, connect, fabric_event, key, register, running

from weft.control.operators.explain import PortAccount, explain_port
from weft.control.policy.port_policy import LatencyLane
from weft.control.runtime.restore import restore_state
from weft.control.state.events import (
    AnswerRow,
    ApplicationModel,
    ApplicationRow,
    Applied,
    Apply,
    Deregister,
    Disconnect,
    Done,
    ModelChanged,
    NewApplication,
    Proposal,
    Register,
    Registered,
    RevisionRow,
    Rollback,
)
from weft.control.state.policy_settings import Settings
from weft.control.state.state import State
from weft.control.state.step import run_batch
from weft.control.store import store_rows
from weft.control.store.sqlite_store import CannotWrite, Store
from weft.control.store.store_rows import SCHEMA
from weft.errors import InputError
from weft.sensitivity.model import Polynomial
from weft.switches import Lane, PortName, Tables

DATA = Path(__file__).parents[1] / "data/control"
OLD_SETTINGS = Settings(
    levels=6, managed_share=0.9, lane=LatencyLane(share=0.05, budget_bytes=65536)
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.db"


def commit(store: Store, state: State, *events: object) -> State:
    outcome = run_batch(state, events)  # type: ignore[arg-type]
    store.commit(outcome.rows, at_s=1000.0)
    return outcome.state


def start_store(store: Store) -> State:
    outcome = restore_state(store.load(), Settings(), KINDS, 0.0)
    store.commit(outcome.rows, at_s=0.0)
    return outcome.state


def reopen(path: Path, now_s: float = 0.0) -> State:
    store = Store.open(path)
    try:
        return restore_state(store.load(), Settings(), KINDS, now_s).state
    finally:
        store.close()


def test_what_was_committed_is_there_again(path: Path) -> None:
    store = Store.open(path)
    state = start_store(store)
    state = commit(store, state, Register(key=key(1), name="calm", ttl_s=7.0, now_s=3.0))
    state = commit(store, state, connect("calm#1", "h0", "h2", 2), connect("calm#1", "a", "b", 3))
    state = commit(store, state, Disconnect(connection="c/3"))
    store.close()
    restored = reopen(path, now_s=100.0)
    assert dict(restored.connections) == dict(state.connections)
    assert restored.applications["calm#1"].expires_s == 107.0
    assert (restored.last_registration, restored.models, restored.levels) == (
        1,
        state.models,
        state.levels,
    )
    assert restored.answers.get(key(1)) == state.answers.get(key(1))


def test_polynomials_are_stored_used_and_not_mixed_with_other_models(path: Path) -> None:
    curves = {
        "flat": Polynomial(coefficients=(1.2, -0.3, 0.1), floor=0.05),
        "steep": Polynomial(coefficients=(6.0, -9.0, 4.0), floor=0.05),
    }
    table = {name: ApplicationModel(curve=curve, baseline_s=7.0) for name, curve in curves.items()}
    settings = Settings(polynomial_degree=2)
    store = Store.open(path)
    outcome = restore_state(store.load(), settings, table, 0.0)
    store.commit(outcome.rows, 0.0)
    state = commit(store, outcome.state, fabric_event())
    for number, name in enumerate(curves, start=1):
        request = Register(key=key(number, "r"), name=name, ttl_s=10.0, now_s=0.0)
        state = commit(store, state, request)
        state = commit(store, state, connect(f"{name}#{number}", "h0", "h2", number))
    account = explain_port(state, PortName("h0", 1))
    assert isinstance(account, PortAccount)
    flat, steep = account.applications
    assert (flat.model, steep.model) == ("1.2 - 0.3 b + 0.1 b^2", "6 - 9 b + 4 b^2")
    # The definition: no other split of the 255 units has a smaller total slowdown.
    totals = [
        float(curves["flat"].slowdown((255 - n) / 255) + curves["steep"].slowdown(n / 255))
        for n in range(13, 243)
    ]
    assert flat.slowdown + steep.slowdown == pytest.approx(min(totals), abs=1e-12)
    store.close()
    store = Store.open(path)
    stored = store.load()
    assert stored.models == table
    assert restore_state(stored, settings, table, 0.0).state.models == table
    problem = "policy.model: the stored model of flat has another form, and levels are in use"
    for other in (Settings(), Settings(polynomial_degree=1)):
        with pytest.raises(InputError, match=problem):
            restore_state(stored, other, KINDS, 0.0)
    store.close()


def test_a_model_whose_file_cannot_be_read_at_a_restart_stands_as_it_was(path: Path) -> None:
    store = Store.open(path)
    start_store(store)
    stored = store.load()
    store.close()
    table = {name: kind for name, kind in KINDS.items() if name != "calm"}
    restored = restore_state(stored, Settings(), table, 0.0, unreadable={"calm", "stranger"})
    assert (restored.state.models, restored.rows) == (KINDS, ())
    assert set(restore_state(stored, Settings(), table, 0.0).state.models) == set(table)


def test_tables_revisions_and_what_is_held_are_there_again(path: Path) -> None:
    store = Store.open(path)
    state = commit(store, start_store(store), fabric_event())
    state, _ = register_in(store, state, "calm", 1)
    state = commit(store, state, connect("calm#1", "h0", "h2", 1))
    first = dict(state.target)
    state, _ = register_in(store, state, "keen", 2)
    state = commit(store, state, connect("keen#2", "h1", "h2", 2))
    assert store.tables_at(1) == first
    assert store.tables_at(2) == dict(state.target)
    assert store.tables_at(0) == {}
    back = Rollback(key=key(9), revision=0, tables=store.tables_at(0))
    state = commit(store, state, back)
    assert [revision.revision for revision in store.revisions(10)] == [3, 2, 1]
    assert store.revisions(1)[0].cause == "rollback to 0"
    store.close()
    restored = reopen(path)
    assert (restored.revision, restored.held_revision, dict(restored.target)) == (
        3,
        0,
        dict(state.target),
    )


def register_in(store: Store, state: State, name: str, number: int) -> tuple[State, str]:
    event = Register(key=key(number, "r"), name=name, ttl_s=10.0, now_s=0.0)
    return commit(store, state, event), f"{name}#{number}"


def test_revisions_beyond_those_kept_cannot_be_gone_back_to(path: Path) -> None:
    store = Store.open(path, keep=2)
    state = commit(store, start_store(store), fabric_event())
    for number, name in enumerate(("calm", "keen", "middling"), start=1):
        state, id_ = register_in(store, state, name, number)
        state = commit(store, state, connect(id_, "h0", "h2", number))
    assert len(store.tables_at(1)) == len(state.target)
    with pytest.raises(InputError, match=r"revision 0: is not stored \(1 to 3\)"):
        store.tables_at(0)
    with pytest.raises(InputError, match="revision 4: is not stored"):
        store.tables_at(4)
    store.close()


def test_an_application_that_went_takes_its_rows_along(path: Path) -> None:
    store = Store.open(path)
    state = start_store(store)
    state = commit(store, state, Register(key=key(1), name="calm", ttl_s=7.0, now_s=0.0))
    state = commit(store, state, connect("calm#1", "h0", "h2", 2))
    state = commit(store, state, Deregister(key=key(3), application="calm#1"))
    store.close()
    restored = reopen(path)
    assert (len(restored.applications), len(restored.connections), restored.last_registration) == (
        0,
        0,
        1,
    )


def test_models_withdrawn_while_something_ran_are_forgotten_when_nothing_does(path: Path) -> None:
    store = Store.open(path)
    state = start_store(store)
    state = commit(store, state, Register(key=key(1), name="calm", ttl_s=7.0, now_s=0.0))
    commit(store, state, ModelChanged(name="keen", model=None))
    assert store.load().withdrawn == {"keen"}
    store.close()
    assert reopen(path).withdrawn == frozenset()  # the table has it


def test_levels_in_use_outlive_a_restart_and_fewer_are_refused(path: Path) -> None:
    store = Store.open(path)
    commit(store, start_store(store), Register(key=key(1), name="keen", ttl_s=7.0, now_s=0.0))
    table = {"keen": KINDS["keen"]}
    restored = restore_state(store.load(), Settings(), table, 0.0).state
    assert restored.level_of("keen") == 3
    with pytest.raises(InputError, match="levels: 2, and level 3 is in use"):
        restore_state(store.load(), Settings(levels=2), table, 0.0)
    store.close()


def test_a_second_controller_on_the_same_file_is_refused(path: Path) -> None:
    store = Store.open(path)
    try:
        code = (
            "from weft.control.store.sqlite_store import Store; import sys\n"
            "try:\n    Store.open(sys.argv[1])\nexcept Exception as error:\n    print(error)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert "is in use by another controller" in done.stdout
    finally:
        store.close()


def revision(number: int, cause: str = "test") -> RevisionRow:
    target = running("calm", "keen")[0].target
    return RevisionRow(
        revision=number,
        cause=cause,
        tables=dict(target),
        replaced=dict.fromkeys(target),
        held_revision=None,
    )


def test_a_full_disk_is_named_and_the_next_commit_succeeds(path: Path) -> None:
    store = Store.open(path)
    start_store(store)
    before = store.load()
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    rows = [revision(n, "x" * 4000) for n in range(1, 50)]
    with pytest.raises(CannotWrite, match=r"control.db: .*full; make room on its disk"):
        store.commit(rows, at_s=0.0)
    assert store.load() == before
    store._db.execute("PRAGMA max_page_count = 1000000")
    store.commit(rows, at_s=0.0)
    assert store.load().revision == 49
    store.close()


def test_a_commit_that_fails_half_way_is_rolled_back_and_the_next_succeeds(path: Path) -> None:
    """A constraint that fails leaves the transaction open, unlike a full disk."""
    store = Store.open(path)
    start_store(store)
    before = store.load()
    rows = [ApplicationRow(id="calm#1", name="calm"), revision(1), revision(1)]
    with pytest.raises(CannotWrite, match=r"control.db: UNIQUE .*; check its disk"):
        store.commit(rows, at_s=0.0)
    assert store.load() == before
    store.commit(rows[:2], at_s=0.0)
    assert (store.load().revision, len(store.load().applications)) == (1, 1)
    store.close()
    assert Store.open(path).load().revision == 1


def test_commits_are_on_disk_before_they_return(path: Path) -> None:
    store = Store.open(path)
    pragmas = {
        name: store._db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("synchronous", "journal_mode", "locking_mode")
    }
    assert pragmas == {"synchronous": 2, "journal_mode": "wal", "locking_mode": "exclusive"}
    store.close()


def test_readers_of_a_copy_do_not_wait_for_a_commit(path: Path) -> None:
    with closing(Store.open(path)) as store:
        assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_owners_are_stored_and_a_store_without_them_is_upgraded(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.executescript((DATA / "store-1.sql").read_text())
    db.close()
    store = Store.open(path)
    stored = store.load()
    assert {row.owner for row in (*stored.applications, *stored.answers)} == {None}
    row = ApplicationRow(id="calm#9", name="calm", ttl_s=5.0, owner="alice")
    answer = AnswerRow(key=key(9), answer=Done(), owner="alice")
    store.commit([row, answer], at_s=0.0)
    store.close()
    store = Store.open(path)
    stored = store.load()
    assert row in stored.applications
    assert answer in stored.answers
    assert store._db.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    store.close()


def test_a_store_written_before_rows_were_msgspec_is_read(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.executescript((DATA / "store-1.sql").read_text())
    db.close()
    store = Store.open(path)
    stored = store.load()
    assert stored.models == KINDS
    assert (stored.withdrawn, stored.last_registration) == ({"keen"}, 3)
    assert (stored.revision, stored.held_revision) == (3, 1)
    assert [(row.id, row.name, row.ttl_s) for row in stored.applications] == [
        ("calm#1", "calm", 7.0),
        ("keen#2", "keen", 0.0),
    ]
    assert [(row.id, row.source, row.destination) for row in stored.connections] == [
        ("c/3", "h0", "h2"),
        ("c/4", "h1", "nowhere"),
    ]
    ports = frozenset([PortName(*end) for end in (("h1", 1), ("leaf0", 4), ("leaf1", 2))])
    answers = {row.key: row.answer for row in stored.answers}
    assert answers[key(1)] == Registered(id="calm#1", level=1, ttl_s=7.0)
    applied = answers[key(5)]
    assert isinstance(applied, Applied)
    assert applied.ids == ("middling#3",)
    assert applied.ports == ports | {PortName("spine1", 2)}
    assert answers[key(6)] == Done()
    assert stored.levels is not None
    assert stored.levels.assignment == {"calm": 1, "middling": 2, "keen": 3}
    tables = Tables(
        queue_of=tuple(range(8)),
        weights=(10000, 179960, 8, 8, 8, 8, 8, 10000),
        lane=Lane(queue=7, limit=65536),
    )
    assert (stored.target[PortName("h0", 1)], len(stored.target)) == (tables, 8)
    assert store.tables_at(1) == {n: t for n, t in stored.target.items() if n not in applied.ports}
    state = restore_state(stored, OLD_SETTINGS, KINDS, 0.0).state
    again = Proposal(register=(NewApplication(name="middling", connections=(("h1", "h3"),)),))
    repeated = run_batch(state, [Apply(key=key(5), proposal=again, now_s=0.0)])
    assert repeated.answers == (applied,), "the request of the same key is recognized"
    store.close()


def test_foreign_damaged_and_newer_files_are_refused_and_not_touched(path: Path) -> None:
    path.write_bytes(b"something else entirely " * 100)
    with pytest.raises(InputError, match="damaged: file is not a database"):
        Store.open(path)
    assert path.read_bytes().startswith(b"something else")
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine(x)")
    other.close()
    with pytest.raises(InputError, match="is not a store of weft control; name another file"):
        Store.open(path)
    path.unlink()
    Store.open(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        newer.execute("CREATE TABLE epochs(epoch INTEGER)")
    newer.close()
    with pytest.raises(InputError, match=f"has schema {SCHEMA + 1}, and this weft reads {SCHEMA}"):
        Store.open(path)


def test_a_file_with_torn_pages_is_refused(path: Path) -> None:
    store = Store.open(path)
    state = start_store(store)
    for number in range(200):
        state = commit(
            store, state, Register(key=key(number + 1), name="calm", ttl_s=1.0, now_s=0.0)
        )
    store.close()
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 4] = b"\xa5" * 8192
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        reopen(path)


def read_everything(path: Path) -> object:
    with closing(Store.open(path)) as store:
        loaded = store.load()
        tables = [store.tables_at(revision) for revision in range(loaded.revision + 1)]
        return loaded, store.revisions(1000), tables


def test_no_damage_at_a_single_spot_is_served(path: Path) -> None:
    """Refused with the way out, or harmless: it lies where nothing is stored."""
    store = Store.open(path)
    state = commit(store, start_store(store), fabric_event())
    for number in range(1, 8):
        state, id_ = register_in(store, state, sorted(KINDS)[number % 3], number)
        state = commit(store, state, connect(id_, "h0", "h2", number))
    store.close()
    content, good = read_everything(path), path.read_bytes()
    rng = random.Random(18)
    spots = [(offset, bytes([good[offset] ^ 1 << rng.randrange(8)])) for offset in range(100)]
    for length in rng.choices((1, 1, 4, 64), k=200):
        spots.append((rng.randrange(len(good) - length), rng.randbytes(length)))
    refusals = []
    for offset, damage in spots:
        path.write_bytes(good[:offset] + damage + good[offset + len(damage) :])
        try:
            assert read_everything(path) == content, f"{damage!r} at {offset}"
        except InputError as error:
            refusals.append(str(error))
    assert len(refusals) > len(spots) / 4
    pattern = re.compile(r"\S+: damaged: .*; restore a backup .*, or move it away: .*")
    assert [text for text in refusals if pattern.fullmatch(text) is None] == []


@pytest.mark.parametrize("table", store_rows.NAMES)
def test_a_row_that_was_lost_changed_or_made_up_is_noticed(path: Path, table: str) -> None:
    store = Store.open(path)
    state = commit(store, start_store(store), fabric_event())
    state, id_ = register_in(store, state, "calm", 1)
    commit(store, state, connect(id_, "h0", "h2", 1))
    db = store._db
    column = db.execute(f"SELECT * FROM {table}").description[1][0]
    for change in (
        f"UPDATE {table} SET {column} = {column} || '7'",
        f"DELETE FROM {table}",
        f"UPDATE totals SET rows = rows + 1 WHERE name = '{table}'",
    ):
        db.executescript(f"BEGIN; {change};")
        with pytest.raises(InputError, match=f"damaged: .* {table} "):
            store.load()
        db.execute("ROLLBACK")
    store.load()
    store.close()


@pytest.mark.parametrize("stored", ["store-1.sql", "store-4.sql"])
def test_an_upgraded_store_has_the_tables_and_checksums_of_a_new_one(
    path: Path, stored: str
) -> None:
    with sqlite3.connect(path) as db:
        db.executescript((DATA / stored).read_text())
    db.close()
    first = read_everything(path)
    assert read_everything(path) == first
    Store.open(path.with_name("new.db")).close()
    texts = []
    for name in (path, path.with_name("new.db")):
        with closing(sqlite3.connect(name)) as db:
            texts.append(dict(db.execute("SELECT name, sql FROM sqlite_schema")))
    assert texts[0] == texts[1]


def test_an_upgrade_keeps_totals_that_miss_a_row(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.executescript((DATA / "store-4.sql").read_text())
        db.executescript("DROP TRIGGER connections_less; DELETE FROM connections")
    db.close()
    with (
        closing(Store.open(path)) as store,
        pytest.raises(InputError, match="rows of connections are not those that were written"),
    ):
        store.load()


def test_totals_follow_rows_that_come_go_and_are_replaced(path: Path) -> None:
    def row(n: int, name: str | None, ttl_s: float) -> ApplicationRow:
        return ApplicationRow(id=f"calm#{n}", name=name, ttl_s=ttl_s)

    with closing(Store.open(path)) as store:
        store.commit([row(n, "calm", 5.0) for n in range(3)], at_s=0.0)
        store.commit([row(0, "calm", 6.0), row(1, None, 0.0)], at_s=0.0)
        with suppress(InputError), store.transaction() as db:
            db.execute("DELETE FROM applications")
            raise InputError("batch", "is refused", "try another")
        store.commit([row(2, "calm", 7.0)], at_s=0.0)
        assert store.load().applications == (row(0, "calm", 6.0), row(2, "calm", 7.0))


@pytest.mark.parametrize("schema", sorted(store_rows.UPGRADES))
def test_an_upgrade_that_is_interrupted_is_done_again(
    path: Path, schema: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(path) as db:
        db.executescript((DATA / "store-1.sql").read_text())
    db.close()
    with monkeypatch.context() as patch:
        broken = f"{store_rows.UPGRADES[schema]} SELECT * FROM nowhere;"
        patch.setitem(store_rows.UPGRADES, schema, broken)
        with pytest.raises(InputError, match="no such table: nowhere"):
            Store.open(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (schema,)
    with closing(Store.open(path)) as store:
        assert store.load().revision == 3


def test_sizes_are_stored_and_a_store_without_them_is_upgraded(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.executescript((DATA / "store-4.sql").read_text())
    db.close()
    row = ApplicationRow(id="calm#9", name="calm", ttl_s=5.0, size_bytes=2**60)
    with closing(Store.open(path)) as store:
        assert {row.size_bytes for row in store.load().applications} == {0}
        store.commit([row], at_s=0.0)
    with closing(Store.open(path)) as store:
        assert row in store.load().applications


@pytest.mark.parametrize(
    "damage", ["UPDATE applications SET owner = 'eve'", "DELETE FROM applications"]
)
def test_an_upgrade_hides_no_damage_of_rows_that_it_rewrites(path: Path, damage: str) -> None:
    with sqlite3.connect(path) as db:
        db.executescript((DATA / "store-4.sql").read_text())
        db.executescript(f"DROP TRIGGER applications_less; {damage}")
    db.close()
    with (
        closing(Store.open(path)) as store,
        pytest.raises(InputError, match=r"damaged: .* of applications "),
    ):
        store.load()


def test_rows_that_cannot_be_read_are_refused_with_the_file(path: Path) -> None:
    store = Store.open(path)
    start_store(store)
    store._db.execute("UPDATE kinds SET told = 'nonsense'")
    with pytest.raises(InputError, match=r"control.db: damaged: .*; restore a backup"):
        store.load()
    store.close()


def test_only_its_owner_can_read_the_file(path: Path) -> None:
    Store.open(path).close()
    assert path.stat().st_mode & 0o077 == 0


def test_a_restart_without_a_fabric_wants_what_ports_have(path: Path) -> None:
    store = Store.open(path)
    state = commit(store, start_store(store), fabric_event())
    state, id_ = register_in(store, state, "calm", 1)
    state = commit(store, state, connect(id_, "h0", "h2", 1))
    store.close()
    restored = reopen(path)
    assert dict(restored.target) == dict(state.target)
    assert after(restored, fabric_event()).target == state.target
    assert register(restored, "keen", 5)[1] == "keen#2"
