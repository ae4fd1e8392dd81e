"""What the models predict for every application, now and after a proposal.

An application is as fast as the least of its shares along its paths lets it be. Below the least
profiled share nothing is predicted: the slowdown is at least that at the floor. A proposal is
evaluated by the same steps as `apply`, on the state as it is, and nothing is stored: the result
agrees with what `apply` then does, as long as nothing else happens in between. Pure.
Entry points: `forecast_all`, `forecast_application`, `compute_mean_slowdown`, `predict_gain`,
`evaluate_proposal`. Shares are fractions of the link, times seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.control.policy.plan import find_name
from weft.control.state.events import Apply, Proposal, Refusal
from weft.control.state.request_key import Key
from weft.control.state.state import State
from weft.control.state.step import run_batch
from weft.sensitivity.model import Sensitivity
from weft.switches import PortName, Tables

PER_CENT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The least share of a registration, where that is, and what follows."""

    share: float
    at: PortName
    slowdown: float
    at_least: bool  # the share is below the least one profiled
    completion_s: float | None


def forecast_all(state: State) -> dict[str, Forecast]:
    """Forecasts of all registrations that have a connection over a managed port."""
    if state.plan is None or state.paths is None:
        return {}
    least: dict[str, tuple[float, PortName]] = {}
    for port, plan in state.plan.ports.items():
        units, name = plan.policy.units, state.paths.names[port]
        for application, weight in zip(plan.names, plan.weights, strict=True):
            share = weight / units
            if application not in least or (share, name) < least[application]:
                least[application] = (share, name)
    return {
        application.id: _forecast(state, application.id, *least[application.unit])
        for application in state.applications.values()
        if application.unit in least and application.connections
    }


def forecast_application(state: State, id_: str) -> Forecast | None:
    """The forecast of one registration; takes time by the ports of its connections only."""
    shares = find_shares(state, id_)
    return _forecast(state, id_, *min(shares)) if shares else None


def find_shares(state: State, id_: str) -> list[tuple[float, PortName]]:
    """The share of a registration at each managed port of its paths."""
    if state.plan is None or state.paths is None:
        return []
    application = state.applications[id_]
    connections = [state.connections[name] for name in application.connections]
    ports = {port for connection in connections for port in state.ports_of(connection)}
    plans = [(port, state.plan.ports.get(port)) for port in ports]
    return [
        (plan.weights[row] / plan.policy.units, state.paths.names[port])
        for port, plan in plans
        if plan is not None and (row := find_name(plan.names, application.unit)) is not None
    ]


def _forecast(state: State, id_: str, share: float, at: PortName) -> Forecast:
    model = state.models[state.applications[id_].name]
    slowdown = predict_slowdown(model.curve, share)
    return Forecast(
        share=share,
        at=at,
        slowdown=slowdown,
        at_least=share < model.curve.floor,
        completion_s=None if model.baseline_s is None else model.baseline_s * slowdown,
    )


def predict_slowdown(model: Sensitivity, share: float) -> float:
    """The predicted slowdown; below the floor, that at the floor."""
    return float(model.slowdown(min(max(share, model.floor), 1.0)))


def predict_gain(model: Sensitivity, share: float) -> float:
    """How much slowdown one more per cent of the link would save."""
    from_share = min(max(share, model.floor), 1.0)
    return predict_slowdown(model, from_share) - predict_slowdown(model, from_share + PER_CENT)


def compute_mean_slowdown(state: State, forecasts: Mapping[str, Forecast]) -> float:
    """The mean of all jobs that have a connection; 1 if none has."""
    if not forecasts:
        return 1.0
    jobs = {state.applications[id_].unit: forecast for id_, forecast in forecasts.items()}
    return sum(forecast.slowdown for forecast in jobs.values()) / len(jobs)


_KEY = Key("plan", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortChange:
    """A port's tables before (None: it had none) and after."""

    port: PortName
    before: Tables | None
    after: Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationChange:
    """A registration before (None: absent, or without a connection) and after."""

    id: str
    name: str
    before: Forecast | None
    after: Forecast | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalEffects:
    """What would change, and the mean predicted slowdown of all applications.

    `at_least_...`: that mean is a lower bound.
    """

    ports: tuple[PortChange, ...]
    applications: tuple[ApplicationChange, ...]
    slowdown_before: float
    slowdown_after: float
    at_least_before: bool
    at_least_after: bool
    after: State


def evaluate_proposal(state: State, proposal: Proposal) -> ProposalEffects | Refusal:
    """What applying the proposal would change now."""
    outcome = run_batch(state, [Apply(key=_KEY, proposal=proposal, now_s=0.0)])
    (answer,) = outcome.answers
    if isinstance(answer, Refusal):
        return answer
    before, after = forecast_all(state), forecast_all(outcome.state)
    ports = [
        PortChange(port=name, before=state.target.get(name), after=outcome.state.target[name])
        for name in sorted(outcome.ports)
    ]
    return ProposalEffects(
        ports=tuple(ports),
        applications=_list_changes(state, outcome.state, before, after),
        slowdown_before=compute_mean_slowdown(state, before),
        slowdown_after=compute_mean_slowdown(outcome.state, after),
        at_least_before=any(forecast.at_least for forecast in before.values()),
        at_least_after=any(forecast.at_least for forecast in after.values()),
        after=outcome.state,
    )


def _list_changes(
    old: State, new: State, before: dict[str, Forecast], after: dict[str, Forecast]
) -> tuple[ApplicationChange, ...]:
    """Registrations that are new, end, or get another share."""
    names = {
        application.id: application.name
        for state in (old, new)
        for application in state.applications.values()
    }
    return tuple(
        ApplicationChange(id=id_, name=name, before=before.get(id_), after=after.get(id_))
        for id_, name in sorted(names.items())
        if before.get(id_) != after.get(id_)
        or (id_ in old.applications) != (id_ in new.applications)
    )
