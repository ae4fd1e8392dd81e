"""Which tests reach a module, nearest first, and how much CPU time they take. Units: s."""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from mutant import BUILD, ROOT, SOURCES

SUITES = ("unit", "property", "agreement", "conformance", "support", "live")
LIVE = "tests/live/"  # slow, or skipped: these only label what no other test runs
MOST_TEST_FILES = 6  # for one fault


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCES.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> dict[str, frozenset[str]]:
    """What each module of weft, test and helper imports, by name (tests: their path)."""
    graph = {}
    for path in SOURCES.rglob("*.py"):
        graph[module_of(path)] = _imports_of(path)
    for suite in SUITES:
        for path in (ROOT / "tests" / suite).rglob("*.py"):
            is_test = path.stem.startswith("test_")
            name = str(path.relative_to(ROOT)) if is_test else path.stem
            name = f"{path.parent.name}.conftest" if name == "conftest" else name
            fixtures = {f"{path.parent.name}.conftest"} if is_test else set()
            graph[name] = _imports_of(path) | _commands_of(path) | fixtures
    names = frozenset(graph)
    return {name: used & names for name, used in graph.items()}


def _commands_of(path: Path) -> frozenset[str]:
    """Modules of the commands that a test runs, which are imported by name when they run."""
    text = path.read_text("utf-8")
    programs = frozenset(re.findall(r"weft(?:\.\w+)+", text))  # python -m weft.measure.mpi
    if "weft.cli" not in text and '"weft"' not in text:
        return programs
    words = {
        word
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in node.value.removeprefix("weft ").split(" ")[:1]
    }
    return programs | frozenset(
        module_of(module)
        for module in (SOURCES / "cli").rglob("*.py")
        if words & _names_of_commands(module)
    )


@cache
def _names_of_commands(module: Path) -> frozenset[str]:
    """Commands whose code is in a module of weft.cli: `weft model` is in `model_link.py`, too."""
    from weft.cli.parser import COMMANDS

    if module.parent.name == "options":
        return frozenset(name for name, (options, _) in COMMANDS.items() if options == module.stem)
    run = {name for name, modules in _modules_of_commands().items() if module.stem in modules}
    return frozenset(run | {module.stem.split("_")[0]} & COMMANDS.keys())


@cache
def _modules_of_commands() -> dict[str, frozenset[str]]:
    """Modules of weft.cli that a command's actions are run by."""
    from weft.cli.parser import build_parser

    commands = next(a.choices for a in build_parser()._actions if isinstance(a.choices, dict))
    return {name: frozenset(_runners(parser)) for name, parser in commands.items()}


def _runners(parser: argparse.ArgumentParser) -> Iterator[str]:
    if run := parser.get_default("run"):
        yield run.split(":")[0]
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from _runners(inner)


def _imports_of(path: Path) -> frozenset[str]:
    names: set[str] = set()
    package = module_of(path).split(".") if path.is_relative_to(SOURCES) else []
    if package and path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(names)


@cache
def test_words() -> dict[str, frozenset[str]]:
    """The identifiers of each test file."""
    names = [name for name in imports() if Path(name).name.startswith("test_")]
    return {n: frozenset(re.findall(r"\w+", (ROOT / n).read_text("utf-8"))) for n in names}


@cache
def definitions(path: Path) -> frozenset[str]:
    """Public functions, classes and methods of a module."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = {node.name for node in nodes if isinstance(node, kinds)}
    return frozenset(name for name in names if not name.startswith("_"))


@cache
def reachable_tests(module: str) -> frozenset[str]:
    """Test files that import a module, directly or by way of others, or run its command."""
    reached: set[str] = {module}
    edge = reached
    while edge:
        edge = {name for name, used in imports().items() if used & edge} - reached
        reached = reached | edge
    return frozenset(reached & test_words().keys())


def _path_words(path: Path) -> dict[str, float]:
    """Words of a path, by how much a test's name that has them belongs to it."""
    folders = path.parent.relative_to(SOURCES).parts
    parts = [word for word in path.stem.split("_") if len(word) > 3]
    folders = tuple(word for name in folders for word in {name, name.rstrip("s")})
    return dict.fromkeys(folders, 0.1) | dict.fromkeys(parts, 0.3) | {path.stem: 1.0}


def related_tests(path: Path) -> list[str]:
    """Test files that reach a module, live ones aside; those that use most of its names first."""
    tests = [t for t in reachable_tests(module_of(path)) if not t.startswith(LIVE)]
    scores = dict.fromkeys(tests, 0.0)
    for test in tests:
        for name in definitions(path) & test_words()[test]:
            rarity = 1 / sum(name in words for words in test_words().values())
            scores[test] += rarity
        for word, weight in _path_words(path).items():
            if word in Path(test).stem:
                scores[test] += weight
    return sorted(scores, key=lambda name: (-scores[name], name))


# ---- How long they take ---------------------------------------------------------------------


class TestTimes:
    """CPU time of test files that ran to their end; None for those that fail without a fault.

    Kept in build/mutants, for files that have not changed since.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._path = BUILD / "test-times.json"
        rows = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}
        self._rows: dict[str, tuple[float, float | None]] = rows

    def note(self, name: str, cpu_s: float | None) -> None:
        self._rows[name] = ((ROOT / name).stat().st_mtime, cpu_s)
        self._path.write_text(json.dumps(self._rows), "utf-8")

    def cpu_s(self, name: str) -> float | None:
        """The longest that a file may take, where it has not run yet."""
        changed, cpu_s = self._rows.get(name, (None, None))
        return cpu_s if changed == (ROOT / name).stat().st_mtime else self.limit_s

    def pick(self, path: Path) -> Iterator[str]:
        """The tests related to a file, nearest first, without slow ones and those that fail."""
        times = ((name, self.cpu_s(name)) for name in related_tests(path))
        usable = (name for name, cpu_s in times if cpu_s is not None and cpu_s <= self.limit_s)
        return islice(usable, MOST_TEST_FILES)
