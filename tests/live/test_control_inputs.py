"""Garbage to the controller: clear refusals, no change of state, a service that goes on.

Inputs come from one seed. WEFT_FUZZ_INPUTS go through the readers of messages, frames and files and
through the state machine in this process, a fiftieth of it to a live controller. Of
WEFT_SOCKET_INPUTS a fifth goes over gRPC to a live controller, a tenth to a live agent, the others
over the controller's socket. `make test-control` runs 10^5 and 10^6.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import struct
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

grpc = pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from control_fuzz import bend_bytes, bend_value, greeting  # noqa: E402
from control_process import Client, ControlProcess, controlling  # noqa: E402
from control_rig import Rig  # noqa: E402
from google.protobuf import json_format  # noqa: E402
from google.protobuf.message import DecodeError  # noqa: E402
from needs import need_namespaces, need_time  # noqa: E402
from serve_process import wait_until  # noqa: E402

from weft.control.operators.forecast import evaluate_proposal  # noqa: E402
from weft.control.runtime.config import read_config  # noqa: E402
from weft.control.service import methods  # noqa: E402
from weft.control.service import read_requests as read  # noqa: E402
from weft.control.service import weft_pb2 as pb  # noqa: E402
from weft.control.service.local_socket import read_frame  # noqa: E402
from weft.control.service.refusals import Refused  # noqa: E402
from weft.control.service.replies import explain_application, explain_port  # noqa: E402
from weft.control.state.events import Asker, Connect, FabricChanged, Refusal, Register  # noqa: E402
from weft.control.state.request_key import Key  # noqa: E402
from weft.errors import InputError  # noqa: E402
from weft.fabric import read_toml  # noqa: E402
from weft.host.net import namespaces  # noqa: E402
from weft.switches.linux.agent_connection import (  # noqa: E402
    ANSWERS,
    Agent,
    Describe,
    Description,
    await_answers,
    build_socket_path,
    start_agent,
)
from weft.wire import Failure, FrameReader  # noqa: E402
from weft.wire.connection import greet  # noqa: E402
from weft.wire.protocol import FRAME_BYTES  # noqa: E402

INPUTS = int(os.environ.get("WEFT_FUZZ_INPUTS", "20000"))
SOCKET_INPUTS = int(os.environ.get("WEFT_SOCKET_INPUTS", "1000"))
GRPC_INPUTS, AGENT_INPUTS = SOCKET_INPUTS // 5, SOCKET_INPUTS // 10
FRAMES = SOCKET_INPUTS - GRPC_INPUTS - AGENT_INPUTS
CALLS = ("Register", "Deregister", "Connect", "Disconnect", "Renew", "Plan", "Apply", "Rollback")
SEED = 20261116
POLICY = """[policy]
levels = 4
managed_share = 0.8
[policy.lane]
share = 0.1
budget = '400 B'
[hosts]
h0 = ['a', 'b']
"""
REFUSED = (
    grpc.StatusCode.OK,  # of what only asks, and of closing what is not open
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)


def key(rng: random.Random) -> pb.Key:
    return pb.Key(client=rng.choice(["c", "r", "fuzz"]), sequence=rng.choice([1, 2, 2**63, 0]))


def requests(rng: random.Random) -> dict[str, Any]:
    """Requests that make sense, or nearly."""
    id_ = rng.choice(["calm#1", "keen#2", "calm#77", "calm", "#1"])
    ends = {"source": rng.choice(["h0", "h9", ""]), "destination": rng.choice(["h2", "\u0000"])}
    proposal = pb.Proposal(deregister=[id_], recluster=rng.random() < 0.5)
    proposal.register.add(application=rng.choice(["calm", "?"]), connections=[pb.Pair(**ends)])
    port = pb.PortId(node=rng.choice(["h0", "leaf0"]), port=rng.choice([1, 99, 2**32 - 1]))
    wait_s = rng.choice([0.0, float("nan"), -1.0, 1e300])
    return {
        "Register": pb.RegisterRequest(
            key=key(rng),
            application=rng.choice(["calm", "no", ""]),
            ttl_s=rng.choice([0.0, 5.0, -1.0, float("inf")]),
        ),
        "Deregister": pb.DeregisterRequest(key=key(rng), id=id_),
        "Connect": pb.ConnectRequest(key=key(rng), id=id_, **ends),
        "Disconnect": pb.DisconnectRequest(connection=rng.choice(["c/1", "c", "/", "x" * 500])),
        "Renew": pb.RenewRequest(id=id_),
        "Status": pb.StatusRequest(ports=True, revisions=2**32 - 1),
        "Explain": rng.choice([pb.ExplainRequest(port=port), pb.ExplainRequest(id=id_)]),
        "Plan": pb.PlanRequest(proposal=proposal),
        "Apply": pb.ApplyRequest(key=key(rng), proposal=proposal, wait_s=wait_s),
        "Rollback": pb.RollbackRequest(key=key(rng), revision=rng.choice([0, 1, 2**64 - 1])),
    }


def read_change(message: Any) -> Any:
    if hasattr(message, "wait_s"):
        read.read_wait_s(message)
    return read.read_change(message, 0.0, Asker(name="root", is_operator=True), 10.0)


CHANGES = {"Register", "Deregister", "Connect", "Disconnect", "Renew", "Apply", "Rollback"}


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    made = Rig(tmp_path / "control.db")
    made.reconciler.turn()
    for number, name in enumerate(("calm", "keen"), start=1):
        event = Register(key=Key("r", number), name=name, ttl_s=1e3, now_s=0.0)
        made.ask(event)
        made.ask(
            Connect(
                key=Key("c", number),
                application=f"{name}#{number}",
                source="h0",
                destination="h2",
                now_s=0.0,
            )
        )
    yield made
    made.close()


def check_told(error: Exception) -> None:
    assert str(error).isprintable(), repr(error)
    assert len(str(error)) < 1000


def test_bent_requests_are_refused_and_what_is_refused_changes_nothing(rig: Rig) -> None:
    rng = random.Random(SEED)
    seen = {"undecodable": 0, "refused": 0, "answered": 0, "turned down": 0}
    for _ in range(INPUTS):
        name, request = rng.choice(list(requests(rng).items()))
        data = request.SerializeToString()
        bent = bend_bytes(rng, data) if rng.random() < 0.8 else data
        message = type(request)()
        try:
            message.ParseFromString(bent)
        except DecodeError:
            seen["undecodable"] += 1
            continue
        seen[outcome(rig, name, message)] += 1
    assert all(seen.values()), seen


def outcome(rig: Rig, name: str, message: Any) -> str:
    before = rig.engine.state
    try:
        if name not in CHANGES:
            ask(rig, name, message)
            assert rig.engine.state is before
            return "answered"
        event = read_change(message)
    except (Refused, InputError) as error:
        check_told(error)
        assert rig.engine.state is before
        return "refused"
    answer = rig.ask(event)
    if isinstance(answer, Refusal):
        assert rig.engine.state is before
        check_told(Refused(answer.code, str(answer)))
        return "turned down"
    return "answered"


def ask(rig: Rig, name: str, message: Any) -> None:
    """What only asks."""
    state = rig.engine.state
    if name == "Plan":
        evaluate_proposal(state, read.read_proposal(message.proposal))
    elif name == "Explain" and message.WhichOneof("what") == "port":
        explain_port(state, read.read_port(message.port))
    elif name == "Explain":
        explain_application(state, read.read_subject(message.id))


def test_bent_frames_are_refused() -> None:
    rng = random.Random(SEED + 1)
    refused = 0
    for _ in range(INPUTS // 4):
        name, request = rng.choice(list(requests(rng).items()))
        fields = json_format.MessageToDict(request, preserving_proto_field_name=True)
        data = bend_value(rng, {"call": name, **fields})
        frame = bend_bytes(rng, json.dumps(data).encode())
        if rng.random() < 0.1:  # numbers that are no floats, and some that are no integers either
            frame = re.sub(rb"\d+", b"9" * rng.choice([20, 400, 5000]), frame, count=1)
        try:
            read_frame(frame)
        except Refused as error:
            check_told(error)
            refused += 1
    assert refused > INPUTS // 40


def test_errors_in_damaged_files_name_the_file_and_the_key(tmp_path: Path) -> None:
    rng = random.Random(SEED + 2)
    made = ControlProcess(tmp_path, more=POLICY)
    policy, topology = made.file.read_bytes(), (tmp_path / "fabric.toml").read_bytes()
    read_config(made.file)
    errors = []
    for _ in range(INPUTS // 20):
        made.file.write_bytes(bend_bytes(rng, policy))
        with suppress(InputError):
            read_config(made.file)
            continue
        errors.append(config_error(made.file))
        with suppress(InputError):
            read_toml(bend_bytes(rng, topology).decode(errors="replace"))
    assert len(errors) > INPUTS // 100
    assert all(error.where.startswith(str(made.file)) for error in errors), errors
    assert all(error.problem for error in errors)


def config_error(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read_config(path)
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("levels = 4", "levels = 400", "policy.levels"),
        ("managed_share = 0.8", "managed_share = 'much'", "policy.managed_share"),
        ("share = 0.1\n", "share = 0.3\n", "policy.lane.share"),
        ("share = 0.1\n", "share = 0\n", "policy.lane"),
        ("budget = '400 B'", "budget = '40 B'", "policy.lane"),
        ("budget = '400 B'", "budget = '400 apples'", "policy.lane.budget"),
        ("h0 = ['a', 'b']", "h0 = ['a', 'b']\nh1 = ['a']", "hosts.h1"),
        ("[hosts]", "[lost]", "lost"),
    ],
)
def test_an_error_in_the_policy_names_its_place(
    tmp_path: Path, old: str, new: str, place: str
) -> None:
    made = ControlProcess(tmp_path, more=POLICY)
    text = made.file.read_text()
    assert old in text
    made.file.write_text(text.replace(old, new))
    assert config_error(made.file).where == f"{made.file}: {place}"


def test_fabrics_with_anything_missing_change_no_more_than_paths(rig: Rig) -> None:
    rng = random.Random(SEED + 3)
    fabric = rig.switches.fabric
    for _ in range(INPUTS // 200):
        links = tuple(link for link in fabric.links if rng.random() < 0.8)
        abilities = dict.fromkeys(rig.switches.held, rig.switches.ability)
        event = FabricChanged(fabric=replace(fabric, links=links), abilities=abilities)
        connections = dict(rig.engine.state.connections)
        rig.ask(event)
        assert dict(rig.engine.state.connections) == connections


# ---- A live controller ------------------------------------------------------------------------


def test_a_live_controller_takes_garbage_and_goes_on(tmp_path: Path) -> None:
    rng = random.Random(SEED + 4)
    with controlling(tmp_path) as made, Client(made.address) as client:
        id_ = client.register("calm", ttl_s=600).id
        client.connect(id_, "h0", "h2")
        before = client.settled()
        memory = made.memory_kib
        for _ in range(INPUTS // 100):
            raw_call(client, rng)
        for _ in range(INPUTS // 200):
            raw_bytes(made, rng)
            raw_frames(made, rng)
        with Client(made.address) as other:
            found = other.settled()
        assert (found.applications, found.connections) == (before.applications, before.connections)
        assert made.memory_kib < memory + 100_000


def raw_call(client: Client, rng: random.Random) -> None:
    """Bytes as a request: nothing that could be carried out."""
    name = rng.choice([*methods.UNARY, "Nonsense"])
    data = bend_bytes(rng, rng.randbytes(rng.randrange(1, 200)))
    future = client.channel.unary_unary(methods.method_path(name)).future(data, timeout=10.0)
    assert future.code() in REFUSED, (name, data, future.details())


def raw_bytes(made: ControlProcess, rng: random.Random) -> None:
    host, _, port = made.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if rng.random() < 0.5 else b""
        sock.sendall(preface + rng.randbytes(rng.randrange(1, 300)))


def raw_frames(made: ControlProcess, rng: random.Random) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(made.folder / "control.sock"))
        body = bend_bytes(rng, b'{"call": "Renew", "id": "keen#5"}')
        length = rng.choice([len(body), 0, 1 << 16, 1 << 31])
        sock.sendall(struct.pack(">I", length) + body)


# ---- Sockets: bent requests to live processes ---------------------------------------------------

FAST = "[limits]\nrate_per_s = 1e6\nburst = 2e6\n"  # so that it looks at all of them
AHEAD = 50
REQUESTS_EACH = 500  # whole ones of each call, to be bent
CODES = {code.name for code in grpc.StatusCode} - {"UNKNOWN", "INTERNAL", "UNAVAILABLE"}


def check_goes_on(made: ControlProcess, memory_kib: int, began: float, what: str) -> None:
    """It answers, has not grown, and starts again with what it had."""
    with Client(made.address) as client:
        before = client.status()
    grown_mib = (made.memory_kib - memory_kib) / 1024
    print(f"{what} in {time.monotonic() - began:.0f} s, +{grown_mib:.0f} MiB")
    assert grown_mib < 100
    assert "Traceback" not in made.errors.read_text()
    made.kill()
    made.start()
    with Client(made.address) as client:
        after = client.status()
    assert (after.applications, after.connections) == (before.applications, before.connections)


def test_bent_requests_over_grpc_are_refused_one_by_one(tmp_path: Path) -> None:
    need_time("test-control")
    rng, codes = random.Random(SEED + 5), Counter[str]()
    whole = [(name, requests(rng)[name].SerializeToString()) for name in CALLS * REQUESTS_EACH]
    with controlling(tmp_path, more=FAST) as made, ExitStack() as stack:
        socket_address = f"unix:{made.folder / 'control.sock'}"
        addresses = [made.address, *[socket_address] * 4]  # TCP, too, where the user is looked up
        clients = [stack.enter_context(Client(address)) for address in addresses]
        for client in clients:
            client.settled()  # and the connection knows how many calls it may have open
        calls = [
            {name: client.channel.unary_unary(methods.method_path(name)) for name in CALLS}
            for client in clients
        ]
        began, memory_kib = time.monotonic(), made.memory_kib
        for _ in range(GRPC_INPUTS // AHEAD):
            futures = []
            for number in range(AHEAD):
                name, data = rng.choice(whole)
                call = calls[number % len(calls)][name]
                futures.append(call.future(bend_bytes(rng, data), timeout=60.0))
            codes.update(future.code().name for future in futures)
        check_goes_on(made, memory_kib, began, f"gRPC {codes.total()} {dict(codes)}")
    assert codes["INVALID_ARGUMENT"] > GRPC_INPUTS // 20
    assert codes.keys() <= CODES, codes


def test_bent_frames_over_the_socket_are_refused_one_by_one(tmp_path: Path) -> None:
    need_time("test-control")
    rng, codes = random.Random(SEED + 6), Counter[str]()
    with controlling(tmp_path, more=FAST) as made:
        began, memory_kib = time.monotonic(), made.memory_kib
        for _ in range(FRAMES // AHEAD):
            bodies = [bent_body(rng) for _ in range(AHEAD - 1)]
            frames = [struct.pack(">I", len(body)) + body for body in bodies]
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(60.0)
                line.connect(str(made.folder / "control.sock"))
                line.sendall(b"".join(frames))
                for _ in frames:
                    answer = read_answer(line)
                    codes["OK" if answer["ok"] else answer["code"]] += 1
                line.sendall(bend_bytes(rng, frames[0]))  # its length may be wrong
        check_goes_on(made, memory_kib, began, f"socket {codes.total()} {dict(codes)}")
    assert codes["INVALID_ARGUMENT"] > FRAMES // 20
    assert codes.keys() <= CODES, codes


def bent_body(rng: random.Random) -> bytes:
    name = rng.choice(CALLS)
    fields = json_format.MessageToDict(requests(rng)[name], preserving_proto_field_name=True)
    body = json.dumps(bend_value(rng, {"call": name, **fields})).encode()
    return bend_bytes(rng, body) if rng.random() < 0.3 else body


def read_answer(line: socket.socket) -> dict[str, Any]:
    def read(count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = line.recv(count - len(data))
            assert piece, "it closed the connection"
            data += piece
        return data

    (length,) = struct.unpack(">I", read(4))
    answer: dict[str, Any] = json.loads(read(length))
    return answer


# ---- An agent -----------------------------------------------------------------------------------


def agent_requests(rng: random.Random) -> dict[str, Any]:
    tables = {"queue_of": [0] * 16, "weights": [rng.choice([1, 50_000]), 8], "lane": None}
    ports = rng.sample([1, 2, 99], 2)
    fields: dict[str, dict[str, Any]] = {
        "readtables": {"ports": ports},
        "readabilities": {"ports": ports},
        "readsent": {"ports": ports},
        "writetables": {"tables": [[rng.choice([1, 7]), tables]]},
        "claimnode": {"owner": "fuzz", "epoch": rng.choice([None, 1, 2**40])},
        "describe": {},
        "releaseports": {},
    }
    kind = rng.choice(list(fields))
    return {"type": kind, **fields[kind]}


def test_bent_requests_over_an_agent_s_socket_are_refused(tmp_path: Path) -> None:
    need_namespaces()
    rng, outcomes = random.Random(SEED + 7), Counter[str]()
    namespace = namespaces.build_name("bent")
    namespaces.create(namespace)
    try:
        words = ["link", "add", "eth0", "type", "veth", "peer", "name", "far"]
        namespaces.run_command(["ip", "-n", namespace, *words])
        process = start_agent("bent", namespace, tmp_path, {1: "eth0"})
        path = build_socket_path(tmp_path)
        wait_until(path.exists, "the agent listens", 60.0)
        began, left = time.monotonic(), AGENT_INPUTS
        while left > 0:
            left -= talk_to_agent(rng, path, left, outcomes)
        assert process.poll() is None
        took_s = time.monotonic() - began
        print(f"agent {AGENT_INPUTS} {dict(outcomes)} in {took_s:.0f} s")
        assert "Traceback" not in (tmp_path / "agent.log").read_text()
        with closing(Agent("bent", path)) as agent:
            agent.ask(Describe(), time.monotonic() + 30.0)
            assert isinstance(await_answers([agent], 30.0)["bent"], Description)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        namespaces.remove(namespace)
    assert all(outcomes[kind] for kind in ("answered", "refused", "greeting")), outcomes


def talk_to_agent(rng: random.Random, path: Path, most: int, outcomes: Counter[str]) -> int:
    """Bent requests over one connection until the agent closes it; how many."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60.0)
        line.connect(str(path))
        if rng.random() < 0.2:  # before they know each other
            line.sendall(bend_bytes(rng, greeting(rng)))
            outcomes["greeting"] += 1
            return 1
        keys, _ = greet(line, None, "agent")
        seal, _ = keys.seals(server=False)
        reader = FrameReader(ANSWERS, FRAME_BYTES, keys.seals(server=False)[1])
        for sent in range(1, most + 1):
            payload = msgspec.json.encode(bend_value(rng, agent_requests(rng)))
            if rng.random() < 0.1:
                payload = bend_bytes(rng, payload)
            tag = seal.tag(payload)
            line.sendall(struct.pack(">I", len(tag) + len(payload)) + tag + payload)
            outcome = read_outcome(line, reader)
            outcomes[outcome] += 1
            if outcome != "answered":
                return sent
        return most


def read_outcome(line: socket.socket, reader: FrameReader[Any]) -> str:
    while True:
        try:
            data = line.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            return "closed"
        for message in reader.feed(data):
            if isinstance(message, Failure):
                return "refused"
            return "answered"
