"""What operators and the surroundings change: models, proposals, rollbacks.

Each function takes the state and one event; what it refuses has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256

from weft.control.policy.plan import Plan, Policy, PortMap, replan
from weft.control.state.desired_tables import default_tables
from weft.control.state.events import (
    Answer,
    ApplicationModel,
    Applied,
    Apply,
    ModelChanged,
    NewApplication,
    Refusal,
    Registered,
    Rollback,
)
from weft.control.state.fabric_changes import programmed_ports
from weft.control.state.key import Key
from weft.control.state.kinds import add_to_levels, build_policy, cluster_levels
from weft.control.state.programming import reprogram, retarget, settle
from weft.control.state.requests import (
    add_connection,
    add_registration,
    find_answer,
    refuse,
    refuse_reused_key,
    remember_answer,
    remove_registration,
)
from weft.control.state.rows import LevelsRow, ModelRow, RevisionRow, Row
from weft.control.state.state import Connection, State, Step, then
from weft.errors import InputError
from weft.switches import PortName, Tables

# ---- Models -----------------------------------------------------------------------------------


def change_model(state: State, event: ModelChanged) -> Step:
    """While nothing is registered all levels are made anew; otherwise nobody's level changes."""
    counted = settle(state)
    if event.kind is None:
        return then(counted, _withdrawn(counted.state, event.name))
    return then(counted, _offered(counted.state, event.name, event.kind))


def _offered(state: State, name: str, kind: ApplicationModel) -> Step:
    if state.kinds.get(name) == kind and name not in state.withdrawn:
        return Step(state=state)
    kinds, row = {**state.kinds, name: kind}, ModelRow(name=name, kind=kind)
    told = replace(state, withdrawn=state.withdrawn - {name})
    if not state.applications:
        return _clustered(told, kinds, (row,))
    levels = state.levels
    if levels is None or name not in levels.assignment:
        levels = add_to_levels(levels, name, kind.model, state.settings.levels)
    after = _under(replace(told, levels=levels), kinds, f"the model of {name}")
    return replace(after, rows=(row, LevelsRow(levels=levels), *after.rows))


def _withdrawn(state: State, name: str) -> Step:
    """Whoever runs keeps its model; nobody new gets it."""
    if name not in state.kinds or name in state.withdrawn:
        return Step(state=state)
    if not state.applications:
        kinds = {own: kind for own, kind in state.kinds.items() if own != name}
        return _clustered(state, kinds, (ModelRow(name=name, kind=None),))
    row = ModelRow(name=name, kind=state.kinds[name], withdrawn=True)
    return Step(state=replace(state, withdrawn=state.withdrawn | {name}), rows=(row,))


def _anew(state: State) -> Step:
    """Levels anew, of the applications that the table has."""
    kinds = {name: kind for name, kind in state.kinds.items() if name not in state.withdrawn}
    gone = tuple(ModelRow(name=name, kind=None) for name in sorted(state.withdrawn))
    return _clustered(replace(state, withdrawn=frozenset()), kinds, gone)


def _clustered(state: State, kinds: Mapping[str, ApplicationModel], rows: tuple[Row, ...]) -> Step:
    levels = cluster_levels(kinds, state.settings.levels)
    kept = () if levels is None else (LevelsRow(levels=levels),)
    after = _under(replace(state, levels=levels), kinds, "levels anew")
    return replace(after, rows=(*rows, *kept, *after.rows))


def _under(state: State, kinds: Mapping[str, ApplicationModel], cause: str) -> Step:
    """With these models, and the levels that the state has by now; all connections are counted."""
    ports = {} if state.paths is None else state.paths.ports
    policies = {ports[name]: own for name, own in state.policies.items()}
    policy = build_policy(kinds, state.levels, policies)
    if policy is None:
        return Step(state=replace(state, kinds=kinds, plan=None))
    moved = _replanned(state, kinds, policy)
    after = replace(state, kinds=kinds, plan=moved)
    if state.plan is None or moved.ports is state.plan.ports or state.paths is None:
        return Step(state=after)
    return reprogram(after, [state.paths.names[port] for port in moved.ports], cause)


def _replanned(state: State, kinds: Mapping[str, ApplicationModel], policy: Policy) -> Plan:
    """Ports are solved again where a model in use or the queues of levels have changed."""
    before = state.plan
    if before is None:
        return Plan(policy=policy, ports=PortMap({}))
    used = {own.name for own in state.applications.values()}
    if policy.hierarchy == before.policy.hierarchy and all(
        state.kinds[name].model == kinds[name].model for name in used
    ):
        return Plan(policy=policy, ports=before.ports)
    return replan(before, policy)


# ---- Proposals and rollbacks ------------------------------------------------------------------


