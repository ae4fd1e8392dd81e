"""What was measured here and is kept: profiled applications, and co-running.

`applications/NAME.json` is what `weft apps export NAME` wrote; machine, date, command and every run
are in it. `NAME.data-F.json` is the same program with F times the data, `NAME.nodes-N.json` on N
hosts. `coruns/` has records of `weft corun`. Applications are of 15 November 2026, with the code of
commit 20c32f5, co-running is of the 16th, with that of 68f8e57. Entry points: `recorded`,
`recorded_variants`, `recorded_coruns`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from weft.records import Record, read_records
from weft.sensitivity.application import Application
from weft.sensitivity.application_table import read_application

FOLDER = Path(__file__).parent / "applications"
CORUNS = Path(__file__).parent / "coruns"
NODES = 4  # of the profiles without a change
_VARIANT = re.compile(r"(?P<of>.+)\.(?P<change>data|nodes)-(?P<amount>[0-9.]+)")

Change = Literal["data", "nodes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A program profiled again; `amount` is the factor of its data, or the number of hosts."""

    change: Change
    amount: float
    base: Application
    application: Application

    @property
    def of(self) -> str:
        return self.base.name


@cache
def _all() -> Mapping[str, Application]:
    return {path.stem: read_application(str(path)) for path in sorted(FOLDER.glob("*.json"))}


@cache
def recorded() -> Mapping[str, Application]:
    """The profiled applications by name, without changes."""
    return {name: one for name, one in _all().items() if _VARIANT.fullmatch(name) is None}


@cache
def recorded_variants() -> tuple[Variant, ...]:
    """Those profiled again with other data or on another number of hosts."""
    found = []
    for name, application in _all().items():
        match = _VARIANT.fullmatch(name)
        if match is not None:
            change: Change = "data" if match["change"] == "data" else "nodes"
            found.append(
                Variant(
                    change=change,
                    amount=float(match["amount"]),
                    base=recorded()[match["of"]],
                    application=application,
                )
            )
    return tuple(sorted(found, key=lambda one: (one.of, one.change, one.amount)))


@cache
def recorded_coruns() -> Mapping[str, tuple[Record, ...]]:
    """Records of `weft corun`, by the names of the applications that ran together."""
    return {path.stem: read_records(path).records for path in sorted(CORUNS.glob("*.jsonl"))}
