"""One published table: its place in the paper, its columns, its rows.

Entry points: `published`, `table_names`. Units are written in the names of the columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.toml_table import Table, load_toml

Cell = float | str
FOLDER = Path(__file__).parent
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
def published(name: str) -> PublishedTable:
    """The table of that name, such as "ib2016-table2" or "efa-c3-1"."""
    path = FOLDER / f"{name}.toml"
    if name not in table_names():
        raise InputError(
            f"published table {name}", "is unknown", f"use one of {', '.join(table_names())}"
        )
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
    names = (path.stem for path in FOLDER.glob("*.toml"))
    return tuple(sorted(name for name in names if not name.endswith(STATEMENTS)))
