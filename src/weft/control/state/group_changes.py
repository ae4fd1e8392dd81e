"""What the controller of another group has committed: registrations, connections, models, levels.

Every group of switches has a controller. All of them know all registrations and connections, and
each solves the ports of its own switches. A registration's *home* is the group that made it: only
its controller renews it, connects under it, or ends it; the others follow its log. Rows of a log
come in order, each once (`State.cursors`), so nothing that was closed comes back. Models and levels
are those of the group that publishes them. Rollbacks are decided for all groups, and each carries
them out once. Entry points: `follow`, `hold`, `find_home`. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from weft.control.state.events import (
    HELD,
    ApplicationRow,
    Apply,
    ConnectionRow,
    CursorRow,
    Disconnect,
    Done,
    Follow,
    Hold,
    LevelsRow,
    ModelRow,
    Proposal,
    Refusal,
    Rollback,
    Row,
)
from weft.control.state.operator_changes import apply, rollback, use_models
from weft.control.state.programming import settle
from weft.control.state.requests import (
    add_connection,
    disconnect,
    find_home,
    insert_registration,
    refuse,
    remove_registration,
)
from weft.control.state.state import Application, State, Step


def follow(state: State, event: Follow) -> Step:
    """All rows of an entry, or none: refused while a model is missing that another group has."""
    if _is_late(state.cursors.get(event.group), event.position):
        return Step(state=state)
    step = _follow_models(state, event)
    names = {row.name for row in event.rows if isinstance(row, ApplicationRow) and row.name}
    for missing in sorted(names - step.state.models.keys()):
        problem = f"the model of {missing} is not known yet"
        return refuse(state, Refusal("FAILED_PRECONDITION", f"group {event.group}", problem))
    state, rows, ports = step.state, list(step.rows), step.ports
    for row in (*_list_ends(state, event), *event.rows):
        step = _follow_row(state, row)
        state = step.state
        rows += step.rows
        ports |= step.ports
    rows.append(CursorRow(group=event.group, position=event.position))
    cursors = {**state.cursors, event.group: event.position}
    return Step(state=replace(state, cursors=cursors), rows=tuple(rows), answer=Done(), ports=ports)


def _is_late(cursor: str | None, position: str) -> bool:
    """Whether a position, HISTORY:INDEX, is not beyond the cursor of the same history.

    Cursors are stored with what was followed, so nothing that was closed comes back by an entry
    that is late, also after a restart, which forgets single closed connections.
    """
    history, _, index = position.rpartition(":")
    last_history, _, last_index = (cursor or ":0").rpartition(":")
    return history == last_history and int(index) <= int(last_index)


def hold(state: State, event: Hold) -> Step:
    """A rollback of all groups, or its end, at this one."""
    if has_carried_out(state, event.number):
        return Step(state=state)
    if event.revision is None:
        step = apply(state, Apply(key=event.key, proposal=Proposal(), now_s=0.0, by=event.by))
    else:
        key, revision, tables = event.key, event.revision, event.tables
        step = rollback(state, Rollback(key=key, revision=revision, tables=tables, by=event.by))
    if isinstance(step.answer, Refusal):
        return refuse(state, step.answer)
    row = CursorRow(group=HELD, position=str(event.number))
    cursors = {**step.state.cursors, row.group: row.position}
    return replace(step, state=replace(step.state, cursors=cursors), rows=(*step.rows, row))


def has_carried_out(state: State, number: int) -> bool:
    """Whether this group has carried out a decision of all groups, or a later one."""
    return int(state.cursors.get(HELD, "0")) >= number


def _follow_models(state: State, event: Follow) -> Step:
    changes = [row for row in event.rows if isinstance(row, ModelRow | LevelsRow)]
    if not changes:
        return Step(state=state)
    step = settle(state)
    models, withdrawn, levels = dict(state.models), set(state.withdrawn), state.levels
    for row in changes:
        if isinstance(row, LevelsRow):
            levels = row.levels
            continue
        withdrawn.discard(row.name)
        if row.model is None:
            models.pop(row.name, None)
        else:
            models[row.name] = row.model
            if row.withdrawn:
                withdrawn.add(row.name)
    offered = replace(step.state, withdrawn=frozenset(withdrawn), levels=levels)
    following = use_models(offered, models, f"models of group {event.group}")
    return step.then(replace(following, rows=(*changes, *following.rows)))


def _list_ends(state: State, event: Follow) -> list[Row]:
    """With a whole state instead of an entry: what is here of that group and not in it."""
    if not event.is_whole:
        return []
    present = {row.id for row in event.rows if isinstance(row, ApplicationRow | ConnectionRow)}
    ends: list[Row] = []
    for application in state.applications.values():
        if find_home(application.id) != event.group:
            continue
        if application.id not in present:
            ends.append(ApplicationRow(id=application.id, name=None))
            continue
        closed = [id_ for id_ in application.connections if id_ not in present]
        ends += [ConnectionRow(id=id_, connection=None) for id_ in closed]
    return ends


def _follow_row(state: State, row: Row) -> Step:
    match row:
        case ApplicationRow():
            return _follow_registration(state, row)
        case ConnectionRow(connection=None):
            return disconnect(state, Disconnect(connection=row.id))
        case ConnectionRow(connection=connection) if connection is not None:
            application = state.applications.get(connection.application)
            if application is not None and row.id not in state.connections:
                return add_connection(state, application, connection)
    return Step(state=state)


def _follow_registration(state: State, row: ApplicationRow) -> Step:
    application = state.applications.get(row.id)
    if row.name is None:
        if application is None:
            return Step(state=state)
        return remove_registration(state, application)
    if application is not None:
        return Step(state=state)
    new = Application(
        id=row.id,
        name=row.name,
        unit=row.unit or row.id,
        job=row.job,
        ttl_s=row.ttl_s,
        expires_s=inf,  # its home knows
        owner=row.owner,
        size_bytes=row.size_bytes,
    )
    step = insert_registration(state, new)
    return replace(step, rows=(row, *step.rows))
