"""Replies to operators, as protobuf messages: status, plans, explanations.

Entry points: `build_status`, `build_plan_reply`, `build_group_plan`, `explain_port`,
`explain_application`, `explain_connection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from operator import attrgetter
from typing import Any

from weft.control.operators import explain
from weft.control.operators.explain import ConnectionAccount, PortAccount, find_registrations
from weft.control.operators.explain_text import format_applications, format_port
from weft.control.operators.forecast import (
    ApplicationChange,
    Forecast,
    PortChange,
    ProposalEffects,
    forecast_all,
)
from weft.control.runtime.port_tracker import PortReport, Report
from weft.control.service import weft_pb2 as pb
from weft.control.service.refusals import raise_refusal
from weft.control.state.state import Application, State
from weft.control.store.sqlite_store import Revision
from weft.switches import PortName

_MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A controller's state and reports at one moment."""

    state: State
    report: Report
    now_s: float  # of leases
    up_s: float
    problems: tuple[str, ...]
    revisions: tuple[Revision, ...]


def port_id(name: PortName) -> pb.PortId:
    return pb.PortId(node=name.node, port=name.port)


def port_problems(problems: Mapping[PortName, str]) -> list[pb.PortProblem]:
    return [
        pb.PortProblem(port=port_id(name), problem=problem)
        for name, problem in sorted(problems.items())
    ]


# ---- Status -----------------------------------------------------------------------------------


def build_status(now: Snapshot, request: pb.StatusRequest) -> pb.StatusReply:
    state, report = now.state, now.report
    without = len(state.connections) if state.paths is None else len(state.missing_paths)
    reply = pb.StatusReply(
        revision=state.revision,
        held=state.held_revision,
        applications=len(state.applications),
        connections=len(state.connections),
        connections_without_path=without,
        **asdict(report.counts),
        up_s=now.up_s,
        levels=0 if state.levels is None else len(state.levels.levels),
        models=len(state.models) - len(state.withdrawn),
        problems=_list_problems(now),
    )
    # Connections that the plan does not count yet concern at least one port.
    reply.ports_pending += state.pending is not None
    if request.applications:
        reply.listed_applications.extend(_list_applications(now))
    if request.ports:
        ports = sorted(report.by_port.items())
        reply.listed_ports.extend(_build_port(state, name, port) for name, port in ports)
    for revision in now.revisions:
        reply.listed_revisions.add(**asdict(revision))
    return reply


def _list_problems(now: Snapshot) -> list[str]:
    """The first of each kind: there may be one for every port and every connection."""
    state, failing = now.state, now.report.failing
    problems = [*now.problems]
    problems += [f"{name}: {problem}" for name, problem in islice(failing.items(), _MAX_PROBLEMS)]
    problems += [
        f"{name}: {problem}" for name, problem in islice(state.unfit.items(), _MAX_PROBLEMS)
    ]
    problems += [
        # Its id has the client's name, which is the owner's alone to know.
        f"a connection of {state.connections[id_].application}: {why}"
        for id_, why in islice(state.missing_paths.items(), _MAX_PROBLEMS)
    ]
    count = len(now.problems) + len(failing) + len(state.unfit) + len(state.missing_paths)
    if count <= _MAX_PROBLEMS:
        return problems
    return [*problems[:_MAX_PROBLEMS], f"and {count - _MAX_PROBLEMS} more"]


def _list_applications(now: Snapshot) -> Iterable[pb.ApplicationState]:
    state, forecast_of = now.state, forecast_all(now.state)
    ports: dict[str, int] = {}
    for port_plan in () if state.plan is None else state.plan.ports.values():
        for id_ in port_plan.names:
            ports[id_] = ports.get(id_, 0) + 1
    for registration in sorted(state.applications.values(), key=attrgetter("number")):
        yield _build_application(
            now, registration, ports.get(registration.unit, 0), forecast_of.get(registration.id)
        )


def _build_application(
    now: Snapshot, registration: Application, ports: int, forecast: Forecast | None
) -> pb.ApplicationState:
    size_bytes, size_source = now.state.find_size(registration.unit)
    return pb.ApplicationState(
        id=registration.id,
        name=registration.name,
        level=now.state.level_of(registration.name),
        connections=len(registration.connections),
        ports=ports,
        ttl_s=registration.ttl_s,
        left_s=max(0.0, registration.expires_s - now.now_s) if registration.ttl_s else 0.0,
        least_share=None if forecast is None else forecast.share,
        slowdown=None if forecast is None else forecast.slowdown,
        completion_s=None if forecast is None else forecast.completion_s,
        at_least=forecast is not None and forecast.at_least,
        owner=registration.owner or "",
        job=registration.job,
        unit=registration.unit,
        size_bytes=size_bytes,
        size_source=size_source,
    )


