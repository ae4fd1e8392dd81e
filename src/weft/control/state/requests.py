"""Requests of clients: registrations, connections, leases.

Each entry point takes the state and one event. A refusal changes nothing.
Entry points: `register`, `deregister`, `renew`, `expire`, `connect`, `disconnect`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from immutables import Map
from msgspec import structs

from weft.control.policy.plan import ConnectionPath, Plan, application_name, resize
from weft.control.state.events import (
    Answer,
    AnswerRow,
    ApplicationRow,
    Asker,
    Connect,
    Connected,
    Connection,
    ConnectionRow,
    CountRow,
    Deregister,
    Disconnect,
    Done,
    Expire,
    Refusal,
    Register,
    Registered,
    Renew,
    Renewed,
    Row,
)
from weft.control.state.managed_paths import Paths
from weft.control.state.programming import reprogram
from weft.control.state.request_key import Key
from weft.control.state.state import (
    Application,
    MissingPath,
    Pending,
    PendingConnection,
    State,
    Step,
)
from weft.errors import InputError
from weft.fabric import Port


def refuse(state: State, refusal: Refusal) -> Step:
    return Step(state=state, answer=refusal)


def remember_answer(step: Step, key: Key, by: Asker | None) -> Step:
    """Keeps the answer for repetitions of the request; a refused request may be retried."""
    if isinstance(step.answer, Refusal):
        return step
    row = AnswerRow(key=key, answer=step.answer, owner=None if by is None else by.name)
    answers = step.state.answers.set(key, row)
    return replace(step, state=replace(step.state, answers=answers), rows=(*step.rows, row))


def find_answer(state: State, key: Key, expected: type[Answer], by: Asker | None) -> Answer | None:
    """The answer to an earlier request with this key, or a refusal if it was another request.

    A key is its identity's alone: nobody reads the answers of others by their keys.
    """
    row = state.answers.get(key)
    if row is None:
        return None
    if by is not None and row.owner not in (None, by.name):
        return refuse_key_of_other(key)
    return row.answer if isinstance(row.answer, expected) else refuse_reused_key(key)


def refuse_key_of_other(key: Key) -> Refusal:
    return Refusal(
        "PERMISSION_DENIED", f"key {key}", "belongs to another identity", "use a client of your own"
    )


def refuse_reused_key(key: Key, problem: str = "was another request's") -> Refusal:
    return Refusal("ALREADY_EXISTS", f"key {key}", problem, "count requests up")


# ---- Registrations ----------------------------------------------------------------------------


def register(state: State, event: Register) -> Step:
    answer = find_answer(state, event.key, Registered, event.by)
    if answer is None:
        step = add_registration(
            state, event.name, event.ttl_s, event.now_s, event.by, event.job, event.size_bytes
        )
        return remember_answer(step, event.key, event.by)
    if isinstance(answer, Registered) and application_name(answer.id) != event.name:
        answer = refuse_reused_key(event.key, f"has registered {application_name(answer.id)}")
    return Step(state=state, answer=answer)


def add_registration(
    state: State,
    name: str,
    ttl_s: float,
    now_s: float,
    by: Asker | None = None,
    job: str = "",
    size_bytes: int = 0,
) -> Step:
    unit = _find_unit(state, name, by, job)
    refusal = _check_registration(state, name) or _check_quotas(state, unit, by)
    if refusal is not None:
        return refuse(state, refusal)
    ttl_s = min(ttl_s, state.settings.longest_ttl_s)
    number, owner = state.last_registration + 1, None if by is None else by.name
    group = state.settings.group
    id_ = f"{name}#{number}@{group}" if group else f"{name}#{number}"
    application = Application(
        id=id_,
        name=name,
        unit=unit or id_,
        job=job,
        ttl_s=ttl_s,
        expires_s=now_s + ttl_s if ttl_s else inf,
        owner=owner,
        size_bytes=size_bytes,
    )
    rows = (
        CountRow(last_registration=number),
        ApplicationRow(
            id=application.id,
            name=name,
            ttl_s=ttl_s,
            owner=owner,
            job=job,
            unit=application.unit,
            size_bytes=size_bytes,
        ),
    )
    step = insert_registration(replace(state, last_registration=number), application)
    answer = Registered(id=application.id, level=state.level_of(name), ttl_s=ttl_s)
    return replace(step, rows=(*rows, *step.rows), answer=answer)


def insert_registration(state: State, application: Application) -> Step:
    """Its job has the largest size that one of its registrations states."""
    inserted = replace(state, applications=state.applications.set(application.id, application))
    stated = 0 if state.plan is None else state.plan.policy.stated_bytes.get(application.unit, 0)
    if application.size_bytes <= stated:
        return Step(state=inserted)
    is_new = application.unit == application.id
    return _state_size(inserted, application.unit, application.size_bytes, has_ports=not is_new)


def _state_size(state: State, unit: str, size_bytes: int, *, has_ports: bool) -> Step:
    """Makes the plan count this size; ports that a job has already are solved again."""
    if state.plan is None:
        return Step(state=state)
    if not has_ports:
        policy = state.plan.policy.with_size(unit, size_bytes)
        return Step(state=replace(state, plan=Plan(policy=policy, ports=state.plan.ports)))
    before, plan = state.plan.ports, resize(state.plan, unit, size_bytes)
    changed = [port for port in plan.ports if plan.ports[port] is not before[port]]
    names = [] if state.paths is None else [state.paths.names[port] for port in changed]
    return reprogram(replace(state, plan=plan), names, f"size of {unit}")


def _withdraw_size(state: State, application: Application) -> Step:
    """After a registration has ended: its job has the largest size that another one states."""
    stated = 0 if state.plan is None else state.plan.policy.stated_bytes.get(application.unit, 0)
    if not application.size_bytes or application.size_bytes < stated:
        return Step(state=state)
    others = [a for a in state.applications.values() if a.unit == application.unit]
    size_bytes = max((other.size_bytes for other in others), default=0)
    if size_bytes == stated:
        return Step(state=state)
    return _state_size(state, application.unit, size_bytes, has_ports=bool(others))


def _find_unit(state: State, name: str, by: Asker | None, job: str) -> str | None:
    """The unit of the job's other registrations; None where there are none."""
    if not job:
        return None
    owner = None if by is None else by.name
    return next(
        (
            other.unit
            for other in state.applications.values()
            if (other.job, other.name, other.owner) == (job, name, owner)
        ),
        None,
    )


