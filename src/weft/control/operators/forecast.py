"""What the models predict for every application under a plan.

An application is as fast as the least of its shares along its paths lets it be. Below the least
share that was profiled nothing is predicted: the slowdown is at least that at the floor.
Entry points: `forecasts`, `forecast_of`, `mean_slowdown`, `gain`. Shares are fractions of the link,
times seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from weft.control.policy.plan import PortPlan
from weft.control.state.state import State
from weft.sensitivity.model import Sensitivity
from weft.switches import PortName

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
    """Of every registration that has a connection over a managed port."""
    if state.plan is None or state.paths is None:
        return {}
    least: dict[str, tuple[float, PortName]] = {}
    for port, told in state.plan.ports.items():
        units, name = told.policy.units, state.paths.names[port]
        for application, weight in zip(told.names, told.weights, strict=True):
            share = weight / units
            if application not in least or (share, name) < least[application]:
                least[application] = (share, name)
    # A plan may for moments count connections of registrations that have just gone.
    return {
        id_: _forecast(state, id_, *found)
        for id_, found in least.items()
        if id_ in state.applications
    }


def forecast_application(state: State, id_: str) -> Forecast | None:
    """Of one registration; costs what its own connections have ports, not what the fabric has."""
    shares = shares_of(state, id_)
    return _forecast(state, id_, *min(shares)) if shares else None


def shares_of(state: State, id_: str) -> list[tuple[float, PortName]]:
    """What a registration has at each managed port of its paths."""
    if state.plan is None or state.paths is None:
        return []
    own = [state.connections[name] for name in state.applications[id_].connections]
    ports = {port for connection in own for port in state.ports_of(connection)}
    found = [(port, state.plan.ports.get(port)) for port in ports]
    return [
        (told.weights[row] / told.policy.units, state.paths.names[port])
        for port, told in found
        if told is not None and (row := row_of(told, id_)) is not None
    ]


def row_of(told: PortPlan, id_: str) -> int | None:
    """Where a registration is among the columns of a port, if it is."""
    row = bisect_left(told.names, id_)
    return row if row < len(told.names) and told.names[row] == id_ else None


def _forecast(state: State, id_: str, share: float, at: PortName) -> Forecast:
    model = state.models[state.applications[id_].name]
    slowdown = slowdown_at(model.curve, share)
    return Forecast(
        share=share,
        at=at,
        slowdown=slowdown,
        at_least=share < model.curve.floor,
        completion_s=None if model.baseline_s is None else model.baseline_s * slowdown,
    )


def slowdown_at(model: Sensitivity, share: float) -> float:
    """Predicted, or what it is at the floor where the share is below it."""
    return float(model.slowdown(min(max(share, model.floor), 1.0)))


def marginal_gain(model: Sensitivity, share: float) -> float:
    """What one per cent of the link more would take off the slowdown."""
    from_share = min(max(share, model.floor), 1.0)
    return slowdown_at(model, from_share) - slowdown_at(model, from_share + PER_CENT)


def mean_slowdown(found: Mapping[str, Forecast]) -> float:
    """Of all that have a connection; 1 where nobody has."""
    if not found:
        return 1.0
    return sum(forecast.slowdown for forecast in found.values()) / len(found)
