"""`weft testbed` given what it cannot use: one line, status 2, nothing made."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from weft.cli import main
from weft.host.net import namespaces
from weft.host.testbed import persistent

UP = ["testbed", "up", "--name", "unit-test", "--hosts", "2", "--rate", "200M"]


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(persistent, "STATES", tmp_path / "weft" / "testbeds")
    monkeypatch.setattr(namespaces, "find_obstacle", lambda: "not root")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def message(capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
    status = main(argv)
    output = capsys.readouterr()
    assert status == 2, output
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def changed(option: str, value: str) -> list[str]:
    return [*UP, option, value]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (changed("--rate", "0M"), "--rate 0M: is not in 8 kb/s to 10 Tb/s"),
        ([*UP, "--rate=-5M"], "--rate: '-5M' is not a rate"),
        (changed("--rate", "200"), "'200' is not a rate; write a number and a unit"),
        (changed("--rate", "nanM"), "is not a rate"),
        (changed("--rate", "900T"), "is not in 8 kb/s to 10 Tb/s"),
        (changed("--uplink", "0 Mb/s"), "--uplink 0 Mb/s: is not in 8 kb/s to 10 Tb/s"),
        (changed("--hosts", "0"), "--hosts 0: is not in 1 to 253"),
        (changed("--hosts", "254"), "--hosts 254: is not in 1 to 253"),
        (changed("--hosts", "two"), "--hosts two: is not in 1 to 253"),
        (changed("--limit", "100 B"), "below one packet of 1514 bytes"),
        (changed("--burst", "9 GiB"), "--burst '9 GiB': is not in 1 B to 4 GiB"),
        (changed("--mtu", "64"), "--mtu 64: is not in 576 to 65535"),
        (changed("--name", "../x"), "--name '../x': is not a testbed's name"),
        ([*changed("--switches", "leaf-spine"), "--leaves", "5"], "2 hosts for 5 switches"),
        (UP, "testbed: cannot be built here: not root; run it as root on Linux"),
        (["testbed", "exec", "h1"], "testbed exec: no command is given"),
        (["testbed", "exec", "h1", "--", "ls"], "testbed default: is not up; run `weft testbed up"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    assert words in message(capsys, argv)
    assert not persistent.STATES.exists()


def test_a_rate_may_be_written_as_tc_does_or_with_its_unit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for rate in ("200M", "0.2G", "200 Mb/s", "200Mbit/s", "25 MB/s"):
        assert "not root" in message(capsys, changed("--rate", rate))


def test_without_a_testbed_status_and_down_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["testbed", "status"]) == 0
    assert capsys.readouterr().out == "no testbed is up\n"
    assert main(["testbed", "status", "--name", "lab", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"testbeds": [{"name": "lab", "up": False}]}
    assert main(["testbed", "down", "--name", "lab"]) == 0
    assert capsys.readouterr().out == "testbed lab: is not up\n"


def test_a_state_file_that_is_none_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    persistent.STATES.mkdir(parents=True)
    (persistent.STATES / "lab.json").write_text("{")
    assert "lab.json: is not a testbed's state; delete it" in message(
        capsys, ["testbed", "status", "--name", "lab"]
    )
