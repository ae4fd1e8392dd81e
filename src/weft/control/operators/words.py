"""Counts, lists and times in words, for whatever the controller tells people.

Entry points: `counted`, `listed`, `seconds`.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.units import format_number


def format_count(count: int, one: str) -> str:
    """Such as "3 ports"."""
    return f"{count} {one}{'' if count == 1 else 's'}"


def format_list(values: Iterable[int]) -> str:
    return " ".join(map(str, values))


def format_seconds(value: float) -> str:
    """Four digits, and nothing below a millisecond."""
    return f"{format_number(round(value, 3) if value >= 0.01 else value)} s"
