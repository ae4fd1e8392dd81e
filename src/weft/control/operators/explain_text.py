"""Explanations of ports and applications as text, and how counts and times are written.

Entry points: `format_port`, `format_applications`; `format_list`, `format_seconds`, `format_size`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.control.operators.explain import (
    LANE,
    MANAGED,
    UNMANAGED,
    UNUSED,
    WAITING,
    ApplicationAccount,
    PortAccount,
    QueueAccount,
)
from weft.control.policy.objectives import EQUAL, LEAST_PART, PROFILED, SIZE, UNKNOWN
from weft.control.policy.port_policy import PortPolicy, VlArbitration
from weft.control.state.state import Application, State
from weft.records.record_text import format_table
from weft.units import format_count, format_number, format_value

MAX_NEIGHBOURS = 10  # that are named
_PURPOSES = {
    UNMANAGED: "unmanaged traffic",
    MANAGED: "managed applications",
    WAITING: "nobody yet: packets that arrive before their tables pass",
    LANE: "the latency lane",
    UNUSED: "nobody: no level is in it",
}


def format_port(state: State, account: PortAccount) -> str:
    """A port: queues, applications, and why."""
    policy = state.policies[account.port]
    count = format_count(len(account.applications), "application")
    head = f"{account.port}: {count}, {account.units} units ({_format_unit(policy)}), revision "
    parts = [f"{head}{state.revision}", _format_queues(account)]
    if account.port not in state.target:
        parts.insert(1, "Not programmed: no connection has used it. Its tables would be:")
    if account.applications:
        parts += [_format_shares(account.applications), _format_reasons(state, account)]
    if state.held_revision is not None:
        parts.append(
            f"Held: rolled back to revision {state.held_revision}; `weft control apply` resumes."
        )
    return "\n\n".join(parts)


def _format_unit(policy: PortPolicy) -> str:
    return "of VL arbitration" if isinstance(policy.scheduler, VlArbitration) else "kbit/s of HTB"


def _format_queues(account: PortAccount) -> str:
    """A row for each queue; idle queues of the same weight share one."""
    groups: dict[tuple[object, ...], list[QueueAccount]] = {}
    for queue in account.queues:
        is_idle = queue.purpose in (WAITING, UNUSED)
        key = (queue.purpose, queue.weight) if is_idle else (queue.queue,)
        groups.setdefault(key, []).append(queue)
    rows = [
        (
            _format_ranges([q.queue for q in queues]),
            _format_ranges([n for q in queues for n in q.levels]),
            f"{queues[0].weight}{' each' if len(queues) > 1 else ''}",
            _PURPOSES[queues[0].purpose],
        )
        for queues in groups.values()
    ]
    return format_table(("queue", "levels", "weight", "for"), rows, 4)


def _format_ranges(numbers: Sequence[int]) -> str:
    """Such as "1 2 6-15"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else format_list(run) for run in runs)


def _format_shares(accounts: Sequence[ApplicationAccount]) -> str:
    heads = (
        "application",
        "level",
        "queue",
        "connections",
        "size",
        "units",
        "share",
        "slowdown",
        "1 % more saves",
        "slowdown at share b",
    )
    rows = [
        (
            account.id,
            str(account.level),
            str(account.queue),
            str(account.connections),
            format_size(account.size_bytes, account.size_source),
            str(account.units),
            f"{account.share:.1%}",
            _format_slowdown(account),
            _format_gain(account),
            account.model,
        )
        for account in accounts
    ]
    return format_table(heads, rows, 1)


def _format_slowdown(account: ApplicationAccount) -> str:
    return f"{'at least ' if account.at_least else ''}{account.slowdown:.3f}"


def _format_gain(account: ApplicationAccount) -> str:
    in_seconds = "" if account.gain_s is None else f" ({format_seconds(account.gain_s)})"
    return f"{account.gain:.4f}{in_seconds}"


def _format_reasons(state: State, account: PortAccount) -> str:
    lines = [_format_objective(state, account), _format_levels(state, account)]
    if any(queue.purpose == WAITING for queue in account.queues):
        lines.append("The units of idle queues are taken from the largest queue.")
    for application in account.applications:
        if application.least is not None and application.least_share is not None:
            lines.append(
                f"{application.id} has less at {application.least}, {application.least_share:.1%}: "
                "more here would bring it nothing."
            )
    if any(application.at_least for application in account.applications):
        lines.append(
            "The floors of the models do not fit: below the least share profiled, "
            "predictions are lower bounds."
        )
    return "\n".join(lines)


