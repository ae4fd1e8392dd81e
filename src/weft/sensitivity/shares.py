"""Shares of the link as people write them: percentages, ascending, such as 5,10,25,50,75,90,100.

Entry point: `shares_from`.
"""

from __future__ import annotations

from itertools import pairwise

from weft.errors import InputError


def shares_from(text: str, where: str = "--percent") -> list[float]:
    """Fractions of the link from a list of percentages, each once and in ascending order."""
    shares = [_share(word, where) for word in text.split(",")]
    for before, after in pairwise(shares):
        if after <= before:
            problem = f"{100 * after:g} after {100 * before:g}"
            raise InputError(where, problem, "write them ascending, each once")
    return shares


def _share(word: str, where: str) -> float:
    try:
        value = float(word)
    except ValueError as error:
        raise InputError(where, f"{word!r} is not a number", "write 10,25,50") from error
    if not 0 < value <= 100:  # nan too
        problem = f"{word.strip()} is not above 0 and up to 100"
        raise InputError(where, problem, "use percent of the link")
    return value / 100
