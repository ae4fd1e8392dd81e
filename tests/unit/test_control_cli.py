"""`weft control` and `weft run` given what they cannot use: one line, status 2."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="grpc: pip install 'weft[control]'")

from weft.cli import main
from weft.control.service import weft_pb2 as pb
from weft.control.service.operator_client import Controller, call
from weft.errors import InputError


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["status", "--controller", "h:65536"], "controller 'h:65536': is no address"),
        (["status", "--key", "k"], "TLS: only together: --authority, --certificate, --key"),
        (["plan", "--app", "a\udcff"], r"'a\udcff': is not a name; use printable characters"),
        (["plan", "--app", "a", "h0:h\udcff"], r"'h\udcff': is not a name"),
        (["apply", "--remove", "a\udcff#1"], r"'a\udcff#1': is not a name"),
        (["explain", "a\udcff"], r"'a\udcff': is not a name"),
        (["explain", "a\udcff:1"], r"'a\udcff': is not a name"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert main(["control", *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"weft: {message}")


@pytest.mark.parametrize("module", ["grpc", "google.protobuf.runtime_version"])
def test_what_is_not_installed_is_named_with_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["control", "status"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("weft: weft control: gRPC cannot be loaded (")
    assert line.endswith("pip install 'weft[control]'")


def test_a_program_that_does_not_answer_is_no_controller() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        message = f"controller {where}: Deadline Exceeded; see its log, or try again"
        with pytest.raises(InputError, match=message):
            call(Controller(address=where), "Status", pb.StatusRequest(), timeout_s=0.2)


def test_files_of_tls_are_given_together_for_a_command_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "--app", "a", "--tls-key", "k", "--", "true"]) == 2
    message = (
        "weft: TLS: only together: --tls-authority, --tls-certificate, --tls-key; give all three"
    )
    assert capsys.readouterr().err.splitlines() == [message]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--app", ""], "weft: application: '' is no name; give one of `weft apps`"),
        (["--app", "sort", "--ttl", "0.05"], "weft: ttl_s 0.05: is no lease"),
        (["--app", "sort", "--controller", "h:65536"], "weft: controller 'h:65536': is no address"),
    ],
)
def test_a_registration_that_no_controller_takes_is_refused_before_the_command_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    started = tmp_path / "started"
    assert main(["run", *options, "--", "touch", str(started)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)
    assert not started.exists()


def test_simulated_switches_have_nothing_to_give_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = Path(__file__).parents[2] / "examples/control"
    for name in ("fabric.toml", "simulated.toml"):
        (tmp_path / name).write_text((examples / name).read_text())
    assert main(["control", "release", str(tmp_path / "simulated.toml")]) == 2
    errors = capsys.readouterr().err
    assert "weft: driver simulated: keeps no record" in errors
    # A subnet manager that is only restarted writes no tables (tests/live/test_infiniband_live.py).
    assert "OpenSM: qos TRUE" in errors
