"""Records: what they accept, their lines, their files."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from weft.errors import InputError
from weft.records import (
    Distribution,
    Histogram,
    Provenance,
    Record,
    RecordWriter,
    Run,
    Scalar,
    Series,
    Topology,
    TornLineWarning,
    check_directory,
    check_output,
    describe_run,
    export_parquet,
    flatten,
    from_line,
    read_records,
    statistic,
    to_line,
    to_summary_line,
    write_records,
    write_text,
)
from weft.records.record_text import format_table, is_flow_quantity
from weft.records.schema import run_to_line


def distribution(*samples: int, unit: str = "ps") -> Distribution:
    histogram = Histogram()
    for sample in samples:
        histogram.record(sample)
    return Distribution(unit, histogram)


def record(**changes: object) -> Record:
    fields = {
        "kind": "simulation",
        "name": "incast",
        "settings": {"load": 0.5, "senders": 8, "lane": "a", "trim": False, "cap": None},
        "quantities": {
            "probe.rtt": distribution(1_500_000, 1_600_000, 9_000_000),
            "senders.goodput": Scalar(5.1e9, "b/s"),
            "sw1.p3.queue": Series("ps", "B", (0, 10), (0, 4096)),
        },
        "tables": {"ports": [{"port": "sw1.p3", "sent": 12, "stalled": None}]},
        "topology": Topology((("h1", "host"), ("sw1", "switch")), ((0, 1),)),
        "notes": ["warm-up 1 ms"],
        "provenance": Provenance(weft_version="0.1.0", seed=7, scenario_digest="ab12"),
    }
    return Record(**(fields | changes))


def test_equal_records_give_equal_bytes_whatever_the_order_of_their_keys():
    settings = {"b": 1, "a": 2}
    backwards = dict(reversed(settings.items()))
    assert to_line(record(settings=settings)) == to_line(record(settings=backwards))


def test_a_line_is_ascii_and_free_of_spaces_and_newlines():
    line = to_line(record(name="débit\n\ud800", notes=[]))
    assert line.isascii()
    assert not set(line) & {"\n", " "}


def test_a_record_survives_its_line():
    assert from_line(to_line(record())) == record()


def test_numbers_have_the_bytes_that_python_has_always_written():
    line = to_line(record(settings={"a": 1e-07, "b": 1e16, "c": 0.1, "d": 10**30, "e": 5e-324}))
    settings = '"settings":{"a":1e-07,"b":1e+16,"c":0.1,"d":1' + "0" * 30 + ',"e":5e-324}'
    assert settings in line


ROOT = Path(__file__).parents[2]
STORED = [
    *(ROOT / "src/weft/studies").rglob("recorded/**/*.jsonl"),
    ROOT / "examples/control/day.jsonl",
    ROOT / "tests/data/measure/converged.jsonl",
]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_records_of_older_runs_are_read_and_give_their_own_bytes_again(path: Path):
    lines = path.read_text(encoding="ascii").splitlines()
    headers, records = read_records(path)
    written = {run_to_line(header) for header in headers} | {to_line(r) for r in records}
    assert written == set(lines)
    assert len(headers) + len(records) == len(lines)


def test_numpy_numbers_are_stored_as_plain_ones():
    plain = record(settings={"n": np.int64(3)}, quantities={"x": Scalar(np.float64(1.5), "B")})
    assert '"n":3' in to_line(plain)
    assert from_line(to_line(plain)) == plain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"load": float("nan")}}, "settings: load: nan cannot be stored"),
        ({"settings": {"load": [1]}}, "a list cannot be stored"),
        ({"tables": {"ports": [{"x": float("inf")}]}}, "table ports: x: inf"),
        ({"kind": "dream"}, "kind 'dream' is unknown"),
        ({"schema": 2}, "schema 2"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        record(**changes)


def test_rows_of_tables_are_kept_as_plain_values_that_no_one_else_changes():
    row = {"port": "sw1.p3", "sent": np.int64(12), "share": np.float64(0.5)}
    rows = [row]
    kept = record(tables={"ports": rows}).tables["ports"]
    row["sent"] = 13
    rows.append({})
    assert kept == ({"port": "sw1.p3", "sent": 12, "share": 0.5},)
    assert [type(value) for value in kept[0].values()] == [str, int, float]


@pytest.mark.parametrize(
    ("name", "is_flow"),
    [
        ("senders.h0-h6.goodput", True),
        ("senders.late.h0-h6.goodput", True),
        ("senders.h0-h6.late.goodput", True),
        ("senders.goodput", False),
        ("post-poll.rtt", False),
        ("senders.round-trip", False),
    ],
)
def test_quantities_of_a_flow_have_its_ends_between_part_and_quantity(name, is_flow):
    assert is_flow_quantity(name) is is_flow


def test_series_of_unequal_length_and_links_to_nowhere_are_refused():
    with pytest.raises(InputError, match="2 x values for 1 y"):
        Series("ps", "B", (1, 2), (1,))
    with pytest.raises(InputError, match=r"outside 0\.\.0"):
        Topology((("h1", "host"),), ((0, 1),))
    with pytest.raises(InputError, match="not a number"):
        Scalar("5", "B")


def test_statistics_by_name():
    rtt = distribution(*range(1, 1001))
    assert [statistic(rtt, s) for s in ("p50", "p99.9", "count", "max")] == [500, 999, 1000, 1000]
    assert statistic(Series("ps", "B", (0, 1), (2, 4)), "mean") == 3
    assert statistic(Scalar(3, "B"), "p50") is None
    assert statistic(distribution(), "p50") is None
    assert [statistic(rtt, s) for s in ("p0", "p100")] == [1, 1000]
    assert [statistic(rtt, s) for s in ("p101", "p100.1", "p-1", "p", "q50")] == [None] * 5


def test_a_line_for_other_programs_has_statistics_in_the_unit_of_their_names():
    stored = record(
        quantities={
            "rtt": distribution(*range(1000, 1_000_001, 1000)),  # 1 to 1000 ns
            "size": distribution(64, unit="B"),
            "empty": distribution(),
            "rate": Scalar(2.0, "b/s"),
        }
    )
    line = to_summary_line(stored)
    assert from_line(line) == stored
    shown = json.loads(line)["quantities"]
    # The ceil(q n)-th smallest, within the histogram's 0.1 %; count, mean, min and max are exact.
    exact = {"count": 1000, "mean_ns": 500.5, "min_ns": 1, "max_ns": 1000}
    assert {name: shown["rtt"][name] for name in exact} == exact
    for name, ns in {"p50": 500, "p90": 900, "p99": 990, "p99_9": 999, "p99_99": 1000}.items():
        assert shown["rtt"][f"{name}_ns"] == pytest.approx(ns, rel=1e-3)
    # Ranks 500 -+ 1.96 sqrt(1000 / 4); no sample bounds p99.99 of 1000 from above.
    assert shown["rtt"]["p50_low_ns"] == pytest.approx(469, abs=1.5)
    assert shown["rtt"]["p50_high_ns"] == pytest.approx(532, abs=1.5)
    assert shown["rtt"]["p99_99_high_ns"] is None
    assert shown["size"]["p50_B"] == shown["size"]["max_B"] == 64
    assert set(shown["empty"]) == {"type", "unit", "samples"}
    assert shown["rate"] == {"type": "scalar", "unit": "b/s", "value": 2.0}


def test_write_then_read_gives_header_and_records(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    header = describe_run(["weft", "simulate"], clock_error_ns=1.5)
    write_records(path, [record(), record(name="other")], header=header)
    headers, records = read_records(path)
    assert headers == (header,)
    assert records == (record(), record(name="other"))
    assert headers[0].facts == {"clock_error_ns": 1.5}


def test_a_command_line_that_is_not_utf_8_is_kept_in_the_header(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    header = describe_run(["weft", os.fsdecode(b"\xff.toml")])
    write_records(path, [], header=header)
    assert read_records(path).headers == (header,)


def test_record_lines_do_not_depend_on_the_run(tmp_path: Path):
    paths = [tmp_path / name for name in ("a", "b")]
    for path, argv in zip(paths, (["x"], ["y"]), strict=True):
        write_records(path, [record()], header=describe_run(argv))
    a, b = (path.read_bytes().split(b"\n", 1) for path in paths)
    assert a[0] != b[0]
    assert a[1] == b[1]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    write_records(path, [record()])
    before = path.read_bytes()

    def failing():
        yield record()
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError):
        write_records(path, failing())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_run_appends_its_own_header(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    for name in ("first", "second"):
        with RecordWriter(path) as writer:
            writer.append(record(name=name))
    headers, records = read_records(path)
    assert len(headers) == 2
    assert [r.name for r in records] == ["first", "second"]


def test_a_torn_last_line_is_reported_and_left_out(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    write_records(path, [record(), record(name="torn")])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.warns(TornLineWarning, match=r"run\.jsonl:3: the last line is torn"):
        _, records = read_records(path)
    assert records == (record(),)


def test_appending_after_a_torn_line_keeps_the_file_readable(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    write_records(path, [record(), record(name="torn")])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.warns(TornLineWarning, match=":3:"), RecordWriter(path) as writer:
        writer.append(record(name="after"))
    assert [r.name for r in read_records(path).records] == ["incast", "after"]


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    write_records(path, [record()])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert read_records(path).records == (record(),)
    with RecordWriter(path) as writer:
        writer.append(record(name="after"))
    assert [r.name for r in read_records(path).records] == ["incast", "after"]


def test_two_writers_to_one_file_are_refused(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with RecordWriter(path), pytest.raises(InputError, match="another process is writing"):
        RecordWriter(path)


def test_a_refused_writer_leaves_no_file_open(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    with RecordWriter(path):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(InputError, match="another process is writing to it"):
                RecordWriter(path)
        assert len(os.listdir("/proc/self/fd")) == before


def damage(line: str, **changes: object) -> str:
    return json.dumps(json.loads(line) | changes)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{nonsense", "not a weft record"),
        ("[1]", "a JSON list where an object is expected"),
        (damage(to_line(record()), schema=99), "schema 99 is not known.*reads schema 1"),
        (damage(to_line(record()), schema=0), "schema 0 is not known.*reads schema 1"),
        (to_line(record()).replace('"schema":1,', ""), "schema None is not known"),
        (run_to_line(describe_run()).replace('"schema":1,', ""), "schema None is not known"),
        (damage(to_line(record()), kind="dream"), "kind 'dream' is unknown"),
        ('{"weft":"record","schema":1}', "'topology' is missing"),
        (to_line(record()).replace("1000", "NaN", 1), "not a weft record"),
    ],
    # Named: a line has the time of day, and all workers must list the same tests.
    ids=(
        "no JSON",
        "a list",
        "a later schema",
        "an earlier schema",
        "a record without schema",
        "a run without schema",
        "kind",
        "missing field",
        "NaN",
    ),
)
def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path, bad, message):
    path = tmp_path / "run.jsonl"
    write_records(path, [record()])
    path.write_text(path.read_text() + bad + "\n" + to_line(record()) + "\n")
    with pytest.raises(InputError, match=message) as caught:
        read_records(path)
    assert str(caught.value).startswith(f"{path}:3:")


def test_a_file_without_a_run_header_is_refused(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    path.write_text(to_line(record()) + "\n")
    with pytest.raises(InputError, match="no run header"):
        read_records(path)


def test_files_that_cannot_be_opened_are_input_errors(tmp_path: Path):
    missing = tmp_path / "no" / "run.jsonl"
    for attempt in (read_records, RecordWriter, lambda path: write_records(path, [])):
        with pytest.raises(InputError, match=r"No such file|does not exist"):
            attempt(missing)


def test_flat_rows_carry_settings_statistics_and_units():
    rows = list(flatten([record()]))
    p50 = [r for r in rows if r["quantity"] == "probe.rtt" and r["statistic"] == "p50"]
    assert len(p50) == 1
    assert (p50[0]["settings.load"], p50[0]["unit"]) == (0.5, "ps")
    assert p50[0]["value"] == pytest.approx(1_600_000, rel=1e-3)
    assert {r["unit"] for r in rows if r["statistic"] == "count"} == {""}


def test_parquet_files_hold_the_flat_rows(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "run.parquet"
    records = [record(), record(settings={"load": "high"})]
    export_parquet(path, records)
    table = parquet.read_table(path)
    assert table.num_rows == len(list(flatten(records)))
    assert set(table["settings.load"].to_pylist()) == {"0.5", "high"}


def test_whole_and_broken_numbers_of_a_setting_are_one_column_of_numbers(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    export_parquet(tmp_path / "x", [record(settings={"load": load}) for load in (1, 0.5, None)])
    column = parquet.read_table(tmp_path / "x")["settings.load"]
    assert set(column.to_pylist()) == {1.0, 0.5, None}
    assert str(column.type) == "double"


def test_without_pyarrow_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'weft\[parquet\]'"):
        export_parquet(tmp_path / "x", [record()])


def test_text_tables_align_text_left_and_numbers_right():
    assert format_table(["a", "b"], [["xyz", "1"], ["u", "22"]]).split("\n") == [
        "a     b",
        "---  --",
        "xyz   1",
        "u    22",
    ]


def test_a_run_header_names_the_machine():
    run = describe_run(["weft"])
    assert isinstance(run, Run)
    assert all((run.started, run.host, run.os, run.cpu, run.python, run.weft_version))


# ---- What may be written ----------------------------------------------------------------------


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def test_what_is_no_regular_file_is_refused_and_stays_what_it_was(tmp_path: Path):
    pipe, link = _pipe(tmp_path / "pipe"), tmp_path / "link"
    link.symlink_to(pipe)
    writers = (
        RecordWriter,
        check_output,
        lambda p: write_records(p, []),
        lambda p: write_text(p, ""),
    )
    for write in writers:
        for path, kind in ((pipe, "pipe"), (link, "pipe"), (tmp_path, "a directory")):
            with pytest.raises(InputError, match=f"{kind}.*not a file; name a file"):
                write(path)
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_a_link_is_followed_and_its_target_replaced(tmp_path: Path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: not a directory; name a directory"):
        check_directory(tmp_path / "file")
    with pytest.raises(InputError, match=r"its directory .*/file does not exist"):
        check_output(tmp_path / "file" / "a.html")


def test_a_full_disk_is_told_by_the_files_name(tmp_path: Path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RecordWriter(tmp_path / "a.jsonl") as writer:
        monkeypatch.setattr("weft.records.store.os.write", full)
        with pytest.raises(InputError, match=r"a\.jsonl: No space left"):
            writer.append(record())
    monkeypatch.undo()
    assert read_records(tmp_path / "a.jsonl").records == ()


def test_a_record_that_could_not_be_put_on_disk_leaves_no_part_behind(tmp_path: Path, monkeypatch):
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "a.jsonl"
    with RecordWriter(path) as writer:
        before = path.read_bytes()
        monkeypatch.setattr("weft.records.store.os.fsync", fail)
        with pytest.raises(InputError, match=r"a\.jsonl: Input/output error"):
            writer.append(record())
        monkeypatch.undo()
        assert path.read_bytes() == before
        writer.append(record(name="next"))
    assert [r.name for r in read_records(path).records] == ["next"]


def test_a_new_file_has_the_mode_that_the_mask_allows(tmp_path: Path):
    mask = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "x")
    finally:
        os.umask(mask)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


# ---- A file that is rewritten -----------------------------------------------------------------


def test_a_lone_writer_may_reorder_its_file_and_holds_the_lock_meanwhile(tmp_path: Path):
    path = tmp_path / "a.jsonl"

    def lock_held() -> Iterator[Record]:
        with pytest.raises(InputError, match="another process is writing"):
            RecordWriter(path)
        yield from (record(name="a"), record(name="b"))

    with RecordWriter(path) as writer:
        writer.append(record(name="b"))
        writer.append(record(name="a"))
        writer.rewrite(lock_held())
    assert [r.name for r in read_records(path).records] == ["a", "b"]
    with RecordWriter(path) as later, pytest.raises(InputError, match="earlier runs"):
        later.rewrite([])


def test_settling_orders_the_last_run_and_keeps_every_header(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    for name in ("stale", "good"):
        with RecordWriter(path) as writer:
            writer.append(record(name=name))
    ordered = [record(name="first"), record(name="stale")]
    with RecordWriter(path) as writer:
        for written in reversed(ordered):
            writer.append(written)
        writer.settle(ordered, is_stale=lambda r: r.name == "stale")
    headers, records = read_records(path)
    assert len(headers) == 3
    assert [r.name for r in records] == ["good", "first", "stale"]


def test_a_missing_directory_is_created_with_those_above_it(tmp_path: Path):
    path = tmp_path / "a" / "b"
    assert check_directory(path) == path
    assert path.is_dir()
    assert check_directory(path) == path
