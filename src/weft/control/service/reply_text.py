"""The controller's replies as tables, for people.

Entry points: `status_text`, `applications_text`, `ports_text`, `revisions_text`, `plan_text`,
`change_text`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from weft.control.operators.words import format_count, format_list, format_seconds
from weft.control.service import weft_pb2 as pb
from weft.records.record_text import format_table

_MOST_LATE = 20  # ports that are named


def status_text(reply: pb.StatusReply) -> str:
    lines = [
        f"revision {reply.revision}{_held(reply)}; every port has {reply.programmed}",
        f"{format_count(reply.applications, 'application')}, "
        f"{format_count(reply.connections, 'connection')}{_pathless(reply)}",
        f"{format_count(reply.ports, 'port')}: {reply.ports_pending} to be written, "
        f"{reply.ports_failing} failing; {format_count(reply.drifts, 'drift')} repaired or found",
        f"{format_count(reply.models, 'model')} in {format_count(reply.levels, 'level')}; "
        f"up for {format_seconds(reply.up_s)}",
    ]
    return "\n".join([*lines, *(f"problem: {problem}" for problem in reply.problems)])


def _held(reply: pb.StatusReply) -> str:
    if not reply.HasField("held"):
        return ""
    return f" (rolled back to {reply.held}; `weft control apply` resumes)"


def _pathless(reply: pb.StatusReply) -> str:
    count = reply.connections_without_path
    return f" ({count} without a path)" if count else ""


def applications_text(found: Sequence[pb.ApplicationState]) -> str:
    if not found:
        return "No application is registered."
    heads = ("id", "level", "connections", "ports", "lease", "least share", "slowdown", "predicted")
    rows = [
        (
            own.id,
            str(own.level),
            str(own.connections),
            str(own.ports),
            _lease(own),
            _share(own, "least_share"),
            _number(own, "slowdown"),
            _time(own, "completion_s"),
        )
        for own in found
    ]
    return format_table(heads, rows, 1)


def _lease(own: pb.ApplicationState) -> str:
    return f"{own.left_s:.1f} of {own.ttl_s:g} s" if own.ttl_s else "none"


def ports_text(found: Sequence[pb.PortState]) -> str:
    if not found:
        return "No port has been told anything."
    heads = ("port", "state", "for", "applications", "weights")
    rows = [
        (
            _port(own.port),
            own.state,
            format_seconds(own.since_s),
            str(own.applications),
            format_list(own.weights),
        )
        for own in found
    ]
    problems = [f"{_port(own.port)}: {own.problem}" for own in found if own.problem]
    return "\n".join([format_table(heads, rows, 2), *problems])


def revisions_text(found: Sequence[pb.Revision]) -> str:
    if not found:
        return "No revision yet: no port has been told anything."
    rows = [(str(own.revision), _moment(own.at_s), str(own.ports), own.cause) for own in found]
    return format_table(("revision", "at", "ports", "cause"), rows, 4)


def plan_text(reply: pb.PlanReply) -> str:
    """Applications first: what it would mean to them."""
    mean = (
        f"mean slowdown of all applications {reply.slowdown_before:.3f} before, "
        f"{reply.slowdown_after:.3f} after"
    )
    parts = [_applications(reply.applications)] if reply.applications else []
    parts += [_ports(reply.ports)] if reply.ports else ["No port would change."]
    return "\n\n".join([*parts, mean])


def _applications(found: Sequence[pb.Forecast]) -> str:
    simulated = any(own.HasField("simulated_after_bps") for own in found)
    heads = [
        "application",
        "share before",
        "after",
        "slowdown before",
        "after",
        "predicted before",
        "after",
    ]
    rows = [
        [
            own.id,
            _share(own, "share_before"),
            _share(own, "share_after"),
            _number(own, "slowdown_before"),
            _number(own, "slowdown_after"),
            _time(own, "completion_before_s"),
            _time(own, "completion_after_s"),
        ]
        for own in found
    ]
    if simulated:
        heads += ["simulated before", "after"]
        rows = [
            [*row, _rate(own, "simulated_before_bps"), _rate(own, "simulated_after_bps")]
            for row, own in zip(rows, found, strict=True)
        ]
    return format_table(heads, rows, 1)


def _ports(found: Sequence[pb.PortChange]) -> str:
    rows = [
        (_port(own.port), format_list(own.weights_before) or "-", format_list(own.weights_after))
        for own in found
    ]
    return format_table(("port", "weights before", "weights after"), rows, 3)


def change_text(what: str, reply: pb.ApplyReply | pb.RollbackReply) -> str:
    head = f"{what}: revision {reply.revision}, {format_count(reply.ports, 'port')} changed"
    late = [f"not yet: {_port(one.port)}: {one.problem}" for one in reply.problems]
    more = [f"and {len(late) - _MOST_LATE} more ports"] if len(late) > _MOST_LATE else []
    return "\n".join([head, *late[:_MOST_LATE], *more])


# ---- Cells ------------------------------------------------------------------------------------


def _port(port: pb.PortId) -> str:
    return f"{port.node}:{port.port}"


def _moment(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def _share(message: Any, name: str) -> str:
    return f"{getattr(message, name):.1%}" if message.HasField(name) else "-"


def _number(message: Any, name: str) -> str:
    return f"{getattr(message, name):.3f}" if message.HasField(name) else "-"


def _time(message: Any, name: str) -> str:
    return f"{getattr(message, name):.4g} s" if message.HasField(name) else "-"


def _rate(message: Any, name: str) -> str:
    return f"{getattr(message, name) / 1e9:.3g} Gb/s" if message.HasField(name) else "-"
