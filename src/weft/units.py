"""Quantities with units, read and written as people write them.

`parse_time("50 ns")`, `parse_size("32 KiB")`, `parse_rate("56 Gb/s")`. Plain numbers
are refused: a number without a unit is how factors of a thousand are lost.
Units: integer picoseconds, bytes, bits per second.
"""

from __future__ import annotations

import re

from weft.errors import InputError

_QUANTITY = re.compile(
    r"^\s*([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]+)\s*$"
)

TIME_PS = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": 10**12}
SIZE_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
# Sums of a few of these still fit the simulator's 64-bit integers.
LARGEST = {"time": 1e15, "size": 2.0**60, "rate": 1e18}
_PREFIX = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
RATE_BPS = {f"{p}{u}": f for p, f in _PREFIX.items() for u in ("b/s", "bps", "bit/s")} | {
    f"{p}B/s": 8 * f for p, f in _PREFIX.items()
}


def _read(text: object, table: dict[str, int], what: str, where: str) -> float:
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    if match is None or match[2] not in table:
        units = ", ".join(u for u in table if not u.startswith("K"))
        raise InputError(
            where,
            f"{text!r} is not a {what}",
            f"write a number and a unit in quotes, one of {units}",
        )
    value = float(match[1].replace("_", "")) * table[match[2]]
    if abs(value) > LARGEST[what]:
        limit = {"time": "1000 s", "size": "1 EiB", "rate": "1000 Pb/s"}[what]
        raise InputError(where, f"{text!r} is too large", f"use {limit} or less")
    return value


def parse_time(text: object, where: str = "time") -> int:
    """Picoseconds of a duration such as "1.5 us"."""
    return round(_read(text, TIME_PS, "time", where))


def parse_size(text: object, where: str = "size") -> int:
    """Bytes of a size such as "32 KiB"; KB is 1000, KiB is 1024."""
    return round(_read(text, SIZE_BYTES, "size", where))


def parse_rate(text: object, where: str = "rate") -> float:
    """Bits per second of a rate such as "56 Gb/s" (b = bit, B = byte)."""
    return _read(text, RATE_BPS, "rate", where)
