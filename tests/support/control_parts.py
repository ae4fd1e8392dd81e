"""A small fabric, models, and a controller's state on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.control.runtime.restore import restore_state
from weft.control.state.events import (
    Answer,
    ApplicationModel,
    Connect,
    Event,
    FabricChanged,
    Register,
    Registered,
)
from weft.control.state.policy_settings import Settings
from weft.control.state.request_key import Key
from weft.control.state.state import State
from weft.control.state.step import run_batch
from weft.control.store.sqlite_store import StoredState
from weft.fabric import Fabric, Port, leaf_spine
from weft.sensitivity.model import Hinges
from weft.switches import Ability, PortName

VLARB = Ability(scheduler="vlarb", levels=8, queues=8, entries=16, units=255)
HTB = Ability(scheduler="htb", levels=8, queues=8, entries=8, units=200_000)


def waits(part: float, floor: float = 0.05) -> Hinges:
    """Communicates for this part of its time, and nothing hides it."""
    return Hinges(terms=((1.0, part),), floor=floor)


KINDS = {
    "calm": ApplicationModel(curve=waits(0.1), baseline_s=100.0),
    "middling": ApplicationModel(curve=waits(0.4), baseline_s=50.0),
    "keen": ApplicationModel(curve=waits(0.9)),
}
FABRIC = leaf_spine(2, 2, 2)  # hosts h0 and h1 on one leaf, h2 and h3 on the other


def ports_of(fabric: Fabric) -> list[PortName]:
    return [
        PortName(node.name, port)
        for number, node in enumerate(fabric.nodes)
        for port in fabric.neighbors(number)
    ]


def seen_without(fabric: Fabric, *names: str) -> Fabric:
    """The fabric as a discovery has it that some of its nodes did not answer."""
    here = [n for n, node in enumerate(fabric.nodes) if node.name not in names]
    number = {old: new for new, old in enumerate(here)}
    links = [
        replace(
            link, a=Port(number[link.a.node], link.a.port), b=Port(number[link.b.node], link.b.port)
        )
        for link in fabric.links
        if {link.a.node, link.b.node} <= number.keys()
    ]
    assert fabric.routes is not None
    rows, columns = (
        [fabric.ordinal[n] for n in group if n in number]
        for group in (fabric.switches, fabric.hosts)
    )
    routes = replace(fabric.routes, next_hop=fabric.routes.next_hop[rows][:, columns])
    nodes = tuple(fabric.nodes[n] for n in here)
    return replace(fabric, nodes=nodes, links=tuple(links), routes=routes)


def fabric_event(fabric: Fabric = FABRIC, ability: Ability = VLARB) -> FabricChanged:
    return FabricChanged(fabric=fabric, abilities=dict.fromkeys(ports_of(fabric), ability))


def empty(
    settings: Settings | None = None, models: Mapping[str, ApplicationModel] = KINDS
) -> State:
    """Models and nothing else."""
    return restore_state(StoredState(), settings or Settings(), models, 0.0).state


def ready(settings: Settings | None = None, ability: Ability = VLARB) -> State:
    """Models and a fabric."""
    return run_batch(empty(settings), [fabric_event(ability=ability)]).state


def key(number: int, client: str = "c") -> Key:
    return Key(client, number)


def after(state: State, *events: Event) -> State:
    """The state after events, all of which are carried out."""
    return run_batch(state, events).state


def answer_of(state: State, event: Event) -> Answer:
    return run_batch(state, [event]).answers[0]


def register(state: State, name: str, number: int, ttl_s: float = 10.0) -> tuple[State, str]:
    """One registration more, and its id."""
    found = run_batch(state, [Register(key=key(number, "r"), name=name, ttl_s=ttl_s, now_s=0.0)])
    (answer,) = found.answers
    assert isinstance(answer, Registered), answer
    return found.state, answer.id


def connect(
    application: str, source: str, destination: str, number: int, now_s: float = 0.0
) -> Connect:
    return Connect(
        key=key(number),
        application=application,
        source=source,
        destination=destination,
        now_s=now_s,
    )


def running(
    *names: str, ability: Ability = VLARB, settings: Settings | None = None
) -> tuple[State, list[str]]:
    """Applications with a connection each from h0 to h2."""
    state, ids = ready(settings, ability), []
    for number, name in enumerate(names, start=1):
        state, id_ = register(state, name, number)
        state = after(state, connect(id_, "h0", "h2", number))
        ids.append(id_)
    return state, ids


def without_memory(state: State) -> State:
    """What must not depend on the way that a state was reached."""
    bare = State(settings=state.settings)
    return replace(state, revision=0, last_registration=0, answers=bare.answers, closed=bare.closed)
