"""Values of settings, as people write them on a command line or in Python.

A reader takes what was given and where it stands, and returns the value in the setting's unit or
raises an InputError. Sizes may end in K, M, G (powers of 1024, as the classic tools count) or in a
unit (KiB, kB); times need a unit; rates per second may end in k, M, G (powers of 1000).
Units: bytes, nanoseconds, 1/s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from weft.errors import InputError
from weft.measure.settings.placement import ANYWHERE, AUTO
from weft.units import SIZE_BYTES, TIME_PS, parse_rate

Reader = Callable[[object, str], Any]

_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)\s*")
_SIZES = {"": 1, "K": 2**10, "k": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, **SIZE_BYTES}
_RATES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
LARGEST_SIZE = 2**31
LONGEST_NS = 10**15  # eleven days


def _scaled(value: object, units: dict[str, int], where: str, what: str, remedy: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and "" in units:
        return float(value)
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise InputError(where, f"{value!r} is not a {what}", remedy)
    return float(match[1].replace("_", "")) * units[match[2]]


def size(least: int = 1, most: int = LARGEST_SIZE) -> Reader:
    """Bytes: 64, "64 B", "4K", "4 KiB"."""

    def read(value: object, where: str) -> int:
        remedy = "write bytes, or a number and K, M, G, KiB, MiB, GiB, kB, MB or GB"
        found = _scaled(value, _SIZES, where, "size", remedy)
        if found != round(found):
            raise InputError(where, f"{value!r} is not a whole number of bytes", remedy)
        return _within(round(found), least, most, where, value, " B")

    return read


def time_ns(value: object, where: str) -> int:
    """Nanoseconds of "1.5 us"; a bare number is refused, as nobody can tell its unit."""
    remedy = "write a number and a unit: ns, us, ms or s"
    found = round(_scaled(value, TIME_PS, where, "time", remedy) / 1000)
    return _within(found, 0, LONGEST_NS, where, value, " ns")


def per_second(value: object, where: str) -> float:
    """Messages per second: 1000, "20k", "1.5M"."""
    found = _scaled(value, _RATES, where, "rate", "write messages per second, such as 1000 or 20k")
    if not 0 < found <= 1e9:
        raise InputError(where, f"{value!r} is out of range", "use more than 0 and at most 1G")
    return found


def gigabits(value: object, where: str) -> float:
    """Gb/s of "56 Gb/s"; 0 is no limit."""
    if value == 0 or value == "0":
        return 0.0
    return parse_rate(value, where) / 1e9


def whole(least: int, most: int) -> Reader:
    """An integer between two bounds."""

    def read(value: object, where: str) -> int:
        remedy = f"use a whole number from {least} to {most}"
        if isinstance(value, bool):
            raise InputError(where, f"{value!r} is not a number", remedy)
        try:
            number = int(value) if isinstance(value, int | str) else None
        except ValueError:
            number = _expanded(value)
        if number is None:
            raise InputError(where, f"{value!r} is not a whole number", remedy)
        return _within(number, least, most, where, value, "")

    return read


def processor(value: object, where: str) -> int:
    """A CPU's number, -1 for any, or "auto"."""
    if value in ("auto", AUTO):
        return AUTO
    if isinstance(value, str) and not value.strip().lstrip("-").isdigit():
        raise InputError(where, f"{value!r} is not a processor", "use its number, or auto")
    return int(whole(ANYWHERE, 4095)(value, where))


def _expanded(value: object) -> int | None:
    """20000 of "20k" or "2e4": counts are large too."""
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _RATES:
        return None
    found = float(match[1].replace("_", "")) * _RATES[match[2]]
    return round(found) if found == round(found) else None


def share(value: object, where: str) -> float:
    """A number from 0 to 1."""
    try:
        found = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        found = math.nan
    if not 0 <= found <= 1:
        raise InputError(where, f"{value!r} is not a share", "use a number from 0 to 1")
    return found


def choice(*names: str) -> Reader:
    """One of a few words."""

    def read(value: object, where: str) -> str:
        if value not in names:
            raise InputError(where, f"{value!r} is not known", f"use one of {', '.join(names)}")
        return str(value)

    return read


def text(value: object, where: str) -> str:
    """Any text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(where, f"{value!r} is not a text", "write a name")
    return value.strip()


def flag(value: object, where: str) -> bool:
    """True or false."""
    known = {"true": True, "yes": True, "false": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    raise InputError(where, f"{value!r} is neither true nor false", "use true or false")


def _within(number: int, least: int, most: int, where: str, value: object, unit: str) -> int:
    if number < least:
        raise InputError(where, f"{value!r} is too small", f"use {least}{unit} or more")
    if number > most:
        raise InputError(where, f"{value!r} is too large", f"use {most}{unit} or less")
    return number
