"""The library in C against a controller in this process; the program is clib/tests/calls.c."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from c_caller import CALLS, LIMIT_S, Caller, built
from controller_model import EXHAUSTED, ModelController
from controller_server import JsonController, json_controller

NOBODY = 65534


def until(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("c") / "calls", CALLS, "-fsanitize=address,undefined")


@pytest.fixture(scope="module")
def plain_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without sanitizers, which keep what was freed and take their time."""
    return built(tmp_path_factory.mktemp("plain") / "calls", CALLS, "-O2")


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[JsonController]:
    with json_controller(ModelController(), tmp_path / "control.sock") as made:
        yield made


@pytest.fixture
def caller(program: Path, controller: JsonController) -> Iterator[Caller]:
    with Caller(program, controller.path) as made:
        assert made.ask("register sort 300 1000") == "registered 1"
        yield made


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def create(listener: socket.socket, kind: str = "tcp") -> str:
    host, port = listener.getsockname()
    return f"create {host} {port} {kind}"


def test_a_registration_gives_its_level(caller: Caller, controller: JsonController) -> None:
    assert caller.ask("level") == "level 3"
    assert caller.ask("managed") == "managed 1"
    assert list(controller.model.registrations) == ["sort#1"]


def test_a_registration_states_the_size_of_its_job(
    program: Path, controller: JsonController
) -> None:
    with Caller(program, controller.path) as caller:
        assert caller.ask(f"register sort 0 1000 {2**60 + 1}") == "registered 0"
        assert caller.ask(f"register sort 0 1000 {40 * 2**30}") == "registered 1"
    assert controller.model.number == 1
    (answer,) = [a for a in controller.model.answered.values() if a is not None]
    assert answer.size_bytes == 40 * 2**30


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_socket_is_connected_and_marked(
    caller: Caller, listener: socket.socket, kind: str
) -> None:
    assert caller.ask(create(listener, kind)) == "connection 0"
    assert caller.ask("tos 0") == "tos 12"
    assert caller.ask("destroy 0") == "destroyed 0"


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_socket_of_ipv6_is_connected_and_marked(caller: Caller, kind: str) -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"ipv6: {error.strerror}")
    with server:
        assert caller.ask(f"create ::1 {server.getsockname()[1]} {kind}") == "connection 0"
        assert caller.ask("tos 0") == "tos 12"


def test_what_is_declared_is_reported_and_what_is_destroyed_is_not(
    caller: Caller, controller: JsonController
) -> None:
    caller.ask("declare a b")
    until(lambda: controller.model.pairs() == [("a", "b")])
    until(lambda: caller.ask("told 0") == "told 1")
    caller.ask("destroy 0")
    until(lambda: not controller.model.connections)
    assert caller.ask("deregister") == "deregistered 0"
    assert not controller.model.registrations


def test_connections_outlive_the_registration_until_they_are_destroyed(
    caller: Caller, listener: socket.socket
) -> None:
    caller.ask(create(listener))
    caller.ask("declare a b")
    assert caller.ask("deregister") == "deregistered 0"
    assert caller.ask("destroy 1") == "destroyed 0"
    assert caller.ask("destroy 0") == "destroyed 0"


def test_many_connections_are_reported_once_each(
    caller: Caller, controller: JsonController
) -> None:
    for number in range(300):
        caller.ask(f"declare a b{number}")
    until(lambda: len(controller.model.connections) == 300)
    assert controller.model.opened == 300


def test_the_lease_is_renewed(caller: Caller, controller: JsonController) -> None:
    until(lambda: controller.model.registrations["sort#1"].renewals >= 4)
    assert not caller.warnings


def test_a_lease_that_was_lost_is_replaced_and_connections_are_reported_again(
    caller: Caller, controller: JsonController
) -> None:
    caller.ask("declare a b")
    until(lambda: controller.model.pairs())
    controller.model.expire("sort#1")
    until(lambda: "sort#2" in controller.model.registrations and controller.model.pairs())


def test_answers_that_were_lost_duplicate_nothing(
    caller: Caller, controller: JsonController
) -> None:
    controller.lose_answers = 3
    for number in range(20):
        caller.ask(f"declare a b{number}")
    until(lambda: len(controller.model.connections) == 20 and not controller.lose_answers)
    until(lambda: caller.ask("told 19") == "told 1")
    assert controller.model.opened == 20
    assert list(controller.model.registrations) == ["sort#1"]


def test_a_busy_controller_is_asked_again(caller: Caller, controller: JsonController) -> None:
    controller.model.refusals.extend([EXHAUSTED] * 3)
    caller.ask("declare a b")
    until(lambda: controller.model.pairs() == [("a", "b")])


def test_a_busy_controller_is_left_alone_twice_as_long_each_time(
    program: Path, controller: JsonController
) -> None:
    with Caller(program, controller.path) as caller:
        caller.ask("register sort 60000 1000")
        until(lambda: "Renew" in controller.calls)
        controller.model.refusals.extend([EXHAUSTED] * 4)
        begun = time.monotonic()
        caller.ask("declare a b")
        until(lambda: controller.model.pairs() == [("a", "b")])
        assert time.monotonic() - begun >= 0.1 + 0.2 + 0.4 + 0.8


def test_nothing_is_warned_of_after_the_registration_was_given_back(
    program: Path, controller: JsonController
) -> None:
    controller.model.hosts, controller.connect_s = frozenset(), 1.3
    with Caller(program, controller.path) as caller:
        caller.ask("register sort 60000 1000")
        caller.ask("declare a b")
        until(lambda: "Connect" in controller.calls)
        assert caller.ask("deregister") == "deregistered 0"
        time.sleep(controller.connect_s)  # the refusal has come by now
    assert not caller.warnings


