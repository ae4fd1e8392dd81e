"""Programs that use the library in C: built here, and one that does what it is told."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALLS = "clib/tests/calls.c"
LIMIT_S = 10.0
_FLAGS = ("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")


def built(program: Path, source: str, *flags: str) -> Path:
    """The library and one source file, as a program."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("cc: not installed")
    sources = [*sorted(map(str, (ROOT / "clib").glob("*.c"))), str(ROOT / source)]
    includes = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'clib'}"]
    subprocess.run(
        [compiler, *_FLAGS, *flags, *includes, *sources, "-o", str(program)],
        check=True,
        timeout=120,
    )
    return program


class Caller:
    """A program that does what it is told."""

    def __init__(self, program: Path, path: Path, *inherited: int) -> None:
        self.process = subprocess.Popen(
            [str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "WEFT_CONTROL_SOCKET": str(path)},
            pass_fds=inherited,
        )
        self.warnings: list[str] = []

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        rest = self.process.stdout.read()
        self.warnings += [line for line in rest.splitlines() if line.startswith("warning")]
        self.process.stdout.close()
        assert self.process.wait(LIMIT_S) == 0

    def ask(self, line: str) -> str:
        """What it says to a line; its warnings are kept."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        while (answer := self.process.stdout.readline().strip()).startswith("warning"):
            self.warnings.append(answer)
        return answer
