"""Fleets of local processes, and the coordinator that starts and stops them together."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from weft import __version__
from weft.errors import InputError
from weft.fleet import Coordinator, Fleet, HostCalls, HostLost, Invitation, join, local_fleet
from weft.fleet import fleet as fleet_module
from weft.fleet.coordinator import FROM_COORDINATOR, LOOK_S, Join, Member, Stopped, compare_clocks
from weft.fleet.fleet import SILENT_S, Worker, _find_lost, _match_workers, choose, dask_fleet
from weft.wire import PROTOCOL, SILENCE_S, connect, encode
from weft.wire.protocol import Hello, Prove

WAIT_S = 30.0


def _pid() -> int:
    return os.getpid()


def _fail() -> None:
    raise InputError("here", "wrong", "mend it")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _take_part(invitation: Invitation) -> tuple[int, int, int]:
    """(start by the coordinator's clock, error of that clock, what was told)."""
    with join(invitation) as member:
        member.report("ready", invitation.member)
        told = member.wait_for("go", WAIT_S)
        start = time.monotonic_ns() + member.clock_offset_ns
        member.report("done", start)
        member.ended.wait(WAIT_S)
        return start, member.clock_error_ns, told


def _wait_to_be_stopped(invitation: Invitation) -> bool:
    with join(invitation) as member:
        member.report("ready")
        try:
            member.wait_for("go", WAIT_S)
        except Stopped:
            return member.stopped.wait(WAIT_S)
        return False


def test_each_host_is_a_process_of_its_own_with_its_own_loopback_address() -> None:
    with local_fleet(["a", "b"]) as fleet:
        pids = {host: e.submit(_pid).result(WAIT_S) for host, e in fleet.executors.items()}
        again = fleet.executors["a"].submit(_pid).result(WAIT_S)
        assert len({*pids.values(), os.getpid()}) == 3
        assert again == pids["a"]
        assert fleet.coordinator == "127.0.0.1"
        assert fleet.addresses == {"a": "127.0.0.1", "b": "127.0.0.2"}
        with pytest.raises(InputError, match="here: wrong; mend it"):
            fleet.executors["b"].submit(_fail).result(WAIT_S)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids.values())


def test_a_process_whose_call_goes_on_is_killed_with_its_fleet() -> None:
    with local_fleet(["a"], end_s=1.0) as fleet:
        call = fleet.executors["a"].submit(time.sleep, 2 * WAIT_S)
        _, last = (fleet.executors["a"].submit(_pid) for _ in range(2))
        deadline = time.monotonic() + WAIT_S
        while not call.running() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert isinstance(call.exception(WAIT_S), BrokenProcessPool)
    assert last.cancelled()


