"""A co-running campaign from plan to file, and the runner behind it, on processes of this host.

The campaign runs on an invented runner whose clock moves when a run ends; the testbed runner runs
real commands without a testbed: its host is this one and its groups kill what joined them.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weft.cli import main
from weft.corun import run_rounds
from weft.corun.rounds import ALONE, EQUAL, IDLE, LEND, ONE, WEFT, Plan, Round, build_schemes
from weft.corun.run_rounds import CoRunCampaign, Job, open_testbed_runner
from weft.errors import InputError
from weft.host.testbed import persistent
from weft.records import read_records
from weft.sensitivity.application import Profile, Run, fit_application
from weft.sensitivity.application_table import AppTable

LINK_BPS = 200e6
TAKES_S = (4.0, 6.0)


def application(name: str, baseline_s: float) -> Any:
    runs = tuple(Run(share=b, completion=baseline_s / b) for b in (0.1, 0.5, 1.0))
    return fit_application(Profile(name=name, runs=runs, command=("true",), link_bps=LINK_BPS))


APPLICATIONS = [application(name, s) for name, s in zip("ab", TAKES_S, strict=True)]
SCHEMES = build_schemes([a.convex.model for a in APPLICATIONS], LINK_BPS)


def campaign(repeat: int = 1, runs: int = 2, seed: int = 5) -> CoRunCampaign:
    plan = Plan(names=("a", "b"), repeat=repeat, runs=runs, seed=seed)
    return CoRunCampaign(plan=plan, applications=APPLICATIONS, schemes=SCHEMES)


class InventedRunner:
    """Every run of an application takes the same time, on a clock of its own."""

    def __init__(self, *takes_s: float) -> None:
        self.takes_s, self.clock_s = takes_s, 0.0
        self.ends_s: dict[int, float] = {}
        self.shared: list[str] = []
        self.waits = 0

    def share(self, scheme: Any) -> None:
        self.shared.append(scheme.name)

    def read_unmarked(self) -> float | None:
        return 0.25

    def name(self, number: int) -> str:
        return "ab"[number]

    def now_s(self) -> float:
        return self.clock_s

    def start(self, number: int) -> None:
        self.ends_s[number] = self.clock_s + self.takes_s[number]

    def next_end(self, wait_s: float) -> tuple[int, float] | None:
        self.waits += 1
        assert self.waits < 10_000, "it goes on for ever"
        number = min(self.ends_s, key=self.ends_s.__getitem__, default=-1)
        if number < 0 or self.ends_s[number] > self.clock_s + wait_s:
            self.clock_s += wait_s
            return None
        self.clock_s = self.ends_s.pop(number)
        return number, self.takes_s[number]

    def stop(self) -> None:
        self.ends_s.clear()


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> InventedRunner:
    """Of every campaign; a quarter of the processors' ticks are idle."""
    invented = InventedRunner(*TAKES_S)

    @contextmanager
    def opened(testbed: str, host: str | None, jobs: Sequence[Job]) -> Iterator[InventedRunner]:
        assert (testbed, host, [job.name for job in jobs]) == ("bed", "h1", ["a", "b"])
        yield invented

    ticks = iter(range(0, 10_000, 100))
    monkeypatch.setattr(run_rounds, "open_testbed_runner", opened)
    monkeypatch.setattr(
        run_rounds, "read_processor_times", lambda: (0.25 * (tick := next(ticks)), float(tick))
    )
    return invented


def measure(of: CoRunCampaign, path: str | None, timeout_s: float | None = None) -> list[str]:
    resumed, records = of.resume(path)
    lines: list[str] = []
    resumed.measure(
        records, testbed="bed", host="h1", path=path, timeout_s=timeout_s, report=lines.append
    )
    return lines


# ---- The campaign -----------------------------------------------------------------------------


def test_every_round_is_shared_run_and_stored_with_what_the_machine_did(
    runner: InventedRunner, tmp_path: Path
) -> None:
    path = str(tmp_path / "corun.jsonl")
    lines = measure(campaign(), path)
    records = read_records(path).records
    rounds = campaign().plan.rounds
    assert [record.settings["way"] for record in records] == [r.scheme for r in rounds]
    # Alone, applications share a port as in one queue.
    assert runner.shared == [ONE if r.scheme == ALONE else r.scheme for r in rounds]
    assert {record.quantities[IDLE].value for record in records} == {0.25}
    assert {record.quantities["unmarked"].value for record in records} == {0.25}
    for record, round_ in zip(records, rounds, strict=True):
        runs = [(row["application"], row["completion_s"]) for row in record.tables["runs"]]
        assert set(runs) == {("ab"[n], TAKES_S[n]) for n in round_.numbers}
        assert all(runs.count(run) >= 2 for run in runs)
    assert len(lines) == len(rounds)
    assert "25% of the bytes bore no application's mark" in lines[0]
    assert lines[-1].splitlines()[0].endswith("; 0 s left")


