"""One process at a time, and a dead one holds nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.host.machine.processes import hold_lock, hold_lock_in_folder

HOLDER = """
import sys, time
from pathlib import Path
from weft.host.machine.processes import hold_lock
with hold_lock(Path(sys.argv[1]), "bed", "test", 5):
    print("held", flush=True)
    time.sleep(60)
"""
ADDER = """
import sys
from pathlib import Path
from weft.host.machine.processes import hold_lock_in_folder
lock, number = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(100):
    with hold_lock_in_folder(lock, "bed", "test", 30):
        number.write_text(str(int(number.read_text()) + 1))
"""


def test_the_second_is_told_who_holds_it_and_a_killed_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "bed.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        message = rf"bed: is in use by process {holder.pid} \(test\)"
        with pytest.raises(InputError, match=message), hold_lock(path, "bed", "us", 0.1):
            pass
        holder.kill()
        holder.wait()
        with hold_lock_in_folder(path, "bed", "us", 5):
            assert path.exists()
    assert not path.parent.exists()


def test_a_lock_whose_file_was_removed_meanwhile_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "bed.lock"
    with hold_lock(path, "bed", "us", 5):
        path.unlink()
    with hold_lock(path, "bed", "us", 5):
        assert path.exists()


def test_a_folder_that_is_not_the_locks_own_stays(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "bed.lock"
    with hold_lock(path, "bed", "us", 5):
        assert path.exists()
    assert [*path.parent.iterdir()] == []


@pytest.mark.parametrize("folder", ["nowhere", "nowhere/below", "file", "file/below"])
def test_a_folder_that_cannot_be_is_refused_at_once(folder: str, tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone" / "far")
    (tmp_path / "file").write_text("")
    path = tmp_path / folder / "bed.lock"
    message = r"bed\.lock: cannot be made: .*; check the path"
    with pytest.raises(InputError, match=message), hold_lock(path, "bed", "us", 5):
        pass


def test_no_increment_is_lost_though_file_and_folder_come_and_go(tmp_path: Path) -> None:
    path, number = tmp_path / "folder" / "lock", tmp_path / "number"
    number.write_text("0")
    argv = [sys.executable, "-c", ADDER, str(path), str(number)]
    adders = [subprocess.Popen(argv) for _ in range(3)]
    assert [adder.wait(120) for adder in adders] == [0, 0, 0]
    assert number.read_text() == "300"
