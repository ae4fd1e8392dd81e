"""Replies of several groups of controllers as one, and the path of a connection through them.

Groups have disjoint ports, and each forecasts from its own: an application is as fast as the least
of its shares lets it be, whichever group has that port. Pure.
Entry points: `merge_statuses`, `merge_plans`, `merge_explanations`, `format_connection`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from weft.control.operators.explain import ConnectionAccount
from weft.control.service import weft_pb2 as pb
from weft.records.record_text import format_table
from weft.switches import PortName

_NOT_ANSWERED = "has not answered, its ports are missing"


# ---- Status -----------------------------------------------------------------------------------


def merge_statuses(
    local: pb.StatusReply, statuses: Mapping[str, pb.StatusReply | str]
) -> pb.StatusReply:
    """The asked controller's reply with those of all groups, or why there is none.

    Applications and ports are listed once, for all groups; revisions by group.
    """
    merged = pb.StatusReply()
    merged.CopyFrom(local)
    replies = [status for status in statuses.values() if not isinstance(status, str)]
    applications, ports = _merge_applications(replies), _merge_ports(replies)
    for group, status in statuses.items():
        if isinstance(status, str):
            merged.groups.add(group=group, problem=status)
            continue
        entry = merged.groups.add(group=group, status=status)
        del entry.status.listed_applications[:], entry.status.listed_ports[:]
    del merged.listed_applications[:], merged.listed_ports[:], merged.listed_revisions[:]
    merged.listed_applications.extend(applications)
    merged.listed_ports.extend(ports)
    return merged


def _merge_applications(replies: Iterable[pb.StatusReply]) -> list[pb.ApplicationState]:
    """Each as its home has it, with the least of its shares, and all of its ports."""
    merged: dict[str, pb.ApplicationState] = {}
    for reply in replies:
        for application in reply.listed_applications:
            other = merged.setdefault(application.id, application)
            if other is application:
                continue
            least, rest = sorted((application, other), key=_least_share)
            ports, left_s = least.ports + rest.ports, min(least.left_s, rest.left_s)
            merged[application.id] = entry = pb.ApplicationState()
            entry.CopyFrom(least)
            entry.ports, entry.left_s = ports, left_s
    return list(merged.values())


def _least_share(application: pb.ApplicationState) -> float:
    return application.least_share if application.HasField("least_share") else 2.0


def _merge_ports(replies: Iterable[pb.StatusReply]) -> list[pb.PortState]:
    ports = [port for reply in replies for port in reply.listed_ports]
    return sorted(ports, key=lambda port: (port.port.node, port.port.port))


# ---- Plans ------------------------------------------------------------------------------------


def merge_plans(
    plans: Mapping[str, pb.PlanReply | str], new_or_ended: Collection[str]
) -> pb.PlanReply:
    """Plans of groups, each with a forecast of every registration, or why there is none.

    `new_or_ended`: registrations that the proposal makes or ends; they are always listed.
    """
    merged = pb.PlanReply()
    forecasts: dict[str, list[pb.Forecast]] = {}
    for group, plan in plans.items():
        if isinstance(plan, str):
            merged.groups.add(group=group, problem=plan)
            continue
        merged.groups.add(group=group, ports=len(plan.ports))
        merged.ports.extend(plan.ports)
        for forecast in plan.applications:
            forecasts.setdefault(forecast.id, []).append(forecast)
    everything = [_merge_forecasts(forecasts[id_]) for id_ in sorted(forecasts)]
    for when in ("before", "after"):
        setattr(merged, f"slowdown_{when}", _mean_slowdown(everything, when))
        bounds = [getattr(forecast, f"at_least_{when}") for forecast in everything]
        setattr(merged, f"at_least_{when}", any(bounds))
    merged.applications.extend(
        forecast
        for forecast in everything
        if forecast.id in new_or_ended or _shares(forecast)[0] != _shares(forecast)[1]
    )
    return merged


def _merge_forecasts(forecasts: Sequence[pb.Forecast]) -> pb.Forecast:
    """One registration: before and after where it has least then."""
    first = forecasts[0]
    merged = pb.Forecast(id=first.id, application=first.application, unit=first.unit)
    for when in ("before", "after"):
        share = f"share_{when}"
        present = [forecast for forecast in forecasts if forecast.HasField(share)]
        if not present:
            continue
        least = min(present, key=lambda forecast: float(getattr(forecast, share)))
        setattr(merged, f"at_least_{when}", getattr(least, f"at_least_{when}"))
        for field in (share, f"slowdown_{when}", f"completion_{when}_s"):
            if least.HasField(field):
                setattr(merged, field, getattr(least, field))
    return merged


def _shares(forecast: pb.Forecast) -> tuple[float | None, ...]:
    return tuple(
        getattr(forecast, name) if forecast.HasField(name) else None
        for name in ("share_before", "share_after")
    )


def _mean_slowdown(forecasts: Iterable[pb.Forecast], when: str) -> float:
    """The mean of all jobs that have a connection; 1 if none has."""
    jobs: dict[str, float] = {}
    for forecast in forecasts:
        if forecast.HasField(f"share_{when}"):
            jobs[forecast.unit] = getattr(forecast, f"slowdown_{when}")
    return sum(jobs.values()) / len(jobs) if jobs else 1.0


# ---- Explanations -----------------------------------------------------------------------------


def mark_group(reply: pb.ExplainReply, group: str) -> pb.ExplainReply:
    for port in reply.ports:
        port.group = group
    return reply


def merge_explanations(replies: Mapping[str, pb.ExplainReply | str]) -> pb.ExplainReply:
    """An application in each group, with the least of its shares first."""
    merged = pb.ExplainReply()
    parts = []
    for group, reply in replies.items():
        if isinstance(reply, str):
            merged.unanswered.add(group=group, problem=reply)
            parts.append(f"Group {group} {_NOT_ANSWERED}: {reply}")
            continue
        merged.ports.extend(mark_group(reply, group).ports)
        parts.append(f"Group {group}\n\n{reply.text}")
    merged.text = "\n\n".join([*_describe_least(merged.ports), *parts])
    return merged


def _describe_least(ports: Iterable[pb.PortAccount]) -> list[str]:
    shares = [(share.share, port) for port in ports for share in port.applications]
    if not shares:
        return []
    share, port = min(shares, key=lambda pair: pair[0])
    return [f"The smallest share of all groups is at {_name(port)} of {port.group}: {share:.1%}."]


def _name(port: pb.PortAccount) -> PortName:
    return PortName(port.port.node, port.port.port)


def format_connection(
    account: ConnectionAccount, ports: Iterable[pb.PortAccount], unanswered: Mapping[str, str]
) -> str:
    """The path of a connection, hop by hop; ports without an account are not managed."""
    connection, by_name = account.connection, {_name(port): port for port in ports}
    lines = [
        f"connection {connection.id} of {connection.application}: {connection.source} to "
        f"{connection.destination}, level {account.level}"
    ]
    rows = [
        (str(number), str(name), *_format_hop(by_name.get(name), account.unit))
        for number, hop in enumerate(account.hops, start=1)
        for name in hop
    ]
    heads = ("hop", "port", "group", "queue", "units", "share", "slowdown")
    keep = [n for n, head in enumerate(heads) if head != "group" or any(row[n] for row in rows)]
    if rows:
        table = [tuple(row[n] for n in keep) for row in rows]
        lines.append(format_table(tuple(heads[n] for n in keep), table, len(keep) - 4))
    if account.problem:
        lines.append(f"It has no path: {account.problem}")
    shares = [
        (port.applications[0].share, name) for name, port in by_name.items() if port.applications
    ]
    if shares:
        share, name = min(shares)
        group = by_name[name].group
        where = f"{name}{f' of {group}' if group else ''}"
        lines.append(f"Its application has its smallest share at {where}: {share:.1%} of the link.")
    lines += [f"Group {group} {_NOT_ANSWERED}: {why}" for group, why in unanswered.items()]
    return "\n\n".join(lines)


def _format_hop(port: pb.PortAccount | None, unit: str) -> tuple[str, ...]:
    if port is None:
        return ("", "-", "-", "-", "-")
    shares: list[Any] = [share for share in port.applications if share.id == unit]
    if not shares:
        return (port.group, "-", "-", "-", "-")
    (share,) = shares
    bound = "at least " if share.at_least else ""
    cells = (str(share.queue), str(share.units), f"{share.share:.1%}")
    return (port.group, *cells, f"{bound}{share.slowdown:.3f}")
