"""An agent and the driver's connection to it: requests, refusals, the process."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.host.net.rtnetlink import Rtnetlink
from weft.switches import Failed, Tables
from weft.switches.linux import agent_connection
from weft.switches.linux.agent import RequestHandler, Server, check_socket_path, main
from weft.switches.linux.agent_connection import (
    ANSWERS,
    REQUESTS,
    Agent,
    Answer,
    ClaimNode,
    Describe,
    Description,
    Granted,
    GuardMarks,
    MarkCounts,
    PortResults,
    ReadAbilities,
    ReadTables,
    ReleasePorts,
    Request,
    TakenBy,
    WriteTables,
)
from weft.switches.linux.htb_ports import Ports, restore_ports
from weft.switches.linux.mark_guard import MarkGuard, MarkRules
from weft.wire import Connection, ConnectionLost, Failure, Message, connect

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
        outcome = Agent("leaf1", agent_connection.build_socket_path(tmp_path))
        try:
            yield outcome
        finally:
            outcome.close()
            server.shutdown()
            thread.join()


def ask(agent: Agent, request: Request) -> Answer:
    agent.ask(request, time.monotonic() + agent_connection.ANSWER_S)
    answer = agent_connection.await_answers([agent], agent_connection.ANSWER_S)[agent.node]
    if isinstance(answer, InputError):
        raise answer
    return answer


def describe(agent: Agent) -> Description:
    answer = ask(agent, Describe())
    assert isinstance(answer, Description)
    return answer


@pytest.mark.parametrize("request_type", [ReadAbilities, ReadTables])
def test_ports_that_are_unknown_or_gone_fail_one_by_one(
    agent: Agent, request_type: type[ReadTables]
) -> None:
    answer = ask(agent, request_type([1, 9]))
    assert isinstance(answer, PortResults)
    problems = {result.number: str(result.failed) for result in answer.ports}
    assert "nonesuch: no such interface" in problems[1]
    assert "port 9: is not of this switch" in problems[9]


@contextmanager
def connected(agent: Agent) -> Iterator[Connection[Any]]:
    """A client that sends what it likes."""
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(agent.path))
        connection = connect(stranger, None, "agent", ANSWERS)
        yield connection
        connection.close()


class Dance(Message):
    pass


class RawWrite(Message, tag="writetables"):
    tables: Any


class RawRead(Message, tag="readtables"):
    ports: Any


def test_tables_and_claims_do_not_wait_for_the_marks(
    handler: RequestHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules of the edge take processes. A new owner's come after those under way."""
    begun, may_end, set_levels = threading.Event(), threading.Event(), list[int]()

    def set_slowly(_: MarkGuard, rules: MarkRules) -> None:
        begun.set()
        assert may_end.wait(10)
        set_levels.append(rules.levels)

    monkeypatch.setattr(MarkGuard, "set_rules", set_slowly)
    monkeypatch.setattr(MarkGuard, "read_counts", lambda _: [])
    guards = [GuardMarks(MarkRules(levels=n, lane=None, ports=[])) for n in (1, 2)]
    assert handler.answer(ClaimNode("old", 1), "a") == Granted(1)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(handler.answer, guards[0], "a")
        assert begun.wait(10)
        assert isinstance(handler.answer(ReadTables([1])), PortResults)
        assert handler.answer(ClaimNode("new", 2), "b") == Granted(2)
        second = pool.submit(handler.answer, guards[1], "b")
        assert handler.answer(WriteTables([]), "a") == TakenBy("new", 2)
        may_end.set()
        answers = [first.result(), second.result()]
    assert answers == [MarkCounts([]), MarkCounts([])]
    assert set_levels == [1, 2]
    assert handler.answer(guards[0], "a") == TakenBy("new", 2)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Dance(), "Invalid value 'dance'"),
        (RawRead(None), "Expected `array`, got `null`"),
        (RawRead([True]), "Expected `int`, got `bool`"),
        (RawWrite([[1]]), "Expected `array` of length 2"),
        (RawWrite({"1": {}}), "Expected `array`, got `object`"),
        (RawWrite([[1, {"weights": []}]]), "missing required field `queue_of`"),
        (RawWrite([[1, {"queue_of": [0], "weights": [0], "lane": None}]]), "queue 0 has weight 0"),
    ],
)
def test_requests_that_make_no_sense_are_refused_and_end_their_connection_alone(
    agent: Agent, request_: Message, message: str
) -> None:
    assert describe(agent).ports == [(1, "nonesuch")]
    with connected(agent) as connection:
        connection.send(request_)
        refusal = connection.next(5)
        assert isinstance(refusal, Failure)
        assert message in f"{refusal.where}: {refusal.problem}"
        with pytest.raises(ConnectionLost, match="closed the connection"):
            connection.next(5)
    assert describe(agent).ports == [(1, "nonesuch")]


