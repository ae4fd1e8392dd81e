"""Marks at the edge: rules that follow from connections, and what is logged of who breaks them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, cast

from control_parts import (
    FABRIC,
    HTB,
    KINDS,
    after,
    connect,
    fabric_event,
    key,
    ready,
    running,
    seen_without,
)
from hypothesis import given
from hypothesis.strategies import randoms

from weft.control.policy.port_policy import LatencyLane
from weft.control.runtime.edge_watch import DRAIN_S, LASTS_S, LOOK_S, Admissions, EdgeWatch
from weft.control.state.events import Deregister, Disconnect, Event, Register, Registered
from weft.control.state.policy_settings import Settings
from weft.control.state.state import State
from weft.control.state.step import Outcome, run_batch
from weft.errors import InputError
from weft.switches import EdgePort, EdgeReport, EdgeRules, PortName, Switches, Violation
from weft.switches.linux.driver import _build_mark_rules
from weft.switches.linux.mark_guard import GuardedPort, build_admission, build_ruleset

LANE = LatencyLane(share=0.1, budget_bytes=8192, flow_share=0.02)


def with_addresses(state: State) -> State:
    event = replace(fabric_event(ability=HTB), aliases={"10.0.0.9": "h2", "h2.lab": "h2"})
    return after(state, event)


def test_a_host_may_use_the_levels_of_its_connections_towards_their_destinations() -> None:
    state, _ = running("calm", "keen", ability=HTB)
    rules = Admissions(with_addresses(state)).build_rules()
    levels = {state.level_of("calm"), state.level_of("keen")}
    admitted = {edge.host: edge.admitted for edge in rules.ports.values()}
    assert admitted == {
        "h0": {("h2", level) for level in levels},
        **dict.fromkeys(("h1", "h2", "h3"), frozenset()),
    }
    assert (rules.levels, rules.lane, rules.addresses) == (7, None, {"h2": ("10.0.0.9",)})


def test_ports_between_switches_are_not_at_the_edge() -> None:
    rules = Admissions(ready(ability=HTB)).build_rules()
    assert len(rules.ports) == len(FABRIC.hosts)
    assert {port.node for port in rules.ports} == {"leaf0", "leaf1"}


def test_a_lane_has_a_budget_for_each_pair_of_hosts() -> None:
    settings = Settings(levels=6, managed_share=0.8, lane=LANE)
    rules = Admissions(ready(settings, HTB)).build_rules()
    assert rules.lane == 7
    rate_bps = FABRIC.links[0].rate_bps
    assert {edge.lane_bps for edge in rules.ports.values()} == {round(0.02 * rate_bps)}


def test_no_fabric_no_rules() -> None:
    watched = Watched(State(settings=Settings()))
    watched.turn(LOOK_S)
    assert not watched.edge.rules


# ---- The watch ----------------------------------------------------------------------------------


class Edge:
    """A driver that reports what it is given."""

    def __init__(self) -> None:
        self.rules: list[EdgeRules] = []
        self.report: EdgeReport | InputError = EdgeReport()

    def police(self, rules: EdgeRules) -> EdgeReport:
        self.rules.append(rules)
        if isinstance(self.report, InputError):
            raise self.report
        return self.report


class Watched:
    def __init__(self, state: State) -> None:
        self.state, self.now_s, self.lines = state, 0.0, list[str]()
        self.edge = Edge()
        self.watch = EdgeWatch(state, clock=lambda: self.now_s, log=self.lines.append)

    def run(self, *events: Event) -> Outcome:
        """As the engine does."""
        outcome = run_batch(self.state, events)
        self.state = outcome.state
        self.watch.follow(outcome.state, outcome.rows)
        return outcome

    def turn(self, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.watch.turn(cast(Switches, self.edge))


def violation(**more: Any) -> Violation:
    fields = {
        "port": PortName("leaf0", 1),
        "host": "h0",
        "destination": "h2",
        "level": 3,
        "bytes": 2048,
        "is_rewritten": True,
    }
    return Violation(**{**fields, **more})


def test_new_connections_are_admitted_at_once_and_old_rules_looked_at_in_turn() -> None:
    state, (id_,) = running("calm", ability=HTB)
    watched = Watched(state)
    watched.turn(LOOK_S)
    watched.turn()
    assert len(watched.edge.rules) == 1, "nothing is new"
    watched.run(connect(id_, "h1", "h2", 7))
    watched.turn()
    assert len(watched.edge.rules) == 2
    watched.turn(LOOK_S)
    assert watched.edge.rules[1] is watched.edge.rules[2]


def test_a_second_connection_between_the_same_hosts_changes_no_rule() -> None:
    state, (id_,) = running("calm", ability=HTB)
    watched = Watched(state)
    watched.turn(LOOK_S)
    watched.run(connect(id_, "h0", "h2", 7))
    watched.turn()
    watched.run(Disconnect(connection=str(key(7))))
    watched.turn()
    assert len(watched.edge.rules) == 1
    watched.run(Disconnect(connection=str(key(1))))
    watched.turn()
    assert watched.edge.rules[-1].ports[PortName("leaf0", 1)].admitted == frozenset()


@given(randoms(use_true_random=False))
def test_rules_counted_change_by_change_are_those_of_the_state(random: Random) -> None:
    watched = Watched(ready(ability=HTB))
    ids: list[str] = []
    hosts = ["h0", "h1", "h2", "h3", "nobody"]
    for number in range(1, 40):
        match random.choice(("register", "connect", "connect", "end", "close", "fabric", "turn")):
            case "register":
                name = random.choice(sorted(KINDS))
                event = Register(key=key(number, "r"), name=name, ttl_s=9.0, now_s=0.0)
                (answer,) = watched.run(event).answers
                assert isinstance(answer, Registered)
                ids.append(answer.id)
            case "connect" if ids:
                watched.run(connect(random.choice(ids), *random.sample(hosts, 2), number))
            case "end" if ids:
                id_ = ids.pop(random.randrange(len(ids)))
                watched.run(Deregister(key=key(number), application=id_))
            case "close":
                watched.run(Disconnect(connection=str(key(random.randint(1, number)))))
            case "fabric":
                absent = random.sample(hosts[:4], random.randint(0, 1))
                watched.run(fabric_event(seen_without(FABRIC, *absent), HTB))
            case _:
                watched.turn(LOOK_S)
    watched.turn(LOOK_S)
    assert watched.edge.rules[-1] == Admissions(watched.state).build_rules()


def test_a_violation_is_logged_once_and_stands_while_it_lasts() -> None:
    watched = Watched(ready(ability=HTB))
    watched.edge.report = EdgeReport(violations=(violation(),))
    watched.turn(LOOK_S)
    watched.turn(LOOK_S)
    words = "marks: h0 sends level 3 to h2 without a registration: "
    assert watched.lines == [f"{words}2 KiB, rewritten to level 0"]
    assert watched.watch.list_problems() == [f"{words}4 KiB, rewritten to level 0"]
    watched.edge.report = EdgeReport()
    watched.turn(LASTS_S + 1)
    assert watched.watch.list_problems() == []


def test_bytes_sent_just_before_a_mark_was_admitted_are_no_violation() -> None:
    state, (id_,) = running("calm", ability=HTB)
    watched = Watched(state)
    watched.turn(LOOK_S)
    watched.run(connect(id_, "h1", "h2", 7))
    early = violation(port=PortName("leaf0", 2), host="h1", level=state.level_of("calm"))
    watched.edge.report = EdgeReport(violations=(early, replace(early, destination="")))
    watched.turn()
    assert watched.lines == []
    watched.edge.report = EdgeReport(violations=(replace(early, destination="h3"),))
    watched.turn(LOOK_S)
    assert len(watched.lines) == 1, "another destination has no registration"


def test_bytes_that_drain_after_a_connection_are_no_violation_for_a_while() -> None:
    state, _ = running("calm", ability=HTB)
    level = state.level_of("calm")
    watched = Watched(state)
    watched.turn(LOOK_S)
    watched.run(Disconnect(connection=str(key(1))))
    late = violation(level=level)
    watched.edge.report = EdgeReport(violations=(late, replace(late, destination="")))
    watched.turn()
    watched.turn(DRAIN_S - 1.5 * LOOK_S)
    assert watched.lines == []
    watched.edge.report = EdgeReport(violations=(replace(late, is_lane=True),))
    watched.turn(LOOK_S)
    assert len(watched.lines) == 1, "a lane's budget holds for registered connections too"
    watched.edge.report = EdgeReport(violations=(late,))
    watched.turn(LOOK_S)
    assert len(watched.lines) == 2


def test_marks_of_levels_before_a_change_drain_too() -> None:
    state, _ = running("calm", ability=HTB)
    level = state.level_of("calm")
    watched = Watched(state)
    watched.turn(LOOK_S)
    watched.run(Disconnect(connection=str(key(1))), fabric_event(seen_without(FABRIC, "h3"), HTB))
    watched.edge.report = EdgeReport(violations=(violation(level=level),))
    watched.turn(LOOK_S)
    assert watched.lines == []


def test_what_cannot_be_prevented_is_called_so() -> None:
    watched = Watched(ready(ability=HTB))
    missed = violation(destination="", is_lane=True, is_rewritten=False)
    watched.edge.report = EdgeReport(violations=(missed,))
    watched.turn(LOOK_S)
    words = "marks: h0 sends level 3 beyond its budget of the latency lane: 2 KiB"
    assert watched.lines == [f"{words}, which cannot be prevented here"]


def test_many_violations_are_few_lines() -> None:
    watched = Watched(ready(ability=HTB))
    many = tuple(violation(destination=f"d{n}") for n in range(1000))
    watched.edge.report = EdgeReport(violations=many)
    watched.turn(LOOK_S)
    assert len(watched.lines) == 21
    assert watched.lines[-1] == "marks: 980 more pairs of hosts break the rules"
    assert len(watched.watch.list_problems()) == 20


def test_an_edge_that_cannot_be_guarded_is_logged_once() -> None:
    watched = Watched(ready(ability=HTB))
    watched.edge.report = InputError("leaf0", "no nft", "install it")
    watched.turn(LOOK_S)
    watched.turn(LOOK_S)
    assert watched.lines == ["marks are not guarded: leaf0: no nft; install it"]


def test_switches_that_do_not_answer_cannot_be_checked_and_stay_guarded() -> None:
    watched = Watched(ready(ability=HTB))
    watched.edge.report = EdgeReport(unchecked=("agent of leaf0: does not answer", "and leaf1"))
    watched.turn(LOOK_S)
    watched.turn(LOOK_S)
    assert watched.lines == ["marks cannot be checked: agent of leaf0: does not answer, and 1 more"]


# ---- nftables -----------------------------------------------------------------------------------


def test_rules_admit_by_port_destination_and_level_and_rewrite_the_rest() -> None:
    text = build_ruleset("weft_leaf0", 7, None, {"swp1": GuardedPort(1, [], 0)})
    assert "ip dscp 1-7 iifname . ip daddr . ip dscp @admitted4 accept" in text
    assert text.index("@admitted4 accept") < text.index("ip dscp set 0")
    assert "ip6 dscp set 0" in text
    assert "@lane4 {" not in text


def test_admitted_marks_are_replaced_as_a_whole() -> None:
    marks = [("10.0.0.1", 3), ("fd00::1", 2)]
    text = build_admission("weft_leaf0", {"swp1": GuardedPort(1, marks, 0)})
    assert text.splitlines() == [
        "flush set netdev weft_leaf0 admitted4",
        'add element netdev weft_leaf0 admitted4 { "swp1" . 10.0.0.1 . 3 }',
        "flush set netdev weft_leaf0 admitted6",
        'add element netdev weft_leaf0 admitted6 { "swp1" . fd00::1 . 2 }',
    ]


def test_a_pair_on_the_lane_may_send_its_rate_and_a_second_of_it_at_once() -> None:
    text = build_ruleset("weft_leaf0", 7, 8, {"swp1": GuardedPort(1, [], 80_000)})
    assert "limit rate over 10000 bytes/second burst 10000 bytes" in text
    assert text.index("add @demoted4") < text.index("ip dscp 8 accept")


def test_a_port_with_a_destination_of_unknown_address_is_left_alone() -> None:
    """Its marks may be registered ones: rewriting them would harm a managed application."""
    ports = {
        PortName("leaf0", 1): EdgePort(host="h0", admitted=frozenset({("h2", 1)})),
        PortName("leaf0", 2): EdgePort(host="h1", admitted=frozenset({("h3", 1)})),
        PortName("leaf1", 1): EdgePort(host="h2"),
    }
    rules = EdgeRules(levels=7, lane=None, ports=ports, addresses={"h3": ("10.0.0.3",)})
    by_node, problems = _build_mark_rules(rules, {"leaf0"})
    assert [port.number for port in by_node["leaf0"].ports] == [2]
    assert by_node["leaf0"].ports[0].admitted == [("10.0.0.3", 1)]
    assert problems == [
        "leaf0 port 1: the address of h2 is not known; add it to [hosts]",
        "leaf1 port 1: leaf1 has no agent",
    ]
