"""`weft control ACTION`: the request that is sent, what is printed, and the exit status."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("grpc")

from weft.cli import control_calls, main
from weft.control.service import weft_pb2 as pb
from weft.control.service.operator_client import Controller


class Service:
    """Answers every call with the reply of its name, and keeps the last request."""

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {
            "Status": pb.StatusReply(),
            "Explain": pb.ExplainReply(text="because"),
            "Plan": pb.PlanReply(),
            "Apply": pb.ApplyReply(),
            "Rollback": pb.RollbackReply(),
        }
        self.name, self.request, self.timeout_s = "", None, 0.0

    def call(self, _: Controller, name: str, request: Any, timeout_s: float) -> Any:
        self.name, self.request, self.timeout_s = name, request, timeout_s
        return self.replies[name]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(control_calls, "call", service.call)
    return service


def control(*words: str) -> int:
    return main(["control", *words, "--controller", "unix:/nowhere"])


def test_a_port_is_explained_by_node_and_number_and_anything_else_by_its_name(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert control("explain", "leaf0:3") == 0
    assert service.request == pb.ExplainRequest(port=pb.PortId(node="leaf0", port=3), groups=True)
    assert capsys.readouterr().out == "because\n"
    for name in ("app#1", "leaf0:x", "leaf0:", "leaf0"):
        assert control("explain", name) == 0
        assert service.request == pb.ExplainRequest(id=name, groups=True)
    for name in ("client/7", "client:7.0/1"):
        assert control("explain", name) == 0
        assert service.request == pb.ExplainRequest(connection=name, groups=True)
    assert control("explain", f"leaf0:{10**8}") == 0
    assert control("explain", f"leaf0:{10**9}") == 2


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (pb.StatusReply(), 0),
        (pb.StatusReply(problems=["leaf0 does not answer"]), 1),
        (pb.StatusReply(ports_failing=1), 1),
        (pb.StatusReply(groups=[pb.GroupStatus(group="a", status=pb.StatusReply())]), 0),
        (pb.StatusReply(groups=[pb.GroupStatus(group="a", problem="has not answered")]), 1),
        (pb.StatusReply(groups=[pb.GroupStatus(status=pb.StatusReply(ports_failing=1))]), 1),
    ],
)
def test_the_status_is_1_where_something_is_wrong(
    service: Service, reply: pb.StatusReply, status: int
) -> None:
    service.replies["Status"] = reply
    assert control("status") == status
    assert service.request == pb.StatusRequest(groups=True)


def test_a_list_asks_for_what_it_lists(service: Service) -> None:
    assert control("apps") == 0
    assert service.request == pb.StatusRequest(applications=True, groups=True)
    assert control("ports") == 0
    assert service.request == pb.StatusRequest(ports=True, groups=True)
    assert control("rollback") == 0
    assert service.request == pb.StatusRequest(revisions=50, groups=True)


def test_a_change_carries_registrations_removals_and_a_key_of_its_own(service: Service) -> None:
    words = ("--app", "sgd", "h1:h2", "h2:h1", "--remove", "old#1", "--wait", "5")
    assert control("apply", *words) == 0
    first = service.request
    assert first.proposal == pb.Proposal(
        deregister=["old#1"],
        register=[
            pb.NewApplication(
                application="sgd",
                connections=[
                    pb.Pair(source="h1", destination="h2"),
                    pb.Pair(source="h2", destination="h1"),
                ],
            )
        ],
    )
    assert (first.wait_s, service.timeout_s) == (5, 35)
    assert control("apply", *words) == 0
    assert service.request.key != first.key


def test_a_change_that_leaves_a_problem_is_exit_status_1(service: Service) -> None:
    late = [pb.PortProblem(port=pb.PortId(node="leaf0", port=1), problem="does not answer")]
    for name, kind, words in (
        ("Apply", pb.ApplyReply, ("apply", "--remove", "a#1")),
        ("Apply", pb.ApplyReply, ("recluster",)),
        ("Rollback", pb.RollbackReply, ("rollback", "7")),
    ):
        service.replies[name] = kind()
        assert control(*words) == 0
        service.replies[name] = kind(problems=late)
        assert control(*words) == 1
    assert service.request.revision == 7
    assert control("recluster") == 1
    assert service.request.proposal == pb.Proposal(recluster=True)


def test_a_rollback_of_groups_names_each_or_a_time(service: Service) -> None:
    service.replies["Rollback"] = pb.RollbackReply()
    assert control("rollback", "7@east", "3@west") == 0
    assert dict(service.request.groups) == {"east": 7, "west": 3}
    assert control("rollback", "--at", "1763345465.5") == 0
    assert service.request.at_s == 1763345465.5
    assert control("rollback", "--at", "2026-11-17T02:11:05+00:00") == 0
    assert service.request.at_s == 1794881465.0
    late = pb.GroupRollback(group="west", problem="has not carried it out yet")
    service.replies["Rollback"] = pb.RollbackReply(groups=[late])
    assert control("rollback", "7@east", "3@west") == 1


def test_what_a_group_leaves_out_is_exit_status_1(service: Service) -> None:
    service.replies["Plan"] = pb.PlanReply(groups=[pb.GroupPlan(group="a", problem="is gone")])
    service.replies["Explain"] = pb.ExplainReply(unanswered=[pb.GroupProblem(group="a")])
    assert control("plan") == 1
    assert control("explain", "app#1") == 1


def test_a_simulated_plan_is_awaited_longer(service: Service) -> None:
    assert control("plan", "--remove", "a#1") == 0
    quick_s, was_simulated = service.timeout_s, service.request.simulate
    assert control("plan", "--remove", "a#1", "--simulate") == 0
    assert (was_simulated, service.request.simulate) == (False, True)
    assert service.timeout_s > 10 * quick_s


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("apply", "--app", "a", "h1"), "--app h1: is not FROM:TO"),
        (("apply", "--app", "a", ":h1"), "--app :h1: is not FROM:TO"),
        (("apply", "--app", "a", "h1:"), "--app h1:: is not FROM:TO"),
        (("apply", "--app", "a\t", "h1:h2"), "is not a name; use printable"),
        (("apply", "--remove", "a", "--wait", "3601"), "--wait 3601: is not a time"),
        (("apply", "--remove", "a", "--wait", "-1"), "--wait -1: is not a time"),
        (("apply", "--remove", "a", "--wait", "soon"), "--wait soon: is not a time"),
        (("rollback", "x"), "revision 'x': is not a number"),
        (("rollback", "1" * 19), "is not a number"),
        (("rollback", "1", "2"), "1 2 does not name each group once"),
        (("rollback", "1@a", "2@a"), "1@a 2@a does not name each group once"),
        (("rollback", "x@a", "2@b"), "revision 'x': is not a number"),
        (("rollback", "--at", "noon"), "--at noon: is not a time"),
        (("rollback", "1", "--at", "5"), "--at 5: beside 1; give a time or revisions"),
    ],
)
def test_a_bad_option_is_one_line_and_nothing_is_sent(
    service: Service, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], problem: str
) -> None:
    assert control(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert service.request is None


def test_the_longest_wait_is_an_hour(service: Service) -> None:
    for wait in ("0", "3600"):
        assert control("apply", "--remove", "a", "--wait", wait) == 0
        assert service.request.wait_s == float(wait)


def test_json_has_every_field_by_its_name(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert control("status", "--json") == 0
    reply = json.loads(capsys.readouterr().out)
    assert {field.name for field in pb.StatusReply.DESCRIPTOR.fields} >= reply.keys()
    assert reply["ports_failing"] in (0, "0")
    assert service.name == "Status"
