"""Frames between the driver and an agent, and what an agent answers to whom it does not know."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.host.net.rtnetlink import Rtnetlink
from weft.switches import Failed
from weft.switches.linux import agent_connection
from weft.switches.linux.agent import RequestHandler, Server, main
from weft.switches.linux.agent_connection import (
    MAX_FRAME_BYTES,
    VERSION,
    Agent,
    FrameError,
    receive,
    send,
)
from weft.switches.linux.htb_ports import Ports, restore_ports

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def test_a_message_comes_as_it_went_in_one_frame_with_its_version(pair: Pair) -> None:
    near, far = pair
    send(near, {"do": "read", "ports": [1, 2]})
    assert receive(far) == {"weft": VERSION, "do": "read", "ports": [1, 2]}
    near.close()
    assert receive(far) is None


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (struct.pack(">I", MAX_FRAME_BYTES + 1), f"of {MAX_FRAME_BYTES + 1} bytes"),
        (struct.pack(">I", 10) + b"{}", "ends after 2 of 10 bytes"),
        (struct.pack(">I", 10), "ends after 0 of 10 bytes"),
        (b"\0\0", "ends after 2 of 4 bytes"),
        (framed(b"{"), "is not JSON"),
        (framed(b"\xff"), "is not JSON"),
        (framed(b"[" * 100_000), "is not JSON"),
        (framed(b"[1]"), "is not a JSON object"),
        (framed(b"{}"), "speaks version None"),
        (framed(b'{"weft": 2}'), "speaks version 2, and this weft 1"),
    ],
)
def test_what_is_no_message_is_refused(pair: Pair, sent: bytes, told: str) -> None:
    near, far = pair
    near.sendall(sent)
    near.close()
    with pytest.raises(FrameError, match=told):
        receive(far)


def test_a_message_that_is_too_long_is_not_sent(pair: Pair) -> None:
    with pytest.raises(FrameError, match=f"send at most {MAX_FRAME_BYTES}"):
        send(pair[0], {"do": "x" * MAX_FRAME_BYTES})


# ---- An agent ---------------------------------------------------------------------------------


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[RequestHandler]:
    """Of a node whose one port is an interface that is not there."""
    with Rtnetlink() as link:
        yield RequestHandler("leaf1", Ports(link, {1: "nonesuch"}, tmp_path))


@pytest.fixture
def agent(handler: RequestHandler, tmp_path: Path) -> Iterator[Agent]:
    with Server(tmp_path, handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found = Agent("leaf1", agent_connection.build_socket_path(tmp_path))
        try:
            yield found
        finally:
            found.close()
            server.shutdown()
            thread.join()


def asked(agent: Agent, message: agent_connection.Message) -> agent_connection.Message:
    agent.ask(message, time.monotonic() + agent_connection.ANSWER_S)
    found = agent_connection.await_answers([agent], agent_connection.ANSWER_S)[agent.node]
    if isinstance(found, InputError):
        raise found
    return found


def test_ports_that_are_unknown_or_gone_fail_one_by_one(agent: Agent) -> None:
    for verb in ("abilities", "read"):
        found = dict(asked(agent, {"do": verb, "ports": [1, 9]})["ports"])
        assert "nonesuch: no such interface" in found[1]["failed"]
        assert "port 9: is not of this switch" in found[9]["failed"]


def test_tables_that_are_none_are_refused_before_anything_is_done(agent: Agent) -> None:
    found = dict(asked(agent, {"do": "write", "tables": [[1, {"weights": []}]]})["ports"])
    assert "are not tables" in found[1]["failed"]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"do": "dance"}, "cannot dance; ask describe, abilities, read, write, release"),
        ({}, "cannot None"),
        ({"do": "read"}, "ports are not numbers"),
        ({"do": "read", "ports": [True]}, "ports are not numbers"),
        ({"do": "write", "tables": [[1]]}, "are not tables of ports"),
        ({"do": "write", "tables": {"1": {}}}, "are not tables of ports"),
    ],
)
def test_requests_that_make_no_sense_are_refused_and_the_line_stays(
    agent: Agent, message: agent_connection.Message, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        asked(agent, message)
    assert asked(agent, {"do": "describe"})["ports"] == [[1, "nonesuch"]]


def test_a_broken_frame_ends_its_line_with_the_reason_and_no_other(agent: Agent) -> None:
    assert asked(agent, {"do": "describe"})["node"] == "leaf1"
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(agent.path))
        stranger.sendall(framed(b"nonsense"))
        assert "is not JSON" in str(receive(stranger))
        assert receive(stranger) is None
    assert asked(agent, {"do": "describe"})["node"] == "leaf1"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(
    verb=st.sampled_from(["describe", "abilities", "read", "write", "nothing"]) | JSON,
    ports=st.lists(st.integers()) | JSON,
    tables=st.lists(st.tuples(st.integers(), JSON)) | JSON,
)
def test_whatever_is_asked_is_answered_in_json(
    tmp_path_factory: pytest.TempPathFactory, verb: object, ports: object, tables: object
) -> None:
    message = json.loads(json.dumps({"do": verb, "ports": ports, "tables": tables}))
    with Rtnetlink() as link:
        folder = tmp_path_factory.getbasetemp()
        found = RequestHandler("leaf1", Ports(link, {1: "nonesuch"}, folder)).answer(message)
    assert json.loads(json.dumps(found)) == found


def test_only_the_owner_may_open_the_socket(agent: Agent) -> None:
    assert agent.path.stat().st_mode & 0o077 == 0


def test_an_agent_that_is_not_there_is_said_and_found_when_it_comes(
    handler: RequestHandler, tmp_path: Path
) -> None:
    found = Agent("leaf1", agent_connection.build_socket_path(tmp_path))
    with pytest.raises(InputError, match=r"agent of leaf1: does not answer: .*see that it listens"):
        asked(found, {"do": "describe"})
    with Server(tmp_path, handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert asked(found, {"do": "describe"})["node"] == "leaf1"
        thread.join()
        found.close()


# ---- The process ------------------------------------------------------------------------------


SLOW = """
import sys, time
from pathlib import Path
from weft.switches.linux import agent
class Ports:
    folder = Path(sys.argv[1])
    def read(self, numbers):
        print("begun", flush=True)
        time.sleep(1)
        print("done", flush=True)
        return {}
