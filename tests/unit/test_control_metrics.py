"""What a controller tells those who watch it: Prometheus, gRPC's health checks, systemd."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="gRPC: pip install 'weft[control]'")

import grpc
from control_parts import connect, key
from control_process import Client, ControlProcess, running
from control_rig import Memory, Rig
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import parser
from serve_process import wait_until

from weft.cli import main
from weft.control.runtime.config import read_config
from weft.control.runtime.liveness import report_standby
from weft.control.runtime.metrics import _format_sent
from weft.control.state.events import Register
from weft.errors import InputError
from weft.host.machine.processes import notify_service_manager

WAIT_S = 30.0


@dataclass
class Scrape:
    """The text of /metrics, and its samples by name and labels."""

    text: str

    def value(self, name: str, **labels: str) -> float:
        samples = (s for family in self.families() for s in family.samples)
        (value,) = (s.value for s in samples if (s.name, s.labels) == (name, labels))
        return float(value)

    def families(self) -> list[object]:
        return list(parser.text_string_to_metric_families(self.text))


def scrape(control: ControlProcess) -> Scrape:
    (line,) = (line for line in control.lines() if line["text"].startswith("metrics on "))
    url = f"http://{line['text'].removeprefix('metrics on ')}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as reply:
        return Scrape(reply.read().decode())


class Manager:
    """Listens as systemd does, in a thread."""

    def __init__(self, path: Path) -> None:
        self.path, self.heard = path, list[str]()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while (said := self._socket.recv(4096).decode()) != "":
            self.heard.append(said)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", str(self.path))
        self._thread.join(WAIT_S)
        self._socket.close()


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    manager = Manager(tmp_path_factory.mktemp("manager") / "notify")
    yield manager
    manager.close()


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory, manager: Manager) -> Iterator[ControlProcess]:
    """At its end systemd hears of it, last."""
    process = ControlProcess(tmp_path_factory.mktemp("control"), more='metrics = "127.0.0.1:0"')
    notify = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "9000000"}
    process.environment = {**os.environ, **notify}
    with running(process):
        yield process
    wait_until(lambda: manager.heard[-1] == "STOPPING=1", "systemd hears of the end", WAIT_S)


@pytest.fixture(scope="module")
def scraped(control: ControlProcess) -> Scrape:
    """Two jobs, one of two registrations, with a connection each."""
    with Client(control.address) as client:
        client.settled()
        for name in ("keen", "calm"):
            client.connect(client.register(name).id, "h0", "h2")
        client.settled()
        return scrape(control)


def test_counts_are_those_of_the_status(control: ControlProcess, scraped: Scrape) -> None:
    with Client(control.address) as client:
        status = client.status()
    for name in ("revision", "connections", "connections_without_path"):
        assert scraped.value(f"weft_control_{name}") == getattr(status, name)
    assert scraped.value("weft_control_leases") == scraped.value("weft_control_jobs") == 2
    assert scraped.value("weft_control_ports", status="programmed") == status.ports
    assert scraped.value("weft_control_ports", status="failing") == 0
    assert scraped.value("weft_control_drifts_total") == status.drifts
    assert scraped.value("weft_control_programmed_revision") == status.programmed
    assert scraped.value("weft_control_store_writable") == 1


def test_shares_of_a_port_s_queues_make_a_whole(control: ControlProcess, scraped: Scrape) -> None:
    (weights,) = (f for f in scraped.families() if f.name == "weft_control_port_weight_ratio")
    at_host = [s for s in weights.samples if (s.labels["node"], s.labels["port"]) == ("h0", "1")]
    assert sum(sample.value for sample in at_host) == pytest.approx(1)
    (tables,) = (tables for name, tables in control.held().items() if name == ("h0", 1))
    expected = [weight / sum(tables.weights) for weight in tables.weights]
    assert [sample.value for sample in at_host] == pytest.approx(expected)


def test_durations_are_gathered_for_every_commit_and_programmed_port(scraped: Scrape) -> None:
    assert scraped.value("weft_control_commit_seconds_count") >= 2
    assert scraped.value("weft_control_programming_seconds_count") >= 4
    assert scraped.value("weft_control_programming_seconds_sum") > 0


def test_no_metric_has_a_label_per_client(scraped: Scrape) -> None:
    labels = {label for f in scraped.families() for s in f.samples for label in s.labels}
    assert labels <= {"le", "version", "status", "node", "port", "queue"}


def test_every_metric_is_documented(scraped: Scrape) -> None:
    text = Path(__file__).parents[2].joinpath("docs/operations.md").read_text()
    names = {f.name for f in scraped.families() if f.name.startswith("weft_")}
    names = {name.removesuffix("_created") for name in names}
    assert names == {n.removesuffix("_total") for n in re.findall(r"weft_control_[a-z_]+", text)}


def test_promtool_finds_nothing_to_complain_of(scraped: Scrape) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool: apt-get install prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=scraped.text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_time_from_a_request_to_what_was_read_back_is_measured(tmp_path: Path) -> None:
    durations: list[float] = []
    rig = Rig(tmp_path / "control.db")
    rig.reconciler._observe_programming = durations.append
    rig.ask(Register(key=key(1), name="calm", ttl_s=60.0, now_s=0.0))
    rig.settle()
    assert durations == [], "no port was changed"
    rig.ask(connect("calm#1", "h0", "h2", 2))
    rig.pass_time(0.5)
    rig.settle()
    assert len(durations) == len(rig.engine.state.target) > 0
    rig.close()


def test_what_queues_have_sent_is_read_with_each_check(tmp_path: Path) -> None:
    switches = Memory()
    rig = Rig(tmp_path / "control.db", switches)
    rig.reconciler._counts_sent = True
    rig.ask(Register(key=key(1), name="calm", ttl_s=600.0, now_s=0.0))
    rig.ask(connect("calm#1", "h0", "h2", 2))
    rig.settle()
    port, *_ = rig.engine.state.target
    switches.sent = {port: (7, 9)}
    rig.pass_time(30.0)
    rig.settle()
    assert rig.reconciler.sent == {port: (7, 9)}
    text = _format_sent(rig.reconciler.sent)
    assert text.endswith(f'node="{port.node}",port="{port.port}",queue="1"}} 9\n')
    switches.sent = {}
    rig.pass_time(30.0)
    rig.settle()
    assert rig.reconciler.sent == {}
    rig.close()


def test_health_checks_are_answered_on_the_socket_and_tcp(control: ControlProcess) -> None:
    for address in (control.address, f"unix:{control.folder}/control.sock"):
        with grpc.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for service in ("", "weft.control.v1.Controller"):
                request = health_pb2.HealthCheckRequest(service=service)
                reply = stub.Check(request, timeout=WAIT_S)
                assert reply.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.RpcError) as refused:
                stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=WAIT_S)
            assert refused.value.code() == grpc.StatusCode.NOT_FOUND


def test_systemd_hears_of_the_start_and_that_it_lives(
    control: ControlProcess, manager: Manager
) -> None:
    assert control.address
    said = {"WATCHDOG=1", "STATUS=serving"}
    wait_until(lambda: said <= set(manager.heard), "systemd hears of it", WAIT_S)
    assert (manager.heard[0], manager.heard.count("READY=1")) == ("READY=1", 1)


def test_a_manager_that_does_not_read_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as silent:
        silent.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        for _ in range(2000):
            notify_service_manager("WATCHDOG=1")
        assert silent.recv(4096) == b"WATCHDOG=1"


def test_systemd_hears_that_a_standby_is_ready_and_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with report_standby(every_s=0.001):
            assert manager.recv(4096) == b"READY=1\nSTATUS=standby"
            assert manager.recv(4096) == b"WATCHDOG=1"


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("", "nonsense", "/nowhere/notify"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify_service_manager("READY=1")


def write_file(folder: Path, more: str) -> Path:
    file = folder / "control.toml"
    switches = '[switches]\ndriver = "simulated"\nfabric = "f.toml"\n'
    file.write_text(f'store = "control.db"\n{more}\n{switches}')
    return file


def test_an_address_for_metrics_is_read(tmp_path: Path) -> None:
    for text, host, port in (("127.0.0.1", "127.0.0.1", 9340), ("[::1]:99", "::1", 99)):
        metrics = read_config(write_file(tmp_path, f'metrics = "{text}"')).metrics
        assert metrics is not None
        assert (metrics.host, metrics.port) == (host, port)
    assert read_config(write_file(tmp_path, "")).metrics is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.0.0.0:9340", "metrics: '0.0.0.0' is not loopback, so TLS is needed; add"),
        ("127.0.0.1:x", "metrics: '127.0.0.1:x' is not HOST.*such as 127.0.0.1:9340"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(
    tmp_path: Path, value: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_config(write_file(tmp_path, f'metrics = "{value}"'))


def test_a_port_that_is_taken_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = ControlProcess(tmp_path, more=f'metrics = "127.0.0.1:{port}"')
        assert main(["control", "serve", str(process.file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"weft: metrics 127.0.0.1:{port}: Address already in use; end who")
