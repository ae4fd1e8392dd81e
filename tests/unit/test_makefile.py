"""What make and its tools say and do on machines that lack something.

Each machine is a directory of commands used as the whole PATH: real ones linked in,
and short scripts standing for the rest (`id` for who runs, `apt-get` for what it installs).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASICS = (
    "bash",
    "basename",
    "cat",
    "chmod",
    "dirname",
    "env",
    "find",
    "head",
    "mkdir",
    "mktemp",
    "rm",
    "sed",
    "sort",
)
TARGETS = (
    "help",
    "demo",
    "build",
    "test",
    "check",
    "core-test",
    "sanitize",
    "docs-test",
    "test-rdma",
    "bench",
    "bench-quick",
    "install-system",
    "clean",
)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


class Machine:
    """A machine with only the commands it was given."""

    def __init__(self, commands: Path) -> None:
        self.commands = commands
        for name in BASICS:
            found = shutil.which(name)
            assert found is not None, name
            (commands / name).symlink_to(found)

    def add(self, name: str, script: str) -> None:
        path = self.commands / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=ROOT,
            env={"PATH": str(self.commands), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine that can compile, used by someone who is not root."""
    commands = tmp_path / "bin"
    commands.mkdir()
    bare = Machine(commands)
    bare.add("id", "echo 1000")
    bare.add("g++", "")
    bare.add("make", "")
    bare.add("cmake", "echo cmake version 3.25.1")
    # Answers yes to every question asked of an interpreter: new enough, has venv and headers.
    bare.add("python3", "exit 0")
    return bare


def packages(machine: Machine, purpose: str) -> subprocess.CompletedProcess[str]:
    system = str(machine.commands.parent / "system")
    return machine.run("tools/system-packages.sh", purpose, WEFT_SYSTEM_ROOT=system)


def test_help_is_the_default_and_names_every_target() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(TARGETS) <= set(re.findall(r"^make (\S+)", shown, re.MULTILINE))


def test_a_machine_with_all_that_is_needed_is_passed_in_silence(machine: Machine) -> None:
    done = packages(machine, "build")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_root_a_missing_compiler_stops_with_the_exact_command(machine: Machine) -> None:
    (machine.commands / "g++").unlink()
    done = packages(machine, "demo")
    assert done.returncode == 1
    assert "missing and needed: g++\n" in done.stderr
    assert "sudo apt-get update && sudo apt-get install -y g++\n" in done.stderr


def test_without_root_a_missing_optional_package_is_named_and_passed_over(machine: Machine) -> None:
    done = packages(machine, "test")
    assert done.returncode == 0
    assert "optional, going on without: clang-format (make check)" in done.stdout


def test_a_cmake_older_than_3_18_counts_as_missing(machine: Machine) -> None:
    machine.add("cmake", "echo cmake version 3.16.3")
    done = packages(machine, "build")
    assert done.returncode == 1
    assert "cmake version 3.16.3 is too old; 3.18 or newer is needed" in done.stderr


def test_root_installs_only_what_is_missing_and_updates_lists_once(
    machine: Machine, tmp_path: Path
) -> None:
    (machine.commands / "g++").unlink()
    machine.add("id", "echo 0")
    # The first install fails, as with stale package lists; after the update it succeeds.
    machine.add(
        "apt-get",
        f"""echo "$@" >>{tmp_path}/calls
case "$*" in
  *update*) : >{tmp_path}/updated ;;
  *) [ -e {tmp_path}/updated ] && : >{machine.commands}/g++ && chmod +x {machine.commands}/g++ ;;
esac""",
    )
    done = packages(machine, "build")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert done.returncode == 0, done.stderr
    assert sum("update" in call for call in calls) == 1
    assert calls[-1].endswith("install -y --no-install-recommends g++")