def _build_port(state: State, name: PortName, report: PortReport) -> pb.PortState:
    tables, port_plan = state.target[name], None
    if state.plan is not None and state.paths is not None and name in state.paths.ports:
        port_plan = state.plan.ports.get(state.paths.ports[name])
    return pb.PortState(
        port=port_id(name),
        applications=0 if port_plan is None else len(port_plan.names),
        queue_of=tables.queue_of[: state.settings.all_levels],
        weights=tables.weights,
        state=report.status,
        problem=report.problem,
        since_s=report.for_s,
    )


# ---- Plans ------------------------------------------------------------------------------------


def build_plan_reply(
    effects: ProposalEffects,
    before_bps: Mapping[str, float] | None = None,
    after_bps: Mapping[str, float] | None = None,
) -> pb.PlanReply:
    """The rates are those of a simulation, if there was one."""
    was, will = before_bps or {}, after_bps or {}
    return pb.PlanReply(
        ports=[_build_port_change(effects, change) for change in effects.ports],
        applications=[
            _build_forecast(change, was.get(change.id), will.get(change.id))
            for change in effects.applications
        ],
        slowdown_before=effects.slowdown_before,
        slowdown_after=effects.slowdown_after,
        at_least_before=effects.at_least_before,
        at_least_after=effects.at_least_after,
    )


def build_group_plan(state: State, effects: ProposalEffects) -> pb.PlanReply:
    """A group's part of a plan: its ports, and what they mean to every registration."""
    before, after = forecast_all(state), forecast_all(effects.after)
    registrations = dict(state.applications) | dict(effects.after.applications)
    reply = build_plan_reply(effects)
    del reply.applications[:]
    for id_, registration in registrations.items():
        change = ApplicationChange(
            id=id_, name=registration.name, before=before.get(id_), after=after.get(id_)
        )
        forecast = _build_forecast(change, None, None)
        forecast.unit = registration.unit
        reply.applications.append(forecast)
    return reply


def _build_port_change(effects: ProposalEffects, change: PortChange) -> pb.PortChange:
    levels = effects.after.settings.all_levels
    before, after = change.before, change.after
    return pb.PortChange(
        port=port_id(change.port),
        queue_of_before=() if before is None else before.queue_of[:levels],
        weights_before=() if before is None else before.weights,
        queue_of_after=after.queue_of[:levels],
        weights_after=after.weights,
    )


def _build_forecast(
    change: ApplicationChange, before_bps: float | None, after_bps: float | None
) -> pb.Forecast:
    before, after = change.before, change.after
    return pb.Forecast(
        id=change.id,
        application=change.name,
        share_before=None if before is None else before.share,
        share_after=None if after is None else after.share,
        slowdown_before=None if before is None else before.slowdown,
        slowdown_after=None if after is None else after.slowdown,
        completion_before_s=None if before is None else before.completion_s,
        completion_after_s=None if after is None else after.completion_s,
        simulated_before_bps=before_bps,
        simulated_after_bps=after_bps,
        at_least_before=before is not None and before.at_least,
        at_least_after=after is not None and after.at_least,
    )


# ---- Explanations -----------------------------------------------------------------------------


def explain_port(state: State, name: PortName) -> pb.ExplainReply:
    account = raise_refusal(explain.explain_port(state, name))
    return pb.ExplainReply(text=format_port(state, account), ports=[_build_account(account)])


def explain_application(state: State, name: str) -> pb.ExplainReply:
    accounts = raise_refusal(explain.explain_application(state, name))
    text = format_applications(state, find_registrations(state, name), accounts)
    return pb.ExplainReply(text=text, ports=[_build_account(account) for account in accounts])


def explain_connection(state: State, id_: str) -> tuple[ConnectionAccount, pb.ExplainReply]:
    """The account, and its managed ports as a reply without text."""
    account = raise_refusal(explain.explain_connection(state, id_))
    return account, pb.ExplainReply(ports=[_build_account(port) for port in account.ports])


def _build_account(account: PortAccount) -> pb.PortAccount:
    return pb.PortAccount(**asdict(account, dict_factory=_name_fields))


def _name_fields(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Fields of an account as its message has them: a port as a message, `purpose` as `what`."""
    return {
        "what" if name == "purpose" else name: (
            port_id(value) if isinstance(value, PortName) else value
        )
        for name, value in fields
    }
