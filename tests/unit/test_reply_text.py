"""The controller's replies as an operator reads them, by hand from the messages."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("google.protobuf", reason="protobuf: pip install 'weft[control]'")

from weft.control.service import weft_pb2 as pb
from weft.control.service.reply_text import (
    format_applications,
    format_change,
    format_plan,
    format_ports,
    format_revisions,
    format_rollback,
    format_status,
)

UPLINK, LAST = pb.PortId(node="leaf0", port=3), pb.PortId(node="h2", port=1)


def cells(table: str) -> list[list[str]]:
    """Heads and rows, without the rule between them; cells are two or more spaces apart."""
    lines = [line for line in table.splitlines() if not line.startswith("--")]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_a_status_is_four_lines_and_one_for_each_problem() -> None:
    reply = pb.StatusReply(
        revision=7,
        programmed=7,
        applications=1,
        connections=2,
        ports=6,
        ports_pending=0,
        ports_failing=1,
        drifts=1,
        models=3,
        levels=2,
        up_s=12.3456,
        problems=["leaf0 port 3: no answer", "the table is old"],
    )
    assert format_status(reply).splitlines() == [
        "revision 7: programmed on all ports",
        "1 application, 2 connections",
        "6 ports: 0 pending, 1 failing; 1 drift found",
        "3 models in 2 levels; up for 12.35 s",
        "problem: leaf0 port 3: no answer",
        "problem: the table is old",
    ]


def test_a_status_says_what_is_behind_held_and_without_a_path() -> None:
    reply = pb.StatusReply(revision=7, programmed=5, held=0, connections_without_path=3)
    lines = format_status(reply).splitlines()
    assert lines[0] == (
        "revision 7 (rolled back to 0; `weft control apply` resumes): "
        "not on all ports yet; all have revision 5"
    )
    assert lines[1] == "0 applications, 0 connections (3 without a path)"


def test_applications_have_a_lease_and_what_is_predicted_if_anything_is() -> None:
    predicted = pb.ApplicationState(
        id="calm#1",
        level=2,
        connections=3,
        ports=6,
        ttl_s=10,
        left_s=7.25,
        least_share=0.125,
        slowdown=1.23456,
        completion_s=123.456,
        size_bytes=40 * 2**30,
        size_source="stated",
    )
    rows = cells(
        format_applications(
            pb.StatusReply(
                listed_applications=[predicted, pb.ApplicationState(id="keen#2", level=1)]
            )
        )
    )
    assert rows == [
        [
            "id",
            "level",
            "connections",
            "ports",
            "lease",
            "size",
            "least share",
            "slowdown",
            "predicted",
        ],
        ["calm#1", "2", "3", "6", "7.2 of 10 s", "40 GiB stated", "12.5%", "1.235", "123.5 s"],
        ["keen#2", "1", "0", "0", "none", "unknown", "-", "-", "-"],
    ]
    assert format_applications(pb.StatusReply()) == "No application is registered."


def test_predictions_below_the_least_share_profiled_are_lower_bounds() -> None:
    squeezed = pb.ApplicationState(
        id="keen#1", least_share=0.01, slowdown=17.1, completion_s=171.0, at_least=True
    )
    assert cells(format_applications(pb.StatusReply(listed_applications=[squeezed])))[1][6:] == [
        "1.0%",
        "at least 17.100",
        "at least 171 s",
    ]
    change = pb.Forecast(id="keen#1", slowdown_before=2.0, slowdown_after=17.1, at_least_after=True)
    plan = pb.PlanReply(
        applications=[change], slowdown_before=2.0, slowdown_after=17.1, at_least_after=True
    )
    text = format_plan(plan)
    assert "2.000  at least 17.100" in text
    assert "before, at least 17.100 after" in text


def test_ports_have_their_weights_and_problems_follow() -> None:
    ports = [
        pb.PortState(port=UPLINK, state="programmed", since_s=2, applications=2, weights=[1, 254]),
        pb.PortState(port=LAST, state="failing", since_s=0.5, problem="no answer", weights=[255]),
    ]
    lines = format_ports(pb.StatusReply(listed_ports=ports)).splitlines()
    assert cells("\n".join(lines[:-1])) == [
        ["port", "state", "for", "applications", "weights"],
        ["leaf0:3", "programmed", "2 s", "2", "1 254"],
        ["h2:1", "failing", "0.5 s", "0", "255"],
    ]
    assert lines[-1] == "h2:1: no answer"
    assert format_ports(pb.StatusReply()) == "No port is programmed."


def test_revisions_have_their_moment_and_cause() -> None:
    at_s = time.mktime((2026, 3, 4, 5, 6, 7, 0, 0, -1))
    revision = pb.Revision(revision=3, at_s=at_s, ports=6, cause="apply a/1")
    assert cells(format_revisions(pb.StatusReply(listed_revisions=[revision]))) == [
        ["revision", "at", "ports", "cause"],
        ["3", "2026-03-04 05:06:07", "6", "apply a/1"],
    ]
    assert format_revisions(pb.StatusReply()) == "No revision yet: no port is programmed."


BOTH = pb.Forecast(
    id="calm#1",
    share_before=0.5,
    share_after=0.25,
    slowdown_before=1.1,
    slowdown_after=1.3,
    completion_before_s=110.0,
    completion_after_s=130.0,
)


def test_a_plan_shows_applications_then_ports_then_the_mean() -> None:
    change = pb.PortChange(port=UPLINK, weights_before=[1, 254], weights_after=[128, 127])
    new = pb.PortChange(port=LAST, weights_after=[1, 254])
    reply = pb.PlanReply(
        applications=[BOTH], ports=[change, new], slowdown_before=1.1, slowdown_after=1.2345
    )
    applications, ports, mean = format_plan(reply).split("\n\n")
    assert cells(applications) == [
        [
            *("application", "share before", "after", "slowdown before", "after"),
            *("predicted before", "after"),
        ],
        ["calm#1", "50.0%", "25.0%", "1.100", "1.300", "110 s", "130 s"],
    ]
    assert cells(ports) == [
        ["port", "weights before", "weights after"],
        ["leaf0:3", "1 254", "128 127"],
        ["h2:1", "-", "1 254"],
    ]
    assert mean == "mean slowdown of all applications 1.100 before, 1.234 after"


def test_a_plan_that_was_simulated_has_rates_and_one_without_changes_says_so() -> None:
    simulated = pb.Forecast(id="keen#2", simulated_after_bps=2.5e9)
    reply = pb.PlanReply(applications=[BOTH, simulated], slowdown_before=1, slowdown_after=1)
    applications, ports, _ = format_plan(reply).split("\n\n")
    heads, calm, keen = cells(applications)
    assert heads[-2:] == ["simulated before", "after"]
    assert calm[-2:] == ["-", "-"]
    assert keen == ["keen#2", *["-"] * 7, "2.5 Gb/s"]
    assert ports == "No port would change."
    assert format_plan(pb.PlanReply()).startswith("No port would change.\n\nmean slowdown")


@pytest.mark.parametrize(("count", "more"), [(20, []), (21, ["and 1 more port"])])
def test_a_change_lists_ports_that_are_not_programmed_yet(count: int, more: list[str]) -> None:
    problems = [
        pb.PortProblem(port=pb.PortId(node="leaf0", port=n), problem="no answer")
        for n in range(count)
    ]
    reply = pb.ApplyReply(revision=4, ports=1, problems=problems)
    assert format_change("applied", reply).splitlines() == [
        "applied: revision 4, 1 port changed",
        *[f"not yet: leaf0:{n}: no answer" for n in range(20)],
        *more,
    ]


# ---- Groups -----------------------------------------------------------------------------------


def test_a_status_of_groups_names_each_and_why_one_is_missing() -> None:
    own = pb.StatusReply(revision=2, programmed=2, applications=1)
    reply = pb.StatusReply(revision=2)
    reply.groups.add(group="east", status=own)
    reply.groups.add(group="west", problem="no controller owns it")
    lines = format_status(reply).splitlines()
    assert lines[:3] == [
        "group east",
        "  revision 2: programmed on all ports",
        "  1 application, 0 connections",
    ]
    assert lines[-2:] == ["group west", "  problem: no controller owns it"]
    for form in (format_applications, format_ports, format_revisions):
        assert form(reply).splitlines()[-1] == "group west is missing: no controller owns it"


def test_a_plan_of_groups_says_whose_ports_it_lacks() -> None:
    reply = pb.PlanReply(slowdown_before=1.0, slowdown_after=1.5)
    reply.groups.add(group="east", ports=3)
    reply.groups.add(group="west", problem="no controller owns it")
    assert format_plan(reply).splitlines()[2:] == [
        "group east: 3 ports would change",
        "group west is missing: no controller owns it",
        "",
        "mean slowdown of all applications 1.000 before, 1.500 after of these groups",
    ]


def test_a_rollback_of_groups_says_what_was_done_where_and_how_it_goes_on() -> None:
    reply = pb.RollbackReply()
    reply.groups.add(group="east", to=3, reply=pb.RollbackReply(revision=9, ports=2))
    reply.groups.add(group="west", to=4, problem="has not carried it out yet")
    assert format_rollback("rolled back to 3@east 4@west", reply).splitlines() == [
        "rolled back to 3@east 4@west: decided for all groups",
        "group east: rolled back to 3: revision 9, 2 ports changed",
        "group west: to be rolled back to 4, not done yet: has not carried it out yet; "
        "it follows when one of its controllers runs",
    ]
    resumed = pb.ApplyReply(revision=5, ports=2, resumed=["east", "west"])
    assert format_change("applied", resumed).splitlines() == [
        "applied: revision 5, 2 ports changed",
        "the rollback ends in east, west too",
    ]
