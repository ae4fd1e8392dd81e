"""Accounts of ports and applications in words, for people.

Entry points: `port_text`, `application_text`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.control.operators.explain import (
    LANE,
    MANAGED,
    UNMANAGED,
    UNUSED,
    WAITING,
    Assigned,
    PortAccount,
    QueueAccount,
)
from weft.control.operators.words import format_count, format_list, format_seconds
from weft.control.policy.port import PortPolicy, VlArbitration
from weft.control.state.state import Application, State
from weft.records.record_text import format_table

MOST_BESIDE = 10  # that are named
_PURPOSES = {
    UNMANAGED: "unmanaged traffic",
    MANAGED: "managed applications",
    WAITING: "nobody yet: what comes before its tables passes",
    LANE: "the latency lane",
    UNUSED: "nobody: no level is in it",
}


def format_port(state: State, account: PortAccount) -> str:
    """A port: queues, applications, and why."""
    own = state.policies[account.port]
    count = format_count(len(account.applications), "application")
    head = f"{account.port}: {count}, {account.units} units ({_unit(own)}), revision "
    parts = [f"{head}{state.revision}", _queue_table(account)]
    if account.port not in state.target:
        parts.insert(1, "It has been told nothing: no connection has gone through it. It would be:")
    if account.applications:
        parts += [_application_table(account.applications), _why(state, account)]
    if state.held_revision is not None:
        parts.append(
            f"Held: rolled back to revision {state.held_revision}; `weft control apply` resumes."
        )
    return "\n\n".join(parts)


def _unit(own: PortPolicy) -> str:
    return "of VL arbitration" if isinstance(own.scheduler, VlArbitration) else "kbit/s of HTB"


def _queue_table(account: PortAccount) -> str:
    """A row for each queue; those that nobody uses share one where their weights are the same."""
    groups: dict[tuple[object, ...], list[QueueAccount]] = {}
    for queue in account.queues:
        alike = queue.what in (WAITING, UNUSED)
        own = (queue.what, queue.weight) if alike else (queue.queue,)
        groups.setdefault(own, []).append(queue)
    rows = [
        (
            _ranges([q.queue for q in own]),
            _ranges([n for q in own for n in q.levels]),
            f"{own[0].weight}{' each' if len(own) > 1 else ''}",
            _PURPOSES[own[0].what],
        )
        for own in groups.values()
    ]
    return format_table(("queue", "levels", "weight", "for"), rows, 4)


def _ranges(numbers: Sequence[int]) -> str:
    """Such as "1 2 6-15"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else format_list(run) for run in runs)


def _application_table(found: Sequence[Assigned]) -> str:
    heads = (
        "application",
        "level",
        "queue",
        "connections",
        "units",
        "share",
        "slowdown",
        "1 % more brings",
        "slowdown of the share b",
    )
    rows = [
        (
            own.id,
            str(own.level),
            str(own.queue),
            str(own.connections),
            str(own.units),
            f"{own.share:.1%}",
            _slowdown(own),
            _gain(own),
            own.model,
        )
        for own in found
    ]
    return format_table(heads, rows, 1)


def _slowdown(own: Assigned) -> str:
    return f"{'at least ' if own.at_least else ''}{own.slowdown:.3f}"


def _gain(own: Assigned) -> str:
    in_seconds = "" if own.gain_s is None else f" ({format_seconds(own.gain_s)})"
    return f"{own.gain:.4f}{in_seconds}"


def _why(state: State, account: PortAccount) -> str:
    total = sum(own.slowdown for own in account.applications)
    lines = [
        f"Why: of all splits of {account.managed_share:.0%} of the link this one makes the total "
        f"predicted slowdown least, {total:.3f} for {len(account.applications)}{_proof(account)}.",
        _levels(state, account),
    ]
    if any(queue.what == WAITING for queue in account.queues):
        lines.append("What idle queues keep is taken from the largest queue's units.")
    for own in account.applications:
        if own.least is not None and own.least_share is not None:
            lines.append(
                f"{own.id} has less at {own.least}, {own.least_share:.1%}: more here "
                "would bring it nothing."
            )
    if any(own.at_least for own in account.applications):
        lines.append(
            "The floors of the models do not fit: below the least share profiled, "
            "predictions are lower bounds."
        )
    return "\n".join(lines)


def _proof(account: PortAccount) -> str:
    if account.gap is None:
        return ""
    return f" (at most {account.gap:.2%} above the least possible in these units)"


def _levels(state: State, account: PortAccount) -> str:
    if account.step <= 1:
        return "Every level here has a queue of its own."
    step = f"step {account.step} of the hierarchy of {state.settings.levels} levels"
    return f"There are more levels than queues: those with models most alike share one ({step})."


def format_applications(
    state: State, found: Sequence[Application], accounts: Sequence[PortAccount]
) -> str:
    """Registrations of an application: what holds each back."""
    parts = []
    for own in found:
        mine = [
            (account, assigned)
            for account in accounts
            for assigned in account.applications
            if assigned.id == own.id
        ]
        parts.append(_one(state, own, sorted(mine, key=lambda pair: pair[1].share)))
    count = sum(own.name == found[0].name for own in state.applications.values()) if found else 0
    if 1 < len(found) < count:
        parts.append(f"And {count - len(found)} more: name one by its id.")
    return "\n\n".join(parts)


def _one(state: State, given: Application, mine: Sequence[tuple[PortAccount, Assigned]]) -> str:
    head = (
        f"{given.id}: level {state.level_of(given.name)}, "
        f"{format_count(len(given.connections), 'connection')}"
    )
    if not mine:
        return f"{head}; none of its paths has a managed port"
    place, least = mine[0]
    beside = _beside(state, place, given.id)
    baseline = state.models[given.name].baseline_s
    takes = "" if baseline is None else f", {format_seconds(baseline * least.slowdown)}"
    lines = [
        head,
        f"It has least at {place.port}: {least.share:.1%} of the link{beside}.",
        f"Predicted: {_slowdown(least)} times its time with the whole link{takes}. One per cent "
        f"of that link more would bring {_gain(least)}.",
    ]
    rows = [
        (
            str(account.port),
            str(own.queue),
            str(own.units),
            f"{own.share:.1%}",
            _slowdown(own),
            _gain(own),
        )
        for account, own in mine
    ]
    heads = ("port", "queue", "units", "share", "slowdown", "1 % more brings")
    return "\n".join(lines) + "\n\n" + format_table(heads, rows, 1)


def _beside(state: State, account: PortAccount, id_: str) -> str:
    assert state.plan is not None, "an application at a port has a plan"
    assert state.paths is not None, "an application at a port has a path"
    told = state.plan.ports[state.paths.ports[account.port]]
    others = [name for name in told.names if name != id_]
    if not others:
        return ", where it is alone"
    more = f" and {len(others) - MOST_BESIDE} more" if len(others) > MOST_BESIDE else ""
    return f" beside {', '.join(others[:MOST_BESIDE])}{more}"
