"""The library against a controller in this process: levels, marks, telling, and failing open."""

from __future__ import annotations

import gc
import multiprocessing
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from certificates import certificates
from controller_model import EXHAUSTED, ModelController
from controller_server import GrpcController, grpc_controller

from weft.control.client import App, Tls, UnmanagedWarning, register
from weft.control.client import app as app_module
from weft.control.client import worker as worker_module
from weft.control.client.app import check_registration
from weft.control.client.client_session import Registration
from weft.control.client.saba import (
    saba_app_deregister,
    saba_app_register,
    saba_conn_create,
    saba_conn_destroy,
)
from weft.control.client.sockets import find_hosts, leaves_host, normalize_address
from weft.errors import InputError

NOBODY = "127.0.0.1:1"
LIMIT_S = 10.0


def until(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def record_warnings() -> Iterator[list[str]]:
    """The library's warnings, in the list when the block ends."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(one.message) for one in caught if one.category is UnmanagedWarning]


@pytest.fixture
def controller() -> Iterator[GrpcController]:
    with grpc_controller(ModelController(levels={"sort": 3, "scan": 5})) as made:
        yield made


@pytest.fixture
def app(controller: GrpcController) -> Iterator[App]:
    with register("sort", controller=controller.address, wait_s=LIMIT_S) as made:
        yield made


@pytest.fixture
def unmanaged() -> Iterator[App]:
    with pytest.warns(UnmanagedWarning), register("sort", controller=NOBODY) as made:
        yield made


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def tos(sock: socket.socket | None) -> int:
    assert sock is not None
    return sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)


# ---- Managed ----------------------------------------------------------------------------------


def test_a_program_waits_for_the_controller_only_on_request(
    app: App, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(App, "await_counted", lambda _, __, timeout_s: waits.append(timeout_s))
    monkeypatch.setattr("weft.control.client.app.find_hosts", lambda _: ("10.0.0.1", "10.0.0.2"))
    address = listener.getsockname()

    def open_all(**options: bool) -> None:
        with (
            app.connect(*address, **options) as made,
            app.accept(listener, **options) as accepted,
            app.declare("a", "b", **options),
            app.mark(made.socket.dup(), **options) as marked,  # type: ignore[union-attr]
        ):
            assert {made.app, accepted.app, marked.app} == {app}

    open_all()
    assert waits == []
    open_all(wait=True)
    assert waits == [1.0] * 4


def test_a_registration_that_comes_after_the_end_changes_nothing(unmanaged: App) -> None:
    unmanaged.close()
    unmanaged._apply_level(Registration(id="sort#1", level=5, ttl_s=10.0))
    assert unmanaged.level == 0
    assert (unmanaged.id, unmanaged.problem) == (None, "closed")


def test_a_registration_gives_its_level_in_every_form(app: App) -> None:
    assert app.is_managed
    assert app.id == "sort#1"
    assert (app.level, app.dscp, app.service_level, app.traffic_class) == (3, 3, 3, 12)


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_socket_of_ipv4_is_connected_and_marked(
    app: App, listener: socket.socket, kind: str
) -> None:
    with app.connect(*listener.getsockname(), kind=kind) as made:  # type: ignore[arg-type]
        assert tos(made.socket) == 12
        assert made.socket is not None
        assert made.socket.getpeername() == listener.getsockname()


def test_a_socket_of_ipv6_is_connected_and_marked(app: App) -> None:
    if not socket.has_ipv6:
        pytest.skip("ipv6: not in this kernel")
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"ipv6: {error.strerror}")
    with server, app.connect("::1", server.getsockname()[1]) as made:
        assert made.socket is not None
        assert made.socket.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) == 12


NO_FAMILY = 250  # beyond all that a kernel has


def test_an_address_of_a_family_that_the_kernel_lacks_is_passed_over(
    app: App, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = (socket.SOCK_STREAM, 0, "", listener.getsockname())
    addresses = [(NO_FAMILY, *there), (socket.AF_INET, *there)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    with app.connect("both", 0) as made:
        assert tos(made.socket) == 12


def test_an_accepted_connection_is_marked(app: App, listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()), app.accept(listener) as made:
        assert tos(made.socket) == 12


def test_the_loopback_is_marked_and_not_reported(
    app: App, controller: GrpcController, listener: socket.socket
) -> None:
    with app.connect(*listener.getsockname()) as made:
        app.declare("a", "b", wait=True)
        assert not made.is_counted
        assert made.id is None
    assert controller.model.pairs() == [("a", "b")]


def test_what_is_declared_is_reported_and_what_is_closed_is_not(
    app: App, controller: GrpcController
) -> None:
    with app.declare("a", "b", wait=True) as made:
        assert made.is_counted
        assert made.id in controller.model.connections
    until(lambda: not controller.model.connections)
    made.close()
    app.close()
    app.close()
    assert not controller.model.registrations


def test_a_thousand_connections_are_reported_in_batches(
    app: App, controller: GrpcController
) -> None:
    made = [app.declare("a", f"b{n}") for n in range(1000)]
    until(lambda: len(controller.model.connections) == 1000)
    assert len(controller.batches) < 500
    for connection in made:
        connection.close()
    until(lambda: not controller.model.connections)


def test_a_connection_that_is_refused_says_why_and_the_program_is_warned_once() -> None:
    model = ModelController(hosts=frozenset({"a", "b"}))
    with (
        grpc_controller(model) as made,
        register("sort", controller=made.address, wait_s=LIMIT_S) as app,
    ):
        with record_warnings() as warned:
            first, second = app.declare("a", "x", wait=True), app.declare("x", "b", wait=True)
            until(lambda: first.problem and second.problem)
            time.sleep(0.05)
        assert ["INVALID_ARGUMENT" in text for text in warned] == [True]
        assert not first.is_counted
        assert app.declare("a", "b", wait=True).is_counted


def test_the_lease_is_renewed_well_before_it_ends(controller: GrpcController) -> None:
    with register("sort", controller=controller.address, ttl_s=0.3, wait_s=LIMIT_S) as app:
        begun = time.monotonic()
        assert app.id is not None
        until(lambda: controller.model.registrations[app.id].renewals >= 10)
        assert time.monotonic() - begun < 10 * 0.2, "each after two thirds of the lease at most"


@pytest.mark.parametrize(("granted_s", "lease_s"), [(None, 30.0), (0.0, 30.0), (3.0, 3.0)])
def test_a_lease_is_renewed_at_a_third_of_what_the_controller_granted(
    granted_s: float | None, lease_s: float
) -> None:
    """With up to a tenth less, so that clients do not renew together."""
    worker = worker_module.Worker(
        "sort", 30.0, "", 0, lambda: None, on_registration=lambda _: None, on_failure=lambda _: None
    )
    if granted_s is not None:
        worker.session.registration = Registration(id="sort#1", level=1, ttl_s=granted_s)
    for _ in range(20):
        assert 0.9 * lease_s / 3 <= worker._renewal_interval_s() <= lease_s / 3


@pytest.mark.parametrize(
    ("has_unacknowledged", "has_events", "expected_s"),
    [
        (False, False, 30.0),
        (True, False, 10.0 + worker_module.ACK_TIMEOUT_S),
        (False, True, 20.0),
        (True, True, 10.0 + worker_module.ACK_TIMEOUT_S),
    ],
)
def test_the_worker_looks_again_when_the_first_of_its_duties_is_due(
    has_unacknowledged: bool, has_events: bool, expected_s: float
) -> None:
    """A renewal at 30 s, an acknowledgement to one heard at 10 s, events held until 20 s."""
    worker = worker_module.Worker(
        "sort", 30.0, "", 0, lambda: None, on_registration=lambda _: None, on_failure=lambda _: None
    )
    worker.session = SimpleNamespace(  # type: ignore[assignment]
        has_unacknowledged=has_unacknowledged, has_events=has_events
    )
    worker._renew_s, worker._hold_s = 30.0, 20.0
    assert worker._next_due_s(worker_module._LiveStream(heard_s=10.0)) == expected_s


def test_a_lease_that_was_lost_is_replaced_and_connections_are_reported_again(
    controller: GrpcController,
) -> None:
    with register("sort", controller=controller.address, ttl_s=0.3, wait_s=LIMIT_S) as app:
        app.declare("a", "b", wait=True)
        controller.model.expire("sort#1")
        until(lambda: app.id == "sort#2" and controller.model.pairs() == [("a", "b")])


def test_answers_that_were_lost_duplicate_nothing(app: App, controller: GrpcController) -> None:
    controller.lose_acks = 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnmanagedWarning)
        made = [app.declare("a", f"b{n}") for n in range(20)]
        until(lambda: all(connection.is_counted for connection in made))
    assert controller.model.opened == 20
    assert len(controller.model.registrations) == 1


def test_a_busy_controller_is_asked_again(app: App, controller: GrpcController) -> None:
    controller.model.refusals.extend([EXHAUSTED] * 3)
    made = app.declare("a", "b")
    until(lambda: made.is_counted)


def test_a_connection_counts_as_long_as_somebody_has_its_socket(
    controller: GrpcController, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "find_hosts", lambda _: ("a", "b"))
    with register("sort", controller=controller.address, ttl_s=0.3, wait_s=LIMIT_S) as app:
        sock = app.connect(*listener.getsockname(), wait=True).socket
        gc.collect()
        renewals = controller.model.registrations["sort#1"].renewals
        until(lambda: controller.model.registrations["sort#1"].renewals > renewals + 2)
        assert controller.model.pairs() == [("a", "b")]
        assert sock is not None
        sock.close()
        del sock
        gc.collect()
        until(lambda: not controller.model.connections)


# ---- Failing open -----------------------------------------------------------------------------


def test_without_a_controller_one_warning_and_everything_works(listener: socket.socket) -> None:
    with record_warnings() as warned:
        app = register("sort", controller=NOBODY)
        with app.connect(*listener.getsockname()) as made:
            assert tos(made.socket) == 0
        app.declare("a", "b", wait=True).close()
        app.close()
    where = f"application sort: best effort: controller {NOBODY}"
    assert warned == [f"{where}: does not answer (Connection refused)"]
    assert (app.level, app.is_managed, app.id) == (0, False, None)


def test_an_application_without_a_model_goes_on_as_best_effort(controller: GrpcController) -> None:
    with (
        pytest.warns(UnmanagedWarning, match="has no model"),
        register("unknown", controller=controller.address) as app,
    ):
        assert app.level == 0


def test_warnings_that_are_errors_leave_nothing_behind() -> None:
    before = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnmanagedWarning):
            register("sort", controller=NOBODY)
    until(lambda: threading.active_count() <= before)


def test_when_the_controller_comes_open_connections_are_marked_and_reported(
    listener: socket.socket,
) -> None:
    with grpc_controller(ModelController()) as controller:
        controller.stop()
        with (
            record_warnings() as warned,
            register("sort", controller=controller.address, wait_s=LIMIT_S) as app,
            app.connect(*listener.getsockname()) as made,
            app.connect(*listener.getsockname()).socket as kept,  # type: ignore[union-attr]
        ):
            declared = app.declare("a", "b")
            app.declare("a", "c").close()
            controller.start()
            until(lambda: declared.is_counted)
            assert tos(made.socket) == 12
            assert tos(kept) == 12
            assert controller.model.pairs() == [("a", "b")]
        assert len(warned) == 1


def test_a_controller_that_dies_takes_no_level_away_and_gets_reports_when_it_is_back(
    app: App, controller: GrpcController
) -> None:
    first = app.declare("a", "b", wait=True)
    with record_warnings() as warned:
        controller.stop()
        second = app.declare("a", "c")
        first.close()
        until(lambda: not app.is_managed)
        assert app.level == 3
        controller.start()
        until(lambda: second.is_counted)
    assert len(warned) == 1
    assert controller.model.pairs() == [("a", "c")]
    assert list(controller.model.registrations) == ["sort#1"]


def test_a_controller_that_does_not_answer_is_left_and_dialled_again(
    app: App, controller: GrpcController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "ACK_TIMEOUT_S", 0.2)
    controller.is_silent = True
    with record_warnings() as warned:
        made = app.declare("a", "b")
        until(lambda: not app.is_managed)
        controller.is_silent = False
        until(lambda: made.is_counted)
    assert ["no acknowledgement" in text for text in warned] == [True]


def test_an_unmanaged_application_keeps_nothing_of_what_it_has_closed(unmanaged: App) -> None:
    for _ in range(100):
        unmanaged.declare("a", "b").close()
    worker = unmanaged._worker
    assert worker is not None
    assert not worker.session.connections
    assert not worker.session._outbox


def test_an_unmanaged_application_keeps_nothing_of_what_was_collected(
    unmanaged: App, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "find_hosts", lambda _: ("a", "b"))
    for _ in range(100):
        with unmanaged.connect(*listener.getsockname()).socket:  # type: ignore[union-attr]
            listener.accept()[0].close()
    gc.collect()
    unmanaged.declare("a", "b").close()
    worker = unmanaged._worker
    assert worker is not None
    assert not worker.session.connections
    assert not worker.collected


def test_where_the_kernel_refuses_marks_everything_works_with_one_warning(
    app: App, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "IP_TOS", 9999)  # no option of any kernel's
    with (
        record_warnings() as warned,
        app.connect(*listener.getsockname()) as ours,
        app.accept(listener) as theirs,
        app.mark(socket.socket()) as other,
    ):
        assert ours.socket is not None
        assert theirs.socket is not None
        assert other.socket is not None
        ours.socket.sendall(b"x")
        assert theirs.socket.recv(1) == b"x"
    assert ["packets cannot be marked" in text for text in warned] == [True]


def test_a_registration_ends_with_the_process(controller: GrpcController) -> None:
    text = f"""
from weft.control.client import register
app = register("sort", controller="{controller.address}", wait_s={LIMIT_S})
app.declare("a", "b", wait=True)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", text], check=True, timeout=30)
    assert controller.model.number == 1
    assert not controller.model.registrations


# ---- Processes --------------------------------------------------------------------------------


def _in_child(app: App, address: tuple[str, int], answer: socket.socket) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with app.connect(*address) as made:
            mark = tos(made.socket)
        app.declare("c", "d")
    app.close()
    answer.send(f"{mark} {len(warned)} {app.id}".encode())


def test_a_forked_process_keeps_the_mark_and_leaves_the_registration_alone(
    app: App, controller: GrpcController, listener: socket.socket
) -> None:
    kept = app.declare("a", "b", wait=True)
    ours, theirs = socket.socketpair()
    child = multiprocessing.get_context("fork").Process(
        target=_in_child, args=(app, listener.getsockname(), theirs)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that threads are there when a process forks
        child.start()
    with ours, theirs:
        ours.settimeout(LIMIT_S)
        assert ours.recv(100) == b"12 1 None"
    child.join(LIMIT_S)
    assert child.exitcode == 0
    assert controller.model.pairs() == [("a", "b")]
    assert kept.is_counted
    assert app.declare("e", "f", wait=True).is_counted


def test_importing_the_library_loads_neither_grpc_nor_numpy() -> None:
    text = """
import sys
import weft.control.client
import weft.cli.control
assert not {"grpc", "numpy", "scipy"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=30)


# ---- The thin layer, addresses and refusals ---------------------------------------------------


def test_the_four_calls_of_the_thesis_do_what_it_says(
    controller: GrpcController, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CONTROLLER", controller.address)
    tag = saba_app_register("scan")
    connection = saba_conn_create(tag, *listener.getsockname())
    assert tos(connection.socket) == 5 << 2
    saba_conn_destroy(connection)
    assert connection.socket is not None
    assert connection.socket.fileno() == -1
    saba_app_deregister(tag)
    assert not controller.model.registrations


@pytest.mark.parametrize(
    ("address", "shown"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1")],
)
def test_an_address_is_reported_in_its_plain_form(address: str, shown: str) -> None:
    assert normalize_address(address) == shown


def test_packets_cross_unless_both_ends_are_one_host() -> None:
    assert leaves_host("10.0.0.1", "10.0.0.2")
    assert not leaves_host("10.0.0.1", "10.0.0.1")
    assert not leaves_host("10.0.0.1", "127.0.0.2")
    assert not leaves_host("::1", "::1")


def test_a_socket_without_another_end_has_nothing_to_report() -> None:
    with socket.socket() as alone, socket.socket(socket.AF_UNIX) as other:
        assert find_hosts(alone) is None
        assert find_hosts(other) is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"name": ""}, "application: '' is no name"),
        ({"name": "a\0b"}, r"application: 'a\\x00b' is no name"),
        ({"name": "a\udcff"}, r"application: 'a\\udcff' is no name; give one of `weft apps`"),
        ({"name": 5}, "application: 5 is no name; give one of `weft apps`"),
        ({"name": "sort", "ttl_s": "x"}, "ttl_s 'x': is no lease; give 0.1 to 86400 seconds"),
        ({"name": "sort", "wait_s": None}, "wait_s None: is no time; give seconds"),
        ({"name": "sort", "job": 7}, "job 7: is no name; give printable characters"),
        ({"name": "sort", "tls": "ca.pem"}, "tls 'ca.pem': is no Tls"),
        ({"name": "sort", "controller": 5}, "controller 5: is no address; give HOST:PORT"),
        ({"name": "sort", "ttl_s": 0.0}, "ttl_s 0: is no lease"),
        ({"name": "sort", "ttl_s": 0.09}, "ttl_s 0.09: is no lease"),
        ({"name": "sort", "ttl_s": 86401.0}, "ttl_s 86401: is no lease; give 0.1 to 86400"),
        ({"name": "sort", "controller": "nowhere"}, "controller 'nowhere': is no address"),
        ({"name": "sort", "controller": "h:65536"}, "controller 'h:65536': is no address"),
    ],
)
def test_what_cannot_be_a_registration_runs_as_best_effort(
    arguments: dict[str, object], problem: str
) -> None:
    with pytest.warns(UnmanagedWarning, match=problem):
        app = register(**arguments)  # type: ignore[arg-type]
    with app, socket.create_server(("127.0.0.1", 0)) as listener:
        assert (app.is_managed, app.level, app.id) == (False, 0, None)
        assert re.search(problem, app.problem)
        with app.connect("127.0.0.1", listener.getsockname()[1]) as connection:
            assert connection.socket is not None
        assert not app.declare("a", "b", wait=True).is_counted
    assert app.problem == "closed"


def test_what_cannot_be_a_registration_is_refused_to_those_who_check() -> None:
    assert check_registration("sort", "127.0.0.1:1", None, 10.0) is None
    with pytest.raises(InputError, match="application: '' is no name"):
        check_registration("", "127.0.0.1:1", None, 10.0)


# ---- TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders with certificates of two authorities that know nothing of each other."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl: not installed")
    ours, others = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("others")
    certificates(ours)
    certificates(others)
    return ours, others


def contents(folder: Path) -> tuple[bytes, bytes, bytes]:
    """As a controller wants them."""
    key, certificate, authority = "controller.key", "controller.pem", "ca.pem"
    return tuple((folder / name).read_bytes() for name in (key, certificate, authority))  # type: ignore[return-value]


def test_with_tls_both_sides_know_each_other(signed: tuple[Path, Path]) -> None:
    ours, _ = signed
    tls = Tls(authority=ours / "ca.pem", certificate=ours / "client.pem", key=ours / "client.key")
    with (
        grpc_controller(ModelController(), contents(ours)) as made,
        register("sort", controller=made.address, tls=tls, wait_s=5.0) as app,
    ):
        assert app.level == 3
        assert app.declare("a", "b", wait=True).is_counted


@pytest.mark.parametrize("wrong", ["authority", "client", "plain"])
def test_with_tls_who_is_not_known_is_no_controller_and_no_client(
    signed: tuple[Path, Path], wrong: str
) -> None:
    ours, others = signed
    folder = others if wrong == "client" else ours
    believed = others if wrong == "authority" else ours
    tls = Tls(
        authority=believed / "ca.pem", certificate=folder / "client.pem", key=folder / "client.key"
    )
    with grpc_controller(ModelController(), contents(ours)) as made:
        with pytest.warns(UnmanagedWarning):
            app = register("sort", controller=made.address, tls=None if wrong == "plain" else tls)
        with app:
            assert not app.is_managed
        assert not made.model.registrations


def test_files_of_tls_that_are_missing_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.warns(UnmanagedWarning, match="missing"):
        register("sort", tls=Tls(authority=missing, certificate=missing, key=missing))


def test_files_of_tls_that_are_something_else_are_named(signed: tuple[Path, Path]) -> None:
    ours, others = signed
    good = {
        "authority": ours / "ca.pem",
        "certificate": ours / "client.pem",
        "key": ours / "client.key",
    }
    for wrong, problem in (
        ({"authority": ours / "client.key"}, "client.key: has no certificate; name a PEM file"),
        ({"certificate": ours / "client.key"}, "client.key: is no certificate of the key"),
        ({"key": others / "client.key"}, "client.pem: is no certificate of the key"),
    ):
        with pytest.warns(UnmanagedWarning, match=problem):
            register("sort", tls=Tls(**good | wrong))


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\0b"])
def test_hosts_that_no_controller_takes_are_not_reported(app: App, name: str) -> None:
    with pytest.warns(UnmanagedWarning, match="is no host name"):
        connection = app.declare(name, "b", wait=True)
    assert not connection.is_counted
    assert "is no host name" in connection.problem
    assert app.is_managed
    assert app.declare("a", "b", wait=True).is_counted
