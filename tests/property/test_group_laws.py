"""Groups of switches, each with a controller of its own that follows the others' logs.

The oracle is one controller of all switches that gets the same requests: with the same levels, the
groups' ports have exactly its tables.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from control_parts import KINDS, VLARB, connect, fabric_event, key
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from some_examples import examples

from weft.control.operators.forecast import ProposalEffects, evaluate_proposal
from weft.control.runtime.restore import restore_state
from weft.control.service.group_replies import merge_plans
from weft.control.service.replies import build_group_plan, build_plan_reply
from weft.control.state.events import (
    ApplicationRow,
    Asker,
    Connect,
    ConnectionRow,
    Deregister,
    Disconnect,
    Event,
    FabricChanged,
    Follow,
    LevelsRow,
    ModelRow,
    NewApplication,
    Proposal,
    Refusal,
    Register,
    Registered,
    Renew,
    Row,
)
from weft.control.state.policy_settings import Settings
from weft.control.state.requests import find_home
from weft.control.state.state import REMEMBERED, Recent
from weft.control.state.step import run_batch
from weft.control.store.sqlite_store import StoredState
from weft.fabric import leaf_spine
from weft.switches import PortName, Tables

NAMES = ("a", "b", "c", "d")
SHAPES = ((2, 2, 2), (3, 2, 2), (4, 3, 1))
ABILITIES = (VLARB, replace(VLARB, queues=3, entries=8))


class Group:
    """A controller of some nodes, with its log."""

    def __init__(self, name: str, fabric: FabricChanged, nodes: set[str]) -> None:
        self.name = name
        self.log: list[tuple[Row, ...]] = []
        models = KINDS if name == NAMES[0] else {}
        restored = restore_state(StoredState(), Settings(group=name), models, 0.0)
        self.state = restored.state
        self._append(restored.rows)
        abilities = {port: a for port, a in fabric.abilities.items() if port.node in nodes}
        self.run(replace(fabric, abilities=abilities))

    def run(self, event: Event) -> object:
        outcome = run_batch(self.state, [event])
        self.state = outcome.state
        if not isinstance(event, Follow):
            self._append(outcome.rows)
        return outcome.answers[0]

    def _append(self, rows: tuple[Row, ...]) -> None:
        kinds = ApplicationRow | ConnectionRow | ModelRow | LevelsRow
        self.log.append(tuple(row for row in rows if isinstance(row, kinds)))

    def follow(self, other: Group) -> bool:
        """The next entry of the other's log, if there is one that can be followed."""
        position = int(self.state.cursors.get(other.name, "0"))
        if position == len(other.log):
            return False
        event = Follow(group=other.name, position=str(position + 1), rows=other.log[position])
        answer = self.run(event)
        assert self.run(event) == answer or isinstance(answer, Refusal)  # again: nothing changes
        return not isinstance(answer, Refusal)


