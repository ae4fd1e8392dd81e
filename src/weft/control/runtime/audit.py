"""The controller's log: lines with a severity, and for each change who made it and what it changed.

A line is text; the fields of a change are beside it, for a log in JSON. Registrations, their ends,
expiries, proposals, rollbacks, models and revisions are changes. Single connections are not listed:
they show as the revision that they cause, and the store has every table that a revision replaced.
Entry points: `LogLine`, `describe_changes` (pure), `Log`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from weft.control.state.events import (
    Answer,
    ApplicationModel,
    Applied,
    Apply,
    Asker,
    Deregister,
    Event,
    Expire,
    Hold,
    ModelChanged,
    Refusal,
    Register,
    Registered,
    RevisionRow,
    Rollback,
)
from weft.control.state.state import State
from weft.control.state.step import Outcome
from weft.switches import Tables
from weft.units import format_count, format_value

Severity = Literal["info", "warning", "error"]
_LOG_CLOSE_S = 1.0
_CONTROLLER = "controller"
_NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class LogLine(str):
    """A line's text, its severity, and the fields of a change."""

    severity: Severity
    fields: Mapping[str, Any]

    def __new__(
        cls, text: str, severity: Severity = "info", fields: Mapping[str, Any] = _NO_FIELDS
    ) -> LogLine:
        line = super().__new__(cls, text)
        line.severity, line.fields = severity, fields
        return line


# ---- Changes ----------------------------------------------------------------------------------

_CHANGES = frozenset({Register, Deregister, Expire, Apply, Rollback, Hold, ModelChanged})


def describe_changes(before: State, events: Sequence[Event], outcome: Outcome) -> list[LogLine]:
    """What a batch of events has changed, in their order, and the revisions that followed."""
    lines = [
        _describe(before, outcome.state, event, answer)
        for event, answer in zip(events, outcome.answers, strict=True)
        if type(event) in _CHANGES and not isinstance(answer, Refusal)
    ]
    revisions = [row for row in outcome.rows if isinstance(row, RevisionRow) and row.tables]
    return [line for line in lines if line is not None] + [*map(_describe_revision, revisions)]


def _describe(before: State, after: State, event: Event, answer: Answer) -> LogLine | None:
    """None for what has changed nothing, such as a repeated request."""
    match event:
        case Register() | Deregister() | Apply() | Rollback() | Hold() if before.answers.get(
            event.key
        ):
            return None
        case Register() if isinstance(answer, Registered):
            return _describe_registration(event, answer)
        case Deregister(application=id_):
            return _describe_end(before, id_, _name(event.by), "deregistered", "info")
        case Expire(application=id_) if (
            id_ in before.applications and id_ not in after.applications
        ):
            return _describe_end(before, id_, _CONTROLLER, "expired", "warning")
        case Apply() if isinstance(answer, Applied):
            return _describe_operation(before, event.by, _list_parts(before, event, answer), answer)
        case Rollback() if isinstance(answer, Applied):
            action = f"rolled back to revision {event.revision}, which is held"
            return _describe_operation(before, event.by, action, answer)
        case Hold(revision=revision) if isinstance(answer, Applied):
            of_all = "ended the rollback of all groups"
            if revision is not None:
                of_all = f"rolled back all groups: to revision {revision} here, which is held"
            return _describe_operation(before, event.by, of_all, answer)
        case ModelChanged():
            return _describe_model(before, event)
        case _:
            return None


def _name(by: Asker | None) -> str:
    return _CONTROLLER if by is None else by.name


def _describe_registration(event: Register, answer: Registered) -> LogLine:
    who = _name(event.by)
    size = f", size {format_value(event.size_bytes, 'B')}" if event.size_bytes else ""
    text = f"{who} registered {answer.id}: level {answer.level}, lease {answer.ttl_s:g} s{size}"
    fields: dict[str, Any] = {"who": who, "what": "registered", "after": answer.id}
    return LogLine(text, fields=fields | ({"size": event.size_bytes} if size else {}))


