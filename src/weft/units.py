"""Quantities with units: parse, convert, format.

`parse_time("50 ns")`, `parse_size("32 KiB")` and `parse_rate("56 Gb/s")` refuse plain numbers: a
number without a unit is how factors of a thousand are lost. `format_value` chooses the unit that
people would, `format_count` the number of a noun. Times, sizes, rates and frequencies convert among
themselves; any other unit equals only itself.
Units: integer picoseconds, bytes, bits per second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from weft.errors import InputError

_QUANTITY = re.compile(
    r"^\s*([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*$"
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
# As the classic tools write sizes on a command line: bytes, or powers of 1024.
_CLASSIC_SIZES = {"": 1, "K": 2**10, "k": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Sums of a few of these fit the simulator's 64-bit integers.
LARGEST = {"time": 1e15, "size": 2.0**60, "rate": 1e18}
_PREFIX = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
RATE_BPS = {f"{p}{u}": f for p, f in _PREFIX.items() for u in ("b/s", "bps", "bit/s")} | {
    f"{p}B/s": 8 * f for p, f in _PREFIX.items()
}


def parse_quantity(
    text: object, table: dict[str, int], quantity: str, where: str, remedy: str = ""
) -> float:
    """A number times its unit of the table; plain numbers only where the table has ""."""
    if "" in table and isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    if match is None or match[2] not in table:
        units = ", ".join(u for u in table if not u.startswith("K") or u == "KiB")
        raise InputError(
            where,
            f"{text!r} is not a {quantity}",
            remedy or f"write a number and a unit in quotes, one of {units}",
        )
    return float(match[1].replace("_", "")) * table[match[2]]


def _parse_limited(text: object, quantity: str, where: str) -> float:
    value = parse_quantity(text, _TABLES[quantity], quantity, where)
    if abs(value) > LARGEST[quantity]:
        limit = {"time": "1000 s", "size": "1 EiB", "rate": "1000 Pb/s"}[quantity]
        raise InputError(where, f"{text!r} is too large", f"use {limit} or less")
    return value


def parse_time(text: object, where: str = "time") -> int:
    """Picoseconds of a duration such as "1.5 us"."""
    return round(_parse_limited(text, "time", where))


def parse_size(text: object, where: str = "size", *, bare: bool = False) -> int:
    """Bytes of a size such as "32 KiB"; KB is 1000, KiB is 1024.

    `bare` is for command lines: plain numbers are bytes, and K, M, G are powers of 1024.
    """
    if not bare:
        return round(_parse_limited(text, "size", where))
    remedy = "write bytes, or a number and K, M, G, KiB, MiB, GiB, kB, MB or GB"
    value = parse_quantity(text, {**_CLASSIC_SIZES, **SIZE_BYTES}, "size", where, remedy)
    if value != round(value):
        raise InputError(where, f"{text!r} is not a whole number of bytes", remedy)
    return round(value)


def parse_rate(text: object, where: str = "rate") -> float:
    """Bits per second of a rate such as "56 Gb/s" (b = bit, B = byte)."""
    return _parse_limited(text, "rate", where)


# Events per second, such as messages.
_FREQUENCY_HZ = {"1/s": 1, "/s": 1, "k/s": 10**3, "M/s": 10**6, "G/s": 10**9}
_TABLES = {"time": TIME_PS, "size": SIZE_BYTES, "rate": RATE_BPS, "frequency": _FREQUENCY_HZ}
_READABLE = {
    "time": ("s", "ms", "µs", "ns", "ps"),
    "size": ("GiB", "MiB", "KiB", "B"),
    "rate": ("Tb/s", "Gb/s", "Mb/s", "kb/s", "b/s"),
    "frequency": ("G/s", "M/s", "k/s", "/s"),
}
_UNIT_OF_ZERO = {"time": "s", "size": "B", "rate": "b/s", "frequency": "/s"}

# How the name of a setting ends, and the unit of its value.
_SUFFIXES = {"_bytes": "B", "_ns": "ns", "_us": "us", "_ps": "ps", "_bps": "b/s", "_Bps": "B/s"}


@dataclass(frozen=True, slots=True)
class Display:
    """A unit for the reader: shown = stored / divisor."""

    divisor: float
    unit: str


def _dimension(unit: str) -> tuple[str, int] | None:
    for name, table in _TABLES.items():
        if unit in table:
            return name, table[unit]
    return None


def dimension_of(unit: str) -> str:
    """ "time", "size", "rate", "frequency", or "" for any other unit."""
    dimension = _dimension(unit)
    return dimension[0] if dimension else ""


def convert(value: float, unit: str, to: str) -> float | None:
    """The value in another unit; None when the two do not measure the same thing."""
    if unit == to:
        return value
    source, target = _dimension(unit), _dimension(to)
    if source is None or target is None or source[0] != target[0]:
        return None
    return value * source[1] / target[1]


def choose_unit(unit: str, typical: float) -> Display:
    """The largest unit in which a typical value is at least 1; the plain one for zero."""
    dimension = _dimension(unit)
    if dimension is None:
        return Display(1, unit)
    name, factor = dimension
    table, steps = _TABLES[name], _READABLE[name]
    largest = next((u for u in steps if abs(typical) * factor >= table[u]), steps[-1])
    chosen = largest if typical else _UNIT_OF_ZERO[name]
    return Display(table[chosen] / factor, chosen)


def split_unit(name: str) -> tuple[str, str]:
    """A setting's name and unit: ("size", "B") of "size_bytes"; ("depth", "") of "depth"."""
    for suffix, unit in _SUFFIXES.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), unit
    return name, ""


def format_value(value: float, unit: str) -> str:
    """A value in the unit people would choose: `format_value(1_500_000, "ps")` is "1.5 µs"."""
    display = choose_unit(unit, value)
    return f"{format_number(value / display.divisor)} {display.unit}".rstrip()


def format_setting(name: str, value: object) -> str:
    """A setting as people write it, exactly: `format_setting("size_bytes", 1500)` is "1500 B"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    _, unit = split_unit(name)
    if unit == "B":
        exact = [u for u in _READABLE["size"] if value and value % SIZE_BYTES[u] == 0]
        unit = exact[0] if exact else "B"
        return f"{value / SIZE_BYTES[unit]:.12g} {unit}"
    display = choose_unit(unit, value)
    return f"{value / display.divisor:.12g} {display.unit}".rstrip()


def format_settings(settings: Mapping[str, object]) -> str:
    """ "duration=500 ms, size=64 B": the settings by name."""
    return ", ".join(
        f"{split_unit(name)[0]}={format_setting(name, value)}"
        for name, value in sorted(settings.items())
    )


def format_number(value: float) -> str:
    """Four significant digits, and all digits before the point up to 10^15."""
    if float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def format_count(count: int, noun: str) -> str:
    """A number of things: "1 switch", "2 switches"."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"
