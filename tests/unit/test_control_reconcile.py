"""The reconciler: what ports should have against what they have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from control_parts import FABRIC, connect, key, ports_of, seen_without
from control_rig import Memory, Rig
from msgspec import structs

from weft.control.runtime.drivers import SwitchDrivers
from weft.control.runtime.port_tracker import RETRY_S, PortTracker
from weft.control.runtime.reconcile import Pace
from weft.control.state.events import Deregister, Register, Registered
from weft.control.state.policy_settings import Settings
from weft.fabric import leaf_spine
from weft.switches import AgentEvent, Failed, Foreign, HtbQueue, PortName, Tables
from weft.switches.simulated import DEFAULT_ABILITY, SimulatedSwitches, WriteFailures

PACE = Pace(check_s=10.0, topology_s=60.0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    opened = Rig(tmp_path / "control.db", pace=PACE)
    yield opened
    opened.close()


def start(rig: Rig, name: str = "calm", number: int = 1, destination: str = "h2") -> str:
    event = Register(key=key(number, "r"), name=name, ttl_s=0.0, now_s=0.0)
    answer = rig.ask(structs.replace(event, ttl_s=1000.0))
    assert isinstance(answer, Registered)
    rig.ask(connect(answer.id, "h0", destination, number, now_s=rig.engine.now_s))
    return answer.id


def is_programmed(rig: Rig) -> bool:
    held, target = rig.switches.held, rig.engine.state.target
    return all(held[name] == tables for name, tables in target.items())


def test_remarks_of_a_driver_are_logged_with_the_fabric(rig: Rig) -> None:
    rig.switches.notes = ("a remark",)
    rig.turn()
    assert rig.lines[-1] == "a remark"
    assert "" not in rig.lines


@pytest.mark.parametrize("guards_marks", [True, False])
def test_an_agent_that_ended_and_one_that_is_back_are_logged_once(
    rig: Rig, guards_marks: bool
) -> None:
    if guards_marks:
        rig.explorer._edge = SimpleNamespace(turn=lambda _: None)  # type: ignore[assignment]
    rig.settle()
    rig.lines.clear()
    rig.switches.agent_events = (
        AgentEvent("leaf0", False, 1.0),  # the first connection: nothing was lost
        AgentEvent("leaf1", True, 2.0),
        AgentEvent("leaf1", True, 2.5),
    )
    rig.turn()
    rig.switches.agent_events = (AgentEvent("leaf1", False, 5.5),)
    rig.turn()
    rules = "its rules stay in the kernel, violations are not reported until it is back"
    stays = rules if guards_marks else "its tables stay in the kernel"
    assert rig.lines == [
        f"lost: agent of leaf1 ended; {stays}",
        "back: agent of leaf1, after 3.5 s",
    ]


def test_an_agent_that_ends_with_all_others_is_logged_before_drivers_are_closed(rig: Rig) -> None:
    rig.settle()
    rig.switches.away, rig.switches.agent_events = True, (AgentEvent("leaf1", True, 2.0),)
    rig.pass_time(PACE.topology_s)
    rig.explorer._discover()
    assert any(line.startswith("lost: agent of leaf1 ended; ") for line in rig.lines)


def test_exactly_the_ports_of_a_path_are_written(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.turn()
    assert rig.switches.writes == [set(rig.engine.state.target)]
    assert is_programmed(rig)
    report = rig.reconciler.report()
    assert (report.counts.programmed, report.counts.ports) == (1, len(rig.engine.state.target))
    assert (report.counts.ports_pending, report.failing) == (0, {})
    untouched = set(rig.switches.held) - set(rig.engine.state.target)
    assert all(isinstance(rig.switches.held[name], Foreign) for name in untouched)


def test_a_port_that_has_what_it_should_is_not_written_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "control.db")
    rig.turn()
    start(rig)
    rig.turn()
    rig.close()
    rig.switches.writes.clear()
    again = Rig(tmp_path / "control.db", rig.switches)
    again.turn()
    again.turn()
    assert rig.switches.writes == []
    assert again.reconciler.report().counts.programmed == 1
    again.close()


def test_ports_that_were_never_read_are_left_to_the_drivers_own_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "control.db", settings=Settings(take_over=True), pace=PACE)
    rig.settle()
    assert is_programmed(rig)
    assert rig.reconciler.report().counts.ports == len(ports_of(FABRIC))
    assert rig.switches.reads == []
    rig.close()


def test_a_start_without_switches_waits_and_says_so_and_writes_nothing(rig: Rig) -> None:
    rig.switches.away = True
    rig.turn()
    start(rig)
    for _ in range(5):
        rig.clock.now_s += 40.0
        rig.turn()
    assert rig.switches.writes == []
    assert rig.lines == ["switches cannot be reached, trying again: switches: no answer"]
    assert rig.reconciler.problem == rig.lines[0]
    rig.switches.away = False
    rig.clock.now_s += 40.0
    rig.turn()
    assert is_programmed(rig)
    assert rig.reconciler.problem == ""
    assert "switches are reached" in rig.lines


def test_what_cannot_be_read_is_not_written_over(rig: Rig) -> None:
    rig.turn()
    start(rig)
    mute = next(iter(rig.engine.state.target))
    rig.switches.broken.add(mute)
    rig.turn()
    assert mute not in set().union(*rig.switches.writes)
    report = rig.reconciler.report(with_ports=True)
    assert (report.by_port[mute].status, report.failing) == ("failing", {mute: "no answer"})
    assert (report.counts.ports, report.counts.ports_pending) == (len(rig.engine.state.target), 0)
    assert report.counts.programmed == 0


def test_a_port_that_fails_is_tried_again_ever_later_and_holds_up_no_other(rig: Rig) -> None:
    rig.turn()
    bad = PortName("h0", 1)
    rig.switches.fails = lambda name: name == bad
    start(rig)
    tries = 0
    for _ in range(600):  # a minute
        rig.turn()
        rig.clock.now_s += 0.1
    tries = sum(bad in names for names in rig.switches.writes)
    assert 6 <= tries <= 12
    assert all(rig.switches.held[n] == t for n, t in rig.engine.state.target.items() if n != bad)
    assert isinstance(rig.switches.held[bad], Foreign)
    rig.switches.fails = lambda _: False
    rig.clock.now_s += 31.0
    rig.turn()
    assert is_programmed(rig)


def test_drift_is_noticed_within_the_time_of_a_check_and_repaired_at_once(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.turn()
    name, tables = next(iter(rig.engine.state.target.items()))
    rig.switches.held[name] = Tables(
        queue_of=tables.queue_of, weights=tuple(reversed(tables.weights))
    )
    rig.clock.now_s += 5.0
    rig.turn()
    assert rig.reconciler.report().counts.drifts == 0
    rig.clock.now_s += 5.1
    rig.turn()
    assert rig.reconciler.report().counts.drifts == 1
    rig.clock.now_s += 0.02
    rig.turn()
    assert is_programmed(rig)
    assert rig.lines[-2].startswith(f"drift: {name} has weights")
    assert rig.lines[-1] == f"drift: {name} repaired in 20 ms"


def change_by_hand(rig: Rig, name: PortName) -> None:
    """Somebody writes other tables, and the next check repairs them."""
    tables = rig.engine.state.target[name]
    weights = tuple(reversed(tables.weights))
    rig.switches.held[name] = Tables(queue_of=tables.queue_of, weights=weights)
    rig.clock.now_s += 10.1
    rig.turn()
    rig.turn()
    assert is_programmed(rig)


def test_a_port_that_somebody_else_writes_again_and_again_is_reported(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.turn()
    first, second = list(rig.engine.state.target)[:2]
    for _ in range(3):
        change_by_hand(rig, first)
        change_by_hand(rig, second)
    assert not rig.reconciler.describe_contested()
    change_by_hand(rig, second)
    problem = rig.reconciler.describe_contested()
    assert problem == (
        f"{second}: changed by somebody else 4 times within 300 s; "
        "end the other controller, script or subnet manager with qos"
    )
    change_by_hand(rig, first)
    assert ", and 1 more port: changed by somebody" in rig.reconciler.describe_contested()
    assert [line for line in rig.lines if line.startswith("contested")] == [f"contested: {problem}"]
    rig.clock.now_s += 301.0
    assert not rig.reconciler.describe_contested()


def test_a_port_that_is_changed_now_and_then_is_not_contested(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.turn()
    name = next(iter(rig.engine.state.target))
    for _ in range(8):
        rig.clock.now_s += 100.0
        rig.turn()
        change_by_hand(rig, name)
        assert not rig.reconciler.describe_contested()


def test_drift_of_a_queue_names_its_rate_and_priority(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.turn()
    name, tables = next(iter(rig.engine.state.target.items()))
    queues = [HtbQueue(1000 * weight, 1) for weight in tables.weights]
    queues[2] = HtbQueue(77_000, 0)
    # As `tc class change ... rate 77kbit` leaves an HTB class: its ceil follows its rate.
    rig.switches.held[name] = Foreign("class 7765:12: ceil_bps is 77000", tuple(queues))
    rig.clock.now_s += 10.1
    rig.turn()
    assert rig.lines[-1] == (
        f"drift: {name}, queue 2: rate is 77 kb/s, should be {tables.weights[2]} kb/s; "
        "priority is 0, should be 1"
    )


def test_drift_that_no_queue_shows_is_described_as_it_was_found(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.turn()
    name, tables = next(iter(rig.engine.state.target.items()))
    queues = tuple(HtbQueue(1000 * weight, 1) for weight in tables.weights)
    rig.switches.held[name] = Foreign("class 7765:12: ceil_bps is 77000, not 255000", queues)
    rig.clock.now_s += 10.1
    rig.turn()
    found = "class 7765:12: ceil_bps is 77000, not 255000, should have weights"
    assert rig.lines[-1].startswith(f"drift: {name} has {found}")


def test_a_target_that_changes_while_a_port_fails_is_written_when_it_recovers(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.switches.broken.update(rig.engine.state.target)
    rig.turn()
    start(rig, "keen", 2)
    rig.turn()
    rig.switches.broken.clear()
    rig.clock.now_s += 31.0
    rig.settle()
    assert is_programmed(rig)
    assert rig.reconciler.report().counts.programmed == 2


def test_a_fabric_that_changes_is_noticed_and_connections_take_their_new_paths(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.turn()
    bigger = leaf_spine(2, 3, 2)
    rig.switches.fabric = bigger
    rig.switches.held |= Memory(bigger).held | rig.switches.held
    rig.clock.now_s += 61.0
    rig.turn()
    rig.turn()
    assert rig.engine.state.paths is not None
    assert rig.engine.state.paths.fabric == bigger
    assert is_programmed(rig)


def test_a_link_that_is_seen_to_fail_moves_the_tables_within_three_seconds(rig: Rig) -> None:
    """The clock of the rig stands: only watching and confirming take time."""
    rig.turn()
    start(rig)
    rig.turn()
    rig.switches.fabric = seen_without(FABRIC, "spine0")
    rig.switches.changed = True
    began_s = rig.clock.now_s
    while rig.engine.state.paths.fabric == FABRIC and rig.clock.now_s < began_s + 60:
        rig.clock.now_s += 0.1
        rig.turn()
    rig.settle()
    assert rig.clock.now_s - began_s <= 3.0
    assert is_programmed(rig)


def test_after_a_change_the_fabric_is_discovered_until_it_has_settled(rig: Rig) -> None:
    rig.turn()
    rig.switches.changed = True
    rig.clock.now_s += 1.0
    rig.turn()
    before = rig.switches.discoveries
    for _ in range(30):
        rig.clock.now_s += 1.0
        rig.turn()
    assert 8 <= rig.switches.discoveries - before <= 12, "each second for ten seconds"
    assert rig.switches.looks >= 30


def test_a_switch_that_leaves_the_fabric_is_not_counted_as_failing(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.turn()
    rig.switches.broken = {name for name in rig.switches.held if name.node == "spine0"}
    rig.clock.now_s += 11.0
    rig.turn()
    assert rig.reconciler.report().failing.keys() == rig.switches.broken & set(
        rig.engine.state.target
    )
    rig.switches.fabric = seen_without(FABRIC, "spine0")
    for _ in range(2):
        rig.clock.now_s += 3.0
        rig.settle()
    report = rig.reconciler.report(with_ports=True)
    assert "spine0" not in {name.node for name in report.by_port}
    assert report.failing == {}
    rig.switches.fabric = FABRIC
    rig.switches.broken.clear()
    rig.clock.now_s += 61.0
    rig.settle()
    assert is_programmed(rig)
    assert rig.reconciler.report().counts.programmed == 1


# ---- A fabric that is seen in part ------------------------------------------------------------


@pytest.mark.parametrize("gone", ["h2", "leaf1", "spine0", "spine1"])
def test_a_node_that_one_discovery_misses_costs_no_port_its_tables(rig: Rig, gone: str) -> None:
    rig.turn()
    start(rig)
    start(rig, "keen", 2)
    rig.settle()
    rig.switches.writes.clear()
    rig.switches.fabric = seen_without(FABRIC, gone)
    rig.clock.now_s += 61.0
    rig.settle()
    assert "looking again" in rig.lines[-1]
    assert rig.engine.state.paths.fabric == FABRIC
    rig.switches.fabric = FABRIC
    rig.clock.now_s += 2.1
    rig.settle()
    assert rig.switches.writes == []
    assert len(rig.engine.state.missing_paths) == 0


@pytest.mark.parametrize("gone", ["h2", "leaf1", "spine0", "spine1"])
def test_a_node_that_stays_away_costs_no_port_its_tables_either(rig: Rig, gone: str) -> None:
    rig.turn()
    start(rig)
    start(rig, "keen", 2)
    rig.settle()
    rig.switches.writes.clear()
    rig.switches.fabric = part = seen_without(FABRIC, gone)
    for _ in range(40):
        rig.clock.now_s += 2.1
        rig.settle()
    assert rig.engine.state.paths.fabric == part
    assert rig.switches.writes == []
    rig.switches.fabric = FABRIC
    rig.clock.now_s += 61.0
    rig.settle()
    assert rig.switches.writes == []
    assert len(rig.engine.state.missing_paths) == 0


def test_routes_that_one_discovery_misses_are_looked_for_again(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.settle()
    fewer = FABRIC.routes.next_hop.copy()
    fewer[0] = -1
    rig.switches.fabric = replace(FABRIC, routes=replace(FABRIC.routes, next_hop=fewer))
    rig.clock.now_s += 61.0
    rig.settle()
    assert rig.lines[-1] == "fabric leaf_spine: routes are missing; looking again"
    assert rig.engine.state.paths.fabric == FABRIC


def test_a_start_in_a_part_of_the_fabric_looks_again_and_writes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "control.db", pace=PACE)
    rig.turn()
    start(rig)
    rig.settle()
    rig.close()
    rig.switches.writes.clear()
    rig.switches.fabric = seen_without(FABRIC, "spine0", "spine1")
    again = Rig(tmp_path / "control.db", rig.switches, pace=PACE)
    again.settle()
    assert "looking again" in again.lines[-1]
    assert again.engine.state.paths is None
    again.clock.now_s += 2.1
    again.settle()
    assert len(again.engine.state.missing_paths) == 1
    rig.switches.fabric = FABRIC
    again.clock.now_s += 61.0
    again.settle()
    assert rig.switches.writes == []
    assert len(again.engine.state.missing_paths) == 0
    again.close()


def test_a_host_that_nobody_knows_yet_is_looked_for_soon_and_ever_later(rig: Rig) -> None:
    rig.switches.fabric = seen_without(FABRIC, "h3")
    rig.turn()
    start(rig, destination="h3")
    assert len(rig.engine.state.missing_paths) == 1
    rig.switches.fabric = FABRIC
    rig.clock.now_s += 2.1
    rig.settle()
    assert len(rig.engine.state.missing_paths) == 0
    assert is_programmed(rig)
    rig.switches.discoveries = 0
    for number in range(100):
        rig.ask(connect("calm#1", "h0", "elsewhere", 10 + number, now_s=rig.engine.now_s))
        rig.settle()
        rig.clock.now_s += 0.5
    assert 4 <= rig.switches.discoveries <= 6  # after 2, 4, 8, 16 and 32 s


# ---- Switches that are slow, or away ----------------------------------------------------------


class Hanging(Memory):
    """Calls that concern `node` take until `gate` is opened, and then fail."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self.node, self.gate, self.waiting = node, threading.Event(), threading.Event()
        self.gate.set()

    def read(self, ports: Collection[PortName]) -> dict[PortName, Tables | Foreign | Failed]:
        if any(name.node == self.node for name in ports):
            self.waiting.set()
            assert self.gate.wait(20)
        return super().read(ports)