agent.serve("leaf1", Ports())
"""


def test_a_signal_waits_for_the_end_of_what_is_under_way(tmp_path: Path) -> None:
    folder = tmp_path / "fabric" / "leaf1"
    argv = [sys.executable, "-c", SLOW, str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        agent = Agent("leaf1", agent_connection.build_socket_path(folder), lambda: process)
        agent.ask({"do": "read", "ports": []}, time.monotonic() + agent_connection.ANSWER_S)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        assert process.stdout.readline() == b"done\n"
        assert process.wait(10) == 0
        agent.close()
    assert not folder.parent.exists()


def test_an_agent_imports_nothing_from_where_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('taken from the working directory')")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "fabric" / "leaf1"
    agent = Agent(
        "leaf1",
        agent_connection.build_socket_path(folder),
        lambda: agent_connection.start_agent("leaf1", None, folder, {1: "lo"}),
    )
    try:
        assert asked(agent, {"do": "describe"})["ports"] == [[1, "lo"]]
    finally:
        agent.close()
    assert not folder.parent.exists()  # nothing is left of an agent that has taken no port


def test_of_two_drivers_that_start_an_agent_at_once_both_use_the_one_there_is(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "fabric" / "leaf1"
    start = partial(agent_connection.start_agent, "leaf1", None, folder, {1: "lo"})
    first, second = (
        Agent("leaf1", agent_connection.build_socket_path(folder), start) for _ in range(2)
    )
    for agent in (first, second):
        agent.wake()
    for agent in (first, second):
        assert asked(agent, {"do": "describe"})["node"] == "leaf1"
    first.close()
    assert asked(second, {"do": "describe"})["node"] == "leaf1"
    second.close()
    assert not folder.parent.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "1",
        '"x"',
        "{}",
        '{"schema": 1}',
        '{"schema": 1, "saved": []}',
        '{"schema": 1, "saved": {"namespace": 1}, "link_bps": 8, "limit_bytes": 8}',
    ],
)
def test_a_file_that_says_nothing_of_what_a_port_had_fails_that_port_alone(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "lo.json").write_text(text)
    with Rtnetlink() as link:
        found = Ports(link, {1: "lo", 2: "nonesuch"}, tmp_path).read([1, 2])
    assert isinstance(found[1], Failed)
    assert "lo.json: does not say what a port had; delete it" in found[1].problem
    assert isinstance(found[2], Failed)
    assert "no such interface" in found[2].problem
    with pytest.raises(InputError, match="does not say what a port had"):
        restore_ports(tmp_path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--port: none is given"),
        (["--port", "x"], "--port x: is not N=..."),
        (["--port", "0=eth0"], "--port 0=eth0: is not N=..."),
        (["--port", "1=a", "--port", "1=b"], "--port 1=b: is not N=..., each N once"),
        (["--port", "1=a", "--rate", "1=fast"], "--rate: 'fast' is not a rate"),
    ],
)
def test_an_agent_with_wrong_options_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], told: str
) -> None:
    assert main(["leaf1", "--folder", str(tmp_path), *words]) == 2
    assert capsys.readouterr().err.startswith(f"weft: {told}")


def test_releasing_where_nothing_was_taken_does_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["leaf1", "--folder", str(tmp_path / "leaf1"), "--release"]) == 0
    assert capsys.readouterr().out == "leaf1: released nothing\n"
