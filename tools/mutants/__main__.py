"""Mutation testing: how many small faults do the tests notice?

A seeded sample of faults (a boundary moved, a condition negated, a statement removed ...) is put
into each package, one at a time, and the tests related to the changed file run until one fails. A
fault that no test notices survived: usually a missing test. Python faults need no file changed:
`tools/mutant_site/sitecustomize.py` compiles the mutant instead of the file, in child processes
too, and notes whether the faulty statement ran. Where no related test runs it and a live test
imports the module, the fault is listed as `live` and not counted. Limits are of CPU time, so the
machine may be busy; a test that fails without the fault, too, leaves it `undecided`, which is not
counted either. C++ faults go into a copy of the sources
in build/mutants: what the C++ tests do not notice is built as the Python module and left to the
package's Python tests. Entry point: `main`; `python tools/mutants --help`. Units: s.

Why not mutmut or cosmic-ray: mutmut runs a copy of the sources, which the import hook of an
editable scikit-build package does not see; cosmic-ray changes the files in place, so that nobody
can work meanwhile, and neither knows C++.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cpp_faults import CppTree, cpp_mutants
from mutant import BUILD, ROOT, SOURCES, Mutant, Verdict
from python_faults import judge_python, python_mutants
from related_tests import TestTimes
from test_run import start_warm_interpreter

LATEST = BUILD / "latest.json"
CPP_PACKAGES = ("core/packet", "core/stats", "core/allocate", "core/probe")


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
    return sorted(p for p in folder.rglob("*.py") if not p.stem.endswith("_pb2"))


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
    times = TestTimes(options.test_limit)
    return [_show(judge_python(mutant, times), options.verbose) for mutant in mutants]


def _show(verdict: Verdict, verbose: bool) -> Verdict:
    if verbose or verdict.outcome != "killed":
        print(f"{verdict.outcome:10}{verdict.mutant.describe()}", flush=True)
    return verdict


def report(verdicts: dict[str, list[Verdict]]) -> str:
    """Rates by package; what only live tests run and what is undecided is shown, not counted."""
    rows = [*verdicts.items(), ("all", [v for judged in verdicts.values() for v in judged])]
    lines = [f"{'package':14}{'mutants':>8}{'killed':>8}{'rate':>7}{'live':>6}{'undecided':>11}"]
    for package, judged in rows:
        outcomes = Counter(verdict.outcome for verdict in judged)
        killed = outcomes["killed"]
        count = killed + outcomes["survived"] + outcomes["unreached"]
        rate = f"{100 * killed / count:.0f} %" if count else "-"
        apart = f"{outcomes['live'] or '':>6}{outcomes['undecided'] or '':>11}"
        lines.append(f"{package:14}{count:>8}{killed:>8}{rate:>7}{apart}".rstrip())
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
    parser.add_argument(
        "--test-limit",
        type=float,
        default=6,
        help="leaves out test files of more CPU time (default 6 s)",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="judge those of the last run that were not killed, with today's tests",
    )
    parser.add_argument("--verbose", action="store_true", help="show killed mutants too")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    BUILD.mkdir(parents=True, exist_ok=True)
    start_warm_interpreter()
    last = _read_killed() if options.again else {}
    verdicts: dict[str, list[Verdict]] = {}
    for package in options.packages or [*python_packages(), *CPP_PACKAGES]:
        if not files_of(package):
            raise SystemExit(f"{package}: no such package; one of {', '.join(python_packages())}")
        mutants = sample(package, options.sample, options.seed)
        killed = [last[m.describe()] for m in mutants if m.describe() in last]
        remaining = [mutant for mutant in mutants if mutant.describe() not in last]
        verdicts[package] = killed + (judge(package, remaining, options) if remaining else [])
        _write(verdicts)
    print(report(verdicts))
    return 0


def _write(verdicts: dict[str, list[Verdict]]) -> None:
    rows = [asdict(v) | {"package": p} for p, judged in verdicts.items() for v in judged]
    for row in rows:
        del row["mutant"]["text"]
    LATEST.write_text(json.dumps(rows, indent=1), "utf-8")


def _read_killed() -> dict[str, Verdict]:
    """Mutants that the last run killed, by description."""
    verdicts = [
        Verdict(
            Mutant(**row["mutant"], text=""), row["outcome"], tuple(row["tests"]), row["seconds"]
        )
        for row in json.loads(LATEST.read_text("utf-8"))
    ]
    return {v.mutant.describe(): v for v in verdicts if v.outcome == "killed"}


if __name__ == "__main__":
    raise SystemExit(main())