def test_a_node_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    switches = Hanging("h0")
    rig = Rig(tmp_path / "control.db", switches, pace=PACE)
    rig.turn()
    start(rig, number=1)
    switches.broken.add(PortName("h0", 1))
    rig.turn()
    switches.gate.clear()
    rig.clock.now_s += 1.0
    hanging = threading.Thread(target=rig.explorer.turn)
    hanging.start()
    try:
        assert switches.waiting.wait(20)
        start(rig, "keen", 2)  # over h0 as well
        rig.reconciler.turn()
        late = rig.reconciler.find_unprogrammed(rig.engine.state.target)
        assert late.keys() == {PortName("h0", 1)}
    finally:
        switches.gate.set()
        hanging.join()
    switches.broken.clear()
    rig.clock.now_s += 31.0
    rig.settle()
    assert is_programmed(rig)
    rig.close()


def test_its_threads_program_what_is_wanted_and_end_on_request(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "control.db")
    bodies = (rig.reconciler.run, rig.explorer.run)
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    try:
        until(lambda: rig.engine.state.paths is not None)
        start(rig)
        until(lambda: is_programmed(rig) and not rig.reconciler.report().counts.ports_pending)
        rig.switches.broken.update(rig.engine.state.target)
        start(rig, "keen", 2)
        until(lambda: len(rig.reconciler.report().failing) == len(rig.engine.state.target))
        rig.switches.broken.clear()
        rig.clock.now_s += 31.0
        until(lambda: is_programmed(rig) and not rig.reconciler.report().failing)
    finally:
        rig.explorer.stop()
        rig.reconciler.stop()
        for thread in threads:
            thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert rig.switches.closed == 0, "one may not take from the other what it still uses"
    rig.drivers.close()
    assert rig.switches.closed == rig.opened + rig.switches.seconds == 2
    rig.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_driver_that_has_died_is_opened_anew(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.settle()
    assert rig.opened == 1
    rig.switches.away = True
    for _ in range(20):
        rig.clock.now_s += 31.0
        rig.turn()
    rig.switches.away = False
    assert rig.opened > 1
    assert rig.switches.closed == rig.opened + rig.switches.seconds
    rig.clock.now_s += 31.0
    rig.settle()
    assert is_programmed(rig)
    assert rig.reconciler.report().failing == {}


def test_a_driver_that_was_let_go_when_switches_come_back_is_opened_anew(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.settle()
    rig.switches.away = True
    rig.clock.now_s += 61.0
    for _ in range(2):
        rig.turn()
        rig.clock.now_s += 2.0
    assert not rig.drivers.is_lent
    rig.switches.away = False
    for _ in range(3):
        rig.turn()
    assert (rig.switches.closed, rig.opened, rig.switches.seconds) == (2, 2, 2)
    start(rig, "keen", 2)
    rig.clock.now_s += 31.0
    rig.settle()
    assert is_programmed(rig)
    assert rig.reconciler.problem == ""


def test_a_driver_whose_ports_answer_is_kept_when_discovery_fails(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.settle()
    rig.switches.lost = True
    for _ in range(100):
        rig.clock.now_s += 5.0
        rig.turn()
    assert (rig.switches.closed, rig.opened) == (0, 1)
    assert rig.reconciler.problem.startswith("switches cannot be reached")


def test_many_ports_are_written_in_parts_and_new_targets_do_not_wait_for_a_sweep(
    tmp_path: Path,
) -> None:
    pace = replace(PACE, ports_per_write=100)
    fabric = leaf_spine(8, 8, 8)
    rig = Rig(tmp_path / "control.db", Memory(fabric), Settings(take_over=True), pace=pace)
    rig.settle()
    assert max(map(len, rig.switches.writes)) == 100
    assert len(set().union(*rig.switches.writes)) == 2 * len(fabric.links)
    rig.clock.now_s += 11.0
    rig.turn()
    assert rig.switches.reads[-1] <= PACE.ports_per_check
    rig.switches.writes.clear()
    start(rig)
    assert rig.turn()
    assert len(rig.switches.writes) == 1
    rig.close()


def test_a_sweep_that_finds_much_drift_logs_one_line(rig: Rig) -> None:
    rig.turn()
    start(rig)
    rig.settle()
    for name, tables in rig.engine.state.target.items():
        rig.switches.held[name] = replace(tables, weights=tables.weights[::-1])
    rig.clock.now_s += 10.1
    before = len(rig.lines)
    rig.settle()
    assert is_programmed(rig)
    more = f", and {len(rig.engine.state.target) - 1} more ports"
    assert [line.endswith(more) for line in rig.lines[before:]] == [True, True]
    assert rig.reconciler.report().counts.drifts == len(rig.engine.state.target)


# ---- Writes that fail -------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.01, 0.1, 0.5])
def test_whatever_part_of_writes_fails_a_port_has_its_old_tables_or_its_new_ones(
    tmp_path: Path, part: float
) -> None:
    # Three queues for seven levels: maps change with who is there, so that a write has steps.
    ability = replace(DEFAULT_ABILITY, queues=3, entries=16)
    switches = SimulatedSwitches(
        FABRIC, ability, path=tmp_path / "registers", failing=WriteFailures(probability=part)
    )
    rig = Rig(tmp_path / "control.db", switches, Settings(take_over=True))
    held = switches.read(ports_of(FABRIC))
    failed = 0
    for number, name in enumerate(("calm", "keen", "middling", "calm", "keen"), start=1):
        start(rig, name, number, ("h2", "h3", "h1")[number % 3])
        if number > 3:
            rig.ask(Deregister(key=key(number, "d"), application=f"calm#{number - 3}"))
        for _ in range(40):
            rig.turn()
            rig.clock.now_s += 0.1
            before, held = held, switches.read(ports_of(FABRIC))
            target = rig.engine.state.target
            for port, content in held.items():
                assert content in (before[port], target.get(port)), port
            failed += len(rig.reconciler.report().failing)
    for _ in range(3000):
        rig.turn()
        rig.clock.now_s += 0.1
    assert switches.read(rig.engine.state.target) == dict(rig.engine.state.target)
    assert failed or part < 0.1
    rig.close()
    switches.close()


# ---- Ports that are due -----------------------------------------------------------------------

TABLES = Tables(queue_of=(0,) * 8, weights=(255,) + (0,) * 7)
NEW_TABLES = Tables(queue_of=(0,) * 8, weights=(254,) + (0,) * 7)
FAILING, BESIDE, FAR = PortName("a", 1), PortName("a", 2), PortName("b", 1)


def tracker_with_a_failing_port(failures: int = 1) -> PortTracker:
    """Two ports of node a, one of them failing, and one of node b; the others are programmed."""
    tracker = PortTracker()
    tracker.set_fabric_ports({FAILING, BESIDE, FAR})
    tracker.set_targets(dict.fromkeys((FAILING, BESIDE, FAR), TABLES), 1, 0.0)
    names = tracker.take_changed(10)
    tracker.record(dict.fromkeys(names, TABLES), names, 0.0)
    tracker.give_back(names)
    for _ in range(failures):
        tracker.record({FAILING: Failed("no answer")}, [FAILING], 0.0)
    return tracker


def test_ports_of_a_failing_node_are_left_to_the_other_thread() -> None:
    tracker = tracker_with_a_failing_port()
    tracker.set_targets({BESIDE: NEW_TABLES, FAR: NEW_TABLES}, 2, 1.0)
    assert tracker.take_changed(10) == [FAR]
    assert tracker.take_failing(1.0, every_s=10.0) == [FAILING, BESIDE]


def test_a_target_that_returns_while_another_is_written_is_neither_reached_nor_drift() -> None:
    tracker = tracker_with_a_failing_port(failures=0)
    tracker.set_targets({FAR: NEW_TABLES}, 2, 1.0)
    names = tracker.take_changed(10)
    assert tracker.begin_write(names) == {FAR: NEW_TABLES}
    tracker.set_targets({FAR: TABLES}, 3, 2.0)
    assert tracker.report(2.0, with_ports=True).by_port[FAR].status == "pending"
    assert tracker.record({FAR: NEW_TABLES}, names, 3.0) == []
    tracker.give_back(names)
    assert tracker.drifts == 0
    assert tracker.take_changed(10) == [FAR]
    assert tracker.begin_write([FAR]) == {FAR: TABLES}


def test_programmed_ports_of_a_failing_node_are_checked_by_the_other_thread() -> None:
    tracker = tracker_with_a_failing_port()
    assert tracker.take_to_check(20.0, 10.0, 10) == [FAR]
    assert tracker.take_failing(20.0, every_s=10.0) == [FAILING, BESIDE]


def test_a_port_that_has_recovered_is_retried_soon_when_it_fails_again() -> None:
    tracker = tracker_with_a_failing_port(failures=6)
    assert tracker.take_failing(3.0, 10.0) == []
    (name,) = tracker.take_failing(3.3, 10.0)  # 0.1 s, doubled five times
    tracker.record({name: TABLES}, [name], 3.3)
    tracker.give_back([name])
    assert tracker.report(3.3, with_ports=False).failing == {}
    tracker.record({name: Failed("no answer")}, [name], 4.0)
    assert tracker.take_failing(4.0 + RETRY_S, 10.0) == [name]


def test_a_port_that_leaves_and_comes_back_is_not_failing_any_more() -> None:
    tracker = tracker_with_a_failing_port(failures=6)
    tracker.set_fabric_ports({BESIDE, FAR})
    assert tracker.report(0.0, with_ports=False).counts.ports == 2
    tracker.set_fabric_ports({FAILING, BESIDE, FAR})
    assert tracker.take_changed(10) == [FAILING]


# ---- Who owns the drivers ---------------------------------------------------------------------


def test_drivers_are_lent_recalled_and_closed_in_order() -> None:
    switches = Memory()
    drivers = SwitchDrivers(lambda: switches)
    assert drivers.borrow() == (None, None)
    drivers.scout()
    assert (drivers.is_lent, drivers.borrow()) == (False, (None, None))
    drivers.lend({FAR})
    assert drivers.is_lent
    assert drivers.borrow() == (switches, {FAR})
    assert drivers.borrow() == (switches, None)
    assert not drivers.recall(), "the reconciler still uses it"
    assert drivers.borrow() == (None, None)
    assert drivers.recall()
    assert not drivers.cancel_recall(), "it was returned: both are to be opened again"
    drivers.close()
    assert (switches.closed, drivers.cancel_recall()) == (2, True)


def test_a_recall_takes_back_what_was_offered_and_not_borrowed() -> None:
    drivers = SwitchDrivers(Memory)
    drivers.scout()
    drivers.lend({FAR})
    assert drivers.recall()
    assert drivers.borrow() == (None, None)


def test_a_recall_that_is_cancelled_changes_nothing() -> None:
    switches = Memory()
    drivers = SwitchDrivers(lambda: switches)
    drivers.scout()
    drivers.lend({FAR})
    drivers.borrow()
    drivers.recall()
    assert drivers.cancel_recall()
    assert drivers.borrow() == (switches, None)
