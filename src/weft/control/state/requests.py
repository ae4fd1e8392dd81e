"""What clients ask for: registrations, connections, leases.

Each function takes the state and one event; what it refuses has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from weft.control.policy.connection_path import ConnectionPath as Uses
from weft.control.policy.plan import application_name
from weft.control.state.events import (
    Answer,
    Connect,
    Connected,
    Deregister,
    Disconnect,
    Done,
    Expire,
    Refusal,
    Register,
    Registered,
    Renew,
    Renewed,
)
from weft.control.state.key import Key
from weft.control.state.paths import Paths
from weft.control.state.rows import AnswerRow, ApplicationRow, ConnectionRow, CountRow, Row
from weft.control.state.state import (
    Application,
    Connection,
    MissingPath,
    PendingConnection,
    PendingCounts,
    State,
    Step,
)
from weft.errors import InputError
from weft.fabric import Port


def refuse(state: State, refusal: Refusal) -> Step:
    return Step(state=state, answer=refusal)


def remember_answer(found: Step, key: Key) -> Step:
    """The answer stands for the key from now on; refusals may be tried again."""
    if isinstance(found.answer, Refusal):
        return found
    answered = found.state.answered.put(key, found.answer)
    row = AnswerRow(key=key, answer=found.answer)
    return replace(found, state=replace(found.state, answered=answered), rows=(*found.rows, row))


def find_answer(state: State, key: Key, kind: type[Answer]) -> Answer | None:
    """What the key was answered, if it is no other request's."""
    found = state.answered.get(key)
    return found if found is None or isinstance(found, kind) else refuse_reused_key(key)


def refuse_reused_key(key: Key) -> Refusal:
    return Refusal(
        code="ALREADY_EXISTS",
        where=f"key {key}",
        problem="was another request's",
        remedy="count requests up",
    )


# ---- Registrations ----------------------------------------------------------------------------


def register(state: State, event: Register) -> Step:
    before = find_answer(state, event.key, Registered)
    if before is not None:
        if isinstance(before, Registered) and application_name(before.id) != event.name:
            problem = f"has registered {application_name(before.id)}"
            before = Refusal(
                code="ALREADY_EXISTS",
                where=f"key {event.key}",
                problem=problem,
                remedy="count requests up",
            )
        return Step(state=state, answer=before)
    return remember_answer(add_registration(state, event.name, event.ttl_s, event.now_s), event.key)


def add_registration(state: State, name: str, ttl_s: float, now_s: float) -> Step:
    """One registration more."""
    refusal = _check_registration(state, name)
    if refusal is not None:
        return refuse(state, refusal)
    ttl_s = min(ttl_s, state.settings.longest_ttl_s)
    number = state.registered + 1
    own = Application(
        id=f"{name}#{number}", name=name, ttl_s=ttl_s, expires_s=now_s + ttl_s if ttl_s else inf
    )
    after = replace(state, registered=number, applications=state.applications.put(own.id, own))
    rows = (CountRow(registered=number), ApplicationRow(id=own.id, name=name, ttl_s=ttl_s))
    answer = Registered(id=own.id, level=state.level_of(name), ttl_s=ttl_s)
    return Step(state=after, rows=rows, answer=answer)


def _check_registration(state: State, name: str) -> Refusal | None:
    if name not in state.kinds or name in state.withdrawn:
        return Refusal(
            code="NOT_FOUND",
            where=f"application {name}",
            problem="has no model",
            remedy="profile it (weft profile)",
        )
    if len(state.applications) >= state.settings.most_applications:
        problem = f"{len(state.applications)} are registered"
        return Refusal(
            code="RESOURCE_EXHAUSTED",
            where="applications",
            problem=problem,
            remedy="raise applications of [leases]",
        )
    return None


def deregister(state: State, event: Deregister) -> Step:
    before = find_answer(state, event.key, Done)
    own = state.applications.get(event.application)
    if before is not None:  # who was given back is not there
        return Step(state=state, answer=before if own is None else refuse_reused_key(event.key))
    if own is None:
        return refuse(state, _refuse_unregistered(event.application))
    return remember_answer(remove_registration(state, own), event.key)


def remove_registration(state: State, own: Application) -> Step:
    """Without a registration and its connections."""
    rows: list[Row] = [ApplicationRow(id=own.id, name=None)]
    connections, lost = state.connections, state.lost
    pending = state.pending
    for id_ in own.connections:
        gone = connections[id_]
        pending = _add_pending(gone, state.ports_of(gone), -1, pending)
        connections, lost = connections.without(id_), lost.without(id_)
        rows.append(ConnectionRow(id=id_, application=None))
    applications = state.applications.without(own.id)
    after = replace(
        state, applications=applications, connections=connections, lost=lost, pending=pending
    )
    return Step(state=after, rows=tuple(rows))


def _refuse_unregistered(application: str) -> Refusal:
    problem = "no such registration: its lease expired or it was given back"
    return Refusal(
        code="FAILED_PRECONDITION",
        where=f"application {application}",
        problem=problem,
        remedy="register again",
    )


