"""The controller's replies as tables, for people.

Entry points: `format_status`, `format_applications`, `format_ports`, `format_revisions`,
`format_plan`, `format_change`, `format_rollback`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from weft.control.operators.explain_text import format_list, format_seconds, format_size
from weft.control.service import weft_pb2 as pb
from weft.records.record_text import format_table
from weft.units import format_count

_MAX_LISTED = 20  # ports that are named


def format_status(reply: pb.StatusReply) -> str:
    """Of each group of controllers, where there are several."""
    if not reply.groups:
        return _format_own_status(reply)
    parts = []
    for group in reply.groups:
        text = group.problem and f"problem: {group.problem}"
        lines = (text or _format_own_status(group.status)).splitlines()
        parts.append("\n".join([f"group {group.group}", *(f"  {line}" for line in lines)]))
    return "\n".join(parts)


def _list_unanswered(groups: Any) -> list[str]:
    return [f"group {g.group} is missing: {g.problem}" for g in groups if g.problem]


def _format_own_status(reply: pb.StatusReply) -> str:
    lines = [
        f"revision {reply.revision}{_format_rollback(reply)}: {_format_programmed(reply)}",
        f"{format_count(reply.applications, 'application')}, "
        f"{format_count(reply.connections, 'connection')}{_format_pathless(reply)}",
        f"{format_count(reply.ports, 'port')}: {reply.ports_pending} pending, "
        f"{reply.ports_failing} failing; {format_count(reply.drifts, 'drift')} found",
        f"{format_count(reply.models, 'model')} in {format_count(reply.levels, 'level')}; "
        f"up for {format_seconds(reply.up_s)}",
    ]
    return "\n".join([*lines, *(f"problem: {problem}" for problem in reply.problems)])


def _format_programmed(reply: pb.StatusReply) -> str:
    if reply.programmed == reply.revision:
        return "programmed on all ports"
    return f"not on all ports yet; all have revision {reply.programmed}"


def _format_rollback(reply: pb.StatusReply) -> str:
    if not reply.HasField("held"):
        return ""
    return f" (rolled back to {reply.held}; `weft control apply` resumes)"


def _format_pathless(reply: pb.StatusReply) -> str:
    count = reply.connections_without_path
    return f" ({count} without a path)" if count else ""


def format_applications(reply: pb.StatusReply) -> str:
    applications = reply.listed_applications
    if not applications:
        return "\n".join(["No application is registered.", *_list_unanswered(reply.groups)])
    heads = (
        "id",
        "level",
        "connections",
        "ports",
        "lease",
        "size",
        "least share",
        "slowdown",
        "predicted",
    )
    rows = [
        (
            application.id,
            str(application.level),
            str(application.connections),
            str(application.ports),
            _format_lease(application),
            _format_size(application),
            _format_share(application, "least_share"),
            _format_slowdown(application, "slowdown"),
            _format_time(application, "completion_s"),
        )
        for application in applications
    ]
    return "\n".join([format_table(heads, rows, 1), *_list_unanswered(reply.groups)])


def _format_lease(application: pb.ApplicationState) -> str:
    return f"{application.left_s:.1f} of {application.ttl_s:g} s" if application.ttl_s else "none"


def _format_size(application: pb.ApplicationState) -> str:
    is_known = application.HasField("size_bytes")
    return format_size(application.size_bytes if is_known else None, application.size_source)


def format_ports(reply: pb.StatusReply) -> str:
    ports, unanswered = reply.listed_ports, _list_unanswered(reply.groups)
    if not ports:
        return "\n".join(["No port is programmed.", *unanswered])
    heads = ("port", "state", "for", "applications", "weights")
    rows = [
        (
            _format_port(port.port),
            port.state,
            format_seconds(port.since_s),
            str(port.applications),
            format_list(port.weights),
        )
        for port in ports
    ]
    problems = [f"{_format_port(port.port)}: {port.problem}" for port in ports if port.problem]
    return "\n".join([format_table(heads, rows, 2), *problems, *unanswered])


def format_revisions(reply: pb.StatusReply) -> str:
    """Of each group of controllers, where there are several."""
    if not reply.groups:
        return _format_own_revisions(reply.listed_revisions)
    parts = [
        f"group {group.group}\n{_format_own_revisions(group.status.listed_revisions)}"
        for group in reply.groups
        if not group.problem
    ]
    return "\n\n".join([*parts, *_list_unanswered(reply.groups)])


def _format_own_revisions(revisions: Sequence[pb.Revision]) -> str:
    if not revisions:
        return "No revision yet: no port is programmed."
    rows = [
        (str(revision.revision), _format_moment(revision.at_s), str(revision.ports), revision.cause)
        for revision in revisions
    ]
    return format_table(("revision", "at", "ports", "cause"), rows, 4)


def format_plan(reply: pb.PlanReply) -> str:
    """Applications first: what it would mean to them."""
    before = f"{_format_bound(reply.at_least_before)}{reply.slowdown_before:.3f} before"
    after = f"{_format_bound(reply.at_least_after)}{reply.slowdown_after:.3f} after"
    mean = f"mean slowdown of all applications {before}, {after}"
    parts = [_format_forecasts(reply.applications)] if reply.applications else []
    parts += [_format_port_changes(reply.ports)] if reply.ports else ["No port would change."]
    if reply.groups:
        counts = [
            f"group {group.group}: {format_count(group.ports, 'port')} would change"
            for group in reply.groups
            if not group.problem
        ]
        parts.append("\n".join([*counts, *_list_unanswered(reply.groups)]))
        mean += " of these groups" if _list_unanswered(reply.groups) else ""
    return "\n\n".join([*parts, mean])


def _format_forecasts(forecasts: Sequence[pb.Forecast]) -> str:
    columns = [
        ("share", "share_{}", _format_share),
        ("slowdown", "slowdown_{}", _format_slowdown),
        ("predicted", "completion_{}_s", _format_time),
    ]
    if any(forecast.HasField("simulated_after_bps") for forecast in forecasts):
        columns.append(("simulated", "simulated_{}_bps", _format_rate))
    heads = ["application"]
    for title, _, _ in columns:
        heads += [f"{title} before", "after"]
    rows = [
        [
            forecast.id,
            *(
                format_cell(forecast, field.format(when))
                for _, field, format_cell in columns
                for when in ("before", "after")
            ),
        ]
        for forecast in forecasts
    ]
    return format_table(heads, rows, 1)


def _format_port_changes(changes: Sequence[pb.PortChange]) -> str:
    rows = [
        (
            _format_port(change.port),
            format_list(change.weights_before) or "-",
            format_list(change.weights_after),
        )
        for change in changes
    ]
    return format_table(("port", "weights before", "weights after"), rows, 3)


def format_change(title: str, reply: pb.ApplyReply | pb.RollbackReply) -> str:
    head = f"{title}: revision {reply.revision}, {format_count(reply.ports, 'port')} changed"
    lines = [
        f"not yet: {_format_port(problem.port)}: {problem.problem}" for problem in reply.problems
    ]
    rest = len(lines) - _MAX_LISTED
    omitted = [f"and {format_count(rest, 'more port')}"] if rest > 0 else []
    resumed = ""
    if isinstance(reply, pb.ApplyReply) and reply.resumed:
        resumed = f"the rollback ends in {', '.join(reply.resumed)} too"
    return "\n".join([head, *lines[:_MAX_LISTED], *omitted, *([resumed] if resumed else [])])


def format_rollback(title: str, reply: pb.RollbackReply) -> str:
    """What each group has done; the rollback is decided for all of them."""
    if not reply.groups:
        return format_change(title, reply)
    lines = []
    for group in reply.groups:
        head = f"group {group.group}: rolled back to {group.to}"
        if not group.problem:
            lines.append(format_change(head, group.reply))
            continue
        lines.append(
            f"group {group.group}: to be rolled back to {group.to}, not done yet: {group.problem}; "
            "it follows when one of its controllers runs"
        )
    return "\n".join([f"{title}: decided for all groups", *lines])


# ---- Cells ------------------------------------------------------------------------------------


def _format_port(port: pb.PortId) -> str:
    return f"{port.node}:{port.port}"


def _format_moment(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def _format_share(message: Any, name: str) -> str:
    return f"{getattr(message, name):.1%}" if message.HasField(name) else "-"


def _format_prediction(message: Any, name: str, form: str) -> str:
    """A slowdown or a time, which may be a lower bound: now, before or after a change."""
    if not message.HasField(name):
        return "-"
    when = next((part for part in ("_before", "_after") if part in name), "")
    return f"{_format_bound(getattr(message, f'at_least{when}'))}{getattr(message, name):{form}}"


def _format_bound(is_bound: bool) -> str:
    return "at least " if is_bound else ""


def _format_slowdown(message: Any, name: str) -> str:
    return _format_prediction(message, name, ".3f")


def _format_time(message: Any, name: str) -> str:
    return f"{_format_prediction(message, name, '.4g')} s" if message.HasField(name) else "-"


def _format_rate(message: Any, name: str) -> str:
    return f"{getattr(message, name) / 1e9:.3g} Gb/s" if message.HasField(name) else "-"