def _check_quotas(state: State, unit: str | None, by: Asker | None) -> Refusal | None:
    """Whether another registration, or job, is within its identity's quotas."""
    if by is None or by.is_operator:
        return None
    units = [a.unit for a in state.applications.values() if a.owner == by.name]
    if len(units) >= state.settings.most_registrations_of:
        return _refuse_beyond_quota("registrations", by, len(units))
    jobs = len(set(units))
    if unit is None and jobs >= state.settings.most_jobs_of:
        return _refuse_beyond_quota("jobs", by, jobs)
    return None


def _refuse_beyond_quota(quota: str, by: Asker, count: int) -> Refusal:
    problem, remedy = f"{by.name} has {count} at a time", f"end one, or raise {quota} of [quotas]"
    return Refusal("RESOURCE_EXHAUSTED", quota, problem, remedy)


def _check_registration(state: State, name: str) -> Refusal | None:
    if name not in state.models or name in state.withdrawn:
        return Refusal(
            "NOT_FOUND", f"application {name}", "has no model", "profile it (weft profile)"
        )
    if len(state.applications) >= state.settings.most_applications:
        return Refusal(
            "RESOURCE_EXHAUSTED",
            "applications",
            f"{len(state.applications)} are registered",
            "raise applications of [leases]",
        )
    return None


def deregister(state: State, event: Deregister) -> Step:
    answer = find_answer(state, event.key, Done, event.by)
    application = state.applications.get(event.application)
    if isinstance(answer, Refusal):
        return refuse(state, answer)
    if answer is not None:  # an application that was deregistered is not there
        reused = refuse_reused_key(event.key)
        return Step(state=state, answer=answer if application is None else reused)
    if application is None:
        return refuse(state, _refuse_unregistered(event.application))
    if not application.may_be_used(event.by):
        return refuse(state, _refuse_other(application))
    foreign = refuse_foreign(state, application.id)
    if foreign is not None:
        return refuse(state, foreign)
    return remember_answer(remove_registration(state, application), event.key, event.by)


