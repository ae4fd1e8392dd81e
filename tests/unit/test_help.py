"""Help: fast, complete, and true of the code that it describes."""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from weft.cli import main
from weft.cli.options import applications, measuring, studying
from weft.cli.parser import COMMANDS, TESTS, Parser, build_parser
from weft.units import parse_size

HEAVY = ("numpy", "scipy", "matplotlib", "grpc", "google", "msgspec", "immutables", "weft._core")


def walk(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and those of its commands and actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from walk(inner)


def find(*words: str) -> argparse.ArgumentParser:
    name = " ".join(("weft", *words))
    return next(parser for parser in walk(build_parser()) if parser.prog == name)


def default_of(option: str, *words: str) -> Any:
    return find(*words)._option_string_actions[option].default


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS)])
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    code = (
        "import sys; from weft.cli import main\n"
        f"try: main({[*words, '--help']!r})\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout.startswith("usage: weft")


def test_every_command_runs_a_function_that_exists() -> None:
    runs = {run for parser in walk(build_parser()) if (run := parser.get_default("run"))}
    assert len(runs) > 30
    for run in runs:
        module, function = run.split(":")
        assert callable(getattr(import_module(f"weft.cli.{module}"), function)), run


def test_every_option_and_argument_has_a_help_line() -> None:
    for parser in walk(build_parser()):
        for action in parser._actions:
            if not isinstance(action, argparse._SubParsersAction):
                assert action.help, f"{parser.prog} {action.dest}"


def test_defaults_and_choices_in_help_are_those_of_the_code() -> None:
    from weft.cli.model_fit import INPUTS, RECORD_FITS
    from weft.cli.model_link import FORMULAS
    from weft.cli.simulate import WRITERS
    from weft.control.client.app import TTL_S
    from weft.control.client.grpc_link import VARIABLE
    from weft.fabric import ROUTINGS
    from weft.host.testbed.persistent import DEFAULT_NAME
    from weft.host.testbed.wiring import LIMIT_BYTES, SHAPES
    from weft.measure.peer.client import LOCAL
    from weft.measure.peer.negotiation import DEFAULT_PORT, Limits
    from weft.measure.settings.by_test import DESCRIPTIONS, SETTINGS
    from weft.measure.tests import TESTS as CATALOG
    from weft.model.link import OPERATIONS, TRANSPORTS, WIRES
    from weft.simulate.systems import system_names
    from weft.tune.search.design import POINT_S
    from weft.tune.search.space import GOALS
    from weft.wire import TOKEN_VARIABLE

    assert tuple(GOALS) == measuring.GOALS
    assert applications.SHAPES == SHAPES
    assert tuple(sorted(ROUTINGS)) == studying.ROUTINGS
    assert tuple(sorted(WRITERS)) == studying.FORMATS
    assert ", ".join(system_names()) == studying.SYSTEMS
    assert ", ".join(TRANSPORTS) == studying.TRANSPORTS
    assert ", ".join(OPERATIONS) == studying.OPERATIONS
    assert ", ".join(WIRES) == studying.WIRES
    assert ", ".join(sorted(FORMULAS)) == studying.ORDERS
    assert set(studying.FITTED) == set(RECORD_FITS) == set(studying.INPUTS_OF)
    assert set(studying.INPUTS) == {option.option for option in INPUTS.values()}

    assert {name: test.settings for name, test in CATALOG.items()} == SETTINGS
    assert tuple(SETTINGS) == tuple(DESCRIPTIONS) == tuple(CATALOG) == TESTS
    assert find("latency").get_default("peer") == LOCAL
    assert f"default: {POINT_S} s" in find("tune").format_help()

    limits = dataclasses.asdict(Limits())
    for name in ("sessions", "depth", "endpoints", "threads"):
        assert default_of(f"--max-{name}", "serve") == str(limits[name])
    serve = " ".join(find("serve").format_help().split())
    assert f"port {DEFAULT_PORT}." in serve
    assert TOKEN_VARIABLE in serve
    assert f"default: {limits['memory_bytes'] >> 30} GiB" in serve

    assert default_of("--name", "testbed", "up") == DEFAULT_NAME
    assert parse_size(default_of("--limit", "testbed", "up")) == LIMIT_BYTES
    assert float(default_of("--ttl", "run")) == TTL_S
    assert f"default: {VARIABLE}, or the socket" in applications.CONTROLLER


def refuse(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """The usage and the last line."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    return lines[0], lines[-1]


@pytest.mark.parametrize(
    ("words", "usage", "line"),
    [
        (["latncy"], "weft ", "weft: 'latncy' is not a command; did you mean latency?"),
        (
            ["latency", "--siez", "4K"],
            "weft latency ",
            "weft latency: --siez is not an option; did you mean --size?",
        ),
        (
            ["control", "stauts"],
            "weft control ",
            "weft control: 'stauts' is not an action; did you mean status?",
        ),
        (
            ["testbed", "up", "--hosts", "2", "--rate", "1G", "--swiches=one"],
            "weft testbed up ",
            "weft testbed up: --swiches is not an option; did you mean --switches?",
        ),
        (
            ["study", "list", "all"],
            "weft study list ",
            "weft study list: 'all' is one argument too many; "
            "weft study list --help lists what there is",
        ),
        (
            ["fabric", "f.toml", "--routing", "min"],
            "weft fabric ",
            "weft fabric: --routing min: use one of destination_modulo, ecmp, shortest_path, "
            "up_down; weft fabric --help lists what there is",
        ),
    ],
)
def test_a_mistyped_word_gets_a_suggestion_and_the_commands_usage(
    words: list[str], usage: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = refuse(capsys, *words)
    assert first.startswith(f"usage: {usage}")
    assert last == line


def test_what_resembles_nothing_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    _, last = refuse(capsys, "xyzzy")
    assert last.startswith("weft: 'xyzzy' is not a command; use one of doctor, accuracy, tour")


def test_help_states_a_default_once() -> None:
    parser = Parser(prog="p")
    parser.add_argument("--plain", default="3", help="runs")
    parser.add_argument("--stated", default="3", help="runs (default: three)")
    parser.add_argument("--flag", action="store_true", help="on")
    parser.add_argument("--empty", default="", help="text")
    lines = {line.split()[0]: line for line in parser.format_help().splitlines() if "--" in line}
    assert lines["--plain"].endswith("runs [3]")
    assert lines["--stated"].endswith("(default: three)")
    assert lines["--flag"].endswith("on")
    assert lines["--empty"].endswith("text")


def test_a_command_with_actions_needs_one_of_them() -> None:
    for parser in walk(build_parser()):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                assert action.required, parser.prog
