"""Where a command is profiled: which links are capped, at which rates, and what it is called."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from weft.errors import InputError
from weft.fleet import HostCalls, HostLost
from weft.fleet.coordinator import Stopped
from weft.host.machine.processes import Times, TreeTimes
from weft.host.net import namespaces
from weft.host.net.link_ends import LinkEnd
from weft.host.testbed.build import plan_testbed
from weft.host.testbed.wiring import Wiring
from weft.sensitivity import place as places
from weft.sensitivity import run_command as runs
from weft.sensitivity.application import Run
from weft.sensitivity.place import CapRequest, build_cluster_place, build_interface_place
from weft.sensitivity.profiler import FirstRun, Plan, RunLog, forecast_time, remaining_s
from weft.sensitivity.run_command import ProcessEnd, UsageSeries, build_trace, record_usage

BOTH = [LinkEnd(None, "eth0"), LinkEnd(None, "lo"), LinkEnd(None, "eth0", receiving=True)]


class Ends:
    """What is asked of the ends of links, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, float]]] = []

    def cap(self, **rate: float) -> None:
        self.asked.append(("cap", rate))

    def check(self, **rate: float) -> None:
        self.asked.append(("check", rate))


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The blocks in which ends may be changed: which ends, whether a default route is allowed."""
    blocks: list[tuple[Any, ...]] = []

    @contextmanager
    def change_ends(ends: Any, *, allow_default_route: bool) -> Iterator[Ends]:
        asked = Ends()
        blocks.append((list(ends), allow_default_route, asked))
        yield asked

    monkeypatch.setattr(places, "change_ends", change_ends)
    return blocks


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "ROOT", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(places, "find_interfaces", lambda names: tuple(dict.fromkeys(names)))
    for name, speed in (
        ("eth0", "1000"),
        ("eth1", "1000"),
        ("ib0", "100"),
        ("slow", "1"),
        ("down", "-1"),
        ("zero", "0"),
    ):
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
        (tmp_path / "sys/class/net" / name / "speed").write_text(speed)
    return tmp_path


@pytest.mark.usefixtures("root")
def test_named_interfaces_are_capped_in_both_directions_at_shares_of_their_speed(
    changed: list[tuple[Any, ...]],
) -> None:
    place = build_interface_place(["eth0", "eth1", "eth0"], None, allow_default_route=True)
    assert place.description == "interfaces eth0, eth1"
    assert (place.namespace, place.hostname, place.interface) == (None, "", "eth0")
    assert (place.link_bps, place.slowest_bps) == (1e9, 1e9)
    with place.capping() as links:
        links.cap(0.25)
        links.check(0.5)
    ((ends, allowed, asked),) = changed
    assert allowed is True
    sending = [LinkEnd(None, "eth0"), LinkEnd(None, "eth1")]
    assert ends == [*sending, *(LinkEnd(None, end.interface, receiving=True) for end in sending)]
    assert asked.asked == [("cap", {"rate_bps": 0.25e9}), ("check", {"rate_bps": 0.5e9})]
    only = build_interface_place(["lo"], 5e6, allow_default_route=False, sending_only=True)
    assert (only.description, only.link_bps) == ("interfaces lo, sending only", 5e6)
    with only.capping():
        assert changed[1][:2] == ([LinkEnd(None, "lo")], False)


@pytest.mark.usefixtures("root")
def test_the_speed_of_an_interface_is_in_megabits() -> None:
    assert places.read_speed_bps(["slow"]) == 1e6
    assert places.read_speed_bps(["eth0", "eth1"]) == 1e9


def test_what_loopback_receives_is_what_it_has_sent() -> None:
    assert [*places.interface_ends(["eth0", "lo"], sending_only=False)] == BOTH
    assert [*places.interface_ends(["eth0", "lo"], sending_only=True)] == BOTH[:2]


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("names", [["eth0", "ib0"], ["down"], ["zero"], ["gone"]])
def test_interfaces_that_do_not_say_one_speed_need_a_rate(names: list[str]) -> None:
    with pytest.raises(InputError, match=r"link rate: the interfaces do not say it .*give --rate"):
        build_interface_place(names, None, allow_default_route=False)


def test_links_are_capped_by_root_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="profile: links cannot be capped: not root"):
        build_interface_place(["lo"], 1e6, allow_default_route=False)


def test_a_testbed_is_capped_at_every_cable_by_its_own_rate(
    changed: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wiring = Wiring(hosts=("a", "b"), rate_bps=10**9, switches="two-hops", uplink_bps=10**8)
    bed = plan_testbed(wiring, lambda node: f"ns-{node}")

    @contextmanager
    def use_testbed(name: str, purpose: str) -> Iterator[Any]:
        assert (name, purpose) == ("bed", "profile")
        yield bed

    monkeypatch.setattr(places.persistent, "use_testbed", use_testbed)
    with places.open_testbed_place("bed", None) as place:
        assert place.description.startswith("testbed bed, command on a; 2 hosts on two switches,")
        assert (place.namespace, place.hostname, place.interface) == ("ns-a", "a", "eth0")
        assert (place.link_bps, place.slowest_bps) == (10**9, 10**8)
        with place.capping() as links:
            links.cap(0.25)
            links.check(0.25)
    ((ends, allowed, asked),) = changed
    assert (ends, allowed) == (bed.all_ends(), False)
    assert asked.asked == [("cap", {"percent": 25.0}), ("check", {"percent": 25.0})]
    with places.open_testbed_place("bed", "b") as place:
        assert place.namespace == "ns-b"
    with (
        pytest.raises(InputError, match="--host c: not in testbed bed; use one of a, b"),
        places.open_testbed_place("bed", "c"),
    ):
        pass


# ---- Clusters ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("root")
def test_a_cluster_is_named_with_its_scheduler_and_interfaces() -> None:
    place = build_cluster_place("tcp://h:1", ["eth0"], None, sending_only=True)
    assert place.description == "cluster tcp://h:1, interfaces eth0, sending only"
    assert (place.link_bps, place.interface) == (1e9, "eth0")
    assert place.capping.args == (  # type: ignore[attr-defined]
        "tcp://h:1",
        CapRequest(
            interfaces=("eth0",), link_bps=1e9, allow_default_route=False, sending_only=True
        ),
    )


class Calls:
    def __init__(self) -> None:
        self.coordinator = self
        self.said: list[tuple[Any, ...]] = []
        self.lost: HostLost | None = None

    def announce(self, kind: str, data: Any) -> None:
        self.said.append((kind, data))

    def gather(self, kind: str, timeout_s: float) -> None:
        self.said.append((kind, timeout_s))
        if self.lost is not None:
            raise self.lost


def test_every_request_to_a_cluster_is_numbered_and_awaited() -> None:
    calls = Calls()
    links = places._ClusterLinks(cast(HostCalls, calls))
    links.cap(0.5)
    links.check(0.5)
    assert calls.said == [
        ("do", [1, "cap", 0.5]),
        ("did 1", 30.0),
        ("do", [2, "check", 0.5]),
        ("did 2", 30.0),
    ]
    calls.lost = HostLost("h3", "went away")
    with pytest.raises(InputError, match="host h3: went away; its links are restored there"):
        links.cap(1.0)


class Member:
    def __init__(self, *requests: list[Any]) -> None:
        self.requests = [*requests]
        self.reports: list[str] = []

    def wait_for(self, kind: str) -> list[Any]:
        assert kind == "do"
        if not self.requests:
            raise Stopped
        return self.requests.pop(0)

    def report(self, kind: str) -> None:
        self.reports.append(kind)


def test_a_member_caps_and_checks_until_it_is_stopped(
    changed: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member([1, "cap", 0.5], [2, "check", 0.5])

    @contextmanager
    def join(_: object) -> Iterator[Member]:
        yield member

    monkeypatch.setattr(places, "join", join)
    caps = CapRequest(
        interfaces=("eth0",), link_bps=1e6, allow_default_route=True, sending_only=True
    )
    places.hold_caps(cast(Any, None), caps)
    ((ends, allowed, asked),) = changed
    assert (ends, allowed) == ([LinkEnd(None, "eth0")], True)
    assert asked.asked == [("cap", {"rate_bps": 5e5}), ("check", {"rate_bps": 5e5})]
    assert member.reports == ["holding", "did 1", "did 2"]


# ---- One run ----------------------------------------------------------------------------------


class Clock:
    """Counters that say how often they were read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> tuple[int, int]:
        self.reads += 1
        return 10 * self.reads, 100 * self.reads


