"""Laws of the controller over random fabrics and sequences of events.

The oracles: tables made from scratch of all connections, by the policy's own definition of a path;
a list of what was acknowledged; the deadline of each lease.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from control_parts import HTB, KINDS, VLARB, empty, fabric_event, key, ports_of, waits
from control_rig import Memory, Rig
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from some_examples import examples

from weft.control.operators.forecast import ProposalEffects, evaluate_proposal
from weft.control.policy.plan import ConnectionPath, build_plan, find_connection_path
from weft.control.runtime.engine import Batching, RollbackTo
from weft.control.runtime.restore import restore_state
from weft.control.state.events import (
    ApplicationModel,
    Applied,
    Apply,
    Connect,
    Connected,
    Connection,
    Deregister,
    Disconnect,
    Done,
    Event,
    Expire,
    FabricChanged,
    ModelChanged,
    NewApplication,
    Proposal,
    Refusal,
    Register,
    Registered,
    Renew,
    Renewed,
)
from weft.control.state.policy_settings import Settings
from weft.control.state.programming import build_default_tables, build_plan_tables
from weft.control.state.state import PendingConnection, PendingPorts, State
from weft.control.state.step import run_batch
from weft.control.store.sqlite_store import Store
from weft.errors import InputError
from weft.fabric import Fabric, Port, leaf_spine, one_switch, route, two_hops
from weft.switches import Ability, PortName, Tables

ABILITIES = (
    VLARB,
    HTB,
    replace(VLARB, queues=3, entries=8),
    replace(VLARB, queues=4, entries=64, units=4096),
)
SETTINGS = (
    Settings(),
    Settings(levels=2),
    Settings(levels=3, managed_share=0.8),
    Settings(managed_share=0.6, take_over=True),
    Settings(objective="size"),
)
HOSTS = ("h0", "h1", "h2", "h3", "nowhere")
NAMES = ("calm", "middling", "keen", "stranger")


def drawn_fabric(random: Random) -> Fabric:
    """Four hosts or more behind one switch, two, or leaves and spines some of whose cables lack."""
    shape = random.randrange(6)
    if shape == 0:
        return one_switch(random.randint(4, 6))
    if shape == 1:
        return two_hops(random.randint(2, 3), random.randint(2, 3))
    leaves, spines = random.randint(2, 3), random.randint(1, 3)
    whole = leaf_spine(leaves, spines, random.randint(2, 3), random.randint(1, 2))
    return with_cables_out(random, whole)


def with_cables_out(random: Random, whole: Fabric) -> Fabric:
    between = [link for link in whole.links if whole.nodes[link.a.node].kind == "switch"]
    gone = random.sample(between, random.choice((0, 0, min(1, len(between)), len(between) // 2)))
    bare = replace(whole, links=tuple(link for link in whole.links if link not in gone))
    # Destinations cannot be dealt out where a switch has none left above it.
    return route(bare, random.choice(("ecmp", "shortest_path")))


class Story:
    """Random events that make sense often enough."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.number = 0
        self.now_s = 0.0

    def next(self, state: State) -> Event:
        self.number += 1
        self.now_s += self.random.choice((0.0, 0.1, 1.0, 6.0))
        kinds = (
            self.register,
            self.connect,
            self.connect,
            self.connect,
            self.disconnect,
            self.deregister,
            self.renew,
            self.expire,
            self.fabric,
            self.model,
            self.apply,
        )
        return self.random.choice(kinds)(state)

    def request(self, state: State) -> Event | RollbackTo:
        """As they come to an engine, whose switches say what the fabric is."""
        self.number += 1
        kinds = (
            self.register,
            self.connect,
            self.connect,
            self.connect,
            self.disconnect,
            self.deregister,
            self.model,
            self.apply,
            self.rollback,
        )
        return self.random.choice(kinds)(state)

    def rollback(self, state: State) -> RollbackTo:
        return RollbackTo(key=self._key(), revision=self.random.randint(0, state.revision))

    def _application(self, state: State) -> str:
        return self.random.choice([*sorted(state.applications), "calm#999"])

    def register(self, _: State) -> Event:
        ttl_s = self.random.choice((2.0, 10.0, 100.0))
        return Register(
            key=self._key(),
            name=self.random.choice(NAMES),
            ttl_s=ttl_s,
            now_s=self.now_s,
            job=self.random.choice(("", "", "j")),
            size_bytes=self.random.choice((0, 0, 10**6, 10**9)),
        )

    def _key(self):
        return key(self.random.choice((self.number, max(1, self.number - 1))))

    def connect(self, state: State) -> Event:
        source, destination = (self.random.choice(HOSTS) for _ in range(2))
        return Connect(
            key=self._key(),
            application=self._application(state),
            source=source,
            destination=destination,
            now_s=self.now_s,
        )

    def disconnect(self, state: State) -> Event:
        known = [*sorted(state.connections), "c/999"]
        return Disconnect(connection=self.random.choice(known))

    def deregister(self, state: State) -> Event:
        return Deregister(key=self._key(), application=self._application(state))

    def renew(self, state: State) -> Event:
        return Renew(application=self._application(state), now_s=self.now_s)

    def expire(self, state: State) -> Event:
        return Expire(application=self._application(state), now_s=self.now_s)

    def fabric(self, state: State) -> FabricChanged:
        fabric = drawn_fabric(self.random)
        if state.paths is not None and len(state.paths.fabric.switches) > 2:
            # Often the same one, with other cables out.
            fabric = self.random.choice((fabric, with_cables_out(self.random, state.paths.fabric)))
        names = ports_of(fabric)
        dumb = self.random.sample(names, self.random.choice((0, 0, 2)))
        ability = self.random.choice(ABILITIES)
        return FabricChanged(fabric=fabric, abilities={n: ability for n in names if n not in dumb})

    def model(self, _: State) -> Event:
        name = self.random.choice((*KINDS, "newcomer"))
        kind = ApplicationModel(
            curve=waits(self.random.choice((0.2, 0.5, 1.5))),
            size_bytes=self.random.choice((None, 1e7)),
        )
        return ModelChanged(name=name, model=self.random.choice((None, kind, kind)))

    def apply(self, state: State) -> Event:
        new = NewApplication(
            name=self.random.choice(NAMES[:3]), connections=(("h0", self.random.choice(HOSTS)),)
        )
        gone = self.random.sample(sorted(state.applications), min(1, len(state.applications)))
        both = Proposal(register=(new,), deregister=tuple(gone))
        only = Proposal(register=(new,))
        return Apply(key=self._key(), proposal=self.random.choice((both, only)), now_s=self.now_s)


