"""Who sends to whom: the patterns of a plan.

one-to-one    the i-th source to the i-th target
many-to-one   every source to the one target
all-to-all    every host to every other
permutation   every host to one other and from one other, by a seed

`count` keeps the first so many: sources, or hosts. Entry point: `pairs`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from weft.errors import InputError

PATTERNS = ("one-to-one", "many-to-one", "all-to-all", "permutation")
AMONG = ("all-to-all", "permutation")  # patterns within one group of hosts

Pair = tuple[str, str]


def pairs(
    pattern: str,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    count: int | None = None,
    seed: int = 1,
    where: str = "pattern",
) -> tuple[Pair, ...]:
    """(source, target) of every flow; a pattern that lacks hosts is refused."""
    chosen = sources[: _count(sources, count, where)]
    if not chosen:
        return ()
    match pattern:
        case "one-to-one":
            found = _one_to_one(sources, targets, where)[: len(chosen)]
        case "many-to-one":
            found = _many_to_one(chosen, targets, where)
        case "all-to-all":
            found = [(a, b) for a in _several(chosen, pattern, where) for b in chosen if a != b]
        case "permutation":
            found = _permutation(_several(chosen, pattern, where), seed)
        case _:
            known = ", ".join(PATTERNS)
            raise InputError(where, f"pattern {pattern!r} is unknown", f"use one of {known}")
    for source, target in found:
        if source == target:
            raise InputError(where, f"{source} sends to itself", "name another host in `to`")
    return tuple(found)


def _count(sources: Sequence[str], count: int | None, where: str) -> int:
    if count is None:
        return len(sources)
    if not 0 <= count <= len(sources):
        raise InputError(
            where, f"count {count} of {len(sources)} hosts", f"use 0 to {len(sources)}"
        )
    return count


def _one_to_one(sources: Sequence[str], targets: Sequence[str], where: str) -> list[Pair]:
    if len(sources) != len(targets):
        raise InputError(
            where,
            f"one-to-one has {len(sources)} sources and {len(targets)} targets",
            "name as many hosts in `from` as in `to`",
        )
    return list(zip(sources, targets, strict=True))


def _many_to_one(sources: Sequence[str], targets: Sequence[str], where: str) -> list[Pair]:
    if len(targets) != 1:
        raise InputError(where, f"many-to-one has {len(targets)} targets", "name one host in `to`")
    return [(source, targets[0]) for source in sources]


def _several(hosts: Sequence[str], pattern: str, where: str) -> Sequence[str]:
    if len(hosts) < 2:
        raise InputError(where, f"{pattern} needs 2 hosts and has {len(hosts)}", "name more hosts")
    return hosts


def _permutation(hosts: Sequence[str], seed: int) -> list[Pair]:
    """Shuffled until nobody keeps its own place, which one shuffle in e does."""
    rng = random.Random(seed)
    targets = list(hosts)
    while any(a == b for a, b in zip(hosts, targets, strict=True)):
        rng.shuffle(targets)
    return list(zip(hosts, targets, strict=True))
