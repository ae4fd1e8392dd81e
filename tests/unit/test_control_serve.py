"""A controller as a process, from its file to its switches and back; and its parts at the edge."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="gRPC: pip install 'weft[control]'")

from control_parts import FABRIC, after, connect, ready, register, running
from control_process import ControlProcess, save_applications
from control_process import running as running_process
from serve_process import wait_until

from weft.control.operators.trial import build_trial_input, run_trial, simulate_trials
from weft.control.runtime import controller
from weft.control.runtime.config import DRIVERS, read_config
from weft.control.runtime.controller import release_ports
from weft.control.runtime.restore import TableWatch
from weft.control.service import weft_pb2 as pb
from weft.control.service.operator_client import Controller, call
from weft.control.state.state import State
from weft.control.store.sqlite_store import Store
from weft.errors import InputError
from weft.sensitivity.application import Profile, Run, fit_application
from weft.sensitivity.application_table import AppTable
from weft.sensitivity.model import Polynomial
from weft.switches import Claim, PortName

WAIT_S = 30.0


def key(number: int) -> pb.Key:
    return pb.Key(client="test", sequence=number)


def proposal(name: str, *pairs: tuple[str, str]) -> pb.Proposal:
    connections = [pb.Pair(source=a, destination=b) for a, b in pairs]
    return pb.Proposal(register=[pb.NewApplication(application=name, connections=connections)])


# ---- The process ------------------------------------------------------------------------------


def test_a_controller_programs_switches_follows_the_table_and_goes_on_after_a_restart(
    tmp_path: Path,
) -> None:
    process = ControlProcess(tmp_path)
    socket_path = tmp_path / "control.sock"
    with running_process(process):
        address = Controller(address=process.address)
        request = pb.ApplyRequest(
            key=key(1), proposal=proposal("calm", ("h0", "h2")), wait_s=WAIT_S
        )
        applied = call(address, "Apply", request, WAIT_S)
        assert ([*applied.ids], applied.revision, [*applied.problems]) == (["calm#1"], 1, [])
        assert socket_path.stat().st_mode & 0o777 == 0o666
        status = call(address, "Status", pb.StatusRequest(ports=True), WAIT_S)
        assert (status.programmed, status.ports, status.ports_pending) == (1, applied.ports, 0)
        weights = {
            PortName(port.port.node, port.port.port): tuple(port.weights)
            for port in status.listed_ports
        }
        save_applications(tmp_path / "apps", {"late": 0.3})

        def has_late_model() -> bool:
            return bool(call(address, "Status", pb.StatusRequest(), WAIT_S).models == 4)

        wait_until(has_late_model, "the table was read again", WAIT_S)
        texts = [line["text"] for line in process.lines()]
        table = tmp_path / "apps"
        start = f"0 applications, 0 connections, 3 models ({table}), revision 0; weft "
        assert texts[0].startswith(start)
        assert any(text.startswith("fabric leaf_spine: 4 hosts, 4 switches, ") for text in texts)
    assert not socket_path.exists()
    held = process.held()
    assert {name: held[name].weights for name in weights} == weights
    with running_process(process):
        texts = [line["text"] for line in process.lines()]
        assert texts[0].startswith(f"1 application, 1 connection, 4 models ({table}), revision 1; ")
        again = call(Controller(address=process.address), "Apply", request, WAIT_S)
        assert ([*again.ids], again.revision) == (["calm#1"], 1)
    assert process.held() == held


def test_a_controller_ends_quietly_while_a_client_is_idle(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client, running_process(ControlProcess(tmp_path)) as made:
        client.connect(str(tmp_path / "control.sock"))
        client.sendall(struct.pack(">I", 2) + b"{}")
        assert client.recv(4)
        made.end()
        assert made.errors.read_text() == ""


def test_a_controller_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    with running_process(ControlProcess(tmp_path)) as made:
        now, most = resource.prlimit(made.pid, resource.RLIMIT_NOFILE)
    assert now == most


def test_a_mistake_in_the_file_ends_the_start_and_silent_switches_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = ControlProcess(tmp_path)
    text = process.file.read_text()
    process.file.write_text(text + "queues = 99\n")
    with pytest.raises(InputError, match=r"control\.toml: switches\.queues: 99 is out of range"):
        controller._open_drivers(read_config(process.file), Claim(owner="test"))
    process.file.write_text(text)

    def fail(*_: object) -> None:
        raise InputError("switches", "no answer")

    monkeypatch.setitem(DRIVERS, "simulated", fail)
    drivers = controller._open_drivers(read_config(process.file), Claim(owner="test"))
    assert not drivers.is_lent


def test_ports_are_released_only_while_no_controller_has_the_store(tmp_path: Path) -> None:
    process = ControlProcess(tmp_path)
    config = read_config(process.file)
    for _ in range(2):  # the first leaves store and registers free
        with pytest.raises(InputError, match="driver simulated: keeps no record of what ports had"):
            release_ports(config)
    store = Store.open(config.store)
    with pytest.raises(InputError, match="is in use by another controller"):
        release_ports(config)
    store.close()


# ---- Simulations for operators ----------------------------------------------------------------


def simulate(*states: State) -> list[dict[str, float]]:
    inputs = [build_trial_input(state) for state in states]
    return [dict(rates) for rates in asyncio.run(simulate_trials(*inputs))]


def test_a_simulation_in_a_process_gives_what_one_here_gives() -> None:
    state, (calm, keen) = running("calm", "keen")
    trial = build_trial_input(state)
    assert trial is not None
    assert {(flow.application, flow.source, flow.target) for flow in trial.flows} == {
        (calm, "h0", "h2"),
        (keen, "h0", "h2"),
    }
    assert {flow.application: flow.level for flow in trial.flows} == {calm: 1, keen: 3}
    assert dict(trial.tables) == dict(state.target)
    assert trial.scheduler == "vlarb"
    rates = simulate(state, ready())
    assert rates == [run_trial(trial).by_application_bps, {}]
    assert rates[0][keen] > rates[0][calm] > 0


def test_connections_without_a_managed_path_are_not_simulated() -> None:
    state, id_ = register(ready(), "calm", 1)
    assert build_trial_input(state) is None
    state = after(state, connect(id_, "h0", "nowhere", 1), connect(id_, "h1", "h1", 2))
    assert build_trial_input(state) is None


def test_more_connections_than_can_be_simulated_are_refused() -> None:
    state, id_ = register(ready(), "calm", 1)
    state = after(state, *[connect(id_, "h0", "h2", n) for n in range(1, 501)])
    trial = build_trial_input(state)
    assert trial is not None
    assert len(trial.flows) == 500
    problem = "501 connections between 4 hosts; at most 500 and 1000: plan without it"
    with pytest.raises(InputError, match=problem):
        build_trial_input(after(state, connect(id_, "h0", "h2", 501)))
    assert len(FABRIC.hosts) == 4


# ---- The table of applications ----------------------------------------------------------------


def names(changes: list) -> dict[str, bool]:
    """Changed applications, and whether they have a model."""
    return {change.name: change.model is not None for change in changes}


def test_changes_of_the_table_are_reported_once(tmp_path: Path) -> None:
    save_applications(tmp_path, {"a": 0.1, "b": 0.2})
    watch = TableWatch(tmp_path)
    assert names(watch.changes()) == {"a": True, "b": True}
    assert watch.changes() == []
    save_applications(tmp_path, {"b": 0.5})
    (tmp_path / "a.json").unlink()
    assert names(watch.changes()) == {"a": False, "b": True}
    assert set(watch.models) == {"b"}
    os.utime(tmp_path / "b.json", ns=(1, 1))  # the same model in a file that looks new
    assert watch.changes() == []


def test_a_file_that_cannot_be_read_is_a_problem_until_it_can(tmp_path: Path) -> None:
    save_applications(tmp_path, {"a": 0.1})
    watch = TableWatch(tmp_path)
    watch.changes()
    (tmp_path / "a.json").write_text("{")
    assert watch.changes() == []
    assert set(watch.problems) == {"a"}
    assert set(watch.models) == {"a"}
    save_applications(tmp_path, {"a": 0.7})
    assert names(watch.changes()) == {"a": True}
    assert watch.problems == {}


def test_the_table_s_polynomials_are_used_where_the_file_asks_for_them(tmp_path: Path) -> None:
    save_applications(tmp_path, {"a": 0.1})
    watch = TableWatch(tmp_path, 2)
    watch.changes()
    curve = watch.models["a"].curve
    assert isinstance(curve, Polynomial)
    assert curve.degree == 2
    runs = tuple(Run(share=share, completion=1 / share) for share in (0.5, 1.0))
    AppTable(tmp_path).save(fit_application(Profile(name="b", runs=runs)))
    watch.changes()
    assert set(watch.models) == {"a"}
    assert "application b: has no polynomial of degree 2" in watch.problems["b"]


def test_a_change_that_was_not_applied_is_reported_again(tmp_path: Path) -> None:
    save_applications(tmp_path, {"a": 0.1, "b": 0.2})
    watch = TableWatch(tmp_path)
    watch.changes()
    watch.forget("a")
    assert names(watch.changes()) == {"a": True}