def test_without_a_controller_one_warning_and_everything_works(
    program: Path, tmp_path: Path, listener: socket.socket
) -> None:
    with Caller(program, tmp_path / "nobody.sock") as caller:
        assert caller.ask("register sort 0 0") == "registered 1"
        assert caller.ask("managed") == "managed 0"
        assert caller.ask(create(listener)) == "connection 0"
        assert caller.ask("tos 0") == "tos 0"
        caller.ask("declare a b")
        caller.ask("destroy 1")
        caller.ask("destroy 0")
        assert caller.ask("deregister") == "deregistered 0"
    assert caller.warnings == ["warning No such file or directory"]


def test_when_the_controller_comes_open_connections_are_marked_and_reported(
    program: Path, tmp_path: Path, listener: socket.socket
) -> None:
    model, path = ModelController(), tmp_path / "control.sock"
    with Caller(program, path) as caller:
        caller.ask("register sort 0 0")
        caller.ask(create(listener))
        caller.ask("declare a b")
        caller.ask("declare a c")
        caller.ask("destroy 2")
        with json_controller(model, path):
            until(lambda: model.pairs() == [("a", "b")])
            assert caller.ask("level") == "level 3"
            caller.ask("deregister")


def test_a_socket_of_the_programs_is_marked_and_left_open(
    program: Path, controller: JsonController, listener: socket.socket
) -> None:
    with socket.create_connection(listener.getsockname()) as ours:
        with Caller(program, controller.path, ours.fileno()) as caller:
            caller.ask("register sort 0 0")
            assert caller.ask(f"mark {ours.fileno()}") == "connection 0"
            caller.ask("destroy 0")
        assert ours.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 12
        assert ours.send(b"x") == 1


def test_a_forked_process_leaves_the_registration_alone(
    caller: Caller, controller: JsonController
) -> None:
    caller.ask("declare a b")
    until(lambda: controller.model.pairs())
    assert caller.ask("fork") == "child 0"
    renewals = controller.model.registrations["sort#1"].renewals
    until(lambda: controller.model.registrations["sort#1"].renewals > renewals)
    assert controller.model.pairs() == [("a", "b")]


def test_hosts_are_of_at_most_255_characters(caller: Caller) -> None:
    assert caller.ask(f"declare {'x' * 255} b") == "connection 0"
    assert caller.ask(f"declare {'x' * 256} b") == "failed"
    assert caller.ask(f"declare a {'x' * 256}") == "failed"


def test_a_socket_that_cannot_be_connected_sets_errno(caller: Caller) -> None:
    assert caller.ask("create 127.0.0.1 1 tcp") == "failed"


@pytest.mark.parametrize("application", ["sort", "unknown"], ids=["no-controller", "no-model"])
def test_a_program_that_nobody_manages_does_not_grow(
    plain_program: Path, tmp_path: Path, application: str
) -> None:
    path = tmp_path / "control.sock"
    with ExitStack() as stack:
        if application == "unknown":
            stack.enter_context(json_controller(ModelController(), path))
        caller = stack.enter_context(Caller(plain_program, path))
        caller.ask(f"register {application} 0 0")
        assert caller.ask("managed") == "managed 0"
        assert int(caller.ask("churn 100000").removeprefix("grown ")) < 1024


def test_closing_takes_as_long_however_many_are_open(plain_program: Path, tmp_path: Path) -> None:
    with Caller(plain_program, tmp_path / "nobody.sock") as caller:
        caller.ask("register sort 0 0")
        # 10^5 × 1 µs; a walk over those that are open would take 10^10 / 2 steps.
        assert int(caller.ask("hold 100000").removeprefix("held ")) < 2000


def test_one_that_is_opened_and_closed_while_the_controller_is_busy_is_never_counted(
    caller: Caller, controller: JsonController
) -> None:
    controller.model.refusals.extend([EXHAUSTED] * 5)
    caller.ask("declare a b")
    caller.ask("destroy 0")
    caller.ask("declare a c")
    until(lambda: controller.model.pairs() == [("a", "c")])
    assert controller.model.opened == 1


def test_one_that_may_have_been_counted_and_is_closed_is_closed_there_too(
    caller: Caller, controller: JsonController
) -> None:
    controller.late_answers = 1
    caller.ask("declare a b")
    until(lambda: controller.model.pairs() == [("a", "b")])
    caller.ask("destroy 0")
    until(lambda: not controller.model.connections)
    assert controller.model.opened == 1


def test_a_socket_that_is_not_ours_to_open_is_refused(
    program: Path, controller: JsonController
) -> None:
    if os.geteuid() != 0:
        pytest.skip("root: to become somebody else")
    controller.path.chmod(0o600)
    with Caller(program, controller.path) as caller:
        assert caller.ask(f"become {NOBODY}") == "became 0"
        assert caller.ask("register sort 0 0") == "registered 1"
        assert caller.ask("managed") == "managed 0"
    assert caller.warnings == ["warning is not ours to open: be in its group"]


def test_the_example_runs(tmp_path: Path, controller: JsonController) -> None:
    program = built(tmp_path / "fetch", "examples/c/fetch.c")
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [str(program), "sort", "127.0.0.1", str(server.getsockname()[1]), "hello"]
        environment = {**os.environ, "WEFT_CONTROL_SOCKET": str(controller.path)}
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as process:
            with server.accept()[0] as connection:
                connection.sendall(connection.recv(100).upper())
            assert process.stdout is not None
            assert process.stdout.read() == b"HELLO\nlevel 3\n"
    assert process.returncode == 0
