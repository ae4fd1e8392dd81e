"""Attacks on a controller by another user of its machine: refused, logged, nothing changed."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("grpc", reason="gRPC: pip install 'weft[control]'")

import grpc
from control_process import Client, ControlProcess, running
from serve_process import wait_until

from weft.cli import main
from weft.control.client.grpc_link import Tls
from weft.control.service import weft_pb2 as pb
from weft.control.service.operator_client import Controller, call
from weft.errors import InputError

WAIT_S = 30.0
NOBODY = 65534
ENDS = {"source": "h0", "destination": "h2"}

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root: calls as another user")


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    """The kernel says that connections made meanwhile are this user's."""
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextmanager
def controller(more: str = "") -> Iterator[ControlProcess]:
    """In a folder that everybody may enter."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        with running(ControlProcess(Path(name), more=more)) as process:
            yield process


def call_as_json(path: Path, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    answers = []
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as replies:
        client.connect(str(path))
        for request in requests:
            body = json.dumps(request).encode()
            client.sendall(struct.pack(">I", len(body)) + body)
            (length,) = struct.unpack(">I", replies.read(4))
            answers.append(json.loads(replies.read(length)))
    return answers


def find_code(client: Client, name: str, request: Any) -> str:
    try:
        client.call(name, request)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def read_state(root: Client) -> tuple[Any, ...]:
    """What an attack may not change."""
    status = root.status(applications=True, ports=True)
    for application in status.listed_applications:
        application.ClearField("left_s")
    for port in status.listed_ports:
        port.ClearField("since_s")
    applications = [a.SerializeToString() for a in status.listed_applications]
    ports = [p.SerializeToString() for p in status.listed_ports]
    return status.revision, status.HasField("held"), status.connections, applications, ports


def count_refused(process: ControlProcess) -> int:
    return len([line for line in process.lines() if line["text"].startswith("refused: ")])


@as_root
def test_another_user_neither_rolls_back_nor_touches_a_registration_and_is_logged() -> None:
    with controller() as process:
        path = process.folder / "control.sock"
        with Client(f"unix:{path}") as root:
            root.settled()
            id_ = root.register("calm").id
            opened = root.connect(id_, **ENDS)
            ended = root.register("calm").id
            root.call("Deregister", pb.DeregisterRequest(key=root.key(), id=ended))
            root.settled()
            before, held = read_state(root), process.held()
            stolen = {"client": root.name}  # keys that root has used
            mine = {"client": "nobody"}
            attacks: list[dict[str, Any]] = [
                {"call": "Rollback", "key": mine | {"sequence": 1}, "revision": 0},
                {"call": "Apply", "key": mine | {"sequence": 2}, "proposal": {"deregister": [id_]}},
                {"call": "Deregister", "key": mine | {"sequence": 3}, "id": id_},
                {"call": "Connect", "key": mine | {"sequence": 4}, "id": id_, **ENDS},
                {"call": "Renew", "id": id_},
                {"call": "Disconnect", "connection": opened},
                {"call": "Register", "key": stolen | {"sequence": 1}, "application": "calm"},
                {"call": "Register", "key": stolen | {"sequence": 3}, "application": "calm"},
                {"call": "Deregister", "key": stolen | {"sequence": 4}, "id": ended},
            ]
            with acting_as(NOBODY):
                replies = call_as_json(path, *attacks, {"call": "Status"})
                with Client(f"unix:{path}") as nobody:
                    rollback = pb.RollbackRequest(key=nobody.key(), revision=0)
                    assert find_code(nobody, "Rollback", rollback) == "PERMISSION_DENIED"
                    deregister = pb.DeregisterRequest(key=nobody.key(), id=id_)
                    assert find_code(nobody, "Deregister", deregister) == "PERMISSION_DENIED"
                    connect = pb.Event(connect=pb.ConnectRequest(key=nobody.key(), id=id_, **ENDS))
                    (acks,) = nobody.stream(iter([pb.EventBatch(events=[connect])]))
                    assert acks.acks[0].code == grpc.StatusCode.PERMISSION_DENIED.value[0]
            codes = [reply.get("code", "ok") for reply in replies]
            assert codes == ["PERMISSION_DENIED"] * len(attacks) + ["ok"]
            assert (read_state(root), process.held()) == (before, held)
        count = len(attacks) + 3
        wait_until(lambda: count_refused(process) == count, "each attempt is logged", WAIT_S)


@as_root
def test_a_key_of_an_open_connection_is_not_another_users_to_use() -> None:
    with controller() as process:
        path = process.folder / "control.sock"
        with Client(f"unix:{path}") as root:
            opened = root.connect(root.register("calm").id, **ENDS)
            client, _, sequence = opened.partition("/")
            register = {"call": "Register", "key": {"client": "n", "sequence": 1}}
            with acting_as(NOBODY):
                (own,) = call_as_json(path, register | {"application": "calm"})
                stolen = {"client": client, "sequence": sequence}
                connect = {"call": "Connect", "key": stolen, "id": own["id"], **ENDS}
                (reply,) = call_as_json(path, connect)
            assert reply["code"] == "PERMISSION_DENIED"
            assert root.status().connections == 1


@as_root
@pytest.mark.parametrize("kind", ["user", "group"])
def test_an_operator_by_name_or_group_may_act_on_what_others_own(kind: str) -> None:
    user = pwd.getpwuid(NOBODY)
    listed = user.pw_name if kind == "user" else f"@{grp.getgrgid(user.pw_gid).gr_name}"
    with controller(f'[access]\noperators = ["{listed}"]\n') as process:
        path = process.folder / "control.sock"
        with Client(f"unix:{path}") as root:
            id_ = root.register("calm").id
        deregister = {"call": "Deregister", "key": {"client": "n", "sequence": 1}, "id": id_}
        with acting_as(NOBODY):
            (reply,) = call_as_json(path, deregister)
        assert reply["ok"]


@as_root
def test_tcp_on_loopback_knows_the_user_of_a_socket() -> None:
    with controller() as process, Client(process.address) as root:
        id_ = root.register("calm").id
        with acting_as(NOBODY), Client(process.address) as nobody:
            renewal = pb.RenewRequest(id=id_)
            assert find_code(nobody, "Renew", renewal) == "PERMISSION_DENIED"
            assert nobody.status().applications == 1
        assert find_code(root, "Renew", renewal) == "OK"


@as_root
def test_someone_without_a_role_can_do_nothing() -> None:
    with controller('[access]\napplications = ["root"]\nreaders = ["root"]\n') as process:
        path = process.folder / "control.sock"
        register = {"call": "Register", "key": {"client": "n", "sequence": 1}}
        with acting_as(NOBODY):
            replies = call_as_json(path, register | {"application": "calm"}, {"call": "Status"})
        assert [reply["code"] for reply in replies] == ["PERMISSION_DENIED"] * 2


@as_root
def test_thirty_fakes_of_one_identity_are_bounded_by_its_quota() -> None:
    with controller("[quotas]\njobs = 2\nconnections = 3\n") as process:
        path = process.folder / "control.sock"
        with Client(f"unix:{path}") as root:
            root.settled()
            victim = root.register("keen").id
            root.connect(victim, **ENDS)
            register = {"call": "Register", "application": "keen", "ttl_s": 60}
            with acting_as(NOBODY):
                fakes = call_as_json(
                    path,
                    *[register | {"key": {"client": "n", "sequence": n}} for n in range(1, 31)],
                )
                ids = [fake["id"] for fake in fakes if fake["ok"]]
                connect = {"call": "Connect", "id": ids[0], **ENDS}
                opened = call_as_json(
                    path, *[connect | {"key": {"client": "c", "sequence": n}} for n in range(1, 6)]
                )
                call_as_json(path, connect | {"key": {"client": "d", "sequence": 1}, "id": ids[1]})
            assert len(ids) == 2
            assert {fake["code"] for fake in fakes if not fake["ok"]} == {"RESOURCE_EXHAUSTED"}
            assert [reply["ok"] for reply in opened] == [True] * 3 + [False] * 2
            quota = "refused: nobody: Register: jobs: nobody has 2 at a time"
            wait_until(
                lambda: quota in [line["text"] for line in process.lines()],
                "an attempt beyond the quota is logged",
                WAIT_S,
            )
            root.settled()
            shares = {
                a.id: a.least_share for a in root.status(applications=True).listed_applications
            }
            # The quota's two jobs, of which one may connect, and the victim: half each.
            assert shares[victim] == pytest.approx(shares[ids[0]], abs=0.01)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl: makes certificates")
def test_certificates_have_identities_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    words = [str(folder), "--client", "alice", "--client", "bob", "--client", "admin"]
    assert main(["control", "certs", *words]) == 0
    assert (folder / "alice.key").stat().st_mode & 0o777 == 0o600
    process = ControlProcess(tmp_path)
    tls = f'certificate = "{folder}/controller.pem"\nkey = "{folder}/controller.key"\n'
    text = process.file.read_text().replace("listen_without_tls = true\n", "")
    process.file.write_text(
        f'{text}\n[tls]\n{tls}clients = "{folder}/ca.pem"\n[access]\noperators = ["tls:admin"]\n'
    )
    with running(process):
        alice, bob, admin = (find_caller(folder, process, n) for n in ("alice", "bob", "admin"))
        register = pb.RegisterRequest(key=pb.Key(client="a", sequence=1), application="calm")
        id_ = call(alice, "Register", register, WAIT_S).id
        end = pb.DeregisterRequest(key=pb.Key(client="b", sequence=1), id=id_)
        with pytest.raises(InputError, match=f"{id_}: belongs to tls:alice"):
            call(bob, "Deregister", end, WAIT_S)
        with pytest.raises(InputError, match="Rollback: tls:alice is not an operator"):
            call(alice, "Rollback", pb.RollbackRequest(key=end.key, revision=0), WAIT_S)
        call(admin, "Deregister", end, WAIT_S)


def find_caller(folder: Path, process: ControlProcess, name: str) -> Controller:
    files = Tls(
        authority=folder / "ca.pem", certificate=folder / f"{name}.pem", key=folder / f"{name}.key"
    )
    return Controller(address=process.address, tls=files)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl: makes certificates")
def test_certificates_are_added_to_a_folder_and_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    assert main(["control", "certs", str(folder)]) == 0
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["control", "certs", str(folder), "--client", "carol"]) == 0
    assert main(["control", "certs", str(folder), "--client", "carol"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"{folder}/carol.pem",
        "nothing is missing",
    ]
    assert {path: path.read_bytes() for path in before} == before
    assert main(["control", "certs", str(folder), "--client", "../carol"]) == 2
    (folder / "carol.key").unlink()
    assert main(["control", "certs", str(folder), "--client", "carol"]) == 2
    assert "carol.key: is missing" in capsys.readouterr().err