def remove_registration(state: State, application: Application) -> Step:
    """Removes a registration and its connections."""
    rows: list[Row] = [ApplicationRow(id=application.id, name=None)]
    connections, missing_paths = state.connections, state.missing_paths
    pending = state.pending
    for id_ in application.connections:
        connection = connections[id_]
        pending = _add_pending(application, state.ports_of(connection), -1, pending)
        connections = connections.delete(id_)
        if id_ in missing_paths:
            missing_paths = missing_paths.delete(id_)
        rows.append(ConnectionRow(id=id_, connection=None))
    removed = replace(
        state,
        applications=state.applications.delete(application.id),
        connections=connections,
        connections_of=_shift_count(state, application, -len(application.connections)),
        missing_paths=missing_paths,
        pending=pending,
    )
    step = _withdraw_size(removed, application)
    return replace(step, rows=(*rows, *step.rows))


def _refuse_unregistered(application: str) -> Refusal:
    return Refusal(
        "FAILED_PRECONDITION",
        f"application {application}",
        "no such registration: its lease expired or it was deregistered",
        "register again",
    )


def find_home(application: str) -> str:
    """The group of a registration's id, NAME#NUMBER@GROUP."""
    return application.partition("@")[2]


def refuse_foreign(state: State, application: str) -> Refusal | None:
    """Only the controller of its home changes a registration."""
    home = find_home(application)
    if home == state.settings.group:
        return None
    where, problem = f"application {application}", f"is of the group {home or 'of all'}"
    return Refusal("FAILED_PRECONDITION", where, problem, "ask the controller that registered it")


def _refuse_other(application: Application) -> Refusal:
    problem = f"belongs to {application.owner}"
    return Refusal(
        "PERMISSION_DENIED", f"application {application.id}", problem, "register one of your own"
    )


# ---- Leases -----------------------------------------------------------------------------------


def find_alive(
    state: State, application: str, now_s: float, by: Asker | None
) -> Application | Refusal:
    """The registration, unless it is another's, or its lease has expired (`Expire` may follow)."""
    registration = state.applications.get(application)
    if registration is None:
        return _refuse_unregistered(application)
    if not registration.may_be_used(by):
        return _refuse_other(registration)
    foreign = refuse_foreign(state, application)
    if foreign is not None:
        return foreign
    if not registration.is_alive(now_s):
        return Refusal(
            "FAILED_PRECONDITION", f"application {application}", "lease expired", "register again"
        )
    return registration


def renew(state: State, event: Renew) -> Step:
    application = find_alive(state, event.application, event.now_s, event.by)
    if isinstance(application, Refusal):
        return refuse(state, application)
    if not application.ttl_s:
        return Step(state=state, answer=Renewed(ttl_s=0.0))
    # Requests may overtake each other: a lease is never made shorter.
    expires_s = max(application.expires_s, event.now_s + application.ttl_s)
    renewed = structs.replace(application, expires_s=expires_s)
    applications = state.applications.set(application.id, renewed)
    answer = Renewed(ttl_s=application.ttl_s)
    return Step(state=state.evolve(applications=applications), answer=answer)


def expire(state: State, event: Expire) -> Step:
    application = state.applications.get(event.application)
    if application is None or application.is_alive(event.now_s):
        return Step(state=state)
    return remove_registration(state, application)


def find_expired(applications: Iterable[Application], now_s: float) -> list[str]:
    """Registrations whose lease has expired."""
    return [application.id for application in applications if not application.is_alive(now_s)]


# ---- Connections ------------------------------------------------------------------------------


def connect(state: State, event: Connect) -> Step:
    application = find_alive(state, event.application, event.now_s, event.by)
    if isinstance(application, Refusal):
        return refuse(state, application)
    connection = Connection(
        id=str(event.key),
        application=application.id,
        source=event.source,
        destination=event.destination,
    )
    existing = state.connections.get(connection.id)
    if existing is not None and not state.applications[existing.application].may_be_used(event.by):
        return refuse(state, refuse_key_of_other(event.key))
    if existing is None and event.by is not None and not event.by.is_operator:
        refusal = _check_quota(state, event.by.name)
        if refusal is not None:
            return refuse(state, refusal)
    return add_connection(state, application, connection)