def _format_objective(state: State, account: PortAccount) -> str:
    if state.settings.objective == EQUAL:
        return f"Why: jobs share {account.managed_share:.0%} of the link equally."
    if state.settings.objective == SIZE:
        rule = f"in inverse proportion to their sizes, at least 1/{1 / LEAST_PART:g} of the largest"
        unknown = any(a.size_source == UNKNOWN for a in account.applications)
        typical = "; an unknown size counts as the geometric mean of the others" if unknown else ""
        return f"Why: jobs share {account.managed_share:.0%} of the link {rule}{typical}."
    count, total = len(account.applications), sum(a.slowdown for a in account.applications)
    return (
        f"Why: of all ways to split {account.managed_share:.0%} of the link, this has the lowest "
        f"total predicted slowdown: {total:.3f} for {count}{_format_gap(account)}."
    )


def _format_gap(account: PortAccount) -> str:
    if account.gap is None:
        return ""
    return f" (at most {account.gap:.2%} above the least possible in these units)"


def _format_levels(state: State, account: PortAccount) -> str:
    if account.step == 1:
        return "Every level here has a queue of its own."
    if account.step == 0:
        rule = "the best partition of the levels present"
    else:
        rule = f"step {account.step} of the thesis's hierarchy of {state.settings.levels} levels"
    return f"There are more levels than queues: those with models most alike share one ({rule})."


def format_applications(
    state: State, applications: Sequence[Application], accounts: Sequence[PortAccount]
) -> str:
    """Registrations of an application: what holds each back."""
    parts = []
    for application in applications:
        shares = [
            (account, share)
            for account in accounts
            for share in account.applications
            if share.id == application.unit
        ]
        shares.sort(key=lambda pair: pair[1].share)
        parts.append(_format_application(state, application, shares))
    names = [application.name for application in state.applications.values()]
    count = names.count(applications[0].name) if applications else 0
    if 1 < len(applications) < count:
        parts.append(f"And {count - len(applications)} more: name one by its id.")
    return "\n\n".join(parts)


def _format_application(
    state: State,
    application: Application,
    accounts: Sequence[tuple[PortAccount, ApplicationAccount]],
) -> str:
    head = (
        f"{application.id}: level {state.level_of(application.name)}, "
        f"{format_count(len(application.connections), 'connection')}, "
        f"size {format_size(*state.find_size(application.unit))}"
    )
    if not accounts:
        return f"{head}; none of its paths has a managed port"
    place, least = accounts[0]
    beside = _format_neighbours(state, place, application.unit)
    baseline = state.models[application.name].baseline_s
    takes = "" if baseline is None else f", {format_seconds(baseline * least.slowdown)}"
    lines = [
        head,
        f"Its smallest share is at {place.port}: {least.share:.1%} of the link{beside}.",
        f"Predicted: {_format_slowdown(least)} times its time with the whole link{takes}. "
        f"1 % more of that link would save {_format_gain(least)}.",
    ]
    rows = [
        (
            str(account.port),
            str(share.queue),
            str(share.units),
            f"{share.share:.1%}",
            _format_slowdown(share),
            _format_gain(share),
        )
        for account, share in accounts
    ]
    heads = ("port", "queue", "units", "share", "slowdown", "1 % more saves")
    return "\n".join(lines) + "\n\n" + format_table(heads, rows, 1)


def _format_neighbours(state: State, account: PortAccount, id_: str) -> str:
    assert state.plan is not None, "an application at a port has a plan"
    assert state.paths is not None, "an application at a port has a path"
    plan = state.plan.ports[state.paths.ports[account.port]]
    neighbours = [name for name in plan.names if name != id_]
    if not neighbours:
        return ", where it is alone"
    unnamed = len(neighbours) - MAX_NEIGHBOURS
    more = f" and {unnamed} more" if unnamed > 0 else ""
    return f" beside {', '.join(neighbours[:MAX_NEIGHBOURS])}{more}"


def format_list(values: Iterable[int]) -> str:
    return " ".join(map(str, values))


def format_size(size_bytes: float | None, source: str) -> str:
    """A job's size and where it comes from."""
    if size_bytes is None:
        return UNKNOWN
    origin = "of the profile" if source == PROFILED else source
    return f"{format_value(size_bytes, 'B')} {origin}"


def format_seconds(value: float) -> str:
    """Four digits, and nothing below a millisecond."""
    return f"{format_number(round(value, 3) if value >= 0.01 else value)} s"
