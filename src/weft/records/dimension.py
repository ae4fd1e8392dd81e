"""Units of stored values: what they measure, conversion, and the unit a reader would choose.

Times, sizes and rates convert among themselves; any other unit equals only itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.units import RATE_BPS, SIZE_BYTES, TIME_PS

_TABLES = {"time": TIME_PS, "size": SIZE_BYTES, "rate": RATE_BPS}
_READABLE = {
    "time": ("s", "ms", "µs", "ns", "ps"),
    "size": ("GiB", "MiB", "KiB", "B"),
    "rate": ("Tb/s", "Gb/s", "Mb/s", "kb/s", "b/s"),
}


# How the name of a setting ends, and the unit of its value.
_SUFFIXES = {"_bytes": "B", "_ns": "ns"}


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
    """ "time", "size", "rate", or "" for any other unit."""
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
    """The largest unit in which a typical value is at least 1."""
    dimension = _dimension(unit)
    if dimension is None:
        return Display(1, unit)
    name, factor = dimension
    table, steps = _TABLES[name], _READABLE[name]
    chosen = next((u for u in steps if abs(typical) * factor >= table[u]), steps[-1])
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


def format_number(value: float) -> str:
    """Four significant digits, and all digits of an integer that people count."""
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"