# ---- Leases -----------------------------------------------------------------------------------


def find_alive(state: State, application: str, now_s: float) -> Application | Refusal:
    """The registration, unless its lease is over: that is so before anybody has looked."""
    own = state.applications.get(application)
    if own is None:
        return _refuse_unregistered(application)
    if not own.is_alive(now_s):
        return Refusal(
            code="FAILED_PRECONDITION",
            where=f"application {application}",
            problem="lease expired",
            remedy="register again",
        )
    return own


def renew(state: State, event: Renew) -> Step:
    own = find_alive(state, event.application, event.now_s)
    if isinstance(own, Refusal):
        return refuse(state, own)
    if not own.ttl_s:
        return Step(state=state, answer=Renewed(ttl_s=0.0))
    # Requests may overtake each other: a lease is never made shorter.
    until = max(own.expires_s, event.now_s + own.ttl_s)
    applications = state.applications.put(own.id, replace(own, expires_s=until))
    after = state.having(applications=applications)
    return Step(state=after, answer=Renewed(ttl_s=own.ttl_s))


def expire(state: State, event: Expire) -> Step:
    own = state.applications.get(event.application)
    if own is None or own.is_alive(event.now_s):
        return Step(state=state)
    return remove_registration(state, own)


def find_expired(applications: Iterable[Application], now_s: float) -> list[str]:
    """Registrations whose lease has ended."""
    return [own.id for own in applications if not own.is_alive(now_s)]


# ---- Connections ------------------------------------------------------------------------------


def connect(state: State, event: Connect) -> Step:
    own = find_alive(state, event.application, event.now_s)
    if isinstance(own, Refusal):
        return refuse(state, own)
    made = Connection(
        id=str(event.key), application=own.id, source=event.source, destination=event.destination
    )
    return add_connection(state, own, made)


def add_connection(state: State, own: Application, made: Connection) -> Step:
    """One connection more, or the same as before if it is there; without a path it waits."""
    before = state.connections.get(made.id)
    if before == made:
        return Step(state=state, answer=Connected(connection=made.id))
    refusal = _check_connection(state, made, before)
    if refusal is not None:
        return refuse(state, refusal)
    way = find_path(state.paths, made)
    more = replace(own, connections=own.connections.put(made.id, None))
    after = state.having(
        connections=state.connections.put(made.id, made),
        applications=state.applications.put(own.id, more),
        lost=state.lost.put(made.id, way) if isinstance(way, MissingPath) else state.lost,
        pending=state.pending
        if isinstance(way, MissingPath)
        else _add_pending(made, way, 1, state.pending),
    )
    row = ConnectionRow(
        id=made.id, application=own.id, source=made.source, destination=made.destination
    )
    return Step(state=after, rows=(row,), answer=Connected(connection=made.id))


def find_path(paths: Paths | None, own: Connection) -> tuple[Port, ...] | MissingPath:
    """The managed ports of a connection's paths, or why it has none."""
    if paths is None:
        return ()
    try:
        return paths.between(own.source, own.destination)
    except InputError as error:
        return MissingPath(why=f"{error.where}: {error.problem}")


def _check_connection(state: State, made: Connection, before: Connection | None) -> Refusal | None:
    where = f"connection {made.id}"
    if before is not None:
        return Refusal(
            code="ALREADY_EXISTS", where=where, problem="is another one", remedy="count requests up"
        )
    if state.closed.get(made.id):
        return Refusal(
            code="FAILED_PRECONDITION",
            where=where,
            problem="has been closed",
            remedy="open another one",
        )
    if len(state.connections) >= state.settings.most_connections:
        problem = f"{len(state.connections)} are open"
        return Refusal(
            code="RESOURCE_EXHAUSTED",
            where="connections",
            problem=problem,
            remedy="raise connections of [leases]",
        )
    return None


def disconnect(state: State, event: Disconnect) -> Step:
    """Closing what is not open is no mistake: it may be asked for twice."""
    gone = state.connections.get(event.connection)
    if gone is None:
        return Step(state=state)
    own = state.applications[gone.application]
    fewer = replace(own, connections=own.connections.without(gone.id))
    after = state.having(
        connections=state.connections.without(gone.id),
        applications=state.applications.put(own.id, fewer),
        lost=state.lost.without(gone.id),
        pending=_add_pending(gone, state.ports_of(gone), -1, state.pending),
        closed=state.closed.put(gone.id, True),
    )
    return Step(state=after, rows=(ConnectionRow(id=gone.id, application=None),))


def _add_pending(
    own: Connection,
    ports: tuple[Port, ...],
    by: int,
    pending: PendingConnection | PendingCounts | None,
) -> PendingConnection | PendingCounts | None:
    """One more (1) or one less (-1) that the plan does not count yet."""
    if not ports:
        return pending
    return PendingConnection(Uses(application=own.application, ports=ports), by, pending)