def test_services_of_installed_packages_are_not_started_and_stay_off(
    machine: Machine, tmp_path: Path
) -> None:
    """As Debian's maintainer scripts do: ask policy-rc.d, then enable the unit."""
    system = tmp_path / "system"
    policy = system / "usr/sbin/policy-rc.d"
    wants = system / "etc/systemd/system/multi-user.target.wants"
    policy.parent.mkdir(parents=True)
    wants.mkdir(parents=True)
    (wants / "etcd.service").touch()  # the machine's own
    (machine.commands / "g++").unlink()
    machine.add("id", "echo 0")
    machine.add(
        "apt-get",
        f"""case "$*" in *install*)
  {policy}; echo $? >{tmp_path}/answer
  : >{wants}/etcd.service; : >{wants}/prometheus.service
  : >{machine.commands}/g++ && chmod +x {machine.commands}/g++ ;;
esac""",
    )
    machine.add("systemctl", f'shift; [ "$1" = disable ] && rm {wants}/"$2".service')
    done = packages(machine, "build")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "answer").read_text() == "101\n"  # deny: the service is not started
    assert [unit.name for unit in wants.iterdir()] == ["etcd.service"]
    assert not policy.exists()


def test_a_policy_of_the_machine_is_kept(machine: Machine, tmp_path: Path) -> None:
    policy = tmp_path / "system/usr/sbin/policy-rc.d"
    policy.parent.mkdir(parents=True)
    policy.write_text("the machine's own")
    (machine.commands / "g++").unlink()
    machine.add("id", "echo 0")
    machine.add("apt-get", f": >{machine.commands}/g++ && chmod +x {machine.commands}/g++")
    assert packages(machine, "build").returncode == 0
    assert policy.read_text() == "the machine's own"


def test_an_old_python_is_passed_over_for_a_newer_one(machine: Machine) -> None:
    machine.add("python3", "exit 1")
    machine.add("python3.12", "exit 0")
    found = machine.run("tools/find-python.sh").stdout.strip()
    assert found == str(machine.commands / "python3.12")


def test_without_a_new_enough_python_the_error_says_what_was_found(machine: Machine) -> None:
    machine.add("python3", '[ "$1" = --version ] && echo Python 3.9.2; exit 1')
    done = machine.run("tools/find-python.sh")
    assert done.returncode == 1
    assert "3.11 or newer not found" in done.stderr
    assert "(Python 3.9.2)" in done.stderr


def test_the_interpreter_of_these_tests_is_suitable() -> None:
    done = subprocess.run(
        [ROOT / "tools/find-python.sh"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == sys.executable


def test_the_format_check_is_skipped_by_name_or_fails_when_required(machine: Machine) -> None:
    skipped = machine.run("tools/cpp-format.sh", "check")
    required = machine.run("tools/cpp-format.sh", "check", WEFT_REQUIRE="netns,clang-format")
    assert (skipped.returncode, required.returncode) == (0, 1)
    assert skipped.stdout.startswith("skip    clang-format: not installed")
    assert required.stderr.startswith("FAILED  clang-format: not installed")


def step(cwd: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "tools/step.sh", "a step", "bash", "-c", script],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_step_that_succeeds_is_one_line(tmp_path: Path) -> None:
    done = step(tmp_path, "seq 1000")
    assert done.returncode == 0
    assert re.fullmatch(r"ok      a step \(\d+ s\)\n", done.stdout)


def test_a_step_that_fails_shows_its_output_and_keeps_its_exit_status(tmp_path: Path) -> None:
    done = step(tmp_path, "echo the reason; exit 7")
    assert done.returncode == 7
    assert "the reason" in done.stdout
    assert "FAILED  a step: exit status 7" in done.stderr
    assert (tmp_path / "build/logs/a-step.log").read_text() == "the reason\n"


def test_every_law_is_tried_on_all_its_examples_in_ci() -> None:
    """`make test` tries a third of them; targets of .ci/run that set WEFT_ALL_EXAMPLES try all."""
    makefile = (ROOT / "Makefile").read_text()
    ran = re.findall(r"make ([a-z-]+)", (ROOT / ".ci/run").read_text())
    recipes = [re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.M) for target in ran]
    complete = [found[1] for found in recipes if found and "WEFT_ALL_EXAMPLES=1" in found[1]]
    laws = [
        path.name
        for path in (ROOT / "tests/property").glob("test_*.py")
        if "from some_examples import" in path.read_text()
    ]
    assert laws
    assert [name for name in laws if not any(name in recipe for recipe in complete)] == []
