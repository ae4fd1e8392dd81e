"""What a paper states in a sentence: one value, its unit and place, in our words.

Entry points: `stated`, `statements`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf, nan
from types import MappingProxyType

from weft.errors import InputError
from weft.studies.published.table import FOLDER, STATEMENTS
from weft.toml_table import Table, load_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One stated value; nan where the sentence has no number, only an order."""

    key: str
    value: float
    unit: str
    place: str
    says: str


def stated(paper: str, key: str) -> Statement:
    """What the paper ("fdr", "ib2016", "efa") states under that key."""
    known = statements(paper)
    if key not in known:
        raise InputError(f"{paper}: {key}", "is not stated", f"use one of {', '.join(known)}")
    return known[key]


@cache
def statements(paper: str) -> Mapping[str, Statement]:
    """All statements of a paper, by key."""
    path = FOLDER / f"{paper}{STATEMENTS}.toml"
    if not path.is_file():
        papers = sorted(p.stem.removesuffix(STATEMENTS) for p in FOLDER.glob(f"*{STATEMENTS}.toml"))
        raise InputError(f"paper {paper}", "is unknown", f"use one of {', '.join(papers)}")
    table = Table(load_toml(path), path.name)
    read = [_statement(item) for item in table.tables("statement")]
    table.done()
    return MappingProxyType({statement.key: statement for statement in read})


def _statement(table: Table) -> Statement:
    read = Statement(
        key=table.text("key"),
        value=table.number("value", -inf, inf, nan),
        unit=table.text("unit", ""),
        place=table.text("place"),
        says=table.text("says"),
    )
    table.done()
    return read
