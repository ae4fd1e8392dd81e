"""Namespaces as hosts: what can be told without making one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.host.machine.processes import read_start_ticks
from weft.host.net import namespaces
from weft.host.testbed.wiring import Wiring


def test_a_name_is_an_orphan_only_when_its_maker_is_gone() -> None:
    ours = namespaces.build_name("a")
    assert ours.startswith(f"weft-{os.getpid()}-")
    assert not namespaces.is_orphan(ours)
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert namespaces.is_orphan(f"weft-{gone.pid}-1-a")
    # Dead, though nobody has waited for it yet.
    with subprocess.Popen(["sleep", "60"]) as zombie:
        its = f"weft-{zombie.pid}-{read_start_ticks(zombie.pid)}-a"
        assert not namespaces.is_orphan(its)
        zombie.kill()
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        assert namespaces.is_orphan(its)
    # The number has a new process: it started at another time.
    assert namespaces.is_orphan(f"weft-{os.getpid()}-1-a")


@pytest.mark.parametrize("name", ["mine", "weft-a-b-c", "weft-12", "xweft-1-1-a"])
def test_namespaces_of_others_are_left_alone(name: str) -> None:
    assert not namespaces.is_orphan(name)


def test_files_of_a_namespace_go_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "FILES", tmp_path)
    for name in ("weft-a", "weft-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hosts").write_text("")
    (tmp_path / "weft-b" / "resolv.conf").write_text("")
    for name in ("weft-a", "weft-b", "weft-without-files"):
        namespaces.remove_files(name)
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "weft-b",
        "weft-b/resolv.conf",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hosts": ()}, "0 hosts"),
        ({"hosts": ("a", "a")}, "taken twice"),
        ({"hosts": ("a", "switch")}, "taken twice, or is 'switch'"),
        ({"limit_bytes": 1000}, "below one packet of 1514 bytes"),
        ({"hosts": tuple(map(str, range(9))), "network": "10.0.0.0/29"}, "use 1 to 5"),
    ],
)
def test_wiring_that_cannot_be_built_is_refused(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"hosts": ("a",), "rate_bps": 10**8, "limit_bytes": 10**5}
    with pytest.raises(InputError, match=message):
        Wiring(**(good | change))  # type: ignore[arg-type]
