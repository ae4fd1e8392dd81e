"""Faults of C++ files, in a copy of the sources with a build of its own."""

from __future__ import annotations

import filecmp
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from mutant import BUILD, ROOT, SITE, Mutant, Verdict, change_number
from related_tests import run_tests

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
