"""A short day of examples/control/day.py: five applications come and go under a controller."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from needs import need_namespaces

from weft.control.operators.timeline import EXPLAINED, NAME
from weft.host.testbed import persistent
from weft.records import Record, Row, read_records
from weft.sensitivity.application import Profile, Run, fit_application
from weft.sensitivity.application_table import AppTable

PROJECT = Path(__file__).parents[2]
BED = "day"
RATE_BPS = 50_000_000
BYTES = 3_000_000
LIMIT_S = 240
SHARES = (0.1, 0.25, 0.5, 1.0)
# From, until, and the part of its time that it waits for the network.
SHIFTS = {
    "rsync": (0, 9, 0.9),
    "second": (2, 12, 0.6),
    "third": (4, 8, 0.1),
    "fourth": (9, 13, 0.3),
    "fifth": (10, 14, 0.95),
}
EXPLAINED_S = (3.5, 7.5, 12.5)
# A server on h2 that ends with whoever fetches: what it sends is marked as the application's.
FETCH = """
import socket, subprocess, sys
on, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
argv = [on, "h2", "exec", sys.executable, __file__.replace("fetch", "serve"), str(port)]
with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
    server.stdout.readline()
    with socket.create_connection(("h2", port)) as connection:
        connection.sendall(size.to_bytes(8, "big"))
        while size and (got := len(connection.recv(1 << 18))):
            size -= got
    server.kill()
assert size == 0
"""
SERVE = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as server:
    print("listening", flush=True)
    connection = server.accept()[0]
    size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    connection.sendall(bytes(size))
    connection.recv(1)
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Record]]:
    need_namespaces()
    if shutil.which("rsync") is None:
        pytest.skip("no rsync: install it")
    folder = tmp_path_factory.mktemp("day")
    write_day(folder)
    try:
        yield lived(folder)
    finally:
        persistent.remove_testbed(BED)
        shutil.rmtree(place(folder), ignore_errors=True)


def place(folder: Path) -> Path:
    """Of the data: where a daemon can read it."""
    return Path("/var/tmp") / f"weft-{os.getpid()}-{folder.name}"


def write_day(folder: Path) -> None:
    """A timetable, commands, and a table of what they are like."""
    (folder / "fetch.py").write_text(FETCH)
    (folder / "serve.py").write_text(SERVE)
    on = PROJECT / "examples/applications/on"
    commands = {
        name: f"{sys.executable} {folder / 'fetch.py'} {on} {6000 + n} {BYTES}"
        for n, name in enumerate(SHIFTS)
    }
    commands["rsync"] = "examples/applications/rsync files-0.15"
    lines = [f"{name} {command}\n" for name, command in commands.items()]
    (folder / "commands").write_text("".join(lines))
    head = (
        f'hosts = 2\nrate = "{RATE_BPS} b/s"\nwatch = "h1"\ncommands = "commands"\n'
        f"sample_s = 0.25\nexplain_s = {list(EXPLAINED_S)}\n"
    )
    shifts = [
        f'[[application]]\nname = "{name}"\nfrom_s = {began}\nuntil_s = {ended}\n'
        for name, (began, ended, _) in SHIFTS.items()
    ]
    (folder / "day.toml").write_text("\n".join([head, *shifts]))
    for name, (_, _, part) in SHIFTS.items():
        runs = [Run(share=share, completion=1 + part * (1 / share - 1)) for share in SHARES]
        AppTable(folder / "apps").save(fit_application(Profile(name=name, runs=tuple(runs))))


def lived(folder: Path) -> list[Record]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"WEFT_APPLICATIONS": str(place(folder)), "PATH": path}
    data = [PROJECT / "examples/applications/data", "0.15", "files"]
    subprocess.run(data, env=environment, check=True, capture_output=True)
    day = [sys.executable, "examples/control/day.py", str(folder / "day.toml")]
    output = ["-o", str(folder / "day.jsonl"), "--table", str(folder / "apps")]
    done = subprocess.run(
        [*day, *output],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    report = ["report", str(folder / "day.jsonl"), "-o", str(folder / "day.html")]
    subprocess.run([sys.executable, "-m", "weft.cli", *report], check=True, timeout=LIMIT_S)
    assert "Applications over time at switch:1" in (folder / "day.html").read_text()
    return list(read_records(folder / "day.jsonl").records)


def by_application(records: list[Record]) -> dict[str, Record]:
    return {str(r.settings["application"]): r for r in records if r.name == NAME}


def moments(records: list[Record]) -> list[Mapping[str, Row]]:
    """The samples of all applications at each moment."""
    own = by_application(records)
    columns = (record.tables["samples"] for record in own.values())
    return [dict(zip(own, rows, strict=True)) for rows in zip(*columns, strict=True)]


def weights_at(moment: Mapping[str, Row]) -> dict[str, float]:
    return {name: float(row["weight"]) for name, row in moment.items() if row["weight"]}


def test_every_application_was_promised_a_weight_and_has_run(records: list[Record]) -> None:
    own = by_application(records)
    assert list(own) == list(SHIFTS)
    for record in own.values():
        assert record.tables["runs"]
        assert any(row["weight"] for row in record.tables["samples"])
        assert max(float(row["share"] or 0) for row in record.tables["samples"]) > 0.1


def test_weights_follow_who_is_there_and_who_waits_more_for_the_network(
    records: list[Record],
) -> None:
    seen = set()
    for moment in moments(records):
        found = weights_at(moment)
        seen.add(len(found))
        assert sum(found.values()) < 1.001
        keenest_last = sorted(found, key=lambda name: SHIFTS[name][2])
        assert sorted(found.values()) == [found[name] for name in keenest_last]
    assert {1, 2, 3} <= seen


def test_no_more_passes_than_the_link_takes(records: list[Record]) -> None:
    shares = [
        sum(float(row["share"] or 0) for row in moment.values()) for moment in moments(records)
    ]
    # Counters are read a moment before or after the clock: what one sample has too much, the next
    # has too little. A burst may pass at once.
    assert all(first + second < 2 * 1.1 for first, second in pairwise(shares)), shares


def test_each_explanation_names_who_was_there(records: list[Record]) -> None:
    (explained,) = [record for record in records if record.name == EXPLAINED]
    rows = explained.tables["explanations"]
    assert len(rows) == len(EXPLAINED_S)
    for row, expected in zip(rows, ({"rsync", "second"}, {"third"}, {"fifth"}), strict=True):
        assert all(f"{name}#" in str(row["text"]) for name in expected)


def test_nothing_is_left_of_it(records: list[Record]) -> None:
    assert records
    assert BED not in persistent.list_testbeds()