def test_a_campaign_resumes_with_the_seed_of_its_records_and_runs_what_is_missing(
    runner: InventedRunner, tmp_path: Path
) -> None:
    path = tmp_path / "corun.jsonl"
    measure(campaign(), str(path))
    lines_of_file = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines_of_file[:5]))  # a header, and four records
    runner.shared.clear()
    resumed, records = campaign(seed=9).resume(str(path))
    assert (resumed.plan.seed, len(records)) == (5, 4)
    lines = measure(campaign(seed=9), str(path))
    assert lines[0] == "resumes after 4 of 6 rounds"
    assert len(runner.shared) == 2
    assert [r.settings for r in read_records(path).records] == [
        campaign().plan.settings(round_) for round_ in campaign().plan.rounds
    ]


def test_a_campaign_without_a_file_or_with_a_new_one_keeps_its_seed(tmp_path: Path) -> None:
    for path in (None, str(tmp_path / "new.jsonl")):
        resumed, records = campaign(seed=9).resume(path)
        assert (resumed.plan.seed, records) == (9, [])


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(None, 150), (7.0, 7)])
def test_a_run_is_stuck_after_the_timeout_or_ten_times_the_slowest_per_application(
    runner: InventedRunner, timeout_s: float | None, limit_s: int
) -> None:
    runner.takes_s = (1000.0, 1000.0)
    with pytest.raises(InputError, match=f"a run did not end within {limit_s} s; raise --timeout"):
        measure(campaign(), None, timeout_s)


def test_a_round_takes_the_runs_of_its_slowest_application() -> None:
    of = campaign(runs=3)
    assert of.predict_s(Round(0, ALONE, (0,))) == 3 * TAKES_S[0]
    assert of.predict_s(Round(0, ALONE, (1,))) == 3 * TAKES_S[1]
    for scheme, predicted in ((ONE, EQUAL), (EQUAL, EQUAL), (WEFT, WEFT), (LEND, LEND)):
        slowdowns = SCHEMES[predicted].lent
        slowest_s = max(s * slow for s, slow in zip(TAKES_S, slowdowns, strict=True))
        # Two more than counted: at the beginning and at the end of a round.
        assert of.predict_s(Round(0, scheme, (0, 1))) == pytest.approx(5 * slowest_s)


def test_a_dry_run_prints_schemes_with_weights_and_the_time_they_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = AppTable(tmp_path / "table")
    for profiled in APPLICATIONS:
        table.save(profiled)
    wiring = SimpleNamespace(rate_bps=LINK_BPS, hosts=["h0"], shape="star", name="bed")
    monkeypatch.setattr(persistent, "find_testbed", lambda _: SimpleNamespace(wiring=wiring))
    monkeypatch.setattr("weft.cli.profile.describe_testbed", lambda *_: "a testbed")
    command = ["corun", "a", "b", "--testbed", "bed", "--table", str(table.directory), "--repeat=2"]
    assert main([*command, "--runs", "2", "--dry-run", "--json"]) == 0
    forecast = json.loads(capsys.readouterr().out)
    assert forecast["rounds"] == 12
    of = campaign(repeat=2)
    expected_s = sum(map(of.predict_s, of.plan.rounds))
    assert forecast["expected_s"] == pytest.approx(expected_s)
    assert {name: tuple(s["weights"]) for name, s in forecast["schemes"].items()} == {
        name: pytest.approx(scheme.weights) for name, scheme in SCHEMES.items()
    }


# ---- The runner -------------------------------------------------------------------------------


