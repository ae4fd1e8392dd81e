"""A profile with an invented runner: order, log, resumption, reasons; and single real runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from weft.cli import main
from weft.errors import InputError
from weft.host.net import namespaces
from weft.host.testbed.wiring import Wiring
from weft.sensitivity.application import Application
from weft.sensitivity.place import describe_network
from weft.sensitivity.profiler import (
    Plan,
    RunLog,
    forecast_time,
    format_duration,
    profile_command,
    read_first_run,
)
from weft.sensitivity.run_command import CommandRun, Counters, UsageSeries, count_bytes, run_command

LINK_BPS = 100e6
COMPUTING_S, SENDING_S = 1.0, 2.0
PLAN = Plan(
    name="made-up",
    command=("send", "much"),
    shares=(0.1, 0.5, 1.0),
    repeat=2,
    place="nowhere",
    link_bps=LINK_BPS,
    seed=11,
)


class Invented:
    """1 s of computing, then 2 s of sending at the full rate; `slower` by the number of the run."""

    def __init__(self, slower: dict[int, float] | None = None, ends_at: int | None = None) -> None:
        self.slower = slower or {}
        self.ends_at = ends_at
        self.shares: list[float] = []

    def __call__(self, share: float, limit_s: float, where: str) -> CommandRun:
        if len(self.shares) == self.ends_at:
            raise KeyboardInterrupt
        factor = self.slower.get(len(self.shares), 1.0)
        self.shares.append(share)
        completion_s = (COMPUTING_S + SENDING_S / share) * factor
        assert completion_s < limit_s, where
        return ran(completion_s)


def ran(completion_s: float) -> CommandRun:
    at_s = np.linspace(0, completion_s, round(completion_s / 0.02) + 1)
    sent = np.clip(at_s - COMPUTING_S, 0, None) / max(completion_s - COMPUTING_S, 1e-9)
    total = LINK_BPS / 8 * SENDING_S
    cpu_s = np.minimum(at_s, COMPUTING_S)
    usage = UsageSeries(at_s, 0 * at_s, total * sent, cpu_s, 0 * at_s)
    return CommandRun(usage, completion_s, 1_000_000, round(total), float(cpu_s[-1]), 0.0)


def profile(path: Path, runner: Invented, plan: Plan = PLAN) -> tuple[Application, list[str]]:
    message: list[str] = []
    log = RunLog(path, plan)
    return profile_command(log, runner, message.append, machine={}, date="2026"), message


def test_the_profile_is_what_the_command_took_at_each_share(tmp_path: Path) -> None:
    runner = Invented()
    result, message = profile(tmp_path / "log", runner)
    assert runner.shares == [1.0, *PLAN.order]
    assert {(run.share, run.completion) for run in result.profile.runs} == {
        (0.1, 21.0),
        (0.5, 5.0),
        (1.0, 3.0),
    }
    assert float(result.convex.model.slowdown(0.25)) == pytest.approx(3.0)
    assert result.traced is not None
    assert result.traced.quality.left_out is not None
    assert result.traced.quality.left_out.worst < 0.02
    assert message[0].startswith("first run, not counted: 3 s, 23.84 MiB sent, 976.6 KiB rec")
    assert message[1] == "6 runs to come: about 58 s"
    assert [line.split("; ")[1] for line in message[2:]][-1] == "0 s left"


@pytest.mark.parametrize("ended", range(7))
def test_interrupted_and_gone_on_with_it_is_the_same_profile(tmp_path: Path, ended: int) -> None:
    whole, _ = profile(tmp_path / "whole", Invented())
    with pytest.raises(KeyboardInterrupt):
        profile(tmp_path / "log", Invented(ends_at=ended))
    assert (tmp_path / "log").exists() == (ended > 0)
    later = Invented()
    # Another process has another seed; the order is that of the first.
    result, _ = profile(tmp_path / "log", later, PLAN if ended == 0 else replace(PLAN, seed=99))
    assert result == whole
    assert len(later.shares) == 7 - ended


def test_a_line_cut_short_by_a_crash_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with pytest.raises(KeyboardInterrupt):
        profile(path, Invented(ends_at=4))
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 5
    path.write_bytes(b"".join(lines)[:-9])
    later = Invented()
    result, _ = profile(path, later)
    assert len(later.shares) == 4
    assert result == profile(tmp_path / "whole", Invented())[0]
    assert len(RunLog(path, PLAN).logged.runs) == 6


def test_a_slow_run_is_repeated_and_the_profile_says_why(tmp_path: Path) -> None:
    slow = 1 + next(n for n, share in enumerate(PLAN.order) if share == 0.5 and n > 1)
    result, message = profile(tmp_path / "log", Invented({slow: 1.5}))
    reason = "run 2 at 50 % took 7.5 s, 50% above the median of its share"
    assert f"again at 50 %: {reason}" in message
    assert f"set aside: {reason}" in result.profile.notes
    assert [run.completion for run in result.profile.runs if run.share == 0.5] == [5.0, 5.0]
    assert reason in (tmp_path / "log").read_text()


def test_a_log_of_another_plan_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        profile(tmp_path / "log", Invented(ends_at=3))
    with pytest.raises(InputError, match="unfinished profile with another command: send much"):
        RunLog(tmp_path / "log", replace(PLAN, command=("send", "little")))
    with pytest.raises(InputError, match="unfinished profile with another repeat: 2"):
        RunLog(tmp_path / "log", replace(PLAN, repeat=3))


def test_a_profile_goes_on_where_it_began_and_nowhere_else(tmp_path: Path) -> None:
    here = replace(PLAN, directory="/here")
    with pytest.raises(KeyboardInterrupt):
        profile(tmp_path / "log", Invented(ends_at=3), here)
    assert len(RunLog(tmp_path / "log", here).logged.runs) == 2
    message = "unfinished profile with another directory: /here; give the same"
    with pytest.raises(InputError, match=message):
        RunLog(tmp_path / "log", replace(PLAN, directory="/elsewhere"))


def test_a_log_from_before_directories_were_kept_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with pytest.raises(KeyboardInterrupt):
        profile(path, Invented(ends_at=3))
    path.write_text(path.read_text().replace('"directory":"",', "", 1))
    assert "directory" not in path.read_text()
    assert len(RunLog(path, replace(PLAN, directory="/here")).logged.runs) == 2


WIRING = Wiring(hosts=("h1", "h2"), rate_bps=100_000_000, switches="two-hops")


@pytest.mark.parametrize(
    "other",
    [
        {"hosts": ("h1", "h2", "h3")},
        {"switches": "one"},
        {"switches": "leaf-spine"},
        {"switches": "leaf-spine", "spines": 3},
        {"switches": "leaf-spine", "leaves": 1},
        {"uplink_bps": 99_999_999},
        {"burst_bytes": 50_001},
        {"limit_bytes": 50_000},
        {"nic_limit_bytes": 50_000},
        {"mtu_bytes": 9000},
        {"offloads": False},
        {"congestion": "reno"},
    ],
)
def test_a_place_tells_networks_apart(other: dict[str, object]) -> None:
    there = {describe_network(replace(WIRING, **other)), describe_network(WIRING)}  # type: ignore[arg-type]
    assert len(there) == 2
    assert all("\n" not in text for text in there)


@pytest.mark.parametrize("damage", [b"{}\n{}\n", b"nothing\nat all\n", b"[1]\n[2]\n"])
def test_a_damaged_log_is_refused_by_name(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "log").write_bytes(damage)
    with pytest.raises(InputError, match=r"log: .*--restart"):
        RunLog(tmp_path / "log", PLAN)


def test_a_command_that_ends_too_soon_is_not_profiled(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"send: took 0.3 s, too short to measure; give it work"):
        profile_command(
            RunLog(tmp_path / "log", PLAN), lambda *_: ran(0.3), print, machine={}, date=""
        )
    assert not (tmp_path / "log").exists()


def test_the_time_foreseen_lies_between_its_bounds() -> None:
    ahead = forecast_time(PLAN, *read_first_run(PLAN, ran(3.0), print))
    assert ahead.least_s < ahead.expected_s <= ahead.most_s
    assert ahead.expected_s == pytest.approx(3 + 58, rel=0.03)


def test_more_bytes_than_the_link_carries_cost_the_estimate_and_not_the_profile(
    tmp_path: Path,
) -> None:
    """As on loopback before it is capped, or of what comes in where only sending is."""
    slow = replace(PLAN, link_bps=LINK_BPS / 10)
    result, message = profile(tmp_path / "log", Invented(), slow)
    assert message[0].startswith("no estimate from the first run: trace: the bytes need 667 % of")
    assert result.traced is None
    assert float(result.convex.model.slowdown(0.25)) == pytest.approx(3.0)
    ahead = forecast_time(slow, *read_first_run(slow, ran(3.0), message.append))
    # 6 runs of 3 s and a first one; at 10, 50 and 100 % ten times, twice and once as long
    assert ahead.least_s == pytest.approx(21)
    assert ahead.most_s == ahead.expected_s == pytest.approx(3 + 2 * 3 * (10 + 2 + 1))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_are_as_people_say_them(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


# ---- One real run -----------------------------------------------------------------------------


@pytest.fixture
def lo() -> Iterator[Counters]:
    with count_bytes(None, "lo") as counters:
        yield counters


def spawn(script: str) -> partial[subprocess.Popen[bytes]]:
    return partial(namespaces.spawn, None, ["sh", "-c", script])


def test_a_run_tells_time_bytes_and_processor_time(lo: Counters) -> None:
    python = f"exec {sys.executable} -c"
    sends = "import socket; s = socket.socket(type=2); s.sendto(bytes(30000), ('127.0.0.1', 9))"
    spins = "import time\nwhile time.process_time() < 0.3: pass"
    result = run_command(spawn(f'{python} "{sends}\n{spins}"'), lo, limit_s=60, where="x")
    assert result.completion_s > 0.3
    assert result.sent_bytes >= 30000
    assert result.received_bytes >= 30000  # what lo sends it receives
    assert 0.3 < result.cpu_s < 2


def test_processor_time_of_children_that_were_gone_at_once_counts(lo: Counters) -> None:
    script = "for n in $(seq 50); do sh -c 'i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done'; done"
    result = run_command(spawn(script), lo, limit_s=60, where="x")
    before = os.times()
    subprocess.run(["sh", "-c", script], check=True)
    after = os.times()
    spent = sum(after[2:4]) - sum(before[2:4])
    assert result.cpu_s == pytest.approx(spent, rel=0.7)


def test_a_command_that_fails_says_its_status_and_last_words(lo: Counters) -> None:
    with pytest.raises(InputError, match=r"^x: exit status 3, after 'no more'; fix the command"):
        run_command(spawn("echo no more >&2; exit 3"), lo, limit_s=60, where="x")
    with pytest.raises(InputError, match="x: ended by SIGKILL"):
        run_command(spawn("kill -9 $$"), lo, limit_s=60, where="x")


@pytest.mark.parametrize(
    ("first_line", "message"),
    [("echo no interpreter", "Exec format error"), ("#!/no/such", "No such file or directory")],
)
def test_a_command_that_cannot_be_started_says_why(
    lo: Counters, tmp_path: Path, first_line: str, message: str
) -> None:
    script = tmp_path / "script"
    script.write_text(f"{first_line}\n")
    script.chmod(0o755)
    wrong = partial(namespaces.spawn, None, [str(script)])
    with pytest.raises(InputError, match=f"^x: cannot be started: {message}; fix the command"):
        run_command(wrong, lo, limit_s=60, where="x")


def test_a_command_that_hangs_is_ended_with_all_it_started(lo: Counters, tmp_path: Path) -> None:
    script = f"sleep 77 & echo $! > {tmp_path}/pid; trap '' TERM; while :; do sleep 0.1; done"
    with pytest.raises(InputError, match="x: not finished after 1 s; raise --timeout"):
        run_command(spawn(script), lo, limit_s=0.6, where="x")
    assert gone(int((tmp_path / "pid").read_text()))


def test_what_a_command_leaves_running_is_ended(lo: Counters, tmp_path: Path) -> None:
    run_command(spawn(f"sleep 77 & echo $! > {tmp_path}/pid"), lo, limit_s=60, where="x")
    assert gone(int((tmp_path / "pid").read_text()))


def test_what_has_detached_itself_is_ended_too(lo: Counters, tmp_path: Path) -> None:
    script = f"setsid sleep 77 & echo $! > {tmp_path}/pid; sleep 0.5"
    run_command(spawn(script), lo, limit_s=60, where="x")
    assert gone(int((tmp_path / "pid").read_text()))


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_an_interface_that_is_not_there_is_named() -> None:
    message = r"interface nic9: is not there; use one of .*lo"
    with pytest.raises(InputError, match=message), count_bytes(None, "nic9"):
        pass


# ---- The command line -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--percent", "50,10,100", "--testbed"], "--percent: 10 after 50; write them ascending"),
        (["--percent", "10,120", "--testbed"], "--percent: 120 is not above 0 and up to 100"),
        (["--percent", "0,100", "--testbed"], "--percent: 0 is not above 0 and up to 100"),
        (["--percent", "10,nan", "--testbed"], "--percent: nan is not above 0 and up to 100"),
        (["--repeat", "x", "--testbed"], "--repeat x: is not a number"),
        (["--name", "a/b", "--testbed"], "--name: 'a/b' cannot be the name of an application"),
        (["--timeout", "-1", "--testbed"], "--timeout -1: is not a time"),
        ([], "profile: no links are named, or two kinds of them; give --testbed or --interface"),
        (
            ["--testbed", "a", "--interface", "lo"],
            "profile: no links are named, or two kinds of them",
        ),
        (["--testbed", "a", "--rate", "1G"], "--rate: a testbed has its own"),
        (["--interface", "lo", "--host", "h1"], "--host: is of a testbed"),
        (["--testbed", "nowhere"], "testbed"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_stored(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table"
    argv = ["profile", "--name", "x", "--table", str(table), *words, "--", "true"]
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"weft: {message}")
    assert said.err.count("\n") == 1
    assert not table.exists()


def test_a_share_below_the_least_cap_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    mark = tmp_path / "ran"
    words = ["--percent", "7,8,100", "--interface", "lo", "--rate", "100k"]
    argv = ["profile", "--name", "x", "--table", str(tmp_path / "t"), *words, "--", "touch"]
    assert main([*argv, str(mark)]) == 2
    message = "--percent: 7 % of a link of 100 kb/s is below 8 kb/s, the least cap; leave it out"
    assert capsys.readouterr().err.startswith(f"weft: {message}")
    assert not mark.exists()


@pytest.mark.parametrize("table", ["nowhere", "nowhere/below", "file/below", "file"])
def test_a_table_that_cannot_be_made_is_one_line(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone" / "far")
    (tmp_path / "file").write_text("")
    place = tmp_path / table
    argv = ["profile", "--name", "x", "--table", str(place), "--testbed", "--", "true"]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"weft: {place}: ")
    assert said.count("\n") == 1


def test_folders_of_the_users_own_stay_though_they_are_empty(tmp_path: Path) -> None:
    table = tmp_path / "mine" / "table"
    argv = ["profile", "--name", "x", "--table", str(table), "--", "true"]
    table.parent.mkdir()
    assert main(argv) == 2
    assert [*table.parent.iterdir()] == []
    table.mkdir()
    assert main(argv) == 2
    assert [*table.iterdir()] == []


@pytest.mark.parametrize(
    ("command", "message"),
    [([], "profile: no command is given"), (["no-such"], "command no-such: no such program")],
)
def test_a_command_that_is_none_is_refused(
    command: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["profile", "--name", "x", "--table", str(tmp_path / "t"), "--testbed", "--", *command]
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith(f"weft: {message}")