def told_from(state: State, events: int, story: Story) -> State:
    for _ in range(events):
        state = run_batch(state, [story.next(state)]).state
    return state


# ---- Tables -----------------------------------------------------------------------------------


def from_scratch(state: State, had: dict[str, set[PortName]]) -> dict[PortName, Tables]:
    """Tables of all managed ports, from the connections as they are.

    `had` remembers the ports of each connection's last path: they count it while it has none.
    """
    assert state.paths is not None
    fabric, uses = state.paths.fabric, []
    names = {n: node.name for n, node in enumerate(fabric.nodes)}
    numbers = {name: n for n, name in names.items()}
    managed = {name: Port(numbers[name.node], name.port) for name in state.policies}
    for connection in state.connections.values():
        ports_of_path = way(fabric, connection)
        if ports_of_path is not None:
            had[connection.id] = {
                PortName(names[port.node], port.port) for port in ports_of_path
            } & managed.keys()
        ports = tuple(managed[name] for name in had.get(connection.id, ()) if name in managed)
        if ports:
            unit = state.applications[connection.application].unit
            uses.append(ConnectionPath(application=unit, ports=ports))
    plans = build_plan(state.plan.policy, uses).ports if state.plan is not None else {}
    return {name: _tables(state, name, plans.get(port)) for name, port in managed.items()}


def way(fabric: Fabric, connection: Connection) -> tuple[Port, ...] | None:
    """Ports of all its paths, by the policy's connection definition; None where it has no path."""
    hosts = {fabric.nodes[n].name: n for n in fabric.hosts}
    if connection.source not in hosts or connection.destination not in hosts:
        return None
    if connection.source == connection.destination:
        return ()
    try:
        return find_connection_path(
            fabric, connection.application, hosts[connection.source], hosts[connection.destination]
        ).ports
    except InputError:
        return None


def _tables(state: State, name: PortName, plan) -> Tables:
    ability = state.abilities[name]
    if plan is None:
        return build_default_tables(state.policies[name], ability, state.settings)
    return build_plan_tables(plan, ability, state.settings)


@examples(150)
@given(st.randoms(use_true_random=False), st.sampled_from(SETTINGS))
def test_tables_after_any_events_are_those_of_the_connections_from_scratch(
    random: Random, settings: Settings
) -> None:
    story = Story(random)
    state = run_batch(empty(settings), [story.fabric(empty(settings))]).state
    had: dict[str, set[PortName]] = {}
    for _ in range(25):
        state = run_batch(state, [story.next(state)]).state
        expected = from_scratch(state, had)
        assert {n: t for n, t in state.target.items() if n in expected} == {
            name: expected[name] for name in state.target if name in expected
        }
        if state.plan is not None:
            busy = {state.paths.names[port] for port in state.plan.ports}
            assert busy <= set(state.target)


