"""From connections to the plan, and from the plan to what ports are to be told.

Entry points: `settled`, after connections came or went; `reprogrammed`, after anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from weft.control.policy.plan import Plan, shift_counts
from weft.control.state.rows import RevisionRow
from weft.control.state.state import PendingCounts, State, Step
from weft.fabric import Port
from weft.switches import PortName, Tables


def settle(state: State, cause: str = "", most: int | None = None) -> Step:
    """With a plan that counts every connection: each port is solved once.

    `most`: of so many ports only; the others stay pending.
    """
    if state.pending is None:
        return Step(state=state)
    before = state.plan
    assert before is not None, "a connection belongs to an application with a model"
    assert state.paths is not None, "a connection with ports has a path"
    left = state.owed()
    moved = dict(islice(left.items(), most))
    for port in moved:
        del left[port]
    plan = shift_counts(before, moved)
    names = [state.paths.names[port] for port in moved if _differs(before, plan, port)]
    counted = replace(state, plan=plan, pending=PendingCounts(left) if left else None)
    return reprogram(counted, names, cause or _cause(moved))


def _cause(moved: Mapping[Port, Mapping[str, int]]) -> str:
    those = {application for own in moved.values() for application in own}
    return f"connections of {those.pop() if len(those) == 1 else f'{len(those)} applications'}"


def _differs(before: Plan, after: Plan, port: Port) -> bool:
    """Whether a port was solved again; one that only counts anew keeps its weights."""
    old, new = before.ports.get(port), after.ports.get(port)
    return old is None or new is None or old.weights is not new.weights


def reprogram(state: State, names: Iterable[PortName], cause: str) -> Step:
    """With the plan's tables as the target of these ports, unless a revision is held."""
    if state.held is not None:
        return Step(state=state)
    return retarget(state, {name: state.tables_of(name) for name in names}, cause)


def retarget(state: State, tables: dict[PortName, Tables], cause: str) -> Step:
    """A new revision with these tables, if they differ from what ports are to have."""
    changed = {name: told for name, told in tables.items() if state.target.get(name) != told}
    if not changed:
        return Step(state=state)
    after = replace(state, revision=state.revision + 1, target=state.target.changed(changed))
    row = RevisionRow(
        revision=after.revision,
        cause=cause,
        tables=changed,
        held=state.held,
        before={name: state.target.get(name) for name in changed},
    )
    return Step(state=after, rows=(row,), ports=frozenset(changed))
