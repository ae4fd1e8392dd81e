"""Read TOML; every mistake is reported with its place.

A `Table` gives each key once, checked and converted; `done` refuses keys that remain.
Errors name the file, the key, the value and the allowed values. Entry points: `load_toml`, `Table`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from weft.errors import InputError
from weft.units import parse_rate, parse_size, parse_time

T = TypeVar("T")

_MISSING: Any = object()
LEAST_RATE_BPS = 1000


def read_text(path: str | Path) -> str:
    """The content of a text file; an error names the file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error), "check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(
            str(path), f"byte {error.start} is not UTF-8", "save it as UTF-8"
        ) from error


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The content of a TOML text; a syntax error names the line."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        line = re.search(r"at line (\d+)", str(error))
        number = line[1] if line else max(len(text.splitlines()), 1)
        raise InputError(
            f"{where} line {number}", f"not TOML: {error}", "correct the syntax"
        ) from None


def load_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file; errors name the file, and the line of a syntax error."""
    return parse_toml(read_text(path), str(path))


def parse_value(text: object, _where: str = "") -> Any:
    """The TOML value that a text is (8, true, [1, 2]), or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return str(text).strip()


class Table:
    """One TOML table while it is being read."""

    def __init__(self, data: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._data = dict(data)
        self._requested: list[str] = []
        self.where = where
        self.prefix = prefix

    def place(self, key: str) -> str:
        """`file: section.key`, as errors name it."""
        return f"{self.where}: {self.prefix}{key}"

    @property
    def location(self) -> str:
        """`file: section`, as errors name the table itself."""
        return f"{self.where}: {self.prefix}".rstrip(".: ")

    def has(self, key: str) -> bool:
        return key in self._data

    def raw(self, key: str, default: Any = _MISSING) -> Any:
        """The key's value, unchecked; it is taken out of the table."""
        self._requested.append(key)
        if key in self._data:
            return self._data.pop(key)
        if default is _MISSING:
            raise InputError(self.place(key), "is missing", "add it")
        return default

    def _read_typed(self, key: str, kind: type[T], name: str, default: Any) -> T:
        value = self.raw(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise InputError(self.place(key), f"{value!r} is not {name}", f"give {name}")
        return value

    def text(self, key: str, default: Any = _MISSING) -> str:
        value = self._read_typed(key, str, "a text", default)
        self._check_text(key, value)
        return value

    def _check_text(self, key: str, value: str | None) -> None:
        if value is not None and "\0" in value:  # no name of a file has it
            raise InputError(self.place(key), f"{value!r} has a zero byte", "leave it out")

    def flag(self, key: str, default: Any = _MISSING) -> bool:
        return self._read_typed(key, bool, "true or false", default)

    def integer(self, key: str, low: int, high: int, default: Any = _MISSING) -> int:
        value = self._read_typed(key, int, "a whole number", default)
        self._check_range(key, value, low, high, default)
        return value

    def number(self, key: str, low: float, high: float, default: Any = _MISSING) -> float:
        value = self.raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(self.place(key), f"{value!r} is not a number", "give a number")
        self._check_range(key, value, low, high, default)
        return float(value)

    def _check_range(self, key: str, value: Any, low: Any, high: Any, default: Any) -> None:
        if value is not default and not low <= value <= high:
            raise InputError(self.place(key), f"{value} is out of range", f"use {low} to {high}")

    def time_ps(self, key: str, default: Any = _MISSING, low: int = 0) -> int:
        value = self.raw(key, default)
        if value is default and not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        ps = parse_time(value, self.place(key))
        if ps < low:
            raise InputError(self.place(key), f"{value!r} is too short", f"use {low} ps or more")
        return ps

    def size_bytes(self, key: str, low: int, high: int, default: Any = _MISSING) -> int:
        value = self.raw(key, default)
        if value is default and not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        size = parse_size(value, self.place(key))
        self._check_range(key, size, low, high, _MISSING)
        return size

    def rate_bps(self, key: str, default: Any = _MISSING) -> float:
        value = self.raw(key, default)
        if value is default and not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        rate = parse_rate(value, self.place(key))
        if rate < LEAST_RATE_BPS:
            raise InputError(self.place(key), f"{value!r} is too low", "use 1 kb/s or more")
        return rate

    def choice(self, key: str, values: Mapping[str, T], default: Any = _MISSING) -> T:
        value = self.raw(key, default)
        if not isinstance(value, str) or value not in values:
            raise InputError(
                self.place(key), f"{value!r} is unknown", f"use one of {', '.join(values)}"
            )
        return values[value]

    def texts(self, key: str, default: Any = _MISSING) -> tuple[str, ...]:
        """A list of texts; a single text is a list of one."""
        value = self.raw(key, default)
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, Sequence) or not all(isinstance(i, str) for i in items):
            raise InputError(
                self.place(key), f"{value!r} is not a list of names", "quote each name"
            )
        for item in items:
            self._check_text(key, item)
        return tuple(items)

    def table(self, key: str, default: Any = _MISSING) -> Table:
        value = self.raw(key, default)
        if not isinstance(value, Mapping):
            raise InputError(self.place(key), f"{value!r} is not a table", f"write [{key}]")
        return Table(value, self.where, f"{self.prefix}{key}.")

    def table_if_given(self, key: str) -> Table | None:
        self._requested.append(key)
        return self.table(key) if self.has(key) else None

    def tables(self, key: str, default: Any = _MISSING) -> Iterator[Table]:
        """An array of tables, each named in errors by its `name` or its number."""
        value = self.raw(key, default)
        if not isinstance(value, Sequence) or not all(isinstance(v, Mapping) for v in value):
            raise InputError(
                self.place(key), f"{value!r} is not a list of tables", f"write [[{key}]]"
            )
        for number, item in enumerate(value, 1):
            label = item.get("name", number)
            yield Table(item, self.where, f"{self.prefix}{key}.{label}.")

    def rest(self) -> dict[str, Any]:
        """Everything not yet taken."""
        remaining, self._data = self._data, {}
        return remaining

    def done(self) -> None:
        """Refuse keys that were never requested."""
        if self._data:
            key = next(iter(self._data))
            keys = ", ".join(sorted(set(self._requested)))
            raise InputError(self.place(key), "is not a known key", f"known here: {keys}")