def apply(state: State, event: Apply) -> Step:
    """All of a proposal or nothing; its ports are solved at once, so that they can be told."""
    asked = sha256(repr(event.proposal).encode()).hexdigest()[:32]
    before = _answered(state, event.key, asked)
    if before is not None:
        return Step(state=state, answer=before)
    found = _resumed(state)
    ids: list[str] = []
    for part in _parts(event):
        found = then(found, part(found.state))
        if isinstance(found.answer, Refusal):
            return refuse(state, found.answer)
        if isinstance(found.answer, Registered):
            ids.append(found.answer.id)
    found = then(found, settle(found.state, f"apply {event.key}"))
    answer = Applied(ids=tuple(ids), revision=found.state.revision, ports=found.ports, asked=asked)
    return remember_answer(replace(found, answer=answer), event.key)


def _answered(state: State, key: Key, asked: str) -> Answer | None:
    """What the key was answered, if it is no other request's."""
    before = find_answer(state, key, Applied)
    if isinstance(before, Applied) and before.asked != asked:
        return refuse_reused_key(key)
    return before


def _parts(event: Apply) -> Iterator[Callable[[State], Step]]:
    """Who goes makes room for who comes."""
    for application in event.proposal.deregister:
        yield partial(_given_back, application=application)
    if event.proposal.recluster:
        yield _reclustered
    for number, new in enumerate(event.proposal.register):
        # No client's name has a colon: these ids are nobody else's.
        prefix = f"{event.key.client}:{event.key.sequence}.{number}"
        yield partial(_placed, new=new, prefix=prefix, now_s=event.now_s)


def _given_back(state: State, application: str) -> Step:
    own = state.applications.get(application)
    if own is None:
        refusal = Refusal(
            code="NOT_FOUND",
            where=f"application {application}",
            problem="is not registered",
            remedy="see weft control apps",
        )
        return refuse(state, refusal)
    return remove_registration(state, own)


def _reclustered(state: State) -> Step:
    if not state.applications:
        counted = settle(state)
        return then(counted, _anew(counted.state))
    problem = f"{len(state.applications)} applications are registered, and their packets carry them"
    refusal = Refusal(
        code="FAILED_PRECONDITION",
        where="levels",
        problem=problem,
        remedy="recluster when nothing is registered",
    )
    return refuse(state, refusal)


def _placed(state: State, new: NewApplication, prefix: str, now_s: float) -> Step:
    """A registration without lease, with its connections."""
    found = add_registration(state, new.name, 0.0, now_s)
    if not isinstance(found.answer, Registered):
        return found
    after, rows, id_ = found.state, list(found.rows), found.answer.id
    for number, (source, destination) in enumerate(new.connections):
        made = Connection(
            id=f"{prefix}/{number}", application=id_, source=source, destination=destination
        )
        unknown = _unknown_host(after, made)
        if unknown is not None:
            return refuse(state, unknown)
        one = add_connection(after, after.applications[id_], made)
        if isinstance(one.answer, Refusal):
            return one
        after = one.state
        rows += one.rows
    return replace(found, state=after, rows=tuple(rows))


def _unknown_host(state: State, made: Connection) -> Refusal | None:
    """An operator's typing error is told at once; a client's host may be cabled any moment."""
    if state.paths is None:
        return None
    try:
        for name in (made.source, made.destination):
            state.paths.host(name)
    except InputError as error:
        return Refusal(
            code="INVALID_ARGUMENT", where=error.where, problem=error.problem, remedy=error.remedy
        )
    return None


def _resumed(state: State) -> Step:
    """Ports follow the plan again."""
    if state.held is None:
        return Step(state=state)
    found = settle(replace(state, held=None), "resumed")
    found = then(found, reprogram(found.state, programmed_ports(found.state), "resumed"))
    # Also where no table differs: that nothing is held any more must be kept.
    return replace(found, rows=(*found.rows, _holding(found.state, "resumed")))


def _holding(state: State, cause: str) -> RevisionRow:
    """What is held by now."""
    return RevisionRow(revision=state.revision, cause=cause, tables={}, before={}, held=state.held)


def rollback(state: State, event: Rollback) -> Step:
    """Ports are told what they had, those that had nothing yet what they have without anybody."""
    cause = f"rollback to {event.revision}"
    before = _answered(state, event.key, cause)
    if before is not None:
        return Step(state=state, answer=before)
    held = replace(state, held=event.revision)
    tables = {name: _earlier(state, event.tables, name) for name in state.target}
    wanted = {name: told for name, told in tables.items() if told is not None}
    found = retarget(held, wanted, cause)
    found = replace(found, rows=(*found.rows, _holding(found.state, cause)))
    answer = Applied(revision=found.state.revision, ports=found.ports, asked=cause)
    return remember_answer(replace(found, answer=answer), event.key)


def _earlier(state: State, tables: Mapping[PortName, Tables], name: PortName) -> Tables | None:
    if name in tables:
        return tables[name]
    if name not in state.policies:
        return None
    return default_tables(state.policies[name], state.abilities[name], state.settings)
