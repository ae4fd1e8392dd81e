"""The controller as a process: its calls over gRPC and JSON, its commands, its limits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from control_process import Client, ControlProcess, controlling, save_applications, slowly, weft  # noqa: E402
from needs import need_time  # noqa: E402

from weft.control.service import weft_pb2 as pb  # noqa: E402
from weft.control.service.methods import method_path  # noqa: E402
from weft.sensitivity.application_table import AppTable  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def asked_for() -> None:
    need_time("test-control")


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlProcess]:
    with controlling(tmp_path_factory.mktemp("control")) as made:
        yield made


@pytest.fixture
def client(control: ControlProcess) -> Iterator[Client]:
    """A client; what it leaves registered is given back."""
    with Client(control.address) as made:
        made.settled()
        yield made
        left = [own.id for own in made.status(applications=True).listed_applications]
        change = pb.ApplyRequest(key=made.key(), proposal=pb.Proposal(deregister=left), wait_s=10)
        assert not made.call("Apply", change).problems


def code_of(call: Any) -> str:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return str(raised.value.code().name)


# ---- Calls ------------------------------------------------------------------------------------


def test_the_paper_s_four_calls_program_ports_and_give_them_back(
    control: ControlProcess, client: Client
) -> None:
    reply = client.register("calm")
    assert (reply.level, reply.ttl_s) == (1, 60.0)
    connection = client.connect(reply.id, "h0", "h2")
    found = client.settled()
    assert (found.applications, found.connections, found.ports) == (1, 1, 4)
    held = control.held()
    listed = client.status(ports=True).listed_ports
    busy = [port for port in listed if port.applications]
    assert len(busy) == 4
    for port in busy:
        name = next(n for n in held if (n.node, n.port) == (port.port.node, port.port.port))
        assert list(held[name].weights) == list(port.weights)
        assert held[name].weights[1] > 200
    client.call("Disconnect", pb.DisconnectRequest(connection=connection))
    client.call("Deregister", pb.DeregisterRequest(key=client.key(), id=reply.id))
    assert client.settled().applications == 0


def test_an_unknown_application_is_refused_with_the_remedy(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        client.register("stranger")
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
    assert "profile it" in raised.value.details()


def test_a_request_with_the_same_key_is_carried_out_once(client: Client) -> None:
    request = pb.RegisterRequest(key=client.key(), application="calm", ttl_s=60)
    first, second = (client.call("Register", request) for _ in range(2))
    assert first == second
    assert client.status().applications == 1


def test_a_lease_ends_on_time_and_cannot_be_renewed_afterwards(client: Client) -> None:
    reply = client.register("keen", ttl_s=1.0)
    client.connect(reply.id, "h0", "h2")
    client.call("Renew", pb.RenewRequest(id=reply.id))
    began = time.monotonic()
    while client.status().applications:
        time.sleep(0.02)
        assert time.monotonic() - began < 10
    assert time.monotonic() - began >= 0.9
    assert code_of(lambda: client.call("Renew", pb.RenewRequest(id=reply.id))) == (
        "FAILED_PRECONDITION"
    )
    assert client.settled().connections == 0


def test_a_stream_acknowledges_every_event_in_order(client: Client) -> None:
    id_ = client.register("calm").id
    good = [
        pb.Event(
            connect=pb.ConnectRequest(
                key=client.key(), id=id_, source="h0", destination=f"h{n % 3 + 1}"
            )
        )
        for n in range(50)
    ]
    bad = pb.Event(connect=pb.ConnectRequest(key=client.key(), id=id_, source="h0", destination=""))
    close = pb.Event(disconnect=pb.DisconnectRequest(connection=f"{client.name}/{2}"))
    alive = pb.Event(renew=pb.RenewRequest(id=id_))
    batches = [[*good, bad, pb.Event()], [close, close, alive], [], [good[0]]]
    answers = list(client.stream(pb.EventBatch(events=batch) for batch in batches))
    assert [len(answer.acks) for answer in answers] == [52, 3, 0, 1]
    codes = [ack.code for ack in answers[0].acks]
    assert codes == [0] * 50 + [grpc.StatusCode.INVALID_ARGUMENT.value[0]] * 2
    assert [ack.code for ack in answers[1].acks] == [0, 0, 0]
    assert answers[3].acks[0].code == grpc.StatusCode.FAILED_PRECONDITION.value[0]  # closed
    assert client.status().connections == 49


def test_a_batch_that_is_too_large_ends_the_stream_and_changes_nothing(client: Client) -> None:
    id_ = client.register("calm").id
    events = [
        pb.Event(connect=pb.ConnectRequest(key=client.key(), id=id_, source="h0", destination="h1"))
        for _ in range(1001)
    ]
    assert code_of(lambda: list(client.stream(iter([pb.EventBatch(events=events)])))) == (
        "INVALID_ARGUMENT"
    )
    assert client.status().connections == 0


def test_a_message_beyond_the_limit_is_refused(client: Client) -> None:
    request = pb.RegisterRequest(key=client.key(), application="x" * (2 << 20))
    assert code_of(lambda: client.call("Register", request)) == "RESOURCE_EXHAUSTED"


def test_a_plan_agrees_with_what_apply_does_and_rollback_undoes_it(client: Client) -> None:
    first = client.register("calm").id
    client.connect(first, "h0", "h2")
    before = client.settled().revision
    proposal = pb.Proposal()
    proposal.register.add(application="keen", connections=[pb.Pair(source="h1", destination="h2")])
    planned = client.call("Plan", pb.PlanRequest(proposal=proposal))
    assert {own.application for own in planned.applications} == {"calm", "keen"}
    (keen,) = [own for own in planned.applications if own.application == "keen"]
    assert not keen.HasField("completion_before_s")
    assert keen.completion_after_s > 10
    (calm,) = [own for own in planned.applications if own.application == "calm"]
    assert calm.completion_after_s > calm.completion_before_s
    done = client.call("Apply", pb.ApplyRequest(key=client.key(), proposal=proposal, wait_s=10))
    assert (list(done.problems), done.revision) == ([], before + 1)
    ports = {
        (p.port.node, p.port.port): list(p.weights) for p in client.status(ports=True).listed_ports
    }
    for change in planned.ports:
        assert ports[change.port.node, change.port.port] == list(change.weights_after)
    back = client.call("Rollback", pb.RollbackRequest(key=client.key(), revision=before, wait_s=10))
    assert back.revision == before + 2
    assert client.status().held == before
    for port in client.status(ports=True).listed_ports:
        changed = [c for c in planned.ports if c.port == port.port and c.weights_before]
        assert all(list(port.weights) == list(c.weights_before) for c in changed)
    client.call("Apply", pb.ApplyRequest(key=client.key(), wait_s=10))
    assert not client.status().HasField("held")


def test_a_plan_can_be_tried_on_the_simulated_fabric(client: Client) -> None:
    proposal = pb.Proposal()
    for name, source in (("calm", "h0"), ("keen", "h1")):
        proposal.register.add(
            application=name, connections=[pb.Pair(source=source, destination="h2")]
        )
    planned = client.call("Plan", pb.PlanRequest(proposal=proposal, simulate=True), 60.0)
    rates = {own.application: own.simulated_after_bps for own in planned.applications}
    assert rates["keen"] / rates["calm"] == pytest.approx(3.0, rel=0.25)


# ---- Commands ---------------------------------------------------------------------------------


def test_commands_show_and_explain(control: ControlProcess, client: Client) -> None:
    id_ = client.register("calm").id
    client.connect(id_, "h0", "h2")
    client.settled()
    status, shown = weft(control, "status")
    assert status == 0, shown
    assert "1 application, 1 connection" in shown
    assert id_ in weft(control, "apps")[1]
    assert "programmed" in weft(control, "ports")[1]
    status, shown = weft(control, "explain", "h0:1")
    assert status == 0, shown
    assert "1 application, 255 units" in shown
    assert "times its time with the whole link" in weft(control, "explain", "calm")[1]
    found = json.loads(weft(control, "explain", id_, "--json")[1])
    assert found["ports"][0]["applications"][0]["id"] == id_
    status, shown = weft(control, "plan", "--app", "keen", "h1:h2")
    assert status == 0, shown
    assert "mean slowdown" in shown
    status, shown = weft(control, "apply", "--app", "keen", "h1:h2", "--remove", id_)
    assert status == 0, shown
    assert "applied keen#" in shown
    assert "rollback" in weft(control, "rollback", "--help")[1]
    assert "apply" in weft(control, "rollback")[1]


def test_mistakes_of_commands_are_one_line(control: ControlProcess) -> None:
    for words, problem in (
        (("explain", "nowhere:9"), "nowhere port 9: is not a port that is managed"),
        (("explain", "nobody"), "application nobody: is not registered"),
        (("plan", "--app", "keen", "h1-h2"), "is not FROM:TO"),
        (("apply", "--remove", "keen#77"), "is not registered"),
        (("rollback", "12345"), "is not stored"),
        (("rollback", "now"), "is not a number"),
        (("explain", "h0:99999999999"), "is not a port of a switch"),
        (("apply", "--wait", "long"), "is not a time"),
        (("status", "--controller", "nowhere"), "is no address"),
    ):
        status, shown = weft(control, *words)
        assert status == 2, shown
        assert shown.count("\n") == 1
        assert problem in shown
    done = subprocess.run(
        [sys.executable, "-m", "weft.cli", "control", "status", "--controller", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "does not answer" in done.stderr) == (2, True)


# ---- Limits -----------------------------------------------------------------------------------


def test_what_was_applied_is_answered_however_long_it_is_asked_to_wait(tmp_path: Path) -> None:
    """A port that cannot be written keeps `apply` waiting up to the end of the longest call."""
    more = "[limits]\nlongest_call_s = 6.0"
    made = ControlProcess(tmp_path, more=more)
    made.file.write_text(f"{made.file.read_text()}failing = 1.0\n")
    made.start()
    try:
        with Client(made.address) as client:
            wait_until_discovered(client)
            proposal = pb.Proposal()
            proposal.register.add(
                application="calm", connections=[pb.Pair(source="h0", destination="h2")]
            )
            request = pb.ApplyRequest(key=client.key(), proposal=proposal, wait_s=60)
            began = time.monotonic()
            reply = client.call("Apply", request, 90.0)
            assert 1.5 < time.monotonic() - began < 6.0
            assert len(reply.problems) == reply.ports == 4
    finally:
        made.kill()


def wait_until_discovered(client: Client) -> None:
    slowly(lambda: not client.status().problems, "the fabric is known", 20.0)


def test_a_question_before_the_fabric_is_known_is_refused_as_such(tmp_path: Path) -> None:
    made = ControlProcess(tmp_path)
    text = made.file.read_text()
    a_testbed = 'driver = "linux"\ntestbed = "not-there"\n'
    made.file.write_text(text[: text.index("driver =")] + a_testbed)
    made.start()
    try:
        status, shown = weft(made, "explain", "h0:1")
        assert (status, "no fabric is known yet" in shown) == (2, True), shown
        status, shown = weft(made, "status")
        assert (status, "cannot be reached" in shown) == (1, True), shown
    finally:
        made.kill()


def test_one_simulation_at_a_time(client: Client) -> None:
    proposal = pb.Proposal()
    for name, source in (("calm", "h0"), ("keen", "h1")):
        pairs = [pb.Pair(source=source, destination=to) for to in ("h2", "h3")] * 20
        proposal.register.add(application=name, connections=pairs)
    request = pb.PlanRequest(proposal=proposal, simulate=True)
    method = client.channel.unary_unary(
        method_path("Plan"), request_serializer=pb.PlanRequest.SerializeToString
    )
    codes = [future.code().name for future in [method.future(request) for _ in range(3)]]
    assert sorted(codes) == ["OK", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]


def test_a_call_that_takes_too_long_ends_at_its_deadline(client: Client) -> None:
    request = pb.RenewRequest(id="calm#999999")
    assert code_of(lambda: client.call("Renew", request, timeout_s=1e-6)) == "DEADLINE_EXCEEDED"


# ---- The table --------------------------------------------------------------------------------


def test_a_model_that_is_added_to_the_table_is_known_soon(
    control: ControlProcess, client: Client
) -> None:
    save_applications(control.folder / "apps", {"newcomer": 0.7})
    deadline = time.monotonic() + 20
    while client.status().models < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert client.register("newcomer").id.startswith("newcomer#")
    AppTable(control.folder / "apps").remove("newcomer")
