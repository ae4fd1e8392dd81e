"""What a benchmark run leaves behind: bench/latest.jsonl, one figure per line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

LATEST = Path(__file__).parent / "latest.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line; `goal` is a bound for ours, or for the ratio where there is one.

    Lower bound for rates, else an upper one. `ratio` is ours/theirs, the median over `n` rounds.
    """

    name: str
    unit: str
    ours: float
    peer: str | None
    theirs: float | None
    goal: float | None
    ratio: float | None = None
    n: int = 1
    half: str = "simulate"


def save(figures: Sequence[Figure], path: Path = LATEST) -> None:
    """Put these figures in the place of the same halves' older ones."""
    halves = {figure.half for figure in figures}
    kept = [line for line in _lines(path) if json.loads(line).get("half", "simulate") not in halves]
    new = [json.dumps(asdict(figure)) for figure in figures]
    path.write_text("".join(f"{line}\n" for line in (*kept, *new)), encoding="utf-8")


def _lines(path: Path) -> Iterable[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
