"""The commands of the tests: output, files that resume, and what an interrupt leaves."""

import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from weft.cli import main
from weft.cli.parser import TESTS
from weft.errors import InputError
from weft.measure.peer.server_session import DRAIN_S
from weft.measure.tests import TESTS as CATALOG
from weft.records import Record, from_line, read_records

QUICK = ["--over", "delay", "--delay", "wire=2us", "--warmup", "5", "--count", "50"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def records(path: str) -> tuple[Record, ...]:
    return read_records(path).records


def test_every_test_has_its_command():
    assert set(TESTS) == set(CATALOG)


def test_text_has_percentiles_with_intervals_and_ends_with_status_0(capsys):
    assert main(["latency", *QUICK]) == 0
    text = capsys.readouterr().out
    for head in ("min", "p50", "p99", "p99.99", "max", "95 % interval", "half_rtt"):
        assert head in text


def test_json_is_one_record_per_line(capsys):
    assert main(["latency", *QUICK, "--sweep", "size=64,128", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [from_line(line).settings["size_bytes"] for line in lines] == [64, 128]
    half_rtt = json.loads(lines[0])["quantities"]["half_rtt"]
    assert 2000 <= half_rtt["min_ns"] <= half_rtt["p50_ns"] <= half_rtt["p99_99_ns"]


def test_a_sweep_is_a_table_with_a_line_for_each_point(capsys):
    assert main(["latency", *QUICK, "--sweep", "size=64..512*2"]) == 0
    rows = re.findall(r"^ *(64|128|256|512) B .* µs", capsys.readouterr().out, re.MULTILINE)
    assert rows == ["64", "128", "256", "512"]


def test_a_resumed_sweep_prints_what_the_first_run_printed(capsys):
    quick = ["--over", "delay", "--delay", "wire=2us", "--count", "50"]
    words = ["rperf", *quick, "--sweep", "warmup=6,5", "size=128,64", "-o", "a.jsonl"]
    printed = []
    for _ in range(2):
        assert main(words) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert printed[0].splitlines()[2].split()[:4] == ["warmup", "size", "rtt", "min"]


def test_repetitions_are_records_of_their_own_and_one_line_with_their_range(capsys):
    assert (
        main(["latency", *QUICK, "--sweep", "size=64,128", "--repeat", "3", "-o", "r.jsonl"]) == 0
    )
    stored = records("r.jsonl")
    assert [(r.settings["repetition"], r.settings["size_bytes"]) for r in stored] == [
        (repetition, size) for repetition in (1, 2, 3) for size in (64, 128)
    ]
    text = capsys.readouterr().out
    assert len(re.findall(r"^ *(?:64|128) B +3 .*\(.*–.*\)", text, re.MULTILINE)) == 2


def test_a_file_has_a_header_with_the_clock_and_the_command():
    assert main(["latency", *QUICK, "-o", "a.jsonl"]) == 0
    (header,) = read_records("a.jsonl").headers
    assert header.facts["clock_error_ppm"] >= 0


def test_points_that_are_stored_are_not_measured_again(capsys):
    assert main(["latency", *QUICK, "--sweep", "size=64,128", "-o", "a.jsonl"]) == 0
    before = records("a.jsonl")
    assert main(["latency", *QUICK, "--sweep", "size=64,128,256", "-o", "a.jsonl"]) == 0
    assert "resuming: 2 of 3 points are stored" in capsys.readouterr().err
    after = records("a.jsonl")
    assert [r.settings["size_bytes"] for r in after] == [64, 128, 256]
    assert [r.quantities["cpu.user"] for r in after[:2]] == [
        r.quantities["cpu.user"] for r in before
    ]


def test_another_count_is_another_point():
    assert main(["latency", *QUICK, "-o", "a.jsonl"]) == 0
    assert main(["latency", *QUICK[:-1], "60", "-o", "a.jsonl"]) == 0
    assert [r.settings["count"] for r in records("a.jsonl")] == [50, 60]


def test_steps_of_a_saturation_are_stored_with_their_sum():
    argv = [
        "saturation",
        "--over",
        "delay",
        "--delay",
        "rate=1 Gb/s",
        "--duration",
        "20ms",
        "--steps",
        "2",
        "-o",
        "a.jsonl",
    ]
    assert main(argv) == 0
    names = [r.name for r in records("a.jsonl")]
    assert names == ["saturation.step"] * 3 + ["saturation"]
    assert main(argv) == 0
    assert len(records("a.jsonl")) == 4


class Ending(NamedTuple):
    returncode: int
    stdout: str
    stderr: str
    after_s: float  # the signal


def _prepare_child() -> None:
    """Interruptible, and killed with the tests: a transfer of 1 TiB would outlive them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def interrupted(argv: list[str], number: signal.Signals = signal.SIGINT) -> Ending:
    """The command, with a signal a second after it has begun its file: then it measures."""
    process = subprocess.Popen(
        [sys.executable, "-m", "weft.cli", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_prepare_child,
    )
    try:
        deadline = time.monotonic() + 40
        while not Path("a.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        os.kill(process.pid, number)
        sent_s = time.monotonic()
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    return Ending(process.returncode, out, err, time.monotonic() - sent_s)


@pytest.mark.parametrize(
    ("over", "number"),
    [("delay", signal.SIGINT), ("tcp", signal.SIGTERM), ("delay", signal.SIGHUP)],
)
def test_an_interrupt_keeps_what_was_measured_and_the_point_is_run_again(over, number):
    argv = ["latency", "--over", over, "--warmup", "5", "-o", "a.jsonl"]
    done = interrupted([*argv, "--duration", "60s"], number)
    assert done.returncode == 128 + number, done.stderr
    assert "ended: interrupted" in done.stderr
    (record,) = records("a.jsonl")
    assert record.quantities["half_rtt"].histogram.count > 0
    assert "ended: interrupted" in record.notes
    assert "p99.9" in done.stdout


def test_a_point_that_was_cut_short_is_replaced_when_it_has_run_to_its_end():
    argv = ["latency", "--over", "delay", "--duration", "5s", "--json", "-o", "a.jsonl"]
    assert interrupted(argv).returncode == 130
    assert main(argv) == 0
    (record,) = records("a.jsonl")
    assert not any(note.startswith("ended") for note in record.notes)


def test_an_interrupted_transfer_ends_without_waiting_for_the_planned_messages():
    done = interrupted(["transfer", "--over", "tcp", "--total", "1T", "-o", "a.jsonl"])
    assert done.returncode == 130, done.stderr
    (record,) = records("a.jsonl")
    assert "ended: interrupted" in record.notes
    assert record.quantities["throughput"].value > 0  # as the peer counted it
    assert done.after_s < DRAIN_S  # for which the peer would wait


def measure_on_disk_of(size_bytes: int) -> subprocess.CompletedProcess[str]:
    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    return subprocess.run(
        [sys.executable, "-m", "weft.cli", "latency", *QUICK, "--samples", "1000", "-o", "a.jsonl"],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=bound,
    )


def test_a_full_disk_prints_what_was_measured_and_is_one_line_with_status_2():
    done = measure_on_disk_of(3000)
    assert done.returncode == 2
    assert "p99.9" in done.stdout
    assert done.stderr.startswith("weft: a.jsonl: File too large; check the path")
    assert done.stderr.count("\n") == 1
    assert records("a.jsonl") == ()


def test_a_disk_that_is_full_from_the_start_is_warned_of_and_prints_what_was_measured():
    done = measure_on_disk_of(0)
    assert done.returncode == 2
    assert "p99.9" in done.stdout
    warning, error = done.stderr.splitlines()
    assert "a.jsonl: File too large; the run goes on and stores nothing" in warning
    assert error.startswith("weft: a.jsonl: File too large; check the path")


def test_corrupted_messages_make_the_status_1(monkeypatch, capsys):
    from weft.cli import measure as command

    whole = command.run_point

    def corrupt(*args):
        measured = whole(*args)
        line = json.loads(command.to_summary_line(measured.record))
        line["quantities"]["corrupted"] = {"type": "scalar", "unit": "", "value": 3}
        return type(measured)(records=(from_line(json.dumps(line)),), samples=measured.samples)

    monkeypatch.setattr(command, "run_point", corrupt)
    assert main(["latency", *QUICK]) == 1
    assert "3 corrupted messages" in capsys.readouterr().err


def test_a_point_that_fails_leaves_those_before_it(monkeypatch, capsys):
    from weft.cli import measure as command

    whole = command.run_point

    def fails_at_128(test, peer, point, progress):
        if point.settings.size_bytes == 128:
            raise InputError("rxe0", "the device is gone", "look for it")
        return whole(test, peer, point, progress)

    monkeypatch.setattr(command, "run_point", fails_at_128)
    assert main(["latency", *QUICK, "--sweep", "size=64,128,256", "-o", "a.jsonl"]) == 1
    said = capsys.readouterr()
    assert "rxe0: the device is gone" in said.err
    assert "1 of 3 points done" in said.err
    assert [r.settings["size_bytes"] for r in records("a.jsonl")] == [64]
    assert "half_rtt" in said.out


def test_help_names_every_setting_of_a_test(capsys):
    with pytest.raises(SystemExit):
        main(["bandwidth", "--help"])
    text = capsys.readouterr().out
    for name in ("--depth", "--qps", "--threads", "--post-list", "--over", "--delay", "--sweep"):
        assert name in text


@pytest.mark.parametrize(("test", "default"), [("latency", "off"), ("bandwidth", "on")])
def test_help_shows_a_flag_that_can_be_turned_off_and_the_test_s_default(capsys, test, default):
    with pytest.raises(SystemExit):
        main([test, "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    assert f"--nagle, --no-nagle small messages may wait to leave together (tcp) [{default}]" in (
        help_text
    )


def test_a_report_of_measurements_is_one_page():
    assert main(["latency", *QUICK, "--sweep", "size=64..1K*2", "-o", "a.jsonl"]) == 0
    assert main(["report", "a.jsonl", "-o", "a.html"]) == 0
    assert "half_rtt" in Path("a.html").read_text(encoding="utf-8")