def _check_quota(state: State, owner: str) -> Refusal | None:
    count = state.connections_of.get(owner, 0)
    if count < state.settings.most_connections_of:
        return None
    problem = f"{owner} has {count} open"
    return Refusal(
        "RESOURCE_EXHAUSTED", "connections", problem, "close some, or raise connections of [quotas]"
    )


def _shift_count(state: State, application: Application, by: int) -> Map[str | None, int]:
    """Connections of each owner, with so many more of this registration's."""
    count = state.connections_of.get(application.owner, 0) + by
    if count:
        return state.connections_of.set(application.owner, count)
    if application.owner in state.connections_of:
        return state.connections_of.delete(application.owner)
    return state.connections_of


def add_connection(state: State, application: Application, connection: Connection) -> Step:
    """Adds a connection, unless it exists already. Without a path it waits for one."""
    id_, existing = connection.id, state.connections.get(connection.id)
    if existing == connection:
        return Step(state=state, answer=Connected(connection=id_))
    refusal = _check_connection(state, connection, existing)
    if refusal is not None:
        return refuse(state, refusal)
    missing_paths, pending = state.missing_paths, state.pending
    path = find_path(state.paths, connection)
    if isinstance(path, MissingPath):
        missing_paths = missing_paths.set(id_, path)
    else:
        pending = _add_pending(application, path, 1, pending)
    connections = application.connections.set(id_, None)
    connected = structs.replace(application, connections=connections)
    row = ConnectionRow(id=id_, connection=connection)
    evolved = state.evolve(
        connections=state.connections.set(id_, connection),
        connections_of=_shift_count(state, application, 1),
        applications=state.applications.set(application.id, connected),
        missing_paths=missing_paths,
        pending=pending,
    )
    return Step(state=evolved, rows=(row,), answer=Connected(connection=id_))


def find_path(paths: Paths | None, connection: Connection) -> tuple[Port, ...] | MissingPath:
    """The managed ports of a connection's paths, or why it has none."""
    if paths is None:
        return ()
    try:
        return paths.between(connection.source, connection.destination)
    except InputError as error:
        return MissingPath(reason=f"{error.where}: {error.problem}")


def _check_connection(
    state: State, connection: Connection, existing: Connection | None
) -> Refusal | None:
    where = f"connection {connection.id}"
    if existing is not None:
        return Refusal(
            "ALREADY_EXISTS", where, "is in use by another connection", "count requests up"
        )
    if state.closed.get(connection.id):
        return Refusal("FAILED_PRECONDITION", where, "has been closed", "open another one")
    if len(state.connections) >= state.settings.most_connections:
        return Refusal(
            "RESOURCE_EXHAUSTED",
            "connections",
            f"{len(state.connections)} are open",
            "raise connections of [leases]",
        )
    return None


def disconnect(state: State, event: Disconnect) -> Step:
    """Closing a connection that is not open is no error: the request may be a repetition."""
    id_, connection = event.connection, state.connections.get(event.connection)
    if connection is None:
        return Step(state=state)
    application, missing = state.applications[connection.application], state.missing_paths
    if not application.may_be_used(event.by):
        return refuse(state, _refuse_other(application))
    foreign = None if event.by is None else refuse_foreign(state, application.id)
    if foreign is not None:
        return refuse(state, foreign)
    connections = application.connections.delete(id_)
    disconnected = structs.replace(application, connections=connections)
    evolved = state.evolve(
        connections=state.connections.delete(id_),
        connections_of=_shift_count(state, application, -1),
        applications=state.applications.set(application.id, disconnected),
        missing_paths=missing.delete(id_) if id_ in missing else missing,
        pending=_add_pending(application, state.ports_of(connection), -1, state.pending),
        closed=state.closed.set(id_, True),
    )
    return Step(state=evolved, rows=(ConnectionRow(id=id_, connection=None),))


def _add_pending(
    application: Application, ports: tuple[Port, ...], change: int, pending: Pending | None
) -> Pending | None:
    """One more (1) or one less (-1) that the plan does not count yet."""
    if not ports:
        return pending
    path = ConnectionPath(application=application.unit, ports=ports)
    return PendingConnection(path, change, pending)