def test_a_greeting_that_is_none_is_refused_with_the_reason(agent: Agent) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(agent.path))
        stranger.sendall(struct.pack(">I", 8) + b"nonsense")
        assert b"control connection" in stranger.recv(4096)
        assert stranger.recv(4096) == b""
    assert describe(agent).node == "leaf1"


NUMBERS = st.lists(st.integers(-(2**31), 2**31))


@given(
    st.just(Describe())
    | st.just(ReleasePorts())
    | st.builds(ReadAbilities, NUMBERS)
    | st.builds(ReadTables, NUMBERS)
    | st.builds(
        lambda numbers: WriteTables([(n, Tables(queue_of=(0,), weights=(1,))) for n in numbers]),
        NUMBERS,
    )
)
def test_every_request_has_an_answer_that_the_driver_can_read(
    tmp_path_factory: pytest.TempPathFactory, request_: Request
) -> None:
    assert REQUESTS.decode(msgspec.json.encode(request_)) == request_
    with Rtnetlink() as link:
        folder = tmp_path_factory.getbasetemp()
        answer = RequestHandler("leaf1", Ports(link, {1: "nonesuch"}, folder)).answer(request_)
    assert ANSWERS.decode(msgspec.json.encode(answer)) == answer


def test_user_and_group_may_open_the_socket_and_nobody_else(agent: Agent) -> None:
    assert agent.path.stat().st_mode & 0o777 == 0o660


