"""Completion in the real shells, and manual pages as groff reads them."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from weft import __version__
from weft.cli import main
from weft.cli.parser import COMMANDS, build_parser
from weft.cli.shell_pages import SHELLS, walk_parsers

CASES = [
    ("weft lat", {"latency"}),
    ("weft control s", {"serve", "status"}),
    ("weft testbed up --sp", {"--spines"}),
    ("weft control apps --auth", {"--authority"}),
    ("weft fabric f.toml --routing ", {"destination_modulo", "ecmp", "shortest_path", "up_down"}),
    ("weft completion ", {"bash", "zsh", "fish"}),
    ("weft latency --wait ", {"spin", "block"}),
]


def needs(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        if program in os.environ.get("WEFT_REQUIRE", "").split(","):
            pytest.fail(f"{program} is required")
        pytest.skip(f"{program} is not installed")
    return path


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    file = tmp_path / f"weft.{request.param}"
    file.write_text(SHELLS[request.param](build_parser()) + "\n")
    return file


@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash_completes(script: Path, line: str, expected: set[str]) -> None:
    words = line.split(" ")
    code = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weft; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        [needs("bash"), "-c", code, script, *words], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == expected
    assert not done.stderr


@pytest.mark.parametrize("script", ["fish"], indirect=True)
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish_completes(script: Path, line: str, expected: set[str]) -> None:
    code = f"source {script}; complete -C '{line}'"
    home = {**os.environ, "HOME": str(script.parent)}
    done = subprocess.run(
        [needs("fish"), "--no-config", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=home,
    )
    assert {row.split("\t")[0] for row in done.stdout.splitlines()} == expected


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_completes(script: Path) -> None:
    """A terminal is typed at: zsh completes nowhere else."""
    with ZshTerminal(needs("zsh"), script) as zsh:
        for line, expected in CASES:
            shown = zsh.complete(line)
            assert all(word in shown for word in expected), (line, shown)


class ZshTerminal:
    """An interactive zsh with the script loaded."""

    def __init__(self, zsh: str, script: Path) -> None:
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            os.environ |= {"HOME": str(script.parent), "TERM": "dumb", "COLUMNS": "200"}
            os.execv(zsh, ["zsh", "-f", "-i"])
        start = f"PS1='>'; autoload -Uz compinit; compinit -u -D; source {script}; echo rea''dy\n"
        os.write(self._terminal, start.encode())
        self._read_until("ready")

    def complete(self, line: str) -> str:
        """What appears after a tab, and then a second one for the list."""
        os.write(self._terminal, f"{line}\t\t".encode())
        shown = self._read_until(None)
        os.write(self._terminal, b"\x15")  # Ctrl-U: an empty line again
        self._read_until(None)
        return shown

    def _read_until(self, text: str | None) -> str:
        """Until the text comes, or until nothing has come for a while."""
        shown, deadline = "", time.monotonic() + 30
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self._terminal], [], [], 20 if text else 1.5)
            if not ready:
                break
            shown += os.read(self._terminal, 65536).decode(errors="replace")
            if text and text in shown:
                break
        return shown

    def __enter__(self) -> ZshTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._terminal)  # its end hangs up
        os.waitpid(self._process, 0)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_option_of_every_command(shell: str) -> None:
    text = SHELLS[shell](build_parser())
    for parser in walk_parsers(build_parser()):
        for action in parser._actions:
            hidden = action.help == "==SUPPRESS=="
            for option in action.option_strings:
                word = option.lstrip("-") if shell == "fish" else option
                assert hidden or word in text, f"{parser.prog} {option}"


def test_manual_pages_are_clean_roff_of_every_command(tmp_path: Path) -> None:
    assert main(["man", "--directory", str(tmp_path)]) == 0
    pages = sorted(tmp_path.iterdir())
    assert {page.name for page in pages} == {"weft.1"} | {f"weft-{name}.1" for name in COMMANDS}
    groff = needs("groff")
    for page in pages:
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww", "-K", "utf8", page],
            capture_output=True,
            text=True,
            check=True,
        )
        assert not done.stderr, page.name
        assert f"weft {__version__}" in done.stdout


def test_the_page_of_a_command_has_its_actions_and_their_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["man", "testbed"]) == 0
    page = capsys.readouterr().out
    assert '.SH "WEFT TESTBED UP"' in page
    assert "\\fB\\-\\-leaves N\\fR\nof leaf\\-spine [2]" in page
    assert main(["man", "nothing"]) == 2
    assert "'nothing' is not a command" in capsys.readouterr().err
