"""Sweeps: `size=64..8M*2 depth=1,4,16` is every combination of the values.

    KEY=ITEM[,ITEM ...]      ITEM is VALUE, A..B*K, A..B+K or A..B

`A..B*K` is A, A·K, A·K², ... up to B; `A..B+K` is A, A+K, A+2K, ... up to B; `A..B` counts by one.
Values are written as in the option of the same name. Commas inside parentheses belong to a value.
Entry point: `sweep_points`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.errors import InputError
from weft.measure.settings.options import Kind, Option, options_of, settings_from
from weft.measure.settings.values import Reader

MOST_POINTS = 10_000
GRAMMAR = "write KEY=A,B,C, KEY=A..B*K or KEY=A..B+K, such as size=64..8M*2"
# Two dots part the ends; a single one is a decimal point.
_RANGE = re.compile(r"(?P<first>.+?)\.\.(?P<last>[^*+]+)(?:(?P<how>[*+])(?P<step>.+))?")


def sweep_points(
    kind: type[Kind], fixed: Mapping[str, object], sweeps: Sequence[str]
) -> list[Kind]:
    """The settings of every combination, the last key fastest; `fixed` applies to all."""
    options = options_of(kind)
    swept = {name: values_of(options[name][1], text) for name, text in _keys(sweeps, options)}
    for name in swept.keys() & fixed.keys():
        raise InputError(f"--{name}", "is also given by --sweep", "keep one of the two")
    total = math.prod(len(found) for found in swept.values())
    if total > MOST_POINTS:
        problem = f"{total} combinations are more than {MOST_POINTS}"
        raise InputError("--sweep", problem, "sweep fewer values")
    base = settings_from(kind, fixed, "--")
    fields = [options[name][0] for name in swept]
    return [
        dataclasses.replace(base, **dict(zip(fields, found, strict=True)))
        for found in itertools.product(*swept.values())
    ]


def swept_names(sweeps: Sequence[str]) -> list[str]:
    """The settings that vary."""
    return [_name(text) for text in sweeps]


def _name(text: str) -> str:
    return text.partition("=")[0].strip().lstrip("-").replace("_", "-")


def _keys(sweeps: Sequence[str], known: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(name of the setting, its values as text) of each sweep."""
    seen: set[str] = set()
    for text in sweeps:
        _, equals, found = text.partition("=")
        name = _name(text)
        if not equals or not name:
            raise InputError(f"--sweep {text!r}", "is not KEY=VALUES", GRAMMAR)
        if name not in known:
            remedy = f"known: {', '.join(known)}"
            raise InputError(f"--sweep {name}", "this test has no such setting", remedy)
        if name in seen:
            raise InputError(f"--sweep {name}", "is given twice", "give each key once")
        seen.add(name)
        yield name, found


def values_of(option: Option, text: str) -> list[Any]:
    """The values that a list of items stands for; each may come once."""
    return listed_values(option.read, text, f"--sweep {option.name}")


def listed_values(read: Reader, text: str, where: str) -> list[Any]:
    """The same of any reader, such as a size's."""
    found = [value for item in _items(text) for value in _expand(item, read, where)]
    if not found:
        raise InputError(where, f"{text!r} has no values", GRAMMAR)
    for number, value in enumerate(found):
        if value in found[:number]:
            raise InputError(where, f"{value} is given twice", "give each value once")
    return found


def _items(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    items, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    return [item.strip() for item in items if item.strip()]


def _expand(item: str, read: Reader, where: str) -> list[Any]:
    match = _RANGE.fullmatch(item)
    if match is None:
        return [read(item, where)]
    first, last = (read(match[end].strip(), where) for end in ("first", "last"))
    if isinstance(first, bool) or not isinstance(first, int | float):
        raise InputError(where, f"{item!r}: this setting has no ranges", "list its values")
    if first > last:
        raise InputError(where, f"{item!r} goes down", "write the smaller end first")
    if match["how"] == "*":
        return _geometric(first, last, _factor(match["step"], item, where), item, where)
    step = read(match["step"].strip(), where) if match["step"] else 1
    return _arithmetic(first, last, step, item, where)


def _factor(text: str, item: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(where, f"{item!r}: {text!r} is not a factor", GRAMMAR) from None


def _geometric(first: float, last: float, factor: float, item: str, where: str) -> list[float]:
    if not (first > 0 and 1 < factor < math.inf):
        remedy = "start above 0 and use a factor above 1"
        raise InputError(where, f"{item!r} does not grow", remedy)
    return _until(last, (first * factor**i for i in itertools.count()), first, where)


def _arithmetic(first: float, last: float, step: float, item: str, where: str) -> list[float]:
    if not step > 0:
        raise InputError(where, f"{item!r} does not grow", "use a step above 0")
    return _until(last, (first + step * i for i in itertools.count()), first, where)


def _until(last: float, growing: Iterator[float], like: float, where: str) -> list[float]:
    """Values up to `last`, whole numbers where the setting has those, each once."""
    whole = isinstance(like, int)
    # Steps such as 0.1 are not exact: ten of them must still reach 1.
    limit = last if whole else last * (1 + 1e-9)
    reached = itertools.takewhile(lambda value: value <= limit, growing)
    found = list(itertools.islice(reached, MOST_POINTS + 1))
    if len(found) > MOST_POINTS:
        raise InputError(where, f"more than {MOST_POINTS} values", "use a larger step")
    if whole:
        return list(dict.fromkeys(round(value) for value in found))
    return [round(value, 12) for value in found]