def test_a_host_whose_process_died_is_named() -> None:
    with local_fleet(["a", "b"]) as fleet:
        with pytest.raises(BrokenProcessPool):
            fleet.executors["a"].submit(_die).result(WAIT_S)
        deadline = time.monotonic() + 5
        while not (lost := fleet.find_lost()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(lost) == ["a"]
        assert "has died" in lost["a"]


def test_members_go_together_and_their_starts_can_be_compared() -> None:
    with (
        local_fleet(["a", "b"]) as fleet,
        Coordinator(["a", "b"], fleet.coordinator) as coordinator,
    ):
        running = {
            host: executor.submit(_take_part, coordinator.invitation(host))
            for host, executor in fleet.executors.items()
        }
        assert coordinator.gather("ready", WAIT_S) == {"a": "a", "b": "b"}
        before = time.monotonic_ns()
        coordinator.announce("go", 7)
        starts = coordinator.gather("done", WAIT_S)
        after = time.monotonic_ns()
        coordinator.announce("end")
        for host, future in running.items():
            start, error, told = future.result(WAIT_S)
            assert told == 7
            assert start == starts[host]
            # One machine, one clock: the offset is wrong by at most its own bound.
            assert before - error <= start <= after + error


def test_the_end_of_the_coordinator_stops_its_members() -> None:
    with local_fleet(["a"]) as fleet:
        with Coordinator(["a"], fleet.coordinator) as coordinator:
            future = fleet.executors["a"].submit(_wait_to_be_stopped, coordinator.invitation("a"))
            coordinator.gather("ready", WAIT_S)
        assert future.result(WAIT_S)


def test_a_member_that_dies_is_lost_within_seconds() -> None:
    with local_fleet(["a"]) as fleet, Coordinator(["a"], fleet.coordinator) as coordinator:
        pid = fleet.executors["a"].submit(_pid).result(WAIT_S)
        fleet.executors["a"].submit(_wait_to_be_stopped, coordinator.invitation("a"))
        coordinator.gather("ready", WAIT_S)
        os.kill(pid, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(HostLost, match="a: "):
            coordinator.gather("done", WAIT_S)
        assert time.monotonic() - started < 10


def test_a_member_that_takes_no_data_is_lost_as_soon_as_a_send_fails() -> None:
    with local_fleet(["a"]) as fleet, Coordinator(["a"], fleet.coordinator) as coordinator:
        pid = fleet.executors["a"].submit(_pid).result(WAIT_S)
        fleet.executors["a"].submit(_wait_to_be_stopped, coordinator.invitation("a"))
        coordinator.gather("ready", WAIT_S)
        os.kill(pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            while time.monotonic() < started + SILENCE_S and not coordinator.lost_members:
                coordinator.announce("go", "x" * 500_000)
            with pytest.raises(HostLost, match=r"a: .*takes no data"):
                coordinator.gather("done", WAIT_S)
        finally:
            os.kill(pid, signal.SIGKILL)


GARBAGE = (
    b"\xff\x00garbage\n",
    b"x" * 100_000,
    b"\0\0\0\x04[[[[",
    b'\0\0\0\x0f{"type":"join"}',
    b'\0\0\0\x0f{"type":"beat"}',
    encode(Join("a")),
    encode(Hello(PROTOCOL + 1, "9.9", "0" * 64)),
    encode(Hello(PROTOCOL, "9.9", "0" * 64)) + encode(Prove("0" * 64)),
)


def _send_and_wait(where: Invitation, garbage: bytes) -> None:
    """Until the other side has hung up."""
    with socket.create_connection((where.host, where.port), timeout=WAIT_S) as stranger:
        stranger.sendall(garbage)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass


def test_a_stranger_without_the_token_is_refused() -> None:
    with Coordinator(["a"], "127.0.0.1") as coordinator:
        good = coordinator.invitation("a")
        bad = Invitation(member="a", host=good.host, port=good.port, token="guess")
        with pytest.raises((Stopped, OSError)), join(bad):
            pass
        for garbage in GARBAGE:
            _send_and_wait(good, garbage)
        with join(good) as member:
            member.report("ready")
            coordinator.gather("ready", WAIT_S)


def test_a_second_join_does_not_take_over_a_member() -> None:
    with Coordinator(["a"], "127.0.0.1") as coordinator:
        with join(coordinator.invitation("a")) as first:
            refused = pytest.raises(Stopped, match="host a: has already joined")
            with refused, join(coordinator.invitation("a")):
                pass
            first.report("ready", "of the first")
            assert coordinator.gather("ready", WAIT_S) == {"a": "of the first"}
            coordinator.announce("go", 5)
            assert first.wait_for("go", WAIT_S) == 5
            assert coordinator.lost_members == frozenset()
        with pytest.raises(HostLost, match="a: it has left"):
            coordinator.gather("done", WAIT_S)


def test_a_host_that_is_not_of_the_step_is_refused_by_name() -> None:
    with Coordinator(["a"], "127.0.0.1") as coordinator:
        refused = pytest.raises(Stopped, match="host b: is not a host of this step")
        with refused, join(coordinator.invitation("b")):
            pass
        assert not coordinator.all_joined


def test_the_shortest_round_trip_bounds_the_clock_s_offset_by_half_its_length() -> None:
    rounds = [(1000, 7000, 1900), (2000, 8055, 2100), (3000, 9000, 3500)]
    assert compare_clocks(rounds) == (8055 - 2050, 50)


def test_a_host_that_never_comes_is_named() -> None:
    with (
        Coordinator(["a"], "127.0.0.1") as coordinator,
        pytest.raises(HostLost, match="a: not ready within"),
    ):
        coordinator.gather("ready", 0.3)


WORKERS = [
    Worker(address="tcp://10.0.0.1:4000", name="alpha", machine="node1"),
    Worker(address="tcp://10.0.0.2:4000", name="1", machine="beta"),
    Worker(address="tcp://10.0.0.3:4000", name="2", machine="node3"),
    Worker(address="tcp://10.0.0.4:4000", name="3", machine="node4"),
    Worker(address="tcp://10.0.0.4:4001", name="4", machine="node4"),
]


def test_workers_are_chosen_by_name_by_machine_or_by_address() -> None:
    wanted = {"alpha": None, "beta": None, "gamma": "10.0.0.3"}
    chosen = choose(WORKERS, wanted, "--cluster")
    assert [w.ip for w in chosen.values()] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"delta": None}, r"no worker for host delta; .*workers there: 1 \(on beta, 10.0.0.2\)"),
        ({"node4": None}, r"host node4 has 2 workers \(3, 4\)"),
        ({"alpha": None, "node1": None}, "alpha and node1 are both on worker alpha"),
    ],
)
def test_hosts_without_a_worker_of_their_own_are_refused(
    wanted: dict[str, str | None], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        choose(WORKERS, wanted, "--cluster")


def test_without_wanted_hosts_every_worker_is_one_and_there_must_be_one() -> None:
    assert _match_workers(WORKERS, None, "--cluster") == {w.name: w for w in WORKERS}
    with pytest.raises(InputError, match="no workers; start one on each host"):
        _match_workers([], None, "--cluster")


def test_a_missing_dask_is_reported_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    missing = pytest.raises(InputError, match=r"pip install 'weft\[cluster\]'")
    with missing, dask_fleet("tcp://h:1", {}):
        pass


@pytest.mark.parametrize("address", ["nonsense", "tcp://", "tcp://h", "tcp://h:x", "http://h:1"])
def test_what_is_no_address_of_a_scheduler_is_refused_at_once(address: str) -> None:
    refused = pytest.raises(InputError, match="not the address of a scheduler")
    with refused, dask_fleet(address, {}):
        pass


# ---- What a host's call and its coordinator make of trouble -----------------------------------


def _calls(coordinator: Coordinator, lost: dict[str, str] | None = None) -> HostCalls:
    """Calls of hosts a and b that this test ends itself."""
    fleet = Fleet(executors={}, addresses={}, coordinator="127.0.0.1", find_lost=lambda: lost or {})
    return HostCalls(coordinator, fleet, {"a": Future(), "b": Future()})


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with Coordinator(["a", "b"], "127.0.0.1") as opened:
        yield opened


def test_a_call_s_own_error_is_raised_where_its_report_is_awaited(coordinator: Coordinator) -> None:
    calls = _calls(coordinator)
    calls.calls["b"].set_exception(InputError("here", "wrong", "mend it"))
    with pytest.raises(InputError, match="here: wrong; mend it"):
        calls.gather("ready", WAIT_S)


def test_lost_hosts_are_looked_for_once_in_a_while_not_at_every_turn(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    now_s = [100.0]
    monkeypatch.setattr("weft.fleet.coordinator.time.monotonic", lambda: now_s[0])
    fleet = Fleet(
        executors={},
        addresses={},
        coordinator="127.0.0.1",
        find_lost=lambda: looks.append(now_s[0]) or {},  # type: ignore[func-returns-value]
    )
    calls = HostCalls(coordinator, fleet, {"a": Future(), "b": Future()})
    for _ in range(3):
        calls._check()
    now_s[0] += LOOK_S + 0.1
    calls._check()
    assert looks == [100.0, 100.1 + LOOK_S]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BrokenProcessPool("x"), "b: its process has died"),
        (Stopped("x"), r"b: it does not reach the coordinator \(x\)"),
        (ConnectionRefusedError("x"), r"b: it does not reach the coordinator \(x\)"),
    ],
)
def test_a_call_that_was_lost_names_its_host_and_the_reason(
    coordinator: Coordinator, error: Exception, reason: str
) -> None:
    calls = _calls(coordinator)
    calls.calls["b"].set_exception(error)
    with pytest.raises(HostLost, match=reason):
        calls.gather("ready", WAIT_S)


