"""The state that a store holds, when a controller starts.

Every lease begins anew: while the controller was away nobody could renew. Paths are found when the
fabric is; until then ports keep what they have. With nothing registered levels are clustered from
the table as it is; otherwise they are those that running packets carry, and the table's changes
come as events. Entry point: `restored`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf

from weft.control.policy.levels import Levels
from weft.control.policy.plan import build_plan
from weft.control.state.events import Answer, ApplicationModel, ModelChanged
from weft.control.state.key import Key
from weft.control.state.kinds import Settings, build_policy, cluster_levels
from weft.control.state.persistent_map import PersistentMap, Recent
from weft.control.state.rows import ApplicationRow, ConnectionRow, LevelsRow, ModelRow, Row
from weft.control.state.state import REMEMBERED, Application, Connection, State
from weft.control.state.step import Outcome, run_batch
from weft.control.store.sqlite_store import StoredState
from weft.errors import InputError


def restore_state(
    kept: StoredState,
    settings: Settings,
    table: Mapping[str, ApplicationModel],
    now_s: float,
    unreadable: Collection[str] = (),
) -> Outcome:
    """The state with the table of applications as it is now, and what is to be kept of that.

    Of those that the table has and that cannot be read the model that was kept stands.
    """
    stands = {
        name: kind
        for name, kind in kept.kinds.items()
        if name in unreadable and name not in kept.withdrawn
    }
    table = {**stands, **table}
    state = State(
        settings=settings,
        applications=_applications(kept, now_s),
        connections=PersistentMap({row.id: _connection(row) for row in kept.connections}),
        registered=kept.registered,
        target=PersistentMap(kept.target),
        revision=kept.revision,
        held=kept.held,
        answered=_answered(kept),
    )
    if not state.applications:
        return _with_table(state, kept, table)
    _check_levels(kept.levels, settings)
    return _with_levels(state, kept, table)


def _connection(row: ConnectionRow) -> Connection:
    return Connection(
        id=row.id, application=row.application or "", source=row.source, destination=row.destination
    )


def _applications(kept: StoredState, now_s: float) -> PersistentMap[str, Application]:
    owned: dict[str | None, dict[str, None]] = {row.id: {} for row in kept.applications}
    for row in kept.connections:
        if row.application not in owned:
            problem = f"belongs to {row.application}, which is not there"
            raise InputError(f"connection {row.id}", problem, "restore a copy of the store")
        owned[row.application][row.id] = None
    found = {row.id: _application(row, owned[row.id], now_s) for row in kept.applications}
    for own in found.values():
        if own.name not in kept.kinds:
            problem = f"its model {own.name} is not there"
            raise InputError(f"application {own.id}", problem, "restore a copy of the store")
    return PersistentMap(found)


def _application(row: ApplicationRow, owned: dict[str, None], now_s: float) -> Application:
    expires_s = now_s + row.ttl_s if row.ttl_s else inf
    return Application(
        id=row.id,
        name=row.name or "",
        ttl_s=row.ttl_s,
        expires_s=expires_s,
        connections=PersistentMap(owned),
    )


def _answered(kept: StoredState) -> Recent[Key, Answer]:
    found: Recent[Key, Answer] = Recent(most=REMEMBERED)
    for key, answer in kept.answers:
        found = found.put(key, answer)
    return found


def _check_levels(levels: Levels | None, settings: Settings) -> None:
    highest = max((level.number for level in levels.levels), default=0) if levels else 0
    if highest > settings.levels:
        problem = f"{settings.levels}, and level {highest} is in use"
        raise InputError("levels", problem, "keep as many until nothing is registered")


def _with_table(state: State, kept: StoredState, table: Mapping[str, ApplicationModel]) -> Outcome:
    """Nobody's packets carry a level: all are made anew."""
    levels = cluster_levels(table, state.settings.levels)
    policy = build_policy(table, levels, {})
    after = replace(
        state,
        kinds=dict(table),
        levels=levels,
        plan=None if policy is None else build_plan(policy, []),
    )
    rows: list[Row] = [ModelRow(name=n, kind=None) for n in sorted(kept.kinds) if n not in table]
    rows += [ModelRow(name=n, kind=k) for n, k in table.items() if _is_new(kept, n, k)]
    if levels is not None and levels != kept.levels:
        rows.append(LevelsRow(levels=levels))
    return Outcome(state=after, rows=tuple(rows), answers=(), ports=frozenset())


def _is_new(kept: StoredState, name: str, kind: ApplicationModel) -> bool:
    return kept.kinds.get(name) != kind or name in kept.withdrawn


def _with_levels(state: State, kept: StoredState, table: Mapping[str, ApplicationModel]) -> Outcome:
    """Running packets carry the levels that were kept."""
    policy = build_policy(kept.kinds, kept.levels, {})
    before = replace(
        state,
        kinds=kept.kinds,
        withdrawn=kept.withdrawn,
        levels=kept.levels,
        plan=None if policy is None else build_plan(policy, []),
    )
    gone = [ModelChanged(name=name, kind=None) for name in sorted(kept.kinds) if name not in table]
    come = [ModelChanged(name=name, kind=kind) for name, kind in sorted(table.items())]
    return run_batch(before, [*gone, *come])
