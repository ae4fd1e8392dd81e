"""Named parameter sets of simulated systems, each value with its source.

The values are in `systems.toml` with unit, meaning and source; this module reads them.
Entry points: `system_names`, `system_values`, `parameters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from weft.errors import InputError
from weft.toml_table import load_toml


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of one system."""

    system: str
    section: str
    key: str
    value: str
    meaning: str
    source: str


@cache
def _document() -> dict[str, Any]:
    return load_toml(str(files("weft.simulate").joinpath("systems.toml")))


def system_names() -> tuple[str, ...]:
    return tuple(_document())


def parameters(system: str) -> Iterator[Parameter]:
    """Every parameter of a system, in the order of the file."""
    for section, keys in _system(system).items():
        if isinstance(keys, dict):
            for key, entry in keys.items():
                yield Parameter(system, section, key, **entry)


def system_values(system: str) -> dict[str, dict[str, str]]:
    """section -> key -> value, as a scenario would write them."""
    values: dict[str, dict[str, str]] = {}
    for p in parameters(system):
        values.setdefault(p.section, {})[p.key] = p.value
    return values


def _system(name: str) -> dict[str, Any]:
    try:
        return _document()[name]  # type: ignore[no-any-return]
    except KeyError:
        raise InputError(
            "system", f"{name!r} is unknown", f"use one of {', '.join(system_names())}"
        ) from None
