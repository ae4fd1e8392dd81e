"""Mutation testing: how many small faults do the tests notice?

A seeded sample of faults (a boundary moved, a condition negated, a statement removed ...) is put
into each package, one at a time, and the tests related to the changed file run until one fails. A
fault that no test notices survived: usually a missing test. Python faults need no file changed:
`tools/mutant_site/sitecustomize.py` compiles the mutant instead of the file, in child processes
too, and notes whether the faulty statement ran. Where it did not, further related tests run; where
none of them runs it and a live test imports the module, the fault is listed as `live` and not
counted. C++ faults go into a copy of the sources in build/mutants: what the C++ tests do not notice
is built as the Python module and left to the package's Python tests. Entry point: `main`;
`python tools/mutants.py --help`. Units: s.

Why not mutmut or cosmic-ray: mutmut runs a copy of the sources, which the import hook of an
editable scikit-build package does not see; cosmic-ray changes the files in place, so that nobody
can work meanwhile, and neither knows C++.
"""

from __future__ import annotations

import argparse
import ast
import copy
import filecmp
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "mutants"
SOURCES = ROOT / "src" / "weft"
SITE = ROOT / "tools" / "mutant_site"
SUITES = ("unit", "property", "agreement", "conformance", "support", "live")
LIVE = "tests/live/"  # slow, or skipped: these only label what no other test runs
CPP_PACKAGES = ("core/packet", "core/stats", "core/allocate", "core/probe")
# Python tests of a C++ package, for faults that the C++ tests do not notice.
MODULE_TESTS = {
    "core/packet": (
        "tests/unit/test_simulate_run.py",
        "tests/agreement/test_switch_wait.py",
        "tests/agreement/test_vl_arbitration.py",
    ),
    "core/stats": ("tests/unit/test_histogram.py", "tests/unit/test_lossy_loops.py"),
    "core/allocate": ("tests/property/test_allocate_laws.py", "tests/unit/test_allocate.py"),
    "core/probe": (
        "tests/unit/test_lossy_loops.py",
        "tests/unit/test_measure_tests.py",
        "tests/agreement/test_estimators.py",
        "tests/agreement/test_rperf_estimators.py",
    ),
}
GENERATED = ("weft_pb2.py",)
MOST_TEST_FILES = 4  # in one batch
MOST_BATCHES = 3
LARGE = 100


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: where, the code before and after, and the whole file with it."""

    path: str
    line: int
    before: str
    after: str
    text: str

    def describe(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    # killed, survived, unreached (no related test runs the statement), live (unreached, and a live
    # test imports the module), invalid (does not compile)
    outcome: str
    tests: tuple[str, ...]
    seconds: float


# ---- Faults in Python -----------------------------------------------------------------------

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
# Values of which another is as good: how a figure looks, how long to wait, how to check a caller.
NO_FAULT_ARGUMENTS = re.compile(
    r"^(color|\w*width|\w*size|\w*pad|alpha|zorder|rotation|dpi|font\w*|marker\w*|strict|daemon|"
    r"indent|\w*timeout\w*|kw_only|slots|ensure_ascii|stacklevel|encoding)$"
)
NO_FAULT_CONSTANTS = re.compile(
    r"^_?[A-Z][A-Z_]*(_S|_IN|_PT|_LETTERS|TIMEOUT\w*|BACKLOG|_COLOU?RS?)$"
)
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def alternatives(node: ast.AST) -> Iterator[ast.AST]:
    """Faulty nodes to stand in for this one."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        if type(node.ops[0]) in COMPARE:
            yield _with(node, ops=[COMPARE[type(node.ops[0])]()])
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if not any(
            isinstance(side, ast.JoinedStr | ast.Constant) and not _is_number(side)
            for side in (node.left, node.right)
        ):
            yield _with(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and not _is_true(node.test):
        yield _with(node, test=ast.UnaryOp(op=ast.Not(), operand=node.test))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _with(node, value=not node.value)
    elif isinstance(node, ast.Constant) and _is_number(node):
        yield _with(node, value=_change_number(node.value))  # type: ignore[arg-type]
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield _with(node, id=NAMES[node.id])
    elif _is_effect(node):
        yield ast.Pass()
    elif isinstance(node, ast.Continue | ast.Break):
        yield ast.Break() if isinstance(node, ast.Continue) else ast.Continue()


def _change_number(value: float) -> float:
    """The next number, or twice a large one: one more byte of a large buffer is no fault."""
    return value + 1 if abs(value) < LARGE else 2 * value


def _is_effect(node: ast.AST) -> bool:
    """A statement done for what it changes."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Attribute)
    return isinstance(node, ast.AugAssign)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_number(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    )


def _is_true(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)


def _skipped(node: ast.AST) -> set[int]:
    """Parts in which a fault says nothing of the tests: annotations, decorators, errors' texts."""
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parts = [node.returns, *node.decorator_list]
    elif isinstance(node, ast.ClassDef):
        parts = [*node.decorator_list]
    elif isinstance(node, ast.arg | ast.AnnAssign):
        parts = [node.annotation]
    elif _is_passed_over(node):
        parts = [node]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        parts = [node.left, node.right]  # sizes of buffers
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "round":
        parts = [*node.args[1:]]
    elif isinstance(node, ast.Call):
        parts = [k for k in node.keywords if k.arg and NO_FAULT_ARGUMENTS.search(k.arg)]
    elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
        parts = [node] if NO_FAULT_CONSTANTS.search(target.id) else []
    return {id(part) for part in parts if part is not None}


def _is_passed_over(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).endswith("Error")
    return isinstance(node, ast.Raise | ast.FormattedValue | ast.Assert)


@dataclass(frozen=True, slots=True)
class Site:
    """A node that may be changed: a field of its parent, inside the statement of a body."""

    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST
    body: list[ast.stmt]
    statement: ast.stmt


def _sites(tree: ast.Module) -> Iterator[Site]:
    todo: list[tuple[ast.AST, list[ast.stmt], ast.stmt]] = [(tree, tree.body, tree.body[0])]
    while todo:
        parent, body, statement = todo.pop()
        skipped = _skipped(parent)
        if id(parent) in skipped:
            continue
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(node, ast.AST) and id(node) not in skipped:
                    inner = (value, node) if isinstance(node, ast.stmt) else (body, statement)
                    yield Site(parent, field, index, node, *inner)
                    todo.append((node, *inner))


def python_mutants(path: Path) -> list[Callable[[], Mutant]]:
    """Every fault of a file; each is rendered when it is called."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    return [
        partial(_render, path, tree, site, other)
        for site in _sites(tree)
        for other in alternatives(site.node)
    ]


def _render(path: Path, tree: ast.Module, site: Site, other: ast.AST) -> Mutant:
    """The file with the fault, and before it a note that the statement runs."""
    note = ast.parse("__import__('sitecustomize').note_reached()").body[0]
    ast.copy_location(other, site.node)
    where = site.body.index(site.statement)
    _put(site, other)
    site.body.insert(where, note)
    text = ast.unparse(ast.fix_missing_locations(tree))
    after = _first_line(other)
    del site.body[where]
    _put(site, site.node)
    line = getattr(site.node, "lineno", 0)
    return Mutant(str(path.relative_to(ROOT)), line, _first_line(site.node), after, text)


def _put(site: Site, node: ast.AST) -> None:
    if site.index is None:
        setattr(site.parent, site.field, node)
    else:
        getattr(site.parent, site.field)[site.index] = node


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:90]


# ---- Tests related to a module --------------------------------------------------------------


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
    from weft.cli.parser import COMMANDS, TESTS

    if module.stem == "tests":
        return frozenset(TESTS)
    if module.parent.name == "options":
        return frozenset(name for name, (options, _) in COMMANDS.items() if options == module.stem)
    return frozenset({module.stem, module.stem.split("_")[0]} & COMMANDS.keys())


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


# ---- Running Python mutants -----------------------------------------------------------------


def run_tests(files: Sequence[str], environment: dict[str, str], limit_s: float) -> tuple[int, str]:
    """pytest's status and output until the first failure; 124 = over the time limit."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--hypothesis-seed=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=ROOT,
        env={
            **os.environ,
            "HYPOTHESIS_STORAGE_DIRECTORY": str(BUILD / "hypothesis"),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 124, ""


class Baseline:
    """How long each test file takes without a fault; files that fail or only skip are left out.

    Kept in build/mutants, for files that have not changed since.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._lock = Lock()
        self._path = BUILD / "baseline.json"
        rows = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}
        self._seconds: dict[str, tuple[float, float | None]] = rows

    def seconds(self, name: str) -> float | None:
        with self._lock:  # one after another: what they take is a limit for the mutants
            return self._measure(name)

    def _measure(self, name: str) -> float | None:
        changed = (ROOT / name).stat().st_mtime
        if name not in self._seconds or self._seconds[name][0] != changed:
            start = time.monotonic()
            status, output = run_tests([name], {}, self.limit_s)
            useful = status == 0 and re.search(r"^[.sx]*\.[.sx]*", output, re.MULTILINE)
            self._seconds[name] = (changed, time.monotonic() - start if useful else None)
            quick = {test: row for test, row in self._seconds.items() if row[1] is not None}
            self._path.write_text(json.dumps(quick), "utf-8")
        return self._seconds[name][1]

    def pick(self, path: Path) -> Iterator[list[str]]:
        """Batches of the tests related to a file, nearest first."""
        usable = (name for name in related_tests(path) if self.seconds(name) is not None)
        for _ in range(MOST_BATCHES):
            if batch := list(islice(usable, MOST_TEST_FILES)):
                yield batch


def judge_python(mutant: Mutant, baseline: Baseline) -> Verdict:
    path, start = ROOT / mutant.path, time.monotonic()
    outcome, tests = "unreached", []
    for batch in baseline.pick(path):
        tests += batch
        outcome = _try_tests(mutant, batch, 20 + 4 * sum(baseline.seconds(t) or 0 for t in batch))
        if outcome != "unreached":
            break
    if outcome == "unreached" and any(
        test.startswith(LIVE) for test in reachable_tests(module_of(path))
    ):
        outcome = "live"
    return Verdict(mutant, outcome, tuple(tests), time.monotonic() - start)


def _try_tests(mutant: Mutant, tests: Sequence[str], limit_s: float) -> str:
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        file = Path(folder, "mutant.py")
        file.write_text(mutant.text, "utf-8")
        environment = {
            "WEFT_MUTANT_OF": str(ROOT / mutant.path),
            "WEFT_MUTANT": str(file),
            "PYTHONPATH": os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", "")]).strip(":"),
        }
        status, _ = run_tests(tests, environment, limit_s)
        if status != 0:
            return "killed"
        return "survived" if Path(folder, "reached").exists() else "unreached"


# ---- Faults in C++ --------------------------------------------------------------------------

TOKENS = [
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" \* ", " / "),
    (r" / ", " * "),
    (r" \+= ", " -= "),
    (r" -= ", " += "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r"\bstd::min\b", "std::max"),
    (r"\bstd::max\b", "std::min"),
    (r"\+\+(?=\w)", "--"),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"\bif \((?=[^;]*\)( \{)?( return.*;)?( continue;)?$)", "if (!!!"),
    (r"(?<![\w.'\"])(\d+)(?![\w.'\"])", lambda m: str(_change_number(int(m.group(1))))),
    (r"^( +)(?!return|using|const|auto|case)[\w.\[\]>-]+ [|&+-]?= [^;]*;$", r"\1;"),
    (r"^( +)(?!return|throw|using|const|delete)[\w.:>-]+\([^;]*\);$", r"\1;"),
]
NOT_MUTATED = re.compile(r"^\s*(//|#|template|static_assert|\[\[|enum|using|namespace)|broken\(")


def cpp_mutants(path: Path) -> list[Mutant]:
    lines = path.read_text("utf-8").split("\n")
    mutants = []
    for number, line in enumerate(lines):
        code = line.split("//")[0].rstrip()
        if NOT_MUTATED.search(line) or '"' in code:
            continue
        for pattern, new in TOKENS:
            for match in re.finditer(pattern, code):
                after = code[: match.start()] + match.expand(new) if isinstance(new, str) else ""
                after = after or code[: match.start()] + new(match)  # type: ignore[operator]
                after = _negate(after + code[match.end() :])
                text = "\n".join([*lines[:number], after, *lines[number + 1 :]])
                where = str(path.relative_to(ROOT))
                mutants.append(Mutant(where, number + 1, code.strip(), after.strip(), text))
    return mutants


def _negate(line: str) -> str:
    """`if (!!!a) ...` as `if (!(a)) ...`."""
    head, mark, rest = line.partition("if (!!!")
    if not mark:
        return line
    depth = 1
    for end, character in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return f"{head}if (!({rest[:end]}){rest[end:]}"
    return line


def _copy_changed(source: str, copy_: str) -> str:
    """Copies what differs, with the time of now: an object of the last mutant must not look new."""
    if not Path(copy_).exists() or not filecmp.cmp(source, copy_, shallow=False):
        shutil.copyfile(source, copy_)
    return copy_


class CppTree:
    """A copy of the C++ sources with a build of its own, in which one file at a time is changed."""

    def __init__(self) -> None:
        self.folder = BUILD / "cpp"
        for name in ("core", "bindings", "clib", "include"):
            shutil.copytree(
                ROOT / name, self.folder / name, dirs_exist_ok=True, copy_function=_copy_changed
            )
        _copy_changed(str(ROOT / "CMakeLists.txt"), str(self.folder / "CMakeLists.txt"))
        fast = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -w -D_GLIBCXX_ASSERTIONS"]
        tests = ["-DWEFT_TESTS=ON", "-DWEFT_CLIB=OFF", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=1"]
        self._run(["cmake", "-S", ".", "-B", "build", *tests, *fast], 60)
        if not self.build():
            raise SystemExit(f"{self.folder}: the C++ tests do not build; run `make core-test`")
        if not (self.test(600) or self.test(600)):  # a busy machine may be too late once
            raise SystemExit(f"{self.folder}: the C++ tests fail; run `make core-test`")
        start = time.monotonic()
        self.test(600)
        self.test_s = time.monotonic() - start
        nanobind = [sys.executable, "-m", "nanobind", "--cmake_dir"]
        module = [
            "-DSKBUILD=2",
            "-DWEFT_CLIB=OFF",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dnanobind_DIR={subprocess.check_output(nanobind, text=True).strip()}",
            "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF",
        ]
        self._run(["cmake", "-S", ".", "-B", "module", *module, *fast], 60)
        self._module_s: dict[str, float] = {}

    def build(self) -> bool:
        return self._run(["cmake", "--build", "build", "--target", "weft_core_tests", "-j2"], 600)

    def test_module(self, package: str) -> bool:
        """Whether the Python tests of a package pass with the module of these sources."""
        if not self._run(["cmake", "--build", "module", "--target", "_core", "-j2"], 900):
            raise SystemExit(f"{self.folder}/module: does not build")
        (module,) = self.folder.glob("module/_core.*.so")
        environment = {"WEFT_MUTANT_CORE": str(module), "PYTHONPATH": str(SITE)}
        limit_s = 20 + 4 * self._module_s.get(package, 150)
        return run_tests(MODULE_TESTS[package], environment, limit_s)[0] == 0

    def time_module(self, package: str) -> None:
        """How long the Python tests take without a fault."""
        if package not in self._module_s:
            start = time.monotonic()
            if not self.test_module(package):
                raise SystemExit(f"{', '.join(MODULE_TESTS[package])}: fail without a fault")
            self._module_s[package] = time.monotonic() - start

    def test(self, limit_s: float) -> bool:
        return self._run(["build/weft_core_tests"], limit_s)

    def judge(self, package: str, mutant: Mutant) -> Verdict:
        if package in MODULE_TESTS:
            self.time_module(package)
        path = self.folder / mutant.path
        original = path.read_text("utf-8")
        start = time.monotonic()
        path.write_text(mutant.text, "utf-8")
        try:
            if not self.build():
                outcome = "invalid"
            else:
                passed = self.test(20 + 4 * self.test_s)
                if passed and package in MODULE_TESTS:
                    passed = self.test_module(package)
                outcome = "survived" if passed else "killed"
        finally:
            path.write_text(original, "utf-8")
        return Verdict(mutant, outcome, ("core/tests",), time.monotonic() - start)

    def _run(self, argv: list[str], limit_s: float) -> bool:
        try:
            done = subprocess.run(argv, cwd=self.folder, capture_output=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


# ---- The sample, and the report -------------------------------------------------------------


def python_packages() -> list[str]:
    """Packages and modules directly under weft."""
    names = [p.name for p in SOURCES.iterdir() if (p / "__init__.py").exists()]
    return sorted(names)


def files_of(package: str) -> list[Path]:
    """The sources of `records`, `core/packet`, or of one file's path."""
    if package.endswith((".py", ".hpp", ".cpp", ".inl")):
        return [ROOT / package]
    if package.startswith("core/"):
        suffixes = (".hpp", ".cpp", ".inl")
        return sorted(p for p in (ROOT / package).rglob("*") if p.suffix in suffixes)
    folder = SOURCES / package
    return sorted(p for p in folder.rglob("*.py") if p.name not in GENERATED)


def is_cpp(package: str) -> bool:
    return package.startswith("core/")


def sample(package: str, size: int, seed: int) -> list[Mutant]:
    choose = random.Random(f"{seed}:{package}")
    if is_cpp(package):
        cpp = [mutant for path in files_of(package) for mutant in cpp_mutants(path)]
        return choose.sample(cpp, min(size, len(cpp)))
    lazy = [make for path in files_of(package) for make in python_mutants(path)]
    return [make() for make in choose.sample(lazy, min(size, len(lazy)))]


def judge(package: str, mutants: Sequence[Mutant], options: argparse.Namespace) -> list[Verdict]:
    if is_cpp(package):
        tree = CppTree()
        return [_show(tree.judge(package, mutant), options.verbose) for mutant in mutants]
    baseline = Baseline(options.test_limit)
    for mutant in mutants:
        next(baseline.pick(ROOT / mutant.path), None)
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = pool.map(lambda mutant: judge_python(mutant, baseline), mutants)
        return [_show(verdict, options.verbose) for verdict in verdicts]


def _show(verdict: Verdict, verbose: bool) -> Verdict:
    if verbose or verdict.outcome in ("survived", "unreached", "live"):
        print(f"{verdict.outcome:9}{verdict.mutant.describe()}", flush=True)
    return verdict


def report(verdicts: dict[str, list[Verdict]]) -> str:
    """Rates by package; what only live tests run is shown and not counted."""
    rows = [*verdicts.items(), ("all", [v for judged in verdicts.values() for v in judged])]
    lines = [f"{'package':14}{'mutants':>8}{'killed':>8}{'rate':>7}{'live':>6}"]
    for package, judged in rows:
        outcomes = Counter(verdict.outcome for verdict in judged)
        killed = outcomes["killed"]
        count = killed + outcomes["survived"] + outcomes["unreached"]
        rate = f"{100 * killed / count:.0f} %" if count else "-"
        lines.append(f"{package:14}{count:>8}{killed:>8}{rate:>7}{outcomes['live'] or '':>6}")
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "packages",
        nargs="*",
        help="such as records, core/packet or src/weft/units.py; default: all",
    )
    parser.add_argument("--sample", type=int, default=5, help="faults per package (default 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--test-limit", type=float, default=60, help="leaves out slower test files (default 60 s)"
    )
    parser.add_argument("--verbose", action="store_true", help="show killed mutants too")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    BUILD.mkdir(parents=True, exist_ok=True)
    verdicts: dict[str, list[Verdict]] = {}
    for package in options.packages or [*python_packages(), *CPP_PACKAGES]:
        if not files_of(package):
            raise SystemExit(f"{package}: no such package; one of {', '.join(python_packages())}")
        mutants = sample(package, options.sample, options.seed)
        verdicts[package] = judge(package, mutants, options)
    rows = [asdict(v) | {"package": p} for p, judged in verdicts.items() for v in judged]
    for row in rows:
        del row["mutant"]["text"]
    (BUILD / "latest.json").write_text(json.dumps(rows, indent=1), "utf-8")
    print(report(verdicts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