def test_an_agent_that_is_not_there_is_said_and_found_when_it_comes(
    handler: RequestHandler, tmp_path: Path
) -> None:
    outcome = Agent("leaf1", agent_connection.build_socket_path(tmp_path))
    with pytest.raises(
        InputError, match=r"agent of leaf1: does not answer: .*check that it listens"
    ):
        describe(outcome)
    with Server(tmp_path, handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert describe(outcome).node == "leaf1"
        thread.join()
        outcome.close()


# ---- The process ------------------------------------------------------------------------------


SLOW = """
import sys, time
from pathlib import Path
from weft.switches.linux import agent
class Ports:
    folder, interfaces = Path(sys.argv[1]), {}
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
        agent.ask(ReadTables([]), time.monotonic() + agent_connection.ANSWER_S)
        while process.poll() is None and agent._connection is None:
            assert agent.read_answer() is None  # the handshake
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
        assert describe(agent).ports == [(1, "lo")]
    finally:
        agent.close()
    assert not folder.parent.exists()  # nothing is left of an agent that has taken no port


ASK = """
import os, sys, time
from pathlib import Path
from weft.errors import InputError
from weft.switches.linux.agent_connection import Agent, Describe, await_answers
path, user, group = sys.argv[1:]
os.setgroups([]), os.setgid(int(group)), os.setuid(int(user))  # now, as others may not see Python
agent = Agent("leaf1", Path(path))
try:
    agent.ask(Describe(), time.monotonic() + 10)
    print(await_answers([agent], 10)["leaf1"].ports)
except InputError as error:
    print(error)
"""
AGENT_GROUP, OTHER_USER, OTHER_GROUP = 64001, 64002, 64003  # no accounts


@contextmanager
def serve_agent(folder: Path) -> Iterator[Path]:
    """As its unit starts it: root, the group of the controller, nothing for others."""
    argv = [sys.executable, "-P", "-m", "weft.switches.linux.agent", "leaf1"]
    with subprocess.Popen(
        [*argv, f"--folder={folder}", "--port=1=lo"], group=AGENT_GROUP, extra_groups=[], umask=0o77
    ) as process:
        path = agent_connection.build_socket_path(folder)
        until = time.monotonic() + agent_connection.ANSWER_S
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        try:
            yield path
        finally:
            process.terminate()


def ask_as(path: Path, group: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(path), str(OTHER_USER), str(group)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="root: starts processes of other users")
def test_an_agent_answers_another_user_of_its_group_and_refuses_the_rest_in_words() -> None:
    with TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        folder = Path(top) / "leaf1"
        with serve_agent(folder) as path:
            assert ask_as(path, AGENT_GROUP) == "[(1, 'lo')]"
            refusal = f"belongs to root:{AGENT_GROUP} and may not be opened by user {OTHER_USER}; "
            group, user = "run the controller in that group", "run the controller as that user"
            whole = f"agent of leaf1: its folder {folder} {refusal}{group}"
            assert ask_as(path, OTHER_GROUP) == whole
            folder.chmod(0o755)
            assert ask_as(path, OTHER_GROUP) == f"agent of leaf1: its socket {refusal}{group}"
            path.chmod(0o600)
            assert ask_as(path, AGENT_GROUP) == f"agent of leaf1: its socket {refusal}{user}"


def test_an_agent_that_is_killed_is_started_again_and_both_are_events(tmp_path: Path) -> None:
    folder = tmp_path / "fabric" / "leaf1"
    processes = []

    def start() -> subprocess.Popen[bytes]:
        processes.append(agent_connection.start_agent("leaf1", None, folder, {1: "lo"}))
        return processes[-1]

    agent = Agent("leaf1", agent_connection.build_socket_path(folder), start)
    try:
        describe(agent)
        processes[0].kill()
        processes[0].wait()
        describe(agent)
        events = agent.take_events()
        assert [(event.node, event.has_ended) for event in events] == [
            ("leaf1", False),
            ("leaf1", True),
            ("leaf1", False),
        ]
        assert events[1].at_s < events[2].at_s
        assert agent.connections == len(processes) == 2
        assert agent.take_events() == []
    finally:
        agent.close()


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
        assert describe(agent).node == "leaf1"
    first.close()
    assert describe(second).node == "leaf1"
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
        outcome = Ports(link, {1: "lo", 2: "nonesuch"}, tmp_path).read([1, 2])
    assert isinstance(outcome[1], Failed)
    assert "lo.json: does not say what a port had; delete it" in outcome[1].problem
    assert isinstance(outcome[2], Failed)
    assert "no such interface" in outcome[2].problem
    with pytest.raises(InputError, match="does not say what a port had"):
        restore_ports(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--port: none is given"),
        (["--port", "x"], "--port x: is not N=..."),
        (["--port", "0=eth0"], "--port 0=eth0: is not N=..."),
        (["--port", "1=a", "--port", "1=b"], "--port 1=b: is not N=..., each N once"),
        (["--port", "1=a", "--rate", "1=fast"], "--rate: 'fast' is not a rate"),
    ],
)
def test_an_agent_with_wrong_options_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], message: str
) -> None:
    assert main(["leaf1", "--folder", str(tmp_path), *words]) == 2
    assert capsys.readouterr().err.startswith(f"weft: {message}")


def test_releasing_where_nothing_was_taken_does_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["leaf1", "--folder", str(tmp_path / "leaf1"), "--release"]) == 0
    assert capsys.readouterr().out == "leaf1: released nothing\n"


def test_the_path_of_a_socket_has_at_most_107_characters(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * (107 - len(str(tmp_path / "agent.sock")) - 1))
    folder.mkdir()
    path = agent_connection.build_socket_path(folder)
    assert len(str(path)) == 107
    check_socket_path(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))  # the kernel's own limit
    with pytest.raises(InputError, match="longer than 107 characters"):
        check_socket_path(folder.with_name(folder.name + "x"))
