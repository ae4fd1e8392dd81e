"""Recorded traces: CSV with the columns time_ns, from, to, bytes.

Entry points: `trace_rows`, `trace_number`. Errors name file and line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from weft.errors import InputError


def trace_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    columns = ["time_ns", "from", "to", "bytes"]
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != columns:
                raise InputError(
                    f"{path} line 1", f"columns are {reader.fieldnames}", f"use {','.join(columns)}"
                )
            for row in reader:
                if None in row.values() or None in row:
                    raise InputError(
                        f"{path} line {reader.line_num}", "has not 4 fields", "fill it"
                    )
                yield reader.line_num, row
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error), "check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(
            str(path), f"byte {error.start} is not UTF-8", "save it as UTF-8"
        ) from error


def trace_number(row: dict[str, str], key: str, scale: int, place: str) -> int:
    try:
        value = round(float(row[key]) * scale)
    except (ValueError, OverflowError):
        value = -1
    if not 0 <= value < 2**60:
        raise InputError(place, f"{key} is {row[key]!r}", "use a number, 0 or more")
    return value