@examples(60)
@given(st.randoms(use_true_random=False), st.sampled_from(SETTINGS))
def test_a_batch_comes_to_the_same_as_its_events_one_by_one(
    random: Random, settings: Settings
) -> None:
    story = Story(random)
    state = told_from(run_batch(empty(settings), [story.fabric(empty(settings))]).state, 10, story)
    events = [story.next(state) for _ in range(12)]
    together = run_batch(state, events)
    one_by_one, answers = state, []
    for event in events:
        outcome = run_batch(one_by_one, [event])
        one_by_one = outcome.state
        answers += outcome.answers
    assert [bare(a) for a in together.answers] == [bare(a) for a in answers]
    assert replace(together.state, revision=0) == replace(
        one_by_one, revision=0, answers=together.state.answers
    )


def bare(answer: object) -> object:
    """Without the revision, of which a batch makes fewer, and the ports it changed."""
    return (
        structs.replace(answer, revision=0, ports=frozenset())
        if hasattr(answer, "ports")
        else answer
    )


@examples(60)
@given(st.randoms(use_true_random=False), st.sampled_from(SETTINGS))
def test_a_refusal_changes_nothing_and_a_repeated_request_is_answered_alike(
    random: Random, settings: Settings
) -> None:
    story = Story(random)
    state = told_from(run_batch(empty(settings), [story.fabric(empty(settings))]).state, 15, story)
    for _ in range(10):
        event = story.next(state)
        once = run_batch(state, [event])
        if isinstance(once.answers[0], Refusal):
            assert (once.state, once.rows, once.ports) == (state, (), frozenset())
        elif isinstance(event, Register | Connect | Disconnect | Deregister | Apply):
            twice = run_batch(once.state, [event])
            assert (twice.state, twice.rows) == (once.state, ())
            assert twice.answers == once.answers
        state = once.state


# ---- Plans ------------------------------------------------------------------------------------


@examples(300)
@given(st.randoms(use_true_random=False), st.sampled_from(SETTINGS), st.sampled_from(ABILITIES))
def test_a_plan_for_a_new_application_is_what_apply_then_does_in_every_port(
    random: Random, settings: Settings, ability: Ability
) -> None:
    story, switches = Story(random), Memory(drawn_fabric(random), ability)
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder) / "control.db", switches, settings)
        rig.settle()
        for _ in range(random.randrange(12)):
            rig.ask(story.request(rig.engine.state))
        rig.settle()
        before, event = dict(switches.held), story.apply(rig.engine.state)
        assert isinstance(event, Apply)
        planned = evaluate_proposal(rig.engine.state, event.proposal)
        answer = rig.ask(structs.replace(event, key=key(10_000, "operator")))
        rig.settle()
        rig.close()
    if isinstance(planned, Refusal):
        assert (answer, switches.held) == (planned, before)
        return
    assert isinstance(planned, ProposalEffects)
    after = {change.port: change.after for change in planned.ports}
    assert isinstance(answer, Applied)
    assert answer.ports == after.keys()
    assert switches.held == before | after
    replaced = {change.port: change.before for change in planned.ports if change.before is not None}
    assert replaced.items() <= before.items()


# ---- Leases -----------------------------------------------------------------------------------


@examples(150)
@given(st.randoms(use_true_random=False))
def test_a_lease_that_has_ended_never_comes_back(random: Random) -> None:
    story = Story(random)
    state, until = run_batch(empty(), [fabric_event()]).state, {}
    for _ in range(60):
        event = random.choice((story.register, story.renew, story.expire, story.connect))(state)
        story.number += 1
        story.now_s += random.choice((0.0, 0.5, 3.0))
        event = structs.replace(event, now_s=story.now_s)
        outcome = run_batch(state, [event])
        (answer,) = outcome.answers
        if isinstance(answer, Registered) and outcome.rows:
            assert answer.id not in until
            until[answer.id] = story.now_s + answer.ttl_s
        elif isinstance(answer, Renewed):
            assert story.now_s <= until[event.application]
            until[event.application] = max(until[event.application], story.now_s + answer.ttl_s)
        elif isinstance(answer, Connected):
            assert story.now_s <= until[event.application]
        state = outcome.state
        assert set(state.applications) <= set(until)


# ---- The store --------------------------------------------------------------------------------