class Tree:
    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Times:
        self.reads += 1
        return Times(float(self.reads), 0.5 * self.reads)


def test_counters_are_recorded_at_the_start_at_every_interval_and_at_the_end() -> None:
    counters, tree = Clock(), Tree()
    with subprocess.Popen(["sleep", "0.2"]) as process:
        usage = record_usage(process, cast(TreeTimes, tree), counters, interval_s=0.05)
        assert process.poll() in (None, 0)
    rows = len(usage.at_s)
    assert rows >= 3
    assert counters.reads == rows
    assert tree.reads == rows - 1  # the command is gone at the last
    assert [*usage.received_bytes] == [10 * n for n in range(1, rows + 1)]
    assert [*usage.sent_bytes] == [100 * n for n in range(1, rows + 1)]
    assert [*usage.cpu_s] == [*range(1, rows), rows - 1]
    assert [*usage.run_delay_s] == [0.5 * n for n in (*range(1, rows), rows - 1)]
    assert (np.diff(usage.at_s) > 0).all()


def test_an_end_is_awaited_until_a_time_and_no_longer() -> None:
    with subprocess.Popen(["sleep", "60"]) as process, ProcessEnd(process.pid) as ended:
        started = time.monotonic()
        assert ended.wait(0) is False  # a time that is over
        assert ended.wait(started + 0.2) is False
        assert time.monotonic() >= started + 0.2
        process.kill()
        assert ended.wait(time.monotonic() + 60) is True
        assert ended.wait(0) is True


def test_a_command_that_takes_too_long_ends_the_recording() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                record_usage(
                    process, cast(TreeTimes, Tree()), Clock(), limit_s=0.1, interval_s=0.02
                )
        finally:
            process.kill()