def _describe_end(before: State, id_: str, who: str, action: str, severity: Severity) -> LogLine:
    registration = before.applications.get(id_)  # None: it came in the same batch
    owner = None if registration is None else registration.owner
    connections = 0 if registration is None else len(registration.connections)
    whose = f" of {owner}" if owner not in (None, who) else ""
    count = format_count(connections, "connection")
    fields = {"who": who, "what": action, "before": id_, "owner": owner, "connections": connections}
    change = (
        f"lease of {id_}{whose} {action}" if who == _CONTROLLER else f"{who} {action} {id_}{whose}"
    )
    return LogLine(f"{change}: {count} ended", severity, fields)


def _list_parts(before: State, event: Apply, answer: Applied) -> str:
    proposal = event.proposal
    parts = [f"+{id_}" for id_ in answer.ids] + [f"-{id_}" for id_ in proposal.deregister]
    parts += ["new levels"] if proposal.recluster else []
    parts += ["resumed"] if before.held_revision is not None else []
    return f"applied {' '.join(parts) or 'nothing'}"


def _describe_operation(before: State, by: Asker | None, action: str, answer: Applied) -> LogLine:
    who, ports = _name(by), format_count(len(answer.ports), "port")
    fields = {"who": who, "what": action, "before": before.revision, "after": answer.revision}
    text = f"{who} {action}: revision {before.revision} to {answer.revision}, {ports}"
    return LogLine(text, fields=fields | {"ports": len(answer.ports)})


def _describe_model(before: State, event: ModelChanged) -> LogLine | None:
    name, new = event.name, event.model
    old = None if name in before.withdrawn else before.models.get(name)
    if old == new:
        return None
    action = (
        f"model of {name} {'added' if old is None else 'removed' if new is None else 'changed'}"
    )
    fields = {"who": "table", "what": action, "before": _format_model(old)}
    return LogLine(action, fields=fields | {"after": _format_model(new)})


def _format_model(model: ApplicationModel | None) -> str | None:
    return None if model is None else str(model.curve)


def _describe_revision(row: RevisionRow) -> LogLine:
    """With the weights of one port; the store has the others'."""
    name, tables = next(iter(row.tables.items()))
    before, after = _format_weights(row.replaced.get(name)), _format_weights(tables)
    rest = len(row.tables) - 1
    more = f", and {format_count(rest, 'more port')}" if rest else ""
    fields: dict[str, Any] = {"who": _CONTROLLER, "what": row.cause, "revision": row.revision}
    fields |= {"port": str(name), "ports": len(row.tables)}
    text = f"revision {row.revision}, {row.cause}: {name} weights {before} to {after}{more}"
    return LogLine(text, fields=fields | {"before": before, "after": after})


def _format_weights(tables: Tables | None) -> str:
    return "none" if tables is None else " ".join(map(str, tables.weights))


# ---- Writing ----------------------------------------------------------------------------------


class Log:
    """Writes lines through `tell`, in a thread of its own, so that nobody waits for a terminal.

    At most `most` lines wait; further ones are counted and left out.
    """

    def __init__(self, tell: Callable[[str], None], most: int = 1000) -> None:
        self._tell = tell
        self._lines: queue.Queue[Callable[[], None] | None] = queue.Queue(most)
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="weft-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """From any thread."""
        self.call(partial(self._tell, line))

    def call(self, write: Callable[[], None]) -> None:
        """Calls a function that writes in another way, in the order of the lines."""
        try:
            self._lines.put_nowait(write)
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """When all lines are written, or after a while."""
        try:
            self._lines.put(None, timeout=_LOG_CLOSE_S)
        except queue.Full:
            return
        self._thread.join(_LOG_CLOSE_S)

    def _run(self) -> None:
        try:
            while (write := self._lines.get()) is not None:
                write()
                if self._left_out:
                    count, self._left_out = self._left_out, 0
                    self._tell(
                        LogLine(f"{count} lines left out: nobody read them in time", "warning")
                    )
        except OSError:
            return  # nobody reads any more: further lines wait, and are counted
