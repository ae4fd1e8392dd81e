"""The state that a store holds, when a controller starts.

All leases start again: while the controller was down nobody could renew. Paths are found when the
fabric is; until then ports keep their tables. With nothing registered, levels are clustered from
the table of applications. Otherwise they stay as stored, since running packets carry them, and
changes of the table are run as events. `TableWatch` watches that table.
Entry points: `restore_state` (pure), `TableWatch`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path

from immutables import Map

from weft.control.policy.lending import estimate_volume
from weft.control.policy.levels import Levels
from weft.control.policy.plan import build_plan
from weft.control.state.events import (
    AnswerRow,
    ApplicationModel,
    ApplicationRow,
    LevelsRow,
    ModelChanged,
    ModelRow,
    Row,
)
from weft.control.state.policy_settings import Settings, build_policy, cluster_levels
from weft.control.state.request_key import Key
from weft.control.state.requests import find_home
from weft.control.state.state import REMEMBERED, Application, Recent, State
from weft.control.state.step import Outcome, run_batch
from weft.control.store.sqlite_store import StoredState
from weft.errors import InputError
from weft.records.store import explain_file_errors
from weft.sensitivity.application import Application as ProfiledApplication
from weft.sensitivity.application_table import AppTable
from weft.sensitivity.model import Sensitivity

_Models = Mapping[str, ApplicationModel]


def restore_state(
    stored: StoredState,
    settings: Settings,
    table: _Models,
    now_s: float,
    unreadable: Collection[str] = (),
) -> Outcome:
    """The state with the table of applications as it is now, and the rows that are new.

    Applications whose entry in the table is `unreadable` keep their stored model.
    """
    fallback = {
        name: model
        for name, model in stored.models.items()
        if name in unreadable and name not in stored.withdrawn and settings.uses(model.curve)
    }
    table = {**fallback, **table}
    applications = _restore_applications(stored, now_s, settings.group)
    counts: dict[str | None, int] = {}
    for application in applications.values():
        if application.connections:
            count = counts.get(application.owner, 0) + len(application.connections)
            counts[application.owner] = count
    state = State(
        settings=settings,
        applications=applications,
        connections_of=Map(counts),
        connections=Map({connection.id: connection for connection in stored.connections}),
        last_registration=stored.last_registration,
        target=Map(stored.target),
        revision=stored.revision,
        held_revision=stored.held_revision,
        answers=_restore_answers(stored),
        cursors=stored.cursors,
    )
    if not state.applications and not (settings.group and stored.levels):
        return _cluster_table(state, stored, table)
    _check_levels(stored.levels, settings)
    _check_models(stored, settings)
    return _keep_levels(state, stored, table)


def _restore_applications(stored: StoredState, now_s: float, group: str) -> Map[str, Application]:
    ids: dict[str, dict[str, None]] = {row.id: {} for row in stored.applications}
    for connection in stored.connections:
        if connection.application not in ids:
            problem = f"belongs to {connection.application}, which is missing"
            raise InputError(
                f"connection {connection.id}", problem, "restore a backup (weft control restore)"
            )
        ids[connection.application][connection.id] = None
    applications = {
        r.id: _restore_application(r, ids[r.id], now_s if find_home(r.id) == group else inf)
        for r in stored.applications
    }
    for application in applications.values():
        if application.name not in stored.models:
            problem = f"its model {application.name} is missing"
            where = f"application {application.id}"
            raise InputError(where, problem, "restore a backup (weft control restore)")
    return Map(applications)


def _restore_application(
    row: ApplicationRow, connections: dict[str, None], now_s: float
) -> Application:
    return Application(
        id=row.id,
        name=row.name or "",
        unit=row.unit or row.id,
        job=row.job,
        ttl_s=row.ttl_s,
        expires_s=now_s + row.ttl_s if row.ttl_s else inf,
        connections=Map(connections),
        owner=row.owner,
        size_bytes=row.size_bytes,
    )


def _restore_answers(stored: StoredState) -> Recent[Key, AnswerRow]:
    answers: Recent[Key, AnswerRow] = Recent(most=REMEMBERED)
    for row in stored.answers:
        answers = answers.set(row.key, row)
    return answers


def _check_levels(levels: Levels | None, settings: Settings) -> None:
    highest = max((level.number for level in levels.levels), default=0) if levels else 0
    if highest > settings.levels:
        problem = f"{settings.levels}, and level {highest} is in use"
        raise InputError("levels", problem, "keep as many until nothing is registered")


def _check_models(stored: StoredState, settings: Settings) -> None:
    """Coordinates of levels are those of the models that they were clustered from."""
    others = [
        name
        for name, model in stored.models.items()
        if name not in stored.withdrawn and not settings.uses(model.curve)
    ]
    if others:
        problem = f"the stored model of {min(others)} has another form, and levels are in use"
        raise InputError("policy.model", problem, "keep it until nothing is registered")


def _cluster_table(state: State, stored: StoredState, table: _Models) -> Outcome:
    """No packets carry a level: all levels are clustered again."""
    levels = cluster_levels(table, state.settings.levels)
    restored = _set_models(state, table, levels)
    removed = [name for name in sorted(stored.models) if name not in table]
    rows: list[Row] = [ModelRow(name=name, model=None) for name in removed]
    rows += [ModelRow(name=n, model=m) for n, m in table.items() if _is_new(stored, n, m)]
    if levels is not None and levels != stored.levels:
        rows.append(LevelsRow(levels=levels))
    return Outcome(state=restored, rows=tuple(rows), answers=(), ports=frozenset())


def _is_new(stored: StoredState, name: str, model: ApplicationModel) -> bool:
    return stored.models.get(name) != model or name in stored.withdrawn


def _keep_levels(state: State, stored: StoredState, table: _Models) -> Outcome:
    """Running packets carry the stored levels."""
    restored = _set_models(state, stored.models, stored.levels)
    removed = [name for name in sorted(stored.models) if name not in table]
    changes = [
        *(ModelChanged(name=name, model=None) for name in removed),
        *(ModelChanged(name=name, model=model) for name, model in sorted(table.items())),
    ]
    return run_batch(replace(restored, withdrawn=stored.withdrawn), changes)


def _set_models(state: State, models: _Models, levels: Levels | None) -> State:
    policy = build_policy(models, levels, {}, state.settings, state.stated_bytes)
    plan = None if policy is None else build_plan(policy, [])
    return replace(state, models=dict(models), levels=levels, plan=plan)


_Signature = tuple[int, int, int]
_NEVER: _Signature = (0, 0, 0)


def convert_application(application: ProfiledApplication, degree: int | None) -> ApplicationModel:
    """Its convex model or polynomial of this degree; run time and size if the profile has them."""
    profile = application.profile
    timed = profile.completion_unit == "s"
    size_bytes = None
    if timed and profile.link_bps is not None:
        link_bytes = profile.baseline * profile.link_bps / 8
        size_bytes = estimate_volume(application) * link_bytes or None
    return ApplicationModel(
        curve=_select_curve(application, degree),
        baseline_s=profile.baseline if timed else None,
        size_bytes=size_bytes,
    )


def _select_curve(application: ProfiledApplication, degree: int | None) -> Sensitivity:
    if degree is None:
        return application.convex.model
    for fitted in application.paper:
        if fitted.model.degree == degree:
            return fitted.model
    problem = f"has no polynomial of degree {degree}"
    raise InputError(f"application {application.name}", problem, "profile it at more shares")


class TableWatch:
    """The models of a directory, as of the last call of `changes`."""

    def __init__(self, directory: Path, polynomial_degree: int | None = None) -> None:
        self._table, self._degree = AppTable(directory), polynomial_degree
        self._signatures: dict[str, _Signature] = {}
        self.models: dict[str, ApplicationModel] = {}
        self.problems: dict[str, str] = {}

    def changes(self) -> list[ModelChanged]:
        """What has changed since the last call; everything at first."""
        names = self._table.names()
        removed = [name for name in self._signatures if name not in names]
        for name in removed:
            for entries in (self._signatures, self.models, self.problems):
                entries.pop(name, None)
        changes = [ModelChanged(name=name, model=None) for name in removed]
        for name in names:
            model = self._read(name)
            if model is not None:
                self.models[name] = model
                changes.append(ModelChanged(name=name, model=model))
        return changes

    def forget(self, name: str) -> None:
        """Reports it again at the next call: the change could not be applied."""
        self._signatures[name] = _NEVER
        self.models.pop(name, None)

    def _read(self, name: str) -> ApplicationModel | None:
        """The model of a file that has changed."""
        path = self._table.path(name)
        try:
            with explain_file_errors(path):
                stat = path.stat()
            signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if self._signatures.get(name) == signature:
                return None
            self._signatures[name] = signature
            model = convert_application(self._table.load(name), self._degree)
        except InputError as error:
            self.problems[name] = str(error)
            return None
        self.problems.pop(name, None)
        return model if model != self.models.get(name) else None