def test_a_trace_is_what_grew_between_readings() -> None:
    usage = UsageSeries(
        np.array([0.0, 1.0, 3.0]),
        np.array([0.0, 50.0, 40.0]),  # a counter that was reset
        np.array([10.0, 20.0, 60.0]),
        np.array([0.0, 0.5, 4.0]),
        np.array([0.0, 0.25, 0.75]),
    )
    trace = build_trace(usage, 8e6)
    assert trace.duration_s == pytest.approx([1, 2])
    assert trace.received_bytes == pytest.approx([50, 0])
    assert trace.sent_bytes == pytest.approx([10, 40])
    assert trace.cpu_s == pytest.approx([0.75, 4.0])  # on a processor or ready for one
    assert (trace.link_bps, trace.cores) == (8e6, pytest.approx(0.75 + 0.95 * 1.25))
    with pytest.raises(InputError, match="the command ended at once"):
        build_trace(UsageSeries(*(column[:1] for column in (usage.at_s,) * 5)), 8e6)
    with pytest.raises(InputError, match="the command ended at once"):
        build_trace(UsageSeries(*(np.zeros(2) for _ in range(5))), 8e6)


def test_a_run_counts_its_own_bytes_and_time(tmp_path: Path) -> None:
    counters = Clock()
    script = f"{sys.executable} -c pass; sleep 0.1"
    spawn = partial(namespaces.spawn, None, ["sh", "-c", script], cwd=tmp_path)
    started = time.monotonic()
    result = runs.run_command(spawn, counters, limit_s=60, where="x")
    assert 0.1 < result.completion_s <= time.monotonic() - started
    # Read before, in each row, and after: what the first reading showed is subtracted.
    assert result.received_bytes == 10 * (counters.reads - 1)
    assert result.sent_bytes == 100 * (counters.reads - 1)
    run = result.at(0.5, 3)
    assert (run.share, run.repetition, run.completion) == (0.5, 3, result.completion_s)
    assert (run.bytes, run.sent_bytes) == (110 * (counters.reads - 1), result.sent_bytes)
    assert (run.cpu_s, run.run_delay_s) == (result.cpu_s, result.run_delay_s)


DEV = "a\nb\n  eth0: 1 2 3 4 5 6 7 8 9 10\n lo:11 0 0 0 0 0 0 0 22 0\n"


def test_bytes_are_the_first_and_the_ninth_number_of_an_interface() -> None:
    assert runs.bytes_by_interface(DEV) == {"eth0": (1, 9), "lo": (11, 22)}
    assert runs.bytes_by_interface("a\nb\n") == {}


def test_counters_of_an_interface_that_goes_while_others_stay_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "proc/7/net").mkdir(parents=True)
    (tmp_path / "proc/7/net/dev").write_text(DEV)
    assert runs.interface_bytes("lo", 7, (1, 2), root=tmp_path) == (11, 22)
    with pytest.raises(InputError, match="interface eth9: process 7 has eth0, lo"):
        runs.interface_bytes("eth9", 7, (1, 2), root=tmp_path)


@pytest.mark.parametrize(
    ("status", "written", "message"),
    [
        (3, b"first\nlast\n\n  \n", "exit status 3, after 'last'"),
        (-15, b"", "ended by SIGTERM"),
        (1, b"x" * 3000 + b"\nend", "exit status 1, after 'end'"),
        (1, b"y" * 3000, f"exit status 1, after {'y' * 2000!r}"),
    ],
)
def test_a_failure_is_its_status_and_the_last_line(
    tmp_path: Path, status: int, written: bytes, message: str
) -> None:
    with (tmp_path / "stderr").open("w+b") as stderr:
        stderr.write(written)
        assert runs.describe_failure(status, stderr) == message


# ---- Time that is left ------------------------------------------------------------------------

PLAN = Plan(
    name="app",
    command=("true",),
    shares=(0.5, 1.0),
    repeat=2,
    place="nowhere",
    link_bps=1e8,
    seed=1,
)


def test_time_left_is_unknown_before_the_first_run_and_then_that_of_the_planned_runs(
    tmp_path: Path,
) -> None:
    log = RunLog(tmp_path / "log", PLAN)
    assert remaining_s(log) is None
    first = FirstRun(run=Run(share=1.0, completion=3.0), traced=None)
    log.begin(first)
    assert remaining_s(log) == pytest.approx(2 * (3 / 0.5 + 3))
    log.add(Run(share=PLAN.order[0], completion=10.0), "")
    rest = [10.0 if share == PLAN.order[0] else 3 / share for share in PLAN.order[1:]]
    assert remaining_s(log) == pytest.approx(sum(rest))
    again = RunLog(tmp_path / "log", PLAN)
    assert remaining_s(again) == remaining_s(log)
    ahead = forecast_time(PLAN, first, None)
    assert (ahead.runs, ahead.least_s) == (4, pytest.approx(3 * 5))
    assert (ahead.expected_s, ahead.most_s) == (pytest.approx(3 * (1 + 6)),) * 2
