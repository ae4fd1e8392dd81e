"""Mutation testing: how many small faults do the tests notice?

A seeded sample of faults (a boundary moved, a condition negated, a statement removed ...) is put
into each package, one at a time, and the tests related to the changed file run until one fails. A
fault that no test notices survived: usually a missing test. Python faults need no file changed:
`tools/mutant_site/sitecustomize.py` compiles the mutant instead of the file, in child processes
too. C++ faults go into a copy of the sources in build/mutants: what the C++ tests do not notice is
built as the Python module and left to the package's Python tests. Entry point: `main`;
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
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "mutants"
SOURCES = ROOT / "src" / "weft"
SITE = ROOT / "tools" / "mutant_site"
SUITES = ("unit", "property", "agreement", "conformance", "support")  # live: slow, or skipped
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
MOST_TEST_FILES = 4
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
    outcome: str  # killed, survived, untested (no related test), invalid (does not compile)
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
    return {id(part) for part in parts if part is not None}


def _is_passed_over(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).endswith("Error")
    return isinstance(node, ast.Raise | ast.FormattedValue | ast.Assert)


def _sites(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """(parent, field, index, node) of what may be changed."""
    todo: list[ast.AST] = [tree]
    while todo:
        parent = todo.pop()
        skipped = _skipped(parent)
        if id(parent) in skipped:
            continue
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(node, ast.AST) and id(node) not in skipped:
                    yield parent, field, index, node
                    todo.append(node)


def python_mutants(path: Path) -> list[Callable[[], Mutant]]:
    """Every fault of a file; each is rendered when it is called."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    found: list[Callable[[], Mutant]] = []
    for parent, field, index, node in _sites(tree):
        for other in alternatives(node):
            found.append(lambda a=(parent, field, index, node, other): _render(path, tree, *a))  # type: ignore[misc]
    return found


def _render(
    path: Path,
    tree: ast.Module,
    parent: ast.AST,
    field: str,
    index: int | None,
    node: ast.AST,
    other: ast.AST,
) -> Mutant:
    ast.copy_location(other, node)
    _put(parent, field, index, other)
    text = ast.unparse(ast.fix_missing_locations(tree))
    after = _first_line(other)
    _put(parent, field, index, node)
    line = getattr(node, "lineno", 0)
    return Mutant(str(path.relative_to(ROOT)), line, _first_line(node), after, text)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


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
            name = path.stem if suite == "support" else str(path.relative_to(ROOT))
            graph[name] = _imports_of(path)
    known = frozenset(graph)
    return {name: names & known for name, names in graph.items()}


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


def reachable_tests(module: str) -> set[str]:
    """Test files that import a module, directly or by way of others; all if none is seen to."""
    reached = edge = {module}
    while edge:
        edge = {name for name, used in imports().items() if used & edge} - reached
        reached = reached | edge
    return reached & set(test_words()) or set(test_words())  # commands are imported by name


def _path_words(path: Path) -> dict[str, float]:
    """Words of a path, by how much a test's name that has them belongs to it."""
    folders = path.parent.relative_to(SOURCES).parts
    parts = [word for word in path.stem.split("_") if len(word) > 3]
    folders = tuple(word for name in folders for word in {name, name.rstrip("s")})
    return dict.fromkeys(folders, 0.1) | dict.fromkeys(parts, 0.3) | {path.stem: 1.0}


def related_tests(path: Path) -> list[str]:
    """Test files that reach a module and use its names; those that use most of them first."""
    scores: dict[str, float] = {}
    for test in reachable_tests(module_of(path)):
        for name in definitions(path) & test_words()[test]:
            rarity = 1 / sum(name in words for words in test_words().values())
            scores[test] = scores.get(test, 0) + rarity
        for word, weight in _path_words(path).items():
            if word in Path(test).stem:
                scores[test] = scores.get(test, 0) + weight
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
        self._path = BUILD / "baseline.json"
        rows = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}
        self._seconds: dict[str, tuple[float, float | None]] = rows

    def seconds(self, name: str) -> float | None:
        changed = (ROOT / name).stat().st_mtime
        if name not in self._seconds or self._seconds[name][0] != changed:
            start = time.monotonic()
            status, output = run_tests([name], {}, self.limit_s)
            useful = status == 0 and re.search(r"^[.sx]*\.[.sx]*", output, re.MULTILINE)
            self._seconds[name] = (changed, time.monotonic() - start if useful else None)
            quick = {test: row for test, row in self._seconds.items() if row[1] is not None}
            self._path.write_text(json.dumps(quick), "utf-8")
        return self._seconds[name][1]

    def pick(self, path: Path) -> list[str]:
        names = related_tests(path)
        chosen: list[str] = []
        for name in names:
            if len(chosen) < MOST_TEST_FILES and self.seconds(name) is not None:
                chosen.append(name)
        return chosen


def judge_python(mutant: Mutant, baseline: Baseline) -> Verdict:
    tests = baseline.pick(ROOT / mutant.path)
    if not tests:
        return Verdict(mutant, "untested", (), 0)
    folder = BUILD / "python" / f"{abs(hash(mutant))}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mutant.py").write_text(mutant.text, "utf-8")
    environment = {
        "WEFT_MUTANT_OF": str(ROOT / mutant.path),
        "WEFT_MUTANT": str(folder / "mutant.py"),
        "PYTHONPATH": os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", "")]).strip(":"),
    }
    start = time.monotonic()
    limit_s = 20 + 4 * sum(baseline.seconds(name) or 0 for name in tests)
    status, _ = run_tests(tests, environment, limit_s)
    shutil.rmtree(folder)
    outcome = "survived" if status == 0 else "killed"
    return Verdict(mutant, outcome, tuple(tests), time.monotonic() - start)


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
    for mutant in mutants:  # one after another: what they take is a limit for the mutants
        baseline.pick(ROOT / mutant.path)
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = pool.map(lambda mutant: judge_python(mutant, baseline), mutants)
        return [_show(verdict, options.verbose) for verdict in verdicts]


def _show(verdict: Verdict, verbose: bool) -> Verdict:
    if verbose or verdict.outcome in ("survived", "untested"):
        print(f"{verdict.outcome:9}{verdict.mutant.describe()}", flush=True)
    return verdict


def report(verdicts: dict[str, list[Verdict]]) -> str:
    lines = [f"{'package':14}{'mutants':>8}{'killed':>8}{'rate':>7}"]
    total = killed_in_all = 0
    for package, judged in verdicts.items():
        valid = [v for v in judged if v.outcome != "invalid"]
        killed = sum(v.outcome == "killed" for v in valid)
        total, killed_in_all = total + len(valid), killed_in_all + killed
        rate = f"{100 * killed / len(valid):.0f} %" if valid else "-"
        lines.append(f"{package:14}{len(valid):>8}{killed:>8}{rate:>7}")
    rate = f"{100 * killed_in_all / total:.0f} %" if total else "-"
    return "\n".join([*lines, f"{'all':14}{total:>8}{killed_in_all:>8}{rate:>7}"])


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
