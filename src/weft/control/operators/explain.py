"""Why a port has the weights that it has, and why an application gets what it gets: the numbers.

`weft.control.operators.explain_text` puts them into words. Fields are called as in the service's
messages. Entry points: `port_account`, `application_accounts`. Pure. Units: shares of the link,
weights in the scheduler's units, seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest

from weft.control.operators.forecast import (
    Forecast,
    forecast_application,
    marginal_gain,
    row_of,
    shares_of,
    slowdown_at,
)
from weft.control.policy.plan import PortPlan
from weft.control.state.events import Refusal
from weft.control.state.programming import plan_of_port, tables_of
from weft.control.state.state import Application, State
from weft.sensitivity.model import Hinges
from weft.switches import PortName, Tables

UNMANAGED, MANAGED, WAITING, LANE = "unmanaged", "managed", "waiting", "lane"
UNUSED = "unused"  # no level is in it
MOST_PORTS = 100  # of an application: those where it has least
MOST_REGISTRATIONS = 20  # of an application's name


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAccount:
    """A queue, the levels in it, its weight in the table, and for whom it is."""

    queue: int
    levels: tuple[int, ...]
    weight: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """An application at a port. `gain`: slowdown that one per cent of the link more would save.

    `least` is where it has less than here, if it has: then more here would bring it nothing.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAccount:
    """A port: its units, the step of the hierarchy of levels that fits it, the split's gap."""

    port: PortName
    units: int
    managed_share: float
    step: int
    gap: float | None
    queues: tuple[QueueAccount, ...]
    applications: tuple[Assigned, ...]


def explain_port(state: State, name: PortName) -> PortAccount | Refusal:
    """A managed port, with or without applications."""
    if name not in state.policies:
        return _unknown(state, name)
    told = plan_of_port(state, name)
    # A plan may for moments count connections of registrations that have just gone.
    ids = [id_ for id_ in (told.names if told else ()) if id_ in state.applications]
    return _port(state, name, {id_: forecast_application(state, id_) for id_ in ids})


def _port(state: State, name: PortName, found: Mapping[str, Forecast | None]) -> PortAccount:
    """With those of its applications that are in `found`."""
    told, own = plan_of_port(state, name), state.policies[name]
    tables = state.target.get(name) or tables_of(state, name)
    return PortAccount(
        port=name,
        units=own.units,
        managed_share=own.capacity,
        step=0 if told is None else told.step,
        gap=None if told is None else told.gap,
        queues=_queues(state, tables, told),
        applications=() if told is None else _assigned(state, name, told, tables, found),
    )


def _unknown(state: State, name: PortName) -> Refusal:
    if state.paths is None:
        return Refusal(
            code="FAILED_PRECONDITION",
            where=f"{name}",
            problem="no fabric is known yet",
            remedy="wait until the switches are reached",
        )
    problem = state.unfit.get(name, "is not a port that is managed")
    return Refusal(
        code="NOT_FOUND", where=f"{name}", problem=problem, remedy="see weft control ports"
    )


def _queues(state: State, tables: Tables, told: PortPlan | None) -> tuple[QueueAccount, ...]:
    present = set() if told is None else set(told.levels)
    top = state.settings.all_levels
    found = []
    for queue, weight in enumerate(tables.weights):
        levels = tuple(n for n, own in enumerate(tables.queue_of[:top]) if own == queue)
        if weight:
            what = _purpose(tables, queue, levels, present)
            found.append(QueueAccount(queue=queue, levels=levels, weight=weight, what=what))
    return tuple(found)


def _purpose(tables: Tables, queue: int, levels: tuple[int, ...], present: set[int]) -> str:
    if tables.lane is not None and tables.lane.queue == queue:
        return LANE
    if not levels:
        return UNUSED
    if present.intersection(levels):
        return MANAGED
    return UNMANAGED if 0 in levels else WAITING


def _assigned(
    state: State,
    name: PortName,
    told: PortPlan,
    tables: Tables,
    found: Mapping[str, Forecast | None],
) -> tuple[Assigned, ...]:
    rows = [(row_of(told, id_), least) for id_, least in found.items()]
    return tuple(
        _account(state, name, told, row, tables, least) for row, least in rows if row is not None
    )


def _account(
    state: State, name: PortName, told: PortPlan, row: int, tables: Tables, least: Forecast | None
) -> Assigned:
    id_, units = told.names[row], told.weights[row]
    share = units / told.policy.units
    model = state.models[state.applications[id_].name]
    level = state.level_of(state.applications[id_].name)
    brought = marginal_gain(model.curve, share)
    elsewhere = least if least is not None and least.share < share and least.at != name else None
    return Assigned(
        id=id_,
        model=model_text(model.curve),
        level=level,
        queue=tables.queue_of[level],
        connections=told.counts[row],
        units=units,
        share=share,
        slowdown=slowdown_at(model.curve, share),
        at_least=share < model.curve.floor,
        gain=brought,
        gain_s=None if model.baseline_s is None else brought * model.baseline_s,
        least=None if elsewhere is None else elsewhere.at,
        least_share=None if elsewhere is None else elsewhere.share,
    )


def model_text(model: Hinges) -> str:
    """The slowdown as a formula of the share b."""
    terms = [f"{c:.3g} max(0, {t:.3g}/b - 1)" for t, c in model.terms if c]
    return " + ".join(["1", *terms])


# ---- Applications -----------------------------------------------------------------------------


def explain_application(state: State, name: str) -> list[PortAccount] | Refusal:
    """Ports of a registration, or of the first of a name: where it has least first."""
    ids = [own.id for own in find_registrations(state, name)]
    if not ids:
        return Refusal(
            code="NOT_FOUND",
            where=f"application {name}",
            problem="is not registered",
            remedy="see weft control apps",
        )
    each = MOST_PORTS // len(ids)
    shares = [share for id_ in ids for share in nsmallest(each, shares_of(state, id_))]
    chosen = dict.fromkeys(port for _, port in sorted(shares))
    found = {id_: forecast_application(state, id_) for id_ in ids}
    return [_only_used(_port(state, port, found)) for port in chosen]


def find_registrations(state: State, name: str) -> list[Application]:
    """The registration of this id, or the first of this name."""
    own = state.applications.get(name)
    if own is not None:
        return [own]
    found = (own for own in state.applications.values() if own.name == name)
    return nsmallest(MOST_REGISTRATIONS, found, key=lambda own: int(own.id.rpartition("#")[2]))


def _only_used(account: PortAccount) -> PortAccount:
    """Without queues of others."""
    used = {assigned.queue for assigned in account.applications}
    return replace(account, queues=tuple(q for q in account.queues if q.queue in used))
