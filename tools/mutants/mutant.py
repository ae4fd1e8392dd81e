"""A mutant and its verdict, and where sources, builds and the import hook are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
SOURCES = ROOT / "src" / "weft"
SITE = ROOT / "tools" / "mutant_site"
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
    # test imports the module), undecided (a test failed that fails without the fault, too), invalid
    # (does not compile)
    outcome: str
    tests: tuple[str, ...]
    seconds: float


def change_number(value: float) -> float:
    """The next number, or twice a large one: one more byte of a large buffer is no fault."""
    return value + 1 if abs(value) < LARGE else 2 * value
