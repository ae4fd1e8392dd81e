"""Why a port has its weights, and an application its share: the numbers behind an explanation.

`weft.control.operators.explain_text` writes them as text. Fields have the names of the service's
messages. Entry points: `explain_port`, `explain_application`, `explain_connection`. Pure.
Units: shares of the link, weights in the scheduler's units, seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest
from operator import attrgetter

from weft.control.operators.forecast import (
    Forecast,
    find_shares,
    forecast_application,
    predict_gain,
    predict_slowdown,
)
from weft.control.policy.plan import PortPlan, application_name, find_name
from weft.control.state.events import Connection, Refusal
from weft.control.state.programming import find_port_plan, find_tables
from weft.control.state.state import Application, State
from weft.sensitivity.model import Hinges, Sensitivity
from weft.switches import PortName, Tables

UNMANAGED, MANAGED, WAITING, LANE = "unmanaged", "managed", "waiting", "lane"
UNUSED = "unused"  # no level is in it
MAX_PORTS = 100  # of an application: those where it has least
MAX_REGISTRATIONS = 20  # of an application's name


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAccount:
    """A queue, the levels in it, its weight in the table, and its purpose."""

    queue: int
    levels: tuple[int, ...]
    weight: int
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationAccount:
    """An application at a port. `gain`: slowdown that one per cent of the link more would save.

    `least` is the port where it has less than here, if any: then more here brings it nothing.
    """

    id: str
    model: str
    level: int
    queue: int
    connections: int
    units: int
    share: float
    slowdown: float
    at_least: bool
    gain: float
    gain_s: float | None
    least: PortName | None
    least_share: float | None
    size_bytes: float | None  # of its job, over its busiest link
    size_source: str  # stated, profile or unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAccount:
    """A port: its units, the step of the hierarchy of levels that fits it, the split's gap.

    Step 0: levels share its queues by their best partition, or no level is present.
    """

    port: PortName
    units: int
    managed_share: float
    step: int
    gap: float | None
    queues: tuple[QueueAccount, ...]
    applications: tuple[ApplicationAccount, ...]


def explain_port(state: State, name: PortName) -> PortAccount | Refusal:
    """A managed port, with or without applications."""
    if name not in state.policies:
        return _refuse_unmanaged(state, name)
    plan = find_port_plan(state, name)
    # A plan may for a moment count connections of registrations that have just ended.
    names = frozenset(plan.names if plan else ())
    forecasts: dict[str, Forecast | None] = {}
    for application in state.applications.values():
        if application.unit in names and forecasts.get(application.unit) is None:
            forecasts[application.unit] = forecast_application(state, application.id)
    return _explain_port(state, name, dict(sorted(forecasts.items())))


def _explain_port(
    state: State, name: PortName, forecasts: Mapping[str, Forecast | None]
) -> PortAccount:
    """Explains a port, with those of its applications that are in `forecasts`, by unit."""
    plan, policy = find_port_plan(state, name), state.policies[name]
    tables = state.target.get(name) or find_tables(state, name)
    return PortAccount(
        port=name,
        units=policy.units,
        managed_share=policy.capacity,
        step=0 if plan is None else plan.step,
        gap=None if plan is None else plan.gap,
        queues=_explain_queues(state, tables, plan),
        applications=tuple(
            _explain_application(state, name, plan, row, tables, forecast)
            for id_, forecast in forecasts.items()
            if plan is not None and (row := find_name(plan.names, id_)) is not None
        ),
    )


def _refuse_unmanaged(state: State, name: PortName) -> Refusal:
    if state.paths is None:
        return Refusal(
            "FAILED_PRECONDITION",
            f"{name}",
            "no fabric is known yet",
            "wait until the switches are reached",
        )
    problem = state.unfit.get(name, "is not a port that is managed")
    return Refusal("NOT_FOUND", f"{name}", problem, "see weft control ports")


def _explain_queues(
    state: State, tables: Tables, plan: PortPlan | None
) -> tuple[QueueAccount, ...]:
    present = set() if plan is None else set(plan.levels)
    top = state.settings.all_levels
    accounts = []
    for queue, weight in enumerate(tables.weights):
        levels = tuple(
            n for n, level_queue in enumerate(tables.queue_of[:top]) if level_queue == queue
        )
        if weight:
            purpose = _purpose(tables, queue, levels, present)
            accounts.append(
                QueueAccount(queue=queue, levels=levels, weight=weight, purpose=purpose)
            )
    return tuple(accounts)


def _purpose(tables: Tables, queue: int, levels: tuple[int, ...], present: set[int]) -> str:
    if tables.lane is not None and tables.lane.queue == queue:
        return LANE
    if not levels:
        return UNUSED
    if present.intersection(levels):
        return MANAGED
    return UNMANAGED if 0 in levels else WAITING


def _explain_application(
    state: State,
    name: PortName,
    plan: PortPlan,
    row: int,
    tables: Tables,
    forecast: Forecast | None,
) -> ApplicationAccount:
    id_, units = plan.names[row], plan.weights[row]
    share = units / plan.policy.units
    application = application_name(id_)  # its first registration may have ended
    model, level = state.models[application], state.level_of(application)
    gain = predict_gain(model.curve, share)
    size_bytes, size_source = state.find_size(id_)
    elsewhere = (
        forecast
        if forecast is not None and forecast.share < share and forecast.at != name
        else None
    )
    return ApplicationAccount(
        id=id_,
        model=format_curve(model.curve),
        level=level,
        queue=tables.queue_of[level],
        connections=plan.counts[row],
        units=units,
        share=share,
        slowdown=predict_slowdown(model.curve, share),
        at_least=share < model.curve.floor,
        gain=gain,
        gain_s=None if model.baseline_s is None else gain * model.baseline_s,
        least=None if elsewhere is None else elsewhere.at,
        least_share=None if elsewhere is None else elsewhere.share,
        size_bytes=size_bytes,
        size_source=size_source,
    )


def format_curve(model: Sensitivity) -> str:
    """The slowdown as a formula of the share b."""
    if not isinstance(model, Hinges):
        first, *rest = model.coefficients
        powers = enumerate(rest, start=1)
        return f"{first:.3g}" + "".join(
            f" {'-' if c < 0 else '+'} {abs(c):.3g} b{'' if n == 1 else f'^{n}'}" for n, c in powers
        )
    terms = [f"{c:.3g} max(0, {t:.3g}/b - 1)" for t, c in model.terms if c]
    return " + ".join(["1", *terms])


# ---- Applications -----------------------------------------------------------------------------


def explain_application(state: State, name: str) -> list[PortAccount] | Refusal:
    """Ports of a registration, or of the first of a name: where it has least first."""
    registrations = find_registrations(state, name)
    ids = [registration.id for registration in registrations]
    if not ids:
        return Refusal(
            "NOT_FOUND", f"application {name}", "is not registered", "see weft control apps"
        )
    each = MAX_PORTS // len(ids)
    shares = [share for id_ in ids for share in nsmallest(each, find_shares(state, id_))]
    chosen = dict.fromkeys(port for _, port in sorted(shares))
    forecasts = {a.unit: forecast_application(state, a.id) for a in registrations}
    return [_drop_other_queues(_explain_port(state, port, forecasts)) for port in chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionAccount:
    """A connection, its application's level and unit, and its managed ports.

    `hops`: the ports of its paths, managed or not, by hop; empty: it has no path.
    """

    connection: Connection
    level: int
    unit: str
    hops: tuple[tuple[PortName, ...], ...]
    problem: str
    ports: tuple[PortAccount, ...]


def explain_connection(state: State, id_: str) -> ConnectionAccount | Refusal:
    """The ports of an open connection, with the account of its application at each."""
    connection = state.connections.get(id_)
    if connection is None:
        return Refusal("NOT_FOUND", f"connection {id_}", "is not open", "see weft control apps")
    application = state.applications[connection.application]
    missing = state.missing_paths.get(id_)
    hops: list[tuple[PortName, ...]] = []
    if state.paths is not None and missing is None:
        hops = state.paths.list_hops(connection.source, connection.destination)
    forecasts = {application.unit: forecast_application(state, application.id)}
    accounts = [
        _drop_other_queues(_explain_port(state, port, forecasts))
        for hop in hops
        for port in hop
        if port in state.policies
    ]
    problem = "no fabric is known yet" if state.paths is None else str(missing or "")
    return ConnectionAccount(
        connection=connection,
        level=state.level_of(application.name),
        unit=application.unit,
        hops=tuple(hops),
        problem=problem,
        ports=tuple(accounts),
    )


def find_registrations(state: State, name: str) -> list[Application]:
    """The registration of this id, or the first of this name."""
    application = state.applications.get(name)
    if application is not None:
        return [application]
    applications = (a for a in state.applications.values() if a.name == name)
    return nsmallest(MAX_REGISTRATIONS, applications, key=attrgetter("number"))


def _drop_other_queues(account: PortAccount) -> PortAccount:
    """Leaves out queues of other applications."""
    used = {assigned.queue for assigned in account.applications}
    return replace(account, queues=tuple(q for q in account.queues if q.queue in used))