class Deployment:
    """One controller of all nodes, and groups of them; requests go to one group at a time."""

    def __init__(self, random: Random, groups: int) -> None:
        self.random = random
        self.fabric = fabric_event(leaf_spine(*random.choice(SHAPES)), random.choice(ABILITIES))
        names = [node.name for node in self.fabric.fabric.nodes]
        self.central = run_batch(
            restore_state(StoredState(), Settings(), KINDS, 0.0).state, [self.fabric]
        ).state
        share = {name: random.randrange(groups) for name in names}
        self.groups = [
            Group(NAMES[n], self.fabric, {name for name in names if share[name] == n})
            for n in range(groups)
        ]
        self.central_id: dict[str, str] = {}  # of each registration of a group
        self.number = 0

    def exchange(self) -> None:
        """Until nobody has anything new, in any order."""
        pairs = [(a, b) for a in self.groups for b in self.groups if a is not b]
        while True:
            self.random.shuffle(pairs)
            if True not in [mine.follow(other) for mine, other in pairs]:
                return

    def step(self) -> None:
        self.number += 1
        group = self.random.choice(self.groups)
        homes = [id_ for id_ in group.state.applications if find_home(id_) == group.name]
        event = self._choose(group, homes)
        answer = group.run(event)
        assert not isinstance(answer, Refusal) or not group.state.models, answer
        if isinstance(answer, Refusal):
            return
        outcome = run_batch(self.central, [self._translate(event)])
        self.central = outcome.state
        (central,) = outcome.answers
        assert not isinstance(central, Refusal), central
        if isinstance(answer, Registered):
            assert isinstance(central, Registered)
            assert answer.level == central.level
            assert answer.id not in self.central_id
            self.central_id[answer.id] = central.id
        if self.random.random() < 0.3:
            mine, other = (self.random.choice(self.groups) for _ in range(2))
            if mine is not other:
                mine.follow(other)

    def _choose(self, group: Group, homes: list[str]) -> Event:
        draw = self.random.random()
        if not homes or draw < 0.2:
            name = self.random.choice(sorted(KINDS))
            return Register(key=key(self.number), name=name, ttl_s=0.0, now_s=0.0)
        application = self.random.choice(sorted(homes))
        links = sorted(group.state.applications[application].connections)
        if draw < 0.3:
            return Deregister(key=key(self.number), application=application)
        if draw < 0.45 and links:
            return Disconnect(connection=self.random.choice(links))
        hosts = [self.fabric.fabric.nodes[n].name for n in self.fabric.fabric.hosts]
        source, destination = self.random.sample(hosts, 2)
        return Connect(
            key=key(self.number),
            application=application,
            source=source,
            destination=destination,
            now_s=0.0,
        )

    def _translate(self, event: Event) -> Event:
        if isinstance(event, Connect | Deregister):
            return structs.replace(event, application=self.central_id[event.application])
        return event

    def tables(self) -> dict[PortName, Tables]:
        tables: dict[PortName, Tables] = {}
        for group in self.groups:
            assert not tables.keys() & group.state.target.keys()
            tables |= group.state.target
        return tables


@given(st.randoms(use_true_random=False), st.integers(1, 4))
@examples(60)
def test_groups_solved_apart_have_exactly_the_central_tables(random: Random, groups: int) -> None:
    deployment = Deployment(random, groups)
    deployment.exchange()
    for _ in range(random.randint(1, 25)):
        deployment.step()
    deployment.exchange()
    central = deployment.central
    assert deployment.tables() == dict(central.target)
    ids = {id_ for id_, other in deployment.central_id.items() if other in central.applications}
    for group in deployment.groups:
        assert set(group.state.applications) == ids
        assert set(group.state.connections) == set(central.connections)


@given(st.randoms(use_true_random=False), st.integers(2, 4))
@examples(25)
def test_a_plan_of_all_groups_is_the_central_one(random: Random, groups: int) -> None:
    deployment = Deployment(random, groups)
    deployment.exchange()
    for _ in range(random.randint(1, 15)):
        deployment.step()
    deployment.exchange()
    home = random.choice(deployment.groups)
    mine = sorted(id_ for id_ in home.state.applications if find_home(id_) == home.name)
    hosts = [f"h{n}" for n in range(4)]
    new = [
        NewApplication(
            name=random.choice(sorted(KINDS)), connections=(tuple(random.sample(hosts, 2)),)
        )
        for _ in range(random.randint(0, 2))
    ]
    ends = tuple(random.sample(mine, random.randint(0, min(1, len(mine)))))
    plans, changed = {}, set[str]()
    for group in deployment.groups:
        state = replace(
            group.state,
            settings=replace(group.state.settings, group=home.name),
            last_registration=home.state.last_registration,
        )
        effects = evaluate_proposal(state, Proposal(register=tuple(new), deregister=ends))
        assert isinstance(effects, ProposalEffects), effects
        changed = set(state.applications) ^ set(effects.after.applications)
        plans[group.name] = build_group_plan(state, effects)
    merged = merge_plans(plans, changed)
    central_ends = tuple(deployment.central_id[id_] for id_ in ends)
    central_effects = evaluate_proposal(
        deployment.central, Proposal(register=tuple(new), deregister=central_ends)
    )
    assert isinstance(central_effects, ProposalEffects), central_effects
    central = build_plan_reply(central_effects)
    ports = sorted(merged.ports, key=lambda change: (change.port.node, change.port.port))
    assert ports == list(central.ports)
    # Of applications that are alike, the order of ids decides who has a unit more.
    assert merged.slowdown_before == pytest.approx(central.slowdown_before, rel=0.05)
    assert merged.slowdown_after == pytest.approx(central.slowdown_after, rel=0.05)
    listed, central_listed = ({f.id: f for f in p.applications} for p in (merged, central))
    for id_, central_id in deployment.central_id.items():
        if id_ not in listed or central_id not in central_listed:
            continue  # its share changes by a unit, or not at all
        pair = listed[id_], central_listed[central_id]
        for share in ("share_before", "share_after"):
            of_groups, of_all = (getattr(forecast, share) for forecast in pair)
            assert of_groups == pytest.approx(of_all, abs=2 / VLARB.units)
    assert changed <= listed.keys()


