"""The papers' tables and stated values as data files, in the papers' own units.

A table is one TOML file: `columns` are names with units, `rows` stand as printed, nan where the
paper gives nothing. What a paper states only in sentences is in `<paper>-statements.toml`.
Entry points: `published`, `stated`.
"""

from weft.studies.published.statement import Statement, stated, statements
from weft.studies.published.table import Cell, PublishedTable, published, table_names

__all__ = [
    "Cell",
    "PublishedTable",
    "Statement",
    "published",
    "stated",
    "statements",
    "table_names",
]
