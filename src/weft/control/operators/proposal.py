"""What a proposal would change: every port's tables, every application's predicted completion.

The same steps as `apply`, on the state as it is, and nothing kept: so a plan agrees with what
`apply` then does as long as nothing else has happened in between. Pure.
Entry point: `proposed`. Shares are fractions of the link, times seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.control.operators.forecast import Forecast, forecast_all, mean_slowdown
from weft.control.state.events import Apply, Proposal, Refusal
from weft.control.state.key import Key
from weft.control.state.state import State
from weft.control.state.step import run_batch
from weft.switches import PortName, Tables

_KEY = Key("plan", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortChange:
    """A port's tables before (None: not told so far) and after."""

    port: PortName
    before: Tables | None
    after: Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationChange:
    """A registration before (None: it is not there, or has no connection) and after."""

    id: str
    name: str
    before: Forecast | None
    after: Forecast | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalEffects:
    """What would change, and the mean predicted slowdown of all applications."""

    ports: tuple[PortChange, ...]
    applications: tuple[ApplicationChange, ...]
    slowdown_before: float
    slowdown_after: float
    after: State


def evaluate_proposal(state: State, proposal: Proposal) -> ProposalEffects | Refusal:
    """What `apply` would come to now."""
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
        applications=_changes(state, outcome.state, before, after),
        slowdown_before=mean_slowdown(before),
        slowdown_after=mean_slowdown(after),
        after=outcome.state,
    )


def _changes(
    old: State, new: State, before: dict[str, Forecast], after: dict[str, Forecast]
) -> tuple[ApplicationChange, ...]:
    """Registrations that come, go, or get another share."""
    names = {own.id: own.name for state in (old, new) for own in state.applications.values()}
    return tuple(
        ApplicationChange(id=id_, name=name, before=before.get(id_), after=after.get(id_))
        for id_, name in sorted(names.items())
        if before.get(id_) != after.get(id_)
        or (id_ in old.applications) != (id_ in new.applications)
    )
