"""What a command says when TLS with a controller fails."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from controller_model import ModelController
from controller_server import grpc_controller

from weft.cli import main
from weft.control.client.grpc_link import Tls
from weft.control.client.lab_certificates import make_certificates
from weft.control.client.tls_probe import find_other_names, split_address, wants_tls


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a controller that is known as fabric.lab alone."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl: not installed")
    made = tmp_path_factory.mktemp("lab")
    make_certificates(made, ["fabric.lab"], ["client"], days=2)
    return made


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    key, certificate, authority = (
        (folder / name).read_bytes() for name in ("controller.key", "controller.pem", "ca.pem")
    )
    with grpc_controller(ModelController(), (key, certificate, authority)) as made:
        yield made.port


def run_status(capsys: pytest.CaptureFixture[str], address: str, folder: Path | None = None) -> str:
    files = {"authority": "ca.pem", "certificate": "client.pem", "key": "client.key"}
    options = [f"--{name}={folder / file}" for name, file in files.items()] if folder else []
    assert main(["control", "status", f"--controller={address}", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_port_that_wants_tls_is_called_so(capsys: pytest.CaptureFixture[str], port: int) -> None:
    assert run_status(capsys, f"127.0.0.1:{port}") == (
        f"weft: controller 127.0.0.1:{port}: wants TLS; give --authority, --certificate and --key"
    )


def test_a_certificate_for_another_name_is_told_with_its_names(
    capsys: pytest.CaptureFixture[str], port: int, folder: Path
) -> None:
    for host in ("localhost", "127.0.0.1"):
        assert run_status(capsys, f"{host}:{port}", folder) == (
            f"weft: controller {host}:{port}: its certificate is not for '{host}'; use a name in "
            "the certificate (fabric.lab), or make one with "
            f"`weft control certs --host {host}`"
        )


def test_a_port_where_nobody_listens_does_not_want_tls(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert "does not answer; start one with" in run_status(capsys, "127.0.0.1:1")
    assert "no TLS with it: " in run_status(capsys, "127.0.0.1:1", folder)


def test_a_plain_port_and_another_authority_are_no_reason(port: int, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["fabric.lab"], ["client"], days=2)
    files = ("ca.pem", "client.pem", "client.key")
    authority, certificate, key = (tmp_path / name for name in files)
    stranger = Tls(authority=authority, certificate=certificate, key=key)
    assert find_other_names(f"127.0.0.1:{port}", stranger) is None
    with grpc_controller(ModelController()) as plain:
        assert not wants_tls(plain.address)
        assert find_other_names(plain.address, stranger) is None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not wants_tls(f"127.0.0.1:{silent.getsockname()[1]}")
    assert not wants_tls("unix:/nowhere")


def test_addresses_are_split_as_they_are_written() -> None:
    assert split_address("[::1]:77") == ("::1", 77)
    assert split_address("fabric.lab:77") == ("fabric.lab", 77)
    for address in ("unix:/a:7", "fabric.lab", "fabric.lab:99999", "a..b:7", "a:x"):
        assert split_address(address) is None
        assert not wants_tls(address)
