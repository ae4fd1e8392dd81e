"""Who gets into a controller, and how: files that are refused, JSON over a socket, TLS."""

from __future__ import annotations

import grp
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from certificates import certificates
from control_process import Client, ControlProcess, controlling, running, weft
from needs import need_time
from serve_process import wait_until


@pytest.fixture(autouse=True, scope="module")
def asked_for() -> None:
    need_time("test-control")


def served(made: ControlProcess) -> tuple[int, str]:
    """What `serve` says of a file that it cannot use."""
    done = subprocess.run(
        [sys.executable, "-m", "weft.cli", "control", "serve", str(made.file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_mistake_in_the_name_of_the_fabric_is_refused_at_once(tmp_path: Path) -> None:
    made = ControlProcess(tmp_path)
    made.file.write_text(made.file.read_text().replace('"fabric.toml"', '"fabrik.toml"'))
    status, told = served(made)
    assert (status, "switches.fabric" in told, "fabrik.toml" in told) == (2, True, True), told


def test_ports_that_cannot_be_managed_are_logged_once_with_the_remedy(tmp_path: Path) -> None:
    made = ControlProcess(tmp_path)
    made.file.write_text(made.file.read_text() + "levels = 2\n")
    with running(made):
        wait_until(lambda: "fabric" in made.log.read_text(), "the fabric is discovered", 30)
        found = [own["text"] for own in made.lines() if "be managed" in own["text"]]
    why = "has 2 levels, and 8 are required; lower levels of [policy]"
    assert found == [f"16 ports cannot be managed: h0 port 1 {why}"]


# ---- JSON -------------------------------------------------------------------------------------


def frame(data: Any) -> bytes:
    body = json.dumps(data).encode()
    return struct.pack(">I", len(body)) + body


def answer(sock: socket.socket) -> Any:
    def exactly(count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = sock.recv(count - len(found))
            assert more, "the controller has closed the socket"
            found += more
        return found

    (length,) = struct.unpack(">I", exactly(4))
    return json.loads(exactly(length))


def test_the_same_calls_go_as_json_over_the_socket(tmp_path: Path) -> None:
    with controlling(tmp_path) as made, Client(made.address) as client:
        client.settled()
        check_calls(made.folder / "control.sock", client)


def check_calls(path: Path, client: Client) -> None:
    assert path.stat().st_mode & 0o777 == 0o666
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        own = {"client": client.name, "sequence": 900}
        sock.sendall(frame({"call": "Register", "key": own, "application": "calm", "ttl_s": 30}))
        found = answer(sock)
        assert (found["ok"], found["level"], found["ttl_s"]) == (True, 1, 30.0)
        ends = {"id": found["id"], "source": "h0", "destination": "h2"}
        sock.sendall(frame({"call": "Connect", "key": own | {"sequence": 901}, **ends}))
        sock.sendall(frame({"call": "Nonsense"}) + frame([1]) + frame({"call": "Renew", "id": 5}))
        assert answer(sock) == {"ok": True, "connection": f"{client.name}/901"}
        for _ in range(3):
            refused = answer(sock)
            assert (refused["ok"], refused["code"]) == (False, "INVALID_ARGUMENT")
        huge = frame({"call": "Register", "ttl_s": 1}).replace(b" 1}", b" 1" + b"0" * 400 + b"}")
        sock.sendall(struct.pack(">I", len(huge) - 4) + huge[4:])
        assert answer(sock)["code"] == "INVALID_ARGUMENT"
        sock.sendall(struct.pack(">I", 1 << 30))
        assert answer(sock)["code"] == "INVALID_ARGUMENT"
    assert client.status().connections == 1


def test_a_group_can_open_the_socket_where_the_file_says_so(tmp_path: Path) -> None:
    own = grp.getgrgid(os.getgid()).gr_name
    with controlling(tmp_path, more=f'socket_group = "{own}"') as made:
        found = (made.folder / "control.sock").stat()
        assert (found.st_mode & 0o777, found.st_gid) == (0o660, os.getgid())
    made.file.write_text(made.file.read_text().replace(f'"{own}"', '"no-such-group"'))
    status, told = served(made)
    assert (status, "is no group here" in told) == (2, True), told


# ---- Beyond loopback --------------------------------------------------------------------------


def test_beyond_loopback_tls_is_required(tmp_path: Path) -> None:
    made = ControlProcess(tmp_path)
    made.file.write_text(made.file.read_text().replace("127.0.0.1:0", "0.0.0.0:0"))
    status, told = served(made)
    assert (status, "not loopback, so TLS is needed; add [tls]" in told) == (2, True)


def test_with_tls_only_clients_with_a_certificate_get_in(tmp_path: Path) -> None:
    certificates(tmp_path)
    tls = '[tls]\ncertificate = "controller.pem"\nkey = "controller.key"\nclients = "ca.pem"'
    with controlling(tmp_path, more=tls) as made:
        files = ["--authority", str(tmp_path / "ca.pem")]
        own = ["--certificate", str(tmp_path / "client.pem"), "--key", str(tmp_path / "client.key")]
        status, told = weft(made, "status", *files, *own)
        assert status == 0, told
        assert weft(made, "status", *files)[0] == 2
        assert weft(made, "status")[0] == 2


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    certificates(tmp_path)
    tls = '[tls]\ncertificate = "control.toml"\nkey = "controller.key"\nclients = "ca.pem"'
    status, told = served(ControlProcess(tmp_path, more=tls))
    assert (status, "control.toml: is no certificate of the key" in told) == (2, True), told
    assert "ssl_" not in told  # gRPC's own lines


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    made = ControlProcess(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        made.file.write_text(made.file.read_text().replace("127.0.0.1:0", taken))
        status, told = served(made)
    assert status == 2
    line = f"weft: listen {taken}: Address already in use; end who listens there, or change it"
    assert told.splitlines()[-1] == line
    assert "add_port" not in told  # gRPC's own line


def test_answers_as_json_have_every_field(tmp_path: Path) -> None:
    with controlling(tmp_path) as made:
        _, told = weft(made, "status", "--json")
    found = json.loads(told)
    assert (found["applications"], found["ports_failing"], found["problems"]) == (0, 0, [])


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    certificates(tmp_path)
    (tmp_path / "controller.key").chmod(0o644)
    tls = '[tls]\ncertificate = "controller.pem"\nkey = "controller.key"\nclients = "ca.pem"'
    made = ControlProcess(tmp_path, more=tls)
    status, told = served(made)
    assert (status, "others can read it; chmod 600 it" in told) == (2, True)
