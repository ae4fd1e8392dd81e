"""Sweeps as people write them: `KEY=A,B,C`, `KEY=A..B*K` or `KEY=A..B+K`.

    KEY=ITEM[,ITEM ...]      ITEM is VALUE, A..B*K, A..B+K or A..B

`A..B*K` is A, A·K, A·K², ... up to B; `A..B+K` is A, A+K, A+2K, ... up to B; `A..B` counts by one.
A reader turns the text of one value into the value. Commas inside brackets belong to a value.
Entry points: `split_assignments`, `expand_values`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft.errors import InputError

Reader = Callable[[object, str], Any]  # the value as written, and its place for errors

MAX_POINTS = 10_000
GRAMMAR = "write KEY=A,B,C, KEY=A..B*K or KEY=A..B+K, such as size=64..8M*2"
# Two dots part the ends; a single one is a decimal point.
_RANGE = re.compile(r"(?P<first>.+?)\.\.(?P<last>[^*+]+)(?:(?P<how>[*+])(?P<step>.+))?")


def split_assignments(option: str, texts: Sequence[str], example: str) -> dict[str, str]:
    """The text after KEY= by key; a key is given once."""
    assignments: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(f"{option} {text!r}", "is not KEY=VALUE", f"such as {example}")
        if key in assignments:
            raise InputError(f"{option} {key}", "is given twice", "give each key once")
        assignments[key] = value
    return assignments


def expand_values(read: Reader, text: str, where: str) -> list[Any]:
    """The values that a list of items stands for; each may come once."""
    values = [value for item in _split_items(text) for value in _expand_item(item, read, where)]
    if not values:
        raise InputError(where, f"{text!r} has no values", GRAMMAR)
    for number, value in enumerate(values):
        if value in values[:number]:
            raise InputError(where, f"{value!r} is given twice", "give each value once")
    return values


def _split_items(text: str) -> list[str]:
    """Split at commas outside brackets."""
    items, depth = [""], 0
    for letter in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    return [item.strip() for item in items if item.strip()]


def _expand_item(item: str, read: Reader, where: str) -> list[Any]:
    match = _RANGE.fullmatch(item)
    if match is None:
        return [read(item, where)]
    first, last = (read(match[end].strip(), where) for end in ("first", "last"))
    if isinstance(first, bool) or not isinstance(first, int | float):
        return [_read_text_with_dots(item, read, where)]
    _check_number(last, match["last"], item, where)
    if first > last:
        raise InputError(where, f"{item!r} goes down", "write the smaller end first")
    if match["how"] == "*":
        return _grow_by_factor(first, last, _parse_factor(match["step"], item, where), item, where)
    step = read(match["step"].strip(), where) if match["step"] else 1
    _check_number(step, match["step"], item, where)
    return _grow_by_step(first, last, step, item, where)


def _check_number(value: Any, text: str, item: str, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(where, f"{item!r}: {text.strip()!r} is not a number", GRAMMAR)


def _read_text_with_dots(item: str, read: Reader, where: str) -> Any:
    """A text may have two dots itself: `h0..h4` names the hosts of one point."""
    try:
        return read(item, where)
    except InputError:
        problem = f"{item!r}: this setting has no ranges"
        raise InputError(where, problem, "list its values") from None


def _parse_factor(text: str, item: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(where, f"{item!r}: {text!r} is not a factor", GRAMMAR) from None


def _grow_by_factor(first: float, last: float, factor: float, item: str, where: str) -> list[float]:
    if not (first > 0 and 1 < factor < math.inf):
        remedy = "start above 0 and use a factor above 1"
        raise InputError(where, f"{item!r} does not grow", remedy)
    return _take_until(last, (first * factor**i for i in itertools.count()), first, where)


def _grow_by_step(first: float, last: float, step: float, item: str, where: str) -> list[float]:
    if not step > 0:
        raise InputError(where, f"{item!r} does not grow", "use a step above 0")
    return _take_until(last, (first + step * i for i in itertools.count()), first, where)


def _take_until(last: float, growing: Iterator[float], like: float, where: str) -> list[float]:
    """Values up to `last`, whole numbers where the setting has those, each once."""
    is_whole = isinstance(like, int)
    # Steps such as 0.1 are not exact: ten of them must still reach 1.
    limit = last if is_whole else last * (1 + 1e-9)
    reached = itertools.takewhile(lambda value: value <= limit, growing)
    values = list(itertools.islice(reached, MAX_POINTS + 1))
    if len(values) > MAX_POINTS:
        raise InputError(where, f"more than {MAX_POINTS} values", "use a larger step")
    if is_whole:
        return list(dict.fromkeys(round(value) for value in values))
    return [round(value, 12) for value in values]