def test_a_cancelled_call_is_a_lost_host(coordinator: Coordinator) -> None:
    calls = _calls(coordinator)
    calls.calls["a"].cancel()
    with pytest.raises(HostLost, match="a: its worker cancelled the call"):
        calls.gather("ready", WAIT_S)


def test_a_host_lost_before_it_joined_is_named_by_the_fleet(coordinator: Coordinator) -> None:
    with pytest.raises(HostLost, match="b: has left the cluster"):
        _calls(coordinator, {"b": "has left the cluster"}).gather("ready", WAIT_S)


def test_the_fleet_is_not_asked_once_all_have_joined(coordinator: Coordinator) -> None:
    with join(coordinator.invitation("a")) as a, join(coordinator.invitation("b")) as b:
        a.report("ready", 1)
        b.report("ready", 2)
        coordinator.gather("ready", WAIT_S)
        calls = _calls(coordinator, {"b": "has left the cluster"})
        with pytest.raises(HostLost, match="a: not done within"):
            calls.gather("done", 0.5)


def test_closing_ends_all_calls_and_names_those_that_do_not_end(coordinator: Coordinator) -> None:
    with join(coordinator.invitation("a")) as a, join(coordinator.invitation("b")) as b:
        a.report("ready")
        b.report("ready")
        coordinator.gather("ready", WAIT_S)
        calls = _calls(coordinator)
        calls.calls["a"].set_result(None)
        assert calls.close(0.2) == ["b"]
        assert a.ended.wait(WAIT_S)
        assert b.ended.wait(WAIT_S)


