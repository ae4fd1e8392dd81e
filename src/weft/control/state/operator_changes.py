"""Changes by operators and by the table of applications: models, proposals, rollbacks.

Each entry point takes the state and one event. A refusal changes nothing.
Entry points: `change_model`, `apply`, `rollback`; `use_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256

from immutables import Map

from weft.control.policy.plan import Plan, Policy, replan
from weft.control.state.events import (
    Answer,
    ApplicationModel,
    Applied,
    Apply,
    Asker,
    Connection,
    LevelsRow,
    ModelChanged,
    ModelRow,
    NewApplication,
    Refusal,
    Registered,
    RevisionRow,
    Rollback,
    Row,
)
from weft.control.state.fabric_changes import list_programmed_ports
from weft.control.state.policy_settings import add_to_levels, build_policy, cluster_levels
from weft.control.state.programming import build_default_tables, reprogram, retarget, settle
from weft.control.state.request_key import Key
from weft.control.state.requests import (
    add_connection,
    add_registration,
    find_answer,
    refuse,
    refuse_foreign,
    refuse_reused_key,
    remember_answer,
    remove_registration,
)
from weft.control.state.state import State, Step
from weft.errors import InputError
from weft.switches import PortName, Tables

# ---- Models -----------------------------------------------------------------------------------


def change_model(state: State, event: ModelChanged) -> Step:
    """While nothing is registered all levels are clustered again; otherwise no level changes."""
    step = settle(state)
    if event.model is None:
        return step.then(_withdraw_model(step.state, event.name))
    return step.then(_set_model(step.state, event.name, event.model))


def _set_model(state: State, name: str, model: ApplicationModel) -> Step:
    if state.models.get(name) == model and name not in state.withdrawn:
        return Step(state=state)
    models, row = {**state.models, name: model}, ModelRow(name=name, model=model)
    offered = replace(state, withdrawn=state.withdrawn - {name})
    if _may_cluster(state):
        return _cluster(offered, models, (row,))
    levels = state.levels
    if levels is None or name not in levels.assignment:
        levels = add_to_levels(levels, name, model.curve, state.settings.levels)
    step = use_models(replace(offered, levels=levels), models, f"the model of {name}")
    return replace(step, rows=(row, LevelsRow(levels=levels), *step.rows))


def _withdraw_model(state: State, name: str) -> Step:
    """Running applications keep the model; new ones cannot register."""
    if name not in state.models or name in state.withdrawn:
        return Step(state=state)
    if _may_cluster(state):
        models = {other: model for other, model in state.models.items() if other != name}
        return _cluster(state, models, (ModelRow(name=name, model=None),))
    row = ModelRow(name=name, model=state.models[name], withdrawn=True)
    return Step(state=replace(state, withdrawn=state.withdrawn | {name}), rows=(row,))


def _may_cluster(state: State) -> bool:
    """Nobody's packets carry a level. Other groups may have registrations not heard of yet."""
    return state.levels is None or not (state.applications or state.settings.group)


def _cluster(state: State, models: Mapping[str, ApplicationModel], rows: tuple[Row, ...]) -> Step:
    """Clusters all levels again, from these models."""
    levels = cluster_levels(models, state.settings.levels)
    levels_rows = () if levels is None else (LevelsRow(levels=levels),)
    step = use_models(replace(state, levels=levels), models, "new levels")
    return replace(step, rows=(*rows, *levels_rows, *step.rows))


def use_models(state: State, models: Mapping[str, ApplicationModel], cause: str) -> Step:
    """Replans with these models and the state's levels, once all connections are counted."""
    ports = {} if state.paths is None else state.paths.ports
    policies = {ports[name]: policy for name, policy in state.policies.items()}
    policy = build_policy(models, state.levels, policies, state.settings, state.stated_bytes)
    if policy is None:
        return Step(state=replace(state, models=models, plan=None))
    plan = _replan(state, models, policy)
    replanned = replace(state, models=models, plan=plan)
    if state.plan is None or plan.ports is state.plan.ports or state.paths is None:
        return Step(state=replanned)
    return reprogram(replanned, [state.paths.names[port] for port in plan.ports], cause)


def _replan(state: State, models: Mapping[str, ApplicationModel], policy: Policy) -> Plan:
    """Ports are solved again if a model in use, its size or the queues of levels have changed."""
    plan = state.plan
    if plan is None:
        return Plan(policy=policy, ports=Map({}))
    used = {application.name for application in state.applications.values()}
    if policy.hierarchy == plan.policy.hierarchy and all(
        state.models[name].curve == models[name].curve
        and state.models[name].size_bytes == models[name].size_bytes
        for name in used
    ):
        return Plan(policy=policy, ports=plan.ports)
    return replan(plan, policy)


# ---- Proposals and rollbacks ------------------------------------------------------------------


def apply(state: State, event: Apply) -> Step:
    """Applies all of a proposal or nothing. Solves its ports at once: the answer lists them."""
    digest = sha256(repr(event.proposal).encode()).hexdigest()[:32]
    earlier = _find_applied(state, event.key, digest, event.by)
    if earlier is not None:
        return Step(state=state, answer=earlier)
    step = _resume(state)
    ids: list[str] = []
    for change in _list_changes(event):
        step = step.then(change(step.state))
        if isinstance(step.answer, Refusal):
            return refuse(state, step.answer)
        if isinstance(step.answer, Registered):
            ids.append(step.answer.id)
    step = step.then(settle(step.state, f"apply {event.key}"))
    answer = Applied(ids=tuple(ids), revision=step.state.revision, ports=step.ports, digest=digest)
    return remember_answer(replace(step, answer=answer), event.key, event.by)


