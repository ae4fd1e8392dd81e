"""`weft measure` on local processes: records of each step, interruption, lost hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.cli import main
from weft.records import Distribution, Record, Scalar, read_records

PLAN = """
name = "three"
warmup = "100 ms"
duration = "DURATION"

[[host]]
name = "receiver"

[[host]]
name = "prober"

[[host]]
name = "sender"

[[traffic]]
name = "probe"
generator = "latency"
pattern = "one-to-one"
from = "prober"
to = "receiver"
wait = "block"

[[traffic]]
name = "senders"
generator = "bandwidth"
pattern = "many-to-one"
from = ["sender"]
to = "receiver"
rate = "20 Mb/s"
wait = "block"

[sweep]
"traffic.senders.count" = [0, 1]
"""


def _plan(folder: Path, duration: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(PLAN.replace("DURATION", duration))
    return path


def _number(record: Record, name: str) -> float:
    quantity = record.quantities[name]
    assert isinstance(quantity, Scalar)
    return quantity.value


def test_every_step_gives_a_record_of_its_flows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.jsonl"
    assert main(["measure", str(_plan(tmp_path, "300 ms")), "-o", str(output)]) == 0
    heads = capsys.readouterr().out.splitlines()[2]
    assert heads.split() == [
        "senders.count",
        "probe.half_rtt",
        "p50",
        "probe.half_rtt",
        "p99",
        "senders.throughput",
    ]
    alone, beside = read_records(output).records
    assert [r.settings["traffic.senders.count"] for r in (alone, beside)] == [0, 1]
    for record in (alone, beside):
        assert record.kind == "measurement"
        probe = record.quantities["probe.half_rtt"]
        assert isinstance(probe, Distribution)
        assert probe.histogram.count > 0
        assert _number(record, "start.spread") >= 0
        assert _number(record, "start.error") > 0
        assert len(record.tables["hosts"]) == 3
    assert "senders.throughput" not in alone.quantities
    assert _number(beside, "senders.throughput") > 0
    rows = {row["traffic"]: row for row in beside.tables["flows"]}
    # A sender that was held up may catch up: the rate bounds what it sends since its start.
    sent_bits = 8 * int(rows["senders"]["messages"] or 0) * 4096
    assert sent_bits <= 20e6 * (0.1 + int(rows["senders"]["elapsed_ns"] or 0) / 1e9 + 1.0)
    assert rows["senders"]["source"] == "sender"
    assert rows["senders"]["target"] == "receiver"


def test_a_bad_plan_is_one_line_and_nothing_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _plan(tmp_path, "0 s")
    output = tmp_path / "out.jsonl"
    assert main(["measure", str(path), "-o", str(output)]) == 2
    told = capsys.readouterr().err
    assert told == f"weft: {path}: duration: '0 s' is too short; use 1000000000 ps or more\n"
    assert not output.exists()


def _started(plan: Path, output: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "weft.cli", "measure", str(plan), "-o", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _wait_for_records(output: Path, number: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if output.exists() and output.read_bytes().count(b'"weft":"record"') >= number:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {number} records within {seconds} s")


def _descendants(pid: int) -> set[int]:
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    parents = {int(p): int(q) for p, q in (line.split() for line in listed.splitlines())}
    found = {pid}
    while more := {p for p, q in parents.items() if q in found} - found:
        found |= more
    return found - {pid}


def _all_gone(pids: set[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


LONG = PLAN.replace('duration = "DURATION"', 'duration = "DURATION"\nrepetitions = 40')


def _long_plan(folder: Path) -> Path:
    path = folder / "plan.toml"
    path.write_text(LONG.replace("DURATION", "400 ms"))
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_loops_and_keeps_what_was_measured(
    tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "out.jsonl"
    with _started(_long_plan(tmp_path), output) as process:
        _wait_for_records(output, 2)
        children = _descendants(process.pid)
        os.killpg(process.pid, number)  # as terminals and batch systems do: to all of them
        _, told = process.communicate(timeout=30)
    assert process.returncode == 128 + number, told
    assert "interrupted with" in told
    assert len(read_records(output).records) >= 2
    assert _all_gone(children, 15)


def test_a_coordinator_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with _started(_long_plan(tmp_path), output) as process:
        _wait_for_records(output, 1)
        children = _descendants(process.pid)
        process.kill()
        process.communicate(timeout=30)
    assert _all_gone(children, 15)


def test_a_host_that_dies_is_named_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with _started(_long_plan(tmp_path), output) as process:
        _wait_for_records(output, 1)
        children = _descendants(process.pid)
        players = [pid for pid in children if b"spawn_main" in _command(pid)]
        assert len(players) == 3
        os.kill(players[-1], signal.SIGKILL)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 2
    assert any(host in told for host in ("receiver: ", "prober: ", "sender: ")), told
    assert len(read_records(output).records) >= 1
    assert _all_gone(children, 15)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
