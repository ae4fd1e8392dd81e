"""The controller's state machine: a state and events give a state and what is to be done.

No clock and no I/O. A batch of events costs one recomputation of the ports they concern, and gives
the same tables as the events one by one. Entry points: `batch`, and its halves `carried_out` and
`settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.control.state import fabric_changes, operator_changes, requests
from weft.control.state.events import (
    Answer,
    Apply,
    Connect,
    Deregister,
    Disconnect,
    Event,
    Expire,
    FabricChanged,
    ModelChanged,
    Register,
    Renew,
    Rollback,
)
from weft.control.state.programming import settle
from weft.control.state.rows import Row
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
    Apply: operator_changes.apply,
    Rollback: operator_changes.rollback,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a batch comes to: rows to keep, then an answer for each event, and ports to program.

    `State.target` has the tables of these ports.
    """

    state: State
    rows: tuple[Row, ...]
    answers: tuple[Answer, ...]
    ports: frozenset[PortName]


def run_batch(state: State, events: Sequence[Event]) -> Outcome:
    """Events in order; connections are counted together, at the end."""
    return settle_outcome(run_events(state, events))


def run_events(state: State, events: Sequence[Event]) -> Outcome:
    """Events in order; connections may be left that the plan does not count yet."""
    rows: list[Row] = []
    answers: list[Answer] = []
    ports: frozenset[PortName] = frozenset()
    for event in events:
        found = _STEPS[type(event)](state, event)
        state = found.state
        rows += found.rows
        answers.append(found.answer)
        ports |= found.ports
    return Outcome(state=state, rows=tuple(rows), answers=tuple(answers), ports=ports)


def settle_outcome(outcome: Outcome, most: int | None = None) -> Outcome:
    """With a plan that counts every connection, of `most` ports if so many are too many."""
    last = settle(outcome.state, most=most)
    return replace(
        outcome,
        state=last.state,
        rows=(*outcome.rows, *last.rows),
        ports=outcome.ports | last.ports,
    )
