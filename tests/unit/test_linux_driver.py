"""The Linux driver with agents that do not answer: theirs fail, the others are not held up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.fabric import leaf_spine, one_switch
from weft.host.net.link_ends import LinkEnd
from weft.host.net.rtnetlink import Rtnetlink
from weft.switches import EdgePort, EdgeRules, Failed, PortName
from weft.switches.linux import LinuxSwitches, htb_ports, open_agents
from weft.switches.linux.agent import RequestHandler, Server
from weft.switches.linux.agent_connection import (
    REQUESTS,
    PortResult,
    PortResults,
    ReadTables,
    build_socket_path,
)
from weft.switches.linux.driver import Timeouts
from weft.switches.linux.htb_ports import Ports
from weft.wire import accept

ANSWER_S = 0.5
SHORT = Timeouts(answer_s=ANSWER_S, ports_s=ANSWER_S, port_s=0)
SILENT = ("spine0", "spine1", "leaf1")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def listening(stack: ExitStack, path: Path) -> socket.socket:
    """Connections succeed, as to a process that is stopped; nobody answers."""
    line = stack.enter_context(socket.socket(socket.AF_UNIX))
    line.bind(str(path))
    line.listen()
    return line


def answering(stack: ExitStack, folder: Path, node: str) -> None:
    """An agent whose one port is an interface that is not there."""
    folder.mkdir()
    link = stack.enter_context(Rtnetlink())
    handler = RequestHandler(node, Ports(link, {1: "nonesuch"}, folder))
    server = stack.enter_context(Server(folder, handler))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.shutdown)


@pytest.fixture
def switches(stack: ExitStack, tmp_path: Path) -> LinuxSwitches:
    """One that answers, three that do not."""
    answering(stack, tmp_path / "leaf0", "leaf0")
    sockets = {node: tmp_path / node for node in SILENT}
    for path in sockets.values():
        listening(stack, path)
    sockets["leaf0"] = build_socket_path(tmp_path / "leaf0")
    made = open_agents(leaf_spine(2, 2, 1), sockets, SHORT)
    stack.callback(made.close)
    return made


def timed(do: Callable[[], object]) -> float:
    begun = time.monotonic()
    do()
    return time.monotonic() - begun


def test_agents_that_do_not_answer_are_awaited_together_and_asked_once(
    switches: LinuxSwitches,
) -> None:
    ports = [PortName(node, 1) for node in (*SILENT, "leaf0")]
    result: dict[PortName, object] = {}
    assert timed(lambda: result.update(switches.read(ports))) == pytest.approx(ANSWER_S, abs=0.4)
    problems = [str(one) for one in result.values()]
    assert ["does not answer: not in 0.5 s" in message for message in problems] == [True] * 3 + [
        False
    ]
    assert "nonesuch: no such interface" in problems[3]
    assert timed(lambda: result.update(switches.read(ports))) < ANSWER_S / 2
    problems = [str(one) for one in result.values()]
    assert ["still owes an answer" in message for message in problems] == [True] * 3 + [False]
    assert "nonesuch: no such interface" in problems[3]


def test_a_fabric_is_discovered_with_the_agents_that_answer(switches: LinuxSwitches) -> None:
    fabric = switches.discover()
    assert fabric.name == leaf_spine(2, 2, 1).name
    assert [note.split(":")[0] for note in switches.notes] == [f"agent of {n}" for n in SILENT]


def test_marks_at_agents_that_do_not_answer_are_unchecked_not_unguarded(
    switches: LinuxSwitches,
) -> None:
    ports = {PortName(node, 1): EdgePort(host="h0") for node in ("leaf1", "h9")}
    report = switches.police(EdgeRules(levels=7, lane=None, ports=ports))
    assert [text.partition(": not in")[0] for text in report.unchecked] == [
        "agent of leaf1: does not answer"
    ]
    assert report.problems == ("h9 port 1: h9 has no agent",)


def test_a_fabric_of_which_no_agent_answers_is_not_discovered(
    stack: ExitStack, tmp_path: Path
) -> None:
    listening(stack, tmp_path / "socket")
    made = open_agents(one_switch(2), {"switch0": tmp_path / "socket"}, SHORT)
    stack.callback(made.close)
    with pytest.raises(InputError, match="agent of switch0: does not answer"):
        made.discover()


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(
    stack: ExitStack, tmp_path: Path
) -> None:
    listener = listening(stack, tmp_path / "socket")
    made = open_agents(one_switch(2), {"switch0": tmp_path / "socket"}, SHORT)
    stack.callback(made.close)
    port = PortName("switch0", 1)
    is_late, is_answered = threading.Event(), threading.Event()

    def serve() -> None:
        connection = accept(listener.accept()[0], None, REQUESTS)
        for problem in ("of the first question", "of the second question"):
            assert connection.next(5) is not None
            assert is_late.wait(5)
            connection.send(PortResults([PortResult(1, failed=problem)]))
            is_answered.set()
        connection.close()

    agent = threading.Thread(target=serve)
    agent.start()
    assert "does not answer: not in 0.5 s; its ports have" in str(made.read([port]))
    is_late.set()
    assert is_answered.wait(5)
    assert made.read([port]) == {port: Failed("of the second question")}
    agent.join()


def test_a_request_whose_time_was_over_before_the_handshake_is_never_sent(
    stack: ExitStack, tmp_path: Path
) -> None:
    listener = listening(stack, tmp_path / "socket")
    made = open_agents(one_switch(2), {"switch0": tmp_path / "socket"}, SHORT)
    stack.callback(made.close)
    assert "not in 0.5 s; nothing was sent" in str(made.read([PortName("switch0", 1)]))
    requests: list[object] = []

    def serve() -> None:
        connection = accept(listener.accept()[0], None, REQUESTS)
        requests.append(connection.next(5))
        connection.send(PortResults([PortResult(2, failed="asked")]))
        connection.close()

    agent = threading.Thread(target=serve)
    agent.start()
    port, answer = PortName("switch0", 2), Failed("")
    deadline = time.monotonic() + 5
    while answer != Failed("asked") and time.monotonic() < deadline:
        answer = made.read([port])[port]  # "still owes an answer" until the handshake is over
    agent.join()
    assert requests == [ReadTables([2])]


@pytest.mark.parametrize(
    ("speed", "has_device", "bps"),
    [("100000", True, 10**11), ("-1", True, None), ("0", True, None), ("100", False, None)],
)
def test_the_speed_of_a_port_is_that_of_a_physical_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: str, has_device: bool, bps: int | None
) -> None:
    monkeypatch.setattr(htb_ports, "INTERFACES", tmp_path)
    (tmp_path / "eth0").mkdir()
    (tmp_path / "eth0/speed").write_text(speed)
    if has_device:
        (tmp_path / "eth0/device").mkdir()
    assert htb_ports._read_speed_bps(LinkEnd(None, "eth0")) == bps
    assert htb_ports._read_speed_bps(LinkEnd("elsewhere", "eth0")) is None
    assert htb_ports._read_speed_bps(LinkEnd(None, "eth1")) is None