class Acknowledged:
    """What clients were told is there."""

    def __init__(self) -> None:
        self.applications: set[str] = set()
        self.connections: dict[str, str] = {}

    def note(self, events: Sequence[Event], answers: Sequence[object], now: State) -> None:
        gone: set[str] = set()
        answered: set[str] = set()
        for event, answer in zip(events, answers, strict=True):
            if isinstance(answer, Registered):
                self.applications.add(answer.id)
                answered.add(answer.id)
            elif isinstance(answer, Connected) and isinstance(event, Connect):
                self.connections[answer.connection] = event.application
            elif isinstance(event, Disconnect):
                self.connections.pop(event.connection, None)
            elif isinstance(event, Deregister) and isinstance(answer, Done):
                gone.add(event.application)
        # A key that was answered before names a registration that may have ended since.
        assert self.applications - gone <= set(now.applications) | answered
        self.applications &= set(now.applications)
        self.connections = {c: a for c, a in self.connections.items() if a in self.applications}


@examples(60)
@given(st.randoms(use_true_random=False))
def test_whatever_was_acknowledged_is_there_after_a_kill_and_nothing_twice(random: Random) -> None:
    story = Story(random)
    kinds = (story.register, story.connect, story.connect, story.disconnect, story.deregister)
    with tempfile.TemporaryDirectory() as folder:
        path, acknowledged = Path(folder) / "control.db", Acknowledged()
        for _ in range(4):
            store = Store.open(path)
            restored = restore_state(store.load(), Settings(), KINDS, 0.0)
            store.commit(restored.rows, at_s=0.0)
            state = run_batch(restored.state, [fabric_event()]).state
            assert set(state.applications) == acknowledged.applications
            assert {
                c.id: c.application for c in state.connections.values()
            } == acknowledged.connections
            story.now_s = 0.0
            for _ in range(random.randrange(6)):
                events = [replace_time(random.choice(kinds)(state)) for _ in range(3)]
                story.number += 3
                outcome = run_batch(state, events)
                store.commit(outcome.rows, at_s=0.0)
                state = outcome.state
                acknowledged.note(events, outcome.answers, state)
            run_batch(state, [story.register(state)])  # worked out, and killed before it was kept
            store.close()


@examples(60)
@given(st.randoms(use_true_random=False), st.sampled_from(SETTINGS))
def test_after_a_kill_switches_come_to_hold_the_tables_of_the_connections_from_scratch(
    random: Random, settings: Settings
) -> None:
    story, switches = Story(random), Memory(drawn_fabric(random))
    kinds = (story.register, story.connect, story.connect, story.disconnect, story.deregister)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "control.db"
        rig = Rig(path, switches, settings, batching=Batching(max_ports=1))
        rig.settle()
        for _ in range(random.randrange(40)):
            rig.ask(random.choice(kinds)(rig.engine.state))
            story.number += 1
        rig.close()  # as a kill does, also in the middle of what is pending
        again = Rig(path, switches, settings)
        again.settle()
        again.close()
    state = again.engine.state
    assert state.plan is not None
    busy = {state.paths.names[port] for port in state.plan.ports}
    expected, to_compare = (
        from_scratch(state, {}),
        busy if state.missing_paths else busy | set(state.target),
    )
    assert {name: switches.held[name] for name in to_compare} == {
        name: expected[name] for name in to_compare
    }


def replace_time(event: Event) -> Event:
    return structs.replace(event, now_s=0.0) if hasattr(event, "now_s") else event


@examples(60)
@given(st.randoms(use_true_random=False))
def test_the_fabrics_of_these_laws_have_the_hosts_that_they_name(random: Random) -> None:
    fabric = drawn_fabric(random)
    assert {fabric.nodes[n].name for n in fabric.hosts} >= set(HOSTS[:4])


@examples(200)
@given(
    st.lists(
        st.integers(0, 6)
        | st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.sampled_from((-1, 1)),
                st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True),
            ),
            max_size=5,
        ),
        max_size=12,
    )
)
def test_ports_that_wait_are_counted_once_the_first_first(
    steps: list[int | list[tuple[str, int, list[int]]]],
) -> None:
    """Beside a queue of ports and their sums: connections come, and some ports are taken.

    What was taken from an earlier value is there again when that value is taken from again.
    """
    pending, sums = PendingPorts(), dict[Port, dict[str, int]]()
    for step in steps:
        if isinstance(step, int):
            counts, rest = pending.take(step)
            taken = [sums.pop(port) for port in list(sums)[:step]]
            assert list(counts.values()) == taken
            assert pending.take(step) == (counts, rest)
            assert (rest is None) == (not sums)
            pending = rest or PendingPorts()
            continue
        connections = []
        for application, change, numbers in step:
            ports = tuple(Port(0, number) for number in numbers)
            path = ConnectionPath(application=application, ports=ports)
            connections.append(PendingConnection(path, change, None))
            for port in ports:
                by_name = sums.setdefault(port, {})
                by_name[application] = by_name.get(application, 0) + change
        pending = pending.add(connections)
    assert pending.take(None) == (sums, None)
