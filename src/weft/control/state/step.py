"""The controller's state machine: a state and events give a state and what is to be done.

No clock and no I/O. A batch of events costs one recomputation of the ports they concern, and gives
the same tables as the events one by one. Entry points: `run_batch`, and its halves `run_events` and
`settle_outcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.control.state import fabric_changes, group_changes, operator_changes, requests
from weft.control.state.events import (
    Answer,
    Apply,
    Connect,
    Deregister,
    Disconnect,
    Event,
    Expire,
    FabricChanged,
    Follow,
    Hold,
    ModelChanged,
    Register,
    Renew,
    Rollback,
    Row,
)
from weft.control.state.programming import settle
from weft.control.state.state import State, Step
from weft.switches import PortName

_STEPS: dict[type[Any], Callable[[State, Any], Step]] = {
    Connect: requests.connect,
    Disconnect: requests.disconnect,
    Renew: requests.renew,
    Register: requests.register,
    Deregister: requests.deregister,
    Expire: requests.expire,
    FabricChanged: fabric_changes.change_fabric,
    ModelChanged: operator_changes.change_model,
    Follow: group_changes.follow,
    Hold: group_changes.hold,
    Apply: operator_changes.apply,
    Rollback: operator_changes.rollback,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a batch: rows to store, then an answer to each event, and ports to program.

    `State.target` has the tables of these ports.
    """

    state: State
    rows: tuple[Row, ...]
    answers: tuple[Answer, ...]
    ports: frozenset[PortName]


def run_batch(state: State, events: Sequence[Event]) -> Outcome:
    """Runs events in order; connections are counted together, at the end."""
    return settle_outcome(run_events(state, events))


def run_events(state: State, events: Sequence[Event]) -> Outcome:
    """Runs events in order. Some connections may stay pending."""
    rows: list[Row] = []
    answers: list[Answer] = []
    ports: frozenset[PortName] = frozenset()
    for event in events:
        step = _STEPS[type(event)](state, event)
        state = step.state
        rows += step.rows
        answers.append(step.answer)
        ports |= step.ports
    return Outcome(state=state, rows=tuple(rows), answers=tuple(answers), ports=ports)


def settle_outcome(outcome: Outcome, max_ports: int | None = None) -> Outcome:
    """Makes the plan count the pending connections, of at most `max_ports` ports."""
    step = settle(outcome.state, max_ports=max_ports)
    return replace(
        outcome,
        state=step.state,
        rows=(*outcome.rows, *step.rows),
        ports=outcome.ports | step.ports,
    )
