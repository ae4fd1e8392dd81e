"""Jobs for real, over loopback: order of stages, endings, errors. Rates: tests/live."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from weft.cli import main
from weft.jobs import Job, load_job
from weft.measure.run_jobs import build_loopback_site, run_jobs
from weft.records import Record, Scalar, read_records

ROOT = Path(__file__).parents[2]
JOBS = sorted((ROOT / "examples" / "jobs").glob("*.toml"))


def run(*jobs: Job, seed: int = 1, limit_s: float = 60, duration_s: float | None = None) -> Record:
    site = build_loopback_site(jobs)
    return run_jobs(jobs, site, seed=seed, limit_s=limit_s, duration_s=duration_s)


def value(record: Record, name: str) -> float:
    quantity = record.quantities[name]
    assert isinstance(quantity, Scalar)
    return quantity.value


def write_job(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def test_a_loopback_site_has_every_named_host_and_enough_for_the_largest_job() -> None:
    job = replace(load_job(JOBS[0]), instances=4, hosts=("x", "y"))
    assert build_loopback_site([job] * 5).hosts == ("x", "y", "h1", "h2")
    small = replace(job, instances=1)
    assert build_loopback_site([small]).hosts == ("x", "y")


def children() -> set[int]:
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in listed.split()}


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    before = children()  # other tests may have left theirs
    yield
    assert children() <= before


@pytest.mark.usefixtures("no_process_is_left")
@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_every_example_runs_to_its_end_in_the_order_of_its_stages(path: Path) -> None:
    job = load_job(path)
    record = run(job)
    assert value(record, f"{job.name}.loops") == job.loops
    rows = {(row["loop"], row["stage"]): row for row in record.tables["stages"]}
    assert job.loops is not None
    assert len(rows) == job.loops * len(job.stages)
    for loop in range(job.loops):
        for stage in job.stages:
            row = rows[loop, stage.name]
            took_us = float(str(row["end_us"])) - float(str(row["begin_us"]))
            assert took_us >= stage.compute_ps / 1e6  # a sleep is never too short
            for before in stage.after:
                # The first to enter has left the stages before it, if not as the last.
                earlier = rows[loop, job.stages[before].name]
                assert float(str(row["end_us"])) >= float(str(earlier["end_us"]))


def test_computations_of_an_instance_take_turns_while_their_messages_do_not(tmp_path: Path) -> None:
    """Two stages of 100 ms side by side take 200 ms: an instance has one processor."""
    text = 'name = "j"\ninstances = 1\n[[stage]]\ncompute = "100 ms"\n'
    job = load_job(write_job(tmp_path, text + '[[stage]]\nafter = []\ncompute = "100 ms"\n'))
    assert value(run(job), "j.completion") >= 200_000


def test_computations_that_may_start_together_keep_the_order_of_the_file(tmp_path: Path) -> None:
    text = 'name = "j"\ninstances = 1\n[[stage]]\nname = "a"\ncompute = "50 ms"\n'
    text += '[[stage]]\nname = "b"\nafter = []\ncompute = "300 ms"\n'
    ends = {
        row["stage"]: float(str(row["end_us"]))
        for row in run(load_job(write_job(tmp_path, text))).tables["stages"]
    }
    assert ends["a"] < ends["b"]


def test_a_job_starts_at_its_time_and_its_completion_counts_from_there(tmp_path: Path) -> None:
    text = 'name = "j"\ninstances = 2\nstart = "300 ms"\n[[stage]]\ncompute = "1 ms"\n'
    record = run(load_job(write_job(tmp_path, text)))
    (row,) = record.tables["stages"]
    assert float(str(row["begin_us"])) >= 300_000
    assert value(record, "j.completion") == pytest.approx(float(str(row["end_us"])) - 300_000)


def test_jobs_side_by_side_have_quantities_of_their_own_and_slowdowns_if_asked() -> None:
    first, second = (load_job(ROOT / f"examples/jobs/{n}.toml") for n in ("sort", "stencil"))
    record = run(load_job(ROOT / "examples/jobs/sort.toml", {"slowdown": True}), second)
    assert record.name == "sort+stencil"
    ratio = value(record, "sort.completion") / value(record, "sort.alone")
    assert value(record, "sort.slowdown") == pytest.approx(ratio)
    assert "stencil.slowdown" not in record.quantities
    assert first.name == "sort"


@pytest.mark.usefixtures("no_process_is_left")
def test_a_job_that_loops_until_the_end_stops_there(tmp_path: Path) -> None:
    text = 'name = "j"\ninstances = 2\nloops = "until the end"\n[[stage]]\n'
    path = write_job(tmp_path, text + 'compute = "10 ms"\nvolume = "1 kB"\npattern = "shuffle"\n')
    record = run(load_job(path), duration_s=0.5)
    assert 1 <= value(record, "j.loops") <= 50
    assert "j.completion" not in record.quantities
    assert record.ending == ""


def test_a_run_beyond_its_limit_keeps_its_stages_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'name = "j"\ninstances = 2\n[[stage]]\ncompute = "10 ms"\n[[stage]]\ncompute = "60 s"\n'
    output = tmp_path / "records.jsonl"
    path = write_job(tmp_path, text)
    words = ["job", "run", "--loopback", "--timeout", "1", "-o", str(output), str(path)]
    assert main(words) == 1
    assert capsys.readouterr().err == "weft: j: not done after 1 s\n"
    (record,) = read_records(output).records
    assert [row["stage"] for row in record.tables["stages"]] == ["1"]


def start(path: Path, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "weft.cli", "job", "run", "--loopback", *words, str(path)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_children(pid: int, count: int) -> list[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + 60
    while len(pids := [int(word) for word in file.read_text().split()]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return pids


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


ENDLESS = 'name = "j"\ninstances = 3\nloops = 100000\n[[stage]]\ncompute = "20 ms"\n'


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    path = write_job(tmp_path, ENDLESS)
    output = tmp_path / "records.jsonl"
    process = start(path, "--json", "-o", str(output))
    pids = wait_for_children(process.pid, 3)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "weft: j: interrupted\n")
    assert json.loads(out)["quantities"]["j.loops"]["value"] >= 1
    assert read_records(output).records[0].ending == "interrupted"
    assert not any(map(is_running, pids))


def test_instances_end_with_the_command_even_if_it_is_killed(tmp_path: Path) -> None:
    process = start(write_job(tmp_path, ENDLESS))
    pids = wait_for_children(process.pid, 3)
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_instance_that_is_killed_ends_the_run_with_one_line(tmp_path: Path) -> None:
    process = start(write_job(tmp_path, ENDLESS))
    pids = wait_for_children(process.pid, 3)
    time.sleep(1.0)
    os.kill(pids[1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith("weft: instance ")
    assert err.count("\n") == 1
    assert not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("instances = 2\n", "instances = 2 is no job"),
        ('name = "j"\ninstances = 2\nloops = "until the end"\n[[stage]]\n', "give --duration"),
    ],
)
def test_a_bad_file_is_one_line_with_status_2(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_job(tmp_path, text)
    assert main(["job", "run", "--loopback", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"weft: {path}")
    assert err.count("\n") == 1
    assert "give --duration" in err or "is missing" in err, line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--timeout", "-1"], "weft: --timeout: -1 s is out of range; use 60, at most 86400\n"),
        (["--timeout", "10s"], None),
        (["--hosts", "h1"], None),
        (["--hosts", ""], None),
        (["--seed", "x"], None),
        (["--seed=-1"], None),
    ],
)
def test_bad_options_are_one_line_with_status_2(
    words: list[str], line: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "run", "--loopback", str(JOBS[0]), *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert line is None or err == line


@pytest.mark.parametrize("rate", ["0Mb/s", "-1Mb/s", ""])
def test_a_rate_that_moves_nothing_is_refused(
    rate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "show", str(JOBS[0]), f"--rate={rate}"]) == 2
    assert capsys.readouterr().err.startswith("weft: --rate: ")
