"""The controller's state machine: registrations, connections, leases, models, fabrics, tables."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from control_parts import (
    FABRIC,
    KINDS,
    VLARB,
    after,
    answer_of,
    connect,
    empty,
    fabric_event,
    key,
    ports_of,
    ready,
    register,
    running,
    seen_without,
    waits,
)
from immutables import Map
from msgspec import Struct, structs

from weft.control.state import events
from weft.control.state.events import (
    ApplicationModel,
    Applied,
    Apply,
    Connected,
    ConnectionRow,
    Deregister,
    Disconnect,
    Done,
    Expire,
    ModelChanged,
    NewApplication,
    Proposal,
    Refusal,
    Register,
    Registered,
    Renew,
    Renewed,
    RevisionRow,
    Rollback,
)
from weft.control.state.policy_settings import Settings
from weft.control.state.programming import build_default_tables
from weft.control.state.state import MissingPath, Recent, State
from weft.control.state.step import run_batch
from weft.fabric import Fabric, leaf_spine, path, route
from weft.switches import PortName


def refusal(answer: object) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer


# ---- Registrations ----------------------------------------------------------------------------


def test_a_registration_has_an_id_of_its_own_and_the_level_of_its_model() -> None:
    state, first = register(ready(), "calm", 1)
    state, second = register(state, "calm", 2)
    state, keen = register(state, "keen", 3)
    assert (first, second, keen) == ("calm#1", "calm#2", "keen#3")
    levels = {name: state.level_of(name) for name in KINDS}
    assert levels == {"calm": 1, "middling": 2, "keen": 3}
    answer = answer_of(state, Register(key=key(9), name="keen", ttl_s=10, now_s=0))
    assert answer == Registered(id="keen#4", level=3, ttl_s=10)


def test_an_application_without_a_model_is_refused_and_to_be_profiled() -> None:
    state = ready()
    outcome = run_batch(state, [Register(key=key(1), name="stranger", ttl_s=10, now_s=0)])
    assert refusal(outcome.answers[0]).code == "NOT_FOUND"
    assert "profile it" in str(outcome.answers[0])
    assert (outcome.state, outcome.rows) == (state, ())


def test_numbers_of_registrations_are_never_used_again() -> None:
    state, first = register(ready(), "calm", 1)
    state = after(state, Deregister(key=key(2), application=first))
    _, second = register(state, "calm", 3)
    assert (first, second) == ("calm#1", "calm#2")


def test_a_key_that_comes_again_is_answered_alike_and_changes_nothing() -> None:
    event = Register(key=key(1), name="calm", ttl_s=10, now_s=0)
    once = run_batch(ready(), [event])
    twice = run_batch(once.state, [event])
    assert twice.answers == once.answers
    assert (twice.state, twice.rows, twice.ports) == (once.state, (), frozenset())
    other = answer_of(once.state, structs.replace(event, name="keen"))
    assert refusal(other).code == "ALREADY_EXISTS"
    third = answer_of(once.state, Deregister(key=key(1), application="calm#1"))
    assert refusal(third).code == "ALREADY_EXISTS"


def test_a_lease_is_no_longer_than_the_operator_allows() -> None:
    state = empty(Settings(longest_ttl_s=5.0))
    answer = answer_of(state, Register(key=key(1), name="calm", ttl_s=1e9, now_s=0))
    assert answer == Registered(id="calm#1", level=1, ttl_s=5.0)


def test_more_applications_or_connections_than_allowed_are_refused() -> None:
    state = ready(Settings(most_applications=1, most_connections=1))
    state, id_ = register(state, "calm", 1)
    second = answer_of(state, Register(key=key(2), name="calm", ttl_s=1, now_s=0))
    assert refusal(second).code == "RESOURCE_EXHAUSTED"
    state = after(state, connect(id_, "h0", "h2", 1))
    assert refusal(answer_of(state, connect(id_, "h0", "h3", 2))).code == "RESOURCE_EXHAUSTED"


# ---- Connections ------------------------------------------------------------------------------


def test_a_connection_programs_exactly_the_ports_of_its_path() -> None:
    state, id_ = register(ready(), "calm", 1)
    outcome = run_batch(state, [connect(id_, "h0", "h2", 1)])
    hops = path(FABRIC, FABRIC.index("h0"), FABRIC.index("h2"))
    wanted = {PortName(FABRIC.nodes[node].name, port) for node, port in hops}
    assert outcome.ports == wanted
    assert [type(row) for row in outcome.rows] == [ConnectionRow, RevisionRow]
    assert set(outcome.state.target) == wanted
    assert outcome.state.revision == 1


def test_with_equal_paths_all_their_ports_are_programmed() -> None:
    fabric = route(leaf_spine(2, 3, 2), "ecmp")
    state = after(empty(), fabric_event(fabric))
    state, id_ = register(state, "calm", 1)
    state = after(state, connect(id_, "h0", "h2", 1))
    assert len(state.target) == 1 + 3 + 3 + 1


def test_a_connection_that_comes_again_is_the_same_one() -> None:
    state, (id_,) = running("calm")
    again = connect(id_, "h0", "h2", 1)
    outcome = run_batch(state, [again])
    assert outcome.answers == (Connected(connection="c/1"),)
    assert (outcome.state, outcome.rows) == (state, ())
    other = answer_of(state, structs.replace(again, destination="h3"))
    assert refusal(other).code == "ALREADY_EXISTS"


def test_a_connection_that_was_closed_does_not_come_back() -> None:
    state, (id_,) = running("calm")
    state = after(state, Disconnect(connection="c/1"))
    answer = answer_of(state, connect(id_, "h0", "h2", 1))
    assert refusal(answer).code == "FAILED_PRECONDITION"
    assert "has been closed" in str(answer)


def test_closing_what_is_not_open_is_no_mistake() -> None:
    state, _ = running("calm")
    outcome = run_batch(state, [Disconnect(connection="nobody/7")])
    assert (outcome.answers, outcome.state, outcome.rows) == ((Done(),), state, ())


def test_a_second_connection_changes_no_table_and_makes_no_revision() -> None:
    state, (id_,) = running("calm")
    outcome = run_batch(state, [connect(id_, "h0", "h2", 2)])
    assert outcome.ports == frozenset()
    assert outcome.state.revision == state.revision
    both = after(outcome.state, Disconnect(connection="c/1"))
    assert both.target == state.target
    assert both.revision == state.revision


def test_ports_that_lose_their_last_connection_are_for_unmanaged_traffic_again() -> None:
    state, (id_,) = running("calm")
    state = after(state, Disconnect(connection="c/1"))
    assert state.plan is not None
    assert len(state.plan.ports) == 0
    assert {tables.weights for tables in state.target.values()} == {(248, 1, 1, 1, 1, 1, 1, 1)}
    assert id_ in state.applications


@pytest.mark.parametrize(
    ("fabric", "why"),
    [
        (seen_without(FABRIC, "h2"), "host 'h2': is not in leaf_spine"),
        (seen_without(FABRIC, "spine0", "spine1"), "from h0 to h2: leaf0 has no route to it"),
    ],
)
def test_a_connection_without_a_path_waits_for_one(fabric: Fabric, why: str) -> None:
    state, id_ = register(after(empty(), fabric_event(fabric)), "calm", 1)
    outcome = run_batch(state, [connect(id_, "h0", "h2", 1)])
    assert outcome.answers == (Connected(connection="c/1"),)
    assert outcome.ports == frozenset()
    assert {name: str(lost) for name, lost in outcome.state.missing_paths.items()} == {"c/1": why}
    assert after(outcome.state, fabric_event()).target == running("calm")[0].target
    closed = after(outcome.state, Disconnect(connection="c/1"))
    assert len(closed.missing_paths) == 0


def test_a_connection_within_a_host_uses_no_port() -> None:
    state, id_ = register(ready(), "calm", 1)
    outcome = run_batch(state, [connect(id_, "h0", "h0", 1)])
    assert outcome.answers == (Connected(connection="c/1"),)
    assert outcome.ports == frozenset()


def test_hosts_go_by_aliases_guids_and_lids_as_well() -> None:
    nodes = [replace(node, lid=7 + n, guid=f"0x{n:016x}") for n, node in enumerate(FABRIC.nodes)]
    fabric = replace(FABRIC, nodes=tuple(nodes))
    event = replace(fabric_event(fabric), aliases={"10.0.0.1": "h0"})
    state, id_ = register(after(empty(), event), "calm", 1)
    number = fabric.index("h2")
    for source, destination in (("10.0.0.1", "h2"), (nodes[0].guid, str(7 + number))):
        later = after(state, connect(id_, str(source), str(destination), 1))
        assert set(later.target) == set(after(state, connect(id_, "h0", "h2", 1)).target)


def test_connections_before_a_fabric_is_known_take_their_paths_when_it_is() -> None:
    state, id_ = register(empty(), "calm", 1)
    state = after(state, connect(id_, "h0", "h2", 1), connect(id_, "h0", "gone", 2))
    assert len(state.target) == 0
    state = after(state, fabric_event())
    assert state.target == running("calm")[0].target
    assert dict(state.missing_paths) == {
        "c/2": MissingPath(reason="host 'gone': is not in leaf_spine", last_ports=None)
    }


# ---- Leases -----------------------------------------------------------------------------------


def test_a_lease_ends_after_its_time_and_takes_its_connections_along() -> None:
    state, (id_,) = running("calm")
    early = after(state, Expire(application=id_, now_s=10.0))
    assert early == state
    gone = after(state, Expire(application=id_, now_s=10.1))
    assert (len(gone.applications), len(gone.connections)) == (0, 0)
    assert gone.plan is not None
    assert len(gone.plan.ports) == 0


def test_renewal_puts_the_end_off_and_never_brings_it_nearer() -> None:
    state, (id_,) = running("calm")
    outcome = run_batch(state, [Renew(application=id_, now_s=8.0)])
    assert (outcome.answers, outcome.rows) == ((Renewed(ttl_s=10.0),), ())
    late = after(outcome.state, Renew(application=id_, now_s=3.0))
    assert late.applications[id_].expires_s == 18.0


def test_a_lease_that_is_over_cannot_be_renewed_whether_or_not_it_was_noticed() -> None:
    state, (id_,) = running("calm")
    unnoticed = refusal(answer_of(state, Renew(application=id_, now_s=10.1)))
    assert (unnoticed.code, unnoticed.problem) == ("FAILED_PRECONDITION", "lease expired")
    assert unnoticed.remedy == "register again"
    assert "lease expired" in str(answer_of(state, connect(id_, "h0", "h3", 5, now_s=10.1)))
    gone = after(state, Expire(application=id_, now_s=11.0))
    noticed = refusal(answer_of(gone, Renew(application=id_, now_s=5.0)))
    assert (noticed.code, noticed.remedy) == ("FAILED_PRECONDITION", "register again")
    again = Register(key=key(1, "r"), name="calm", ttl_s=10, now_s=11.0)
    assert answer_of(gone, again) == Registered(id=id_, level=1, ttl_s=10.0)
    assert refusal(answer_of(gone, Renew(application=id_, now_s=11.0))).remedy == "register again"


def test_without_a_lease_an_application_stays() -> None:
    state, id_ = register(ready(), "calm", 1, ttl_s=0.0)
    assert state.applications[id_].expires_s == inf
    assert after(state, Expire(application=id_, now_s=1e9)) == state
    assert answer_of(state, Renew(application=id_, now_s=1e9)) == Renewed(ttl_s=0.0)


# ---- Models and levels ------------------------------------------------------------------------


def test_while_nothing_is_registered_levels_are_made_anew() -> None:
    state = after(ready(), ModelChanged(name="wild", model=ApplicationModel(curve=waits(0.6))))
    assert state.level_of("keen") == 4
    state = after(state, ModelChanged(name="wild", model=None))
    assert "wild" not in state.models
    assert state.level_of("keen") == 3


def test_while_something_is_registered_nobody_s_level_changes() -> None:
    state, _ = running("keen", "calm")
    new = ModelChanged(name="wild", model=ApplicationModel(curve=waits(0.6)))
    opened = after(state, new)
    assert {name: opened.level_of(name) for name in opened.models} == {
        "calm": 1,
        "middling": 2,
        "keen": 3,
        "wild": 4,
    }
    crowded = after(empty(Settings(levels=3)), fabric_event())
    crowded, _ = register(crowded, "keen", 1)
    joined = after(crowded, new)
    assert joined.level_of("wild") == joined.level_of("middling")
    assert joined.levels is not None
    assert len(joined.levels.levels) == 3


def test_a_changed_model_changes_the_weights_and_not_the_level() -> None:
    state, _ = running("calm", "middling")
    outcome = run_batch(
        state, [ModelChanged(name="calm", model=ApplicationModel(curve=waits(0.4)))]
    )
    assert outcome.ports == set(state.target)
    assert outcome.state.level_of("calm") == 1
    weights = next(iter(outcome.state.target.values())).weights
    assert abs(weights[1] - weights[2]) <= 6  # but for what is taken for empty queues


def test_a_model_that_leaves_the_table_is_kept_for_who_runs_and_refused_to_others() -> None:
    state, _ = running("calm")
    gone = after(state, ModelChanged(name="calm", model=None))
    assert gone.target == state.target
    new = Register(key=key(9), name="calm", ttl_s=1, now_s=0)
    assert refusal(answer_of(gone, new)).code == "NOT_FOUND"
    back = after(gone, ModelChanged(name="calm", model=KINDS["calm"]))
    assert isinstance(answer_of(back, new), Registered)


def test_the_first_model_of_all_opens_the_first_level() -> None:
    state = after(empty(models={}), fabric_event())
    assert state.plan is None
    state = after(state, ModelChanged(name="calm", model=KINDS["calm"]))
    assert state.level_of("calm") == 1


# ---- Fabrics ----------------------------------------------------------------------------------


def test_a_fabric_whose_names_stay_keeps_every_table_whatever_its_indices() -> None:
    state, _ = running("calm", "keen")
    turned = replace(FABRIC, nodes=FABRIC.nodes)
    outcome = run_batch(state, [fabric_event(turned)])
    assert (outcome.ports, outcome.state.target) == (frozenset(), state.target)


def test_a_cable_that_fails_changes_the_ports_that_its_connections_leave_and_join() -> None:
    state, calm = register(ready(), "calm", 1)
    state, keen = register(state, "keen", 2)
    apart = [connect(calm, "h0", "h2", 1), connect(keen, "h1", "h3", 2)]
    state = after(state, *apart)
    ends = {FABRIC.index("leaf0"), FABRIC.index("spine0")}
    left = tuple(link for link in FABRIC.links if {link.a.node, link.b.node} != ends)
    without = route(replace(FABRIC, links=left), "shortest_path")
    outcome = run_batch(state, [fabric_event(without)])
    up = PortName("leaf0", 4)  # to spine1, now for both
    assert up in outcome.ports
    assert PortName("h0", 1) not in outcome.ports
    anew = after(replace(ready(), applications=state.applications), fabric_event(without), *apart)
    assert {n: outcome.state.target[n] for n in anew.target} == dict(anew.target)
    assert outcome.state.plan == anew.plan


def test_ports_that_cannot_do_what_is_asked_are_listed_and_left_alone() -> None:
    poor = replace(VLARB, levels=4)
    names = ports_of(FABRIC)
    event = replace(fabric_event(), abilities={n: poor if n.node == "h0" else VLARB for n in names})
    state, id_ = register(after(empty(), event), "calm", 1)
    state = after(state, connect(id_, "h0", "h2", 1))
    assert {name.node for name in state.unfit} == {"h0"}
    problem = "has 4 levels, and 8 are required; lower levels of [policy]"
    assert set(state.unfit.values()) == {problem}
    assert "h0" not in {name.node for name in state.target}


def test_a_take_over_programs_every_port() -> None:
    state = ready(Settings(take_over=True))
    assert set(state.target) == set(ports_of(FABRIC))
    assert state.revision == 1


@pytest.mark.parametrize("gone", ["h2", "leaf1", "spine0", "spine1"])
def test_what_a_fabric_lacks_changes_no_table_of_what_is_left(gone: str) -> None:
    state, _ = running("calm", "keen")
    part = seen_without(FABRIC, gone)
    outcome = run_batch(state, [fabric_event(part)])
    there = set(ports_of(part))
    assert {n: t for n, t in outcome.state.target.items() if n in there} == {
        name: tables for name, tables in state.target.items() if name in there
    }
    assert outcome.ports & set(state.target) == frozenset()
    back = after(outcome.state, fabric_event())
    assert (back.target, len(back.missing_paths)) == (state.target, 0)


def test_a_connection_without_a_path_counts_where_it_was_until_it_is_closed() -> None:
    state, _ = running("calm", "keen")
    away = after(state, fabric_event(seen_without(FABRIC, "h2")))
    assert {str(lost) for lost in away.missing_paths.values()} == {
        "host 'h2': is not in leaf_spine"
    }
    still = after(away, fabric_event(seen_without(FABRIC, "h2", "h3")))
    assert still.target == state.target
    closed = run_batch(still, [Disconnect(connection="c/2")])
    assert PortName("h0", 1) in closed.ports
    alone = running("calm")[0].target
    assert {closed.state.target[name] for name in closed.ports} == {
        alone[name] for name in closed.ports
    }


def test_after_a_restart_what_has_no_path_takes_nothing_from_programmed_ports() -> None:
    state, _ = running("calm", "keen")
    outcome = run_batch(restarted(state), [fabric_event(seen_without(FABRIC, "h2"))])
    assert (outcome.ports, outcome.state.target) == (frozenset(), state.target)
    assert after(outcome.state, fabric_event()).target == state.target


def restarted(state: State, **kept: Any) -> State:
    bare = replace(state, paths=None, abilities={}, policies={}, plan=empty().plan)
    return replace(bare, missing_paths=Map(), pending=None, **kept)


def test_after_a_restart_a_host_that_is_nowhere_keeps_no_port_from_what_it_should_have() -> None:
    state, (calm, _) = running("calm", "keen")
    state = after(state, connect(calm, "h0", "nowhere", 9))
    # Killed when keen's connection was on disk and its ports were not recomputed yet.
    killed = restarted(state, target=running("calm")[0].target)
    later = after(killed, fabric_event())
    assert (later.target, len(later.missing_paths)) == (state.target, 1)


def test_after_a_restart_ports_that_stood_follow_the_plan_when_everything_has_a_path() -> None:
    state, (_, keen) = running("calm", "keen")
    more = after(state, connect(keen, "h1", "h3", 9))
    killed = restarted(state, target=more.target)  # that it was closed was not recomputed yet
    fewer = FABRIC.routes.next_hop.copy()
    fewer[:, FABRIC.ordinal[FABRIC.index("h2")]] = -1
    part = replace(FABRIC, routes=replace(FABRIC.routes, next_hop=fewer))
    stood = after(killed, fabric_event(part))
    assert stood.target == more.target
    whole = after(stood, fabric_event())
    unused = build_default_tables(whole.policies[PortName("h1", 1)], VLARB, whole.settings)
    assert dict(whole.target) == {n: state.target.get(n, unused) for n in more.target}


# ---- Proposals and rollbacks ------------------------------------------------------------------


def propose(number: int, **parts: Any) -> Apply:
    return Apply(key=key(number, "operator"), proposal=Proposal(**parts), now_s=0.0)


STRUCTS = [c for c in vars(events).values() if isinstance(c, type) and issubclass(c, Struct)]


@pytest.mark.parametrize("kind", [c for c in STRUCTS if c is not Struct], ids=lambda c: c.__name__)
def test_events_answers_and_rows_are_immutable_and_made_by_keyword(kind: type[Struct]) -> None:
    fields = dict.fromkeys(kind.__struct_fields__, "x")
    value = kind(**fields)
    assert value == kind(**fields)
    for name in fields:
        with pytest.raises(AttributeError, match="immutable"):
            setattr(value, name, "y")
    if fields and kind is not Refusal:
        with pytest.raises(TypeError):
            kind(*fields.values())


def test_a_proposal_is_carried_out_as_a_whole_or_not_at_all() -> None:
    state = ready()
    good = NewApplication(name="calm", connections=(("h0", "h2"), ("h1", "h3")))
    bad = NewApplication(name="keen", connections=(("h0", "nowhere"),))
    refused = run_batch(state, [propose(1, register=(good, bad))])
    assert refusal(refused.answers[0]).code == "INVALID_ARGUMENT"
    assert (refused.state, refused.rows) == (state, ())
    outcome = run_batch(state, [propose(2, register=(good,))])
    (answer,) = outcome.answers
    assert isinstance(answer, Applied)
    assert (answer.ids, answer.revision, answer.ports) == (("calm#1",), 1, {*outcome.state.target})
    assert len(outcome.state.connections) == 2
    assert outcome.state.applications["calm#1"].expires_s == inf
    gone = run_batch(outcome.state, [propose(3, deregister=("calm#1",))])
    assert len(gone.state.connections) == 0


def test_levels_are_made_anew_only_while_nothing_is_registered() -> None:
    state, (id_,) = running("keen")
    refused = refusal(answer_of(state, propose(1, recluster=True)))
    assert (refused.code, refused.where) == ("FAILED_PRECONDITION", "levels")
    both = run_batch(state, [propose(2, deregister=(id_,), recluster=True)])
    assert isinstance(both.answers[0], Applied)


def test_a_rollback_holds_earlier_tables_until_the_next_apply() -> None:
    before, (id_,) = running("calm")
    state, second = register(before, "keen", 7)
    state = after(state, connect(second, "h0", "h2", 7))
    state = after(state, connect(second, "h1", "h3", 8))
    back = Rollback(key=key(1, "operator"), revision=1, tables=dict(before.target))
    held = run_batch(state, [back])
    assert isinstance(held.answers[0], Applied)
    assert held.state.held_revision == 1
    assert held.state.revision == state.revision + 1
    for name, tables in held.state.target.items():
        default = (248, 1, 1, 1, 1, 1, 1, 1)
        assert tables == before.target[name] if name in before.target else tables.weights == default
    still = after(held.state, Deregister(key=key(99), application=id_))
    assert still.target == held.state.target
    resumed = run_batch(still, [propose(2)])
    assert resumed.state.held_revision is None
    gone = after(state, Deregister(key=key(99), application=id_))
    assert resumed.state.target == gone.target


def test_a_batch_gives_the_tables_that_its_events_give_one_by_one() -> None:
    state, id_ = register(ready(), "calm", 1)
    state, other = register(state, "keen", 2)
    events = [
        connect(id_, "h0", "h2", 1),
        connect(other, "h1", "h2", 2),
        Disconnect(connection="c/1"),
        connect(id_, "h0", "h3", 3),
    ]
    together = run_batch(state, events)
    one_by_one = state
    for event in events:
        one_by_one = after(one_by_one, event)
    assert together.state.target == one_by_one.target
    assert together.state.plan == one_by_one.plan
    assert (together.state.revision, one_by_one.revision) == (1, 4)


@pytest.mark.parametrize("field", ["unfit", "missing_paths"])
def test_a_sound_fabric_has_nothing_to_complain_of(field: str) -> None:
    assert len(getattr(running("calm")[0], field)) == 0


def test_the_latest_entries_are_remembered_and_much_older_ones_forgotten() -> None:
    recent: Recent[int, str] = Recent(most=10)
    for n in range(100):
        recent = recent.set(n, str(n))
        assert all(recent.get(m) == str(m) for m in range(max(0, n - 9), n + 1))
    assert recent.get(75) is None
    assert len(recent.new) + len(recent.old) <= 20


def test_a_connection_without_a_path_is_forgotten_with_its_registration() -> None:
    state, (calm,) = running("calm")
    state = after(state, connect(calm, "h0", "nowhere", 7))
    assert set(state.missing_paths) == {"c/7"}
    assert len(after(state, Disconnect(connection="c/7")).missing_paths) == 0
    ended = after(state, Deregister(key=key(8), application=calm))
    assert (len(ended.connections), len(ended.missing_paths)) == (0, 0)