def test_lost_hosts_are_not_waited_for(coordinator: Coordinator) -> None:
    with join(coordinator.invitation("a")) as a, join(coordinator.invitation("b")):
        a.report("ready")
    with pytest.raises(HostLost):
        coordinator.gather("done", WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while len(coordinator.lost_members) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    began = time.monotonic()
    assert _calls(coordinator).close(WAIT_S) == []
    assert time.monotonic() - began < WAIT_S / 2


def test_what_a_member_reported_before_it_left_counts(coordinator: Coordinator) -> None:
    with join(coordinator.invitation("a")) as a, join(coordinator.invitation("b")) as b:
        a.report("done", 1)
        b.report("done", 2)
        coordinator.gather("done", WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while len(coordinator.lost_members) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert coordinator.gather("done", WAIT_S) == {"a": 1, "b": 2}


def test_a_stranger_that_says_nothing_is_dropped(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.fleet.coordinator.SILENCE_S", 0.1)
    invitation = coordinator.invitation("a")
    with socket.create_connection((invitation.host, invitation.port), timeout=5) as stranger:
        assert stranger.recv(1) == b""


def _beat_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.wire.connection.SILENCE_S", 1.0)
    for module in ("weft.wire.connection", "weft.fleet.coordinator"):
        monkeypatch.setattr(f"{module}.BEAT_S", 0.05)


def test_beats_keep_an_idle_member_and_its_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    _beat_fast(monkeypatch)
    with Coordinator(["a"], "127.0.0.1") as coordinator, join(coordinator.invitation("a")) as a:
        assert not a.ended.wait(2.5)
        assert coordinator.lost_members == frozenset()


def test_a_member_that_falls_silent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    _beat_fast(monkeypatch)
    with Coordinator(["a"], "127.0.0.1") as coordinator:
        at = coordinator.invitation("a")
        sock = socket.create_connection((at.host, at.port), timeout=5)
        connection = connect(sock, at.token.encode(), "coordinator", FROM_COORDINATOR)
        with contextlib.closing(connection):
            connection.send(Join("a"))
            with pytest.raises(HostLost, match="a: no sign of life"):
                coordinator.gather("ready", 10)


def test_an_order_reaches_every_member_and_others_are_skipped(coordinator: Coordinator) -> None:
    with join(coordinator.invitation("a")) as a, join(coordinator.invitation("b")) as b:
        coordinator.announce("servers", {"x": 1})
        coordinator.announce("go", 2)
        assert a.wait_for("servers", WAIT_S) == {"x": 1}
        assert [a.wait_for("go", WAIT_S), b.wait_for("go", WAIT_S)] == [2, 2]
        with pytest.raises(Stopped, match=r"no 'step' from the coordinator in 0\.1 s"):
            a.wait_for("step", 0.1)


def test_a_stop_runs_the_callbacks_also_those_set_after_it(coordinator: Coordinator) -> None:
    called: list[str] = []
    with join(coordinator.invitation("a")) as a:
        a.on_stop([lambda: called.append("before")])
        coordinator.announce("stop")
        with pytest.raises(Stopped, match="ended the step"):
            a.wait_for("go", WAIT_S)
        assert a.stopped.wait(WAIT_S)
        assert not a.ended.is_set()
        deadline = time.monotonic() + WAIT_S
        while not called and time.monotonic() < deadline:
            time.sleep(0.01)
        a.on_stop([lambda: called.append("after")])
        assert called == ["before", "after"]


def _report_often(member: Member) -> None:
    """The first frames after the end may still fit the kernel's buffer."""
    for _ in range(100):
        member.report("done", "x" * 100_000)


def test_a_member_that_lost_its_coordinator_cannot_report() -> None:
    with Coordinator(["a"], "127.0.0.1") as coordinator:
        member = ExitStack()
        joined = member.enter_context(join(coordinator.invitation("a")))
    with member:
        assert joined.ended.wait(WAIT_S)
        with pytest.raises(Stopped, match="the coordinator is lost"):
            _report_often(joined)


def test_the_end_of_a_coordinator_closes_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    # Silence tells nothing in this time: the member can only see the end of the stream.
    monkeypatch.setattr("weft.wire.connection.SILENCE_S", 10 * WAIT_S)
    with Coordinator(["a"], "127.0.0.1") as coordinator:
        member = ExitStack()
        joined = member.enter_context(join(coordinator.invitation("a")))
    with member:
        assert joined.ended.wait(WAIT_S)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_call_has_its_result_and_no_calls_have_none(jobs: int) -> None:
    calls = [fleet_module.Call(name=f"call {n}", arguments=(n,)) for n in (3, 5)]
    progress: list[float] = []
    ended = fleet_module.run_calls(abs, calls, where="here", jobs=jobs, progress=progress.append)
    assert dict(ended) == {0: 3, 1: 5}
    assert progress == [0.5, 1.0]
    assert [*fleet_module.run_calls(abs, [], where="here", jobs=jobs)] == []


def test_a_lost_host_survives_pickling() -> None:
    lost = pickle.loads(pickle.dumps(HostLost("a", "gone")))
    assert (lost.host, lost.reason, str(lost)) == ("a", "gone", "a: gone")


class _Client:
    """What `_find_lost` reads of a Dask client and of its scheduler."""

    def __init__(self, last_seen: dict[str, float], status: str = "running") -> None:
        self._last_seen = last_seen
        self.status = status
        self.scheduler = self

    def identity(self, n_workers: int) -> dict[str, object]:
        assert n_workers == -1
        return {"workers": {a: {"last_seen": s} for a, s in self._last_seen.items()}}

    def sync(self, function, *, callback_timeout: float, **options: int) -> dict[str, object]:
        assert callback_timeout > 0
        return function(**options)


def test_workers_that_left_or_are_silent_for_too_long_are_lost() -> None:
    chosen = {f"h{n}": worker for n, worker in enumerate(WORKERS[:4])}
    ages = {WORKERS[0]: 0.0, WORKERS[1]: SILENT_S, WORKERS[2]: SILENT_S + 0.5}
    client = _Client({worker.address: 1000.0 - age for worker, age in ages.items()})
    lost = _find_lost(client, chosen)
    assert list(lost) == ["h2", "h3"]
    assert lost["h2"].endswith("is silent")
    assert lost["h3"].endswith("has left the cluster")


def test_without_its_scheduler_every_host_is_lost() -> None:
    chosen = {f"h{n}": worker for n, worker in enumerate(WORKERS[:2])}
    lost = _find_lost(_Client({}, status="connecting"), chosen)
    assert list(lost) == ["h0", "h1"]
    assert all("scheduler does not answer" in reason for reason in lost.values())


def test_an_address_that_is_not_ours_cannot_coordinate() -> None:
    with pytest.raises(InputError, match=r"coordinator address 192\.0\.2\.1: .*`coordinator`"):
        Coordinator(["a"], "192.0.2.1")


def test_a_call_checks_the_version_of_its_worker_and_whether_its_caller_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "get_worker", lambda: SimpleNamespace(name="w1"))
    monkeypatch.setattr(fleet_module, "_stopped_runs", {"over"})
    assert fleet_module._call_in_worker(__version__, "run", abs, -3) == 3
    with pytest.raises(InputError, match=rf"w1: has weft {__version__}, and here is 0\.0"):
        fleet_module._call_in_worker("0.0", "run", abs, -3)
    with pytest.raises(fleet_module.CallStopped):
        fleet_module._call_in_worker(__version__, "over", abs, -3)
    with pytest.raises(InputError, match="Dask worker w1: here: wrong"):
        fleet_module._call_in_worker(__version__, "run", _fail)
