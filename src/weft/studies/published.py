"""The papers' tables and stated values as data files, in the papers' own units.

Each paper's room has a folder `published`. A table is one TOML file: `columns` are names with
units, `rows` stand as printed, nan where the paper gives nothing. What a paper states only in
sentences is in `PAPER-statements.toml`. Entry points: `find_table`, `find_statement`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.toml_table import Table, load_toml

Cell = float | str
ROOMS = Path(__file__).parent
STATEMENTS = "-statements"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A table as it is printed; nan where the paper has nothing. `notes` say what was inferred."""

    name: str
    paper: str
    place: str
    title: str
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """A column of numbers, nan where nothing is published."""
        cells = self.cells(name)
        if any(isinstance(cell, str) for cell in cells):
            raise InputError(f"{self.name}: {name}", "is a column of texts", "read it with cells()")
        return np.array(cells, dtype=np.float64)

    def cells(self, name: str) -> tuple[Cell, ...]:
        """A column as it stands."""
        if name not in self.columns:
            raise InputError(
                f"{self.name}: {name}", "is no column", f"use one of {', '.join(self.columns)}"
            )
        place = self.columns.index(name)
        return tuple(row[place] for row in self.rows)


@cache
def find_table(name: str) -> PublishedTable:
    """The table of that name, such as "ib2016-table2" or "efa-c3-1"."""
    if name not in table_names():
        raise InputError(
            f"published table {name}", "is unknown", f"use one of {', '.join(table_names())}"
        )
    path = _file(name)
    table = Table(load_toml(path), path.name)
    columns = table.texts("columns")
    read = PublishedTable(
        name=name,
        paper=table.text("paper"),
        place=table.text("place"),
        title=table.text("title"),
        notes=table.texts("notes"),
        columns=columns,
        rows=tuple(_row(row, columns, path.name) for row in table.raw("rows")),
    )
    table.done()
    return read


def _row(cells: list[Any], columns: tuple[str, ...], where: str) -> tuple[Cell, ...]:
    if len(cells) != len(columns):
        raise InputError(where, f"{cells} has {len(cells)} cells", f"give {len(columns)}")
    return tuple(cell if isinstance(cell, str) else float(cell) for cell in cells)


@cache
def table_names() -> tuple[str, ...]:
    """The names of all tables."""
    names = (path.stem for path in ROOMS.glob("*/published/*.toml"))
    return tuple(sorted(name for name in names if not name.endswith(STATEMENTS)))


def _file(name: str) -> Path:
    return ROOMS / name.split("-")[0] / "published" / f"{name}.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One stated value; nan where the sentence has no number, only an order."""

    key: str
    value: float
    unit: str
    place: str
    says: str


def find_statement(paper: str, key: str) -> Statement:
    """What the paper ("fdr", "ib2016", "efa") states under that key."""
    by_key = read_statements(paper)
    if key not in by_key:
        raise InputError(f"{paper}: {key}", "is not stated", f"use one of {', '.join(by_key)}")
    return by_key[key]


@cache
def read_statements(paper: str) -> Mapping[str, Statement]:
    """All statements of a paper, by key."""
    path = _file(f"{paper}{STATEMENTS}")
    if not path.is_file():
        files = ROOMS.glob(f"*/published/*{STATEMENTS}.toml")
        papers = sorted(file.stem.removesuffix(STATEMENTS) for file in files)
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