@given(st.randoms(use_true_random=False))
@examples(25)
def test_a_late_entry_brings_nothing_back_also_after_a_restart(random: Random) -> None:
    deployment = Deployment(random, 2)
    deployment.exchange()
    for _ in range(random.randint(5, 25)):
        deployment.step()
    deployment.exchange()
    mine, other = random.sample(deployment.groups, 2)
    # A restart forgets which connections were closed.
    mine.state = replace(mine.state, closed=Recent(most=REMEMBERED))
    for number in random.sample(range(len(other.log)), min(5, len(other.log))):
        late = Follow(group=other.name, position=str(number + 1), rows=other.log[number])
        outcome = run_batch(mine.state, [late])
        assert (outcome.state, outcome.rows) == (mine.state, ())


def test_a_late_entry_after_a_restart_does_not_open_what_was_closed() -> None:
    deployment = Deployment(Random(3), 2)
    deployment.exchange()
    first, second = deployment.groups
    first.run(Register(key=key(1), name="calm", ttl_s=0.0, now_s=0.0))
    first.run(connect("calm#1@a", "h0", "h1", 2))
    opened = first.log[-1]
    first.run(Disconnect(connection="c/2"))
    rows = [row for entry in first.log for row in entry]
    second.run(Follow(group="a", position="h:9", rows=tuple(rows), is_whole=True))
    assert not second.state.connections
    second.state = replace(second.state, closed=Recent(most=REMEMBERED))
    for position in ("h:8", "h:9"):
        second.run(Follow(group="a", position=position, rows=opened))
        assert not second.state.connections
        assert second.state.cursors["a"] == "h:9"
    # A group with a new history, such as one restored from a backup, is followed from its start.
    second.run(Follow(group="a", position="other:1", rows=opened))
    assert set(second.state.connections) == {"c/2"}


def test_only_its_home_changes_a_registration() -> None:
    deployment = Deployment(Random(1), 2)
    deployment.exchange()
    first, second = deployment.groups
    registered = first.run(Register(key=key(1), name="calm", ttl_s=5.0, now_s=0.0))
    assert isinstance(registered, Registered)
    assert registered.id == "calm#1@a"
    deployment.exchange()
    assert second.state.applications[registered.id].is_alive(1e9)  # its home knows the lease
    operator = Asker(name="root", is_operator=True)
    requests: list[Event] = [
        Renew(application=registered.id, now_s=0.0, by=operator),
        Deregister(key=key(2), application=registered.id, by=operator),
        connect(registered.id, "h0", "h1", 3),
    ]
    for request in requests:
        answer = second.run(request)
        assert isinstance(answer, Refusal), request
        assert answer.problem == "is of the group a"


def test_a_whole_state_replaces_what_was_followed() -> None:
    deployment = Deployment(Random(2), 2)
    deployment.exchange()
    first, second = deployment.groups
    for number in (1, 2, 3):
        first.run(Register(key=key(number), name="calm", ttl_s=0.0, now_s=0.0))
    for number in (4, 5):
        first.run(connect("calm#1@a", "h0", "h1", number))
    deployment.exchange()
    rows = (
        ApplicationRow(id="calm#1@a", name="calm"),
        ApplicationRow(id="calm#4@a", name="calm"),
        ConnectionRow(id="c/5", connection=first.state.connections["c/5"]),
    )
    second.run(Follow(group="a", position="x:9", rows=rows, is_whole=True))
    assert set(second.state.applications) == {"calm#1@a", "calm#4@a"}
    assert set(second.state.connections) == {"c/5"}
    assert second.state.cursors["a"] == "x:9"
