"""`weft doctor` says what works, what does not, why, and what to do."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from host_tree import plant

from weft._core import Histogram
from weft.cli import main
from weft.host.machine.cpu import read_processors
from weft.host.machine.devices import list_interfaces, list_rdma_devices
from weft.host.machine.examination import (
    Distance,
    Examination,
    Transport,
    list_transports,
    measure_noise,
    read_clock,
    read_memory,
)

TCP = Transport(over="tcp", available=True, endpoints=("stream",), operations=("send",))
DELAY = Transport(over="delay", available=True)
NO_VERBS = Transport(
    over="verbs", available=False, reason="there is no RDMA device", remedy="load its driver"
)


def examination(root: Path) -> Examination:
    return Examination(
        host="node17",
        kernel="Linux 5.14.0 x86_64",
        clock=read_clock(),
        processors=read_processors(root),
        memory=read_memory(root),
        pages="2M",
        rdma_devices=list_rdma_devices(root),
        interfaces=list_interfaces(root),
        noise=measure_noise(0.001),
        distances=(Distance(0, 8, "one core", 21_400), Distance(0, 1, "node 0", None)),
    )


@pytest.fixture
def doctor(tmp_path, monkeypatch, capsys):
    """Runs the command on a host of tests/data with these transports: status and output."""

    def run(result, *options, host="mlx5", **changes):
        root = tmp_path / host
        seen = replace(examination(root if root.exists() else plant(host, root)), **changes)
        monkeypatch.setattr("weft.cli.doctor.examine", lambda _seconds: seen)
        monkeypatch.setattr("weft.cli.doctor.list_transports", lambda: result)
        return main(["doctor", *options]), capsys.readouterr().out

    return run


def test_this_host_is_described_and_can_be_measured_over_tcp(capsys):
    assert main(["doctor", "--seconds", "0.05"]) == 0
    out = capsys.readouterr().out
    for heading in ("HOST", "RDMA DEVICES", "INTERFACES", "TRANSPORTS", "TO FIX"):
        assert f"\n{heading}" in out
    assert "\n  tcp " in out
    assert max(map(len, out.splitlines())) <= 200


def test_json_holds_the_same_for_machines(capsys):
    assert main(["doctor", "--seconds", "0.05", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["usable"] is True
    assert data["clock"]["hz"] > 0
    assert data["memory"]["buffer_pages"] in ("2M", "thp", "4K")
    assert {"tcp", "udp"} <= {t["over"] for t in data["transports"] if t["available"]}
    assert data["noise"]["watched_ns"] > 0


def test_a_host_with_rdma_shows_ports_modes_and_what_to_fix(doctor):
    status, out = doctor([TCP])
    assert status == 0
    assert "mlx5_0  1     ACTIVE  200 Gb/sec (4X HDR)  InfiniBand  1" in out
    assert "ib0       ipoib connected  up       65520  200 Gb/s  1" in out
    assert "ib0.8001  ipoib datagram" in out
    assert "governor      performance on CPUs 4-7,12-15; powersave on CPUs 0-3,8-11" in out
    assert "64 KiB may be locked" in out
    assert "CPUs 0 and 8 (one core): 21 ns" in out
    assert "CPUs 0 and 1 (node 0): not measured: a CPU was busy" in out
    assert "→ set `memlock unlimited` in /etc/security/limits.conf" in out


def test_a_container_shows_its_limits(doctor):
    _, out = doctor([TCP], host="efa")
    assert "CPUs 0,2-3, 1.5 CPUs' worth of time" in out
    assert "cgroup limit 8 GiB" in out
    assert "transparent: never" in out


def test_what_is_not_available_says_why_and_what_to_do(doctor):
    _, out = doctor([NO_VERBS, TCP])
    assert "  verbs  not available, because there is no RDMA device\n" in out
    assert "         → load its driver\n" in out
    assert "  tcp    available; stream: send\n" in out


@pytest.mark.parametrize(("result", "status"), [([TCP, DELAY], 0), ([NO_VERBS, DELAY], 1), ([], 1)])
def test_the_status_tells_whether_anything_can_be_measured_over(doctor, result, status):
    assert doctor(result)[0] == status
    assert doctor(result, "--json")[0] == status


def test_a_quiet_host_has_nothing_to_fix(doctor):
    seen = replace(
        read_processors(), governors={}, cpu_limit=None, allowed=(0, 1), core_of={0: 0, 1: 1}
    )
    _, out = doctor(
        [TCP],
        clock=replace(read_clock(), invariant=True),
        processors=seen,
        rdma_devices=(),
        interfaces=(),
        noise=replace(measure_noise(0.001), gaps=Histogram()),
    )
    assert "TO FIX: nothing found" in out


def test_providers_show_all_their_facts_by_endpoint_kind(doctor):
    facts = {"version": "117.0", "rdm.protocol": "FI_PROTO_SHM", "rdm.caps": "FI_MSG"}
    shm = Transport(over="ofi:shm", available=True, endpoints=("rdm",), facts=facts)
    status, out = doctor([shm], "--providers")
    assert status == 0
    assert out.splitlines()[1:] == [
        "    version: 117.0",
        "    rdm",
        "      caps: FI_MSG",
        "      protocol: FI_PROTO_SHM",
    ]
    (data,) = json.loads(doctor([shm], "--providers", "--json")[1])
    assert data["facts"] == facts


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "nan"])
def test_a_time_that_makes_no_sense_is_refused(seconds, capsys):
    assert main(["doctor", f"--seconds={seconds}"]) == 2
    assert "--seconds: " in capsys.readouterr().err


# ---- MPI is tried in another process ----------------------------------------------------------


def mpi() -> Transport:
    (result,) = (transport for transport in list_transports() if transport.over == "mpi")
    return result


def test_mpi_without_mpi4py_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert (mpi().available, mpi().remedy) == (False, "pip install 'weft[mpi]'")


@pytest.fixture
def fake_mpi(tmp_path, monkeypatch):
    """An mpirun that exists and an mpi4py whose MPI module is the given text."""

    def make(module: str) -> None:
        package = tmp_path / "mpi4py"
        package.mkdir()
        (package / "__init__.py").write_text("class rc: pass\n")
        (package / "MPI.py").write_text(module)
        (tmp_path / "mpirun").write_text("#!/bin/sh\n")
        (tmp_path / "mpirun").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.syspath_prepend(str(tmp_path))

    return make


def test_mpi_that_loads_is_available_with_its_name(fake_mpi):
    fake_mpi("def Get_library_version(): return 'Any MPI v1.2, package\\0'\n")
    assert mpi().available
    assert mpi().facts["library"] == "Any MPI v1.2"


def test_mpi_that_cannot_be_loaded_says_so(fake_mpi):
    fake_mpi("raise RuntimeError('cannot load MPI library')\n")
    assert mpi().reason.endswith("cannot be loaded: RuntimeError: cannot load MPI library")


def test_mpi_that_hangs_is_given_up(fake_mpi, monkeypatch):
    fake_mpi("")

    def late(*_args, **_options):
        raise subprocess.TimeoutExpired("python", 10)

    monkeypatch.setattr("subprocess.run", late)
    assert mpi().reason == "loading the MPI library took more than 10 s"


# ---- Transports at a glance -------------------------------------------------------------------


def test_endpoint_kinds_are_told_apart_where_their_operations_differ(doctor):
    every = "send, tagged, inject, write, write-imm, read, fetch-add, compare-swap"
    udp = Transport(
        over="ofi:udp",
        available=True,
        endpoints=("rdm", "dgram"),
        operations=tuple(every.split(", ")),
        facts={"rdm.operations": every, "dgram.operations": "send, inject"},
    )
    _, out = doctor([udp])
    assert "  ofi:udp  available; rdm: all operations; dgram: send, inject\n" in out


def test_transports_that_miss_the_same_thing_are_listed_together_after_those_that_work(doctor):
    psm, efa = (replace(NO_VERBS, over=f"ofi:{name}") for name in ("psm", "efa"))
    lines = doctor([psm, efa, TCP])[1].splitlines()
    start = lines.index("TRANSPORTS") + 1
    assert lines[start : start + 4] == [
        "  tcp      available; stream: send",
        "  ofi:psm, ofi:efa",
        "           not available, because there is no RDMA device",
        "           → load its driver",
    ]


def test_what_never_ran_on_its_hardware_says_so(doctor):
    port = {"port": "1", "link_layer": "Ethernet", "rate": "100 Gb/sec", "srd": "unverified: never"}
    device = replace(TCP, over="verbs:rdmap0s6", endpoints=("srd",), facts=port)
    _, out = doctor([device])
    assert "port 1, Ethernet 100 Gb/sec; srd: send; srd unverified: never" in out
