"""The command line: one line for what a user can mend, and the exit status."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.cli import ProgressBar, _build_warning_printer, main
from weft.records import read_records, write_records

SCENARIO = """
name = "small"
system = "omnet"
duration = "100 us"
[fabric]
topology = "one_switch"
hosts = 3
[[traffic]]
name = "senders"
kind = "bandwidth"
from = "h0..h1"
to = "h2"
size = "4 KiB"
window = 4
"""
WINDOWS = "traffic.senders.window=1,2,3"


@pytest.fixture
def scenario(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SCENARIO)
    return "small.toml"


def error_line(capsys, *argv: str) -> str:
    """The one line that a command fails with."""
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("weft: ")
    return line


# ---- Outputs are checked before the work ------------------------------------------------------


@pytest.mark.usefixtures("scenario")
@pytest.mark.parametrize(
    "command",
    [
        ("simulate", "small.toml", "-o"),
        ("study", "run", "rperf-fig11", "-o"),
        ("tour", "-o"),
        ("report", "a.jsonl", "-o"),
        ("report", "a.jsonl", "--parquet"),
        ("fabric", "small.toml", "--to", "toml", "-o"),
    ],
)
def test_an_output_that_is_no_file_is_refused_before_the_work(monkeypatch, capsys, command):
    def work(*_: object, **__: object) -> None:
        pytest.fail("the work began")

    for module in ("cli.simulate.sweep", "cli.study.run_study", "cli.study.run_tour"):
        monkeypatch.setattr(f"weft.{module}", work)
    os.mkfifo("pipe")
    Path("made").mkdir()
    assert "pipe: a device, pipe or socket, not a file" in error_line(capsys, *command, "pipe")
    assert "made: a directory, not a file" in error_line(capsys, *command, "made")
    assert "does not exist; create it" in error_line(capsys, *command, "missing/x")
    assert Path("pipe").is_fifo()


def test_a_report_does_not_replace_its_input(scenario, capsys):
    main(["simulate", scenario, "-o", "a.jsonl"])
    capsys.readouterr()
    Path("link").symlink_to("a.jsonl")
    before = Path("a.jsonl").read_bytes()
    for output in ("a.jsonl", "link"):
        assert "also an input" in error_line(capsys, "report", "a.jsonl", "-o", output)
    assert "also another output" in error_line(
        capsys, "report", "a.jsonl", "-o", "x", "--parquet", "x"
    )
    assert Path("a.jsonl").read_bytes() == before


# ---- Resuming ---------------------------------------------------------------------------------


def test_ranges_of_hosts_can_be_swept(scenario):
    swept = "traffic.senders.from=h0,h0..h1"
    assert main(["simulate", scenario, "--sweep", swept, "-j", "1", "-o", "a.jsonl"]) == 0
    settings = [record.settings for record in read_records("a.jsonl").records]
    assert settings == [{"traffic.senders.from": hosts} for hosts in ("h0", "h0..h1")]


def test_records_of_one_run_are_in_the_order_of_points(scenario):
    Path("a.jsonl").touch()  # an empty file holds no records
    assert main(["simulate", scenario, "--sweep", WINDOWS, "-j", "2", "-o", "a.jsonl"]) == 0
    headers, records = read_records("a.jsonl")
    assert len(headers) == 1
    assert [r.settings["traffic.senders.window"] for r in records] == [1, 2, 3]


def test_resuming_keeps_the_headers_of_earlier_runs_and_does_not_run_again(scenario, capsys):
    for windows in ("traffic.senders.window=2", WINDOWS, WINDOWS):
        assert main(["simulate", scenario, "--sweep", windows, "-j", "1", "-o", "a.jsonl"]) == 0
    assert "3 of 3 points are stored" in capsys.readouterr().err
    headers, records = read_records("a.jsonl")
    assert len(headers) == 2
    assert [r.settings["traffic.senders.window"] for r in records] == [2, 1, 3]


def test_a_point_that_was_cut_short_is_replaced_when_it_has_run(scenario):
    assert main(["simulate", scenario, "-o", "a.jsonl"]) == 0
    lines = Path("a.jsonl").read_text().replace("ended: time up", "ended: interrupted")
    Path("a.jsonl").write_text(lines)
    assert main(["simulate", scenario, "-o", "a.jsonl"]) == 0
    headers, (record,) = read_records("a.jsonl")
    assert len(headers) == 2
    assert record.notes[0].startswith("ended: time up")


def test_records_are_the_same_whatever_the_number_of_processes(scenario, capsys):
    printed = []
    for jobs in ("1", "2"):
        assert main(["simulate", scenario, "--sweep", WINDOWS, "-j", jobs, "--flows"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_a_comparison_without_a_common_point_names_the_setting_and_is_no_success(scenario, capsys):
    for file, seed in (("a.jsonl", 1), ("b.jsonl", 2)):
        assert main(["simulate", scenario, "--set", f"seed={seed}", "-o", file]) == 0
    assert main(["simulate", scenario, "--sweep", "seed=2,3", "-o", "two.jsonl"]) == 0
    capsys.readouterr()
    line = error_line(capsys, "compare", "a.jsonl", "b.jsonl")
    assert "no point in common: A and B differ in seed (1 in A, 2 in B); add --ignore seed" in line
    assert main(["compare", "a.jsonl", "b.jsonl", "--ignore", "seed"]) == 0
    assert "goodput" in capsys.readouterr().out
    assert "--ignore sed: no record has that setting; use: seed" in error_line(
        capsys, "compare", "a.jsonl", "b.jsonl", "--ignore", "sed"
    )
    assert "two records have this name and settings" in error_line(
        capsys, "compare", "a.jsonl", "two.jsonl", "--ignore", "seed"
    )


# ---- Options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "seed=1", "--set", "seed=2"), "--set seed: is given twice"),
        (("--sweep", "seed=1,2", "--sweep", "seed=3"), "--sweep seed: is given twice"),
        (("--set", "seed=1", "--sweep", "seed=2,3"), "--set seed: is also given by --sweep"),
        (("--sweep", "seed=2,3,2"), "--sweep seed: 2 is given twice"),
    ],
)
def test_a_key_or_value_given_twice_is_refused(scenario, capsys, options, message):
    assert message in error_line(capsys, "simulate", scenario, *options)


def test_parameters_as_objects(capsys):
    assert main(["simulate", "--parameters", "sx6012", "--json"]) == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"section", "key", "value", "meaning", "source"} <= objects[0].keys()


# ---- Comparing --------------------------------------------------------------------------------


def test_what_b_lacks_fails_a_check_and_is_named(scenario, capsys):
    main(["simulate", scenario, "--sweep", WINDOWS, "-j", "1", "-o", "a.jsonl"])
    write_records("b.jsonl", read_records("a.jsonl").records[:2])
    capsys.readouterr()
    check = ("--fail-if", "*.goodput:value < -5%")
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 0
    assert main(["compare", "b.jsonl", "a.jsonl", *check]) == 0
    capsys.readouterr()
    assert main(["compare", "a.jsonl", "b.jsonl", "--json", *check]) == 1
    out, err = capsys.readouterr()
    assert err == "weft: small (traffic.senders.window=3): only in A\n"
    last = json.loads(out.splitlines()[-1])
    assert last == {"record": "small (traffic.senders.window=3)", "only_in": "A"}


# ---- The outside world ------------------------------------------------------------------------


def weft(*argv: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """weft in a process of its own; `before` runs first in its shell."""
    shell = f'{before} exec "$0" -m weft.cli "$@"'
    command = ["bash", "-c", shell, sys.executable, *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.usefixtures("scenario")
def test_a_full_standard_output_is_one_line_and_status_2():
    done = weft("simulate", "--parameters", "sx6012", before="ulimit -f 1; exec >out;")
    assert done.returncode == 2
    assert done.stderr == "weft: standard output: File too large; make room\n"


def test_a_closed_standard_output_is_no_error():
    closed = weft("simulate", "--parameters", "sx6012", before="exec >&-;")
    assert (closed.returncode, closed.stderr) == (0, "")


def test_no_file_gets_the_number_of_a_standard_one_that_was_closed():
    opening = (
        "import contextlib, os, sys; from weft.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['--version'])\n"
        "sys.exit(os.open(os.devnull, os.O_RDONLY))"
    )
    shell = 'exec <&- >&- 2>&-; exec "$0" -c "$1"'
    assert subprocess.run(["bash", "-c", shell, sys.executable, opening]).returncode > 2


def test_a_torn_line_is_one_line_on_stderr(scenario):
    main(["simulate", scenario, "-o", "a.jsonl"])
    with Path("a.jsonl").open("a") as file:
        file.write('{"weft": "rec')
    done = weft("simulate", scenario, "--set", "seed=2", "-o", "a.jsonl")
    (line,) = done.stderr.splitlines()
    assert line.startswith("weft: ")
    assert "a.jsonl:3: the last line is torn" in line


def test_an_interrupt_while_a_command_is_loaded_is_one_line_and_status_1(monkeypatch, capsys):
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.import_module", interrupted)
    assert main(["tour"]) == 130
    assert capsys.readouterr().err == "weft: interrupted\n"


def test_an_interrupt_that_python_drops_in_a_finalizer_is_raised_again(monkeypatch, capsys):
    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def load(_: str) -> None:
        Interrupted()  # its finalizer runs here
        time.sleep(30)

    monkeypatch.setattr("weft.cli.import_module", load)
    started = time.monotonic()
    assert main(["tour"]) == 130
    assert time.monotonic() - started < 20
    assert capsys.readouterr().err == "weft: interrupted\n"


def test_a_killed_worker_is_one_line_and_status_2(scenario, monkeypatch, capsys):
    monkeypatch.setattr("weft.fleet.fleet.end_only_with_parent", _die)
    line = error_line(capsys, "simulate", scenario, "--sweep", WINDOWS, "-j", "2")
    assert "small.toml: a process was killed" in line


def _die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ---- Points of a sweep ------------------------------------------------------------------------


def test_a_sweep_prints_one_table_with_a_row_for_each_point(scenario, capsys):
    assert main(["simulate", scenario, "--set", "seed=5", "--sweep", WINDOWS, "-j", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = (number for number, line in enumerate(lines) if "window" in line)
    rows = lines[head + 1 :][: lines[head + 1 :].index("")]
    assert [row.split()[0] for row in rows if row.split()[0].isdigit()] == ["1", "2", "3"]


def test_a_key_is_set_or_swept_and_not_both(scenario, capsys):
    both = ("--set", "seed=2", "--sweep", "seed=1,2")
    assert "--set seed: is also given by --sweep" in error_line(capsys, "simulate", scenario, *both)
    levels = ("--level", "flow", "--set", "level=packet")
    assert "--level: is also given by --set" in error_line(capsys, "simulate", scenario, *levels)


def test_a_report_names_the_run_of_every_file(scenario, capsys, monkeypatch):
    for seed in ("1", "2"):
        monkeypatch.setattr("sys.argv", ["weft", "simulate", f"seed={seed}"])
        main(["simulate", scenario, "--set", f"seed={seed}", "-o", f"{seed}.jsonl"])
    capsys.readouterr()
    assert main(["report", "1.jsonl", "2.jsonl", "-o", "report.html"]) == 0
    assert capsys.readouterr().out == "report.html: 2 records\n"
    page = Path("report.html").read_text("utf-8")
    assert "weft simulate seed=1" in page
    assert "weft simulate seed=2" in page


@pytest.mark.usefixtures("scenario")
def test_a_report_of_no_records_is_refused(capsys):
    write_records("none.jsonl", [])
    line = error_line(capsys, "report", "none.jsonl", "-o", "report.html")
    assert "none.jsonl: holds no records" in line
    assert not Path("report.html").exists()


# ---- What is said beside the output -----------------------------------------------------------


def test_a_warning_is_printed_once(capsys):
    show = _build_warning_printer()
    for text in ("no huge pages", "slow clock", "no huge pages"):
        show(text)
    assert capsys.readouterr().err == "weft: no huge pages\nweft: slow clock\n"


@pytest.mark.parametrize(("fraction", "shown"), [(1.5, "100%"), (0.5, " 50%"), (-1, "  0%")])
def test_a_progress_bar_stays_between_none_and_all(monkeypatch, capsys, fraction, shown):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = ProgressBar("weft simulate")
    bar.update(fraction)
    assert f"] {shown}" in capsys.readouterr().err
