"""Faults of C++ files, in a copy of the sources with a build of its own."""

from __future__ import annotations

import filecmp
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from mutant import BUILD, ROOT, Mutant, Verdict, change_number
from test_run import TestRun, run_program, run_tests

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
    (r"(?<![\w.'\"])(\d+)(?![\w.'\"])", lambda m: str(change_number(int(m.group(1))))),
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
        before_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        if self.test(600) != 0:
            raise SystemExit(f"{self.folder}: the C++ tests fail; run `make core-test`")
        self.test_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before_s
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
        return self._make("build", "weft_core_tests")

    def test(self, cpu_limit_s: float) -> int:
        return run_program(["build/weft_core_tests"], self.folder, cpu_limit_s)

    def test_module(self, package: str) -> TestRun:
        """The Python tests of a package, with the module of these sources."""
        if not self._make("module", "_core"):
            raise SystemExit(f"{self.folder}/module: does not build")
        (module,) = self.folder.glob("module/_core.*.so")
        limit_s = 5 + 4 * self._module_s.get(package, 150)
        return run_tests(MODULE_TESTS[package], {"WEFT_MUTANT_CORE": str(module)}, limit_s)

    def time_module(self, package: str) -> None:
        """CPU time of the Python tests without a fault."""
        if package not in self._module_s:
            run = self.test_module(package)
            if run.status != 0:
                raise SystemExit(f"{', '.join(MODULE_TESTS[package])}: fail without a fault")
            self._module_s[package] = run.cpu_s

    def judge(self, package: str, mutant: Mutant) -> Verdict:
        if package in MODULE_TESTS:
            self.time_module(package)
        path = self.folder / mutant.path
        original = path.read_text("utf-8")
        start = time.monotonic()
        path.write_text(mutant.text, "utf-8")
        try:
            outcome = self._try_tests(package) if self.build() else "invalid"
        finally:
            path.write_text(original, "utf-8")
        return Verdict(mutant, outcome, ("core/tests",), time.monotonic() - start)

    def _try_tests(self, package: str) -> str:
        status = self.test(5 + 4 * self.test_s)
        if status == 0 and package in MODULE_TESTS:
            status = self.test_module(package).status
        return "killed" if status else "survived"

    def _make(self, build: str, target: str) -> bool:
        return self._run(["cmake", "--build", build, "--target", target], 1800)

    def _run(self, argv: list[str], cpu_limit_s: float) -> bool:
        return run_program(argv, self.folder, cpu_limit_s) == 0