def _find_applied(state: State, key: Key, digest: str, by: Asker | None) -> Answer | None:
    """The answer to the same request, or a refusal if the key was another request's."""
    answer = find_answer(state, key, Applied, by)
    if isinstance(answer, Applied) and answer.digest != digest:
        return refuse_reused_key(key)
    return answer


def _list_changes(event: Apply) -> Iterator[Callable[[State], Step]]:
    """Deregistrations first: they make room."""
    for application in event.proposal.deregister:
        yield partial(_deregister, id_=application)
    if event.proposal.recluster:
        yield _recluster
    for number, new in enumerate(event.proposal.register):
        # Names of clients have no colon: no client's connection has such an id.
        prefix = f"{event.key.client}:{event.key.sequence}.{number}"
        yield partial(_register, new=new, prefix=prefix, now_s=event.now_s, by=event.by)


def _deregister(state: State, id_: str) -> Step:
    application = state.applications.get(id_)
    if application is None:
        refusal = Refusal(
            "NOT_FOUND", f"application {id_}", "is not registered", "see weft control apps"
        )
        return refuse(state, refusal)
    foreign = refuse_foreign(state, id_)
    return refuse(state, foreign) if foreign else remove_registration(state, application)


def _recluster(state: State) -> Step:
    """New levels, of the models that the table has.

    In a group, the operator sees to it that no other has registrations meanwhile.
    """
    if state.applications:
        count = len(state.applications)
        refusal = Refusal(
            "FAILED_PRECONDITION",
            "levels",
            f"{count} applications are registered, and their packets carry them",
            "recluster when nothing is registered",
        )
        return refuse(state, refusal)
    step = settle(state)
    withdrawn = state.withdrawn
    models = {name: model for name, model in state.models.items() if name not in withdrawn}
    rows = tuple(ModelRow(name=name, model=None) for name in sorted(withdrawn))
    return step.then(_cluster(replace(step.state, withdrawn=frozenset()), models, rows))


def _register(
    state: State, new: NewApplication, prefix: str, now_s: float, by: Asker | None
) -> Step:
    """A registration without lease, with its connections."""
    registration = add_registration(state, new.name, 0.0, now_s, by)
    if not isinstance(registration.answer, Registered):
        return registration
    step, rows, id_ = registration, list(registration.rows), registration.answer.id
    for number, (source, destination) in enumerate(new.connections):
        connection = Connection(
            id=f"{prefix}/{number}", application=id_, source=source, destination=destination
        )
        refusal = _check_hosts(step.state, connection)
        if refusal is not None:
            return refuse(state, refusal)
        step = add_connection(step.state, step.state.applications[id_], connection)
        if isinstance(step.answer, Refusal):
            return step
        rows += step.rows
    return replace(registration, state=step.state, rows=tuple(rows))


def _check_hosts(state: State, connection: Connection) -> Refusal | None:
    """An operator's typing error is refused at once; a client's host may be cabled any moment."""
    if state.paths is None:
        return None
    try:
        for name in (connection.source, connection.destination):
            state.paths.host(name)
    except InputError as error:
        return Refusal("INVALID_ARGUMENT", error.where, error.problem, error.remedy)
    return None


def _resume(state: State) -> Step:
    """Ports follow the plan again."""
    if state.held_revision is None:
        return Step(state=state)
    step = settle(replace(state, held_revision=None), "resumed")
    step = step.then(reprogram(step.state, list_programmed_ports(step.state), "resumed"))
    # Also where no table differs: the store must know that nothing is held any more.
    return replace(step, rows=(*step.rows, _build_held_row(step.state, "resumed")))


def _build_held_row(state: State, cause: str) -> RevisionRow:
    """Stores which revision is held, without tables."""
    return RevisionRow(
        revision=state.revision,
        cause=cause,
        tables={},
        replaced={},
        held_revision=state.held_revision,
    )


def rollback(state: State, event: Rollback) -> Step:
    """Ports get the tables of the revision. Ports that had none get those without applications."""
    cause = f"rollback to {event.revision}"
    earlier = _find_applied(state, event.key, cause, event.by)
    if earlier is not None:
        return Step(state=state, answer=earlier)
    tables = {name: _find_earlier_tables(state, event.tables, name) for name in state.target}
    target = {name: port for name, port in tables.items() if port is not None}
    step = retarget(replace(state, held_revision=event.revision), target, cause)
    step = replace(step, rows=(*step.rows, _build_held_row(step.state, cause)))
    answer = Applied(revision=step.state.revision, ports=step.ports, digest=cause)
    return remember_answer(replace(step, answer=answer), event.key, event.by)


def _find_earlier_tables(
    state: State, tables: Mapping[PortName, Tables], name: PortName
) -> Tables | None:
    if name in tables:
        return tables[name]
    if name not in state.policies:
        return None
    return build_default_tables(state.policies[name], state.abilities[name], state.settings)
