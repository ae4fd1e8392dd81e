"""The library, in Python and in C, with a real controller: one process tells, another counts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import need_grpc

need_grpc()

from c_caller import CALLS, Caller, built  # noqa: E402
from certificates import certificates  # noqa: E402
from control_process import Client, ControlProcess, controlling  # noqa: E402
from serve_process import wait_until  # noqa: E402

from weft.control.client import Tls, UnmanagedWarning, register  # noqa: E402

LIMIT_S = 20.0


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    with controlling(tmp_path) as made:
        yield made


@pytest.fixture
def client(control: ControlProcess) -> Iterator[Client]:
    with Client(control.address) as made:
        made.settled()
        yield made


def test_what_an_application_opens_is_programmed_and_given_back(
    control: ControlProcess, client: Client
) -> None:
    with register("keen", controller=control.address, wait_s=5.0) as app:
        assert app.is_managed
        assert app.level > 0
        with app.declare("h0", "h2") as made:
            assert made.wait_counted(LIMIT_S)
            found = client.settled()
            assert (found.applications, found.connections, found.ports) == (1, 1, 4)
        wait_until(lambda: client.status().connections == 0, "it is closed", LIMIT_S)
    assert client.status().applications == 0


def test_a_controller_that_was_killed_finds_again_what_was_open_and_what_was_opened_meanwhile(
    control: ControlProcess,
) -> None:
    listen = f'listen = "{control.address}"'
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with register("keen", controller=control.address, ttl_s=30.0, wait_s=5.0) as app:
            id_ = app.id
            kept, closed = app.declare("h0", "h2", wait=True), app.declare("h0", "h3", wait=True)
            control.kill()
            closed.close()
            opened = app.declare("h1", "h3")
            wait_until(lambda: not app.is_managed, "it is missed", LIMIT_S)
            control.file.write_text(
                control.file.read_text().replace('listen = "127.0.0.1:0"', listen)
            )
            control.start()
            wait_until(lambda: opened.is_counted, "it is told", LIMIT_S)
            assert kept.is_counted
            with Client(control.address) as client:
                wait_until(lambda: client.status().connections == 2, "one is closed", LIMIT_S)
                assert client.status().applications == 1
            assert app.id == id_
    assert [one.category for one in caught] == [UnmanagedWarning]


def test_with_tls_the_library_and_the_controller_know_each_other(tmp_path: Path) -> None:
    certificates(tmp_path)
    tls = '[tls]\ncertificate = "controller.pem"\nkey = "controller.key"\nclients = "ca.pem"'
    own = Tls(
        authority=tmp_path / "ca.pem",
        certificate=tmp_path / "client.pem",
        key=tmp_path / "client.key",
    )
    with (
        controlling(tmp_path, more=tls) as control,
        register("keen", controller=control.address, tls=own, wait_s=5.0) as app,
    ):
        assert app.declare("h0", "h2").wait_counted(LIMIT_S)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("c") / "calls", CALLS, "-fsanitize=address,undefined")


def test_a_program_in_c_is_counted_and_given_back(
    control: ControlProcess, client: Client, program: Path
) -> None:
    with Caller(program, control.folder / "control.sock") as caller:
        assert caller.ask("register keen 2000 5000") == "registered 1"
        assert caller.ask("managed") == "managed 1"
        assert int(caller.ask("level").removeprefix("level ")) > 0
        for number in range(100):
            caller.ask(f"declare h{number % 2} h{2 + number % 2}")
        wait_until(lambda: client.status().connections == 100, "all are told", LIMIT_S)
        client.settled()
        for number in range(100):
            caller.ask(f"destroy {number}")
        wait_until(lambda: client.status().connections == 0, "all are closed", LIMIT_S)
        assert caller.ask("deregister") == "deregistered 0"
        assert client.status().applications == 0
    assert not caller.warnings


def test_a_program_in_c_without_a_model_is_warned_once(
    control: ControlProcess, program: Path
) -> None:
    with Caller(program, control.folder / "control.sock") as caller:
        assert caller.ask("register unknown 0 5000") == "registered 1"
        assert caller.ask("managed") == "managed 0"
    (told,) = caller.warnings
    assert "unknown" in told
