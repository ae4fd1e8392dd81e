"""The recipe of docs/switches.md for a subnet without hardware, run as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from needs import need_grpc, need_ibsim

ROOT = Path(__file__).parents[2]
HEADING = "### Without hardware: ibsim and OpenSM"
LIMIT_S = 120.0


def recipe() -> tuple[str, list[str]]:
    """The commands, and the lines that they are shown to print."""
    _, found, section = (ROOT / "docs" / "switches.md").read_text().partition(HEADING)
    assert found
    (_, commands), (_, shown) = re.findall(r"^```(sh|text)\n(.*?)^```", section, re.M | re.S)[:2]
    return commands, shown.splitlines()


def test_the_recipe_programs_a_subnet_and_ends_what_it_started(tmp_path: Path) -> None:
    need_ibsim()
    need_grpc()
    commands, shown = recipe()
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    address = f"unix:{tmp_path}/control.sock"  # the usual one may be somebody's
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-eu", "-c", commands],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path, "WEFT_CONTROLLER": address},
        start_new_session=True,
    ) as process:
        try:
            # Returns when nobody has its output any more: all that was started has ended.
            told, _ = process.communicate(timeout=LIMIT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, told
    lines = iter(told.splitlines())
    for line in shown:
        assert line in lines, f"{line!r} is not in, or not in this order:\n{told}"