class LocalGroup:
    """Kills what has joined, like a control group."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ends = 0

    def join(self) -> None:
        """In a testbed the child calls it; here the bed does."""

    def end(self) -> None:
        self.ends += 1
        for process in self.processes:
            process.kill()


class LocalBed:
    def __init__(self) -> None:
        self.hosts: list[str] = []

    def spawn(
        self, host: str, command: Sequence[str], *, join: Callable[[], None], **options: Any
    ) -> subprocess.Popen[bytes]:
        self.hosts.append(host)
        process = subprocess.Popen(command, **options)
        join.__self__.processes.append(process)  # type: ignore[attr-defined]
        return process


@contextmanager
def local_runner(*commands: str, ports: int = 0) -> Iterator[tuple[Any, list[LocalGroup]]]:
    groups = [LocalGroup() for _ in commands]
    jobs = [Job(name="ab"[n], command=("sh", "-c", c)) for n, c in enumerate(commands)]
    saved = [SimpleNamespace(end=f"port {n}") for n in range(ports)]
    local: Any = run_rounds.TestbedRunner(
        bed=LocalBed(),  # type: ignore[arg-type]
        host="h1",
        jobs=jobs,
        groups=groups,  # type: ignore[arg-type]
        ends=SimpleNamespace(saved=saved),  # type: ignore[arg-type]
    )
    try:
        yield local, groups
    finally:
        local.stop()


def test_the_run_that_ends_first_is_reported_with_the_time_it_took() -> None:
    with local_runner("sleep 60", "sleep 0.2") as (local, groups):
        began_s = local.now_s()
        local.start(0)
        local.start(1)
        assert local.next_end(0.0) is None
        number, took_s = local.next_end(30.0)
        assert number == 1
        assert 0.2 <= took_s <= time.monotonic() - began_s
        assert (groups[0].ends, groups[1].ends) == (0, 1)
        assert local.bed.hosts == ["h1", "h1"]
        local.start(1)
        assert local.next_end(30.0)[0] == 1
        local.stop()
        assert groups[0].ends == 1
        assert groups[0].processes[0].poll() is not None
        local.stop()
        assert groups[0].ends == 1


def test_a_command_that_fails_is_named_with_its_status_and_last_line() -> None:
    with local_runner("true", "echo first >&2; echo no such file >&2; exit 3") as (local, _):
        local.start(1)
        problem = "application b: exit status 3, after 'no such file'; fix its command"
        with pytest.raises(InputError, match=problem):
            local.next_end(30.0)


def queue(dscp: int, count: int) -> Any:
    return SimpleNamespace(dscps=(dscp,), count=SimpleNamespace(bytes=count))


@pytest.mark.parametrize(
    ("queues", "unmarked"),
    [
        ([queue(0, 10), queue(1, 20), queue(2, 10)], 0.25),
        ([queue(0, 10)], None),  # one queue: nothing bears a mark
        ([queue(0, 0), queue(1, 0)], None),  # nothing has passed
        ([queue(0, 0), queue(1, 5)], 0.0),
    ],
)
def test_bytes_without_a_mark_are_those_of_the_queue_of_unmanaged_traffic(
    monkeypatch: pytest.MonkeyPatch, queues: list[Any], unmarked: float | None
) -> None:
    monkeypatch.setattr(run_rounds, "read_queues", lambda _: queues)
    with local_runner("true", ports=2) as (local, _):
        assert local.read_unmarked() == unmarked


def test_every_port_gets_the_queues_of_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    programmed: dict[str, list[tuple[int, ...]]] = {}
    monkeypatch.setattr(
        run_rounds,
        "set_queues",
        lambda port, queues: programmed.update({port.end: [q.dscps for q in queues]}),
    )
    with local_runner("true", ports=2) as (local, _):
        local.share(SCHEMES[EQUAL])
    assert programmed == {f"port {n}": [(0,), (1,), (2,)] for n in range(2)}


def test_ticks_of_the_processors_are_idle_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """proc(5): user nice system idle iowait irq softirq steal guest guest_nice."""
    text = "cpu  10 20 30 400 50 6 7 8 1000 2000\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    monkeypatch.setattr(run_rounds, "STAT", SimpleNamespace(read_text=lambda: text))
    assert run_rounds.read_processor_times() == (450.0, 531.0)


# ---- Opening the runner -----------------------------------------------------------------------


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is opened and closed of a testbed of two hosts, in order."""
    lines: list[str] = []

    @contextmanager
    def opened(name: str, value: Any) -> Iterator[Any]:
        lines.append(f"open {name}")
        yield value
        lines.append(f"close {name}")

    wiring = SimpleNamespace(hosts=["h0", "h1"])
    bed = SimpleNamespace(wiring=wiring, all_ends=lambda: ["end"])
    ends = SimpleNamespace(saved=[])
    monkeypatch.setattr(persistent, "use_testbed", lambda name, by: opened(f"{name} {by}", bed))
    monkeypatch.setattr(run_rounds, "change_ends", lambda _: opened("ends", ends))
    marking = run_rounds.marking
    monkeypatch.setattr(marking, "remove_leftovers", lambda: lines.append("clean"))
    monkeypatch.setattr(marking, "open_marked_group", lambda n, d: opened(f"{n} {d}", n))
    monkeypatch.setattr(run_rounds.TestbedRunner, "stop", lambda _: lines.append("stop"))
    return lines


JOBS = [Job(name=name, command=("true",)) for name in "ab"]


def test_runs_end_before_their_groups_and_links_are_given_back(log: list[str]) -> None:
    with open_testbed_runner("bed", None, JOBS) as opened:
        assert (opened.host, opened.groups) == ("h0", ["a", "b"])
        log.append("run")
    assert log == [
        *("open bed corun", "clean", "open ends", "open a 1", "open b 2", "run", "stop"),
        *("close b 2", "close a 1", "close ends", "close bed corun"),
    ]


@pytest.mark.usefixtures("log")
def test_the_host_is_one_of_the_testbed() -> None:
    with open_testbed_runner("bed", "h1", JOBS) as opened:
        assert opened.host == "h1"
    with (
        pytest.raises(InputError, match="--host h7: is not in testbed bed; use one of h0, h1"),
        open_testbed_runner("bed", "h7", JOBS),
    ):
        raise AssertionError("opened")
